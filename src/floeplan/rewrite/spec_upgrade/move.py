"""Which data files can be moved to another partition spec by metadata alone, and which deletes move with them.

Rule: a file can be moved when its partition under the target spec is proven: every field of that spec is also a
    field of the file's own spec, or can be recovered from its column bounds. Its entry is then recorded in the new spec
    and partition, and deletion vectors and file-scoped deletes move with it in the same commit.

Fail-safe: a file stays where moving it would change which deletes apply to it:

- a position delete of several files in its old partition is not older than the file (deleted rows would come back);
- a newer equality delete is in its old partition (deleted rows would come back);
- a newer equality delete is in its new partition (it would delete rows of the file).

Equality deletes of an unpartitioned spec apply everywhere and forbid nothing. A file that may lack a column because its
value is only in the partition (files of Hive tables) stays unless the new spec has the value. A move that only drops
information (day to month) must be allowed explicitly.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.transforms import BucketTransform, IdentityTransform, TimeTransform, TruncateTransform
from pyiceberg.types import BinaryType, StringType

from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.partition.fields import BoundField
from floeplan.partition.recover import Obstacle
from floeplan.partition.union import SpecProjection
from floeplan.predicate.build import columns
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.rewrite.plan.candidates import OutputPartitions, needed_stats, output_partitions
from floeplan.rewrite.spec_upgrade.entry_moves import (
    MisplacedDeletes,
    Move,
    PartitionTuples,
    entry_move_of,
    find_misplaced,
    joint_codes,
)
from floeplan.snapshot.effects import Predicate
from floeplan.snapshot.passes import ScanDeletes, evaluate_entries
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.move_entries import EntryMove
from floeplan.vectors import Mask


class MoveStatus(IntEnum):
    """Whether a file moves, and if not, why."""

    MOVED = 0
    IN_TARGET_SPEC = 1
    COARSER_TARGET = 2
    UNKNOWN_TRANSFORM = 3
    MISSING_STATS = 4
    NULLS = 5
    NAN = 6
    BUCKET = 7
    SPANS_PARTITIONS = 8
    TRUNCATED_BOUNDS = 9
    OUT_OF_RANGE = 10
    POSITION_DELETES_OF_OLD_PARTITION = 11
    EQUALITY_DELETES_OF_OLD_PARTITION = 12
    EQUALITY_DELETES_OF_NEW_PARTITION = 13
    NEXT_COMMIT = 14
    OUTSIDE_FILTER = 15
    VALUES_ONLY_IN_PARTITION = 16

    @property
    def label(self) -> str:
        """The name in JSON and text."""
        return self.name.lower().replace("_", "-")


_OTHER_NAMES = {
    Obstacle.NONE: MoveStatus.MOVED,
    Obstacle.SPANS: MoveStatus.SPANS_PARTITIONS,
    Obstacle.TRUNCATED: MoveStatus.TRUNCATED_BOUNDS,
}
_OF_OBSTACLE = np.array(
    [_OTHER_NAMES[one] if one in _OTHER_NAMES else MoveStatus[one.name] for one in Obstacle], dtype=np.int8
)
"""The status of a file whose partition is not proven, by the obstacle."""
_NOT_REPORTED = (MoveStatus.MOVED, MoveStatus.IN_TARGET_SPEC, MoveStatus.OUTSIDE_FILTER)


@dataclass(frozen=True, slots=True)
class SpecMove:
    """A move planned on one head.

    Attributes:
        head: The snapshot.
        data: All live data files.
        status: Whether each moves, as values of ``MoveStatus``.
        partitions: The spec and partition of each after the move.
        misplaced: Deletes that move: those of moved files, and those that were misplaced before.
    """

    head: SnapshotReader
    data: EntriesTable
    status: npt.NDArray[np.int8]
    partitions: PartitionTuples
    misplaced: MisplacedDeletes

    @property
    def moved(self) -> Mask:
        """The files that move."""
        return np.asarray(self.status == MoveStatus.MOVED)

    @property
    def coarser_specs(self) -> frozenset[int]:
        """Specs whose files would lose partition information and therefore stay."""
        return frozenset(self.data.spec_id[self.status == MoveStatus.COARSER_TARGET].tolist())

    def reasons(self) -> dict[str, int]:
        """How many files stay for each reason."""
        counts = np.bincount(self.status, minlength=len(MoveStatus)).tolist()
        return {one.label: counts[one] for one in MoveStatus if one not in _NOT_REPORTED and counts[one]}

    def entry_move(self) -> EntryMove | None:
        """The manifests to replace; ``None`` when nothing moves."""
        data = Move(self.data, self.moved, self.partitions.take(np.flatnonzero(self.moved)))
        return entry_move_of(self.head, [data, self.misplaced.move(self.partitions)])


def plan_move(
    head: SnapshotReader,
    target_spec_id: int,
    *,
    allow_coarser: bool = False,
    most_files: int | None = None,
    where: IrExpr = TRUE,
) -> SpecMove:
    """Decide for every data file of a head whether it moves to a spec.

    Args:
        head: The snapshot.
        target_spec_id: The spec to move to.
        allow_coarser: Allow moves that only drop information.
        most_files: Maximum files to move; the others wait for the next commit.
        where: Move only files of which every row provably matches.
    """
    target = head.union.spec(target_spec_id)
    predicate = Predicate(where, columns(where), head.union)
    # Columns whose value readers take from the partition under some specs, but not under the target.
    identities = [field for field in head.union.fields if isinstance(field.bound.transform, IdentityTransform)]
    in_target = {field.bound.source_id for field in identities if target_spec_id in field.positions}
    constants: dict[int, list[int]] = {}
    for field in identities:
        if field.bound.source_id not in in_target:
            constants.setdefault(field.bound.source_id, []).extend(field.positions)
    stats = needed_stats(head.union, target_spec_id) | predicate.columns.keys() | constants.keys()
    data = head.entries(head.manifest_rows(DATA), EntryColumns(frozenset(), stats=stats))
    deletes = head.deletes()
    outputs = output_partitions(data, head.union, target_spec_id)
    status = _OF_OBSTACLE[outputs.obstacle]
    status[data.spec_id == target_spec_id] = MoveStatus.IN_TARGET_SPEC
    for source_id, spec_ids in constants.items():
        unseen = np.isin(data.spec_id, spec_ids) & ~data.valid(f"value_count.{source_id}")
        status[unseen & (status == MoveStatus.MOVED)] = MoveStatus.VALUES_ONLY_IN_PARTITION
    if not allow_coarser:
        coarser = [spec_id for spec_id, own in head.union.specs.items() if is_coarser(target, own)]
        status[np.isin(data.spec_id, coarser) & (status != MoveStatus.IN_TARGET_SPEC)] = MoveStatus.COARSER_TARGET
    _keep_for_deletes(head, data, outputs, deletes, status)
    if where is not TRUE:
        proven = evaluate_entries(predicate, data).tri.all_match
        status[~proven & (status != MoveStatus.IN_TARGET_SPEC)] = MoveStatus.OUTSIDE_FILTER
    if most_files is not None:
        status[np.flatnonzero(status == MoveStatus.MOVED)[most_files:]] = MoveStatus.NEXT_COMMIT
    partitions = _partitions(data, outputs, np.asarray(status == MoveStatus.MOVED))
    return SpecMove(head, data, status, partitions, find_misplaced(head.union, data.path, partitions, deletes))


def is_coarser(target: SpecProjection, own: SpecProjection) -> bool:
    """Whether the partition under one spec determines that under the other, and not vice versa."""
    return _determines(own, target) and not _determines(target, own)


def _determines(fine: SpecProjection, coarse: SpecProjection) -> bool:
    """Whether every field of one spec is determined by a field of the other."""
    of_fine, of_coarse = ([field for field in spec.fields if not field.is_void] for spec in (fine, coarse))
    return all(any(_determines_field(field, other) for field in of_fine) for other in of_coarse)


def _determines_field(fine: BoundField, coarse: BoundField) -> bool:
    """Whether equal values of one field mean equal values of the other."""
    if fine.source_id != coarse.source_id:
        return False
    match fine.transform, coarse.transform:
        case IdentityTransform(), _:
            return True
        case BucketTransform() as more, BucketTransform() as fewer:
            return more.num_buckets % fewer.num_buckets == 0
        case TruncateTransform() as longer, TruncateTransform() as shorter:
            if isinstance(fine.source_type, StringType | BinaryType):
                return longer.width >= shorter.width
            return shorter.width % longer.width == 0
        case TimeTransform() as finer, TimeTransform() as wider:
            return finer.satisfies_order_of(wider)
    return fine.transform == coarse.transform


def _keep_for_deletes(
    head: SnapshotReader,
    data: EntriesTable,
    outputs: OutputPartitions,
    deletes: ScanDeletes,
    status: npt.NDArray[np.int8],
) -> None:
    """Keep files for which different deletes would apply after the move."""
    new = PartitionTuples(outputs.spec_id, outputs.columns)
    old_codes, new_codes, delete_codes = joint_codes(
        head.union, PartitionTuples.of(data), new, PartitionTuples.of(deletes.entries)
    )
    partitions = 1 + max(int(codes.max(initial=-1)) for codes in (old_codes, new_codes, delete_codes))
    checks = (
        (DeleteKind.EQUALITY_PARTITION, new_codes, 1, MoveStatus.EQUALITY_DELETES_OF_NEW_PARTITION),
        (DeleteKind.EQUALITY_PARTITION, old_codes, 1, MoveStatus.EQUALITY_DELETES_OF_OLD_PARTITION),
        (DeleteKind.POSITION_PARTITION, old_codes, 0, MoveStatus.POSITION_DELETES_OF_OLD_PARTITION),
    )
    for kind, codes, newer_by, why in checks:
        # For each partition the highest sequence number of deletes of this kind; -1 when there are none.
        of_kind = deletes.kinds == kind
        newest = np.full(partitions, -1, dtype=np.int64)
        np.maximum.at(newest, delete_codes[of_kind], deletes.entries.sequence_number[of_kind])
        status[(status == MoveStatus.MOVED) & (newest[codes] >= data.sequence_number + newer_by)] = why


def _partitions(data: EntriesTable, outputs: OutputPartitions, moved: Mask) -> PartitionTuples:
    """The partition of files after the move: the proven one for those that move, their own for the others."""
    own, rows = PartitionTuples.of(data), np.arange(len(data))
    picked = pa.array(np.where(moved, rows + len(data), rows))
    chosen = {}
    for key, column in own.columns.items():
        new = outputs.columns[key]
        both = pa.concat_arrays([column.cast(new.type) if pa.types.is_null(column.type) else column, new])
        chosen[key] = both.take(picked)
    return PartitionTuples(np.where(moved, outputs.spec_id, own.spec_id), chosen)

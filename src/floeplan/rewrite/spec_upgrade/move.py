"""Which data files can be moved to another partition spec by metadata alone, and what goes with them.

Rule: a file may be moved when its partition under the target spec is proven: every field of that spec is either a field
of the file's own spec, or recovered from its column bounds. Its entry is then filed under the new spec and partition,
and deletion vectors and deletes that name it are carried along in the same commit.

Fail-safe: a file stays where moving it would change which deletes apply to it:

- a position delete of several files lies in its old partition and is not older than the file (rows would come back);
- a newer equality delete lies in its old partition (rows would come back);
- a newer equality delete lies in the partition it would go to (rows would go that were never meant).

Equality deletes of an unpartitioned spec apply everywhere and forbid nothing. A file that may lack a column, because
its value stands in the partition only (files of Hive tables), stays where the new spec does not tell the value. A move
that only drops information (day to month) is made when it was asked for.
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
from floeplan.partition.projection import SpecProjection
from floeplan.partition.recover import Obstacle
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import columns
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.rewrite.plan.output import OutputPartitions, needed_stats, output_partitions
from floeplan.rewrite.spec_upgrade.delete_repair import Strays, find_strays, joint_codes
from floeplan.rewrite.spec_upgrade.placement import Move, Places, refiling_of
from floeplan.snapshot.deletes import ScanDeletes
from floeplan.snapshot.passes import Predicate, evaluate_entries
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.move_entries import EntryMove
from floeplan.vectors import Ints, Mask


class Fate(IntEnum):
    """What becomes of a file."""

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
    NOT_ASKED_FOR = 15
    VALUES_ONLY_IN_PARTITION = 16

    @property
    def label(self) -> str:
        """As documents and people name it."""
        return self.name.lower().replace("_", "-")


_FATES = {
    Obstacle.NONE: Fate.MOVED,
    Obstacle.UNKNOWN_TRANSFORM: Fate.UNKNOWN_TRANSFORM,
    Obstacle.MISSING_STATS: Fate.MISSING_STATS,
    Obstacle.NULLS: Fate.NULLS,
    Obstacle.NAN: Fate.NAN,
    Obstacle.BUCKET: Fate.BUCKET,
    Obstacle.SPANS: Fate.SPANS_PARTITIONS,
    Obstacle.TRUNCATED: Fate.TRUNCATED_BOUNDS,
    Obstacle.OUT_OF_RANGE: Fate.OUT_OF_RANGE,
}


@dataclass(frozen=True, slots=True)
class SpecMove:
    """What a move would do on one head.

    Attributes:
        head: The snapshot.
        data: All live data files.
        fates: What becomes of each, as values of ``Fate``.
        places: Where each will be.
        strays: Deletes that have to be filed anew: those of moved files, and those that were stray before.
    """

    head: SnapshotReader
    data: EntriesTable
    fates: npt.NDArray[np.int8]
    places: Places
    strays: Strays

    @property
    def moved(self) -> Mask:
        """The files that move."""
        return np.asarray(self.fates == Fate.MOVED)

    @property
    def coarser_specs(self) -> frozenset[int]:
        """Specs that tell more than the target, whose files were not to lose it."""
        return frozenset(self.data.spec_id[self.fates == Fate.COARSER_TARGET].tolist())

    def reasons(self) -> dict[str, int]:
        """How many of the files that were to move stay for each reason."""
        counts = np.bincount(self.fates, minlength=len(Fate)).tolist()
        staying = (fate for fate in Fate if fate not in (Fate.MOVED, Fate.IN_TARGET_SPEC, Fate.NOT_ASKED_FOR))
        return {fate.label: counts[fate] for fate in staying if counts[fate]}

    def refiling(self) -> EntryMove | None:
        """The manifests to replace; ``None`` when nothing moves."""
        data = Move(self.data, self.moved, self.places.take(np.flatnonzero(self.moved)))
        return refiling_of(self.head, [data, self.strays.move(self.places)])


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
        allow_coarser: Whether moves that only drop information are made.
        most_files: Files to move at most; the others wait for the next commit.
        where: Only files of which every row is proven to match move.
    """
    target = head.union.spec(target_spec_id)
    asked = Predicate(where, columns(where), head.union)
    constants = _constants(head.union, target_spec_id)
    stats = needed_stats(head.union, target_spec_id) | asked.columns.keys() | constants.keys()
    data = head.entries(head.manifest_rows(DATA), EntryColumns(frozenset(), stats=stats))
    deletes = head.deletes()
    outputs = output_partitions(data, head.union, target_spec_id)
    fates = _provable(data, target_spec_id, outputs)
    for source_id, spec_ids in constants.items():
        unseen = np.isin(data.spec_id, spec_ids) & ~data.valid(f"value_count.{source_id}")
        fates[unseen & (fates == Fate.MOVED)] = Fate.VALUES_ONLY_IN_PARTITION
    if not allow_coarser:
        coarser = [spec_id for spec_id, own in head.union.specs.items() if is_coarser(target, own)]
        fates[np.isin(data.spec_id, coarser) & (fates != Fate.IN_TARGET_SPEC)] = Fate.COARSER_TARGET
    _keep_for_deletes(head, data, outputs, deletes, fates)
    if where is not TRUE:
        proven = evaluate_entries(asked, data).tri.all_match
        fates[~proven & (fates != Fate.IN_TARGET_SPEC)] = Fate.NOT_ASKED_FOR
    if most_files is not None:
        fates[np.flatnonzero(fates == Fate.MOVED)[most_files:]] = Fate.NEXT_COMMIT
    places = _places(data, outputs, np.asarray(fates == Fate.MOVED))
    return SpecMove(head, data, fates, places, find_strays(head.union, data.path, places, deletes))


def _constants(union: UnionPartitionType, target_spec_id: int) -> dict[int, list[int]]:
    """Columns whose value readers take from the partition under some specs, and no longer under the target."""
    identities = [field for field in union.fields if isinstance(field.bound.transform, IdentityTransform)]
    told = {field.bound.source_id for field in identities if target_spec_id in field.positions}
    found: dict[int, list[int]] = {}
    for field in identities:
        if field.bound.source_id not in told:
            found.setdefault(field.bound.source_id, []).extend(field.positions)
    return found


def is_coarser(target: SpecProjection, own: SpecProjection) -> bool:
    """Whether the partition under one spec follows from that under the other, and not the other way round."""
    return _follows(target, own) and not _follows(own, target)


def _follows(coarse: SpecProjection, fine: SpecProjection) -> bool:
    """Whether every field of the one spec is told by a field of the other."""
    asked = [field for field in coarse.fields if not field.is_void]
    given = [field for field in fine.fields if not field.is_void]
    return all(any(_tells(field, other) for field in given) for other in asked)


def _tells(fine: BoundField, coarse: BoundField) -> bool:
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


def _provable(data: EntriesTable, target_spec_id: int, outputs: OutputPartitions) -> npt.NDArray[np.int8]:
    """Whether the partition of each file is proven, and if not, what stands against it."""
    by_obstacle = np.array([_FATES[obstacle] for obstacle in Obstacle], dtype=np.int8)
    fates = by_obstacle[outputs.obstacle]
    fates[data.spec_id == target_spec_id] = Fate.IN_TARGET_SPEC
    return fates


def _keep_for_deletes(
    head: SnapshotReader,
    data: EntriesTable,
    outputs: OutputPartitions,
    deletes: ScanDeletes,
    fates: npt.NDArray[np.int8],
) -> None:
    """Let the files stay whose deletes would change."""
    new = Places(outputs.spec_id, outputs.columns)
    old_codes, new_codes, delete_codes = joint_codes(head.union, Places.of(data), new, Places.of(deletes.entries))
    age = data.sequence_number
    checks = (
        (DeleteKind.EQUALITY_PARTITION, new_codes, 1, Fate.EQUALITY_DELETES_OF_NEW_PARTITION),
        (DeleteKind.EQUALITY_PARTITION, old_codes, 1, Fate.EQUALITY_DELETES_OF_OLD_PARTITION),
        (DeleteKind.POSITION_PARTITION, old_codes, 0, Fate.POSITION_DELETES_OF_OLD_PARTITION),
    )
    for kind, codes, newer_by, fate in checks:
        of_kind = deletes.kinds == kind
        newest = _newest(delete_codes[of_kind], deletes.entries.sequence_number[of_kind], codes)
        fates[(fates == Fate.MOVED) & (newest >= age + newer_by)] = fate


def _newest(delete_codes: Ints, sequence: Ints, codes: Ints) -> Ints:
    """For each file the highest sequence number of deletes in its partition; -1 when there are none."""
    most = np.full(max(int(codes.max(initial=-1)), int(delete_codes.max(initial=-1))) + 2, -1, dtype=np.int64)
    np.maximum.at(most, delete_codes, sequence)
    return np.asarray(most[codes])


def _places(data: EntriesTable, outputs: OutputPartitions, moved: Mask) -> Places:
    """Where files will be: the proven partition for those that move, their own for the others."""
    own, picked = Places.of(data), pa.array(np.where(moved, np.arange(len(data)) + len(data), np.arange(len(data))))
    chosen = {}
    for key, column in own.columns.items():
        new = outputs.columns[key]
        both = pa.concat_arrays([column.cast(new.type) if pa.types.is_null(column.type) else column, new])
        chosen[key] = both.take(picked)
    return Places(np.where(moved, outputs.spec_id, own.spec_id), chosen)

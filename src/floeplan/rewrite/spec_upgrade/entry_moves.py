"""Recording manifest entries in another spec or partition, and repairing deletes that are recorded in a wrong one.

Moving entries replaces the manifests they are in: entries that stay are written again manifest by manifest, entries
that move are clustered by their new partition (``Clustering``).

Rule: a position delete file that references one data file, and a deletion vector, must be recorded in the spec and
partition of that data file. One that is not (*misplaced*) makes Iceberg refuse the table, and other readers bring
deleted rows back. It happens when a merge-on-read writer commits deletes for files that were concurrently moved to
another spec. The repair records such deletes in the partition of their data file; nothing else about them changes.

A position delete file of several data files belongs to the partition they were in. When some of them moved, it is also
recorded in their new partitions.

Fail-safe: a delete whose data file is not in the snapshot is left alone, and so is an equality delete unless it is
proven which rows it was meant for (``late_deletes``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floeplan.formats.files import open_stored
from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import (
    POSITION_DELETE_PATH,
    WHOLE,
    Content,
    EntriesTable,
    EntryColumns,
    concat_entries,
    partition_column,
)
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.parquet.prune.selection import RowSelection
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask
from floeplan.rewrite.spec_upgrade.late_deletes import LateDeletes, find_late_deletes
from floeplan.snapshot.passes import ScanDeletes
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.manifests import MergeOptions, group_entries_by_spec
from floeplan.transaction.move_entries import EntryMove, move_entries
from floeplan.vectors import Ints, Mask

MOST_MANIFESTS = 200
"""Manifests of one spec and kind beyond which neighbouring partitions share one."""


@dataclass(frozen=True, slots=True)
class Clustering:
    """Divides entries into manifests so that a partition is in as few of them as possible.

    Entries are sorted by their partition and cut where the partition changes: one manifest per partition, or several
    neighbouring partitions in a manifest where there are many. The partition summaries of such manifests are narrow,
    which lets a planner skip most of them.

    Attributes:
        union: The partition fields of the table.
        most_entries: Maximum entries of a manifest, even within a partition.
        most_manifests: Maximum manifests of one spec and kind, unless ``most_entries`` requires more.
    """

    union: UnionPartitionType
    most_entries: int
    most_manifests: int = MOST_MANIFESTS

    def manifests(self, entries: EntriesTable) -> list[EntriesTable]:
        """The entries of each manifest, for entries of any specs and kinds."""
        is_data = entries.content == Content.DATA
        kinds = [entries.filter(kind) for kind in (is_data, ~is_data) if kind.any()]
        return [part for kind in kinds for own in group_entries_by_spec(kind).values() for part in self._parts(own)]

    def _parts(self, entries: EntriesTable) -> list[EntriesTable]:
        """The manifests of entries of one spec and kind."""
        fields = self.union.spec(int(entries.spec_id[0])).fields
        names = [partition_column(field.column.field_id) for field in fields if not field.is_void]
        known = [name for name in names if name in entries and entries.array(name).null_count < len(entries)]
        if known:
            order = pc.sort_indices(entries.table.select(known), [(name, "ascending") for name in known])
            entries = entries.take(order.to_numpy())
        codes = partition_codes(self.union, entries.spec_id, entries.partition_columns())
        ends = np.append(np.flatnonzero(np.diff(codes)) + 1, len(entries))
        # A manifest ends at the end of a partition once it has enough entries, and when it has the most it may have.
        enough = max(1, -(-len(entries) // self.most_manifests))
        parts, start = [], 0
        while start < len(entries):
            end_of_partition = int(ends[min(int(np.searchsorted(ends, start + enough)), len(ends) - 1)])
            stop = min(end_of_partition, start + max(1, self.most_entries))
            part = entries.table.slice(start, stop - start).combine_chunks()
            parts.append(EntriesTable(part, entries.partition_types))
            start = stop
        return parts


@dataclass(frozen=True, slots=True)
class PartitionTuples:
    """The spec id and the union partition tuple of many files, as columns."""

    spec_id: Ints
    columns: Mapping[int, pa.Array]

    @classmethod
    def of(cls, entries: EntriesTable) -> PartitionTuples:
        """The spec and partition of entries."""
        return cls(entries.spec_id, entries.partition_columns())

    def take(self, rows: Ints) -> PartitionTuples:
        """Those of some of the files."""
        picked = pa.array(rows)
        return PartitionTuples(self.spec_id[rows], {key: column.take(picked) for key, column in self.columns.items()})

    def apply(self, entries: EntriesTable) -> EntriesTable:
        """The entries with this spec and partition."""
        table = entries.table
        columns = {partition_column(key): column for key, column in self.columns.items()}
        for name, values in (("spec_id", pa.array(self.spec_id)), *columns.items()):
            if name in entries:
                at = table.schema.get_field_index(name)
                known = values.type if pa.types.is_null(table.schema.field(at).type) else table.schema.field(at).type
                table = table.set_column(at, name, values.cast(known))
        return EntriesTable(table, entries.partition_types)


@dataclass(frozen=True, slots=True)
class Move:
    """Live entries of one kind, which of them move, and the new partition of each that moves.

    A delete file that applies to data files in several partitions is recorded in each: the rows ``copies`` are also
    recorded in ``copy_partitions``.
    """

    entries: EntriesTable
    moves: Mask
    partitions: PartitionTuples
    copies: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    copy_partitions: PartitionTuples | None = None

    @property
    def nothing(self) -> bool:
        """Whether no entry moves or is copied."""
        return not self.moves.any() and not len(self.copies)


def entry_move_of(head: SnapshotReader, moves: Sequence[Move]) -> EntryMove | None:
    """The manifests to replace for some moves; ``None`` when nothing moves."""
    replaced, before, after = list[Ints](), list[EntriesTable](), list[EntriesTable]()
    for move in moves:
        if move.nothing:
            continue
        # The manifests in which an entry moves or is copied, with all entries in them.
        manifest, concerned = move.entries.ints("manifest"), move.moves.copy()
        concerned[move.copies] = True
        rows = np.unique(manifest[concerned])
        there = np.isin(manifest, rows)
        whole, moved_here = head.entries(rows, EntryColumns(WHOLE)), move.moves[there]
        parts = [move.partitions.apply(whole.filter(moved_here))]
        if move.copy_partitions is not None:
            position = np.cumsum(there) - 1
            parts.append(move.copy_partitions.apply(whole.take(position[move.copies])))
        # Entries that stay are in the order of their manifests, and keep them.
        staying = whole.filter(~moved_here)
        starts = np.flatnonzero(np.diff(staying.ints("manifest"), prepend=-1)).tolist()
        for start, stop in zip(starts, [*starts[1:], len(staying)], strict=False):
            after.append(staying.take(np.arange(start, stop)))
        # Those that move are clustered to the target manifest size of the table, given the current bytes per entry.
        each = max(1, int(head.manifests.length[rows].sum()) // max(1, len(whole)))
        clustering = Clustering(head.union, MergeOptions.of(head.metadata.properties).target_bytes // each)
        after += clustering.manifests(concat_entries(parts, head.union))
        replaced.append(rows)
        before.append(whole)
    if not replaced:
        return None
    return EntryMove(np.concatenate(replaced), concat_entries(before, head.union), after)


@dataclass(frozen=True, slots=True)
class MisplacedDeletes:
    """Delete files of a snapshot that are not recorded in the partition of their data file.

    Attributes:
        deletes: All live delete files.
        is_misplaced: Which of them are misplaced.
        data_rows: For each of these the row of its data file.
    """

    deletes: ScanDeletes
    is_misplaced: Mask
    data_rows: Ints

    def move(self, partitions: PartitionTuples, copies: Pairs | None = None) -> Move:
        """Move the misplaced deletes to the partition of their data files."""
        entries, there = self.deletes.entries, partitions.take(self.data_rows)
        if copies is None or not len(copies.delete_rows):
            return Move(entries, self.is_misplaced, there)
        return Move(entries, self.is_misplaced, there, copies.delete_rows, partitions.take(copies.data_rows))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows of delete files, each with a data file in a partition that it must also be recorded in."""

    delete_rows: Ints
    data_rows: Ints


@dataclass(frozen=True, slots=True)
class RepairResult:
    """How many delete files were repaired, and the snapshot; no snapshot when there was nothing to repair."""

    delete_files: int
    snapshot_id: int | None

    def to_dict(self) -> Mapping[str, object]:
        """The JSON document."""
        return {"delete_files": self.delete_files, "snapshot_id": self.snapshot_id}


def repair_deletes(
    table: Table, *, branch: str = MAIN_BRANCH, late: bool = False, options: CommitOptions | None = None
) -> RepairResult:
    """Record misplaced deletes in the partition of their data files.

    Args:
        table: The table.
        branch: The branch.
        late: Also record late equality deletes where the rows are that they should have deleted.
        options: Commit and retry options.
    """
    faults = [0]

    def decide(head: SnapshotReader) -> EntryMove | None:
        check = DeleteCheck.of(head, late=late)
        faults.append(check.faults)
        return entry_move_of(head, [check.move])

    result = move_entries(
        table, decide, branch=branch, summary={"floeplan.operation": "repair-deletes"}, options=options
    )
    return RepairResult(0, None) if result is None else RepairResult(faults[-1], result.snapshot_id)


@dataclass(frozen=True, slots=True)
class DeleteCheck:
    """The deletes of a head compared with its data files.

    Attributes:
        data: All live data files.
        partitions: Their specs and partitions.
        misplaced: File-scoped deletes, and which of them are misplaced.
        copies: Position deletes of several data files that do not apply to all of them.
        late: Equality deletes that were added under an old spec after rows had moved out of it.
    """

    data: EntriesTable
    partitions: PartitionTuples
    misplaced: MisplacedDeletes
    copies: Pairs
    late: LateDeletes

    @classmethod
    def of(cls, head: SnapshotReader, *, late: bool = True) -> DeleteCheck:
        """Check all deletes; opens delete files of several data files where some of these may have moved.

        With ``late``, data files are opened as well, to compare keys.
        """
        data = head.entries(head.manifest_rows(DATA), EntryColumns(frozenset()))
        partitions, deletes = PartitionTuples.of(data), head.deletes()
        misplaced = find_misplaced(head.union, data.path, partitions, deletes)
        unreached = _find_unreached(head, data, deletes)
        return cls(
            data, partitions, misplaced, unreached, find_late_deletes(head, deletes) if late else LateDeletes.none()
        )

    @property
    def move(self) -> Move:
        """The move that repairs what is proven."""
        by_position, by_key = (self.copies.delete_rows, self.copies.data_rows), self.late.copies
        copies = Pairs(*(np.concatenate(both) for both in zip(by_position, by_key, strict=True)))
        return self.misplaced.move(self.partitions, copies)

    @property
    def faults(self) -> int:
        """Delete files that are not recorded in the right partition."""
        copied = len(np.unique(self.copies.delete_rows)) + len(np.unique(self.late.copies[0]))
        return int(np.count_nonzero(self.misplaced.is_misplaced)) + copied


def find_misplaced(
    union: UnionPartitionType, paths: pa.Array, partitions: PartitionTuples, deletes: ScanDeletes
) -> MisplacedDeletes:
    """The deletes that are not recorded in the (new) partition of their data file."""
    targets = deletes.entries.delete_targets()
    by_path = np.isin(deletes.kinds, (DeleteKind.POSITION_FILE, DeleteKind.VECTOR))
    # Only the files that are named: an index of all paths would take as much memory as these.
    named = np.flatnonzero(to_mask(pc.is_in(paths, value_set=targets.drop_null())))
    found = pc.index_in(targets, value_set=paths.take(pa.array(named)))
    present = by_path & to_mask(found.is_valid())
    data_row = np.append(named, 0)[found.fill_null(-1).to_numpy(zero_copy_only=False)]
    data_codes, delete_codes = joint_codes(union, partitions, PartitionTuples.of(deletes.entries))
    is_misplaced = np.zeros(len(present), dtype=np.bool_)
    is_misplaced[present] = data_codes[data_row[present]] != delete_codes[present]
    return MisplacedDeletes(deletes, is_misplaced, data_row[is_misplaced])


def joint_codes(union: UnionPartitionType, *partitions: PartitionTuples) -> list[Ints]:
    """Number the distinct (spec, partition) pairs over several sets of files."""
    columns = {}
    for key in sorted({key for one in partitions for key in one.columns}):
        given = [one.columns.get(key) for one in partitions]
        types = [column.type for column in given if column is not None and not pa.types.is_null(column.type)]
        type_ = types[0] if types else pa.null()
        columns[key] = pa.concat_arrays(
            [
                pa.nulls(len(one.spec_id), type_) if column is None else column.cast(type_)
                for column, one in zip(given, partitions, strict=True)
            ]
        )
    codes = partition_codes(union, np.concatenate([one.spec_id for one in partitions]), columns)
    return np.split(codes, np.cumsum([len(one.spec_id) for one in partitions])[:-1])


def _find_unreached(head: SnapshotReader, data: EntriesTable, deletes: ScanDeletes) -> Pairs:
    """Pairs of a delete file and a data file it references in a partition that it is not recorded in."""
    rows, entries = np.flatnonzero(deletes.kinds == DeleteKind.POSITION_PARTITION), deletes.entries
    if not len(rows):
        return Pairs(rows, rows)
    codes, recorded = joint_codes(head.union, PartitionTuples.of(data), PartitionTuples.of(entries))
    order = pc.sort_indices(data.path).to_numpy()
    ordered = data.path.take(pa.array(order))
    lower, upper = (entries.array(f"{side}.{POSITION_DELETE_PATH}") for side in ("lower", "upper"))
    known = set(zip(entries.path.to_pylist(), recorded.tolist(), strict=True))
    found: list[tuple[int, int]] = []
    for row in rows.tolist():
        path, first, last = (column[row].as_py() for column in (entries.path, lower, upper))
        # Data files between the bounds of the delete file's paths; a truncated upper bound is null.
        start = 0 if first is None else _position(bisect_left, ordered, first.decode(errors="ignore"))
        stop = len(order) if last is None else _position(bisect_right, ordered, last.decode(errors="replace"))
        near = order[start:stop]
        away = near[(codes[near] != recorded[row]) & (data.sequence_number[near] <= entries.sequence_number[row])]
        if not len(away):
            continue
        listed = open_stored(path, entries.array("file_format")[row].as_py(), head.io, "delete file")
        rows_of_all = RowSelection.all_rows(listed.num_rows)
        referenced = listed.read((POSITION_DELETE_PATH,), rows_of_all).column(0).unique()
        paths = data.path.take(pa.array(away))
        for place in away[to_mask(pc.is_in(paths, value_set=referenced.cast(paths.type)))].tolist():
            if (path, int(codes[place])) not in known:
                known.add((path, int(codes[place])))
                found.append((row, place))
    return Pairs(*np.array(found, dtype=np.int64).reshape(-1, 2).T)


def _position(bisect: Callable[..., int], ordered: pa.Array, path: str) -> int:
    return bisect(ordered, path, key=lambda one: one.as_py())

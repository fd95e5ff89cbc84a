"""Delete files that are not recorded in the partition of their data files, and their repair.

Rule: a position delete file that references one data file, and a deletion vector, must be recorded in the spec and
partition of that data file. One that is not (*misplaced*) makes Iceberg refuse the table, and other readers bring
deleted rows back. It happens when a merge-on-read writer commits deletes for files that were moved to another spec
meanwhile. The repair records such deletes in the partition of their data file; nothing else about them changes.

A position delete file of several data files belongs to the partition they were in. When some of them moved, it is also
recorded in their new partitions.

Fail-safe: a delete whose data file is not in the snapshot is left alone, and so is an equality delete: which files it
was meant for cannot be determined.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import POSITION_DELETE_PATH, EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.parquet.footer.footer import read_footer
from floeplan.parquet.read.reader import read_selected
from floeplan.parquet.source import open_source
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask
from floeplan.rewrite.spec_upgrade.entry_moves import Move, PartitionTuples, entry_move_of
from floeplan.snapshot.passes import ScanDeletes
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.move_entries import EntryMove, move_entries
from floeplan.vectors import Ints, Mask

_NO_COLUMNS = EntryColumns(frozenset())
_ONE_FILE = (DeleteKind.POSITION_FILE, DeleteKind.VECTOR)


@dataclass(frozen=True, slots=True)
class MisplacedDeletes:
    """Delete files of a snapshot that are not recorded in the partition of their data file.

    Attributes:
        deletes: All live delete files.
        is_misplaced: Which of them are misplaced.
        data_rows: For each of these the row of its data file.
        dangling: File-scoped deletes whose data file is not in the snapshot.
    """

    deletes: ScanDeletes
    is_misplaced: Mask
    data_rows: Ints
    dangling: Mask

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


def joint_codes(union: UnionPartitionType, *partitions: PartitionTuples) -> list[Ints]:
    """Number the distinct (spec, partition) pairs over several sets of files."""
    keys = sorted({key for one in partitions for key in one.columns})
    columns = {
        key: _stacked([one.columns.get(key) for one in partitions], [len(one.spec_id) for one in partitions])
        for key in keys
    }
    codes = partition_codes(union, np.concatenate([one.spec_id for one in partitions]), columns)
    return np.split(codes, np.cumsum([len(one.spec_id) for one in partitions])[:-1])


def _stacked(columns: list[pa.Array | None], lengths: list[int]) -> pa.Array:
    known = [column for column in columns if column is not None and not pa.types.is_null(column.type)]
    type_ = known[0].type if known else pa.null()
    return pa.concat_arrays(
        [
            pa.nulls(length, type_) if column is None else column.cast(type_)
            for column, length in zip(columns, lengths, strict=True)
        ]
    )


def find_misplaced(
    union: UnionPartitionType, paths: pa.Array, partitions: PartitionTuples, deletes: ScanDeletes
) -> MisplacedDeletes:
    """The deletes that are not recorded in the (new) partition of their data file."""
    targets = deletes.entries.delete_targets()
    by_path = np.isin(deletes.kinds, _ONE_FILE)
    found = pc.index_in(targets, value_set=paths)
    present = by_path & to_mask(found.is_valid())
    data_row = found.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    data_codes, delete_codes = joint_codes(union, partitions, PartitionTuples.of(deletes.entries))
    is_misplaced = np.zeros(len(present), dtype=np.bool_)
    is_misplaced[present] = data_codes[data_row[present]] != delete_codes[present]
    return MisplacedDeletes(deletes, is_misplaced, data_row[is_misplaced], by_path & ~present)


@dataclass(frozen=True, slots=True)
class RepairResult:
    """How many delete files were repaired, and the snapshot; no snapshot when there was nothing to repair."""

    delete_files: int
    snapshot_id: int | None

    def to_dict(self) -> Mapping[str, object]:
        """The JSON document."""
        return {"delete_files": self.delete_files, "snapshot_id": self.snapshot_id}


def repair_deletes(table: Table, *, branch: str = MAIN_BRANCH, options: CommitOptions | None = None) -> RepairResult:
    """Record misplaced deletes in the partition of their data files."""
    filed = [0]

    def decide(head: SnapshotReader) -> EntryMove | None:
        check = DeleteCheck.of(head)
        filed.append(check.faults)
        return entry_move_of(head, [check.misplaced.move(check.partitions, check.copies)])

    result = move_entries(
        table, decide, branch=branch, summary={"floeplan.operation": "repair-deletes"}, options=options
    )
    return RepairResult(0, None) if result is None else RepairResult(filed[-1], result.snapshot_id)


@dataclass(frozen=True, slots=True)
class DeleteCheck:
    """The deletes of a head compared with its data files.

    Attributes:
        data: All live data files.
        partitions: Their specs and partitions.
        misplaced: File-scoped deletes, and which of them are misplaced.
        copies: Position deletes of several data files that do not apply to all of them.
    """

    data: EntriesTable
    partitions: PartitionTuples
    misplaced: MisplacedDeletes
    copies: Pairs

    @classmethod
    def of(cls, head: SnapshotReader) -> DeleteCheck:
        """Check all deletes; opens delete files of several data files where some of these may have moved."""
        data = head.entries(head.manifest_rows(DATA), _NO_COLUMNS)
        partitions, deletes = PartitionTuples.of(data), head.deletes()
        misplaced = find_misplaced(head.union, data.path, partitions, deletes)
        return cls(data, partitions, misplaced, _find_unreached(head, data, deletes))

    @property
    def faults(self) -> int:
        """Delete files that are not recorded in the right partition."""
        return int(np.count_nonzero(self.misplaced.is_misplaced)) + len(np.unique(self.copies.delete_rows))


def _find_unreached(head: SnapshotReader, data: EntriesTable, deletes: ScanDeletes) -> Pairs:
    """Pairs of a delete file and a data file it references in a partition that it is not recorded in."""
    rows = np.flatnonzero(deletes.kinds == DeleteKind.POSITION_PARTITION)
    if not len(rows):
        return Pairs(rows, rows)
    codes, filed = joint_codes(head.union, PartitionTuples.of(data), PartitionTuples.of(deletes.entries))
    order = pc.sort_indices(data.path).to_numpy()
    ordered = data.path.take(pa.array(order))
    known = set(zip(deletes.entries.path.to_pylist(), filed.tolist(), strict=True))
    found: list[tuple[int, int]] = []
    for row in rows.tolist():
        path, age = deletes.entries.path[row].as_py(), deletes.entries.sequence_number[row]
        near = order[_between(ordered, *_bounds(deletes.entries, row))]
        away = near[(codes[near] != filed[row]) & (data.sequence_number[near] <= age)]
        for place in _named(path, deletes.entries, row, data.path, away, head.io):
            if (path, int(codes[place])) not in known:
                known.add((path, int(codes[place])))
                found.append((row, place))
    pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
    return Pairs(pairs[:, 0], pairs[:, 1])


def _bounds(deletes: EntriesTable, row: int) -> tuple[str, str | None]:
    """The first and last path a delete file may reference; ``None`` when the upper bound was truncated."""
    lower, upper = (deletes.array(f"{side}.{POSITION_DELETE_PATH}")[row].as_py() for side in ("lower", "upper"))
    return ("" if lower is None else lower.decode(errors="ignore")), None if upper is None else upper.decode(
        errors="replace"
    )


def _between(ordered: pa.Array, first: str, last: str | None) -> slice:
    """The slice of sorted paths between two paths."""
    start = bisect_left(ordered, first, key=lambda path: path.as_py())
    return slice(start, len(ordered) if last is None else bisect_right(ordered, last, key=lambda path: path.as_py()))


def _named(
    path: str, deletes: EntriesTable, row: int, data_paths: pa.Array, rows: Ints, io: FileIO | None
) -> list[int]:
    """The data files that a delete file references; one that is not Parquet is not opened."""
    if not len(rows) or deletes.array("file_format")[row].as_py() != "PARQUET":
        return []
    source = open_source(path, io)
    named = read_selected(source, read_footer(source), (POSITION_DELETE_PATH,)).column(0).combine_chunks().unique()
    asked = data_paths.take(pa.array(rows))
    found: list[int] = rows[to_mask(pc.is_in(asked, value_set=named.cast(asked.type)))].tolist()
    return found

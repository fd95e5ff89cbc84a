"""Deletes filed where their data files are.

Rule: a delete file that names one data file, and a deletion vector, belong to the spec and partition of that data file.
One that is filed elsewhere ("stray") makes Iceberg refuse the table, and other readers bring its rows back. It comes
about when a merge-on-read writer commits deletes for files that were moved to another spec meanwhile. The repair files
such deletes under the partition of their data file; nothing else about them changes.

A position delete file of several data files belongs to the partition they were in. When some of them were moved, it is
filed under their new partitions as well, and kept where it is.

Fail-safe: a delete whose data file is not in the snapshot is left alone, and so is an equality delete: which files it
was meant for cannot be told from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floeplan.metadata.decoder import Ints, Mask
from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.entry_columns import EntryColumns
from floeplan.metadata.manifest_list import DATA, DELETES
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask
from floeplan.rewrite.places import Move, Places, refiling_of
from floeplan.scan.deletes import ScanDeletes, read_deletes
from floeplan.transaction.exchange import CommitOptions
from floeplan.transaction.refile import Head, Refiling, refile

_NO_COLUMNS = EntryColumns(frozenset())
_ONE_FILE = (DeleteKind.POSITION_FILE, DeleteKind.VECTOR)


@dataclass(frozen=True, slots=True)
class Strays:
    """Delete files of a snapshot that are filed elsewhere than their data files.

    Attributes:
        deletes: All live delete files.
        stray: Which of them are filed elsewhere.
        data_rows: For each stray the row of its data file.
        dangling: Path-scoped deletes whose data file is not in the snapshot.
    """

    deletes: ScanDeletes
    stray: Mask
    data_rows: Ints
    dangling: Mask

    def move(self, places: Places) -> Move:
        """The strays filed where their data files are, given the places of all data files."""
        return Move(self.deletes.entries, self.stray, places.take(self.data_rows))


def joint_codes(union: UnionPartitionType, *places: Places) -> list[Ints]:
    """A number for every distinct (spec, partition) over several sets of files."""
    keys = sorted({key for one in places for key in one.columns})
    columns = {
        key: _stacked([one.columns.get(key) for one in places], [len(one.spec_id) for one in places]) for key in keys
    }
    codes = partition_codes(union, np.concatenate([one.spec_id for one in places]), columns)
    return np.split(codes, np.cumsum([len(one.spec_id) for one in places])[:-1])


def _stacked(columns: list[pa.Array | None], lengths: list[int]) -> pa.Array:
    known = [column for column in columns if column is not None and not pa.types.is_null(column.type)]
    type_ = known[0].type if known else pa.null()
    return pa.concat_arrays(
        [
            pa.nulls(length, type_) if column is None else column.cast(type_)
            for column, length in zip(columns, lengths, strict=True)
        ]
    )


def read_head_deletes(head: Head) -> ScanDeletes:
    """All live delete files of a head."""
    rows = head.rows(DELETES)
    return (
        read_deletes(lambda columns: head.entries(rows, columns), head.union)
        if len(rows)
        else ScanDeletes.none(head.union)
    )


def find_strays(union: UnionPartitionType, paths: pa.Array, places: Places, deletes: ScanDeletes) -> Strays:
    """The deletes that are not filed where their data files are, or are going to be."""
    targets = deletes.entries.delete_targets()
    by_path = np.isin(deletes.kinds, _ONE_FILE)
    found = pc.index_in(targets, value_set=paths)
    present = by_path & to_mask(found.is_valid())
    data_row = found.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    data_codes, delete_codes = joint_codes(union, places, Places.of(deletes.entries))
    stray = np.zeros(len(present), dtype=np.bool_)
    stray[present] = data_codes[data_row[present]] != delete_codes[present]
    return Strays(deletes, stray, data_row[stray], by_path & ~present)


@dataclass(frozen=True, slots=True)
class RepairResult:
    """Delete files that were filed anew, and the snapshot that did it; no snapshot when all were in their place."""

    delete_files: int
    snapshot_id: int | None

    def to_dict(self) -> Mapping[str, object]:
        """The JSON document."""
        return {"delete_files": self.delete_files, "snapshot_id": self.snapshot_id}


def repair_deletes(table: Table, *, branch: str = MAIN_BRANCH, options: CommitOptions | None = None) -> RepairResult:
    """File stray deletes where their data files are."""
    moved = [0]

    def decide(head: Head) -> Refiling | None:
        strays = head_strays(head)
        moved.append(int(np.count_nonzero(strays.stray)))
        data = _data(head)
        return refiling_of(head, [strays.move(Places.of(data))])

    result = refile(table, decide, branch=branch, summary={"floeplan.operation": "repair-deletes"}, options=options)
    return RepairResult(0, None) if result is None else RepairResult(moved[-1], result.snapshot_id)


def head_strays(head: Head) -> Strays:
    """The stray deletes of a head."""
    data = _data(head)
    return find_strays(head.union, data.path, Places.of(data), read_head_deletes(head))


def _data(head: Head) -> EntriesTable:
    return head.entries(head.rows(DATA), _NO_COLUMNS)

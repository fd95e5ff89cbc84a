"""What other writers did to a branch since a rewrite was planned, as far as it concerns the files that are replaced.

Rule: a data file that left the table cannot be replaced any more. A delete file counts if it was added since and is
still there; a file that was taken out and put in again by one commit is there.

Fail-safe: a history that does not reach the snapshot of the plan cannot be judged and is a conflict.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from floeplan.metadata.entries import POSITION_DELETE_PATH, EntriesTable, Status
from floeplan.metadata.entry_columns import EntryColumns
from floeplan.metadata.manifest_list import DATA, DELETES
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask
from floeplan.scan.deletes import ScanDeletes, read_deletes
from floeplan.transaction.change import DeleteFileId
from floeplan.transaction.history import Committed, committed_entries, snapshots_since
from floeplan.transaction.producer import delete_file_id
from floeplan.transaction.removal import entry_keys

_DATA = EntryColumns(frozenset({"snapshot_id"}), partition=False)
_DELETES = EntryColumns(
    frozenset(
        {
            "snapshot_id",
            "equality_ids",
            "referenced_data_file",
            "content_offset",
            "content_size_in_bytes",
            "key_metadata",
        }
    ),
    stats=frozenset({POSITION_DELETE_PATH}),
)


@dataclass(frozen=True, slots=True)
class Since:
    """What happened up to a head.

    Attributes:
        table: The table with that head.
        head: The head's snapshot id.
        removed_data: Paths of data files that left the table.
        removed_deletes: Delete files that did.
        deletes: Delete files that came.
    """

    table: Table
    head: int | None
    removed_data: pa.Array
    removed_deletes: frozenset[DeleteFileId]
    deletes: ScanDeletes

    @classmethod
    def of(cls, table: Table, head: int | None, start: int | None) -> Since:
        """What happened between two snapshots of a branch.

        Raises:
            CommitConflictError: The history of the head does not reach the start.
        """
        union = UnionPartitionType.of_table(table.metadata)
        snapshots = snapshots_since(table.metadata, head, start)
        data = committed_entries(snapshots, DATA, union, _DATA, table.io).entries
        deletes = committed_entries(snapshots, DELETES, union, _DELETES, table.io)
        came, left = _latest(deletes)
        return cls(
            table=table,
            head=head,
            removed_data=data.path.filter(pa.array(data.status == Status.DELETED)),
            removed_deletes=frozenset(map(delete_file_id, left.to_pylist())),
            deletes=read_deletes(lambda _: came, union),
        )


def _latest(deletes: Committed) -> tuple[EntriesTable, pa.Array]:
    """The delete files that are there and were not, and the keys of those that left; snapshots count newest first."""
    entries, snapshot = deletes.entries, deletes.snapshot
    keys = entry_keys(entries)
    code = np.asarray(keys.dictionary_encode().indices, dtype=np.int64)
    count = int(code.max(initial=-1)) + 1
    newest = {status: np.full(count, len(deletes.snapshots), dtype=np.int64) for status in Status}
    for status in Status:
        of_status = entries.status == status
        np.minimum.at(newest[status], code[of_status], snapshot[of_status])
    there = newest[Status.ADDED] <= newest[Status.DELETED]
    is_newest = (entries.status == Status.ADDED) & (snapshot == newest[Status.ADDED][code])
    left = (entries.status == Status.DELETED) & ~there[code]
    return entries.filter(is_newest & there[code]), pc.unique(keys.filter(pa.array(left)))


def is_among(values: pa.Array, wanted: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which values are among the wanted ones."""
    return to_mask(pc.is_in(values, value_set=wanted.cast(values.type)))

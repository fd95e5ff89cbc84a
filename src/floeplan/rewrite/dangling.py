"""Delete files that apply to nothing any more once a rewrite is committed.

Rule: only deletes that applied to a replaced file are asked about. One is dangling when the delete index matches it
with no data file that stays: neither by partition, nor, of a delete for the whole table, anywhere. Files that this
rewrite added are younger than the deletes it applied, and position deletes cannot name them.

Fail-safe: the index never says too little, so a delete that may still apply stays; and what others commit meanwhile is
younger than these deletes, or replaces files they already met.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.entry_columns import EntryColumns
from floeplan.metadata.manifest import read_entries
from floeplan.metadata.manifest_list import DATA, read_manifest_list
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.compaction_map import Ints
from floeplan.rewrite.since import Since, is_among
from floeplan.scan.deletes import ScanDeletes, match, read_deletes
from floeplan.scan.model import PlannedFiles
from floeplan.transaction.change import DeleteFileId
from floeplan.transaction.removal import may_hold

_SHARED = (DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION, DeleteKind.POSITION_PARTITION)


def dangling_deletes(
    planned: PlannedFiles, since: Since, removed: pa.Array, added_before: frozenset[str]
) -> frozenset[DeleteFileId]:
    """Deletes of several files that apply to none any more.

    Args:
        planned: The files of the plan, with the deletes that were applied to them.
        since: What others did since; its head is what the rewrite will be committed on.
        removed: Paths of the data files to be replaced.
        added_before: Files that earlier commits of this rewrite added.
    """
    union = UnionPartitionType.of_table(since.table.metadata)
    asked = _applied(planned, since, removed)
    if not len(asked) or since.head is None:
        return frozenset()
    deletes = read_deletes(lambda _: planned.deletes.take(asked), union)
    staying = _live_data(since.table, since.head, deletes, union)
    gone = pa.concat_arrays([removed, pa.array(sorted(added_before), removed.type)])
    data = staying.filter(~is_among(staying.path, gone))
    metadata = since.table.metadata
    met = match(data, deletes, union, source_types(metadata.schema(), metadata.schemas)).deletes
    free = np.setdiff1d(np.arange(len(asked)), met)
    return frozenset(DeleteFileId(path) for path in deletes.entries.path.take(pa.array(free)).to_pylist())


def _applied(planned: PlannedFiles, since: Since, removed: pa.Array) -> Ints:
    """Deletes of several files that were applied to a replaced file, and are still there."""
    matches = planned.matches
    of_match = np.repeat(is_among(planned.entries.path, removed), matches.counts)
    rows = np.unique(matches.deletes[of_match])
    rows = rows[np.isin(planned.delete_kinds[rows], _SHARED)]
    if not len(rows):
        return rows
    left = is_among(
        planned.deletes.take(rows).path,
        pa.array(sorted({file.path for file in since.removed_deletes}), pa.large_string()),
    )
    return np.asarray(rows[~left])


def _live_data(table: Table, head: int, deletes: ScanDeletes, union: UnionPartitionType) -> EntriesTable:
    """Data files that some of the deletes may apply to."""
    snapshot = table.metadata.snapshot_by_id(head)
    assert snapshot is not None, "the head of a branch is there"
    manifests = read_manifest_list(snapshot.manifest_list, table.io)
    asked = (manifests.content == DATA) & (manifests.min_sequence_number <= deletes.entries.sequence_number.max())
    if not (deletes.kinds == DeleteKind.EQUALITY_GLOBAL).any():
        asked &= may_hold(manifests, union, deletes.entries)
    columns = EntryColumns(frozenset(), stats=deletes.key_columns)
    return read_entries(manifests, union, columns, rows=np.flatnonzero(asked), io=table.io).live()

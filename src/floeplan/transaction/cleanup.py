"""Removing files that nobody refers to.

Fail-safe: a file that lies outside the table's locations or cannot be removed is left; an orphan costs storage, and the
outcome of the commit is certain by then.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import ancestors_of

from floeplan.metadata.entry_columns import EntryColumns
from floeplan.metadata.manifest_list import DATA, DELETES
from floeplan.metadata.table_files import TableFiles
from floeplan.partition.union import UnionPartitionType
from floeplan.transaction.change import SnapshotChange
from floeplan.transaction.history import committed_entries

_PATHS = EntryColumns(frozenset({"snapshot_id"}), partition=False)


def remove_files(paths: Iterable[str], table: Table) -> tuple[str, ...]:
    """Remove files of a table as far as possible; returns those that are gone."""
    return TableFiles.of(table).remove(paths)


def unused_files(change: SnapshotChange, metadata: TableMetadata, start: int | None, io: FileIO) -> set[str]:
    """The data and delete files a change adds, without those that a snapshot has.

    They can be in use although the change failed: it may have been committed before, when the answer was lost. They
    were written after the change was planned, so no snapshot up to the starting one has them.
    """
    added = [files for files in (change.added_data, change.added_deletes) if files is not None]
    paths = {path for files in added for path in files.path.to_pylist()}
    first = None if start is None else metadata.snapshot_by_id(start)
    older = {snapshot.snapshot_id for snapshot in ancestors_of(first, metadata)}
    newer = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in older]
    union = UnionPartitionType.of_table(metadata)
    for content in (DATA, DELETES):
        paths -= set(committed_entries(newer, content, union, _PATHS, io).entries.path.to_pylist())
    return paths

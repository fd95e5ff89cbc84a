"""Removing files that nobody refers to.

Rule: only files in the table's locations are removed, whoever names them. Fail-safe: a file that lies elsewhere or
cannot be removed is left; an orphan costs storage, and the outcome of the commit is certain by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import ancestors_of

from floeplan.metadata.entry_columns import EntryColumns
from floeplan.metadata.locations import TableLocations
from floeplan.metadata.manifest_list import DATA, DELETES
from floeplan.partition.union import UnionPartitionType
from floeplan.transaction.change import SnapshotChange
from floeplan.transaction.history import committed_entries

_AT_A_TIME = 16
_PATHS = EntryColumns(frozenset({"snapshot_id"}), partition=False)


def remove_files(paths: Iterable[str], table: Table) -> tuple[str, ...]:
    """Remove files of a table as far as possible, several at a time; returns those that are gone."""
    locations, io = TableLocations.of(table.metadata), table.io
    wanted = sorted(path for path in set(paths) if locations.hold(path))
    if not wanted:
        return ()
    with ThreadPoolExecutor(min(_AT_A_TIME, len(wanted)), "floeplan-cleanup") as pool:
        gone = list(pool.map(lambda path: _remove(path, io), wanted))
    return tuple(path for path, done in zip(wanted, gone, strict=True) if done)


def _remove(path: str, io: FileIO) -> bool:
    try:
        io.delete(path)
    except Exception:
        return False
    return True


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

"""``SnapshotReader``: the one module that loads the metadata of a snapshot.

Scans, rewrites, DML, commits that move entries, maintenance, audit and the explorer read a snapshot's manifest list,
manifest entries and delete files through it, so that all of them see the same files and apply the same checks.

Rule: DELETED entries are never part of a snapshot, and manifests without live files are not opened.
Fail-safe: a damaged or truncated manifest is an error (``metadata.manifests.completeness``). A manifest list that may
be truncated is reported by ``truncation``; callers that delete files or write rows call ``check_complete``, because
what they do with a truncated list cannot be undone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from floeplan.metadata.cache.store import EntriesCache
from floeplan.metadata.files import MAX_WORKERS, read_files
from floeplan.metadata.manifests.completeness import TruncatedList, find_truncation
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import (
    DELETES,
    ManifestListTable,
    parse_manifest_list,
    read_manifest_list,
)
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.root.reader import RootManifest
from floeplan.partition.union import UnionPartitionType
from floeplan.snapshot.deletes import DELETE_COLUMNS, ScanDeletes
from floeplan.snapshot.target import branch_head
from floeplan.vectors import Ints, Mask


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Reads the metadata of one snapshot.

    Attributes:
        metadata: The table's metadata.
        snapshot: The snapshot; ``None`` for a table or branch without one, which has no files.
        manifests: Its manifest list.
        union: The union of the partition fields of all specs.
        io: Where the files are; local files need none.
        cache: The local cache of decoded manifests; ``None`` decodes them every time.
        root: The root manifest to read instead of the manifest list and manifests.
        max_workers: Files fetched in parallel from a remote store.
    """

    metadata: TableMetadata
    snapshot: Snapshot | None
    manifests: ManifestListTable
    union: UnionPartitionType
    io: FileIO | None
    cache: EntriesCache | None = None
    root: RootManifest | None = None
    max_workers: int = MAX_WORKERS

    @classmethod
    def open(
        cls,
        table: Table,
        snapshot: Snapshot | None,
        *,
        cache: bool = False,
        root: str | None = None,
        max_workers: int = MAX_WORKERS,
    ) -> SnapshotReader:
        """Read the manifest list of a snapshot, or the root manifest at ``root``."""
        opened = None
        if root is not None:
            opened = RootManifest(root, table.io)
            opened.check(table.metadata, None if snapshot is None else snapshot.snapshot_id)
            manifests = opened.manifests
        elif snapshot is None:
            manifests = ManifestListTable.empty()
        else:
            manifests = read_manifest_list(snapshot.manifest_list, table.io)
        union = UnionPartitionType.of_table(table.metadata)
        entries_cache = EntriesCache() if cache else None
        return cls(table.metadata, snapshot, manifests, union, table.io, entries_cache, opened, max_workers)

    @classmethod
    def of_branch(cls, table: Table, branch: str = MAIN_BRANCH) -> SnapshotReader:
        """Open the head of a branch of a table as it was loaded; a branch that does not exist has no files."""
        snapshot_id = branch_head(table.metadata, branch)
        return cls.open(table, None if snapshot_id is None else table.metadata.snapshot_by_id(snapshot_id))

    def manifest_rows(self, content: int, keep: Mask | None = None) -> Ints:
        """The rows of the manifest list with data or delete manifests that have live files and that ``keep`` admits."""
        # Counts that were not written are -1: such a manifest may have live files.
        live = (self.manifests.added_files != 0) | (self.manifests.existing_files != 0)
        chosen = live & (self.manifests.content == content)
        return np.flatnonzero(chosen if keep is None else chosen & keep)

    def entries(self, rows: Ints | None, columns: EntryColumns, *, live: bool = True) -> EntriesTable:
        """Read the manifest entries of these rows of the manifest list, in that order.

        Args:
            rows: Rows of ``manifests``; ``None`` reads all of them.
            columns: The columns to read.
            live: Leave out DELETED entries.
        """
        source = self.cache if self.root is None else self.root
        read = partial(read_entries, live=live) if source is None else source.read_entries
        entries = read(self.manifests, self.union, columns, rows=rows, io=self.io, max_workers=self.max_workers)
        return entries.live() if live else entries

    def deletes(self, keep: Mask | None = None) -> ScanDeletes:
        """Read the live delete files in the delete manifests that ``keep`` admits, all of them by default."""
        rows = self.manifest_rows(DELETES, keep)
        if not len(rows):
            return ScanDeletes.none(self.union)
        deletes = ScanDeletes.of(self.entries(rows, DELETE_COLUMNS), self.union)
        if not deletes.key_columns:
            return deletes
        # Only the entries tell which columns are equality keys, so the bounds of these take a second read.
        columns = EntryColumns(DELETE_COLUMNS.names, stats=DELETE_COLUMNS.stats | deletes.key_columns)
        return ScanDeletes(self.entries(rows, columns), deletes.kinds, deletes.equality_ids)

    def truncation(self) -> TruncatedList | None:
        """What the manifest list lacks according to the snapshot summary."""
        return None if self.snapshot is None else find_truncation(self.snapshot, self.manifests)

    def check_complete(self, risk: str) -> None:
        """Refuse a manifest list that may be truncated; ``risk`` names what going on could do.

        Raises:
            CorruptMetadataError: The list has fewer files than the snapshot summary counts.
        """
        truncated = self.truncation()
        if truncated is not None:
            raise truncated.error(risk)


def read_manifest_lists(
    snapshots: Iterable[Snapshot], io: FileIO | None, *, risk: str | None = None
) -> list[ManifestListTable]:
    """Read the manifest lists of several snapshots in parallel, one per snapshot.

    Args:
        snapshots: The snapshots.
        io: Where the lists are; local files need none.
        risk: Refuse lists that may be truncated; names what going on could do.

    Raises:
        CorruptMetadataError: A list has fewer files than its snapshot summary counts, and ``risk`` is given.
    """
    chosen = list(snapshots)
    lists = []
    for snapshot, data in zip(chosen, read_files([s.manifest_list for s in chosen], io), strict=True):
        lists.append(parse_manifest_list(data, snapshot.manifest_list))
        truncated = None if risk is None else find_truncation(snapshot, lists[-1])
        if truncated is not None and risk is not None:
            raise truncated.error(risk)
    return lists

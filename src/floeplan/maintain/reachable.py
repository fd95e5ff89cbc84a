"""The files that snapshots of a table refer to.

Rule: a file is reachable when a snapshot of the table has it, through its manifest list and manifests, or when the
metadata names it. Every manifest is read once, however many snapshots list it.

Fail-safe: a manifest that cannot be read is an error. Without it, what is reachable cannot be determined. So is a
manifest list with fewer files than its snapshot counts, unless the caller trusts it: what it may have lost would be
removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from floeplan.metadata.manifests.entries import EntryColumns
from floeplan.metadata.manifests.manifest_list import ManifestListTable, concat_manifest_lists
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.snapshot.reader import read_manifest_lists

_PATHS = EntryColumns(frozenset(), partition=False)


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """Files of some snapshots.

    Attributes:
        lists: Manifest lists.
        manifests: Manifests, each once.
    """

    lists: frozenset[str]
    manifests: ManifestListTable

    @classmethod
    def of(cls, snapshots: Iterable[Snapshot], io: FileIO, *, trust_lists: bool) -> SnapshotFiles:
        """The manifest lists and manifests of snapshots.

        Raises:
            CorruptMetadataError: A list that is not trusted has fewer files than its snapshot counts.
        """
        by_location = {snapshot.manifest_list: snapshot for snapshot in snapshots}
        locations = sorted(by_location)
        risk = None if trust_lists else "files that it does not list would be deleted"
        lists = read_manifest_lists([by_location[location] for location in locations], io, risk=risk)
        listed = concat_manifest_lists(lists) if lists else ManifestListTable.empty()
        first = np.unique(listed.path.dictionary_encode().indices.to_numpy(), return_index=True)[1]
        return cls(frozenset(locations), listed.take(np.sort(first)))

    @property
    def manifest_paths(self) -> frozenset[str]:
        """The manifests by their paths."""
        return frozenset(self.manifests.path.to_pylist())

    def without(self, others: SnapshotFiles) -> SnapshotFiles:
        """What only these snapshots refer to."""
        known = others.manifest_paths
        rows = [row for row, path in enumerate(self.manifests.path.to_pylist()) if path not in known]
        return SnapshotFiles(self.lists - others.lists, self.manifests.take(np.array(rows, dtype=np.int64)))

    def content(self, metadata: TableMetadata, io: FileIO, *, live: bool) -> pa.Array:
        """Data and delete files in the manifests; with ``live`` not those that a manifest only says were removed."""
        union = UnionPartitionType.of_table(metadata)
        return read_entries(self.manifests, union, _PATHS, io=io, live=live).path.unique()


def metadata_files(table: Table) -> set[str]:
    """Files that the metadata names directly, except manifest lists."""
    metadata = table.metadata
    found = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    return found | {one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics)}


def reachable_files(table: Table, *, trust_lists: bool) -> pa.Array:
    """Every file that a table, as it was loaded, refers to."""
    files = SnapshotFiles.of(table.metadata.snapshots, table.io, trust_lists=trust_lists)
    named = metadata_files(table) | files.lists | files.manifest_paths
    content = files.content(table.metadata, table.io, live=False)
    return pa.concat_arrays([content, pa.array(sorted(named), content.type)]).unique()

"""The manifests of one snapshot: written per spec, under fresh names, and remembered.

Rule: every manifest holds entries of one spec and one kind, and says so in its header; what a snapshot adds is ADDED,
what it removes is DELETED, what it carries over is EXISTING with the snapshot id and sequence numbers it had.

Fail-safe: a manifest whose entries have another status than the writer was asked for is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata

from floeplan.errors import CorruptMetadataError, UnknownSpecError
from floeplan.metadata.entries import EntriesTable, Status
from floeplan.metadata.manifest_list import DATA, DELETES, ManifestListTable
from floeplan.metadata.manifest_writer import write_manifest
from floeplan.partition.union import UnionPartitionType
from floeplan.transaction.spec_groups import find_compatible_schema, group_entries_by_spec, group_files_by_spec

_FIRST_MANIFEST_ENTRIES = 5000
"""Entries of the first of several manifests; how large it became says how many entries the others take."""


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    """One manifest that a commit wrote; ``content`` is ``DATA`` or ``DELETES``."""

    path: str
    spec_id: int
    content: int
    entries: int


@dataclass(frozen=True, slots=True)
class TableShape:
    """What writing manifests needs to know of a table; another one after its specs, schemas or format changed."""

    metadata: TableMetadata
    union: UnionPartitionType
    specs: dict[int, PartitionSpec]
    location_of: Callable[[str], str]

    @classmethod
    def of(cls, metadata: TableMetadata) -> TableShape:
        """The shape that these metadata describe."""
        provider = load_location_provider(metadata.location, metadata.properties)
        return cls(metadata, UnionPartitionType.of_table(metadata), metadata.specs(), provider.new_metadata_location)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for metadata under which the same manifests would be written."""
        return self.metadata.format_version, self.metadata.current_schema_id, tuple(sorted(self.specs))


@dataclass(slots=True)
class SnapshotManifests:
    """Writes the manifests of a snapshot.

    Attributes:
        snapshot_id: The snapshot.
        commit_uuid: Begins the names of all its files.
        io: Where the files go; local files need none.
        written: Every manifest written so far by location, with its entries, also those that nothing refers to.
    """

    snapshot_id: int
    commit_uuid: str
    io: FileIO | None
    written: dict[str, EntriesTable] = field(default_factory=dict)

    def write_added_data_manifests(
        self, files: EntriesTable, shape: TableShape, target_bytes: int
    ) -> list[ManifestListTable]:
        """New data files, one manifest per spec, more where it would outgrow the target size."""
        _require(files, Status.ADDED)
        return self._per_spec(files, shape, DATA, target_bytes)

    def write_delete_manifest(
        self, files: EntriesTable, shape: TableShape, target_bytes: int
    ) -> list[ManifestListTable]:
        """New delete files, likewise."""
        _require(files, Status.ADDED)
        return self._per_spec(files, shape, DELETES, target_bytes)

    def write_deleted_data_manifest(
        self, entries: EntriesTable, shape: TableShape, content: int = DATA
    ) -> list[ManifestListTable]:
        """Entries that the snapshot removes."""
        _require(entries, Status.DELETED)
        return self.write_manifests(entries, shape, content)

    def write_existing_data_manifest(
        self, entries: EntriesTable, shape: TableShape, content: int = DATA
    ) -> list[ManifestListTable]:
        """Entries that the snapshot carries over."""
        _require(entries, Status.EXISTING)
        return self.write_manifests(entries, shape, content)

    def write_manifests(self, entries: EntriesTable, shape: TableShape, content: int) -> list[ManifestListTable]:
        """Entries of any status, one manifest per spec."""
        groups = group_entries_by_spec(entries)
        return [self.write_added_manifest(group, spec_id, shape, content) for spec_id, group in groups.items()]

    def write_added_manifest(
        self, entries: EntriesTable, spec_id: int, shape: TableShape, content: int
    ) -> ManifestListTable:
        """One manifest, which the snapshot adds, of entries of one spec."""
        location = shape.location_of(f"{self.commit_uuid}-m{len(self.written)}.avro")
        self.written[location] = entries
        return write_manifest(
            location,
            entries,
            shape.specs[spec_id],
            _header_schema(shape, spec_id),
            union=shape.union,
            format_version=shape.metadata.format_version,
            content=content,
            snapshot_id=self.snapshot_id,
            io=self.io,
        )

    def _per_spec(
        self, files: EntriesTable, shape: TableShape, content: int, target_bytes: int
    ) -> list[ManifestListTable]:
        groups = group_files_by_spec(files).items()
        return [row for spec_id, group in groups for row in self._rolled(group, spec_id, shape, content, target_bytes)]

    def _rolled(
        self, group: EntriesTable, spec_id: int, shape: TableShape, content: int, target_bytes: int
    ) -> Iterator[ManifestListTable]:
        head, rest = np.split(np.arange(len(group)), [_FIRST_MANIFEST_ENTRIES])
        first = self.write_added_manifest(group.take(head), spec_id, shape, content)
        yield first
        each = max(1, len(head) * target_bytes // int(first.length[0]))
        for rows in np.array_split(rest, -(-len(rest) // each)) if len(rest) else ():
            yield self.write_added_manifest(group.take(rows), spec_id, shape, content)


def _require(entries: EntriesTable, status: Status) -> None:
    wrong = entries.status != status
    if wrong.any():
        path = entries.path[int(np.argmax(wrong))].as_py()
        raise CorruptMetadataError(f"the entry of {path} is not {status.name}", context={"file": path})


def _header_schema(shape: TableShape, spec_id: int) -> Schema:
    """Readers take partition types from the table; the header gets the current schema where none fits the spec."""
    try:
        return find_compatible_schema(shape.metadata, shape.specs[spec_id])
    except UnknownSpecError:
        return shape.metadata.schema()

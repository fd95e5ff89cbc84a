"""The manifests of one snapshot: written per spec, under fresh names, and remembered.

Rule: every manifest holds entries of one spec and one kind, and says so in its header; what a snapshot adds is ADDED,
what it removes is DELETED, what it carries over is EXISTING with the snapshot id and sequence numbers it had.

Fail-safe: a manifest whose entries have another status than the writer was asked for is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata

from floeplan.errors import CorruptMetadataError, UnknownSpecError
from floeplan.metadata.decoder import Ints
from floeplan.metadata.entries import EntriesTable, Status
from floeplan.metadata.io import MAX_WORKERS, local_path
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


ManifestOfSpec: TypeAlias = tuple[EntriesTable, int, int]
"""Entries that are to be a manifest, their spec id and their content."""


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
        self, tables: Sequence[EntriesTable], shape: TableShape, content: int = DATA
    ) -> list[ManifestListTable]:
        """Entries that the snapshot removes, of each table one manifest per spec."""
        return self._of_status(Status.DELETED, tables, shape, content)

    def write_existing_data_manifest(
        self, tables: Sequence[EntriesTable], shape: TableShape, content: int = DATA
    ) -> list[ManifestListTable]:
        """Entries that the snapshot carries over, likewise."""
        return self._of_status(Status.EXISTING, tables, shape, content)

    def _of_status(
        self, status: Status, tables: Sequence[EntriesTable], shape: TableShape, content: int
    ) -> list[ManifestListTable]:
        for entries in tables:
            _require(entries, status)
        groups = [(group, spec) for entries in tables for spec, group in group_entries_by_spec(entries).items()]
        return self.write_each([(group, spec, content) for group, spec in groups], shape)

    def write_each(self, manifests: Sequence[ManifestOfSpec], shape: TableShape) -> list[ManifestListTable]:
        """Several manifests, each of entries of one spec; in a remote store many are written at the same time."""
        named = [(self._new_location(entries, shape), spec_id, content) for entries, spec_id, content in manifests]
        if len(named) < 2 or local_path(named[0][0]) is not None:
            return [self._write(shape, *manifest) for manifest in named]
        with ThreadPoolExecutor(min(MAX_WORKERS, len(named)), thread_name_prefix="floeplan-manifests") as pool:
            return list(pool.map(lambda manifest: self._write(shape, *manifest), named))

    def write_manifest_for_spec(
        self, entries: EntriesTable, spec_id: int, shape: TableShape, content: int
    ) -> ManifestListTable:
        """One manifest of entries of one spec."""
        return self._write(shape, self._new_location(entries, shape), spec_id, content)

    def _new_location(self, entries: EntriesTable, shape: TableShape) -> str:
        location = shape.location_of(f"{self.commit_uuid}-m{len(self.written)}.avro")
        self.written[location] = entries
        return location

    def _write(self, shape: TableShape, location: str, spec_id: int, content: int) -> ManifestListTable:
        return write_manifest(
            location,
            self.written[location],
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
        groups = group_files_by_spec(files)
        heads, rests = {}, {}
        for spec_id, group in groups.items():
            heads[spec_id], rests[spec_id] = np.split(np.arange(len(group)), [_FIRST_MANIFEST_ENTRIES])
        firsts = self.write_each([(groups[spec].take(rows), spec, content) for spec, rows in heads.items()], shape)
        others = [
            (groups[spec_id].take(rows), spec_id, content)
            for (spec_id, rest), first in zip(rests.items(), firsts, strict=True)
            for rows in _runs(rest, _FIRST_MANIFEST_ENTRIES * target_bytes // int(first.length[0]))
        ]
        return firsts + self.write_each(others, shape)


def _runs(rows: Ints, each: int) -> list[Ints]:
    """The rows in runs of about equal size, none longer than ``each``."""
    return np.array_split(rows, -(-len(rows) // max(1, each))) if len(rows) else []


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

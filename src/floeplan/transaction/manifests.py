"""Writing the manifests of one snapshot, one per spec and content, and merging small ones.

Rule: a manifest holds entries of one spec and one content, for any spec of the table, not just the default one. Added
entries are ADDED, removed ones DELETED, and carried-over ones EXISTING with their snapshot id and sequence numbers.
Groups are sorted by spec id, so the same change always gives the same manifests. Format 1 did not write spec ids: a
file without one is of spec 0.

Fail-safe: a spec id that the table does not have is an error naming the id and the file, before anything is written,
and so is an entry of the wrong status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import PrimitiveType

from floeplan.errors import CorruptMetadataError, InvalidOptionError, UnknownSpecError
from floeplan.format4 import location_properties, manifest_suffix
from floeplan.metadata.files import MAX_WORKERS, local_path
from floeplan.metadata.manifests.entries import WHOLE, EntriesTable, EntryColumns, Status, carried_over, concat_entries
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable, concat_manifest_lists
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.writer import write_manifest
from floeplan.partition.transforms import can_apply
from floeplan.partition.union import UnionPartitionType
from floeplan.schemas import fields_by_id
from floeplan.text import parse_count
from floeplan.vectors import Ints

_SPEC_OF_FILES_WITHOUT_ONE = 0
_FIRST_MANIFEST_ENTRIES = 5000
"""Entries of the first of several manifests; its size determines how many entries the others take."""


def validate_added_data_files(files: EntriesTable, specs: Iterable[int]) -> None:
    """Refuse files of a spec that the table does not have."""
    known = sorted(specs)
    spec_id = files.ints("spec_id", missing=_SPEC_OF_FILES_WITHOUT_ONE)
    strange = ~np.isin(spec_id, known)
    if strange.any():
        row = int(np.argmax(strange))
        path, wrong = files.path[row].as_py(), int(spec_id[row])
        raise UnknownSpecError(
            f"{path} is of partition spec {wrong}, which the table does not have; it has {', '.join(map(str, known))}",
            context={"spec_id": wrong, "file": path},
        )


def group_files_by_spec(files: EntriesTable) -> dict[int, EntriesTable]:
    """New files by ascending spec id; a file without a spec id is of spec 0."""
    return group_entries_by_spec(with_spec_ids(files))


def with_spec_ids(files: EntriesTable) -> EntriesTable:
    """The same files, those without a spec id as of spec 0."""
    if not files.array("spec_id").null_count:
        return files
    at = files.table.schema.get_field_index("spec_id")
    filled = pa.array(files.ints("spec_id", missing=_SPEC_OF_FILES_WITHOUT_ONE), pa.int32())
    return EntriesTable(files.table.set_column(at, "spec_id", filled), files.partition_types)


def group_entries_by_spec(entries: EntriesTable) -> dict[int, EntriesTable]:
    """Entries by ascending spec id; within a spec their order is kept."""
    spec_id = entries.spec_id
    specs = np.unique(spec_id).tolist()
    if len(specs) == 1:
        return {specs[0]: entries}
    return {spec: entries.filter(spec_id == spec) for spec in specs}


def find_compatible_schema(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    """The current schema if the sources of the spec are in it, else the newest historical one that has them.

    Raises:
        UnknownSpecError: No schema of the table has all source columns of the spec.
    """
    # A void field is always null and needs no source.
    fields = [field for field in spec.fields if not isinstance(field.transform, VoidTransform)]
    older = (schema for schema in metadata.schemas if schema.schema_id != metadata.current_schema_id)
    for schema in (metadata.schema(), *sorted(older, key=lambda schema: -schema.schema_id)):
        columns = fields_by_id(schema)
        types = [columns[f.source_id].field_type if f.source_id in columns else None for f in fields]
        pairs = zip(fields, types, strict=True)
        if all(isinstance(type_, PrimitiveType) and can_apply(field.transform, type_) for field, type_ in pairs):
            return schema
    raise UnknownSpecError(
        f"no schema of the table has all source columns of partition spec {spec.spec_id}: write under another spec",
        context={"spec_id": spec.spec_id},
    )


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
    """The metadata that written manifests depend on: specs, schemas and format."""

    metadata: TableMetadata
    union: UnionPartitionType
    specs: dict[int, PartitionSpec]
    location_of: Callable[[str], str]

    @classmethod
    def of(cls, metadata: TableMetadata) -> TableShape:
        """The shape of a table."""
        provider = load_location_provider(metadata.location, location_properties(metadata))
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
        commit_uuid: The prefix of file names.
        io: Writes the files; local files need none.
        written: The entries of every manifest written so far, by path, including unreferenced ones.
    """

    snapshot_id: int
    commit_uuid: str
    io: FileIO | None
    written: dict[str, EntriesTable] = field(default_factory=dict)

    def write_added_manifests(
        self, files: EntriesTable, content: int, shape: TableShape, target_bytes: int
    ) -> list[ManifestListTable]:
        """Write new data or delete files: one manifest per spec, more above the target size.

        These are ``write_added_data_manifests`` and ``write_delete_manifest`` of the proposal for several specs.
        """
        _require(files, Status.ADDED)
        groups = group_files_by_spec(files)
        heads = [group.take(np.arange(len(group))[:_FIRST_MANIFEST_ENTRIES]) for group in groups.values()]
        firsts = self.write_each([(head, spec_id, content) for spec_id, head in zip(groups, heads, strict=True)], shape)
        others: list[ManifestOfSpec] = []
        for (spec_id, group), first in zip(groups.items(), firsts, strict=True):
            rest = np.arange(_FIRST_MANIFEST_ENTRIES, len(group))
            # Parts of about equal size, none longer than what fits into the target size.
            longest = max(1, _FIRST_MANIFEST_ENTRIES * target_bytes // int(first.length[0]))
            parts = np.array_split(rest, -(-len(rest) // longest)) if len(rest) else []
            others += [(group.take(rows), spec_id, content) for rows in parts]
        return firsts + self.write_each(others, shape)

    def write_existing_data_manifest(
        self, tables: Sequence[EntriesTable], shape: TableShape, content: int = DATA
    ) -> list[ManifestListTable]:
        """Write carried-over entries: for each table one manifest per spec."""
        groups: list[ManifestOfSpec] = []
        for entries in tables:
            _require(entries, Status.EXISTING)
            groups += [(group, spec_id, content) for spec_id, group in group_entries_by_spec(entries).items()]
        return self.write_each(groups, shape)

    def write_each(self, manifests: Sequence[ManifestOfSpec], shape: TableShape) -> list[ManifestListTable]:
        """Write several manifests, each of one spec; to a remote store in parallel.

        Manifests with DELETED entries (``write_deleted_data_manifest`` of the proposal) come from ``filter_manifests``.
        """
        locations = []
        for entries, _, _ in manifests:
            suffix = manifest_suffix(shape.metadata.format_version)
            locations.append(shape.location_of(f"{self.commit_uuid}-m{len(self.written)}.{suffix}"))
            self.written[locations[-1]] = entries
        write = partial(self.write_manifest_for_spec, shape)
        if len(locations) < 2 or local_path(locations[0]) is not None:
            return list(map(write, locations, manifests))
        with ThreadPoolExecutor(min(MAX_WORKERS, len(locations)), thread_name_prefix="floeplan-manifests") as pool:
            return list(pool.map(write, locations, manifests))

    def write_manifest_for_spec(self, shape: TableShape, location: str, manifest: ManifestOfSpec) -> ManifestListTable:
        """Write one manifest of entries of one spec."""
        entries, spec_id, content = manifest
        try:
            schema = find_compatible_schema(shape.metadata, shape.specs[spec_id])
        except UnknownSpecError:
            # Carried-over entries of a spec that fits no schema: readers take types from the table, not the header.
            schema = shape.metadata.schema()
        return write_manifest(
            location,
            entries,
            shape.specs[spec_id],
            schema,
            union=shape.union,
            format_version=shape.metadata.format_version,
            content=content,
            snapshot_id=self.snapshot_id,
            io=self.io,
        )


def _require(entries: EntriesTable, status: Status) -> None:
    wrong = entries.status != status
    if wrong.any():
        path = entries.path[int(np.argmax(wrong))].as_py()
        raise CorruptMetadataError(f"the entry of {path} is not {status.name}", context={"file": path})


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """The table properties ``commit.manifest.target-size-bytes``, ``min-count-to-merge`` and ``-merge.enabled``."""

    target_bytes: int = 8 * 1024 * 1024
    min_count: int = 100
    enabled: bool = True

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> MergeOptions:
        """The options of a table."""
        usual = cls()
        return cls(
            _positive(properties, "commit.manifest.target-size-bytes", usual.target_bytes),
            _positive(properties, "commit.manifest.min-count-to-merge", usual.min_count),
            properties.get("commit.manifest-merge.enabled", "true").lower() == "true",
        )


def _positive(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, str(default))
    number = parse_count(text)
    if not number:
        raise InvalidOptionError(
            f"table property {name} is {text!r}: set it to a whole number above 0", context={"property": name}
        )
    return number


@dataclass(slots=True)
class ManifestMerger:
    """Merges small manifests during a commit, as the ``commit.manifest.*`` properties configure.

    Rule: manifests of one content and spec are packed into bins of the target size, oldest first. The bin of the newest
    manifest is merged when it has ``min-count-to-merge`` manifests; any other bin of two or more is full and due at
    once. A commit merges at most one bin per content and spec, so it reads and writes at most the target size for each.

    Entries keep their snapshot ids and sequence numbers; files that this snapshot adds stay ADDED. Results are kept,
    because the snapshot may be produced again on a newer head.
    """

    writer: SnapshotManifests
    _merged: dict[tuple[object, ...], ManifestListTable] = field(default_factory=dict)

    def merge(self, manifests: ManifestListTable, shape: TableShape, options: MergeOptions) -> ManifestListTable:
        """The manifests, newest first, with the due bin of each content and spec merged."""
        result, order = [manifests], np.arange(len(manifests))
        for spec_id, content in sorted(set(zip(manifests.spec_id.tolist(), manifests.content.tolist(), strict=True))):
            rows = np.flatnonzero((manifests.spec_id == spec_id) & (manifests.content == content))
            due = due_bin(manifests.length[rows], options)
            if due is not None:
                bin_rows = rows[due]
                order[bin_rows[0]] = len(manifests) + len(result) - 1
                order[bin_rows[1:]] = -1
                result.append(self._merge(manifests.take(bin_rows), spec_id, content, shape))
        return manifests if len(result) == 1 else concat_manifest_lists(result).take(order[order >= 0])

    def _merge(self, sources: ManifestListTable, spec_id: int, content: int, shape: TableShape) -> ManifestListTable:
        key = shape.key, *sources.path.to_pylist()
        if key not in self._merged:
            # Entries of older manifests are read; those of this snapshot are in memory.
            written = self.writer.written
            own = {row: written[path] for row, path in enumerate(sources.path.to_pylist()) if path in written}
            others = np.setdiff1d(np.arange(len(sources)), list(own))
            read = read_entries(sources, shape.union, EntryColumns(WHOLE), rows=others, io=self.writer.io)
            entries = concat_entries([*own.values(), read], shape.union)
            carried = carried_over(entries, np.zeros(len(entries), dtype=np.bool_), self.writer.snapshot_id)
            (self._merged[key],) = self.writer.write_each([(carried, spec_id, content)], shape)
        return self._merged[key]


def due_bin(lengths: Ints, options: MergeOptions) -> slice | None:
    """The manifests of one content and spec, newest first, to merge now."""
    bins = pack_from_the_end(lengths, options.target_bytes)
    newest, full = bins[0], [other for other in bins[1:] if other.stop - other.start > 1]
    if newest.stop - newest.start >= max(2, options.min_count):
        return newest
    return full[-1] if full else None


def pack_from_the_end(lengths: Ints, target_bytes: int) -> list[slice]:
    """Pack manifests into bins of at most the target size, filled from the oldest; in the order of the list."""
    ends = np.cumsum(lengths[::-1])
    count, start, runs = len(lengths), 0, []
    while start < count:
        limit = target_bytes + (int(ends[start - 1]) if start else 0)
        stop = max(start + 1, int(np.searchsorted(ends, limit, side="right")))
        runs.append(slice(count - stop, count - start))
        start = stop
    return runs[::-1]

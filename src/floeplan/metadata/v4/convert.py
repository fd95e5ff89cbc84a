"""A snapshot as a metadata tree (``floeplan entries --layout v4``).

Rule: live data files become rows with their deletion vectors, in the root or in leaves of limited size. Rows are sorted
by spec and partition, and a leaf has files of one spec, so that its statistics are narrow. Position and equality delete
files, which v4 manifests do not hold, go to delete manifests of format 3 that the root refers to. With
``keep_manifests`` the root refers to the table's own manifests instead: what an upgrade without rewriting would write.

Nothing is lost but what the result names: v4 has no place for column sizes, for statistics of columns in lists and
maps, for the size of a deletion vector's file, and for its sequence number once its snapshot is expired.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from floeplan.errors import BadInputError, CorruptMetadataError, UnsupportedError
from floeplan.metadata.files import local_path, write_file
from floeplan.metadata.manifests.entries import (
    WHOLE,
    Content,
    EntriesTable,
    EntryColumns,
    Status,
    with_status,
)
from floeplan.metadata.manifests.manifest_list import (
    DATA,
    DELETES,
    UNKNOWN,
    ManifestListTable,
    read_manifest_list,
)
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.writer import write_manifest
from floeplan.metadata.v4.fields import PROFILE, ContentType, EntryStatus
from floeplan.metadata.v4.references import Reference, leaf_reference, reference_rows
from floeplan.metadata.v4.stats import METRIC_OF_MAP, unpack_map
from floeplan.metadata.v4.writer import (
    ManifestLayout,
    ManifestOptions,
    Vectors,
    data_rows,
    manifest_bytes,
    root_properties,
)
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask
from floeplan.vectors import Ints, Mask

LEAF_ENTRIES = 10_000
"""Rows of a leaf at most, and the most data files that stay in the root."""

_DELETE_FORMAT = 3
"""The format of the delete manifests that a root refers to."""

_STATUSES = ("added", "existing", "deleted")


@dataclass(frozen=True, slots=True)
class TreeSummary:
    """What was written.

    Attributes:
        root: The root.
        leaves: The leaves and delete manifests.
        snapshot_id: The snapshot.
        entries: Data files, and delete files that are not deletion vectors.
        vectors: Data files with a deletion vector.
        bytes: The size of all files.
        lost: What the manifests have and v4 has no place for.
    """

    root: str
    leaves: tuple[str, ...]
    snapshot_id: int | None
    entries: int
    vectors: int
    bytes: int
    lost: tuple[str, ...]
    profile: str = field(default=PROFILE)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the command."""
        return {
            "profile": self.profile,
            "root": self.root,
            "leaves": list(self.leaves),
            "snapshot_id": self.snapshot_id,
            "entries": self.entries,
            "vectors": self.vectors,
            "bytes": self.bytes,
            "lost": list(self.lost),
        }


def write_tree(
    table: Table,
    folder: str,
    snapshot: Snapshot | None,
    *,
    leaf_entries: int = LEAF_ENTRIES,
    keep_manifests: bool = False,
    options: ManifestOptions | None = None,
    io: FileIO | None = None,
) -> TreeSummary:
    """Write the metadata tree of a snapshot into a folder; the table is only read.

    Args:
        table: The table.
        folder: Path or URI of the folder; every call writes new files.
        snapshot: A snapshot of the table, or none for a table without data.
        leaf_entries: Rows of a leaf at most; a table with at most N files has no leaves. 0 writes no leaves.
        keep_manifests: Refer to the table's manifests instead of writing leaves.
        options: How the files are written.
        io: Where the files go; local files need none.
    """
    if leaf_entries < 0:
        raise BadInputError(f"leaf entries must not be negative: {leaf_entries}")
    return _TreeWriter(table, folder, snapshot, options or ManifestOptions(), io).write(leaf_entries, keep_manifests)


class _TreeWriter:
    """One conversion."""

    def __init__(
        self, table: Table, folder: str, snapshot: Snapshot | None, options: ManifestOptions, io: FileIO | None
    ) -> None:
        self.metadata, self.snapshot, self.options, self.io = table.metadata, snapshot, options, io
        self.union = UnionPartitionType.of_table(table.metadata)
        # With a scheme: without one, the root's references would be relative to the table location.
        path = local_path(folder)
        self.base = f"{folder.rstrip('/') if path is None else f'file://{os.path.abspath(path)}'}/{uuid4()}"
        self.source_io = table.io
        self.leaves: list[str] = []
        self.bytes = 0
        self.lost: set[str] = set()

    def write(self, leaf_entries: int, keep_manifests: bool) -> TreeSummary:
        manifests = ManifestListTable.empty()
        if self.snapshot is not None:
            location = self.metadata.location
            manifests = read_manifest_list(self.snapshot.manifest_list, self.source_io, table_location=location)
        if keep_manifests:
            layout = ManifestLayout.of(self.metadata, ())
            references = [_older_reference(manifests, row) for row in range(len(manifests))]
            return self._root([reference_rows(layout, references)], layout, sum(one.records for one in references), 0)
        entries = read_entries(manifests, self.union, EntryColumns(WHOLE), io=self.source_io, live=True)
        is_data = entries.content == Content.DATA
        is_vector = ~is_data & to_mask(pc.equal(entries.array("file_format"), "PUFFIN"))
        data, others = entries.filter(is_data), entries.filter(~is_data & ~is_vector)
        data = sorted_by_partition(data, data.valid("first_row_id"))
        vectors = self._vectors(data, entries.filter(is_vector))
        layout = ManifestLayout.of(self.metadata, self._stat_columns(data), data.partition_types)
        status = np.where(self._added(data), EntryStatus.ADDED, EntryStatus.EXISTING)
        rows = data_rows(layout, data, vectors, status, self.lost)
        parts = [rows]
        if leaf_entries and len(rows) > leaf_entries:
            # Row ids are for all files of a leaf or for none.
            kinds = data.spec_id * 2 + data.valid("first_row_id")
            references = [self._leaf(rows[part]) for part in runs(kinds, leaf_entries)]
            parts = [reference_rows(layout, references)]
        deletes = [self._delete_manifest(others, spec_id) for spec_id in np.unique(others.spec_id).tolist()]
        if deletes:
            parts.append(reference_rows(layout, deletes))
        with_vector = 0 if vectors is None else len(data) - vectors.offset.null_count
        return self._root(parts, layout, len(data) + len(others), with_vector)

    @property
    def snapshot_id(self) -> int:
        return -1 if self.snapshot is None else self.snapshot.snapshot_id

    @property
    def sequence_number(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.sequence_number or 0

    def _added(self, entries: EntriesTable) -> Mask:
        return np.asarray((entries.status == Status.ADDED) & (entries.ints("snapshot_id") == self.snapshot_id))

    def _stat_columns(self, data: EntriesTable) -> list[int]:
        """The columns with statistics that a tree can hold."""
        if data.valid("column_sizes").any():
            self.lost.add("column_sizes")
        found = {key for name in METRIC_OF_MAP for key in unpack_map(data.array(name))}
        layout = ManifestLayout.of(self.metadata, found)
        if found - layout.columns.keys():
            self.lost.add("statistics of columns in lists and maps, or in no schema")
        return sorted(found)

    def _vectors(self, data: EntriesTable, vectors: EntriesTable) -> Vectors | None:
        if not len(vectors):
            return None
        targets = vectors.array("referenced_data_file")
        if targets.null_count or vectors.array("content_offset").null_count:
            raise CorruptMetadataError("a deletion vector does not name its data file or its place in the Puffin file")
        if len(pc.unique(targets)) < len(targets):
            raise CorruptMetadataError("a data file has more than one deletion vector")
        self.lost.add("file sizes of deletion vectors")
        known = {one.snapshot_id for one in self.metadata.snapshots}
        if set(vectors.ints("snapshot_id").tolist()) - known:
            self.lost.add("sequence numbers of deletion vectors whose snapshot is expired")
        matched = Vectors.matched(data, vectors)
        if len(data) - matched.offset.null_count < len(vectors):
            self.lost.add("deletion vectors that apply to no file")
        return matched

    def _leaf(self, rows: pa.Table) -> Reference:
        location = f"{self.base}-leaf-{len(self.leaves)}.parquet"
        data = manifest_bytes(rows, {}, self.options)
        write_file(location, data, self.io)
        self.leaves.append(location)
        self.bytes += len(data)
        return leaf_reference(rows, location, len(data), self.snapshot_id, self.sequence_number)

    def _delete_manifest(self, deletes: EntriesTable, spec_id: int) -> Reference:
        """Delete files of one spec in a manifest of format 3."""
        location = f"{self.base}-deletes-{spec_id}.avro"
        part = deletes.filter(deletes.spec_id == spec_id)
        status = np.where(self._added(part), Status.ADDED, Status.EXISTING)
        written = write_manifest(
            location,
            with_status(part, status, part.ints("snapshot_id")),
            next(spec for spec in self.metadata.partition_specs if spec.spec_id == spec_id),
            self.metadata.schema(),
            union=self.union,
            format_version=_DELETE_FORMAT,
            content=DELETES,
            snapshot_id=self.snapshot_id,
            io=self.io,
        )
        self.leaves.append(location)
        self.bytes += int(written.length[0])
        return _older_reference(written, 0, self.sequence_number)

    def _root(self, parts: list[pa.Table], layout: ManifestLayout, entries: int, vectors: int) -> TreeSummary:
        location = f"{self.base}-root.parquet"
        snapshot_id = None if self.snapshot is None else self.snapshot.snapshot_id
        properties = root_properties(self.metadata, snapshot_id)
        data = manifest_bytes(pa.concat_tables(parts), properties, self.options)
        write_file(location, data, self.io)
        lost = tuple(sorted(self.lost))
        size = self.bytes + len(data)
        root, *leaves = (local_path(one) or one for one in (location, *self.leaves))
        return TreeSummary(root, tuple(leaves), snapshot_id, entries, vectors, size, lost)


def _older_reference(manifests: ManifestListTable, row: int, sequence_number: int | None = None) -> Reference:
    """The reference to a manifest of format 1 to 3."""

    def number(name: str) -> int:
        return int(getattr(manifests, name)[row])

    counts = {name: (number(f"{name}_files"), number(f"{name}_rows")) for name in _STATUSES}
    path = str(manifests.path[row].as_py())
    if any(value == UNKNOWN for pair in counts.values() for value in pair):
        raise UnsupportedError(
            f"manifest {path} has no file counts, which a v4 root requires: rewrite the manifests first",
            context={"manifest": path},
        )
    sequence = number("sequence_number") if sequence_number is None else sequence_number
    first_row_id = number("first_row_id")
    return Reference(
        location=path,
        size=number("length"),
        records=sum(files for files, _ in counts.values()),
        status=EntryStatus.EXISTING,
        snapshot_id=number("added_snapshot_id"),
        sequence_number=sequence,
        counts=counts,
        min_sequence_number=max(number("min_sequence_number"), 0),
        first_row_id=None if first_row_id == UNKNOWN else first_row_id,
        content=ContentType.DATA_MANIFEST if number("content") == DATA else ContentType.DELETE_MANIFEST,
        older=True,
        spec_id=number("spec_id"),
    )


def sorted_by_partition(entries: EntriesTable, last: Mask) -> EntriesTable:
    """Entries where the mask is false first, then by spec and by the union tuple; ties keep the manifests' order."""
    columns = {"last": pa.array(last), "spec_id": entries.array("spec_id")}
    for field_id, values in entries.partition_columns().items():
        if not pa.types.is_null(values.type):
            columns[str(field_id)] = values
    order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    return entries.take(order.to_numpy())


def runs(kinds: Ints, most: int) -> Iterator[slice]:
    """Runs of rows of one kind, limited in length."""
    breaks = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    for start, end in pairwise(breaks):
        yield from (slice(at, min(at + most, end)) for at in range(start, end, most))

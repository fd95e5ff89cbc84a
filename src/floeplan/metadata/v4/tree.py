"""``MetadataTree``: a root and its leaves, in the form in which ``floeplan.snapshot.reader`` reads a snapshot.

``manifests`` is the root as a manifest list. ``leaf_stats`` has the statistics that the root keeps of each leaf, which
replace partition summaries.

Rule: rows inherit sequence numbers, snapshot and row ids from the reference to their leaf, as in Iceberg Java. Rows of
the root inherit nothing. Positions in the deletion vector of a leaf are removed after row ids are assigned.
Fail-safe: an unknown profile, a root of another table or snapshot, a leaf that is missing or has another number of
rows, and a reference inside of a leaf are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DoubleType, FloatType, LongType

from floeplan.errors import BadInputError, FloeplanError, UnsupportedError
from floeplan.metadata.files import MAX_WORKERS, local_path
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns, Origin
from floeplan.metadata.manifests.manifest_list import UNKNOWN, ManifestListTable
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.values import decode_bounds
from floeplan.metadata.v4 import fields as ids
from floeplan.metadata.v4.listing import LISTED, Kind, list_root
from floeplan.metadata.v4.manifest_file import OFTEN_NULL, ManifestFile, Rows
from floeplan.metadata.v4.row_entries import (
    VECTOR_PATHS,
    EntryTypes,
    checked,
    concat_parts,
    file_entries,
    live_rows,
    vector_entries,
    with_columns,
)
from floeplan.metadata.v4.schemas import union_tuple_type
from floeplan.metadata.v4.stats import fits_type, single_values
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import ColumnStats, StatsTable
from floeplan.schemas import fields_by_id
from floeplan.vectors import Ints, Mask, arrow

T = TypeVar("T")
R = TypeVar("R")


class MetadataTree:
    """An open root; leaves are opened when their entries are read."""

    def __init__(
        self, location: str, metadata: TableMetadata, io: FileIO | None = None, file: pq.ParquetFile | None = None
    ) -> None:
        self.location = location
        self._io = io
        union_tuple_type(metadata)  # refuses a table whose specs have no union
        self.types = EntryTypes(
            union=UnionPartitionType.of_table(metadata),
            sources=source_types(metadata.schema(), metadata.schemas),
            location=metadata.location,
            snapshots={one.snapshot_id: one.sequence_number or 0 for one in metadata.snapshots},
            current=frozenset(fields_by_id(metadata.schema())),
        )
        self._root = ManifestFile(location, io, file=file)
        self._check_profile()
        self._rows = checked(self._root.read(LISTED), root=True)
        self._leaves: dict[int, ManifestFile] = {}
        self._like: ManifestFile | None = None
        listing = list_root(self._rows, metadata.location)
        self.manifests, self.references, self.removed = listing.manifests, listing.references, listing.removed
        self._kinds, self._inline = listing.kinds, listing.inline

    # --- the root

    def _check_profile(self) -> None:
        found = self._root.properties.get(ids.PROFILE_KEY.encode())
        if found is not None and found != ids.PROFILE.encode():
            raise UnsupportedError(
                f"{self.location} has the profile {found.decode(errors='replace')}, supported is {ids.PROFILE}: "
                "write it again",
                context={"file": self.location},
            )
        version = self._root.properties.get(b"format-version", b"4")
        if version != b"4":
            raise UnsupportedError(
                f"{self.location} is a manifest of format {version.decode(errors='replace')}, not a v4 root",
                context={"file": self.location},
            )

    def check(self, metadata: TableMetadata, snapshot_id: int | None) -> None:
        """Refuse a root of another table or snapshot; roots of other writers do not record theirs."""
        stored = (self._root.properties.get(key.encode()) for key in (ids.TABLE_KEY, ids.SNAPSHOT_KEY))
        table, snapshot = (None if text is None else text.decode(errors="replace") for text in stored)
        expected = str(metadata.table_uuid), str(snapshot_id)
        if (table or expected[0], snapshot or expected[1]) != expected:
            raise BadInputError(
                f"{self.location} is the root manifest of snapshot {snapshot} of table {table}, not of snapshot "
                f"{snapshot_id} of {metadata.table_uuid}: write it again",
                context={"file": self.location, "snapshot_id": snapshot_id},
            )

    def files(self) -> Iterator[ManifestFile]:
        """The root and its leaves."""
        yield self._root
        for manifest, kind in enumerate(self._kinds):
            if kind is Kind.LEAF:
                yield self._leaf(manifest)

    def leaf_stats(self, columns: Mapping[int, Column]) -> StatsTable:
        """The statistics of each leaf by field id; unknown for everything else."""
        bases = {field_id: ids.stats_id(field_id) for field_id in columns}
        metrics = (ids.LOWER, ids.UPPER, ids.VALUES, ids.NULLS, ids.NANS)
        paths = [(ids.CONTENT_STATS, base, base + n) for base in bases.values() if base is not None for n in metrics]
        wanted = [path for path in paths if path in self._root.found]
        found: dict[int, ColumnStats] = {}
        if wanted and any(kind in (Kind.LEAF, Kind.LEAF_VECTORS) for kind in self._kinds):
            rows = self._root.read(wanted)
            at = np.array(self.references, dtype=np.int64)
            for field_id, column in columns.items():
                base = bases[field_id]
                if base is not None:
                    stats = _leaf_column(rows, column, base, at)
                    found |= {} if stats is None else {field_id: stats}
        return StatsTable(len(self.manifests), found, np.ones(len(self.manifests), dtype=np.bool_))

    # --- entries

    def read_entries(
        self,
        manifests: ManifestListTable,
        partition: UnionPartitionType,
        columns: EntryColumns,
        *,
        rows: Ints | None = None,
        io: FileIO | None = None,
        max_workers: int = MAX_WORKERS,
    ) -> EntriesTable:
        """As ``floeplan.metadata.manifests.reader.read_entries``, for the manifests of this tree."""
        del manifests, partition
        chosen = np.arange(len(self.manifests)) if rows is None else np.asarray(rows, dtype=np.int64)
        kinds = np.array([int(kind) for kind in self._kinds], dtype=np.int64)[chosen]
        parts: list[EntriesTable] = []
        for kind in Kind:
            some = chosen[kinds == kind]
            if not len(some):
                continue
            if kind is Kind.OLDER:
                parts.append(read_entries(self.manifests, self.types.union, columns, rows=some, io=io or self._io))
            elif kind in (Kind.INLINE, Kind.INLINE_VECTORS):
                parts.append(self._inline_entries(int(some[0]), columns, vectors=kind is Kind.INLINE_VECTORS))
            else:
                parts += self._leaf_entries(some, columns, max_workers, vectors=kind is Kind.LEAF_VECTORS)
        if not parts:
            return read_entries(self.manifests, self.types.union, columns, rows=chosen[:0])
        entries = concat_parts(parts)
        # Kinds are read apart; the entries come in the order of the rows.
        place = np.zeros(len(self.manifests), dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        order = place[entries.ints("manifest")]
        return entries if (np.diff(order) >= 0).all() else entries.take(np.argsort(order, kind="stable"))

    def _inline_entries(self, row: int, columns: EntryColumns, *, vectors: bool) -> EntriesTable:
        paths = self._vector_paths(columns) if vectors else self.types.data_paths(columns)
        keep = self._inline
        if vectors:
            keep = keep & self._rows.valid((ids.DELETION_VECTOR, ids.DV_OFFSET))
        rows = self._root.read(paths).filter(keep).resolved(self.types.location)
        origin = Origin.of(self.manifests, np.array([row]), np.array([len(rows)]))
        if vectors:
            return vector_entries(rows, origin, self.types, columns)
        entries = file_entries(rows, origin, self.types, columns)
        if "first_row_id" in columns.names:  # nothing above a root assigns row ids
            first = rows.ints((ids.TRACKING, ids.FIRST_ROW_ID))
            entries = with_columns(entries, {"first_row_id": arrow(first, first < 0)})
        return entries

    def _vector_paths(self, columns: EntryColumns) -> list[tuple[int, ...]]:
        own = EntryColumns(frozenset(), partition=columns.partition)
        return [*self.types.data_paths(own), *VECTOR_PATHS, (ids.TRACKING, ids.DV_SNAPSHOT_ID)]

    def _leaf_entries(
        self, manifests: Ints, columns: EntryColumns, max_workers: int, *, vectors: bool
    ) -> list[EntriesTable]:
        """Entries of leaves; those of one schema are decoded together."""
        paths = self._vector_paths(columns) if vectors else self.types.data_paths(columns)
        has_vector = ids.DELETION_VECTOR, ids.DV_OFFSET
        numbers = manifests.tolist()
        workers = min(max_workers, len(numbers)) if local_path(self.location) is None else 1
        leaves = _each(self._leaf, numbers, workers)
        empty = {path for path in OFTEN_NULL.intersection(paths) if all(leaf.is_null(path) for leaf in leaves)}
        wanted = [path for path in paths if path not in empty]

        def load(leaf: ManifestFile) -> Rows | None:
            # Nearly always no file has a vector, which the column of offsets shows for a few bytes.
            if vectors and (leaf.is_null(has_vector) or not leaf.read([has_vector]).valid(has_vector).any()):
                return None
            return leaf.read(wanted).resolved(self.types.location)

        groups: dict[int, list[tuple[int, Rows]]] = {}
        for manifest, leaf, rows in zip(numbers, leaves, _each(load, leaves, workers), strict=True):
            if rows is not None:
                groups.setdefault(id(leaf.found), []).append((manifest, rows))
        return [self._of_group(group, columns, vectors=vectors) for group in groups.values()]

    def _of_group(self, group: Sequence[tuple[int, Rows]], columns: EntryColumns, *, vectors: bool) -> EntriesTable:
        try:
            return self._group_entries(group, columns, vectors=vectors)
        except FloeplanError:
            for leaf in group:  # the error of the whole names the first leaf, whichever is wrong
                self._group_entries([leaf], columns, vectors=vectors)
            raise

    def _group_entries(
        self, group: Sequence[tuple[int, Rows]], columns: EntryColumns, *, vectors: bool
    ) -> EntriesTable:
        rows = checked(Rows.concat([part for _, part in group]), root=False)
        manifests = [manifest for manifest, _ in group]
        counts = np.array([len(part) for _, part in group], dtype=np.int64)
        origin = Origin.of(self.manifests, np.array(manifests), counts)
        keep = self._kept(manifests, counts)
        if not vectors:
            entries = file_entries(rows, origin, self.types, columns)
            return entries if keep.all() else entries.filter(keep)
        keep &= rows.valid(VECTOR_PATHS[1]) & live_rows(rows.ints((ids.TRACKING, ids.STATUS)))
        numbers = file_entries(rows, origin, self.types, EntryColumns(frozenset(), partition=False)).sequence_number
        kept = np.add.reduceat(keep, np.cumsum(counts) - counts) if len(rows) else counts
        some = rows.filter(keep)
        chosen = Origin.of(self.manifests, np.array(manifests), kept)
        entries = vector_entries(some, chosen, self.types, columns)
        # The data file's number may be inherited, and a vector is never older than its file.
        raised = np.maximum(entries.sequence_number, numbers[keep])
        names = [name for name in ("sequence_number", "file_sequence_number") if name in entries]
        return with_columns(entries, {name: arrow(raised) for name in names})

    def _kept(self, manifests: Sequence[int], counts: Ints) -> Mask:
        """Which rows of some leaves are not removed by their reference."""
        keep = np.ones(int(counts.sum()), dtype=np.bool_)
        for manifest, start in zip(manifests, np.cumsum(counts) - counts, strict=True):
            removed = self.removed.get(self.references[manifest])
            if removed is not None:
                keep[start + removed] = False
        return keep

    def _leaf(self, manifest: int) -> ManifestFile:
        """The leaf of a row of the manifest list."""
        row = self.references[manifest]
        if row not in self._leaves:
            size = int(self.manifests.length[manifest])
            leaf = ManifestFile(str(self.manifests.path[manifest].as_py()), self._io, size, self._like)
            records = int(self._rows.ints((ids.RECORD_COUNT,))[row])
            if leaf.rows != records:
                raise leaf.damaged(f"it has {leaf.rows} rows, and {self.location} counts {records}")
            self._leaves[row] = self._like = leaf
        return self._leaves[row]


def _each(work: Callable[[T], R], things: Sequence[T], workers: int) -> list[R]:
    """Ordered map, over a thread pool if there are several workers."""
    if workers < 2:
        return list(map(work, things))
    with ThreadPoolExecutor(workers, thread_name_prefix="floeplan-metadata") as pool:
        return list(pool.map(work, things))


def _leaf_column(rows: Rows, column: Column, base: int, at: Ints) -> ColumnStats | None:
    """The statistics of a column for manifests whose references are these rows; -1 for none."""
    of_root = len(rows)

    def placed(array: pa.Array | None, type_: pa.DataType) -> pa.Array:
        values = pa.nulls(of_root, type_) if array is None else array
        return values.take(arrow(at, at < 0))

    def number(offset: int) -> Ints:
        path = ids.CONTENT_STATS, base, base + offset
        stored = rows.array(path)
        if stored is None or not fits_type(stored.type, LongType()):
            return np.full(len(at), UNKNOWN, dtype=np.int64)  # counts of another type are unknown
        return np.where(at < 0, UNKNOWN, rows.ints(path)[at])

    if not any(path[:2] == (ids.CONTENT_STATS, base) for path in rows.columns):
        return None
    ends = []
    for offset in (ids.LOWER, ids.UPPER):
        stored = rows.array((ids.CONTENT_STATS, base, base + offset))
        ends.append(placed(None if stored is None else single_values(column.type, stored), pa.large_binary()))
    lower, upper = decode_bounds(column.type, *ends)
    values, nulls = number(ids.VALUES), number(ids.NULLS)
    nans = number(ids.NANS) if isinstance(column.type, FloatType | DoubleType) else np.zeros_like(at)
    return ColumnStats.from_counts(values, nulls, nans, lower, upper)

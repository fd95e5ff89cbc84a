"""``MetadataTree``: a root and its leaves, in the form in which ``floeplan.snapshot.reader`` reads a snapshot.

The rows of the manifest list are what a plan can skip:

- the data files in the root itself, and their deletion vectors,
- every leaf, and the deletion vectors of its files,
- every manifest of format 1 to 3 that the root refers to.

``leaf_stats`` has the statistics that the root keeps of each leaf, which replace partition summaries.

Rule: rows inherit sequence numbers, snapshot and row ids from the reference to their leaf, as in Iceberg Java. Rows of
the root inherit nothing. Positions in the deletion vector of a leaf are removed after row ids are assigned.
Fail-safe: an unknown profile, a root of another table or snapshot, a leaf that is missing or has another number of
rows, a reference inside of a leaf, or positions beyond a leaf are errors. Counts of a leaf never prove it empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import IntEnum
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DoubleType, FloatType

from floeplan.errors import BadInputError, CorruptMetadataError, UnsupportedError
from floeplan.format4 import resolve_all
from floeplan.metadata.files import MAX_WORKERS, local_path
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns, Origin
from floeplan.metadata.manifests.manifest_list import DATA, DELETES, UNKNOWN, ManifestListTable, Summaries
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.values import decode_bounds
from floeplan.metadata.v4 import fields as ids
from floeplan.metadata.v4.fields import ContentType, EntryStatus
from floeplan.metadata.v4.manifest_file import OFTEN_NULL, ManifestFile, Rows
from floeplan.metadata.v4.mumbling import decode_positions
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
from floeplan.metadata.v4.stats import single_values
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import ColumnStats, StatsTable
from floeplan.schemas import fields_by_id
from floeplan.vectors import Ints, Mask, arrow, arrow_binary

T = TypeVar("T")
R = TypeVar("R")
_TRACKING = ids.TRACKING
_REFERENCE = (
    *((_TRACKING, field_id) for field_id in (ids.STATUS, ids.SNAPSHOT_ID, ids.SEQUENCE_NUMBER, ids.FIRST_ROW_ID)),
    *((field_id,) for field_id in (ids.CONTENT_TYPE, ids.FILE_FORMAT_VERSION, ids.LOCATION, ids.RECORD_COUNT)),
    *((field_id,) for field_id in (ids.FILE_SIZE, ids.SPEC_ID, ids.KEY_METADATA, ids.COLUMN_FILES)),
    *((ids.MANIFEST_INFO, field_id) for field_id in (*ids.FILE_COUNTS.values(), *ids.ROW_COUNTS.values())),
    *((ids.MANIFEST_INFO, field_id) for field_id in (ids.MIN_SEQUENCE_NUMBER, ids.MANIFEST_DV)),
    (ids.DELETION_VECTOR, ids.DV_OFFSET),
)
"""What is read of every row of the root."""


class _Kind(IntEnum):
    """What a row of the manifest list stands for."""

    INLINE = 0
    INLINE_VECTORS = 1
    LEAF = 2
    LEAF_VECTORS = 3
    OLDER = 4


class MetadataTree:
    """An open root; leaves are opened when their entries are read."""

    def __init__(self, location: str, metadata: TableMetadata, io: FileIO | None = None) -> None:
        self.location = location
        self._metadata, self._io = metadata, io
        union_tuple_type(metadata)  # refuses a table whose specs have no union
        self.types = EntryTypes(
            union=UnionPartitionType.of_table(metadata),
            sources=source_types(metadata.schema(), metadata.schemas),
            location=metadata.location,
            snapshots={one.snapshot_id: one.sequence_number or 0 for one in metadata.snapshots},
            current=frozenset(fields_by_id(metadata.schema())),
        )
        self._root = ManifestFile(location, io)
        self._check_profile()
        self._rows = checked(self._root.read(_REFERENCE), root=True)
        self._leaves: dict[int, ManifestFile] = {}
        self._like: ManifestFile | None = None
        self.removed: dict[int, Ints] = {}
        """Positions that are removed from each leaf, by the row of the root that refers to it."""
        self._kinds: list[_Kind] = []
        self.references: list[int] = []
        """The row of the root for each manifest; -1 for the root's own files."""
        self.manifests = self._listed()

    # --- the root

    def _check_profile(self) -> None:
        found = self._root.properties.get(ids.PROFILE_KEY.encode())
        if found is not None and found != ids.PROFILE.encode():
            raise UnsupportedError(
                f"{self.location} has the profile {found.decode(errors='replace')}, known is {ids.PROFILE}: "
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
        """Refuse a root that says it belongs to another table or snapshot; roots of other writers say nothing."""
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
            if kind is _Kind.LEAF:
                yield self._leaf(manifest)

    def _corrupt(self, why: str) -> CorruptMetadataError:
        return CorruptMetadataError(f"{self.location} {why}", context={"file": self.location})

    def _listed(self) -> ManifestListTable:
        """The rows of the manifest list."""
        rows, table = self._rows, _Listed()
        status, content = rows.ints((_TRACKING, ids.STATUS)), rows.ints((ids.CONTENT_TYPE,))
        live = live_rows(status)
        inline = live & (content == ContentType.DATA)
        self._inline = inline
        explicit = rows.valid((_TRACKING, ids.SNAPSHOT_ID)) & rows.valid((_TRACKING, ids.SEQUENCE_NUMBER))
        if (live & ~explicit).any():
            raise self._corrupt("has a row without snapshot id or sequence number, which rows of a root do not inherit")
        if inline.any():
            added = inline & (status == EntryStatus.ADDED)
            records = rows.ints((ids.RECORD_COUNT,))
            specs = np.unique(rows.ints((ids.SPEC_ID,))[inline])
            table.add(
                self.location,
                content=DATA,
                spec_id=int(specs[0]) if len(specs) == 1 else UNKNOWN,
                added_files=int(added.sum()),
                existing_files=int((inline & ~added).sum()),
                added_rows=int(records[added].sum()),
                existing_rows=int(records[inline & ~added].sum()),
            )
            self._remember(_Kind.INLINE, -1)
            if rows.valid((ids.DELETION_VECTOR, ids.DV_OFFSET))[inline].any():
                table.add(self.location, content=DELETES)
                self._remember(_Kind.INLINE_VECTORS, -1)
        references = np.flatnonzero(live & (content != ContentType.DATA))
        if len(references):
            self._list_references(references, table)
        return table.finish(self.types.location)

    def _remember(self, kind: _Kind, row: int) -> None:
        self._kinds.append(kind)
        self.references.append(row)

    def _list_references(self, references: Ints, table: _Listed) -> None:
        rows = self._rows
        names = resolve_all(self.types.location, rows.array((ids.LOCATION,)))
        vectors = rows.array((ids.MANIFEST_INFO, ids.MANIFEST_DV))
        has_info = rows.valid((ids.MANIFEST_INFO, ids.MIN_SEQUENCE_NUMBER))
        if rows.valid((ids.KEY_METADATA,))[references].any():
            raise UnsupportedError(
                f"{self.location} refers to encrypted manifests, which Floeplan does not read",
                context={"file": self.location},
            )
        numbers = {
            "length": rows.ints((ids.FILE_SIZE,)),
            "spec_id": rows.ints((ids.SPEC_ID,)),
            "sequence_number": rows.ints((_TRACKING, ids.SEQUENCE_NUMBER)),
            "min_sequence_number": rows.ints((ids.MANIFEST_INFO, ids.MIN_SEQUENCE_NUMBER), 0),
            "added_snapshot_id": rows.ints((_TRACKING, ids.SNAPSHOT_ID)),
            "first_row_id": rows.ints((_TRACKING, ids.FIRST_ROW_ID)),
            **{f"{n}_files": rows.ints((ids.MANIFEST_INFO, i)) for n, i in ids.FILE_COUNTS.items() if n != "replaced"},
            **{f"{n}_rows": rows.ints((ids.MANIFEST_INFO, i)) for n, i in ids.ROW_COUNTS.items() if n != "replaced"},
        }
        versions, contents = rows.ints((ids.FILE_FORMAT_VERSION,)), rows.ints((ids.CONTENT_TYPE,))
        records = rows.ints((ids.RECORD_COUNT,))
        for row in references.tolist():
            path = str(names[row].as_py())
            if not has_info[row]:
                raise self._corrupt(f"refers to {path} without manifest_info")
            values = {name: int(column[row]) for name, column in numbers.items()}
            is_deletes = contents[row] == ContentType.DELETE_MANIFEST
            if versions[row] == ids.OLDER_FORMAT:
                if vectors is not None and vectors[row].is_valid:
                    raise self._corrupt(f"removes positions from {path}, a manifest of an older format")
                if values["spec_id"] < 0:
                    raise self._corrupt(f"refers to {path} of an older format without its partition spec")
                table.add(path, content=DELETES if is_deletes else DATA, **values)
                self._remember(_Kind.OLDER, row)
                continue
            if versions[row] != ids.FORMAT_VERSION or is_deletes:
                kind = "delete manifest" if is_deletes else "manifest"
                raise UnsupportedError(
                    f"{self.location} refers to {path}, a {kind} of format {int(versions[row])}, which is not known",
                    context={"file": path},
                )
            if vectors is not None and vectors[row].is_valid:
                self.removed[row] = self._positions(vectors[row].as_py(), path, int(records[row]))
                # Stored counts do not shrink; how many of the removed files they count is not known.
                values |= {name: UNKNOWN for name in values if name.endswith(("_files", "_rows"))}
                values["added_files"] = max(int(records[row]) - len(self.removed[row]), 1)
                values["existing_files"] = 0
            if values["added_files"] + values["existing_files"] == 0:
                values["added_files"] = UNKNOWN  # drafts disagree on where modified files are counted
            table.add(path, content=DATA, **values)
            self._remember(_Kind.LEAF, row)
            unknown = {name: UNKNOWN for name in values if name.endswith(("_files", "_rows"))}
            table.add(path, content=DELETES, **values | unknown)
            self._remember(_Kind.LEAF_VECTORS, row)

    def _positions(self, data: bytes, path: str, rows: int) -> Ints:
        try:
            positions = decode_positions(data)
        except ValueError as error:
            raise self._corrupt(f"has a damaged deletion vector of {path}: {error}") from error
        if len(positions) and positions[-1] >= rows:
            raise self._corrupt(f"removes position {int(positions[-1])} of {path}, which has {rows} rows")
        return positions

    def leaf_stats(self, columns: Mapping[int, Column]) -> StatsTable:
        """The statistics of each leaf by field id; unknown for everything else."""
        bases = {field_id: ids.stats_id(field_id) for field_id in columns}
        metrics = (ids.LOWER, ids.UPPER, ids.VALUES, ids.NULLS, ids.NANS)
        paths = [(ids.CONTENT_STATS, base, base + n) for base in bases.values() if base is not None for n in metrics]
        wanted = [path for path in paths if path in self._root.found]
        found: dict[int, ColumnStats] = {}
        if wanted and any(kind in (_Kind.LEAF, _Kind.LEAF_VECTORS) for kind in self._kinds):
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
        for kind in _Kind:
            some = chosen[kinds == kind]
            if not len(some):
                continue
            if kind is _Kind.OLDER:
                parts.append(read_entries(self.manifests, self.types.union, columns, rows=some, io=io or self._io))
            elif kind in (_Kind.INLINE, _Kind.INLINE_VECTORS):
                parts.append(self._inline_entries(int(some[0]), columns, vectors=kind is _Kind.INLINE_VECTORS))
            else:
                parts += self._leaf_entries(some, columns, max_workers, vectors=kind is _Kind.LEAF_VECTORS)
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
        rows = self._root.read(paths).filter(keep)
        origin = Origin.of(self.manifests, np.array([row]), np.array([len(rows)]))
        if vectors:
            return vector_entries(rows, origin, self.types, columns)
        entries = file_entries(rows, origin, self.types, columns)
        if "first_row_id" in columns.names:  # nothing above a root assigns row ids
            first = rows.ints((_TRACKING, ids.FIRST_ROW_ID))
            entries = with_columns(entries, {"first_row_id": arrow(first, first < 0)})
        return entries

    def _vector_paths(self, columns: EntryColumns) -> list[tuple[int, ...]]:
        own = EntryColumns(frozenset(), partition=columns.partition)
        return [*self.types.data_paths(own), *VECTOR_PATHS, (_TRACKING, ids.DV_SNAPSHOT_ID)]

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
            # Nearly always no file has a vector; the column of offsets tells it for a few bytes.
            if vectors and (leaf.is_null(has_vector) or not leaf.read([has_vector]).valid(has_vector).any()):
                return None
            return leaf.read(wanted).resolved(self.types.location)

        groups: dict[int, list[tuple[int, Rows]]] = {}
        for manifest, leaf, rows in zip(numbers, leaves, _each(load, leaves, workers), strict=True):
            if rows is not None:
                groups.setdefault(id(leaf.found), []).append((manifest, rows))
        return [self._group_entries(group, columns, vectors=vectors) for group in groups.values()]

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
        keep &= rows.valid(VECTOR_PATHS[1]) & live_rows(rows.ints((_TRACKING, ids.STATUS)))
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
        values = rows.ints((ids.CONTENT_STATS, base, base + offset))
        return np.where(at < 0, UNKNOWN, values[at])

    if not any(path[:2] == (ids.CONTENT_STATS, base) for path in rows.columns):
        return None
    ends = []
    for offset in (ids.LOWER, ids.UPPER):
        stored = rows.array((ids.CONTENT_STATS, base, base + offset))
        ends.append(placed(None if stored is None else single_values(column.type, stored), pa.large_binary()))
    lower, upper = decode_bounds(column.type, *ends)
    try:
        values, nulls = number(ids.VALUES), number(ids.NULLS)
        nans = number(ids.NANS) if isinstance(column.type, FloatType | DoubleType) else np.zeros_like(at)
    except CorruptMetadataError:  # counts of another type are unknown
        values = nulls = nans = np.full(len(at), UNKNOWN, dtype=np.int64)
    return ColumnStats.from_counts(values, nulls, nans, lower, upper)


class _Listed:
    """Collects the rows of a manifest list."""

    def __init__(self) -> None:
        self._rows: list[dict[str, int]] = []
        self._paths: list[str] = []

    def add(self, path: str, **numbers: int) -> None:
        self._paths.append(path)
        self._rows.append(numbers)

    def finish(self, location: str) -> ManifestListTable:
        """Numbers that were not given are unknown."""
        empty, count = ManifestListTable.empty(), len(self._rows)
        names = [name for name in ManifestListTable.__slots__ if isinstance(getattr(empty, name), np.ndarray)]
        numbers = {
            name: np.array([row.get(name, UNKNOWN) for row in self._rows], dtype=np.int64)
            for name in names
            if name != "has_key_metadata"
        }
        return replace(
            empty,
            path=arrow_binary([path.encode() for path in self._paths]).cast(pa.large_string()),
            has_key_metadata=np.zeros(count, dtype=np.bool_),
            summaries=Summaries.none(count),
            table_location=location,
            **numbers,
        )

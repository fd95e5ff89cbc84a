"""Rows of v4 manifests as manifest entries.

``file_entries`` and ``vector_entries`` make the entries that manifests of format 3 would have: a data file, and a
delete file for its deletion vector.

Fail-safe: a partition value of another type than its field is an error that names the manifest. A file of a spec with
partition fields must have a partition tuple: without one it would be pruned as if all values were null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import DateType, LongType, PrimitiveType, UnknownType

from floeplan.errors import CorruptMetadataError, FloeplanError, UnsupportedError
from floeplan.format4 import resolve_all
from floeplan.metadata.avro.decoder import RawColumn
from floeplan.metadata.manifests.assemble import assemble
from floeplan.metadata.manifests.entries import (
    STAT_MAPS,
    STATS,
    Content,
    EntriesTable,
    EntryColumns,
    Origin,
    Status,
    concat_columns,
    partition_column,
)
from floeplan.metadata.manifests.parquet_reader import raw_column
from floeplan.metadata.v4 import fields as ids
from floeplan.metadata.v4.fields import ContentType, EntryStatus
from floeplan.metadata.v4.manifest_file import Path, Rows
from floeplan.metadata.v4.stats import fits_type, pack_map, single_values
from floeplan.partition.fields import SourceTypes
from floeplan.partition.union import UnionPartitionType
from floeplan.vectors import Ints, Mask, arrow

_OF_ENTRY: Mapping[str, Path] = {
    "status": (ids.TRACKING, ids.STATUS),
    "snapshot_id": (ids.TRACKING, ids.SNAPSHOT_ID),
    "sequence_number": (ids.TRACKING, ids.SEQUENCE_NUMBER),
    "file_sequence_number": (ids.TRACKING, ids.FILE_SEQUENCE_NUMBER),
    "first_row_id": (ids.TRACKING, ids.FIRST_ROW_ID),
    "file_path": (ids.LOCATION,),
    "file_format": (ids.FILE_FORMAT,),
    "record_count": (ids.RECORD_COUNT,),
    "file_size_in_bytes": (ids.FILE_SIZE,),
    "key_metadata": (ids.KEY_METADATA,),
    "split_offsets": (ids.SPLIT_OFFSETS,),
    "sort_order_id": (ids.SORT_ORDER_ID,),
}
"""Where a v4 manifest has the columns of an entry."""

_ALWAYS = ("status", "sequence_number", "file_path", "file_format", "record_count", "file_size_in_bytes")
_METRICS = {"lower": ids.LOWER, "upper": ids.UPPER, "value_count": ids.VALUES, "null_count": ids.NULLS}
_METRICS |= {"nan_count": ids.NANS}
_STATUS = np.array([Status.EXISTING, Status.ADDED, Status.DELETED, Status.DELETED, Status.EXISTING])
"""The status of an entry by the status of a tracked file."""

_MOST_COUNTED = 1 << 16
"""Spec ids up to this are looked up in a table, larger ones by sorting."""

VECTOR = ids.DELETION_VECTOR
VECTOR_PATHS: tuple[Path, ...] = (
    (VECTOR, ids.DV_LOCATION),
    (VECTOR, ids.DV_OFFSET),
    (VECTOR, ids.DV_SIZE),
    (VECTOR, ids.DV_CARDINALITY),
    (VECTOR, ids.DV_KEY_METADATA),
)


@dataclass(frozen=True, slots=True)
class EntryTypes:
    """What is needed of a table to turn rows into entries.

    Attributes:
        union: The partition fields of its specs.
        sources: The types of its columns.
        location: What relative paths are resolved against.
        snapshots: Sequence numbers by snapshot id.
        current: Field ids of the current schema.
    """

    union: UnionPartitionType
    sources: SourceTypes
    location: str
    snapshots: Mapping[int, int]
    current: frozenset[int]

    def data_paths(self, columns: EntryColumns) -> list[Path]:
        """The columns to read for entries of data files."""
        names = {*_ALWAYS, *(columns.names & _OF_ENTRY.keys())}
        paths = [_OF_ENTRY[name] for name in sorted(names)] + [(ids.CONTENT_TYPE,), (ids.SPEC_ID,), (ids.COLUMN_FILES,)]
        if columns.partition:
            paths += [(ids.PARTITION, field.field_id) for field in self.union.fields]
        for field_id in self.stat_columns(columns):
            base = ids.stats_id(field_id)
            if base is not None:
                paths += [(ids.CONTENT_STATS, base, base + offset) for offset in _METRICS.values()]
        return paths

    def stat_columns(self, columns: EntryColumns) -> Sequence[int]:
        """The columns whose statistics are read."""
        return sorted(self.sources) if columns.maps else sorted(columns.stats | columns.nan_counts)


def checked(rows: Rows, *, root: bool) -> Rows:
    """Refuse rows that have no place in a manifest, or whose meaning is not known."""

    def refuse(wrong: np.bool_ | bool, why: str, kind: type[FloeplanError] = CorruptMetadataError) -> None:
        if wrong:
            raise kind(f"{rows.path} {why}", context={"file": rows.path})

    status, content = rows.ints((ids.TRACKING, ids.STATUS)), rows.ints((ids.CONTENT_TYPE,))
    unknown = status.min(initial=0) < 0 or status.max(initial=0) >= len(EntryStatus)
    refuse(unknown, "has a row whose status is missing or unknown")
    if content.any():  # nearly always a leaf has data files only, which are 0
        is_manifest = (content == ContentType.DATA_MANIFEST) | (content == ContentType.DELETE_MANIFEST)
        refuse(not root and is_manifest.any(), "is a leaf and refers to manifests: the tree has two levels")
        others = live_rows(status) & ~is_manifest & (content != ContentType.DATA)
        why = "has an equality delete file, which manifests of format 4 do not hold"
        refuse((others & (content == ContentType.EQUALITY_DELETES)).any(), why, UnsupportedError)
        refuse(others.any(), "has a row of an unknown content type")
    if rows.array((ids.COLUMN_FILES,)) is not None:
        why = "has a file whose columns were replaced by column files, which Floeplan does not read"
        refuse((live_rows(status) & rows.valid((ids.COLUMN_FILES,))).any(), why, UnsupportedError)
    refuse(rows.ints((ids.RECORD_COUNT,)).min(initial=0) < 0, "has a row without a record count")
    return rows


def live_rows(status: Ints) -> Mask:
    """Which rows are live by their status."""
    return np.asarray((status != EntryStatus.DELETED) & (status != EntryStatus.REPLACED))


def file_entries(rows: Rows, origin: Origin, types: EntryTypes, columns: EntryColumns) -> EntriesTable:
    """The entries of data files with resolved paths; only sequence numbers, snapshot and row ids are inherited."""
    raw: dict[str, RawColumn] = {}
    for name in {*_ALWAYS, *(columns.names & _OF_ENTRY.keys())}:
        path = _OF_ENTRY[name]
        array = rows.array(path)
        if array is None:
            continue
        if name == "split_offsets":
            raw |= _listed(rows, name, array)
        elif name == "status" and rows.ints(path).max(initial=0) > Status.DELETED:
            raw[name] = _numbers(_STATUS[rows.ints(path)])
        elif name in ("file_path", "file_format"):
            raw[name] = raw_column(rows.text(path))
        elif name == "key_metadata":
            raw[name] = raw_column(rows.binary(path))
        else:
            rows.check_ints(path)
            raw[name] = raw_column(array)
    specs = spec_ids(rows, types)
    if columns.partition:
        raw |= _partition(rows, specs, types)
    wanted = replace(columns, names=columns.names - frozenset(STAT_MAPS))
    for field_id in columns.stats | columns.nan_counts:
        raw |= _column_stats(rows, field_id, types)
    entries = assemble(raw, origin, types.union, wanted)
    made = {"spec_id": arrow(specs.astype(np.int32))}
    if columns.maps:
        stats = {field_id: _column_stats(rows, field_id, types) for field_id in types.stat_columns(columns)}
        made |= {name: _stat_map(name, stats, len(rows)) for name in columns.maps}
    return with_columns(entries, made)


def vector_entries(rows: Rows, origin: Origin, types: EntryTypes, columns: EntryColumns) -> EntriesTable:
    """The deletion vectors of data files with resolved paths as delete files; all rows have one.

    A tracked file knows the snapshot of its vector, not the sequence number. Where the snapshot is expired, the data
    file's number stands for it: the vector applies to that one file and is never older.
    """
    changed = rows.ints((ids.TRACKING, ids.DV_SNAPSHOT_ID))
    own = rows.ints(_OF_ENTRY["sequence_number"], 0)
    known = np.array(sorted(types.snapshots), dtype=np.int64)
    at = np.searchsorted(known, changed)
    hit = np.zeros(len(rows), dtype=np.bool_)
    numbers = own
    if len(known):
        hit = known[np.minimum(at, len(known) - 1)] == changed
        listed = np.array([types.snapshots[one] for one in known.tolist()], dtype=np.int64)
        numbers = np.where(hit, listed[np.minimum(at, len(known) - 1)], own)
    location, offset, size, cardinality, key = VECTOR_PATHS
    for path in (offset, size, cardinality):
        rows.check_ints(path)
    raw = {
        "status": _numbers(np.full(len(rows), int(Status.EXISTING))),
        "content": _numbers(np.full(len(rows), int(Content.POSITION_DELETES))),
        "sequence_number": _numbers(np.maximum(numbers, own)),
        "file_sequence_number": _numbers(np.maximum(numbers, own)),
        "snapshot_id": raw_column(arrow(changed, changed < 0)),
        "file_path": raw_column(resolve_all(types.location, rows.text(location))),
        "file_format": raw_column(pa.repeat(pa.scalar("PUFFIN"), len(rows))),
        "record_count": raw_column(rows.array(cardinality)),
        "file_size_in_bytes": raw_column(rows.array(size)),
        "content_offset": raw_column(rows.array(offset)),
        "content_size_in_bytes": raw_column(rows.array(size)),
        "referenced_data_file": raw_column(rows.text(_OF_ENTRY["file_path"])),
    }
    if rows.binary(key) is not None:
        raw["key_metadata"] = raw_column(rows.binary(key))
    specs = spec_ids(rows, types)
    if columns.partition:
        raw |= _partition(rows, specs, types)
    wanted = replace(columns, names=columns.names - frozenset(STAT_MAPS))
    entries = assemble(raw, origin, types.union, wanted)
    made = {"spec_id": arrow(specs.astype(np.int32))}
    none = np.zeros(len(rows), dtype=np.bool_)
    return with_columns(entries, made | {name: pack_map(name, {}, none) for name in columns.maps})


def spec_ids(rows: Rows, types: EntryTypes) -> Ints:
    """The spec of every file; a file without one is unpartitioned."""
    specs = rows.ints((ids.SPEC_ID,))
    if specs.min(initial=0) < 0:
        unpartitioned = [spec_id for spec_id, spec in types.union.specs.items() if spec.unpartitioned]
        if not unpartitioned:
            raise CorruptMetadataError(
                f"{rows.path} has a file without a spec, and the table has no unpartitioned spec",
                context={"file": rows.path},
            )
        specs = np.where(specs < 0, unpartitioned[0], specs)
    unknown = set(_distinct(specs)) - types.union.specs.keys()
    if unknown:
        known = ", ".join(map(str, sorted(types.union.specs)))
        raise CorruptMetadataError(
            f"{rows.path} has files of partition spec {min(unknown)}, the table has only {known}",
            context={"file": rows.path, "spec_id": min(unknown)},
        )
    return specs


def _partition(rows: Rows, specs: Ints, types: EntryTypes) -> dict[str, RawColumn]:
    """The columns of the union tuple; values of fields that the file's spec does not have are ignored."""
    raw: dict[str, RawColumn] = {}
    has_tuple = rows.valid((ids.PARTITION,))
    distinct = _distinct(specs)
    for field in types.union.fields:
        having = [spec_id for spec_id in distinct if spec_id in field.positions]
        if not having:
            continue
        member = _is_one_of(specs, having)
        array, type_ = rows.array((ids.PARTITION, field.field_id)), field.bound.column.type
        if array is None:
            if field.bound.source_id not in types.current:
                continue  # Iceberg Java stores no column whose source was dropped
            raise _no_tuple(rows, int(specs[np.argmax(member)]), field.name)
        if not (has_tuple | ~member).all():
            raise _no_tuple(rows, int(specs[np.argmax(member & ~has_tuple)]), field.name)
        is_day = isinstance(type_, DateType) and pa.types.is_int32(array.type)
        if not (isinstance(type_, UnknownType) or fits_type(array.type, type_) or is_day):
            raise CorruptMetadataError(
                f"{rows.path} stores partition field {field.name!r} as {array.type}, which does not fit {type_}",
                context={"file": rows.path, "partition_field": field.name},
            )
        column = raw_column(array)
        raw[partition_column(field.id)] = column if member.all() else replace(column, valid=column.valid & member)
    return raw


def _distinct(specs: Ints) -> list[int]:
    """The specs that occur."""
    small = specs.max(initial=0) <= _MOST_COUNTED
    found: list[int] = (np.flatnonzero(np.bincount(specs)) if small else np.unique(specs)).tolist()
    return found


def _is_one_of(specs: Ints, some: list[int]) -> Mask:
    if specs.max(initial=0) > _MOST_COUNTED:
        return np.isin(specs, some)
    lookup = np.zeros(_MOST_COUNTED + 1, dtype=np.bool_)
    lookup[some] = True
    return lookup[specs]


def _no_tuple(rows: Rows, spec_id: int, field: str) -> CorruptMetadataError:
    return CorruptMetadataError(
        f"{rows.path} has files of partition spec {spec_id} without a value of its partition field {field!r}: "
        "they would be pruned as null",
        context={"file": rows.path, "spec_id": spec_id},
    )


def _column_stats(rows: Rows, field_id: int, types: EntryTypes) -> dict[str, RawColumn]:
    """The statistics of a column by the names that entries give them."""
    raw: dict[str, RawColumn] = {}
    base, known = ids.stats_id(field_id), types.sources.get(field_id)
    if base is None or known is None:
        return raw
    for name, offset in _METRICS.items():
        array = rows.array((ids.CONTENT_STATS, base, base + offset))
        if array is None:
            continue
        if name in ("lower", "upper"):
            raw[f"{name}.{field_id}"] = RawColumn.of(single_values(known[0], array), array.type)
        elif fits_type(array.type, LongType()):
            raw[f"{name}.{field_id}"] = raw_column(array)
    return raw


def _stat_map(name: str, stats: Mapping[int, Mapping[str, RawColumn]], rows: int) -> pa.Array:
    """A map of statistics from the columns by field id; the map of column sizes is null."""
    prefix = {source: prefix for prefix, source in STATS.items()}.get(name)
    raw = {key: columns.get(f"{prefix}.{key}") for key, columns in stats.items()}
    found = {key: column.to_arrow() for key, column in raw.items() if column is not None}
    return pack_map(name, found, np.zeros(rows, dtype=np.bool_))


def _listed(rows: Rows, name: str, array: pa.Array) -> dict[str, RawColumn]:
    if not (pa.types.is_list(array.type) and pa.types.is_signed_integer(array.type.value_type)):
        raise CorruptMetadataError(
            f"{rows.path} stores {name} as {array.type}, not as a list of integers", context={"file": rows.path}
        )
    counts = pc.list_value_length(array).cast(pa.int64())
    return {name: raw_column(counts), f"{name}[]": raw_column(array.flatten())}


def _numbers(values: Ints) -> RawColumn:
    return raw_column(arrow(values.astype(np.int64, copy=False)))


def with_columns(entries: EntriesTable, made: Mapping[str, pa.Array]) -> EntriesTable:
    """Entries with some columns replaced or added."""
    table = entries.table
    for name, array in made.items():
        at = table.schema.get_field_index(name)
        table = table.append_column(name, array) if at < 0 else table.set_column(at, name, array)
    return EntriesTable(table, entries.partition_types)


def concat_parts(parts: Sequence[EntriesTable]) -> EntriesTable:
    """Entries of several manifests; they have the same columns."""
    if len(parts) == 1:
        return parts[0]
    types: dict[int, PrimitiveType] = {}
    for part in parts:
        known = part.partition_types.items()
        types |= {i: t for i, t in known if isinstance(types.get(i, UnknownType()), UnknownType)}
    names = parts[0].table.column_names
    made = {name: concat_columns([part.array(name) for part in parts]) for name in names}
    return EntriesTable(pa.Table.from_arrays(list(made.values()), names=list(made)), types)

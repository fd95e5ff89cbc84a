"""Writes v4 manifests: rows of data files with their deletion vectors.

Rule: one ``ManifestLayout`` describes root and leaves of a tree: the union tuple, and the columns with statistics. Rows
are Arrow tables of its schema, written as one Parquet row group. Paths below the table location are stored relative to
it. Every file has a partition tuple, and ``tight_bounds`` is never null: Iceberg 1.12.0 prunes files without a tuple
and fails on null (see ``stats``).

Fail-safe: a path that would be read back as another one, and a value that does not fit its type, are errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField, PrimitiveType, StructType, UnknownType

from floeplan.errors import CorruptMetadataError
from floeplan.format4 import relative_paths
from floeplan.metadata.manifests.entries import EntriesTable, partition_column
from floeplan.metadata.manifests.parquet_reader import field_id_of
from floeplan.metadata.manifests.values import to_logical
from floeplan.metadata.v4 import fields as ids
from floeplan.metadata.v4.fields import ContentType
from floeplan.metadata.v4.schemas import content_stats_type, stored_schema, tracked_file_schema, union_tuple_type
from floeplan.metadata.v4.stats import METRIC_OF_MAP, typed_values, unpack_map
from floeplan.partition.fields import source_types
from floeplan.vectors import Ints, valid_mask


@dataclass(frozen=True, slots=True)
class ManifestOptions:
    """How the Parquet files are written.

    Attributes:
        compression: The codec.
        dictionaries: Whether columns whose values repeat may be dictionary-encoded.
        statistics: Whether column chunks have statistics.
    """

    compression: str = "zstd"
    dictionaries: bool = True
    statistics: bool = True


@dataclass(frozen=True, slots=True)
class ManifestLayout:
    """The schema of a tree's manifests, and what is needed to fill it.

    Attributes:
        schema: The columns.
        columns: The type of each column with statistics by field id.
        location: The table's location.
    """

    schema: pa.Schema
    columns: Mapping[int, PrimitiveType]
    location: str

    @classmethod
    def of(
        cls,
        metadata: TableMetadata,
        columns: Iterable[int] | None = None,
        partition_types: Mapping[int, PrimitiveType] | None = None,
    ) -> ManifestLayout:
        """The layout for a table.

        Args:
            metadata: The table.
            columns: The columns with statistics, dropped ones too; those that Iceberg Java infers if not given.
            partition_types: Types of partition fields that no schema gives any more.
        """
        stats = list(content_stats_type(metadata.schema(), columns).fields)
        for schema in sorted(metadata.schemas, key=lambda one: -one.schema_id) if columns is not None else ():
            known, names = {field.field_id for field in stats}, {field.name for field in stats}
            for field in content_stats_type(schema, columns).fields:
                if field.field_id not in known:
                    name = f"{field.name}_{field.field_id}" if field.name in names else field.name
                    stats.append(NestedField(field.field_id, name, field.field_type, required=False))
        fields = []
        for field in union_tuple_type(metadata, stored=True).fields:
            type_ = field.field_type
            if isinstance(type_, UnknownType):
                type_ = (partition_types or {}).get(field.field_id, type_)
            fields.append(NestedField(field.field_id, field.name, type_, required=False))
        chosen = {field.field_id for field in stats}
        types = source_types(metadata.schema(), metadata.schemas)
        known_types = {key: found[0] for key, found in types.items() if ids.stats_id(key) in chosen}
        schema = stored_schema(tracked_file_schema(StructType(*fields), StructType(*stats)))
        return cls(schema, known_types, metadata.location)

    def has(self, name: str) -> bool:
        """Whether a column is stored."""
        return bool(self.schema.get_field_index(name) >= 0)

    def table(self, columns: Mapping[str, pa.Array], rows: int) -> pa.Table:
        """Rows of these columns; others are null."""
        arrays = [
            cast(columns[field.name], field.type) if field.name in columns else nulls_of(field.type, rows)
            for field in self.schema
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def struct(self, name: str, values: Mapping[str, pa.Array], rows: int, valid: pa.Array | None = None) -> pa.Array:
        """A struct column; where it is null, required fields get a value that is never read."""
        fields, arrays = list(self.schema.field(name).type), []
        for field in fields:
            given = values.get(field.name)
            array = nulls_of(field.type, rows) if given is None else cast(given, field.type)
            arrays.append(array if field.nullable or not array.null_count else array.fill_null(_dummy(field.type)))
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=None if valid is None else pc.invert(valid))


def nulls_of(type_: pa.DataType, rows: int) -> pa.Array:
    """Nulls; Arrow writes a struct that is null only if its required fields have values."""
    if not pa.types.is_struct(type_):
        return pa.nulls(rows, type_)
    arrays = [nulls_of(field.type, rows) if field.nullable else pa.repeat(_dummy(field.type), rows) for field in type_]
    return pa.StructArray.from_arrays(arrays, fields=list(type_), mask=pa.array(np.ones(rows, dtype=np.bool_)))


def _dummy(type_: pa.DataType) -> pa.Scalar:
    return pa.scalar("" if pa.types.is_large_string(type_) else 0, type_)


def cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """An array in another type; refused if a value does not fit."""
    if array.type == type_:
        return array
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, array.cast(type_.storage_type))
    try:
        return array.cast(type_)
    except pa.ArrowException as error:
        raise CorruptMetadataError(f"a value does not fit its type {type_}: {error}") from error


@dataclass(frozen=True, slots=True)
class Vectors:
    """The deletion vectors of data files: one row for each file, null where it has none."""

    location: pa.Array
    offset: pa.Array
    size: pa.Array
    cardinality: pa.Array
    key_metadata: pa.Array
    snapshot_id: pa.Array

    @classmethod
    def matched(cls, data: EntriesTable, vectors: EntriesTable) -> Vectors:
        """The vectors among delete files that apply to each data file."""
        found = pc.index_in(data.path, value_set=vectors.array("referenced_data_file"))
        at = found.fill_null(-1).to_numpy().astype(np.int64)
        newer = vectors.sequence_number[at] >= data.sequence_number if len(vectors) else at >= 0
        missing = (at < 0) | ~newer
        rows = pa.array(np.where(missing, 0, at), mask=missing)
        names = ("file_path", "content_offset", "content_size_in_bytes", "record_count", "key_metadata", "snapshot_id")
        return cls(*(vectors.array(name).take(rows) for name in names))


def data_rows(
    layout: ManifestLayout,
    entries: EntriesTable,
    vectors: Vectors | None,
    status: Ints,
    dropped: set[str] | None = None,
) -> pa.Table:
    """Rows of data files.

    Args:
        layout: The schema.
        entries: The files, as whole entries.
        vectors: Their deletion vectors.
        status: Values of ``EntryStatus``.
        dropped: Collects what the rows cannot hold.
    """
    rows = len(entries)
    tracking = {name: entries.array(name) for name in ("snapshot_id", "sequence_number", "file_sequence_number")}
    tracking |= {"status": pa.array(status, pa.int32()), "first_row_id": entries.array("first_row_id")}
    made: dict[str, pa.Array] = {
        "content_type": _constant(int(ContentType.DATA), rows),
        "format_version": _constant(ids.FORMAT_VERSION, rows),
        "location": relative_paths(layout.location, entries.path),
        "spec_id": entries.array("spec_id"),
    }
    for name in ("file_format", "record_count", "file_size_in_bytes", "sort_order_id", "key_metadata", "split_offsets"):
        made[name] = entries.array(name)
    if vectors is not None and vectors.offset.null_count < rows:
        tracking["dv_snapshot_id"] = vectors.snapshot_id
        parts = {"offset": vectors.offset, "size_in_bytes": vectors.size, "cardinality": vectors.cardinality}
        parts |= {"location": relative_paths(layout.location, vectors.location), "key_metadata": vectors.key_metadata}
        made["deletion_vector"] = layout.struct("deletion_vector", parts, rows, vectors.location.is_valid())
    made["tracking"] = layout.struct("tracking", tracking, rows)
    if layout.has("partition"):
        made["partition"] = _tuples(layout, entries)
    if layout.has("content_stats"):
        made["content_stats"] = _content_stats(layout, entries, dropped if dropped is not None else set())
    return layout.table(made, rows)


def _constant(value: int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int32()), rows)


def _tuples(layout: ManifestLayout, entries: EntriesTable) -> pa.Array:
    arrays, fields = [], list(layout.schema.field("partition").type)
    for field in fields:
        name, type_ = partition_column(field_id_of(field)), entries.partition_types.get(field_id_of(field))
        known = type_ is not None and name in entries and not isinstance(type_, UnknownType)
        values = to_logical(type_, entries.array(name)) if known and type_ is not None else pa.nulls(len(entries))
        arrays.append(cast(values, field.type))
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _content_stats(layout: ManifestLayout, entries: EntriesTable, dropped: set[str]) -> pa.Array:
    """The maps of statistics as typed columns; a column has a struct where it has a metric."""
    maps = {metric: unpack_map(entries.array(name)) for name, metric in METRIC_OF_MAP.items()}
    arrays, fields = [], list(layout.schema.field("content_stats").type)
    of_base = {ids.stats_id(field_id): field_id for field_id in layout.columns}
    for field in fields:
        field_id = of_base[field_id_of(field)]
        known = np.zeros(len(entries), dtype=np.bool_)
        metrics = {}
        for metric in field.type:
            raw = maps.get(metric.name, {}).get(field_id)
            if raw is None:
                metrics[metric.name] = nulls_of(metric.type, len(entries))
                continue
            values = typed_values(layout.columns[field_id], raw) if metric.name.endswith("_bound") else raw
            if values is None or values.null_count > raw.null_count:
                dropped.add("bounds that are not values of their column's type")
            nothing = values is None or pa.types.is_struct(metric.type)
            metrics[metric.name] = nulls_of(metric.type, len(entries)) if nothing else cast(values, metric.type)
            known |= valid_mask(metrics[metric.name])
        if "tight_bounds" in metrics:
            metrics["tight_bounds"] = pa.array(np.zeros(len(entries), dtype=np.bool_), mask=~known)
        parts = list(metrics.values())
        arrays.append(pa.StructArray.from_arrays(parts, fields=list(field.type), mask=pa.array(~known)))
    return pa.StructArray.from_arrays(arrays, fields=fields)


_DISTINCT = frozenset({"location", "record_count", "file_size_in_bytes", "tracking.first_row_id"})
"""Columns whose values differ from row to row; a dictionary of them takes more bytes, and longer to decode."""


def _repeating(fields: Iterable[pa.Field], above: str = "") -> Iterator[str]:
    """The columns that dictionaries pay for, as Parquet names them."""
    for field in fields:
        path = f"{above}{field.name}"
        if pa.types.is_struct(field.type):
            yield from _repeating(field.type, f"{path}.")
        elif path not in _DISTINCT:
            yield f"{path}.list.element" if pa.types.is_nested(field.type) else path


def manifest_bytes(rows: pa.Table, properties: Mapping[str, str], options: ManifestOptions) -> bytes:
    """A root or leaf as a Parquet file."""
    sink = pa.BufferOutputStream()
    try:
        with pq.ParquetWriter(
            sink,
            rows.schema,
            compression=options.compression,
            store_schema=False,
            use_dictionary=list(_repeating(rows.schema)) if options.dictionaries else False,
            write_statistics=options.statistics,
            write_page_checksum=True,
        ) as writer:
            writer.write_table(rows, row_group_size=max(len(rows), 1))
            writer.add_key_value_metadata(
                {"format-version": str(ids.FORMAT_VERSION), "content": "data"} | dict(properties)
            )
    except pa.ArrowException as error:
        raise CorruptMetadataError(f"rows cannot be written as a v4 manifest: {error}") from error
    data: bytes = sink.getvalue().to_pybytes()
    return data


def root_properties(metadata: TableMetadata, snapshot_id: int | None) -> dict[str, str]:
    """The properties in the footer of a root."""
    return {
        "schema-id": str(metadata.current_schema_id),
        ids.PROFILE_KEY: ids.PROFILE,
        ids.TABLE_KEY: str(metadata.table_uuid),
        ids.SNAPSHOT_KEY: str(snapshot_id),
    }

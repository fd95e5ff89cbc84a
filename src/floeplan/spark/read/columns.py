"""The columns requested from Spark's Parquet reader, and the expressions that turn them into the table's columns.

Spark's reader resolves columns by field id, but it matches pushed filters by name, as it does any column whose name a
file has under another id. So a column is read under its own name only when no other column in the schema history had
that name; otherwise under a *substitute name* that no file has (``__f<id>``), and renamed afterwards. A nested
column of which a field was renamed, swapped or re-added is read with substitute names throughout and cast, which also
disables Spark's nested schema pruning: that prunes by name and returns NULL for renamed fields.

Fail-safe: when the metadata no longer has every schema of the table, the names in old files are unknown, and every
column is read under a substitute name. That costs row group skipping inside Spark, never a row.

Spark's pushed filters lose rows of floating-point columns (Parquet statistics ignore NaN, and -0.0 differs from 0.0
there), so these are wrapped in ``nanvl(f, f)``, which is never pushed down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyspark.sql import types as spark

from floeplan.spark.types import quoted, spark_type, sql_type

FIELD_ID = "parquet.field.id"
ROW_INDEX = "_tmp_metadata_row_index"
"""The internal column in which Spark's reader counts rows; ``_metadata.row_index`` copies it row by row."""
_FLOATING = (iceberg.FloatType, iceberg.DoubleType)
DEFAULTED = (iceberg.BooleanType, iceberg.IntegerType, iceberg.LongType, *_FLOATING, iceberg.StringType)
"""Types whose ``initial-default`` Spark's reader can fill in."""

_NESTED = (iceberg.StructType, iceberg.ListType, iceberg.MapType)
_RESERVED = ("_metadata", ROW_INDEX)
_UUID_PARTS = "(.{8})(.{4})(.{4})(.{4})(.{12})"


@dataclass(frozen=True)
class NameHistory:
    """The field ids of each column name over all schemas of a table, and over the schema of the scan."""

    metadata: TableMetadata
    scanned: Schema

    @cached_property
    def prefix(self) -> str:
        """The prefix of substitute names: no column of the history begins with it."""
        prefix = "__f"
        while any(part.startswith(prefix) for path in self._ids for part in path):
            prefix = "_" + prefix
        return prefix

    @cached_property
    def complete(self) -> bool:
        """Whether the metadata has every schema and every column that the table had."""
        schema_ids = {schema.schema_id for schema in self.metadata.schemas}
        known = self._names.keys()
        return schema_ids == set(range(max(schema_ids) + 1)) and max(known, default=0) >= self.metadata.last_column_id

    def needs_substitute(self, field: iceberg.NestedField) -> bool:
        """Whether a top-level column must be read under a substitute name."""
        if not self.complete or not field.name.isidentifier() or field.name.lower() in _RESERVED:
            return True
        inside = list(_walk(field, ()))
        # Two ids with one name: a pushed filter would compare the wrong column of older files.
        if any(len(self._ids[_folded(path)]) > 1 for path, _ in inside):
            return True
        nested = isinstance(field.field_type, _NESTED)
        # A renamed nested field would be pruned by name, and a nested float could be in a pushed filter.
        return nested and any(
            len(self._names[part.field_id]) > 1 or isinstance(part.field_type, _FLOATING) for _, part in inside
        )

    @cached_property
    def _fields(self) -> list[tuple[tuple[str, ...], iceberg.NestedField]]:
        schemas = [*self.metadata.schemas, self.scanned]
        return [found for schema in schemas for field in schema.fields for found in _walk(field, ())]

    @cached_property
    def _ids(self) -> dict[tuple[str, ...], set[int]]:
        found: dict[tuple[str, ...], set[int]] = {}
        for path, field in self._fields:
            found.setdefault(_folded(path), set()).add(field.field_id)
        return found

    @cached_property
    def _names(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for _, field in self._fields:
            found.setdefault(field.field_id, set()).add(field.name)
        return found


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """A top-level column: the field requested from Spark's reader, and the SQL expression of the table's column.

    The expression is never a bare column, which would carry the field id in its metadata to the user's DataFrame.
    """

    field: iceberg.NestedField
    requested: spark.StructField
    expression: str

    @staticmethod
    def of(field: iceberg.NestedField, history: NameHistory, *, default: bool = True) -> ReadColumn:
        """The column of a field; without ``default`` it is null in files that lack it, and the caller fills it in."""
        prefix = history.prefix if history.needs_substitute(field) else None
        metadata: dict[str, Any] = {FIELD_ID: field.field_id}
        if default and field.initial_default is not None:
            literal = _default_literal(field)
            metadata |= {"EXISTS_DEFAULT": literal, "CURRENT_DEFAULT": literal}
        name = field.name if prefix is None else f"{prefix}{field.field_id}"
        requested = spark.StructField(name, _requested_type(field.field_type, field.name, prefix), True, metadata)
        return ReadColumn(field, requested, _expression(field, quoted(name), prefix))


def _expression(field: iceberg.NestedField, read: str, prefix: str | None) -> str:
    match field.field_type:
        case iceberg.FloatType() | iceberg.DoubleType():
            return f"nanvl({read}, {read})"  # keeps filters on floats from being pushed down
        case iceberg.UUIDType():
            return f"regexp_replace(lower(hex({read})), '{_UUID_PARTS}', '$1-$2-$3-$4-$5')"
        case iceberg.StructType() | iceberg.ListType() | iceberg.MapType() if prefix is not None:
            return f"CAST({read} AS {sql_type(spark_type(field.field_type, field.name))})"
    return f"coalesce({read})"  # drops the field id; the optimizer removes it, so filters are still pushed down


def _requested_type(type_: iceberg.IcebergType, name: str, prefix: str | None) -> spark.DataType:
    """The type with field ids of nested fields; UUIDs as binary, the only type Spark reads them as."""
    match type_:
        case iceberg.StructType(fields=fields):
            requested = spark.StructType()
            for child in fields:
                child_type = _requested_type(child.field_type, f"{name}.{child.name}", prefix)
                child_name = child.name if prefix is None else f"{prefix}{child.field_id}"
                requested = requested.add(child_name, child_type, True, {FIELD_ID: child.field_id})
            return requested
        case iceberg.ListType(element_type=element):
            return spark.ArrayType(_requested_type(element, f"{name}.element", prefix))
        case iceberg.MapType(key_type=key, value_type=value):
            return spark.MapType(
                _requested_type(key, f"{name}.key", prefix), _requested_type(value, f"{name}.value", prefix)
            )
        case iceberg.UUIDType():
            return spark.BinaryType()
    return spark_type(type_, name)


def _default_literal(field: iceberg.NestedField) -> str:
    value = field.initial_default
    match field.field_type:
        case iceberg.StringType():
            return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
        case iceberg.BooleanType():
            return "true" if value else "false"
        case iceberg.FloatType() | iceberg.DoubleType():
            return f"{field.field_type}('{value!r}')"
    return f"{'BIGINT' if isinstance(field.field_type, iceberg.LongType) else 'INT'}('{value}')"


def walk(field: iceberg.NestedField) -> Iterator[iceberg.NestedField]:
    """A field and all fields nested in it."""
    return (inner for _, inner in _walk(field, ()))


def _walk(field: iceberg.NestedField, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], iceberg.NestedField]]:
    path = (*above, field.name)
    yield path, field
    match field.field_type:
        case iceberg.StructType(fields=fields):
            for child in fields:
                yield from _walk(child, path)
        case iceberg.ListType(element_field=element):
            yield from _walk(element, path)
        case iceberg.MapType(key_field=key, value_field=value):
            yield from _walk(key, path)
            yield from _walk(value, path)


def _folded(path: tuple[str, ...]) -> tuple[str, ...]:
    """Lowercased: Spark compares names case-insensitively."""
    return tuple(part.lower() for part in path)

"""The columns that Spark's Parquet reader is asked for, and how they become the columns of the table.

Spark finds columns by field id, but matches pushed filters, and any column whose name a file has under another id, by
name. So a column is read under its own name only when no other column of the table's history ever had it; otherwise
under a name that no file has (its *veil*), and given its name back afterwards. The same for nested columns of which
something was renamed, swapped or re-added: read under veils throughout and cast, which also keeps Spark from pruning
them by name.

Fail-safe: when the metadata no longer holds every schema the table had, nobody knows which names old files use, and
every column is veiled. That costs the skipping of row groups inside Spark, never a row.

Spark's pushed filters lose rows of floating-point columns (NaN is above all statistics, -0.0 apart from 0.0), so these
are wrapped in ``nanvl(f, f)``, which is never pushed.
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

from floeplan.spark.filters import quoted
from floeplan.spark.types import spark_type, sql_type

FIELD_ID = "parquet.field.id"
ROW_INDEX = "_tmp_metadata_row_index"
"""The name under which Spark's reader itself counts rows; ``_metadata.row_index`` is this, wrapped row by row."""
DEFAULTED = (
    iceberg.BooleanType,
    iceberg.IntegerType,
    iceberg.LongType,
    iceberg.FloatType,
    iceberg.DoubleType,
    iceberg.StringType,
)
"""Types whose initial default Spark's reader can fill in."""

_FLOATING = (iceberg.FloatType, iceberg.DoubleType)
_NESTED = (iceberg.StructType, iceberg.ListType, iceberg.MapType)
_TAKEN = ("_metadata", ROW_INDEX)
_UUID_PARTS = "(.{8})(.{4})(.{4})(.{4})(.{12})"


@dataclass(frozen=True)
class NameHistory:
    """Which ids had which name, over all schemas of a table."""

    metadata: TableMetadata
    shown: Schema

    @cached_property
    def prefix(self) -> str:
        """What veils begin with: no column was ever called so."""
        prefix = "__f"
        while any(part.startswith(prefix) for path in self._ids for part in path):
            prefix = "_" + prefix
        return prefix

    @cached_property
    def complete(self) -> bool:
        """Whether no schema and no column of the past is missing."""
        numbers = {schema.schema_id for schema in self.metadata.schemas}
        known = {field.field_id for schema in self._schemas for _, field in _walk_schema(schema)}
        return numbers == set(range(max(numbers) + 1)) and max(known, default=0) >= self.metadata.last_column_id

    def veiled(self, field: iceberg.NestedField) -> bool:
        """Whether a top-level column must be read under a veil."""
        if not self.complete or not field.name.isidentifier() or field.name.lower() in _TAKEN:
            return True
        inside = list(_walk(field, ()))
        if any(len(self._ids[_folded(path)]) > 1 for path, _ in inside):
            return True
        nested = isinstance(field.field_type, _NESTED)
        return nested and any(len(self._names[part.field_id]) > 1 or _is_floating(part) for _, part in inside)

    @property
    def _schemas(self) -> list[Schema]:
        return [*self.metadata.schemas, self.shown]

    @cached_property
    def _ids(self) -> dict[tuple[str, ...], set[int]]:
        found: dict[tuple[str, ...], set[int]] = {}
        for schema in self._schemas:
            for path, field in _walk_schema(schema):
                found.setdefault(_folded(path), set()).add(field.field_id)
        return found

    @cached_property
    def _names(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for schema in self._schemas:
            for _, field in _walk_schema(schema):
                found.setdefault(field.field_id, set()).add(field.name)
        return found


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """A top-level column: the field asked of Spark's reader, and the SQL expression that is the table's column.

    The expression is never a bare column: that would bring the field id along, which is no business of the rows' users.
    """

    field: iceberg.NestedField
    asked: spark.StructField
    shown: str

    @staticmethod
    def of(field: iceberg.NestedField, history: NameHistory, *, default: bool = True) -> ReadColumn:
        """Without ``default`` a file that lacks the column shows null: something else fills it in."""
        veil = history.prefix if history.veiled(field) else None
        metadata: dict[str, Any] = {FIELD_ID: field.field_id}
        if default and field.initial_default is not None:
            literal = _default_literal(field)
            metadata |= {"EXISTS_DEFAULT": literal, "CURRENT_DEFAULT": literal}
        name = field.name if veil is None else f"{veil}{field.field_id}"
        asked = spark.StructField(name, _asked_type(field.field_type, field.name, veil), True, metadata)
        return ReadColumn(field, asked, _shown(field, quoted(name), veil))


def _shown(field: iceberg.NestedField, read: str, veil: str | None) -> str:
    match field.field_type:
        case iceberg.FloatType() | iceberg.DoubleType():
            return f"nanvl({read}, {read})"
        case iceberg.UUIDType():
            return f"regexp_replace(lower(hex({read})), '{_UUID_PARTS}', '$1-$2-$3-$4-$5')"
        case iceberg.StructType() | iceberg.ListType() | iceberg.MapType() if veil is not None:
            return f"CAST({read} AS {sql_type(spark_type(field.field_type, field.name))})"
    return f"coalesce({read})"


def _asked_type(type_: iceberg.IcebergType, name: str, veil: str | None) -> spark.DataType:
    """The type with field ids in it; UUIDs as the bytes they are stored as."""
    match type_:
        case iceberg.StructType(fields=fields):
            return spark.StructType([_asked_child(child, name, veil) for child in fields])
        case iceberg.ListType(element_type=element):
            return spark.ArrayType(_asked_type(element, f"{name}.element", veil))
        case iceberg.MapType(key_type=key, value_type=value):
            return spark.MapType(_asked_type(key, f"{name}.key", veil), _asked_type(value, f"{name}.value", veil))
        case iceberg.UUIDType():
            return spark.BinaryType()
    return spark_type(type_, name)


def _asked_child(child: iceberg.NestedField, name: str, veil: str | None) -> spark.StructField:
    asked = child.name if veil is None else f"{veil}{child.field_id}"
    type_ = _asked_type(child.field_type, f"{name}.{child.name}", veil)
    return spark.StructField(asked, type_, True, {FIELD_ID: child.field_id})


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
    """A field and all within it."""
    return (inner for _, inner in _walk(field, ()))


def _walk_schema(schema: Schema) -> Iterator[tuple[tuple[str, ...], iceberg.NestedField]]:
    for field in schema.fields:
        yield from _walk(field, ())


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
    """Spark compares names without regard to case."""
    return tuple(part.lower() for part in path)


def _is_floating(field: iceberg.NestedField) -> bool:
    return isinstance(field.field_type, _FLOATING)

"""``WriteTarget``: everything a task needs to write files of a table.

A target is a picklable value without connections; it never loads the table again. Its spec may be any spec of the
table, so that rows can be written in an older one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast
from urllib.parse import quote_plus

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionKey as PyIcebergPartitionKey
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import NestedField, StructType, UnknownType, UUIDType

from floeplan.metadata.files import TableFiles, TableLocations
from floeplan.partition.fields import BoundField
from floeplan.partition.key import PartitionKey
from floeplan.partition.union import SpecProjection, UnionPartitionType
from floeplan.predicate.literals import Value
from floeplan.scan.projection import arrow_schema
from floeplan.write.options import MetricsModes, WriteOptions


@dataclass(frozen=True)
class WriteTarget:
    """The schema, spec, properties, location and FileIO that files are written with.

    Attributes:
        schema: The schema rows are written in.
        spec_id: The spec data files are partitioned by.
        sort_order: The table's sort order.
        union: The partition fields of all specs.
        properties: The table's properties.
        location: The table's location.
        format_version: 1, 2 or 3.
        io: The table's FileIO.
        operation_id: Part of every file name, which identifies the files of one operation.
    """

    schema: Schema
    spec_id: int
    sort_order: SortOrder
    union: UnionPartitionType
    properties: Mapping[str, str]
    location: str
    format_version: int
    io: FileIO
    operation_id: str

    @classmethod
    def of(
        cls,
        table: Table,
        *,
        spec_id: int | None = None,
        schema: Schema | None = None,
        operation_id: str | None = None,
    ) -> WriteTarget:
        """The target for a table, with its current schema and default spec unless others are given."""
        metadata = table.metadata
        target = cls(
            schema=schema or metadata.schema(),
            spec_id=metadata.default_spec_id if spec_id is None else spec_id,
            sort_order=metadata.sort_order(),
            union=UnionPartitionType.of_table(metadata),
            properties=dict(metadata.properties),
            location=metadata.location,
            format_version=metadata.format_version,
            io=table.io,
            operation_id=operation_id or str(uuid.uuid4()),
        )
        # Unknown specs and invalid properties raise here, before a task starts.
        _ = target.spec, target.options, target.metrics_modes
        return target

    @property
    def spec(self) -> SpecProjection:
        """The spec data files are partitioned by."""
        return self.union.spec(self.spec_id)

    @cached_property
    def options(self) -> WriteOptions:
        """The write options from the table's properties."""
        return WriteOptions.from_properties(self.properties)

    @cached_property
    def delete_options(self) -> WriteOptions:
        """The write options of delete files; they default to those of data files."""
        prefix = "write.delete.parquet."
        own = {
            name.replace(prefix, "write.parquet."): v for name, v in self.properties.items() if name.startswith(prefix)
        }
        return replace(WriteOptions.from_properties({**self.properties, **own}), bloom={})

    @cached_property
    def metrics_modes(self) -> MetricsModes:
        """The metrics modes from the table's properties."""
        return MetricsModes.from_properties(self.properties, self.schema, self.sort_order)

    @cached_property
    def stored_schema(self) -> Schema:
        """The schema without columns of unknown type, which files do not store; the schema itself if it has none."""
        if not _has_unknown(self.schema.fields):
            return self.schema
        return Schema(*_stored(self.schema.fields), schema_id=self.schema.schema_id)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of data files, with field ids in the metadata."""
        return arrow_schema(self.stored_schema)

    def new_location(self, name: str, partition: PartitionKey | None = None) -> str:
        """The location of a new file by the table's location provider; the partition may be of any spec."""
        provider = load_location_provider(self.location, dict(self.properties))
        if partition is None or not partition.partition:
            return provider.new_data_location(name)
        path = _PartitionPath(partition_path(self.union.spec(partition.spec_id).fields, partition.partition))
        return provider.new_data_location(name, cast(PyIcebergPartitionKey, path))

    def file_name(self, token: str) -> str:
        """The prefix of the file names of one attempt; every call returns a new one."""
        return f"{token}-{uuid.uuid4().hex[:12]}-{self.operation_id}"

    @cached_property
    def files(self) -> TableFiles:
        """The table's files, used to remove those of failed attempts."""
        return TableFiles(TableLocations.named(self.location, self.properties), self.io)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle only the fields; cached properties are derived again."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class _PartitionPath:
    """The part of PyIceberg's PartitionKey that a location provider uses."""

    path: str

    def to_path(self) -> str:
        return self.path


def partition_path(fields: tuple[BoundField, ...], values: tuple[Value | None, ...]) -> str:
    """``name=value/…`` in the human-readable form of each transform, URL-encoded as by Iceberg Java."""
    pairs = zip(fields, values, strict=True)
    return "/".join(f"{_escaped(field.column.path[0])}={_escaped(_readable(field, value))}" for field, value in pairs)


def _escaped(text: str) -> str:
    return quote_plus(text, safe="*").replace("~", "%7E")


def _readable(field: BoundField, value: Value | None) -> str:
    """A human-readable partition value; a date outside of Python's calendar stays a number."""
    if value is None:
        return "null"
    if isinstance(field.column.type, UUIDType) and isinstance(value, bytes):
        return str(uuid.UUID(bytes=value))
    try:
        return field.transform.to_human_string(field.column.type, value)
    except (OverflowError, ValueError):
        return str(value)


def _stored(fields: tuple[NestedField, ...]) -> list[NestedField]:
    kept = []
    for field in fields:
        match field.field_type:
            case UnknownType():
                continue
            case StructType(fields=inner) if _has_unknown(inner):
                kept.append(field.model_copy(update={"field_type": StructType(*_stored(inner))}))
            case _:
                kept.append(field)
    return kept


def _has_unknown(fields: tuple[NestedField, ...]) -> bool:
    types = [field.field_type for field in fields]
    return any(isinstance(t, UnknownType) or (isinstance(t, StructType) and _has_unknown(t.fields)) for t in types)

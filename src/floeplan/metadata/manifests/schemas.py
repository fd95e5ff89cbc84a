"""The Avro schemas of manifests and manifest lists, formats 1, 2 and 3, with the field ids of the specification.

Rule: fields, ids, order and optionality are those Iceberg Java writes. PyIceberg's converter makes Avro of them
(sanitised names, logical types, decimals and UUIDs as fixed), and ``_readable`` adapts it to what readers can read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from floeplan.errors import UnsupportedError

FORMAT_VERSIONS = (1, 2, 3)

_INT, _LONG, _TEXT, _BYTES, _FLAG = IntegerType(), LongType(), StringType(), BinaryType(), BooleanType()


@dataclass(frozen=True, slots=True)
class Layout:
    """The schema of a file as Avro and as Iceberg writes it, both as JSON text."""

    avro: str
    iceberg: str

    @classmethod
    def of(cls, schema: Schema, name: str) -> Layout:
        """With the Avro record of this name."""
        avro = _readable(AvroSchemaConversion().iceberg_to_avro(schema, name), set())
        return cls(json.dumps(avro, separators=(",", ":")), schema.model_dump_json())


@lru_cache(maxsize=256)
def entry_layout(version: int, partition: StructType) -> Layout:
    """Of manifests whose partition tuples have these fields."""
    _check(version)
    entry = [_required(0, "status", _INT), _optional(1, "snapshot_id", _LONG)]
    if version > 1:
        entry += [_optional(3, "sequence_number", _LONG), _optional(4, "file_sequence_number", _LONG)]
    entry.append(_required(2, "data_file", StructType(*_data_file(version, partition))))
    return Layout.of(Schema(*entry), "manifest_entry")


@lru_cache
def list_layout(version: int) -> Layout:
    """Of manifest lists."""
    _check(version)
    counted = _optional if version == 1 else _required
    summary = StructType(
        _required(509, "contains_null", _FLAG),
        _optional(518, "contains_nan", _FLAG),
        _optional(510, "lower_bound", _BYTES),
        _optional(511, "upper_bound", _BYTES),
    )
    head = [_required(500, "manifest_path", _TEXT), _required(501, "manifest_length", _LONG)]
    head.append(_required(502, "partition_spec_id", _INT))
    if version > 1:
        head += [_required(517, "content", _INT), _required(515, "sequence_number", _LONG)]
        head.append(_required(516, "min_sequence_number", _LONG))
    head.append(_required(503, "added_snapshot_id", _LONG))
    files = [
        counted(504, "added_files_count", _INT),
        counted(505, "existing_files_count", _INT),
        counted(506, "deleted_files_count", _INT),
    ]
    rows = [
        counted(512, "added_rows_count", _LONG),
        counted(513, "existing_rows_count", _LONG),
        counted(514, "deleted_rows_count", _LONG),
    ]
    partitions = [_optional(507, "partitions", ListType(508, summary, element_required=True))]
    counts = [*files, *partitions, *rows] if version == 1 else [*files, *rows, *partitions]
    tail = [_optional(519, "key_metadata", _BYTES)]
    if version > 2:
        tail.append(_optional(520, "first_row_id", _LONG))
    return Layout.of(Schema(*head, *counts, *tail), "manifest_file")


def _data_file(version: int, partition: StructType) -> Iterable[NestedField]:
    if version > 1:
        yield _required(134, "content", _INT)
    yield _required(100, "file_path", _TEXT)
    yield _required(101, "file_format", _TEXT)
    yield _required(102, "partition", partition)
    yield _required(103, "record_count", _LONG)
    yield _required(104, "file_size_in_bytes", _LONG)
    if version == 1:
        yield _required(105, "block_size_in_bytes", _LONG)
    yield _optional(108, "column_sizes", _map(117, 118, _LONG))
    yield _optional(109, "value_counts", _map(119, 120, _LONG))
    yield _optional(110, "null_value_counts", _map(121, 122, _LONG))
    yield _optional(137, "nan_value_counts", _map(138, 139, _LONG))
    yield _optional(125, "lower_bounds", _map(126, 127, _BYTES))
    yield _optional(128, "upper_bounds", _map(129, 130, _BYTES))
    yield _optional(131, "key_metadata", _BYTES)
    yield _optional(132, "split_offsets", ListType(133, _LONG, element_required=True))
    if version > 1:
        yield _optional(135, "equality_ids", ListType(136, _INT, element_required=True))
    yield _optional(140, "sort_order_id", _INT)
    if version > 2:
        yield _optional(142, "first_row_id", _LONG)
    if version > 1:
        yield _optional(143, "referenced_data_file", _TEXT)
    if version > 2:
        yield _optional(144, "content_offset", _LONG)
        yield _optional(145, "content_size_in_bytes", _LONG)


def _required(field_id: int, name: str, type_: IcebergType) -> NestedField:
    return NestedField(field_id, name, type_, required=True)


def _optional(field_id: int, name: str, type_: IcebergType) -> NestedField:
    return NestedField(field_id, name, type_, required=False)


def _map(key_id: int, value_id: int, value: IcebergType) -> MapType:
    return MapType(key_id, _INT, value_id, value, value_required=True)


def _readable(avro: Any, known: set[str]) -> Any:
    """The same schema in a form that every reader takes.

    - A type that is defined again gets another name: Avro allows one definition, and PyIceberg follows no references.
    - Values of fixed length are bytes: Iceberg Java reads and writes them with a length although the schema says fixed.
    - There is no union of null and null.
    """
    if isinstance(avro, list):
        branches = [_readable(branch, known) for branch in avro]
        return "null" if branches == ["null", "null"] else branches
    if not isinstance(avro, dict):
        return avro
    if avro.get("type") == "fixed" and "logicalType" not in avro:
        return "bytes"
    if avro.get("type") == "fixed":
        name = avro["name"] if avro["name"] not in known else f"{avro['name']}_{len(known)}"
        known.add(name)
        return {**avro, "name": name}
    return {key: _readable(part, known) for key, part in avro.items()}


def _check(version: int) -> None:
    if version not in FORMAT_VERSIONS:
        raise UnsupportedError(
            f"cannot write manifests of format version {version}; known are 1, 2 and 3",
            context={"format_version": version},
        )

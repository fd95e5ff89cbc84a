"""The schemas of manifests and manifest lists, formats 1 to 4, with the field ids of the specification.

Rule: fields, ids, order and optionality are those Iceberg Java writes. PyIceberg has the fields and converts them to
Avro (sanitised names, logical types, decimals and UUIDs as fixed); this module corrects what differs from Java and what
not every reader can read. Format 4 has the fields of format 3; its manifests are Parquet files, its lists are Avro.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pyiceberg.manifest import DATA_FILE_TYPE, MANIFEST_LIST_FILE_SCHEMAS
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, StructType, UnknownType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from floeplan.errors import UnsupportedError
from floeplan.format4 import FORMAT

FORMAT_VERSIONS = (1, 2, 3, 4)
_LATEST_FIELDS = 3
"""The latest format that added fields."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The schema of a file, and the same as Avro and as Iceberg writes it, both as JSON text."""

    schema: Schema
    avro: str
    iceberg: str

    @classmethod
    def of(cls, fields: Iterable[NestedField], name: str) -> Layout:
        """With the Avro record of this name."""
        schema = Schema(*fields)
        avro = _readable(AvroSchemaConversion().iceberg_to_avro(schema, name), set())
        return cls(schema, json.dumps(avro, separators=(",", ":")), schema.model_dump_json())


@lru_cache(maxsize=256)
def entry_layout(version: int, partition: StructType) -> Layout:
    """Of manifests whose partition tuples have these fields."""
    _check(version)
    data_file = {field.field_id: field for field in DATA_FILE_TYPE[min(version, _LATEST_FIELDS)].fields}
    data_file[102] = NestedField(102, "partition", partition, required=True)
    if version >= FORMAT:
        # Parquet has neither columns of unknown type nor empty groups; Iceberg Java leaves both out.
        known = [field for field in partition.fields if not isinstance(field.field_type, UnknownType)]
        data_file[102] = NestedField(102, "partition", StructType(*known), required=True)
        if not known:
            del data_file[102]
    if version > 1:
        # PyIceberg has equality ids as long, and the referenced data file in format 3 only.
        ids = ListType(136, IntegerType(), element_required=True)
        data_file[135] = NestedField(135, "equality_ids", ids, required=False)
        data_file[143] = NestedField(143, "referenced_data_file", StringType(), required=False)
    entry = [
        NestedField(0, "status", IntegerType(), required=True),
        NestedField(1, "snapshot_id", LongType(), required=False),
    ]
    if version > 1:
        entry.append(NestedField(3, "sequence_number", LongType(), required=False))
        entry.append(NestedField(4, "file_sequence_number", LongType(), required=False))
    entry.append(NestedField(2, "data_file", StructType(*map(_without_doc, data_file.values())), required=True))
    return Layout.of(entry, "manifest_entry")


@lru_cache
def list_layout(version: int) -> Layout:
    """Of manifest lists."""
    _check(version)
    listed = MANIFEST_LIST_FILE_SCHEMAS[min(version, _LATEST_FIELDS)]
    fields = {field.field_id: _without_doc(field) for field in listed.fields}
    if version == 1:
        # Java has the partition summaries before the row counts, PyIceberg after them.
        fields |= {field_id: fields.pop(field_id) for field_id in (507, 512, 513, 514, 519)}
    return Layout.of(fields.values(), "manifest_file")


def _check(version: int) -> None:
    if version not in FORMAT_VERSIONS:
        raise UnsupportedError(
            f"cannot write manifests of format version {version}; supported are 1 to 4",
            context={"format_version": version},
        )


def _without_doc(field: NestedField) -> NestedField:
    """Documentation would be most of a small manifest: every file repeats it twice."""
    type_ = field.field_type
    if isinstance(type_, ListType) and isinstance(type_.element_type, StructType):
        element = StructType(*map(_without_doc, type_.element_type.fields))
        type_ = ListType(type_.element_id, element, element_required=type_.element_required)
    return NestedField(field.field_id, field.name, type_, required=field.required)


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

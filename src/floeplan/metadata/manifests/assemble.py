"""Turns decoded columns into the columns of an ``EntriesTable``, with inheritance applied.

Rule: every requested column is present, null where no manifest has it. Inheritance follows the Iceberg specification
("Sequence Number Inheritance", "First Row ID Inheritance"):

- ``snapshot_id``: the manifest's where it is null.
- ``sequence_number``: the manifest's where it is null and the status is ADDED, or where the manifest's is 0 (written
  by format 1). Null on any other entry is an error: the data sequence number decides which deletes apply.
- ``file_sequence_number``: likewise, but older writers did not write it, so it may stay null.
- ``first_row_id``: in data manifests that have one, each live file without one gets the next free id, counted over
  the rows of such files before it. Without a first row id of the manifest there is none.

Fail-safe: a missing required value (status, path), text that is not UTF-8, or a partition value that does not fit its
type is an error: read as null it would be pruned as null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    PrimitiveType,
    StringType,
    UnknownType,
    UUIDType,
)
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from floeplan import arrow_compute as pc
from floeplan.errors import CorruptMetadataError
from floeplan.metadata.avro.decoder import RawColumn
from floeplan.metadata.avro.program import Kind
from floeplan.metadata.manifests.entries import (
    ENTRY_TYPES,
    NAN_COUNT,
    NEEDED,
    Content,
    EntriesTable,
    EntryColumns,
    Origin,
    Status,
    partition_column,
)
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.metadata.manifests.values import (
    as_text,
    big_endian_decimals,
    lengths,
    list_array,
    number_array,
    partition_arrow_type,
)
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import POOL
from floeplan.vectors import Ints, Mask, all_set, valid_mask


class DecodedManifests(NamedTuple):
    """The columns of some manifests, one after the other.

    Attributes:
        columns: By name.
        positions: Which of all the manifests these are.
        counts: The number of entries of each.
    """

    columns: Mapping[str, RawColumn]
    positions: list[int]
    counts: list[int]


def assemble(
    raw: Mapping[str, RawColumn], origin: Origin, partition: UnionPartitionType, columns: EntryColumns
) -> EntriesTable:
    """Build the table of entries."""
    made = _Columns(raw, origin)
    status, has_status = made.numbers("status")
    made.require("status", has_status & (status >= 0) & (status <= 2))
    made.done |= origin.columns(status)
    made.put("status", status)
    made.inherit(status, columns.names | NEEDED)

    # The file itself; format 1 has no content, and has data files only.
    content, has_content = made.numbers("content")
    content = np.where(has_content, content, Content.DATA)
    made.require("content", (content >= 0) & (content <= 2))
    made.put("content", content)
    made.done["file_path"] = made.text("file_path", required=True)
    formats = made.text("file_format")
    data = formats.buffers()[2]
    letters = np.frombuffer(data, dtype=np.uint8) if data else np.zeros(0, dtype=np.uint8)
    made.done["file_format"] = formats if letters.max(initial=0) <= ord("Z") else pc.utf8_upper(formats)
    for name in ("record_count", "file_size_in_bytes"):
        values, valid = made.numbers(name)
        made.put(name, values if all_set(valid) else np.where(valid, values, -1))
    for name in ("sort_order_id", "content_offset", "content_size_in_bytes"):
        if name in columns.names:
            made.put(name, *made.numbers(name))
    for name in ("split_offsets", "equality_ids"):
        if name in columns.names:
            items = raw.get(f"{name}[]")
            made.done[name] = made.listed(name, None if items is None else items.to_arrow())
    if "referenced_data_file" in columns.names:
        made.done["referenced_data_file"] = made.text("referenced_data_file")
    if "key_metadata" in columns.names:
        made.done["key_metadata"] = made.binary("key_metadata")

    types = {}
    for field in partition.fields if columns.partition else ():
        name, type_ = partition_column(field.id), field.bound.column.type
        if isinstance(type_, UnknownType) and name in raw:
            # The source column was dropped: only the manifest's schema still has its type.
            type_ = _primitive(raw[name].stored_type)
        types[field.id] = type_
        made.done[name] = made.partition_values(name, field.name, type_)

    for name in columns.maps:
        made.done[name] = made.map(name)
    for field_id in sorted(columns.stats):
        for side in ("lower", "upper"):
            made.done[f"{side}.{field_id}"] = made.binary(f"{side}.{field_id}")
        for count in ("null_count", "nan_count", "value_count"):
            made.put(f"{count}.{field_id}", *made.numbers(f"{count}.{field_id}"))
    for field_id in sorted(columns.nan_counts - columns.stats):
        made.put(f"{NAN_COUNT}.{field_id}", *made.numbers(f"{NAN_COUNT}.{field_id}"))
    for field_id in sorted(columns.sizes):
        made.put(f"column_size.{field_id}", *made.numbers(f"column_size.{field_id}"))
    return EntriesTable(pa.Table.from_arrays(list(made.done.values()), names=list(made.done)), types)


class _Columns:
    """The decoded columns of entries, and the columns made of them so far."""

    def __init__(self, raw: Mapping[str, RawColumn], origin: Origin) -> None:
        self.raw = raw
        self.origin = origin
        self.done: dict[str, pa.Array] = {}

    def inherit(self, status: Ints, names: frozenset[str]) -> None:
        """The columns that entries inherit from their manifest where they are null."""
        manifests, manifest = self.origin.manifests, self.origin.manifest
        for name in ("sequence_number", "file_sequence_number"):
            if name not in names:
                continue
            values, valid = self.numbers(name)
            if not all_set(valid):
                inherited = manifests.sequence_number[manifest]
                inherits = ~valid & ((inherited == 0) | (status == Status.ADDED))
                values, valid = np.where(inherits, inherited, values), valid | inherits
            if name == "sequence_number" and not all_set(valid):
                path = self._path_at(int(np.argmin(valid)))
                raise CorruptMetadataError(
                    f"{path} has {int(np.count_nonzero(~valid))} EXISTING or DELETED entries without a sequence number",
                    context={"file": path},
                )
            self.put(name, values, valid)
        if "snapshot_id" in names:
            values, valid = self.numbers("snapshot_id")
            if not all_set(valid):
                inherited = manifests.added_snapshot_id[manifest]
                values, valid = np.where(valid, values, inherited), valid | (inherited >= 0)
            self.put("snapshot_id", values, valid)
        if "first_row_id" in names:
            values, valid = self.numbers("first_row_id")
            start = np.where(manifests.content == DATA, manifests.first_row_id, -1)[manifest]
            assigned = start >= 0
            if not assigned.any():
                valid = assigned
            else:
                takes = assigned & ~valid & (status != Status.DELETED)
                rows = np.where(takes, self.numbers("record_count")[0], 0)
                before = np.cumsum(rows) - rows
                values = np.where(takes, start + before - before[self.origin.first_entry], values)
                valid = assigned & (valid | takes)
            self.put("first_row_id", values, valid)

    def numbers(self, name: str) -> tuple[Ints, Mask]:
        column = self.raw.get(name)
        if column is None:
            return np.zeros(len(self.origin), dtype=np.int64), np.zeros(len(self.origin), dtype=np.bool_)
        return column.values.astype(np.int64, copy=False), column.valid

    def put(self, name: str, values: npt.NDArray[np.generic], valid: Mask | None = None) -> None:
        dtype = ENTRY_TYPES[name].to_pandas_dtype() if name in ENTRY_TYPES else np.int64
        self.done[name] = number_array(values.astype(dtype, copy=False), valid)

    def require(self, name: str, valid: Mask) -> None:
        if not all_set(valid):
            path = self._path_at(int(np.argmin(valid)))
            raise CorruptMetadataError(
                f"{path} has an entry whose {name} is missing or invalid", context={"file": path, "field": name}
            )

    def _path_at(self, row: int) -> str:
        return str(self.origin.manifests.path[int(self.origin.manifest[row])].as_py())

    def _nulls(self, type_: pa.DataType) -> pa.Array:
        return pa.nulls(len(self.origin), type_, memory_pool=POOL)

    def binary(self, name: str) -> pa.Array:
        column = self.raw.get(name)
        return self._nulls(pa.large_binary()) if column is None else column.to_arrow()

    def text(self, name: str, *, required: bool = False) -> pa.Array:
        if name not in self.raw:
            return self._nulls(pa.large_string())
        if required:
            self.require(name, self.raw[name].valid)
        return _utf8(name, self.raw[name].to_arrow())

    def listed(self, name: str, items: pa.Array | None) -> pa.Array:
        """A list column of these items; the column of the list's name has the number of items of each entry."""
        type_ = ENTRY_TYPES[name]
        if items is None:
            return self._nulls(type_)
        return list_array(type_, *self.numbers(name), items)

    def map(self, name: str) -> pa.Array:
        """Keys and values in the order they were written."""
        keys, values = self.raw.get(f"{name}.key"), self.raw.get(f"{name}.value")
        if keys is None or values is None:
            return self.listed(name, None)
        try:
            small = keys.to_arrow().cast(pa.int32())
        except pa.ArrowInvalid as error:
            raise CorruptMetadataError(f"a manifest has an invalid field id in {name}") from error
        type_ = ENTRY_TYPES[name].value_type
        return self.listed(name, pa.StructArray.from_arrays([small, values.to_arrow()], type=type_))

    def partition_values(self, name: str, field: str, type_: PrimitiveType) -> pa.Array:
        """The column of a partition field, checked against its type."""
        raw = self.raw.get(name)
        if raw is None:
            return self._nulls(partition_arrow_type(type_))
        kind = Kind.INT
        if isinstance(type_, FloatType | DoubleType):
            kind = Kind.FLOAT
        elif isinstance(type_, StringType | BinaryType | FixedType | UUIDType | DecimalType):
            kind = Kind.BYTES
        if raw.kind is not kind:
            raise CorruptMetadataError(
                f"the manifests store partition field {field!r} with a type that does not fit {type_}",
                context={"partition_field": field, "type": str(type_)},
            )
        values = raw.to_arrow()
        match type_:
            case StringType():
                return _utf8(f"value of partition field {field!r}", values)
            case DecimalType():
                numbers = big_endian_decimals(type_, values)
                self.require(f"partition field {field!r}", valid_mask(values) == valid_mask(numbers))
                return numbers
            case UUIDType() | FixedType():
                size = 16 if isinstance(type_, UUIDType) else len(type_)
                self.require(f"partition field {field!r}", ~raw.valid | (lengths(values) == size))
        return values


def _utf8(name: str, raw: pa.Array) -> pa.Array:
    try:
        return as_text(raw)
    except pa.ArrowInvalid as error:
        raise CorruptMetadataError(f"a manifest has a {name} that is not UTF-8", context={"field": name}) from error


def _primitive(stored_type: object) -> PrimitiveType:
    """The Iceberg type of an Avro or Arrow one, or ``UnknownType``."""
    record = {"type": "record", "name": "r", "fields": [{"name": "v", "type": stored_type, "field-id": 1}]}
    try:
        if isinstance(stored_type, pa.DataType):
            from pyiceberg.io.pyarrow import pyarrow_to_schema  # late: slow, and few tables need it

            column = pa.field("v", stored_type, metadata={"PARQUET:field_id": "1"})
            converted = pyarrow_to_schema(pa.schema([column]), format_version=3).fields[0].field_type
        else:
            converted = AvroSchemaConversion().avro_to_iceberg(record).fields[0].field_type
    except (ValueError, TypeError, KeyError):
        return UnknownType()
    return converted if isinstance(converted, PrimitiveType) else UnknownType()

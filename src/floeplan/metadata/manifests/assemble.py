"""Turns decoded columns into the columns of an ``EntriesTable``, with inheritance applied.

Rule: every requested column is present, null where no manifest has it. Fail-safe: a missing required value (status,
path), text that is not UTF-8, or a partition value that does not fit its type is an error: read as null it would be
pruned as null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
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

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.avro.decoder import RawColumn
from floeplan.metadata.avro.program import Kind
from floeplan.metadata.manifests.bounds import as_text, big_endian_decimals, lengths
from floeplan.metadata.manifests.entries import Content, EntriesTable, EntryColumns, Status, partition_column
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable
from floeplan.partition.union import UnionField, UnionPartitionType
from floeplan.predicate.stats import POOL
from floeplan.vectors import Ints, Mask, all_set, validity_bitmap

# Inheritance (Iceberg specification, "Sequence Number Inheritance" and "First Row ID Inheritance"):
#
# - ``snapshot_id``: the manifest's where it is null.
# - ``sequence_number``: the manifest's where it is null and the status is ADDED, or where the manifest's is 0 (written
#   by format 1). Null on any other entry is an error: the data sequence number decides which deletes apply.
# - ``file_sequence_number``: likewise, but older writers did not write it, so it may stay null.
# - ``first_row_id``: in data manifests that have one, each live file without one gets the next free id, counted over
#   the rows of such files before it. Without a first row id of the manifest there is none.

Nullable = tuple[Ints, Mask]
"""Values and where they are valid."""


def inherit_snapshot_id(own: Nullable, manifests: ManifestListTable, manifest: Ints) -> Nullable:
    """Snapshot that added or removed the file."""
    values, valid = own
    inherited = manifests.added_snapshot_id[manifest]
    return np.where(valid, values, inherited), valid | (inherited >= 0)


def inherit_sequence_number(own: Nullable, status: Ints, manifests: ManifestListTable, manifest: Ints) -> Nullable:
    """Data or file sequence number."""
    values, valid = own
    if all_set(valid):
        return own
    inherited = manifests.sequence_number[manifest]
    inherits = ~valid & ((inherited == 0) | (status == Status.ADDED))
    return np.where(inherits, inherited, values), valid | inherits


def check_sequence_numbers(valid: Mask, manifests: ManifestListTable, manifest: Ints) -> None:
    """Refuse entries that have no data sequence number and may not inherit one."""
    if all_set(valid):
        return
    path = manifests.path[int(manifest[np.argmin(valid)])].as_py()
    raise CorruptMetadataError(
        f"{path} has {int(np.count_nonzero(~valid))} entries of files that it did not add and that have no sequence "
        "number",
        context={"file": path},
    )


def inherit_first_row_id(
    own: Nullable, status: Ints, record_count: Ints, manifests: ManifestListTable, manifest: Ints, first_entry: Ints
) -> Nullable:
    """Id of the first row of each data file; ``first_entry`` is the row of the first entry of the same manifest."""
    values, valid = own
    start = np.where(manifests.content == DATA, manifests.first_row_id, -1)[manifest]
    assigned = start >= 0
    if not assigned.any():
        return values, np.zeros_like(valid)
    takes = assigned & ~valid & (status != Status.DELETED)
    rows = np.where(takes, record_count, 0)
    before = np.cumsum(rows) - rows
    return np.where(takes, start + before - before[first_entry], values), assigned & (valid | takes)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where each entry comes from: its row of the manifest list, and the row of the first entry of that manifest."""

    manifests: ManifestListTable
    manifest: Ints
    first_entry: Ints

    @classmethod
    def of(cls, manifests: ManifestListTable, rows: Ints, counts: Ints) -> Origin:
        """From the manifests that were read and the number of entries of each."""
        return cls(manifests, np.repeat(rows, counts), np.repeat(np.cumsum(counts) - counts, counts))

    def __len__(self) -> int:
        return len(self.manifest)

    def path_at(self, row: int) -> str:
        """The manifest of an entry, for messages."""
        return str(self.manifests.path[int(self.manifest[row])].as_py())


def assemble(
    raw: Mapping[str, RawColumn], origin: Origin, partition: UnionPartitionType, columns: EntryColumns
) -> EntriesTable:
    """Build the table of entries."""
    made = _Columns(raw, origin, columns)
    made.identity()
    made.inherited()
    made.files()
    types = made.partition(partition) if columns.partition else {}
    made.statistics()
    return EntriesTable(pa.Table.from_arrays(list(made.done.values()), names=list(made.done)), types)


class _Columns:
    def __init__(self, raw: Mapping[str, RawColumn], origin: Origin, columns: EntryColumns) -> None:
        self.raw = raw
        self.origin = origin
        self.columns = columns
        self.done: dict[str, pa.Array] = {}

    def identity(self) -> None:
        manifest = self.origin.manifest
        self._put("manifest", manifest, None, np.int32)
        self._put("ordinal", np.arange(len(manifest)) - self.origin.first_entry, None, np.int32)
        self._put("spec_id", self.origin.manifests.spec_id[manifest], None, np.int32)

    def inherited(self) -> None:
        manifests, manifest = self.origin.manifests, self.origin.manifest
        status, has_status = self._numbers("status")
        self._require("status", has_status & (status >= 0) & (status <= 2))
        sequence = inherit_sequence_number(self._numbers("sequence_number"), status, manifests, manifest)
        check_sequence_numbers(sequence[1], manifests, manifest)
        self._put("status", status, None, np.int8)
        self._put("sequence_number", sequence[0], None, np.int64)
        if "file_sequence_number" in self.columns.names:
            own = self._numbers("file_sequence_number")
            self._put("file_sequence_number", *inherit_sequence_number(own, status, manifests, manifest), np.int64)
        if "snapshot_id" in self.columns.names:
            own = self._numbers("snapshot_id")
            self._put("snapshot_id", *inherit_snapshot_id(own, manifests, manifest), np.int64)
        if "first_row_id" in self.columns.names:
            records = self._numbers("record_count")[0]
            own = self._numbers("first_row_id")
            row_id = inherit_first_row_id(own, status, records, manifests, manifest, self.origin.first_entry)
            self._put("first_row_id", *row_id, np.int64)

    def files(self) -> None:
        content, has_content = self._numbers("content")
        content = np.where(has_content, content, Content.DATA)
        self._require("content", (content >= 0) & (content <= 2))
        self._put("content", content, None, np.int8)
        self.done["file_path"] = self._text("file_path", required=True)
        self.done["file_format"] = _upper_case(self._text("file_format", required=False))
        for name in ("record_count", "file_size_in_bytes"):
            values, valid = self._numbers(name)
            self._put(name, np.where(valid, values, -1), None, np.int64)
        names = self.columns.names
        for name in ("sort_order_id", "content_offset", "content_size_in_bytes"):
            if name in names:
                self._put(name, *self._numbers(name), np.int64)
        for name in ("split_offsets", "equality_ids"):
            if name in names:
                self.done[name] = self._list(name)
        if "referenced_data_file" in names:
            self.done["referenced_data_file"] = self._text("referenced_data_file", required=False)
        if "key_metadata" in names:
            self.done["key_metadata"] = self._bytes("key_metadata")

    def partition(self, partition: UnionPartitionType) -> dict[int, PrimitiveType]:
        types = {}
        for field in partition.fields:
            raw = self.raw.get(partition_column(field.id))
            type_ = field.bound.column.type
            if isinstance(type_, UnknownType) and raw is not None:
                type_ = avro_primitive(raw.avro_type)
            types[field.id] = type_
            self.done[partition_column(field.id)] = self._partition_values(field, type_, raw)
        return types

    def statistics(self) -> None:
        for name in self.columns.maps:
            self.done[name] = self._map(name)
        for field_id in sorted(self.columns.stats):
            for side in ("lower", "upper"):
                self.done[f"{side}.{field_id}"] = self._bytes(f"{side}.{field_id}")
            for count in ("null_count", "nan_count", "value_count"):
                self._put(f"{count}.{field_id}", *self._numbers(f"{count}.{field_id}"), np.int64)
        for field_id in sorted(self.columns.sizes):
            self._put(f"column_size.{field_id}", *self._numbers(f"column_size.{field_id}"), np.int64)

    def _numbers(self, name: str) -> tuple[Ints, Mask]:
        column = self.raw.get(name)
        if column is None:
            return np.zeros(len(self.origin), dtype=np.int64), np.zeros(len(self.origin), dtype=np.bool_)
        return column.values.astype(np.int64, copy=False), column.valid

    def _put(self, name: str, values: npt.NDArray[np.generic], valid: Mask | None, dtype: type[np.generic]) -> None:
        self.done[name] = number_array(values.astype(dtype, copy=False), valid)

    def _require(self, name: str, valid: Mask) -> None:
        if not all_set(valid):
            path = self.origin.path_at(int(np.argmin(valid)))
            raise CorruptMetadataError(
                f"{path} has an entry whose {name} is missing or invalid", context={"file": path, "field": name}
            )

    def _text(self, name: str, *, required: bool) -> pa.Array:
        column = self.raw.get(name)
        if column is None:
            return pa.nulls(len(self.origin), pa.large_string(), memory_pool=POOL)
        if required:
            self._require(name, column.valid)
        return self._utf8(name, column.to_arrow())

    def _utf8(self, name: str, raw: pa.Array) -> pa.Array:
        try:
            return as_text(raw)
        except pa.ArrowInvalid as error:
            raise CorruptMetadataError(f"a manifest has a {name} that is not UTF-8", context={"field": name}) from error

    def _bytes(self, name: str) -> pa.Array:
        column = self.raw.get(name)
        return pa.nulls(len(self.origin), pa.large_binary(), memory_pool=POOL) if column is None else column.to_arrow()

    def _list(self, name: str) -> pa.Array:
        items = self.raw.get(f"{name}[]")
        return self._listed(name, pa.large_list(pa.int64()), None if items is None else items.to_arrow())

    def _map(self, name: str) -> pa.Array:
        """Keys and values in the order they were written."""
        keys, values = self.raw.get(f"{name}.key"), self.raw.get(f"{name}.value")
        type_ = map_type(name)
        if keys is None or values is None:
            return pa.nulls(len(self.origin), type_, memory_pool=POOL)
        try:
            small = keys.to_arrow().cast(pa.int32())
        except pa.ArrowInvalid as error:
            raise CorruptMetadataError(f"a manifest has an invalid field id in {name}") from error
        return self._listed(name, type_, pa.StructArray.from_arrays([small, values.to_arrow()], type=type_.value_type))

    def _listed(self, name: str, type_: pa.DataType, items: pa.Array | None) -> pa.Array:
        counts, valid = self._numbers(name)
        if items is None:
            return pa.nulls(len(counts), type_, memory_pool=POOL)
        offsets = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        bitmap, nulls = validity_bitmap(valid)
        return pa.Array.from_buffers(type_, len(counts), [bitmap, pa.py_buffer(offsets)], nulls, children=[items])

    def _partition_values(self, field: UnionField, type_: PrimitiveType, raw: RawColumn | None) -> pa.Array:
        if raw is None:
            return pa.nulls(len(self.origin), partition_arrow_type(type_), memory_pool=POOL)
        if raw.kind is not _kind_of(type_):
            raise CorruptMetadataError(
                f"the manifests store partition field {field.name!r} with a type that does not fit {type_}",
                context={"partition_field": field.name, "type": str(type_)},
            )
        values = raw.to_arrow()
        match type_:
            case StringType():
                return self._utf8(f"value of partition field {field.name!r}", values)
            case DecimalType():
                numbers = big_endian_decimals(type_, values)
                self._require(f"partition field {field.name!r}", _still_there(values, numbers))
                return numbers
            case UUIDType() | FixedType():
                size = 16 if isinstance(type_, UUIDType) else len(type_)
                self._require(f"partition field {field.name!r}", ~raw.valid | (lengths(values) == size))
        return values


def map_type(name: str) -> pa.DataType:
    """The Arrow type of a statistics map: a list of (field id, value)."""
    value = pa.large_binary() if name.endswith("_bounds") else pa.int64()
    return pa.large_list(pa.struct([("key", pa.int32()), ("value", value)]))


def number_array(values: npt.NDArray[np.generic], valid: Mask | None) -> pa.Array:
    """Ints as an Arrow array over the same memory."""
    bitmap, nulls = (None, 0) if valid is None else validity_bitmap(valid)
    buffers = [bitmap, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers, nulls)


def partition_arrow_type(type_: PrimitiveType) -> pa.DataType:
    """The Arrow type of a partition column."""
    match type_:
        case UnknownType():
            return pa.null()
        case FloatType() | DoubleType():
            return pa.float64()
        case StringType():
            return pa.large_string()
        case BinaryType() | FixedType() | UUIDType():
            return pa.large_binary()
        case DecimalType() if type_.precision > 18:
            return pa.decimal128(38, type_.scale)
        case _:
            return pa.int64()


def _kind_of(type_: PrimitiveType) -> Kind:
    if isinstance(type_, FloatType | DoubleType):
        return Kind.FLOAT
    return Kind.BYTES if isinstance(type_, StringType | BinaryType | FixedType | UUIDType | DecimalType) else Kind.INT


def avro_primitive(avro_type: Any) -> PrimitiveType:
    """The Iceberg type of an Avro one, or ``UnknownType``."""
    record = {"type": "record", "name": "r", "fields": [{"name": "v", "type": avro_type, "field-id": 1}]}
    try:
        converted = AvroSchemaConversion().avro_to_iceberg(record).fields[0].field_type
    except (ValueError, TypeError, KeyError):
        return UnknownType()
    return converted if isinstance(converted, PrimitiveType) else UnknownType()


def _still_there(before: pa.Array, after: pa.Array) -> Mask:
    return np.asarray(pc.equal(before.is_valid(), after.is_valid()).to_numpy(zero_copy_only=False))


def _upper_case(formats: pa.Array) -> pa.Array:
    """Format names in upper case; the column is rewritten only when it has a lower-case letter."""
    data = formats.buffers()[2]
    written = np.frombuffer(data, dtype=np.uint8) if data else np.zeros(0, dtype=np.uint8)
    return formats if written.max(initial=0) <= ord("Z") else pc.utf8_upper(formats)

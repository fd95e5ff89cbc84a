"""Arrow rows as the records of an Avro data or delete file, with field ids and logical types as Iceberg writes them.

The Arrow schema is compiled once into an Avro schema and an encode program (``metadata.avro``). Every value, nested
ones included, is an Arrow array by its path from the top: fields of structs by position, and the items of lists and
maps, which are written alike. A map is an Avro map if its keys are text, else a list of records with key and value.

Fail-safe: what Avro cannot hold is an error before a byte is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.schema import make_compatible_name
from pyiceberg.utils.decimal import decimal_required_bytes

from floeplan.errors import UnsupportedError
from floeplan.metadata.avro.encoder import ENCODER, Encoder, Slot, column_buffers, container_blocks, container_header
from floeplan.metadata.avro.program import EncodeOp
from floeplan.schemas import FIELD_ID

Path: TypeAlias = tuple[int, ...]
_ITEMS = -1
"""The step into the items of a list or map."""
_UNITS = {"us": "micros", "ns": "nanos"}
_DECIMAL_BYTES = 16


class AvroRows:
    """Encodes tables of one schema as a container file."""

    def __init__(
        self,
        schema: pa.Schema,
        codec: str,
        compress: Callable[[bytes], bytes],
        encoder: type[Encoder] = ENCODER,
    ) -> None:
        self._compress, self._encoder = compress, encoder
        self._code: list[int] = []
        self._slots: list[tuple[Path, Slot]] = []
        self._paths: list[Path] = []
        self._names: set[str] = set()
        self._domains = 1
        fields = [self._field(field, (at,)) for at, field in enumerate(schema)]
        self._code.append(EncodeOp.END)
        record = {"type": "record", "name": "table", "fields": fields}
        self.header = container_header(json.dumps(record, separators=(",", ":")), codec, {})

    def blocks(self, rows: pa.Table) -> Iterator[bytes]:
        """The blocks of some rows."""
        arrays: dict[Path, pa.Array] = {}
        for path in self._paths:
            if len(path) == 1:
                column = rows.column(path[0])
                array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
            elif path[-1] == _ITEMS:
                array = arrays[path[:-1]].flatten()  # leaves out what lies behind null lists
            else:
                array = pc.struct_field(arrays[path[:-1]], [path[-1]])  # null where the struct is
            if isinstance(array, pa.ExtensionArray):
                array = array.storage
            elif pt.is_map(array.type):  # pyarrow does not flatten maps
                array = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
            arrays[path] = array
        buffers = [column_buffers(slot, _stored(arrays[path], slot)) for path, slot in self._slots]
        code = np.array(self._code, dtype=np.int32)
        running = self._encoder(code, buffers, self._domains, rows.num_rows)
        return container_blocks(running, rows.num_rows, self.header, self._compress)

    def _field(self, field: pa.Field, path: Path) -> dict[str, Any]:
        """The field of a record; optional ones are a union with null, which is their default."""
        name = make_compatible_name(field.name)
        made = {"name": name, "type": self._value(field, path), "field-id": _id(field)}
        made |= {"default": None} if field.nullable else {}
        return made | ({"iceberg-field-name": field.name} if name != field.name else {})

    def _value(self, field: pa.Field, path: Path) -> Any:
        type_ = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        self._paths.append(path)
        op, avro = _scalar(field.type)
        slot = len(self._slots)
        self._slots.append((path, Slot("", field.name, op, not field.nullable, avro.get("size", 0))))
        ends_at = len(self._code) + 2
        if field.nullable:
            self._code += [EncodeOp.OPTIONAL, slot, 0]
        if pt.is_struct(type_):
            children = [self._field(child, (*path, at)) for at, child in enumerate(type_)]
            avro = {"type": "record", "name": f"r{_id(field)}", "fields": children}
        elif op is EncodeOp.LIST:
            avro = self._repeated(type_, slot, (*path, _ITEMS))
        else:
            self._code += [op, slot]
        if field.nullable:
            self._code[ends_at] = len(self._code) - ends_at - 1
        # A named type is defined once, and then referred to by its name.
        defined = avro["type"] == "fixed" and avro["name"] in self._names
        self._names.add(avro.get("name", ""))
        made = avro["name"] if defined else avro if len(avro) > 1 else avro["type"]
        return ["null", made] if field.nullable else made

    def _repeated(self, type_: pa.DataType, slot: int, items: Path) -> dict[str, Any]:
        """A list, or a map as a list of pairs."""
        self._code += [EncodeOp.LIST, slot, self._domains, 0]
        self._domains += 1
        starts_at = len(self._code)
        self._paths.append(items)
        if pt.is_map(type_):
            key, value = type_.key_field.with_nullable(False), type_.item_field
            if pt.is_large_string(key.type) or pt.is_string(key.type):
                self._value(key, (*items, 0))
                values = self._value(value, (*items, 1))
                made = {"type": "map", "values": values, "key-id": _id(key), "value-id": _id(value)}
            else:
                pair = [self._field(key, (*items, 0)) | {"name": "key"}, self._field(value, (*items, 1))]
                name = f"k{_id(key)}_v{_id(value)}"
                made = {"type": "array", "logicalType": "map"}
                made["items"] = {"type": "record", "name": name, "fields": pair}
        else:
            self._paths.pop()  # the items are the elements
            element = type_.value_field
            made = {"type": "array", "element-id": _id(element), "items": self._value(element, items)}
        self._code.append(EncodeOp.END)
        self._code[starts_at - 1] = len(self._code) - starts_at
        return made


def _id(field: pa.Field) -> int:
    return int(field.metadata[FIELD_ID])


def _scalar(type_: pa.DataType) -> tuple[EncodeOp, dict[str, Any]]:
    """How a value is encoded, and its Avro type."""
    if isinstance(type_, pa.BaseExtensionType):
        return EncodeOp.FIXED, {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}
    if pt.is_struct(type_):
        return EncodeOp.OPTIONAL, {"type": "record"}
    if pt.is_map(type_) or pt.is_large_list(type_):
        return EncodeOp.LIST, {"type": "array"}
    if pt.is_decimal(type_):
        size, name = decimal_required_bytes(type_.precision), f"decimal_{type_.precision}_{type_.scale}"
        avro = {"type": "fixed", "name": name, "size": size, "logicalType": "decimal"}
        return EncodeOp.FIXED, avro | {"precision": type_.precision, "scale": type_.scale}
    if pt.is_fixed_size_binary(type_):
        return EncodeOp.FIXED, {"type": "fixed", "name": f"fixed_{type_.byte_width}", "size": type_.byte_width}
    if pt.is_date32(type_):
        return EncodeOp.VARINT, {"type": "int", "logicalType": "date"}
    if pt.is_time64(type_):
        return EncodeOp.VARINT, {"type": "long", "logicalType": f"time-{_UNITS[type_.unit]}"}
    if pt.is_timestamp(type_):
        logical = f"timestamp-{_UNITS[type_.unit]}"
        return EncodeOp.VARINT, {"type": "long", "logicalType": logical, "adjust-to-utc": type_.tz is not None}
    if type_ not in _PLAIN:
        raise UnsupportedError(f"values of Arrow type {type_} are not written to Avro files")
    op, name = _PLAIN[type_]
    return op, {"type": name}


_PLAIN = {
    pa.bool_(): (EncodeOp.BOOL, "boolean"),
    pa.int32(): (EncodeOp.VARINT, "int"),
    pa.int64(): (EncodeOp.VARINT, "long"),
    pa.float32(): (EncodeOp.FLOAT, "float"),
    pa.float64(): (EncodeOp.DOUBLE, "double"),
    pa.large_string(): (EncodeOp.BYTES, "string"),
    pa.large_binary(): (EncodeOp.BYTES, "bytes"),
}


def _stored(array: pa.Array, slot: Slot) -> pa.Array:
    """An array as the encoder takes it: numbers as integers, decimals as bytes; only validity of structs counts."""
    type_ = array.type
    if pt.is_struct(type_):
        return pc.if_else(array.is_valid(), pa.scalar(1, pa.int64()), pa.scalar(None, pa.int64()))
    if pt.is_date32(type_):
        return array.cast(pa.int32())
    if pt.is_decimal(type_):
        # Unscaled two's complement numbers, most significant byte first.
        ends = slice(array.offset * _DECIMAL_BYTES, (array.offset + len(array)) * _DECIMAL_BYTES)
        stored = np.frombuffer(array.buffers()[1], dtype=np.uint8)[ends].reshape(-1, _DECIMAL_BYTES)
        big_endian = np.ascontiguousarray(stored[:, ::-1][:, _DECIMAL_BYTES - slot.size :])
        whole = pa.Array.from_buffers(pa.binary(slot.size), len(array), [None, pa.py_buffer(big_endian.tobytes())])
        return pc.if_else(array.is_valid(), whole, pa.scalar(None, whole.type)) if array.null_count else whole
    return array

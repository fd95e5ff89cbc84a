"""Stored variants: the encoded ``value`` of each row of a shredded one, and arrays in the layout of a file.

A shredded variant is a group of ``metadata``, ``value`` and ``typed_value``. The typed column has the rows of its type:
a primitive, a list of groups, or a struct of groups, one per field. ``value`` has the other rows and, of an object, the
fields that have no column. ``metadata`` has the names of all fields, so that it stays as it is. See "Variant Shredding"
and "Variant Binary Encoding" of the Parquet format.

Rule: whole columns are encoded level by level, innermost first; only objects and arrays are put together row by row.
Rows that are written again keep the layout that their files share (``shredded_layout``), so that nothing is encoded.

Fail-safe: a typed column of a type that no variant has, a field whose name the metadata lacks, and a ``value`` beside
an object that is not itself an object are errors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from floeplan import arrow_compute as pc
from floeplan.predicate.variants import ARRAY, OBJECT, Names, VariantError, fields_of, names_of

Encoded: TypeAlias = "list[bytes | None]"

NULL = b"\x00"
_SHORT_STRING = 1
_TRUE, _FALSE, _DECIMAL4, _BINARY, _STRING, _UUID = 1, 2, 8, 15, 16, 20
_MOST_SHORT = 63
_MOST_SMALL = 255
"""Elements of an object or array whose number takes one byte."""


def unshredded(group: pa.StructArray) -> list[bytes]:
    """The encoded value of each variant of a group; of a variant that is null, any."""
    metadata = child_of(group, "metadata")
    names = [names_of(one or b"\x01\x00\x00") for one in metadata.to_pylist()]
    return [NULL if one is None else one for one in _group(group, names)]


def child_of(group: pa.StructArray, name: str) -> pa.Array:
    """A child, null where the group is; ``None`` if there is none."""
    at = group.type.get_field_index(name)
    return None if at < 0 else group.flatten()[at]


def _group(group: pa.StructArray, names: Sequence[Names]) -> Encoded:
    """The encoded values of a group, ``None`` for a field that a row does not have."""
    value, typed = child_of(group, "value"), child_of(group, "typed_value")
    rest: Encoded = [None] * len(group) if value is None else value.to_pylist()
    if typed is None:
        return rest
    if isinstance(typed, pa.ExtensionArray):
        typed = typed.storage
    if pa.types.is_dictionary(typed.type):
        typed = typed.dictionary_decode()
    valid = typed.is_valid().to_pylist()
    if pa.types.is_struct(typed.type):
        fields = {field.name: _group(child, names) for field, child in zip(typed.type, typed.flatten(), strict=True)}
        return [
            _object({name: found[row] for name, found in fields.items()}, rest[row], names[row])
            if valid[row]
            else rest[row]
            for row in range(len(group))
        ]
    if pa.types.is_list(typed.type) or pa.types.is_large_list(typed.type):
        ends = typed.offsets.to_pylist()
        first, last = ends[0], ends[-1]
        row_of = np.repeat(np.arange(len(typed)), np.diff(ends)).tolist()
        elements = _group(typed.values.slice(first, last - first), [names[row] for row in row_of])
        whole = [NULL if one is None else one for one in elements]
        return [
            _array(whole[ends[row] - first : ends[row + 1] - first]) if valid[row] else rest[row]
            for row in range(len(group))
        ]
    encode, values = _primitive(typed)
    return [encode(one) if known else other for known, one, other in zip(valid, values, rest, strict=True)]


# Layouts.


def shredded_layout(stored: pa.DataType) -> pa.DataType | None:
    """The type of a shredded variant with the widest Arrow types, whoever read it; ``None`` if it is not shredded."""
    if isinstance(stored, pa.BaseExtensionType):
        stored = stored.storage_type
    is_shredded = pa.types.is_struct(stored) and stored.get_field_index("typed_value") >= 0
    return _widest(stored) if is_shredded else None


def _widest(type_: pa.DataType) -> pa.DataType:
    kinds = pa.types
    if kinds.is_struct(type_):
        return pa.struct([pa.field(one.name, _widest(one.type), one.nullable) for one in type_])
    if kinds.is_list(type_) or kinds.is_large_list(type_):
        element = type_.value_field
        return pa.large_list(pa.field("element", _widest(element.type), element.nullable))
    if kinds.is_dictionary(type_):
        return _widest(type_.value_type)
    if kinds.is_string(type_):
        return pa.large_string()
    return pa.large_binary() if kinds.is_binary(type_) else type_


def in_layout(array: pa.Array, layout: pa.DataType) -> pa.Array:
    """A stored variant as an array of a layout; fields are matched by name.

    A required field gets a blank value where its group is null: pyarrow refuses to write a null there.
    """
    if isinstance(array, pa.ExtensionArray) and array.type != layout:
        array = array.storage
    if pa.types.is_struct(layout):
        children = []
        for field in layout:
            child = in_layout(pc.struct_field(array, [field.name]), field.type)
            children.append(child if field.nullable or not child.null_count else _with_blanks(child))
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(layout), mask=mask)
    if pa.types.is_large_list(layout):
        # The list of a null row is empty.
        lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0), dtype=np.int64)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]))
        mask = pc.is_null(array) if array.null_count else None
        return pa.LargeListArray.from_arrays(
            offsets, in_layout(array.flatten(), layout.value_type), type=layout, mask=mask
        )
    if isinstance(layout, pa.BaseExtensionType):
        return array if array.type == layout else pa.ExtensionArray.from_storage(layout, array)
    return array.cast(layout)


def _with_blanks(array: pa.Array) -> pa.Array:
    numbers = pc.if_else(array.is_valid(), pa.array(np.arange(len(array))), len(array))
    return pa.concat_arrays([array, blank(array.type)]).take(numbers)


def blank(type_: pa.DataType) -> pa.Array:
    """One value that is not null and has no null in a required field."""
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, blank(type_.storage_type))
    if pa.types.is_struct(type_):
        children = [blank_nulls(1, field.type) if field.nullable else blank(field.type) for field in type_]
        return pa.StructArray.from_arrays(children, fields=list(type_))
    if pa.types.is_nested(type_):
        return pa.array([[]], type_)
    if pa.types.is_fixed_size_binary(type_):
        return pa.array([bytes(type_.byte_width)], type_)
    if pa.types.is_large_string(type_) or pa.types.is_large_binary(type_):
        return pa.array([b""], pa.binary()).cast(type_)
    return pa.array([False if pa.types.is_boolean(type_) else 0], type_)


def blank_nulls(rows: int, type_: pa.DataType) -> pa.Array:
    """Nulls of a type; required fields inside of null structs are blank."""
    if not pa.types.is_struct(type_):
        return pa.nulls(rows, type_)
    every = pa.array(np.zeros(rows, dtype=np.int64))
    children = [blank_nulls(rows, field.type) if field.nullable else blank(field.type).take(every) for field in type_]
    return pa.StructArray.from_arrays(children, fields=list(type_), mask=pa.array(np.ones(rows, dtype=np.bool_)))


# Encoding.


def _primitive(typed: pa.Array) -> tuple[Callable[[Any], bytes], list[Any]]:
    """How values of a typed column are encoded, and the values."""
    type_, kinds = typed.type, pa.types
    fixed = _FIXED.get(type_)
    if fixed is not None:
        number, code = fixed
        packer, header = struct.Struct(f"<{code}"), bytes([number << 2])
        if kinds.is_temporal(type_):
            typed = typed.view(pa.int32() if code == "i" else pa.int64())
        return (lambda one: header + packer.pack(one)), typed.to_pylist()
    if kinds.is_timestamp(type_) and type_.unit in ("us", "ns"):  # in any zone
        number = (12 if type_.unit == "us" else 18) + (type_.tz is None)
        header = bytes([number << 2])
        return (lambda one: header + struct.pack("<q", one)), typed.view(pa.int64()).to_pylist()
    if kinds.is_boolean(type_):
        return (lambda one: bytes([(_TRUE if one else _FALSE) << 2])), typed.to_pylist()
    if kinds.is_string(type_) or kinds.is_large_string(type_):
        return _string, typed.to_pylist()
    if kinds.is_binary(type_) or kinds.is_large_binary(type_):
        return (lambda one: bytes([_BINARY << 2]) + len(one).to_bytes(4, "little") + one), typed.to_pylist()
    if kinds.is_fixed_size_binary(type_) and type_.byte_width == 16:
        return (lambda one: bytes([_UUID << 2]) + one), typed.to_pylist()
    if kinds.is_decimal(type_):
        width = 0 if type_.precision <= 9 else 1 if type_.precision <= 18 else 2
        header, size = bytes([(_DECIMAL4 + width) << 2, type_.scale]), 4 << width
        return (
            lambda one: header + _unscaled(one, type_.scale).to_bytes(size, "little", signed=True)
        ), typed.to_pylist()
    raise VariantError(f"a typed value of type {type_} is not supported")


_FIXED: Mapping[pa.DataType, tuple[int, str]] = {
    pa.int8(): (3, "b"),
    pa.int16(): (4, "h"),
    pa.int32(): (5, "i"),
    pa.int64(): (6, "q"),
    pa.float64(): (7, "d"),
    pa.date32(): (11, "i"),
    pa.float32(): (14, "f"),
    pa.time64("us"): (17, "q"),
}
"""Primitive types of a fixed size: their number, and how ``struct`` packs them."""


def _unscaled(value: Decimal, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "decimals of Arrow are finite"
    number: int = int("".join(map(str, digits))) * 10 ** (scale + exponent)
    return -number if sign else number


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) <= _MOST_SHORT:
        return bytes([len(data) << 2 | _SHORT_STRING]) + data
    return bytes([_STRING << 2]) + len(data).to_bytes(4, "little") + data


def _object(typed: Mapping[str, bytes | None], rest: bytes | None, names: Names) -> bytes:
    """An object of the fields that have a column and of those that do not, ordered by name."""
    ids = {}
    for name, value in typed.items():
        if value is not None:
            if name not in names.ids:
                raise VariantError(f"its metadata lacks the field {name!r}")
            ids[names.ids[name]] = value
    if rest is not None:
        ids = fields_of(rest) | ids
    ordered = sorted(ids, key=lambda number: names.texts[number].encode())
    widest, body = max(ordered, default=0), [ids[number] for number in ordered]
    id_size, (count, offsets, large, offset_size) = _size_of(widest), _layout(body)
    header = ((large << 4 | (id_size - 1) << 2 | (offset_size - 1)) << 2) | OBJECT
    numbers = b"".join(number.to_bytes(id_size, "little") for number in ordered)
    return b"".join([bytes([header]), count, numbers, offsets, *body])


def encoded_object(fields: Mapping[str, pa.Scalar]) -> bytes:
    """A variant of an object of primitives: its metadata, followed by its value."""
    texts = sorted(fields, key=str.encode)
    names = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, names)]).tolist()
    size = _size_of(max(ends[-1], len(names)))
    header = 1 | 1 << 4 | (size - 1) << 6  # version 1, sorted names
    numbers = b"".join(number.to_bytes(size, "little") for number in (len(names), *ends))
    values = {}
    for text, scalar in fields.items():
        encode, (value,) = _primitive(pa.repeat(scalar, 1))
        values[text] = encode(value)
    known = Names(tuple(texts), {text: number for number, text in enumerate(texts)})
    return b"".join([bytes([header]), numbers, *names, _object(values, None, known)])


def _array(elements: Sequence[bytes]) -> bytes:
    count, offsets, large, offset_size = _layout(elements)
    header = ((large << 2 | (offset_size - 1)) << 2) | ARRAY
    return b"".join([bytes([header]), count, offsets, *elements])


def _layout(body: Sequence[bytes]) -> tuple[bytes, bytes, bool, int]:
    """The number of elements and their offsets, whether the number is large, and the bytes of an offset."""
    ends = np.cumsum([0, *map(len, body)]).tolist()
    large, size = len(body) > _MOST_SMALL, _size_of(ends[-1])
    count = len(body).to_bytes(4 if large else 1, "little")
    return count, b"".join(end.to_bytes(size, "little") for end in ends), large, size


def _size_of(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)

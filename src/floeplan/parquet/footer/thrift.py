"""Thrift's compact protocol, the encoding of Parquet's metadata: a bounded reader, a small writer and an editor.

Reading: a struct becomes ``{field id: value}``. A shape selects what to decode: ``{field id: inner shape}``, where
``SCALAR`` decodes a number, a string or a boolean, a mapping descends into a struct or a list of structs, ``...``
returns only the offsets of a list's elements (to decode some of them later), and ``None`` decodes everything. All other
fields are skipped without being built; a container where the shape has a scalar reads as ``None``.

Writing: ``encode_struct`` takes ``(field id, kind, value)`` triples in ascending field order. ``splice`` changes single
values of an encoded struct and copies every other byte.

Fail-safe: sizes in the data are checked against the bytes left before memory is allocated; anything invalid is a
``CorruptFileError`` with file and offset.

``_thrift.pyx`` is a compiled kernel of the decoder; ``read_struct_in_python`` has the same results without it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from floeplan.errors import CorruptFileError
from floeplan.kernels import load_kernel
from floeplan.parquet.source import corrupt

Struct: TypeAlias = dict[int, Any]
Shape: TypeAlias = Any
"""``SCALAR``, ``None``, ``...`` or ``{field id: Shape}``; see the module docstring."""
SCALAR: Final[Shape] = {}

BOOL: Final = 1
I8: Final = 3
I16: Final = 4
I32: Final = 5
I64: Final = 6
DOUBLE: Final = 7
BINARY: Final = 8
LIST: Final = 9
STRUCT: Final = 12

EMPTY_STRUCT: Final = b"\0"
MAX_DEPTH: Final = 64
_FIXED_WIDTH = {1: 1, 2: 1, 3: 1, 7: 8, 13: 16}


def read_struct(data: bytes, at: int, shape: Shape, what: str, file: str) -> tuple[Struct, int]:
    """Decode the struct that starts at ``at``.

    Args:
        data: The bytes; nothing outside of them is read.
        at: Offset of the struct.
        shape: The fields to decode.
        what: Name of the struct, for messages ("footer").
        file: The file it is read from, for messages.

    Returns:
        The fields by id, and the offset of the struct's end.
    """
    try:
        return _read_struct(data, at, shape)
    except (IndexError, ValueError) as error:
        raise _not_decodable(file, what, at, error) from None


def _not_decodable(file: str, what: str, at: int, error: Exception) -> CorruptFileError:
    """The error for bytes that end too early (``IndexError``) or are otherwise invalid."""
    problem = "ends in the middle of a value" if isinstance(error, IndexError) else f"cannot be decoded: {error}"
    return corrupt(file, f"the {what} {problem}", at)


def integer(fields: Struct, field: int, default: int | None = None) -> int:
    """An integer field; a missing one without a default, or one of another type, is a ``ValueError``."""
    value = fields.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"field {field} is not an integer")
    return value


def encode_struct(fields: Iterable[tuple[int, int, Any]]) -> bytes:
    """Encode a struct from ``(field id, kind, value)`` in ascending order of field id.

    Nested structs are passed encoded, lists as ``(element kind, values)``.
    """
    out = bytearray()
    last = 0
    for field, kind, value in fields:
        type_ = 2 if kind == BOOL and not value else kind  # a boolean field is encoded in its header
        if 0 < field - last <= 15:
            out.append((field - last) << 4 | type_)
        else:
            out.append(type_)
            out += _zigzag(field)
        if kind != BOOL:
            out += encode_value(kind, value)
        last = field
    out.append(0)
    return bytes(out)


def encode_value(kind: int, value: Any) -> bytes:
    """Encode one value as it appears in a list or after a field header."""
    if kind in (I16, I32, I64):
        return _zigzag(value)
    if kind == BINARY:
        return encode_varint(len(value)) + bytes(value)
    if kind == LIST:
        element, values = value
        return encode_list_header(element, len(values)) + b"".join(encode_value(element, one) for one in values)
    if kind == STRUCT:
        return bytes(value)
    if kind == BOOL:
        return b"\1" if value else b"\2"
    if kind == I8:
        return bytes([value & 255])
    return struct.pack("<d", value)


def encode_list_header(kind: int, size: int) -> bytes:
    """Encode the header of a list."""
    return bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + encode_varint(size)


def _zigzag(value: int) -> bytes:
    return encode_varint((value << 1) ^ (value >> 63))


def encode_varint(value: int) -> bytes:
    """Encode a non-negative integer in groups of 7 bits, as Thrift, protobuf and Parquet's run lengths do."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


Edit: TypeAlias = "Callable[[int], int] | bytes | Mapping[int, Edit] | Each"
"""An edit of one field: a function of an integer, the new encoded value, edits of a struct's fields, or ``Each``."""


@dataclass(frozen=True, slots=True)
class Each:
    """The edits of every struct in a list, by its position."""

    edit: Callable[[int], Mapping[int, Edit]]


def splice(data: bytes, edits: Mapping[int, Edit], what: str, file: str, at: int = 0) -> bytes:
    """Return the struct that starts at ``at`` with edits applied; all other bytes are copied.

    A field that is not present is not added. A Thrift struct does not store its length, so values may grow and shrink.

    Args:
        data: The encoded struct, and any bytes after it.
        edits: The edits by field id.
        what: Name of the struct, for messages.
        file: The file it was read from, for messages.
        at: Offset of the struct.
    """
    made = bytearray()
    try:
        _splice_struct(data, at, edits, made)
    except (IndexError, ValueError) as error:
        raise _not_decodable(file, what, at, error) from None
    return bytes(made)


def _splice_struct(data: bytes, at: int, edits: Mapping[int, Edit], made: bytearray) -> int:
    """Copy a struct with its edits, and return the offset of its end."""
    field, copied = 0, at
    while header := data[at]:
        at += 1
        if header > 15:
            field += header >> 4
        else:
            field, at = _read_zigzag(data, at)
        edit = edits.get(field)
        if edit is None:
            at = _skip_field(data, at, header & 15, 0)
            continue
        made += data[copied:at]
        if isinstance(edit, bytes):
            made += edit
            at = _skip_field(data, at, header & 15, 0)
        elif isinstance(edit, Mapping):
            at = _splice_struct(data, at, edit, made)
        elif isinstance(edit, Each):
            start = at
            size, _, at = _read_list_header(data, at)
            made += data[start:at]
            for position in range(size):
                at = _splice_struct(data, at, edit.edit(position), made)
        else:
            value, at = _read_zigzag(data, at)
            made += encode_value(I64, edit(value))
        copied = at
    made += data[copied : at + 1]
    return at + 1


# Decoding in Python: reading past the end raises ``IndexError``, anything else invalid ``ValueError``. Every size in
# the data is compared with the bytes left, so time and memory are bounded by the length of the data.


def read_struct_in_python(data: bytes, pos: int, shape: Shape, depth: int = 0) -> tuple[Struct, int]:
    """Decode a struct as the compiled kernel does, for installations without it; also return the struct's end."""
    _check_depth(depth)
    result: Struct = {}
    field = 0
    while True:
        header = data[pos]
        pos += 1
        if header == 0:
            return result, pos
        kind = header & 15
        if header > 15:
            field += header >> 4
        else:
            field, pos = _read_zigzag(data, pos)
        if shape is not None and field not in shape:
            pos = _skip_field(data, pos, kind, depth)
        elif kind in (1, 2):
            result[field] = kind == 1
        elif kind == 8:
            size, pos = _read_varint(data, pos)
            result[field] = data[pos : pos + size]
            pos = _advance(data, pos, size)
        elif 4 <= kind <= 6:
            result[field], pos = _read_zigzag(data, pos)
        else:
            result[field], pos = _read_value(data, pos, kind, None if shape is None else shape[field], depth + 1)


def _read_value(data: bytes, pos: int, kind: int, shape: Any, depth: int) -> tuple[Any, int]:
    # The shape has a scalar for this container, or a list for this struct.
    mismatch = (shape is not None and not shape) or (shape is ... and kind == 12)
    if kind in (9, 10, 12) and mismatch:
        return None, _skip(data, pos, kind, depth)
    if kind == 12:
        return read_struct_in_python(data, pos, shape, depth)
    if kind in (4, 5, 6):
        return _read_zigzag(data, pos)
    if kind == 8:
        size, pos = _read_varint(data, pos)
        return data[pos : pos + size], _advance(data, pos, size)
    if kind in (9, 10):
        _check_depth(depth)
        size, kind, pos = _read_list_header(data, pos)
        if shape is ...:  # only the offsets of the elements and, last, of the end
            starts = array("q")
            for _ in range(size):
                starts.append(pos)
                pos = _skip(data, pos, kind, depth)
            starts.append(pos)
            return starts, pos
        values = []
        for _ in range(size):
            value, pos = _read_value(data, pos, kind, shape, depth + 1)
            values.append(value)
        return values, pos
    if kind in (1, 2):
        return data[pos] == 1, pos + 1
    if kind == 3:
        return data[pos] - 256 if data[pos] > 127 else data[pos], pos + 1
    if kind == 7:
        end = _advance(data, pos, 8)
        return struct.unpack("<d", data[pos:end])[0], end
    return None, _skip(data, pos, kind, depth)


def _read_list_header(data: bytes, pos: int) -> tuple[int, int, int]:
    """Size, element kind and first offset of a list; more elements than bytes left is an error."""
    header = data[pos]
    pos += 1
    size, kind = header >> 4, header & 15
    if size == 15:
        size, pos = _read_varint(data, pos)
    if size * _FIXED_WIDTH.get(kind, 1) > len(data) - pos:
        raise ValueError(f"a list claims {size} elements, more than the bytes that are left")
    return size, kind, pos


def _skip_field(data: bytes, pos: int, kind: int, depth: int) -> int:
    """The end of a struct field's value; booleans are encoded in the field header and take no bytes."""
    return pos if kind in (1, 2) else _skip(data, pos, kind, depth + 1)


def _skip(data: bytes, pos: int, kind: int, depth: int) -> int:
    """The end of a value in a list, or of a struct field that is not a boolean."""
    if 4 <= kind <= 6:
        return _read_varint(data, pos)[1]
    if kind == 8:
        size, pos = _read_varint(data, pos)
        return _advance(data, pos, size)
    if kind == 12:
        _check_depth(depth)
        while header := data[pos]:
            pos += 1
            if header <= 15:
                _, pos = _read_zigzag(data, pos)
            pos = _skip_field(data, pos, header & 15, depth)
        return pos + 1
    if kind in (9, 10):
        size, element, pos = _read_list_header(data, pos)
        _check_depth(depth)
        for _ in range(size):
            pos = _skip(data, pos, element, depth + 1)
        return pos
    if kind == 11:
        _check_depth(depth)
        size, pos = _read_varint(data, pos)
        if size == 0:
            return pos
        kinds = data[pos]
        pos += 1
        if 2 * size > len(data) - pos:
            raise ValueError(f"a map claims {size} entries, more than the bytes that are left")
        for _ in range(size):
            pos = _skip(data, pos, kinds >> 4, depth + 1)
            pos = _skip(data, pos, kinds & 15, depth + 1)
        return pos
    width = _FIXED_WIDTH.get(kind)
    if width is None:
        raise ValueError(f"{kind} is no type of the compact protocol")
    return _advance(data, pos, width)


def _read_varint(data: bytes, pos: int) -> tuple[int, int]:
    value = data[pos]
    pos += 1
    if value < 128:
        return value, pos
    value &= 127
    shift = 7
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, pos
        shift += 7
        if shift > 63:
            raise ValueError("an integer of more than ten bytes")


def _read_zigzag(data: bytes, pos: int) -> tuple[int, int]:
    value, pos = _read_varint(data, pos)
    value &= 0xFFFFFFFFFFFFFFFF
    return (value >> 1) ^ -(value & 1), pos


def _advance(data: bytes, pos: int, size: int) -> int:
    if size > len(data) - pos:
        raise IndexError
    return pos + size


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"nesting deeper than {MAX_DEPTH}")


_read_struct: Callable[[bytes, int, Shape], tuple[Struct, int]] = getattr(
    load_kernel("floeplan.parquet.footer._thrift"), "read_struct", read_struct_in_python
)

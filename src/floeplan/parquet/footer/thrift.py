"""Thrift's compact protocol, the encoding of Parquet's metadata: a bounded reader, a small writer and an editor.

Reading: a struct becomes ``{field id: value}``. A shape selects what to decode: ``{field id: inner shape}``, where
``SCALAR`` decodes a number, a string or a boolean, a mapping descends into a struct or a list of structs, ``...``
returns only the offsets of a list's elements (to decode some of them later), and ``None`` decodes everything. All other
fields are skipped without being built; a container where the shape has a scalar reads as ``None``.

Writing: ``encode_struct`` takes ``(field id, kind, value)`` triples in ascending field order. ``splice`` changes single
values of an encoded struct and copies every other byte.

Fail-safe: sizes in the data are checked against the bytes left before memory is allocated; anything invalid is a
``CorruptFileError`` with file and offset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from floeplan.kernels import load_kernel
from floeplan.parquet.footer import _thrift_fallback as wire
from floeplan.parquet.source import corrupt

_read_struct = (load_kernel("floeplan.parquet.footer._thrift") or wire).read_struct

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
        decoded: tuple[Struct, int] = _read_struct(data, at, shape)
        return decoded
    except IndexError:
        raise corrupt(file, f"the {what} ends in the middle of a value", at) from None
    except ValueError as error:
        raise corrupt(file, f"the {what} cannot be decoded: {error}", at) from None


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
        return _varint(len(value)) + bytes(value)
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
    return bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + _varint(size)


def _zigzag(value: int) -> bytes:
    return _varint((value << 1) ^ (value >> 63))


def _varint(value: int) -> bytes:
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
        _struct(data, at, edits, made)
    except IndexError:
        raise corrupt(file, f"the {what} ends in the middle of a value", at) from None
    except ValueError as error:
        raise corrupt(file, f"the {what} cannot be decoded: {error}", at) from None
    return bytes(made)


def _struct(data: bytes, at: int, edits: Mapping[int, Edit], made: bytearray) -> int:
    """Copy a struct with its edits, and return the offset of its end."""
    field, copied = 0, at
    while data[at]:
        header = data[at]
        at += 1
        if header > 15:
            field += header >> 4
        else:
            field, at = wire._read_zigzag(data, at)
        edit = edits.get(field)
        if edit is None:
            at = wire._skip_field(data, at, header & 15, 0)
            continue
        made += data[copied:at]
        copied = at = _value(data, at, header & 15, edit, made)
    made += data[copied : at + 1]
    return at + 1


def _value(data: bytes, at: int, kind: int, edit: Edit, made: bytearray) -> int:
    if isinstance(edit, bytes):
        made += edit
        return wire._skip_field(data, at, kind, 0)
    if isinstance(edit, Each):
        return _list(data, at, edit, made)
    if isinstance(edit, Mapping):
        return _struct(data, at, edit, made)
    value, at = wire._read_zigzag(data, at)
    made += encode_value(I64, edit(value))
    return at


def _list(data: bytes, at: int, edit: Each, made: bytearray) -> int:
    start = at
    size, _, at = wire._read_list_header(data, at)
    made += data[start:at]
    for position in range(size):
        at = _struct(data, at, edit.edit(position), made)
    return at

"""Decoder of Thrift's compact protocol in pure Python, for installations without the compiled ``_thrift`` kernel.

Reading past the end raises ``IndexError``, anything else invalid ``ValueError``; ``thrift`` adds file and offset. Every
size in the data is compared with the bytes left, so time and memory are bounded by the length of the data.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any

MAX_DEPTH = 64
_FIXED_WIDTH = {1: 1, 2: 1, 3: 1, 7: 8, 13: 16}


def read_struct(data: bytes, pos: int, shape: Any, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Decode a struct into ``{field id: value}``, skipping fields outside the shape; also return its end."""
    _check_depth(depth)
    result: dict[int, Any] = {}
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
    if kind in (9, 10, 12) and _unwanted(kind, shape):
        return None, _skip(data, pos, kind, depth)
    if kind == 12:
        return read_struct(data, pos, shape, depth)
    if kind in (4, 5, 6):
        return _read_zigzag(data, pos)
    if kind == 8:
        size, pos = _read_varint(data, pos)
        return data[pos : pos + size], _advance(data, pos, size)
    if kind in (9, 10):
        return _read_list(data, pos, shape, depth)
    if kind in (1, 2):
        return data[pos] == 1, pos + 1
    if kind == 3:
        return data[pos] - 256 if data[pos] > 127 else data[pos], pos + 1
    if kind == 7:
        end = _advance(data, pos, 8)
        return struct.unpack("<d", data[pos:end])[0], end
    return None, _skip(data, pos, kind, depth)


def _unwanted(kind: int, shape: Any) -> bool:
    """Whether the shape has a scalar for this container, or a list for this struct."""
    return (shape is not None and not shape) or (shape is ... and kind == 12)


def _read_list(data: bytes, pos: int, shape: Any, depth: int) -> tuple[Any, int]:
    """Decode a list; with the shape ``...`` only the offsets of its elements and, last, of its end."""
    _check_depth(depth)
    size, kind, pos = _read_list_header(data, pos)
    if shape is ...:
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
    if 4 <= kind <= 6:
        return _read_varint(data, pos)[1]
    if kind == 8:
        size, pos = _read_varint(data, pos)
        return _advance(data, pos, size)
    if kind == 12:
        return _skip_struct(data, pos, depth)
    if kind in (9, 10):
        size, element, pos = _read_list_header(data, pos)
        _check_depth(depth)
        for _ in range(size):
            pos = _skip(data, pos, element, depth + 1)
        return pos
    if kind == 11:
        return _skip_map(data, pos, depth)
    width = _FIXED_WIDTH.get(kind)
    if width is None:
        raise ValueError(f"{kind} is no type of the compact protocol")
    return _advance(data, pos, width)


def _skip_struct(data: bytes, pos: int, depth: int = 0) -> int:
    """The end of a struct."""
    _check_depth(depth)
    while True:
        header = data[pos]
        pos += 1
        if header == 0:
            return pos
        if header <= 15:
            _, pos = _read_zigzag(data, pos)
        pos = _skip_field(data, pos, header & 15, depth)


def _skip_map(data: bytes, pos: int, depth: int) -> int:
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

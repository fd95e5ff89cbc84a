"""Decodes Iceberg's binary single-value serialization into typed vectors, with the current type of the column.

Rule: bytes are decoded by their own length, so bounds written before a type promotion stay valid: 4-byte integers for
``long``, 4-byte floats for ``double``, days for ``timestamp``, decimals of any precision. Fail-safe: bytes of another
length make that one bound invalid; types without an order have no bounds.

Some writers order UUIDs as signed numbers, others as unsigned bytes. Both orders agree on the first 8 bytes when lower
and upper bound have the same first bit: then the last 8 bytes are widened, otherwise the bounds are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.predicate.stats import Bound
from floeplan.vectors import Bytes, Ints, Mask, all_set, valid_mask, validity_bitmap

MAX_INT64_DIGITS = 18
"""Decimals up to this precision are unscaled integers, wider ones Arrow decimals."""

_LAST_ASCII = 0x7F
_MICROS_PER_DAY = 86_400_000_000
_NANOS_PER_DAY = 1000 * _MICROS_PER_DAY
_SCALES: dict[type[PrimitiveType], dict[int, int]] = {
    IntegerType: {4: 1, 8: 1},
    LongType: {4: 1, 8: 1},
    DateType: {4: 1},
    TimeType: {8: 1},
    TimestampType: {4: _MICROS_PER_DAY, 8: 1},
    TimestamptzType: {4: _MICROS_PER_DAY, 8: 1},
    TimestampNanoType: {4: _NANOS_PER_DAY, 8: 1},
    TimestamptzNanoType: {4: _NANOS_PER_DAY, 8: 1},
}
"""The valid lengths of types that are stored as integers, and the unit of each."""


def decode_bounds(
    type_: PrimitiveType, lower: pa.Array, upper: pa.Array, at: Ints | None = None
) -> tuple[Bound | None, Bound | None]:
    """Both bounds of one column for many containers; nulls and unreadable bytes are invalid.

    With ``at`` the bounds of container ``i`` are at index ``at[i]``; it has none where that is negative.
    """
    if isinstance(type_, UUIDType):
        return _uuid_bounds(_Packed.of(lower, at), _Packed.of(upper, at))
    return _decoded(type_, lower, at), _decoded(type_, upper, at)


def decode_values(type_: PrimitiveType, raw: pa.Array) -> Bound | None:
    """One value per container, or ``None`` when the type has no order that statistics could use."""
    return _decoded(type_, raw, None)


def _decoded(type_: PrimitiveType, raw: pa.Array, at: Ints | None) -> Bound | None:
    scales = _SCALES.get(type(type_))
    if scales is not None:
        return _integers(_Packed.of(raw, at), scales)
    match type_:
        case BooleanType():
            return _booleans(_Packed.of(raw, at))
        case FloatType() | DoubleType():
            return _reals(_Packed.of(raw, at))
        case DecimalType():
            return _decimals(type_, _Packed.of(raw, at))
        case StringType():
            return _strings(_picked(raw, at))
        case BinaryType() | FixedType() | UUIDType():
            return _blobs(type_, _picked(raw, at))
    return None


def _picked(raw: pa.Array, at: Ints | None) -> pa.Array:
    return raw if at is None else raw.take(pa.array(at, mask=at < 0))


def _blobs(type_: PrimitiveType, raw: pa.Array) -> Bound:
    if isinstance(type_, BinaryType):
        return Bound(raw, valid_mask(raw))
    length = len(type_) if isinstance(type_, FixedType) else 16
    return Bound(raw, valid_mask(raw) & (lengths(raw) == length))


def as_text(raw: pa.Array) -> pa.Array:
    """``large_binary`` as ``large_string`` over the same memory; bytes that are not UTF-8 raise ``ArrowInvalid``.

    ASCII needs no validation, and the largest byte tells whether all is ASCII.
    """
    text = pa.Array.from_buffers(pa.large_string(), len(raw), raw.buffers(), raw.null_count, raw.offset)
    if len(raw) and _offsets_and_data(raw)[1].max(initial=0) > _LAST_ASCII:
        text.validate(full=True)
    return text


def big_endian_decimals(type_: DecimalType, raw: pa.Array) -> pa.Array:
    """Two's-complement big-endian numbers as unscaled ``int64`` or as an Arrow decimal; null where they do not fit."""
    bound = _decimals(type_, _Packed.of(raw, None))
    bitmap, nulls = validity_bitmap(bound.valid)
    if isinstance(bound.values, np.ndarray):
        return pa.Array.from_buffers(pa.int64(), len(raw), [bitmap, pa.py_buffer(bound.values)], nulls)
    return pa.Array.from_buffers(bound.values.type, len(raw), [bitmap, bound.values.buffers()[1]], nulls)


def _offsets_and_data(raw: pa.Array) -> tuple[Ints, Bytes]:
    _, offsets, data = raw.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64)[raw.offset : raw.offset + len(raw) + 1]
    if data is None or data.size == 0:
        return starts, np.zeros(0, dtype=np.uint8)
    return starts, np.frombuffer(data, dtype=np.uint8)


def lengths(raw: pa.Array) -> Ints:
    """Bytes of each value; meaningless for nulls."""
    if not len(raw):
        return np.zeros(0, dtype=np.int64)
    return np.diff(_offsets_and_data(raw)[0])


@dataclass(frozen=True, slots=True)
class _Packed:
    """Values as slices of one buffer: start, length and validity of each.

    ``in_order`` means that they are contiguous in the buffer in this order.
    """

    starts: Ints
    sizes: Ints
    valid: Mask
    data: Bytes
    in_order: bool

    @classmethod
    def of(cls, raw: pa.Array, at: Ints | None) -> _Packed:
        """The values of an array, all of them or those at some indices."""
        if not len(raw):
            nothing = np.zeros(0 if at is None else len(at), dtype=np.int64)
            return cls(nothing, nothing, nothing != 0, np.zeros(0, dtype=np.uint8), in_order=True)
        offsets, data = _offsets_and_data(raw)
        starts, valid = offsets[:-1], valid_mask(raw)
        if at is None:
            return cls(starts, offsets[1:] - starts, valid, data, in_order=True)
        return cls(starts[at], offsets[1:][at] - starts[at], valid[at] & (at >= 0), data, in_order=False)

    def __len__(self) -> int:
        return len(self.starts)

    def by_length(self) -> Iterator[tuple[int, Ints | slice, Bytes]]:
        """Rows with a value, grouped by its length: the length, the rows, and their bytes as a matrix."""
        for length in _distinct(self.sizes[self.valid]):
            if length:
                chosen = self.valid & (self.sizes == length)
                rows: Ints | slice = slice(None) if all_set(chosen) else np.flatnonzero(chosen)
                yield length, rows, self._matrix(rows, length)

    def _matrix(self, rows: Ints | slice, length: int) -> Bytes:
        """The bytes of values of one length: a slice of the buffer if contiguous, else gathered from a strided view."""
        starts = self.starts[rows]
        first, end = int(starts[0]), int(starts[-1]) + length
        if self.in_order and end - first == len(starts) * length:
            return self.data[first:end].reshape(-1, length)
        windows = np.ndarray((len(self.data) - length + 1,), f"V{length}", self.data, strides=(1,))
        picked: Bytes = windows[starts].view(np.uint8).reshape(-1, length)
        return picked


def _distinct(sizes: Ints) -> list[int]:
    """The distinct lengths; nearly always one."""
    if len(sizes) and sizes.min() == sizes.max():
        return [int(sizes[0])]
    found: list[int] = np.unique(sizes).tolist()
    return found


def _integers(raw: _Packed, scale_by_length: dict[int, int]) -> Bound:
    """Little-endian integers; ``scale_by_length`` has the valid lengths and their units."""
    values = np.zeros(len(raw), dtype=np.int64)
    valid = np.zeros(len(raw), dtype=np.bool_)
    for length, rows, matrix in raw.by_length():
        scale = scale_by_length.get(length)
        if scale is None:
            continue
        numbers = np.ascontiguousarray(matrix).view(f"<i{length}")[:, 0]
        if scale == 1:
            values[rows], valid[rows] = numbers, True
            continue
        limit = np.iinfo(np.int64).max // scale
        values[rows] = numbers.astype(np.int64) * scale
        valid[rows] = (numbers <= limit) & (numbers >= -limit)
    return Bound(values, valid)


def _reals(raw: _Packed) -> Bound:
    values = np.zeros(len(raw), dtype=np.float64)
    valid = np.zeros(len(raw), dtype=np.bool_)
    for length, rows, matrix in raw.by_length():
        if length in (4, 8):
            values[rows] = np.ascontiguousarray(matrix).view(f"<f{length}")[:, 0]
            valid[rows] = True
    return Bound(values, valid)


def _booleans(raw: _Packed) -> Bound:
    values = np.zeros(len(raw), dtype=np.int64)
    valid = np.zeros(len(raw), dtype=np.bool_)
    for length, rows, matrix in raw.by_length():
        if length == 1:
            values[rows] = matrix[:, 0] != 0
            valid[rows] = matrix[:, 0] <= 1
    return Bound(values, valid)


def _decimals(type_: DecimalType, raw: _Packed) -> Bound:
    """Big-endian two's complement of any length; longer than needed is fine if it only repeats the sign."""
    width = 8 if type_.precision <= MAX_INT64_DIGITS else 16
    little_endian = np.zeros((len(raw), width), dtype=np.uint8)
    valid = np.zeros(len(raw), dtype=np.bool_)
    for length, rows, matrix in raw.by_length():
        digits = matrix[:, -width:]
        sign = np.where(digits[:, 0] >= 0x80, 0xFF, 0).astype(np.uint8)
        kept = digits.shape[1]
        padded = np.repeat(sign[:, None], width, axis=1)
        padded[:, :kept] = digits[:, ::-1]
        little_endian[rows] = padded
        valid[rows] = (matrix[:, : length - kept] == sign[:, None]).all(axis=1)
    if width == 8:
        return Bound(little_endian.view("<i8")[:, 0], valid)
    arrow_type = pa.decimal128(38, type_.scale)
    values = pa.Array.from_buffers(arrow_type, len(raw), [None, pa.py_buffer(little_endian)])
    return Bound(values, valid)


def _strings(raw: pa.Array) -> Bound:
    try:
        return Bound(as_text(raw), valid_mask(raw))
    except pa.ArrowInvalid:
        readable = [value if value is not None and _is_utf8(value) else None for value in raw.to_pylist()]
        return _strings(pa.array(readable, pa.large_binary()))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _uuid_bounds(lower: _Packed, upper: _Packed) -> tuple[Bound, Bound]:
    low, low_valid = _uuids(lower)
    high, high_valid = _uuids(upper)
    sound = low_valid & high_valid & ((low[:, 0] ^ high[:, 0]) < 0x80)
    low[:, 8:] = 0x00
    high[:, 8:] = 0xFF
    return Bound(_fixed_width(low), sound), Bound(_fixed_width(high), sound)


def _uuids(raw: _Packed) -> tuple[Bytes, Mask]:
    matrix = np.zeros((len(raw), 16), dtype=np.uint8)
    valid = np.zeros(len(raw), dtype=np.bool_)
    for length, rows, found in raw.by_length():
        if length == 16:
            matrix[rows] = found
            valid[rows] = True
    return matrix, valid


def _fixed_width(matrix: Bytes) -> pa.Array:
    """Rows of equal length as ``large_binary``."""
    count, width = matrix.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    return pa.Array.from_buffers(pa.large_binary(), count, buffers)

"""Iceberg values in three forms: single-value bytes, physical vectors, and the Arrow types engines expect.

============  =======================================================================================
single value  bytes of Iceberg's binary single-value serialization: bounds and partition summaries
physical      vectors that predicates are evaluated on: int64, float64, large_string, large_binary, decimal128
logical       the Arrow type of a column of the Iceberg type: date32, timestamp, decimal128(p, s), …
============  =======================================================================================

Rule: bytes are decoded by their own length, so bounds written before a type promotion stay valid: 4-byte integers for
``long``, 4-byte floats for ``double``, days for ``timestamp``, decimals of any precision. Physical and logical vectors
convert exactly in both directions.
Fail-safe: bytes of another length make that one bound invalid; types without an order have no bounds; a value outside
its logical type is an error, never wrapped or truncated.

Some writers order UUIDs as signed numbers, others as unsigned bytes. Both orders agree on the first 8 bytes when lower
and upper bound have the same first bit: then the last 8 bytes are widened, otherwise the bounds are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
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
    NestedField,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)
from pyiceberg.utils.decimal import unscaled_to_decimal

from floeplan import arrow_compute as pc
from floeplan.errors import CorruptMetadataError
from floeplan.partition.transforms import integer_limits
from floeplan.predicate.stats import Bound
from floeplan.vectors import Bytes, Ints, Mask, all_set, arrow, offsets_of, valid_mask, validity_bitmap

MAX_INT64_DIGITS = 18
"""Decimals up to this precision are unscaled integers, wider ones Arrow decimals."""

_LAST_ASCII = 0x7F
_UUID_BYTES = 16
_MICROS_PER_DAY = 86_400_000_000
_NANOS_PER_DAY = 1000 * _MICROS_PER_DAY
_SCALES: dict[type[PrimitiveType], dict[int, int]] = {
    BooleanType: {1: 1},
    IntegerType: {4: 1, 8: 1},
    LongType: {4: 1, 8: 1},
    FloatType: {4: 1, 8: 1},
    DoubleType: {4: 1, 8: 1},
    DateType: {4: 1},
    TimeType: {8: 1},
    TimestampType: {4: _MICROS_PER_DAY, 8: 1},
    TimestamptzType: {4: _MICROS_PER_DAY, 8: 1},
    TimestampNanoType: {4: _NANOS_PER_DAY, 8: 1},
    TimestamptzNanoType: {4: _NANOS_PER_DAY, 8: 1},
}
"""The valid lengths of types that are stored as numbers, and the unit of each."""


def decode_bounds(
    type_: PrimitiveType, lower: pa.Array, upper: pa.Array, at: Ints | None = None
) -> tuple[Bound | None, Bound | None]:
    """Both bounds of one column for many containers; nulls and unreadable bytes are invalid.

    With ``at`` the bounds of container ``i`` are at index ``at[i]``; it has none where that is negative.
    """
    if isinstance(type_, UUIDType):
        return _uuid_bounds(_Packed.of(lower, at), _Packed.of(upper, at))
    return decode_values(type_, lower, at), decode_values(type_, upper, at)


def decode_values(type_: PrimitiveType, raw: pa.Array, at: Ints | None = None) -> Bound | None:
    """One value per container, or ``None`` when the type has no order that statistics could use."""
    if type(type_) in _SCALES:
        return _numbers(type_, _Packed.of(raw, at))
    if isinstance(type_, DecimalType):
        return _decimals(type_, _Packed.of(raw, at))
    if not isinstance(type_, StringType | BinaryType | FixedType | UUIDType):
        return None
    if at is not None:
        raw = pc.take(raw, arrow(at, at < 0))
    if isinstance(type_, StringType):
        return _strings(raw)
    valid = valid_mask(raw)
    if not isinstance(type_, BinaryType):
        valid = valid & (lengths(raw) == (len(type_) if isinstance(type_, FixedType) else _UUID_BYTES))
    return Bound(raw, valid)


def _numbers(type_: PrimitiveType, raw: _Packed) -> Bound:
    """Little-endian numbers; values of a length that the type does not have are invalid."""
    is_real = isinstance(type_, FloatType | DoubleType)
    values = np.zeros(len(raw), dtype=np.float64 if is_real else np.int64)
    valid = np.zeros(len(raw), dtype=np.bool_)
    for length, rows, matrix in raw.by_length():
        scale = _SCALES[type(type_)].get(length)
        if scale is None:
            continue
        numbers = np.ascontiguousarray(matrix).view(f"<{'f' if is_real else 'i'}{length}")[:, 0]
        if scale > 1:
            # Days of a column that was a date; a timestamp cannot express all of them.
            limit = np.iinfo(np.int64).max // scale
            values[rows] = numbers.astype(np.int64) * scale
            valid[rows] = (numbers <= limit) & (numbers >= -limit)
        else:
            values[rows] = numbers
            valid[rows] = (numbers == 0) | (numbers == 1) if isinstance(type_, BooleanType) else True
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
    buffers = [None, pa.py_buffer(little_endian)]
    return Bound(pa.Array.from_buffers(pa.decimal128(38, type_.scale), len(raw), buffers), valid)


def _strings(raw: pa.Array) -> Bound:
    try:
        return Bound(as_text(raw), valid_mask(raw))
    except pa.ArrowInvalid:
        # Rare: find the values that are not UTF-8, one by one.
        values = [v if v is not None and v == v.decode(errors="ignore").encode() else None for v in raw.to_pylist()]
        return _strings(pa.array(values, pa.large_binary()))


def _uuid_bounds(lower: _Packed, upper: _Packed) -> tuple[Bound, Bound]:
    sound = np.ones(len(lower), dtype=np.bool_)
    low, high = (np.zeros((len(lower), _UUID_BYTES), dtype=np.uint8) for _ in range(2))
    for raw, matrix in ((lower, low), (upper, high)):
        has_value = np.zeros(len(raw), dtype=np.bool_)
        for length, rows, found in raw.by_length():
            if length == _UUID_BYTES:
                matrix[rows], has_value[rows] = found, True
        sound &= has_value
    sound &= (low[:, 0] ^ high[:, 0]) < 0x80
    low[:, 8:] = 0x00
    high[:, 8:] = 0xFF
    return Bound(fixed_width(low), sound), Bound(fixed_width(high), sound)


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
        sizes = self.sizes[self.valid]
        if not len(sizes):
            return
        # Nearly always there is one length; np.unique would sort to find that out.
        distinct = [int(sizes[0])] if sizes.min() == sizes.max() else np.unique(sizes).tolist()
        for length in distinct:
            if not length:
                continue
            chosen = self.valid & (self.sizes == length)
            rows: Ints | slice = slice(None) if all_set(chosen) else np.flatnonzero(chosen)
            starts = self.starts[rows]
            first, end = int(starts[0]), int(starts[-1]) + length
            if self.in_order and end - first == len(starts) * length:
                yield length, rows, self.data[first:end].reshape(-1, length)
            else:  # gathered from a view in which every byte starts a value
                windows = np.ndarray((len(self.data) - length + 1,), f"V{length}", self.data, strides=(1,))
                yield length, rows, windows[starts].view(np.uint8).reshape(-1, length)


def as_text(raw: pa.Array) -> pa.Array:
    """``large_binary`` as ``large_string`` over the same memory; bytes that are not UTF-8 raise ``ArrowInvalid``.

    ASCII needs no validation, and the largest byte shows whether all is ASCII.
    """
    text = pa.Array.from_buffers(pa.large_string(), len(raw), raw.buffers(), raw.null_count, raw.offset)
    if len(raw) and _offsets_and_data(raw)[1].max(initial=0) > _LAST_ASCII:
        text.validate(full=True)
    return text


def lengths(raw: pa.Array) -> Ints:
    """Bytes of each value; meaningless for nulls."""
    return np.diff(_offsets_and_data(raw)[0]) if len(raw) else np.zeros(0, dtype=np.int64)


def _offsets_and_data(raw: pa.Array) -> tuple[Ints, Bytes]:
    _, offsets, data = raw.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64)[raw.offset : raw.offset + len(raw) + 1]
    if data is None or data.size == 0:
        return starts, np.zeros(0, dtype=np.uint8)
    return starts, np.frombuffer(data, dtype=np.uint8)


def fixed_width(matrix: Bytes, valid: Mask | None = None) -> pa.Array:
    """Rows of equal length as ``large_binary``."""
    count, width = matrix.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    bitmap, nulls = (None, 0) if valid is None else validity_bitmap(valid)
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    return pa.Array.from_buffers(pa.large_binary(), count, buffers, nulls)


def number_array(values: npt.NDArray[np.generic], valid: Mask | None = None) -> pa.Array:
    """Numbers as an Arrow array over the same memory."""
    bitmap, nulls = (None, 0) if valid is None else validity_bitmap(valid)
    buffers = [bitmap, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers, nulls)


def list_array(type_: pa.DataType, counts: npt.NDArray[np.integer], valid: Mask, items: pa.Array) -> pa.Array:
    """A list column of items, of which each row has as many as ``counts`` says."""
    bitmap, nulls = validity_bitmap(valid)
    buffers = [bitmap, pa.py_buffer(offsets_of(counts))]
    return pa.Array.from_buffers(type_, len(counts), buffers, nulls, children=[items])


def big_endian_decimals(type_: DecimalType, raw: pa.Array) -> pa.Array:
    """Two's-complement big-endian numbers as unscaled ``int64`` or as an Arrow decimal; null where they do not fit."""
    bound = _decimals(type_, _Packed.of(raw, None))
    if isinstance(bound.values, np.ndarray):
        return number_array(bound.values, bound.valid)
    bitmap, nulls = validity_bitmap(bound.valid)
    return pa.Array.from_buffers(bound.values.type, len(raw), [bitmap, bound.values.buffers()[1]], nulls)


def parse_type(text: str) -> PrimitiveType:
    """The type of this name; unknown if no primitive type has it."""
    parsed = NestedField.model_validate({"id": 1, "name": "v", "type": text, "required": False}).field_type
    return parsed if isinstance(parsed, PrimitiveType) else UnknownType()


def partition_arrow_type(type_: PrimitiveType) -> pa.DataType:
    """The Arrow type of a physical vector, as partition columns have it."""
    match type_:
        case UnknownType():
            return pa.null()
        case FloatType() | DoubleType():
            return pa.float64()
        case StringType():
            return pa.large_string()
        case BinaryType() | FixedType() | UUIDType():
            return pa.large_binary()
        case DecimalType() if type_.precision > MAX_INT64_DIGITS:
            return pa.decimal128(38, type_.scale)
        case _:
            return pa.int64()


def to_logical(type_: PrimitiveType, values: pa.Array) -> pa.Array:
    """A physical vector in the Arrow type of a column of this Iceberg type.

    Raises:
        CorruptMetadataError: A value is outside the range of its type.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # imported late: slow, and plans do not need it

    # Arrow's uuid is an extension type that few functions take.
    wanted = pa.binary(_UUID_BYTES) if isinstance(type_, UUIDType) else schema_to_pyarrow(type_)
    bitmap, nulls = validity_bitmap(valid_mask(values))
    try:
        match type_:
            case DecimalType() if pa.types.is_integer(values.type):
                # A decimal of 128 bits is the number in the lower 64 and its sign in the upper ones.
                numbers = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
                buffers = [bitmap, pa.py_buffer(np.stack([numbers, numbers >> 63], axis=1))]
                values = pa.Array.from_buffers(pa.decimal128(38, type_.scale), len(values), buffers, nulls)
            case DateType():
                values = values.cast(pa.int32())
            case FixedType() | UUIDType():
                filled = values.cast(pa.large_binary()).fill_null(bytes(wanted.byte_width))
                if (lengths(filled) != wanted.byte_width).any():
                    raise pa.ArrowInvalid(f"not {wanted.byte_width} bytes long")
                first = int(_offsets_and_data(filled)[0][0]) if len(filled) else 0
                data = pa.py_buffer(filled.buffers()[2] or b"").slice(first)
                return pa.Array.from_buffers(wanted, len(values), [bitmap, data], nulls)
        return values if values.type == wanted else values.cast(wanted)
    except pa.ArrowInvalid as error:
        raise CorruptMetadataError(f"a value does not fit its type {type_}: {error}") from error


def to_physical(type_: PrimitiveType, values: pa.Array) -> pa.Array:
    """The inverse of ``to_logical``."""
    wanted = partition_arrow_type(type_)
    match type_:
        case DecimalType() if pa.types.is_integer(wanted):
            halves = np.frombuffer(values.buffers()[1] or b"", dtype=np.int64)[: 2 * (values.offset + len(values))]
            return number_array(halves[2 * values.offset :: 2], valid_mask(values))
        case DateType():
            values = values.cast(pa.int32())
    return values if values.type == wanted else values.cast(wanted)


def fitting(type_: PrimitiveType, bound: Bound) -> pa.Array:
    """The values of a bound that its type can express, in the physical domain; the others are null."""
    values = bound.values if isinstance(bound.values, pa.Array) else pa.array(bound.values)
    fits = pa.array(bound.valid)
    limits = integer_limits(type_)
    if limits is not None:
        low, high = limits
        if pa.types.is_decimal(values.type) and isinstance(type_, DecimalType):
            low, high = (pa.scalar(unscaled_to_decimal(end, type_.scale), values.type) for end in limits)
        inside = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
        fits = pc.and_(fits, inside.fill_null(False))
    return pc.if_else(fits, values, pa.scalar(None, values.type))

"""Decodes raw statistics bytes into typed bounds, for many row groups or pages at once.

A bound is used only if its order is known: the file states TypeDefinedOrder for the column, or the bytes come from the
deprecated fields of a type that every writer compared as signed numbers. A value that cannot be decoded (wrong length,
not a boolean, outside the wanted type) is no bound. Where units differ, lower bounds are rounded down and upper bounds
up; a string cut inside a UTF-8 character is a lower bound up to the cut and no upper bound.

The wanted type differs from the file's when a column was promoted: int to long, float to double, a wider decimal, a
date read as a timestamp, timestamps in another unit. Any other pair is not comparable, and nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

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
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.parquet.footer.footer import ColumnChunks, ParquetFooter
from floeplan.parquet.footer.logical_types import Kind, Physical
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.predicate.stats import Bound
from floeplan.vectors import Ints, Mask

RawValues: TypeAlias = Sequence[bytes | None]

NANOS_PER_DAY = 86_400_000_000_000


class Family(StrEnum):
    """Types whose bounds are compared in one domain."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    FLOAT = "float"
    DECIMAL = "decimal"
    TEXT = "text"
    BYTES = "bytes"


class Side(StrEnum):
    """Lower or upper bound."""

    LOWER = "lower"
    UPPER = "upper"


_FAMILIES: dict[type[PrimitiveType], Family] = {
    BooleanType: Family.BOOLEAN,
    IntegerType: Family.INTEGER,
    LongType: Family.INTEGER,
    DateType: Family.DATE,
    TimeType: Family.TIME,
    TimestampType: Family.TIMESTAMP,
    TimestamptzType: Family.TIMESTAMP,
    TimestampNanoType: Family.TIMESTAMP,
    TimestamptzNanoType: Family.TIMESTAMP,
    FloatType: Family.FLOAT,
    DoubleType: Family.FLOAT,
    DecimalType: Family.DECIMAL,
    StringType: Family.TEXT,
    BinaryType: Family.BYTES,
    FixedType: Family.BYTES,
    UUIDType: Family.BYTES,
}


def family(type_: PrimitiveType) -> Family:
    """The domain in which values of a type are compared."""
    return _FAMILIES[type(type_)]


_TEXTUAL = (Family.TEXT, Family.BYTES)


def comparable(leaf: LeafColumn, wanted: PrimitiveType) -> bool:
    """Whether the values of the leaf, read as the wanted type, keep the order of what is stored."""
    if leaf.type is None or leaf.max_rep > 0 or type(wanted) not in _FAMILIES:
        return False
    stored, read_as = family(leaf.type), family(wanted)
    if isinstance(leaf.type, DecimalType) and isinstance(wanted, DecimalType):
        return leaf.type.scale == wanted.scale and leaf.type.precision <= wanted.precision
    if isinstance(leaf.type, DoubleType) and isinstance(wanted, FloatType):
        return False
    if stored is Family.DATE and read_as is Family.TIMESTAMP:
        return True
    return stored is read_as or (stored in _TEXTUAL and read_as in _TEXTUAL)


@dataclass(frozen=True, slots=True)
class ChunkStatistics:
    """The usable statistics of each chunk: null counts (-1 unknown), and raw bounds whose order is known."""

    null_count: Ints
    lower: RawValues
    upper: RawValues


def usable_statistics(footer: ParquetFooter, chunks: ColumnChunks) -> ChunkStatistics:
    """Drop the statistics of a column's chunks that cannot be trusted.

    A chunk that does not have one value or null per row has no usable statistics.
    """
    leaf = chunks.leaf
    lower: RawValues = (None,) * len(chunks.codec)
    upper = lower
    if has_known_order(leaf, footer.created_by):
        lower, upper = chunks.min_value, chunks.max_value
    if _always_signed(leaf):
        lower = tuple(old if new is None else new for new, old in zip(lower, chunks.old_min, strict=True))
        upper = tuple(old if new is None else new for new, old in zip(upper, chunks.old_max, strict=True))
    consistent = chunks.num_values == footer.row_group_rows
    if not consistent.all():
        lower = tuple(value if good else None for value, good in zip(lower, consistent, strict=True))
        upper = tuple(value if good else None for value, good in zip(upper, consistent, strict=True))
    nulls = reliable_null_counts(leaf, footer.created_by, chunks.null_count, footer.row_group_rows)
    return ChunkStatistics(np.where(consistent, nulls, -1), lower, upper)


def reliable_null_counts(leaf: LeafColumn, created_by: str, nulls: Ints, rows: Ints) -> Ints:
    """Replace null counts that may be too low by -1.

    ``parquet-cpp`` leaves the nulls of an enclosing struct out of the count of a dictionary-encoded column, so inside a
    struct only a count of all rows is reliable.
    """
    if len(leaf.path) > 1 and created_by.startswith("parquet-cpp"):
        return np.where(nulls == rows, nulls, -1)
    return nulls


def has_known_order(leaf: LeafColumn, created_by: str) -> bool:
    """Whether min/max statistics and the column index of a leaf are in the order its type defines.

    INT96 and intervals have no order in Parquet's specification. Old versions of ``parquet-mr`` and ``parquet-cpp``
    compared byte arrays as signed bytes, the latter decimals in byte arrays until Arrow 4.
    """
    if not leaf.ordered or leaf.type is None or leaf.physical is Physical.INT96:
        return False
    if leaf.physical not in (Physical.BYTE_ARRAY, Physical.FIXED_LEN_BYTE_ARRAY):
        return True
    writer = re.match(r"(parquet-mr|parquet-cpp-arrow|parquet-cpp) version (\d+)\.(\d+)", created_by)
    if writer is None:
        return True
    name, version = writer[1], (int(writer[2]), int(writer[3]))
    if name == "parquet-cpp-arrow":
        return leaf.annotation.kind is not Kind.DECIMAL or version >= (4, 0)
    return version >= (1, 10) if name == "parquet-mr" else leaf.annotation.kind is not Kind.DECIMAL


def _always_signed(leaf: LeafColumn) -> bool:
    """Whether every writer compared this type as signed numbers, so that the deprecated min and max can be used."""
    numbers = (Physical.BOOLEAN, Physical.INT32, Physical.INT64, Physical.FLOAT, Physical.DOUBLE)
    return leaf.physical in numbers and leaf.annotation.signed and leaf.ordered is not False


def decode_bound(leaf: LeafColumn, wanted: PrimitiveType, raw: RawValues, side: Side) -> Bound:
    """Decode one bound per row group or page into the domain of the wanted type, which must be ``comparable``."""
    match family(wanted):
        case Family.TEXT:
            return _text(pa.array(raw, type=pa.binary()), side)
        case Family.BYTES:
            values = pa.array(raw, type=pa.binary())
            return Bound(values, _present(values))
        case Family.BOOLEAN:
            numbers, valid = _fixed_width(raw, "u1")
            return Bound(numbers.astype(np.int64), valid & (numbers < 2))
        case Family.FLOAT:
            numbers, valid = _fixed_width(raw, _FLOATS[leaf.physical])
            return Bound(numbers.astype(np.float64), valid)
        case Family.DECIMAL if isinstance(wanted, DecimalType):
            return _decimal(leaf, wanted, raw)
    numbers, valid = _fixed_width(raw, _integer_format(leaf))
    return _rescaled(numbers.astype(np.int64), valid, stored_tick(leaf), tick_of(wanted), side)


_FLOATS = {Physical.FLOAT: "<f4", Physical.DOUBLE: "<f8", Physical.FIXED_LEN_BYTE_ARRAY: "<f2"}


def _integer_format(leaf: LeafColumn) -> str:
    if leaf.physical is Physical.INT64:
        return "<i8"
    return "<i4" if leaf.annotation.signed else "<u4"


def _present(values: pa.Array) -> Mask:
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False))


def _lengths(raw: RawValues) -> Ints:
    return np.fromiter((-1 if value is None else len(value) for value in raw), dtype=np.int64, count=len(raw))


def _fixed_width(raw: RawValues, format_: str) -> tuple[npt.NDArray[Any], Mask]:
    """Numbers of one width; a missing value or one of another length is invalid and reads as zero."""
    dtype = np.dtype(format_)
    valid = _lengths(raw) == dtype.itemsize
    zero = bytes(dtype.itemsize)
    values = raw if valid.all() else [value if good else zero for value, good in zip(raw, valid, strict=True)]
    return np.frombuffer(b"".join(values), dtype=dtype), valid  # type: ignore[arg-type]


def stored_tick(leaf: LeafColumn) -> int:
    """Nanoseconds of one stored unit; 1 for plain integers."""
    return NANOS_PER_DAY if leaf.annotation.kind is Kind.DATE else leaf.annotation.unit or 1


def tick_of(wanted: PrimitiveType) -> int:
    """Nanoseconds of one unit of a type's canonical values; 1 for plain integers."""
    match wanted:
        case DateType():
            return NANOS_PER_DAY
        case TimestampType() | TimestamptzType() | TimeType():
            return 1_000
    return 1


def _rescaled(values: Ints, valid: Mask, stored: int, wanted: int, side: Side) -> Bound:
    """Change the unit, rounding outwards; a value that overflows is no bound."""
    if stored > wanted:
        factor = stored // wanted
        limit = np.iinfo(np.int64).max // factor
        valid = valid & (values <= limit) & (values >= -limit)
        return Bound(np.where(valid, values, 0) * factor, valid)
    if stored < wanted:
        divisor = wanted // stored
        rounded = values // divisor
        return Bound(rounded if side is Side.LOWER else rounded + (values % divisor != 0), valid)
    return Bound(values, valid)


def _decimal(leaf: LeafColumn, wanted: DecimalType, raw: RawValues) -> Bound:
    """Unscaled decimals: ``int64`` for up to 18 digits, else Arrow decimals."""
    high, low, valid = _unscaled(leaf, raw)
    if wanted.precision <= 18:
        return Bound(low, valid & (high == low >> 63))
    pairs = np.column_stack((low, high)).astype("<i8")
    type_ = pa.decimal128(wanted.precision, wanted.scale)
    return Bound(pa.Array.from_buffers(type_, len(raw), [None, pa.py_buffer(pairs.tobytes())]), valid)


def _unscaled(leaf: LeafColumn, raw: RawValues) -> tuple[Ints, Ints, Mask]:
    """High and low halves of the 128-bit unscaled values, for every physical type that stores decimals."""
    if leaf.physical in (Physical.INT32, Physical.INT64):
        numbers, valid = _fixed_width(raw, "<i4" if leaf.physical is Physical.INT32 else "<i8")
        low = numbers.astype(np.int64)
        return (low >> 63 if leaf.annotation.signed else np.zeros_like(low)), low, valid
    high, low = np.zeros((2, len(raw)), dtype=np.int64)
    valid = np.zeros(len(raw), dtype=np.bool_)
    lengths = _lengths(raw)
    for length in np.unique(lengths[lengths > 0]).tolist():
        chosen = np.flatnonzero(lengths == length)
        data = np.frombuffer(b"".join(raw[i] or b"" for i in chosen.tolist()), dtype=np.uint8).reshape(-1, length)
        high[chosen], low[chosen], valid[chosen] = _big_endian(data)
    return high, low, valid


def _big_endian(data: npt.NDArray[np.uint8]) -> tuple[Ints, Ints, Mask]:
    """Two's complement, most significant byte first, of any length; more than 128 bits is invalid."""
    width = data.shape[1]
    sign = np.where(data[:, :1] > 127, np.uint8(255), np.uint8(0))
    fits = (data[:, : max(0, width - 16)] == sign).all(axis=1)
    if width > 16:
        fits &= (data[:, width - 16] > 127) == (sign[:, 0] == 255)
    padded = np.concatenate((np.repeat(sign, max(0, 16 - width), axis=1), data[:, -16:]), axis=1)
    halves = np.ascontiguousarray(padded).view(">i8").astype(np.int64)
    return halves[:, 0], halves[:, 1], fits


def _text(values: pa.Array, side: Side) -> Bound:
    try:
        return Bound(values.cast(pa.string()), _present(values))
    except pa.ArrowInvalid:
        repaired = [_cut_text(value, side) for value in values.to_pylist()]
        texts = pa.array(repaired, type=pa.string())
        return Bound(texts, _present(texts))


def _cut_text(value: bytes | None, side: Side) -> str | None:
    """A truncated bound that is not UTF-8: the part before the cut is a lower bound, and there is no upper bound."""
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        return value[: error.start].decode("utf-8") if side is Side.LOWER else None

"""Parquet statistics as typed bounds and counts, for many row groups or pages at once.

A bound is used only if its order is known: the file states TypeDefinedOrder for the column, or the bytes come from the
deprecated fields of a type that every writer compared as signed numbers. A value that cannot be decoded (wrong length,
not a boolean, outside the wanted type) is ignored. Where units differ, lower bounds are rounded down and upper bounds
up; a string cut inside a UTF-8 character is a lower bound up to the cut and no upper bound.

The wanted type differs from the file's when a column was promoted: int to long, float to double, a wider decimal, a
date read as a timestamp, timestamps in another unit. Any other pair is not comparable, and nothing is known.

Fail-safe: what a file does not state is unknown and keeps the rows: a missing null count, NaN in floating-point columns
(Parquet does not count them), a column of a type that cannot be read as the predicate's. Contradicting counts make the
row group or page unknown. A column that is not in the file is null in every row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg import types as iceberg

from floeplan import arrow_compute as pc
from floeplan.parquet.footer.footer import ColumnChunks, ParquetFooter
from floeplan.parquet.footer.logical_types import Kind, Physical
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable
from floeplan.vectors import Ints, Mask, arrow_binary, valid_mask

RawValues: TypeAlias = Sequence[bytes | None]

NANOS_PER_DAY = 86_400_000_000_000
_MICROS = (iceberg.TimestampType, iceberg.TimestamptzType)
_FLOATS = {Physical.FLOAT: "<f4", Physical.DOUBLE: "<f8", Physical.FIXED_LEN_BYTE_ARRAY: "<f2"}
_SIGNED = (Physical.BOOLEAN, Physical.INT32, Physical.INT64, Physical.FLOAT, Physical.DOUBLE)
"""Types that every writer compared as signed numbers, unless they are annotated as unsigned."""


class Family(Enum):
    """Types whose bounds are compared in one domain."""

    BOOLEAN = (iceberg.BooleanType,)
    INTEGER = (iceberg.IntegerType, iceberg.LongType)
    DATE = (iceberg.DateType,)
    TIME = (iceberg.TimeType,)
    TIMESTAMP = (*_MICROS, iceberg.TimestampNanoType, iceberg.TimestamptzNanoType)
    FLOAT = (iceberg.FloatType, iceberg.DoubleType)
    DECIMAL = (iceberg.DecimalType,)
    TEXT = (iceberg.StringType,)
    BYTES = (iceberg.BinaryType, iceberg.FixedType, iceberg.UUIDType)


class Side(StrEnum):
    """Lower or upper bound."""

    LOWER = "lower"
    UPPER = "upper"


_FAMILIES: dict[type[iceberg.PrimitiveType], Family] = {type_: one for one in Family for type_ in one.value}


def family(type_: iceberg.PrimitiveType) -> Family:
    """The domain in which values of a type are compared."""
    return _FAMILIES[type(type_)]


def row_group_stats(
    footer: ParquetFooter, wanted: Iterable[Column], leaves: Mapping[int, LeafColumn] | None = None
) -> StatsTable:
    """Statistics of all row groups, by field id.

    A column that is not in the file is null in every row; callers whose schema gives it an initial default replace that
    entry.

    Args:
        footer: The file's footer.
        wanted: The columns, with the types of the predicate.
        leaves: The file's leaf for each field id; the footer's own mapping by default.
    """
    rows = footer.row_group_rows
    found: dict[int, ColumnStats] = {}
    for column in wanted:
        leaf = (footer.leaf_by_id if leaves is None else leaves).get(column.field_id)
        if leaf is not None:
            if comparable(leaf, column.type):
                key = leaf.index, column.type
                if key not in footer.statistics:
                    usable = usable_statistics(footer, footer.chunks(leaf))
                    footer.statistics[key] = column_stats(leaf, column.type, rows, usable)
                found[column.field_id] = footer.statistics[key]
        elif leaves is not None or column.field_id not in footer.columns.field_ids:
            found[column.field_id] = ColumnStats.all_null(rows > 0)
    return StatsTable(len(rows), found, rows > 0)


def column_stats(leaf: LeafColumn, wanted: iceberg.PrimitiveType, rows: Ints, known: RawStatistics) -> ColumnStats:
    """The statistics of one column over row groups or pages with these numbers of rows."""
    return ColumnStats.from_counts(
        rows,
        np.zeros_like(rows) if leaf.max_def == 0 else known.null_count,
        np.full_like(rows, -1 if family(wanted) is Family.FLOAT else 0),  # Parquet does not count NaN
        decode_bound(leaf, wanted, known.lower, Side.LOWER),
        decode_bound(leaf, wanted, known.upper, Side.UPPER),
    )


def comparable(leaf: LeafColumn, wanted: iceberg.PrimitiveType) -> bool:
    """Whether the values of the leaf, read as the wanted type, keep the order of what is stored."""
    if leaf.type is None or leaf.max_rep > 0 or type(wanted) not in _FAMILIES:
        return False
    stored, read_as = family(leaf.type), family(wanted)
    if isinstance(leaf.type, iceberg.DecimalType) and isinstance(wanted, iceberg.DecimalType):
        return leaf.type.scale == wanted.scale and leaf.type.precision <= wanted.precision
    if isinstance(leaf.type, iceberg.DoubleType) and isinstance(wanted, iceberg.FloatType):
        return False
    if stored is Family.DATE and read_as is Family.TIMESTAMP:
        return True
    return stored is read_as or {stored, read_as} == {Family.TEXT, Family.BYTES}


@dataclass(frozen=True, slots=True)
class RawStatistics:
    """Statistics of one column over row groups or pages: null counts (-1 unknown), and raw bounds of known order."""

    null_count: Ints
    lower: RawValues
    upper: RawValues


def usable_statistics(footer: ParquetFooter, chunks: ColumnChunks) -> RawStatistics:
    """Drop the statistics of a column's chunks that cannot be trusted.

    A chunk that does not have one value or null per row has no usable statistics.
    """
    leaf = chunks.leaf
    ordered = has_known_order(leaf, footer.created_by)
    with_deprecated = leaf.physical in _SIGNED and leaf.annotation.signed and leaf.ordered is not False
    consistent = chunks.num_values == footer.row_group_rows
    bounds: list[RawValues] = []
    for values, deprecated in ((chunks.min_value, chunks.old_min), (chunks.max_value, chunks.old_max)):
        raw = values if ordered else (None,) * len(values)
        if with_deprecated:
            raw = tuple(old if new is None else new for new, old in zip(raw, deprecated, strict=True))
        if not consistent.all():
            raw = tuple(value if good else None for value, good in zip(raw, consistent, strict=True))
        bounds.append(raw)
    nulls = reliable_null_counts(leaf, footer.created_by, chunks.null_count, footer.row_group_rows)
    return RawStatistics(np.where(consistent, nulls, -1), bounds[0], bounds[1])


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


def decode_bound(leaf: LeafColumn, wanted: iceberg.PrimitiveType, raw: RawValues, side: Side) -> Bound:
    """Decode one bound per row group or page into the domain of the wanted type, which must be ``comparable``."""
    match family(wanted):
        case Family.TEXT:
            return _decode_texts(raw, side)
        case Family.BYTES:
            values = arrow_binary(raw)
            return Bound(values, valid_mask(values))
        case Family.BOOLEAN:
            numbers, valid = _fixed_width(raw, "u1")
            return Bound(numbers.astype(np.int64), valid & (numbers < 2))
        case Family.FLOAT:
            numbers, valid = _fixed_width(raw, _FLOATS[leaf.physical])
            return Bound(numbers.astype(np.float64), valid)
        case Family.DECIMAL if isinstance(wanted, iceberg.DecimalType):
            return _decode_decimals(leaf, wanted, raw)
    # Integers, dates, times and timestamps: change the unit, rounding outwards; a value that overflows is not a bound.
    stored, unit = stored_tick(leaf), tick_of(wanted)
    narrow = "<i4" if leaf.annotation.signed else "<u4"
    numbers, valid = _fixed_width(raw, "<i8" if leaf.physical is Physical.INT64 else narrow)
    ticks = numbers.astype(np.int64)
    if stored > unit:
        factor = stored // unit
        limit = np.iinfo(np.int64).max // factor
        valid &= (ticks <= limit) & (ticks >= -limit)
        ticks = np.where(valid, ticks, 0) * factor
    elif stored < unit:
        divisor = unit // stored
        ticks = ticks // divisor + (0 if side is Side.LOWER else ticks % divisor != 0)
    return Bound(ticks, valid)


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


def tick_of(wanted: iceberg.PrimitiveType) -> int:
    """Nanoseconds of one unit of a type's canonical values; 1 for plain integers."""
    if isinstance(wanted, iceberg.DateType):
        return NANOS_PER_DAY
    return 1_000 if isinstance(wanted, (*_MICROS, iceberg.TimeType)) else 1


def _decode_decimals(leaf: LeafColumn, wanted: iceberg.DecimalType, raw: RawValues) -> Bound:
    """Unscaled decimals: ``int64`` for up to 18 digits, else Arrow decimals; more than 128 bits is not a bound."""
    if leaf.physical in (Physical.INT32, Physical.INT64):
        numbers, valid = _fixed_width(raw, "<i4" if leaf.physical is Physical.INT32 else "<i8")
        low = numbers.astype(np.int64)
        high = low >> 63 if leaf.annotation.signed else np.zeros_like(low)
    else:
        high, low = np.zeros((2, len(raw)), dtype=np.int64)
        valid = np.zeros(len(raw), dtype=np.bool_)
        lengths = _lengths(raw)
        # Byte arrays hold two's complement, most significant byte first, of any length: all of one length at once.
        for length in np.unique(lengths[lengths > 0]).tolist():
            chosen = np.flatnonzero(lengths == length)
            data = np.frombuffer(b"".join(raw[i] or b"" for i in chosen.tolist()), dtype=np.uint8).reshape(-1, length)
            sign = np.where(data[:, :1] > 127, np.uint8(255), np.uint8(0))
            valid[chosen] = (data[:, : max(0, length - 16)] == sign).all(axis=1)
            if length > 16:
                valid[chosen] &= (data[:, length - 16] > 127) == (sign[:, 0] == 255)
            padded = np.concatenate((np.repeat(sign, max(0, 16 - length), axis=1), data[:, -16:]), axis=1)
            halves = np.ascontiguousarray(padded).view(">i8").astype(np.int64)
            high[chosen], low[chosen] = halves.T
    if wanted.precision <= 18:
        return Bound(low, valid & (high == low >> 63))
    pairs = np.column_stack((low, high)).astype("<i8")
    type_ = pa.decimal128(wanted.precision, wanted.scale)
    return Bound(pa.Array.from_buffers(type_, len(raw), [None, pa.py_buffer(pairs.tobytes())]), valid)


def _decode_texts(raw: RawValues, side: Side) -> Bound:
    values = arrow_binary(raw)
    try:
        texts = pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        # Truncated bounds that are not UTF-8: the part before the cut is a lower bound, and there is no upper bound.
        repaired: list[str | None] = []
        for value in raw:
            try:
                repaired.append(None if value is None else value.decode("utf-8"))
            except UnicodeDecodeError as error:
                repaired.append(error.object[: error.start].decode("utf-8") if side is Side.LOWER else None)
        texts = pa.array(repaired, type=pa.string())
    return Bound(texts, valid_mask(texts))

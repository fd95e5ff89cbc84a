"""Canonical values of every Iceberg primitive type: the awkward ones, random ones, and the neighbours of a value."""

from __future__ import annotations

import math
import struct
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
from pyiceberg import transforms as pt
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

TYPES: tuple[PrimitiveType, ...] = (
    BooleanType(),
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    DecimalType(1, 0),
    DecimalType(9, 2),
    DecimalType(18, 18),
    DecimalType(19, 0),
    DecimalType(38, 10),
    DecimalType(38, 38),
    DateType(),
    TimeType(),
    TimestampType(),
    TimestamptzType(),
    TimestampNanoType(),
    TimestamptzNanoType(),
    StringType(),
    UUIDType(),
    FixedType(3),
    BinaryType(),
)

TRICKY_TYPES = (FloatType(), DoubleType(), StringType())
INT32, INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
LIMITS = {
    IntegerType: INT32,
    LongType: INT64,
    DateType: INT32,
    TimeType: (0, 86_400_000_000 - 1),
    TimestampType: INT64,
    TimestamptzType: INT64,
    TimestampNanoType: INT64,
    TimestamptzNanoType: INT64,
}
YEAR_1, YEAR_9999_END = -62_135_596_800, 253_402_300_800
LANDMARKS = {
    DateType: (-719_162, -1, 0, 19_783, 2_932_896),
    TimestampType: (YEAR_1 * 10**6, -1, 1_709_251_200_000_000, YEAR_9999_END * 10**6 - 1),
    TimestamptzType: (YEAR_1 * 10**6, -1, 1_709_251_200_000_000, YEAR_9999_END * 10**6 - 1),
    TimestampNanoType: (-1, 999, 1000, 1_709_251_200_000_000_001),
    TimestamptzNanoType: (-1, 999, 1000, 1_709_251_200_000_000_001),
}
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, math.inf, -math.inf, math.nan)
FLOAT_EDGES = (2.0**-149, -(2.0**-149), 2.0**-126, 3.4028234663852886e38, -3.4028234663852886e38, 16777216.0)
DOUBLE_EDGES = (5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1, 9007199254740993.0)
CHARACTERS = "aAb \x00\x7fé߿ࠀ中\ud7ff\ue000�\uffff\U00010000\U0001f9ca\U0010ffff%_'\\"
STRINGS = (
    "",
    "a",
    "ab",
    "abc",
    "b",
    "\x00",
    "é",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U00010000",
    "\U0010ffff",
    "a\U0010ffff",
)


def is_float(type_: PrimitiveType) -> bool:
    return isinstance(type_, FloatType | DoubleType)


def edges(type_: PrimitiveType) -> tuple[Any, ...]:
    """Edge cases of a type."""
    if type(type_) in LIMITS:
        low, high = LIMITS[type(type_)]
        return (low, low + 1, high - 1, high, *LANDMARKS.get(type(type_), (0, 1)))
    match type_:
        case BooleanType():
            return (False, True)
        case FloatType():
            return FLOATS + FLOAT_EDGES
        case DoubleType():
            return FLOATS + FLOAT_EDGES + DOUBLE_EDGES
        case DecimalType():
            most = 10**type_.precision - 1
            return tuple(decimal(unscaled, type_.scale) for unscaled in (-most, -most + 1, -1, 0, 1, most - 1, most))
        case StringType():
            return STRINGS
        case UUIDType():
            return (bytes(16), b"\xff" * 16, b"\x7f" + bytes(15), b"\x80" + bytes(15))
        case FixedType():
            return (bytes(len(type_)), b"\xff" * len(type_), b"\x80" * len(type_))
        case BinaryType():
            return (b"", b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"a", b"a\x00")
    raise AssertionError(type_)


def values(type_: PrimitiveType) -> st.SearchStrategy[Any]:
    """Any value of the type, edge cases preferred."""
    known = st.sampled_from(edges(type_)) | _ordinary(type_)
    return st.sampled_from(FLOATS) | known if is_float(type_) else known


def _ordinary(type_: PrimitiveType) -> st.SearchStrategy[Any]:
    if type(type_) in LIMITS:
        low, high = LIMITS[type(type_)]
        return st.integers(max(low, -5), 5) | st.integers(low, high)
    match type_:
        case BooleanType():
            return st.booleans()
        case FloatType():
            return st.floats(width=32)
        case DoubleType():
            return st.floats()
        case DecimalType():
            most = 10**type_.precision - 1
            unscaled = st.integers(max(-most, -20), min(most, 20)) | st.integers(-most, most)
            return unscaled.map(lambda number: decimal(number, type_.scale))
        case StringType():
            return st.text(CHARACTERS, max_size=4)
        case UUIDType():
            return st.binary(min_size=16, max_size=16)
        case FixedType():
            return st.binary(min_size=len(type_), max_size=len(type_))
    return st.binary(max_size=4)


def neighbours(type_: PrimitiveType, value: Any) -> list[Any]:
    """The adjacent values, if the type has them; literals of float columns may be any double."""
    if type(type_) in LIMITS:
        low, high = LIMITS[type(type_)]
        return [near for near in (value - 1, value + 1) if low <= near <= high]
    match type_:
        case FloatType() | DoubleType() if math.isfinite(value):
            near = [-value, math.nextafter(value, -math.inf), math.nextafter(value, math.inf)]
            return [*near, single(value)] if abs(value) < 3e38 else near
        case DecimalType():
            most = 10**type_.precision - 1
            unscaled = unscaled_of(value, type_.scale)
            return [decimal(near, type_.scale) for near in (unscaled - 1, unscaled + 1) if abs(near) <= most]
        case StringType():
            return [value[:-1], value + "\x00", value + "\U0010ffff", value[:1]]
        case UUIDType() | FixedType():
            number = int.from_bytes(value)
            return [near.to_bytes(len(value)) for near in (number - 1, number + 1) if 0 <= near < 256 ** len(value)]
        case BinaryType():
            return [value[:-1], value + b"\x00", value + b"\xff"]
    return []


def single(value: float) -> float:
    """The nearest float of 32 bits."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def decimal(unscaled: int, scale: int) -> Decimal:
    """Exact for any number of digits, unlike arithmetic in the default context."""
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def unscaled_of(value: Decimal, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    assert exponent == -scale
    number = int("".join(map(str, digits)))
    return -number if sign else number


# Partition values as writers store them: as specified, and with every known fault. A slow, independent reference:
# calendar arithmetic by the standard library, shifted by whole cycles of 400 years; hashes by PyIceberg; rounding
# toward zero and the loss of upper bits as in the faulty code.


TIME = (pt.YearTransform(), pt.MonthTransform(), pt.DayTransform(), pt.HourTransform())
WIDTHS = (1, 2, 3, 10, 16)
TRANSFORMS = (pt.IdentityTransform(), *TIME, pt.BucketTransform(7), *(pt.TruncateTransform(w) for w in WIDTHS))
CASES = [(transform, type_) for transform in TRANSFORMS for type_ in TYPES if transform.can_transform(type_)]

CYCLE_YEARS, CYCLE_DAYS = 400, 146_097
EPOCH = date(1970, 1, 1)


def ticks_per_second(type_: PrimitiveType) -> int:
    return 10**9 if isinstance(type_, TimestampNanoType | TimestamptzNanoType) else 10**6


def calendar(days: int) -> tuple[int, int]:
    """Year and month of a day, for any number of days."""
    cycles, rest = divmod(days, CYCLE_DAYS)
    day = EPOCH + timedelta(days=rest)
    return day.year + cycles * CYCLE_YEARS, day.month


def unit_of(transform: Any, type_: PrimitiveType, value: int) -> int:
    """Units since 1970, rounding down."""
    seconds = value * 86_400 if isinstance(type_, DateType) else value // ticks_per_second(type_)
    if isinstance(transform, pt.HourTransform):
        return seconds // 3600
    days = seconds // 86_400
    if isinstance(transform, pt.DayTransform):
        return days
    year, month = calendar(days)
    return year - 1970 if isinstance(transform, pt.YearTransform) else (year - 1970) * 12 + month - 1


def specified(transform: Any, type_: PrimitiveType, value: Any) -> Any:
    """The partition value according to the specification."""
    if value is None or isinstance(transform, pt.IdentityTransform):
        return value
    if isinstance(transform, pt.BucketTransform):
        return transform.transform(type_)(value)
    if isinstance(transform, pt.TruncateTransform):
        if isinstance(type_, StringType | BinaryType):
            return value[: transform.width]
        if isinstance(type_, DecimalType):
            unscaled = unscaled_of(value, type_.scale)
            return decimal(unscaled - unscaled % transform.width, type_.scale)
        return value - value % transform.width
    return unit_of(transform, type_, value)


def toward_zero(transform: Any, type_: PrimitiveType, value: int) -> int:
    """Whole units between 1970 and the value, truncated toward zero: a fault of some writers before 1970."""
    unit = unit_of(transform, type_, value)
    on_the_boundary = unit_of(transform, type_, value - 1) != unit
    return unit if value >= 0 or on_the_boundary else unit + 1


def iceberg_java(transform: Any, type_: PrimitiveType, value: int) -> int:
    """Whole units between 1970 and the next tick, minus one; the next tick does not carry into the second."""
    if value >= 0 or isinstance(type_, DateType):
        return unit_of(transform, type_, value)
    ticks = ticks_per_second(type_)
    following = value // ticks * ticks + (value + 1) % ticks
    return toward_zero(transform, type_, following) - 1


def written(transform: Any, type_: PrimitiveType, value: Any) -> list[Any]:
    """Every partition value that some writer may have stored for a value."""
    if value is None or not isinstance(transform, pt.TruncateTransform | pt.TimeTransform):
        return [specified(transform, type_, value)]
    labels = {specified(transform, type_, value)}
    if isinstance(transform, pt.TimeTransform) and not (
        isinstance(type_, DateType) and isinstance(transform, pt.DayTransform)
    ):
        labels |= {toward_zero(transform, type_, value), iceberg_java(transform, type_, value)}
    return sorted(label for each in labels for label in _fitting(transform, type_, each))


def _fitting(transform: Any, type_: PrimitiveType, label: Any) -> list[Any]:
    """The values a label can become in its type, with or without its upper bits; decimals only if they fit."""
    if isinstance(type_, StringType | BinaryType):
        return [label]
    result = transform.result_type(type_)
    if isinstance(result, DecimalType):
        stored = result.precision <= 18 or abs(unscaled_of(label, result.scale)) < 10**result.precision
        return [label] if stored else []
    bits = 64 if isinstance(result, LongType) else 32
    wrapped = (label + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    return [wrapped] if bits == 64 or not isinstance(result, IntegerType) else sorted({wrapped, label})


def awkward_values(transform: Any, type_: PrimitiveType) -> list[Any]:
    """Values around the boundaries of units: 1970, before it, the last tick of a first second, the limits."""
    if isinstance(transform, pt.TimeTransform):
        if isinstance(type_, DateType):
            return [-800, -366, -365, -364, -32, -31, -30, -2, -1, 0, 1, 30, 31, 364, 365, 366]
        second = ticks_per_second(type_)
        starts = [second * s for s in (-366 * 86_400, -365 * 86_400, -31 * 86_400, -86_400, -3600, 0, 3600, 86_400)]
        return [start + near for start in starts for near in (-1, 0, 1, second - 1, second)]
    if isinstance(transform, pt.TruncateTransform) and isinstance(type_, StringType):
        return ["", "a", "😀", "😀x", "é", "éé", "ab", "abc", "a😀b", "abcdefghij", "abcdefghijk"]
    if isinstance(transform, pt.TruncateTransform) and isinstance(type_, BinaryType):
        return [b"", b"\x00", b"\xff", b"ab", b"ab\x00", b"abc", b"abcdefghij", b"abcdefghijk"]
    if isinstance(transform, pt.TruncateTransform) and isinstance(type_, IntegerType | LongType):
        lowest = -(2**31) if isinstance(type_, IntegerType) else -(2**63)
        return [lowest + near for near in range(12)] + list(range(-21, 22))
    return []

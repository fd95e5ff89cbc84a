"""Partition values as writers store them: as the specification says, and with every fault known of one.

An independent reference, the slow way: calendar arithmetic by the standard library, shifted by whole cycles of 400
years; hashes by PyIceberg; rounding toward zero and the loss of upper bits done the way the faulty code does them.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from pyiceberg import transforms as pt
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestamptzNanoType,
)

from tests.support.values import TYPES, decimal, unscaled_of

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
    """The partition value the specification asks for."""
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
    """Whole units between 1970 and the value, as writers count that do not think of times before it."""
    unit = unit_of(transform, type_, value)
    on_the_boundary = unit_of(transform, type_, value - 1) != unit
    return unit if value >= 0 or on_the_boundary else unit + 1


def iceberg_java(transform: Any, type_: PrimitiveType, value: int) -> int:
    """Whole units between 1970 and the next tick, less one; the next tick forgets to carry into the second."""
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
    """What becomes of a label in its type: upper bits are lost, or not; of decimals only what can be stored."""
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

"""Arithmetic, comparisons and functions on vectors, with Spark's results.

Adding months keeps the day of the month or, in a shorter month, takes its last day. Adding whole days to a date gives a
date, adding anything finer gives a timestamp.

Fail-safe: overflow and division by zero are errors, as in ANSI mode; where Arrow's result could differ from Spark's
(division of decimals, rounding of doubles, regular expressions whose syntax differs between Java and RE2) the function
raises ``UnsupportedError``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from floeplan.errors import TypeMismatchError, UnsupportedError
from floeplan.predicate.rows.types import (
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    Vector,
    as_decimal_type,
    cast,
    common_type,
    is_number,
    map_distinct,
    wider_decimal,
    with_room,
)
from floeplan.predicate.spark_text import Interval

_LINE_ENDS = "[\r\n\x0b\x0c\x85\u2028\u2029]"
_DIFFERS_FROM_JAVA = re.compile(r"\(\?[^:]|&&|\[\[|\[\^?\[|\\[bBhRXZGk]|\[[^\]]*\[")
_TRUNCATION_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")
_UNIT_ALIASES = {"yyyy": "year", "yy": "year", "mon": "month", "mm": "month", "dd": "day"}


def unify(vectors: Sequence[Vector]) -> list[Vector]:
    """Cast all vectors to their common type; Spark considers text first."""
    target = pa.null()
    for type_ in sorted((vector.type for vector in vectors), key=lambda type_: type_ != STRING):
        target = common_type(target, type_)
    return [cast(vector, target) for vector in vectors]


def compare(op: str, left: Vector, right: Vector) -> Vector:
    """A comparison; NaN is equal to itself and above everything."""
    if op == "<=>":
        return null_safe_equal(left, right)
    left, right = unify((left, right))
    if pt.is_null(left.type):
        return pa.scalar(None, pa.bool_())
    if pt.is_floating(left.type):
        return _compare_floats(op, left, right)
    return _COMPARISONS[op](left, right)


def _compare_floats(op: str, left: Vector, right: Vector) -> Vector:
    if op in (">", ">="):
        return _compare_floats({">": "<", ">=": "<="}[op], right, left)
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    if op == "<":
        return pc.or_(pc.less(left, right), pc.and_(right_nan, pc.invert(left_nan)))
    if op == "<=":
        return pc.or_(pc.less_equal(left, right), right_nan)
    equal = pc.or_(pc.equal(left, right), pc.and_(left_nan, right_nan))
    return equal if op == "=" else pc.invert(equal)


_COMPARISONS: dict[str, Callable[[Vector, Vector], Vector]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def null_safe_equal(left: Vector, right: Vector) -> Vector:
    """``<=>``: equal, or both null; never null itself."""
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.fill_null(compare("=", left, right), False), both_null)


def arithmetic(op: str, left: Vector, right: Vector) -> Vector:
    """``+``, ``-`` or ``*`` of two numbers."""
    left, right = _numbers(op, left, right)
    if pt.is_decimal(left.type) or pt.is_decimal(right.type):
        left, right = (cast(side, as_decimal_type(side.type)) for side in (left, right))
        digits = left.type.precision + right.type.precision + 1
        if op != "*":
            wide = wider_decimal(left.type, right.type)
            digits, left, right = wide.precision + 1, cast(left, wide), cast(right, wide)
        if digits > 38:
            raise UnsupportedError(f"decimals whose {op} needs {digits} digits cannot be evaluated outside Spark")
    return {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}[op](left, right)


def _numbers(op: str, left: Vector, right: Vector) -> list[Vector]:
    """Two numbers in a common type; text is cast to the other side's type, decimals keep their own types."""
    target = common_type(left.type, right.type)
    if target == STRING:
        target = DOUBLE
    if pt.is_null(target):
        target = INT
    if not is_number(target):
        raise TypeMismatchError(f"a {left.type} {op} a {right.type} is not a number")
    if pt.is_decimal(target) and not {left.type, right.type} & {STRING, pa.null()}:
        return [left, right]
    return [cast(left, target), cast(right, target)]


def divide(left: Vector, right: Vector) -> Vector:
    """``/``: of doubles, into which integers are cast."""
    left, right = _numbers("/", left, right)
    if pt.is_decimal(left.type) or pt.is_decimal(right.type):
        raise UnsupportedError("the division of decimals cannot be evaluated outside Spark; cast one side to DOUBLE")
    left, right = cast(left, DOUBLE), cast(right, DOUBLE)
    _reject_zero(left, right, "division")
    return pc.divide(left, right)


def int_divide(left: Vector, right: Vector) -> Vector:
    """``DIV``: of integers, towards zero."""
    left, right = _numbers("DIV", left, right)
    if not (pt.is_integer(left.type) and pt.is_integer(right.type)):
        raise UnsupportedError("DIV of numbers that are not integers cannot be evaluated outside Spark")
    return pc.divide_checked(cast(left, LONG), cast(right, LONG))


def remainder(left: Vector, right: Vector) -> Vector:
    """``%``: with the sign of the dividend."""
    left, right = _numbers("%", left, right)
    if pt.is_decimal(left.type) or pt.is_decimal(right.type):
        raise UnsupportedError("the remainder of decimals cannot be evaluated outside Spark")
    _reject_zero(left, right, "remainder")
    dividend, divisor = _plain(left), _plain(right)
    if not pt.is_floating(left.type):
        divisor = np.where(divisor == 0, 1, divisor)  # zeros here were nulls
    with np.errstate(all="ignore"):
        result = np.fmod(dividend, divisor)
    values = pa.scalar(result.item(), left.type) if result.ndim == 0 else pa.array(result, type=left.type)
    return pc.if_else(pc.and_(pc.is_valid(left), pc.is_valid(right)), values, pa.scalar(None, left.type))


def _reject_zero(left: Vector, right: Vector, what: str) -> None:
    zero = pc.and_(pc.equal(right, pa.scalar(0).cast(right.type)), pc.is_valid(left))
    if (pc.any(zero) if isinstance(zero, pa.Array) else zero).as_py():
        raise pa.ArrowInvalid(f"{what} by zero")


def _plain(values: Vector) -> Any:
    """A vector for NumPy, with zero for null."""
    filled = pc.fill_null(values, 0)
    if isinstance(filled, pa.Scalar):
        return np.array(filled.as_py(), dtype=filled.type.to_pandas_dtype())
    return filled.to_numpy(zero_copy_only=False)


def negate(values: Vector) -> Vector:
    """Unary minus."""
    return pc.negate(values) if pt.is_decimal(values.type) else pc.negate_checked(values)


def lower(values: Vector) -> Vector:
    """LOWER with full case mapping, as in Java."""
    return map_distinct(cast(values, STRING), str.lower, STRING)


def length(values: Vector) -> Vector:
    """Characters of a string, bytes of binary."""
    counted = pc.binary_length(values) if pt.is_large_binary(values.type) else pc.utf8_length(cast(values, STRING))
    return counted.cast(INT)


def concat(parts: Sequence[Vector]) -> Vector:
    """Concatenated strings; null if any is null."""
    return pc.binary_join_element_wise(*(cast(part, STRING) for part in parts), pa.scalar("", STRING))


def regex_like(values: Vector, pattern: str) -> Vector:
    """RLIKE, for patterns and texts on which RE2 and Java's regular expressions agree."""
    if _DIFFERS_FROM_JAVA.search(pattern):
        raise UnsupportedError(f"the regular expression {pattern!r} cannot be evaluated outside Spark")
    values = cast(values, STRING)
    # Java's ``.`` and ``$`` treat more characters as line ends than RE2's.
    has_line_end = pc.match_substring_regex(values, _LINE_ENDS)
    if (pc.any(has_line_end) if isinstance(has_line_end, pa.Array) else has_line_end).as_py():
        raise UnsupportedError("RLIKE on text with line breaks cannot be evaluated outside Spark")
    try:
        return pc.match_substring_regex(values, pattern)
    except pa.ArrowInvalid as error:
        raise UnsupportedError(f"the regular expression {pattern!r} cannot be evaluated outside Spark") from error


def absolute(values: Vector) -> Vector:
    """ABS, with overflow an error."""
    return pc.abs(values) if pt.is_decimal(values.type) else pc.abs_checked(values)


def whole(values: Vector, function: Callable[[Vector], Vector]) -> Vector:
    """FLOOR or CEIL: doubles become long integers."""
    if pt.is_integer(values.type):
        return cast(values, LONG)
    if pt.is_decimal(values.type):
        return function(with_room(values))
    return function(values).cast(LONG)


def date_part(function: Callable[[Vector], Vector]) -> Callable[[Vector], Vector]:
    """YEAR, MONTH, HOUR and other parts of a timestamp in UTC, as a function of the timestamps."""
    return lambda values: function(_without_zone(values)).cast(INT)


def truncate_instant(values: Vector, unit: str) -> Vector:
    """DATE_TRUNC: a timestamp at the start of its unit."""
    name = _UNIT_ALIASES.get(unit.lower(), unit.lower())
    if name not in _TRUNCATION_UNITS:
        raise UnsupportedError(f"date_trunc to {unit!r} cannot be evaluated outside Spark")
    zone = getattr(values.type, "tz", "UTC")
    floored = pc.floor_temporal(_without_zone(values), unit=name)
    return floored.cast(pa.timestamp(floored.type.unit, zone))


def _without_zone(values: Vector) -> Vector:
    if values.type == STRING:
        values = cast(values, pa.timestamp("us", "UTC"))
    if pt.is_date(values.type):
        return values.cast(pa.timestamp("us"))
    if not pt.is_timestamp(values.type):
        raise TypeMismatchError(f"a {values.type} has no date and time")
    return values.cast(pa.timestamp(values.type.unit))


def add_days(dates: Vector, days: Vector) -> Vector:
    """Add numbers of days to dates; overflow is an error."""
    return pc.add_checked(dates.cast(INT), days).cast(DATE)


def add_interval(values: Vector, interval: Interval) -> Vector:
    """Add an interval to dates or timestamps; overflow is an error."""
    if isinstance(values, pa.Scalar):
        return add_interval(pa.array([values], values.type), interval)[0]
    if pt.is_date32(values.type) and interval.timed:
        values = values.cast(pa.timestamp("us", "UTC"))
    if interval.months:
        values = _add_months(values, interval.months)
    if not interval.micros:
        return values
    if pt.is_date32(values.type):
        return add_days(values, pa.scalar(interval.micros // 86_400_000_000, INT))
    step = interval.micros * 1000 if values.type.unit == "ns" else interval.micros
    return pc.add_checked(values.cast(LONG), pa.scalar(step, LONG)).cast(values.type)


def _add_months(values: pa.Array, months: int) -> pa.Array:
    """Add to the month and keep the day of the month, at most the last day of the new month."""
    type_, valid = values.type, values.is_valid()
    counts = values.cast(pa.int32() if pt.is_date32(type_) else pa.int64()).fill_null(0).to_numpy()
    unit = "D" if pt.is_date32(type_) else type_.unit
    instants = counts.astype("int64").view(f"datetime64[{unit}]")
    days = instants.astype("datetime64[D]")
    of_month = days.astype("datetime64[M]")
    moved = of_month + np.timedelta64(months, "M")
    last_day = (moved + 1).astype("datetime64[D]") - moved.astype("datetime64[D]") - np.timedelta64(1, "D")
    day = np.minimum(days - of_month.astype("datetime64[D]"), last_day)
    result = (moved.astype("datetime64[D]") + day).astype(instants.dtype) + (instants - days.astype(instants.dtype))
    shifted = pa.array(result.view("int64"), mask=~valid.to_numpy(zero_copy_only=False))
    return shifted.cast(pa.int32()).cast(type_) if pt.is_date32(type_) else shifted.cast(type_)

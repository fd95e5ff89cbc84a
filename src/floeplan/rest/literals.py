"""Literals of REST filters: JSON values as literals of a column's type.

Java sends internal units (days, microseconds, nanoseconds) and PyIceberg ISO text; decimals, UUIDs and bytes are text
in both. Text is taken only in the form that clients write: Spark's looser forms (a date with a time) would mean
something else to them. Infinity is text too, which no client reads back: residuals express it by finite numbers.
Fail-safe: a value that is not of the column's type is an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

import numpy as np
from pyiceberg import types

from floeplan.errors import BadInputError, TypeMismatchError
from floeplan.partition.transforms import TIMESTAMPS
from floeplan.predicate.casts import TEMPORAL_UNIT
from floeplan.predicate.ir import Column
from floeplan.predicate.literals import Kind, Literal, checked_text
from floeplan.predicate.spark_text import parse_date, parse_double, parse_time, parse_timestamp, parse_uuid
from floeplan.text import excerpt

_DATE_TEXT = r"[+-]?\d{4,7}-\d\d-\d\d"
_CLOCK_TEXT = r"\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?"
_DATE = re.compile(_DATE_TEXT, re.ASCII)
_TIME = re.compile(_CLOCK_TEXT, re.ASCII)
_TIMESTAMP = re.compile(rf"{_DATE_TEXT}(?:T{_CLOCK_TEXT}(Z|[+-]\d\d:\d\d)?)?", re.ASCII)
_FRACTION = re.compile(r"[+-]?\d+\.\d+", re.ASCII)
_UTC = (None, "Z", "+00:00", "-00:00")
_ZONED = (types.TimestamptzType, types.TimestamptzNanoType)
_FLOAT_MAX, _DOUBLE_MAX = (float(np.finfo(dtype).max) for dtype in (np.float32, np.float64))
_INFINITIES = {"Infinity": 1, "-Infinity": -1}
_WITHOUT_SUCCESSOR = (0xD7FF, *range(0xD800, 0xE000), 0xFFFF, 0x10FFFF)


def json_literal(column: Column, value: Any) -> Literal:
    """A JSON value as a literal of the column's type: internal units of Java or ISO text."""
    type_ = column.type
    try:
        if isinstance(value, bool) or isinstance(type_, types.BooleanType):
            if isinstance(value, bool) and isinstance(type_, types.BooleanType):
                return Literal(Kind.BOOLEAN, value)
        elif isinstance(value, str):
            return _text_literal(type_, value)
        elif isinstance(type_, types.FloatType):
            return Literal(Kind.DOUBLE, _single(float(value)))
        elif isinstance(type_, types.DecimalType):
            if math.isfinite(value):
                return Literal(Kind.DECIMAL, Decimal(repr(value)))
        elif type(type_) not in TEMPORAL_UNIT:
            return Literal(Kind.INTEGER if isinstance(value, int) else Kind.DOUBLE, value)
        elif isinstance(value, int):
            return _temporal(type_, value)
    except (ValueError, InvalidOperation, OverflowError, BadInputError) as error:
        raise _unsuitable(column, value) from error
    raise _unsuitable(column, value)


def _temporal(type_: types.PrimitiveType, value: int) -> Literal:
    """A number of days, microseconds or nanoseconds."""
    if isinstance(type_, types.DateType):
        return Literal(Kind.DATE, value)
    kind = Kind.TIME if isinstance(type_, types.TimeType) else Kind.TIMESTAMP
    return Literal(kind, value * TEMPORAL_UNIT[type(type_)])


def _text_literal(type_: types.PrimitiveType, text: str) -> Literal:
    match type_:
        case types.StringType() | types.IntegerType() | types.LongType():
            return Literal(Kind.STRING, checked_text(text))
        case types.DecimalType():
            value = Decimal(text)
            if value.is_finite() and value.adjusted() < 100 and int(value.as_tuple().exponent) > -100:
                return Literal(Kind.DECIMAL, value)
        case types.FloatType():
            return Literal(Kind.DOUBLE, _single(parse_double(text)))
        case types.DoubleType():
            return Literal(Kind.DOUBLE, parse_double(text))
        case types.UUIDType():
            return Literal(Kind.BINARY, parse_uuid(text))
        case types.BinaryType() | types.FixedType():
            return Literal(Kind.BINARY, bytes.fromhex(text))
        case types.DateType() if _DATE.fullmatch(text):
            return Literal(Kind.DATE, parse_date(text))
        case types.TimeType() if _TIME.fullmatch(text):
            return Literal(Kind.TIME, parse_time(text), from_text=True)
        case _ if isinstance(type_, TIMESTAMPS) and (found := _TIMESTAMP.fullmatch(text)):
            if isinstance(type_, _ZONED) or found[1] in _UTC:
                return Literal(Kind.TIMESTAMP, parse_timestamp(text, zoned=True), from_text=True)
    raise ValueError(text)


def beyond_float(value: Any) -> bool:
    """Whether a literal is finite and beyond every float: clients then decide the comparison without rows."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) > _FLOAT_MAX and value not in (math.inf, -math.inf)


def is_fraction(value: Any) -> bool:
    """Whether a literal is a decimal as PyIceberg sends it; it rounds one that is compared with an integer column."""
    return isinstance(value, str) and _FRACTION.fullmatch(value) is not None


def finite_form(column: Column, kind: str, term: Any, values: Sequence[Any]) -> Any:
    """A predicate that compares with infinity as an equal one without it; ``None`` for any other.

    Java writes infinity as text and fails to read that text in a residual. The forms are equal for every value, null
    and NaN included, whoever evaluates them, also below NOT: nulls are below everything for Java's rows, match no range
    for its row groups, and are unknown to SQL.
    """
    infinite = [_INFINITIES[value] for value in values if isinstance(value, str) and value in _INFINITIES]
    is_float = isinstance(column.type, types.FloatType | types.DoubleType)
    if not infinite or not is_float or kind in ("starts-with", "not-starts-with"):
        return None
    most = _FLOAT_MAX if isinstance(column.type, types.FloatType) else _DOUBLE_MAX

    leaf = partial(_leaf, term)
    if kind in ("in", "not-in"):
        joined, each = ("or", "eq") if kind == "in" else ("and", "not-eq")
        finite, null = [value for value in values if value not in _INFINITIES], _null_form(leaf, kind, values=[0.0])
        parts = [_against_infinity(leaf, each, sign, most, null) for sign in sorted(set(infinite))]
        return _joined(joined, *([leaf(kind, values=finite)] if finite else []), *parts)
    null = _null_form(leaf, kind, value=0.0) if kind in ("eq", "not-eq") else None
    return _against_infinity(leaf, kind, infinite[0], most, null)


def range_form(column: Column, kind: str, term: Any, values: Sequence[Any], *, negative: bool) -> Any:
    """A test of a prefix as an equal test of a range; ``None`` for any other predicate.

    Java evaluates a residual on the partition values of its file, and fails to test the prefix of a null there. Where
    rows without the prefix are asked for (``negative``), nulls match for Java, but its readers skip row groups of nulls
    for a range, so they are named. The characters left out have no successor, or one that sorts before them in UTF-16.
    """
    prefix = values[0] if values else None
    if kind not in ("starts-with", "not-starts-with") or not isinstance(column.type, types.StringType):
        return None
    if not isinstance(prefix, str) or not prefix or ord(prefix[-1]) in _WITHOUT_SUCCESSOR:
        return None
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    first, second = ("gt-eq", "lt") if kind == "starts-with" else ("lt", "gt-eq")
    leaf = partial(_leaf, term)
    parts = [leaf(first, value=prefix), leaf(second, value=end)]
    if negative:
        parts.append(_null_form(leaf, "eq" if kind == "starts-with" else "not-eq", value=prefix))
    return _joined("and" if kind == "starts-with" else "or", *parts)


def _leaf(term: Any, kind: str, **value: Any) -> dict[str, Any]:
    return {"type": kind, "term": term, **value}


def _null_form(leaf: Callable[..., dict[str, Any]], kind: str, **value: Any) -> Any:
    """What every value matches (``eq``, ``in``) or none (``not-eq``, ``not-in``), and nulls as they match ``kind``."""
    if kind in ("eq", "in"):
        return _joined("or", leaf(kind, **value), leaf("not-null"))
    return _joined("and", leaf(kind, **value), leaf("is-null"))


def _against_infinity(leaf: Callable[..., dict[str, Any]], kind: str, sign: int, most: float, null: Any) -> Any:
    """A comparison with infinity of this sign; ``most`` is the largest number, and ``null`` decides about nulls."""
    low, high = leaf("lt-eq", value=0.0), leaf("gt", value=0.0)
    if sign > 0:
        above, below = leaf("gt", value=most), leaf("lt-eq", value=most)
        match kind:
            case "lt":
                return below
            case "lt-eq":
                return _joined("and", _joined("or", low, high), leaf("not-nan"))
            case "gt":
                return _joined("or", _joined("and", above, leaf("is-nan")), _joined("and", low, high))
            case "gt-eq":
                return above
            case "eq":
                return _joined("and", above, leaf("not-nan"), null)
        return _joined("or", below, leaf("is-nan"), null)
    above, below = leaf("gt-eq", value=-most), leaf("lt", value=-most)
    match kind:
        case "lt":
            return _joined("and", low, leaf("is-null"))
        case "lt-eq":
            return below
        case "gt":
            return above
        case "gt-eq":
            return _joined("or", high, _joined("and", low, leaf("not-null")))
        case "eq":
            return _joined("and", below, null)
    return _joined("or", above, leaf("is-nan"), null)


def _joined(kind: str, first: Any, *others: Any) -> Any:
    for other in others:
        first = {"type": kind, "left": first, "right": other}
    return first


def _single(value: float) -> float:
    """Rounded to float, as clients do before they compare."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _unsuitable(column: Column, value: Any) -> TypeMismatchError:
    return TypeMismatchError(
        f"column {column} is {column.type} and cannot be compared with {excerpt(repr(value))}",
        context={"column": str(column), "type": str(column.type)},
    )

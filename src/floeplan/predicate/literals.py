"""Literals: before they are coerced to a column's type (``Literal``), and canonical values as SQL text.

``floeplan.predicate.ir`` states the canonical value of each Iceberg type; ``casts`` produces it from a ``Literal``.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
from pyiceberg import types

from floeplan.errors import BadInputError, TypeMismatchError

Value: TypeAlias = bool | int | float | Decimal | str | bytes

_NANOS = (types.TimestampNanoType, types.TimestamptzNanoType)
_TIMESTAMPS = (types.TimestampType, types.TimestamptzType, *_NANOS)
_ZONED = (types.TimestamptzType, types.TimestamptzNanoType)
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_DAYS_IN_400_YEARS = 146_097
_MICROS_PER_DAY = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Kind(StrEnum):
    """The type of a literal in Spark's terms; the value is its name in messages."""

    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    DECIMAL = "decimal"
    DOUBLE = "double"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"


LiteralValue: TypeAlias = bool | int | float | Decimal | str | bytes | None


@dataclass(frozen=True, slots=True)
class Literal:
    """A value by kind: dates in days, times in nanoseconds of the day, timestamps in nanoseconds since 1970 UTC.

    ``zoned`` distinguishes TIMESTAMP from TIMESTAMP_NTZ. ``from_text`` marks timestamps written as SQL text: Spark
    truncates them to microseconds, and so do comparisons with columns of microseconds.
    """

    kind: Kind
    value: LiteralValue
    zoned: bool = False
    from_text: bool = False

    def __str__(self) -> str:
        return repr(self.value)


NULL = Literal(Kind.NULL, None)


def literal_of(value: object) -> Literal:
    """A literal from a Python or NumPy value; datetimes without a zone are in UTC."""
    if isinstance(value, np.datetime64):
        if np.isnat(value):
            return NULL
        unit, step = np.datetime_data(value.dtype)
        if unit == "D":
            return Literal(Kind.DATE, int(value.astype("int64")) * step)
        nanos_per = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}.get(unit)
        if nanos_per is None:
            raise TypeMismatchError(f"a datetime64[{unit}] cannot be a literal in a predicate; use days to nanoseconds")
        return Literal(Kind.TIMESTAMP, int(value.astype("int64")) * step * nanos_per)
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case None:
            return NULL
        case Literal():
            return value
        case bool():
            return Literal(Kind.BOOLEAN, value)
        case int():
            return Literal(Kind.INTEGER, value)
        case float():
            return Literal(Kind.DOUBLE, value)
        case Decimal():
            return Literal(Kind.DECIMAL, value) if value.is_finite() else Literal(Kind.DOUBLE, float(value))
        case str():
            return Literal(Kind.STRING, checked_text(value))
        case bytes() | bytearray() | memoryview():
            return Literal(Kind.BINARY, bytes(value))
        case UUID():
            return Literal(Kind.BINARY, value.bytes)
        case datetime():
            instant = value if value.tzinfo else value.replace(tzinfo=UTC)
            return Literal(Kind.TIMESTAMP, (instant - _EPOCH) // _MICROSECOND * 1000, zoned=value.tzinfo is not None)
        case date():
            return Literal(Kind.DATE, (value - _EPOCH.date()).days)
        case time() if value.tzinfo is None:
            return Literal(
                Kind.TIME, ((value.hour * 60 + value.minute) * 60 + value.second) * 10**9 + value.microsecond * 1000
            )
    raise TypeMismatchError(f"a {type(value).__name__} cannot be a literal in a predicate: {value!r}")


def checked_text(value: str) -> str:
    """Reject lone surrogates, which no string column can hold."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadInputError(
            f"the string literal {value!r} contains a lone surrogate, which is not a valid character"
        ) from error
    return value


def sql_literals(type_: types.PrimitiveType, values: tuple[Value, ...]) -> str:
    """Write canonical values as a list; integers without a call per value, because lists hold thousands."""
    if isinstance(type_, types.IntegerType | types.LongType):
        return ", ".join(map(str, values))
    return ", ".join(sql_literal(type_, value) for value in values)


def sql_literal(type_: types.PrimitiveType, value: Value) -> str:
    """Write a canonical value as a Spark-SQL literal that reads back as the same value."""
    match type_:
        case types.BooleanType():
            return "TRUE" if value else "FALSE"
        case types.DateType():
            return f"DATE '{_date(int(value))}'"
        case _ if isinstance(type_, _TIMESTAMPS):
            micros, nanos = divmod(int(value), 1000) if isinstance(type_, _NANOS) else (int(value), 0)
            days, of_day = divmod(micros, _MICROS_PER_DAY)
            text, zoned = _clock(of_day), isinstance(type_, _ZONED)
            if nanos:
                text = f"{text if '.' in text else text + '.000000'}{nanos:03d}"
            return f"{'TIMESTAMP' if zoned else 'TIMESTAMP_NTZ'} '{_date(days)} {text}{'Z' if zoned else ''}'"
        case types.TimeType():
            return f"TIME '{_clock(int(value))}'"
        case types.BinaryType() | types.FixedType() | types.UUIDType() if isinstance(value, bytes):
            return f"X'{value.hex().upper()}'"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, float) and not math.isfinite(value):
        return f"DOUBLE('{value}')"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _date(days: int) -> str:
    """A date of any year; Python stops at 9999, but the calendar repeats every 400 years."""
    cycles, within = divmod(days + _EPOCH_ORDINAL - 1, _DAYS_IN_400_YEARS)
    in_cycle = date.fromordinal(within + 1)
    year = in_cycle.year + 400 * cycles
    return f"{'-' if year < 0 else ''}{abs(year):04d}-{in_cycle.month:02d}-{in_cycle.day:02d}"


def _clock(micros: int) -> str:
    return (datetime.min + timedelta(microseconds=micros)).time().isoformat()


def value_json(type_: types.PrimitiveType, value: Value) -> Any:
    """A canonical value in Iceberg's JSON single-value form."""
    match type_:
        case types.DateType():
            try:
                return (date(1970, 1, 1) + timedelta(days=int(value))).isoformat()
            except OverflowError:  # beyond the years of Python's dates
                return value
        case _ if isinstance(type_, _TIMESTAMPS):
            micros, nanos = divmod(int(value), 1000) if isinstance(type_, _NANOS) else (int(value), None)
            try:
                text = (datetime(1970, 1, 1) + timedelta(microseconds=micros)).isoformat(timespec="microseconds")
            except OverflowError:
                return value
            text += "" if nanos is None else f"{nanos:03d}"
            return text + "+00:00" if isinstance(type_, _ZONED) else text
        case types.TimeType():
            return _clock(int(value))
        case types.UUIDType() if isinstance(value, bytes):
            return str(uuid.UUID(bytes=value))
        case types.BinaryType() | types.FixedType() if isinstance(value, bytes):
            return value.hex().upper()
    if isinstance(value, float) and not abs(value) < float("inf"):
        return {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(value, "NaN")
    return str(value) if isinstance(value, Decimal | bytes) else value

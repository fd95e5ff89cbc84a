"""Canonical literal values and how they are written for people.

The canonical form of each Iceberg type is stated in ``floeplan.predicate.ir``. This module only prints it; the
compilers produce it.
"""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TypeAlias

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    FixedType,
    IntegerType,
    LongType,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

Value: TypeAlias = bool | int | float | Decimal | str | bytes

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_DAYS_IN_400_YEARS = 146_097
_MICROS_PER_DAY = 86_400_000_000


def sql_literals(type_: PrimitiveType, values: tuple[Value, ...]) -> str:
    """Write canonical values as a list; whole numbers, of which there may be thousands, at once."""
    if isinstance(type_, IntegerType | LongType):
        return ", ".join(map(str, values))
    return ", ".join(sql_literal(type_, value) for value in values)


def sql_literal(type_: PrimitiveType, value: Value) -> str:
    """Write a canonical value as a Spark-SQL literal that reads back as the same value."""
    match type_:
        case BooleanType():
            return "TRUE" if value else "FALSE"
        case DateType():
            return f"DATE '{_date(int(value))}'"
        case TimestampType() | TimestamptzType():
            return _timestamp(int(value), "", isinstance(type_, TimestamptzType))
        case TimestampNanoType() | TimestamptzNanoType():
            micros, nanos = divmod(int(value), 1000)
            return _timestamp(micros, f"{nanos:03d}" if nanos else "", isinstance(type_, TimestamptzNanoType))
        case TimeType():
            return f"TIME '{_clock(int(value))}'"
        case BinaryType() | FixedType() | UUIDType() if isinstance(value, bytes):
            return f"X'{value.hex().upper()}'"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, float) and not math.isfinite(value):
        return f"DOUBLE('{value}')"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _date(days: int) -> str:
    """A date of any year: the calendar repeats every 400 years."""
    cycles, within = divmod(days + _EPOCH_ORDINAL - 1, _DAYS_IN_400_YEARS)
    shown = date.fromordinal(within + 1)
    year = shown.year + 400 * cycles
    return f"{'-' if year < 0 else ''}{abs(year):04d}-{shown:%m-%d}"


def _clock(micros: int) -> str:
    return (datetime.min + timedelta(microseconds=micros)).time().isoformat()


def _timestamp(micros: int, nanos: str, zoned: bool) -> str:
    days, of_day = divmod(micros, _MICROS_PER_DAY)
    text = _clock(of_day)
    if nanos:
        text = (text if "." in text else text + ".000000") + nanos
    return f"{'TIMESTAMP' if zoned else 'TIMESTAMP_NTZ'} '{_date(days)} {text}{'Z' if zoned else ''}'"

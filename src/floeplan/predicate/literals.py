"""Canonical literal values and how they are written for people.

The canonical form of each Iceberg type is stated in ``floeplan.predicate.ir``. This module only prints it; the
compilers produce it.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TypeAlias

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    FixedType,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

Value: TypeAlias = bool | int | float | Decimal | str | bytes

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS_PER_SECOND = 1_000_000
_PLAIN_YEARS = range(-62_135_596_800 * _MICROS_PER_SECOND, 253_402_300_800 * _MICROS_PER_SECOND)


def sql_literal(type_: PrimitiveType, value: Value) -> str:
    """Write a canonical value as a Spark-SQL literal; instants outside years 1 to 9999 print as their number."""
    match type_:
        case BooleanType():
            return "TRUE" if value else "FALSE"
        case DateType():
            micros = int(value) * 86_400 * _MICROS_PER_SECOND
            return f"DATE '{date(1970, 1, 1) + timedelta(days=int(value))}'" if micros in _PLAIN_YEARS else str(value)
        case TimestampType() | TimestamptzType():
            return _timestamp(int(value), "", isinstance(type_, TimestamptzType))
        case TimestampNanoType() | TimestamptzNanoType():
            micros, nanos = divmod(int(value), 1000)
            return _timestamp(micros, f"{nanos:03d}" if nanos else "", isinstance(type_, TimestamptzNanoType))
        case TimeType():
            return f"TIME '{(_EPOCH + timedelta(microseconds=int(value))).time()}'"
        case BinaryType() | FixedType() | UUIDType() if isinstance(value, bytes):
            return f"X'{value.hex().upper()}'"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, float) and not math.isfinite(value):
        return f"DOUBLE('{value}')"
    return str(value)


def _timestamp(micros: int, nanos: str, zoned: bool) -> str:
    if micros not in _PLAIN_YEARS:
        return f"{micros}{nanos}"
    text = (_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=None).isoformat(sep=" ")
    if nanos:
        text = (text if "." in text else text + ".000000") + nanos
    return f"{'TIMESTAMP' if zoned else 'TIMESTAMP_NTZ'} '{text}{'Z' if zoned else ''}'"

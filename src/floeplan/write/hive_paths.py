"""Partition values out of ``name=value`` folders.

A folder counts for the partition field of its name. Values are read as they are written for people: days and dates as
``2024-03-01``, hours as ``2024-03-01-07``, months as ``2024-03``, years as ``2024``.

Fail-safe: a folder whose value cannot be read as the field's type is an error, never another value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import unquote_plus

from pyiceberg.transforms import HourTransform, MonthTransform, YearTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
)

from floeplan.errors import UnsupportedError
from floeplan.partition.fields import BoundField

_NULLS = ("null", "__HIVE_DEFAULT_PARTITION__")
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class HiveValue:
    """What a path says of a field, in the vector domain of its type."""

    value: Any


def hive_value(field: BoundField, path: str) -> HiveValue | None:
    """The value of a field, or ``None`` when no folder has its name."""
    name = field.column.path[0]
    for folder in path.split("/")[:-1]:
        label, equals, text = folder.partition("=")
        if equals and unquote_plus(label) == name:
            return HiveValue(None if text in _NULLS else _read(field, unquote_plus(text), path))
    return None


def _read(field: BoundField, text: str, path: str) -> Any:
    try:
        return _reader(field)(text)
    except (ValueError, InvalidOperation):
        name = field.column.path[0]
        raise UnsupportedError(
            f"the folder {name}={text} of {path} is no value of type {field.column.type}",
            context={"file": path, "field": name, "value": text},
        ) from None


def _reader(field: BoundField) -> Callable[[str], Any]:
    match field.transform, field.column.type:
        case YearTransform(), _:
            return lambda text: int(text) - _EPOCH.year
        case MonthTransform(), _:
            return _months
        case HourTransform(), _:
            return _hours
        case _, DateType():
            return _days
        case _, BooleanType():
            return lambda text: ("false", "true").index(text)
        case _, IntegerType() | LongType():
            return int
        case _, FloatType() | DoubleType():
            return float
        case _, DecimalType() as type_:
            return lambda text: _decimal(type_, text)
        case _, StringType():
            return str
    return _unreadable


def _unreadable(text: str) -> Any:
    raise ValueError(text)


def _days(text: str) -> int:
    return (date.fromisoformat(text) - _EPOCH).days


def _months(text: str) -> int:
    first = date.fromisoformat(f"{text}-01")
    return (first.year - _EPOCH.year) * 12 + first.month - 1


def _hours(text: str) -> int:
    day, _, hour = text.rpartition("-")
    if not 0 <= int(hour) < 24:
        raise ValueError(text)
    return _days(day) * 24 + int(hour)


def _decimal(type_: DecimalType, text: str) -> Any:
    value = Decimal(text)
    unscaled = value.scaleb(type_.scale)
    if unscaled != int(unscaled):
        raise ValueError(text)
    return int(unscaled) if type_.precision <= 18 else value

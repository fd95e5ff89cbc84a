"""SQL intervals: their literals, and adding them to dates and timestamps.

Rule (Spark): an interval consists of years and months, or of days down to microseconds, never of both. Adding months
keeps the day of the month or, in a shorter month, takes its last day. Adding whole days to a date gives a date, adding
anything finer gives a timestamp.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from sqlglot import exp

from floeplan.errors import BadInputError
from floeplan.predicate.rows.types import DATE, INT, Vector

_MONTHS = {"YEAR": 12, "MONTH": 1}
_MICROS = {
    "WEEK": 7 * 86_400_000_000,
    "DAY": 86_400_000_000,
    "HOUR": 3_600_000_000,
    "MINUTE": 60_000_000,
    "SECOND": 1_000_000,
    "MILLISECOND": 1000,
    "MICROSECOND": 1,
}
_WHOLE_DAYS = ("WEEK", "DAY")
_SPAN_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
_SEVERAL = re.compile(r"\s*([+-]?\s*[0-9]+(?:\.[0-9]*)?)\s*([a-z]+)", re.IGNORECASE | re.ASCII)
_YEARS_MONTHS = re.compile(r"([+-]?)([0-9]+)-([0-9]{1,2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Interval:
    """Months, or microseconds; ``timed`` when a unit finer than the day was named."""

    months: int = 0
    micros: int = 0
    timed: bool = False

    def __neg__(self) -> Interval:
        return Interval(-self.months, -self.micros, self.timed)

    def __add__(self, other: Interval) -> Interval:
        total = Interval(self.months + other.months, self.micros + other.micros, self.timed or other.timed)
        if total.months and total.micros:
            raise BadInputError("an interval cannot mix months with days; add two intervals one after the other")
        return total

    def times(self, factor: int) -> Interval:
        """The interval multiplied by an integer."""
        return Interval(self.months * factor, self.micros * factor, self.timed)


def parse_interval(node: exp.Interval) -> Interval:
    """The interval of a literal such as ``INTERVAL 7 DAYS`` or ``INTERVAL '1-2' YEAR TO MONTH``."""
    text, unit = _quantity(node), node.args.get("unit")
    if unit is None:
        return _several(text)
    if isinstance(unit, exp.IntervalSpan):
        return _span(text, unit.this.name.upper(), unit.expression.name.upper())
    return _single(text, unit.name)


def _quantity(node: exp.Interval) -> str:
    quantity, sign = node.this, ""
    if isinstance(quantity, exp.Neg):
        quantity, sign = quantity.this, "-"
    if not isinstance(quantity, exp.Literal):
        raise BadInputError(f"{node.sql('spark')} is not an interval of a fixed length")
    return sign + str(quantity.this).strip()


def _single(text: str, unit: str) -> Interval:
    name = unit.upper().removesuffix("S")
    try:
        amount = Fraction(text.replace(" ", ""))
    except ValueError as error:
        raise _malformed(text, unit) from error
    if name in _MONTHS and amount.denominator == 1:
        return Interval(months=int(amount) * _MONTHS[name])
    if name in _MICROS and (amount.denominator == 1 or name == "SECOND"):
        return Interval(micros=int(amount * _MICROS[name]), timed=name not in _WHOLE_DAYS)
    raise _malformed(text, unit)


def _several(text: str) -> Interval:
    """A string of amounts and units, such as ``1 day 3 hours``."""
    total, position = Interval(), 0
    text = re.sub(r"^\s*interval\b", "", text, flags=re.IGNORECASE)
    while position < len(text.rstrip()):
        found = _SEVERAL.match(text, position)
        if found is None:
            raise _malformed(text, "")
        total = total + _single(found.group(1), found.group(2))
        position = found.end()
    if not position:
        raise _malformed(text, "")
    return total


def _span(text: str, first: str, last: str) -> Interval:
    """``'y-m' YEAR TO MONTH``, or a run of DAY, HOUR, MINUTE, SECOND such as ``'d h:m:s.f' DAY TO SECOND``."""
    if (first, last) == ("YEAR", "MONTH") and (found := _YEARS_MONTHS.fullmatch(text)):
        months = int(found.group(2)) * 12 + int(found.group(3))
        return Interval(months=-months if found.group(1) == "-" else months)
    if first not in _SPAN_UNITS or last not in _SPAN_UNITS:
        raise _malformed(text, f"{first} TO {last}")
    units = _SPAN_UNITS[_SPAN_UNITS.index(first) : _SPAN_UNITS.index(last) + 1]
    parts = re.split(r"[ :]", text.lstrip("+-"))
    if len(parts) != len(units) or not units:
        raise _malformed(text, f"{first} TO {last}")
    total = Interval(timed=True)
    for part, unit in zip(parts, units, strict=True):
        total = total + _single(part, unit)
    return -total if text.startswith("-") else total


def _malformed(text: str, unit: str) -> BadInputError:
    return BadInputError(f"INTERVAL '{text}' {unit}".rstrip() + " is not an interval Spark accepts")


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
    return _shift(values, interval.micros) if interval.micros else values


def _shift(values: pa.Array, micros: int) -> pa.Array:
    if pt.is_date32(values.type):
        days = pc.add_checked(values.cast(pa.int32()), pa.scalar(micros // _MICROS["DAY"], pa.int32()))
        return days.cast(values.type)
    step = micros * 1000 if values.type.unit == "ns" else micros
    return pc.add_checked(values.cast(pa.int64()), pa.scalar(step, pa.int64())).cast(values.type)


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

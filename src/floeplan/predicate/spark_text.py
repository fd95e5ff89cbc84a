"""Spark's text formats: casts from text in ANSI mode, numeric literals, intervals and LIKE patterns.

Every function returns the value or raises ``BadInputError`` naming the text. Surrounding white space is ignored,
partial dates (``2024``, ``2024-03``) mean their first day, and times without a zone are in UTC. A time of day without
a date, which Spark completes with the current date, is rejected because its value would change from day to day.
An interval consists of years and months, or of days down to microseconds, never of both.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from fractions import Fraction
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from floeplan.errors import BadInputError
from floeplan.text import excerpt

MAX_PRECISION = 38
"""The most digits of a decimal in Spark and Iceberg."""

_TRUE, _FALSE = frozenset(("t", "true", "y", "yes", "1")), frozenset(("f", "false", "n", "no", "0"))
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?[df]?", re.ASCII | re.IGNORECASE)
_SPECIAL = {"nan": "nan", "inf": "inf", "infinity": "inf"}
_DATE = re.compile(r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_CLOCK = r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?)?)?"
_TIMESTAMP = re.compile(
    rf"([+-]?[0-9]{{4,6}})(?:-([0-9]{{1,2}})(?:-([0-9]{{1,2}})(?:[ T](?:{_CLOCK}\s*([^0-9:.\s].*)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?)?", re.ASCII)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{1,2})(?::?([0-9]{2}))?)?", re.ASCII)
_DAYS_IN_400_YEARS = 146_097
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_NANOS_PER_SECOND = 10**9
_LONGEST_OFFSET = 18 * 3600
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
_SPAN_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
_AMOUNT = re.compile(r"\s*([+-]?\s*[0-9]+(?:\.[0-9]*)?)\s*([a-z]+)", re.IGNORECASE | re.ASCII)
_YEARS_MONTHS = re.compile(r"([+-]?)([0-9]+)-([0-9]{1,2})", re.ASCII)


def parse_boolean(text: str) -> bool:
    """``t true y yes 1`` and ``f false n no 0``, in any case."""
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise _malformed(text, "boolean")


def parse_integer(text: str, bits: int) -> int:
    """A whole number of ``bits`` bits; ``3.5`` and ``1e3`` are not."""
    trimmed = text.strip()
    if _INTEGER.fullmatch(trimmed) and len(trimmed) < 40 and -(2 ** (bits - 1)) <= int(trimmed) < 2 ** (bits - 1):
        return int(trimmed)
    raise _malformed(text, f"whole number of {bits} bits")


def parse_double(text: str) -> float:
    """A double, NaN or an infinity."""
    trimmed = text.strip().lower()
    special = _SPECIAL.get(trimmed.lstrip("+-"))
    if special is not None and len(trimmed) - len(trimmed.lstrip("+-")) <= (0 if special == "nan" else 1):
        return float(("-" if trimmed.startswith("-") else "") + special)
    if _DOUBLE.fullmatch(trimmed):
        return float(trimmed.rstrip("df"))
    raise _malformed(text, "number")


def parse_number(digits: str) -> int | float | Decimal:
    """A numeric SQL literal, with its sign: an ``int`` of 64 bits, a ``Decimal``, or a double if it has an exponent."""
    if "e" in digits.lower():
        try:
            value = float(digits)
        except ValueError:
            raise BadInputError(f"{digits} is not a number: its exponent has no digits") from None
        if not math.isfinite(value):
            raise BadInputError(f"the number {digits} is beyond the range of a double")
        return value
    if len(digits) < 19 and "." not in digits:
        return int(digits)
    exact = Decimal(digits)
    if decimal_precision(exact) > MAX_PRECISION:
        raise BadInputError(
            f"the number {excerpt(digits)} has more than {MAX_PRECISION} digits; "
            "add an exponent or D to make it a double"
        )
    return int(exact) if "." not in digits and -(2**63) <= exact < 2**63 else exact


def decimal_precision(value: Decimal) -> int:
    """The precision of a decimal literal in Spark: its digits without leading zeros, at least those of its scale."""
    _, digits, exponent = value.as_tuple()
    return max(len(digits), -int(exponent))


def parse_uuid(text: str) -> bytes:
    """The sixteen bytes of a UUID written with its dashes."""
    if re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text.strip()):
        return UUID(text.strip()).bytes
    raise _malformed(text, "UUID (xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx)")


def parse_date(text: str) -> int:
    """Days since 1970-01-01; anything after the day and a blank or ``T`` is ignored, as Spark does."""
    found = _DATE.fullmatch(text.strip())
    if found is None:
        raise _malformed(text, "date (yyyy-mm-dd)")
    return _days(text, *found.groups())


def parse_time(text: str) -> int:
    """Nanoseconds since midnight."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise _malformed(text, "time (hh:mm:ss)")
    return _clock(text, *found.groups())


def parse_timestamp(text: str, *, zoned: bool = True) -> int:
    """Nanoseconds since 1970-01-01 UTC; a zone is ignored when the type has none (not ``zoned``), as Spark does."""
    found = _TIMESTAMP.fullmatch(text.strip())
    if found is None:
        raise _malformed(text, "timestamp (yyyy-mm-dd hh:mm:ss[.ffffff][zone])")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    seconds = _days(text, year, month, day) * 86_400
    nanos = seconds * _NANOS_PER_SECOND + (_clock(text, hour, minute, second, fraction) if hour else 0)
    offset = 0 if zone is None else _offset(text, zone.strip(), nanos // _NANOS_PER_SECOND)
    return nanos - offset * _NANOS_PER_SECOND if zoned else nanos


def parse_decimal(text: str, precision: int, scale: int) -> Decimal:
    """A decimal of the given type, rounded half up as a cast from text is."""
    try:
        value = Decimal(text.strip())
    except InvalidOperation as error:
        raise _malformed(text, "decimal") from error
    if not value.is_finite() or "_" in text:
        raise _malformed(text, "decimal")
    with localcontext(prec=200):
        rounded = value.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP)
    if len(rounded.as_tuple().digits) > precision:
        raise _malformed(text, f"decimal({precision}, {scale})")
    return rounded


@dataclass(frozen=True, slots=True)
class Interval:
    """Months, or microseconds; ``timed`` when a unit finer than the day was named."""

    months: int = 0
    micros: int = 0
    timed: bool = False

    def __neg__(self) -> Interval:
        return self * -1

    def __add__(self, other: Interval) -> Interval:
        total = Interval(self.months + other.months, self.micros + other.micros, self.timed or other.timed)
        if total.months and total.micros:
            raise BadInputError("an interval cannot mix months with days; add two intervals one after the other")
        return total

    def __mul__(self, factor: int) -> Interval:
        return Interval(self.months * factor, self.micros * factor, self.timed)


def parse_interval(text: str, unit: str = "", last_unit: str = "") -> Interval:
    """The interval ``INTERVAL 'text' unit TO last_unit``; without units, the text names them: ``1 day 3 hours``."""
    units = f"{unit} TO {last_unit}" if last_unit else unit
    malformed = f"INTERVAL '{text}' {units}".rstrip() + " is not an interval Spark accepts"
    if unit and not last_unit:
        name = unit.upper().removesuffix("S")
        try:
            amount = Fraction(text.replace(" ", ""))
        except ValueError as error:
            raise BadInputError(malformed) from error
        if name in _MONTHS and amount.denominator == 1:
            return Interval(months=int(amount) * _MONTHS[name])
        if name in _MICROS and (amount.denominator == 1 or name == "SECOND"):
            return Interval(micros=int(amount * _MICROS[name]), timed=name not in ("WEEK", "DAY"))
        raise BadInputError(malformed)
    if not unit:
        total, position = Interval(), 0
        text = re.sub(r"^\s*interval\b", "", text, flags=re.IGNORECASE).rstrip()
        while found := _AMOUNT.match(text, position):
            total = total + parse_interval(found.group(1), found.group(2))
            position = found.end()
        if not position or position < len(text):
            raise BadInputError(malformed)
        return total
    if (unit, last_unit) == ("YEAR", "MONTH") and (found := _YEARS_MONTHS.fullmatch(text)):
        months = int(found.group(2)) * 12 + int(found.group(3))
        return Interval(months=-months if found.group(1) == "-" else months)
    # A run of units, such as 'd h:m:s.f' DAY TO SECOND.
    if unit not in _SPAN_UNITS or last_unit not in _SPAN_UNITS:
        raise BadInputError(malformed)
    run = _SPAN_UNITS[_SPAN_UNITS.index(unit) : _SPAN_UNITS.index(last_unit) + 1]
    parts = re.split(r"[ :]", text.lstrip("+-"))
    if len(parts) != len(run):
        raise BadInputError(malformed)
    total = sum(map(parse_interval, parts, run), Interval(timed=True))
    return -total if text.startswith("-") else total


class LikePattern(NamedTuple):
    """A LIKE pattern as a sequence of plain texts and wildcards: ``None`` is ``%`` and ``""`` is ``_``."""

    parts: tuple[str | None, ...]

    @property
    def prefix(self) -> str:
        """The plain text every match begins with."""
        first = self.parts[0] if self.parts else None
        return first or ""

    @property
    def is_plain(self) -> bool:
        """Whether there is no wildcard: LIKE is then ``=``."""
        return not self.parts or (len(self.parts) == 1 and bool(self.parts[0]))

    @property
    def is_prefix(self) -> bool:
        """Whether the pattern is a prefix followed by ``%``."""
        rest = self.parts[1:] if self.prefix else self.parts
        return bool(rest) and all(part is None for part in rest)

    def regex(self) -> str:
        """The pattern in RE2's syntax, anchored."""
        wildcards = {None: ".*", "": "."}
        parts = (
            wildcards.get(part) or "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in part or "")
            for part in self.parts
        )
        return r"(?s)\A" + "".join(parts) + r"\z"


def parse_like(pattern: str, escape: str = "\\") -> LikePattern:
    """Parse a LIKE pattern; as in Spark, the escape may only precede ``%``, ``_`` or itself."""
    if len(escape) != 1:
        raise BadInputError(f"the ESCAPE of LIKE must be one character, not {escape!r}")
    parts: list[str | None] = []
    plain = ""
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape):
                raise BadInputError(f"in LIKE {pattern!r} the escape {escape!r} may only precede %, _ or itself")
            plain += escaped
        elif character in "%_":
            parts += [*([plain] if plain else []), None if character == "%" else ""]
            plain = ""
        else:
            plain += character
    return LikePattern((*parts, plain) if plain else tuple(parts))


def _days(text: str, year: str, month: str | None, day: str | None) -> int:
    """Days by the proleptic Gregorian calendar, for any year: the calendar repeats every 400 years."""
    cycles, year_in_cycle = divmod(int(year) - 2000, 400)
    try:
        within = date(2000 + year_in_cycle, int(month or 1), int(day or 1)).toordinal()
    except ValueError as error:
        raise _malformed(text, "date (yyyy-mm-dd)") from error
    return within - _EPOCH_ORDINAL + cycles * _DAYS_IN_400_YEARS


def _clock(text: str, hour: str, minute: str | None, second: str | None, fraction: str | None) -> int:
    h, m, s = int(hour), int(minute or 0), int(second or 0)
    if h > 23 or m > 59 or s > 59:
        raise _malformed(text, "time of day")
    return ((h * 60 + m) * 60 + s) * _NANOS_PER_SECOND + int((fraction or "")[:9].ljust(9, "0"))


def _offset(text: str, zone: str, local_seconds: int) -> int:
    """Seconds east of UTC at a local time."""
    if zone in ("Z", "UTC", "GMT", "UT"):
        return 0
    found = _OFFSET.fullmatch(zone)
    if found is not None:
        sign, hours, minutes, seconds = found.groups()
        offset = int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
        if offset > _LONGEST_OFFSET or int(minutes or 0) > 59 or int(seconds or 0) > 59:
            raise _malformed(text, "timestamp: its zone offset is beyond 18 hours")
        return -offset if sign == "-" else offset
    if "/" not in zone:
        raise _malformed(text, f"timestamp: write the time zone {zone!r} as an offset or as Region/City")
    try:
        local = datetime(1970, 1, 1) + timedelta(seconds=local_seconds)
        offset_there = local.replace(tzinfo=ZoneInfo(zone)).utcoffset()
    except (ZoneInfoNotFoundError, ValueError, OverflowError, OSError) as error:
        raise _malformed(text, f"timestamp: the time zone {zone!r} is not known") from error
    return int((offset_there or timedelta()).total_seconds())


def _malformed(text: str, what: str) -> BadInputError:
    return BadInputError(f"{text!r} is not a {what}", context={"text": text})

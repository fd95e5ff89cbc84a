"""Times and ages: milliseconds since 1970, datetimes, and ages such as ``7d``.

Rule: a datetime without an offset is in UTC. An age is a number and one of ``s``, ``m``, ``h``, ``d`` and ``w``.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from floeplan.errors import InvalidOptionError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)")


def epoch_ms(time: datetime | int) -> int:
    """A time in milliseconds since 1970."""
    return int(in_utc(time).timestamp() * 1000) if isinstance(time, datetime) else time


def in_utc(time: datetime) -> datetime:
    """The time, in UTC unless it has an offset."""
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def limit_ms(limit: datetime | timedelta | int, now_ms: int) -> int:
    """A limit, which may be an age, in milliseconds since 1970."""
    if isinstance(limit, timedelta):
        return now_ms - int(limit.total_seconds() * 1000)
    return epoch_ms(limit)


def is_age(text: str) -> bool:
    """Whether a text is an age with its unit."""
    found = _AGE.fullmatch(text.strip())
    return found is not None and found[2] != ""


def parse_age(text: str, option: str, unit: str = "d") -> timedelta:
    """Parse an age such as ``7d``, ``12h`` or ``30m``; ``unit`` is that of a number without one.

    Raises:
        InvalidOptionError: The text is not an age.
    """
    found = _AGE.fullmatch(text.strip())
    try:
        if found is None or not math.isfinite(float(found[1])):
            raise ValueError
        return timedelta(**{_UNITS[found[2] or unit]: float(found[1])})
    except (ValueError, OverflowError):
        message = f"{option} is {text!r} but must be an age such as 7d, 12h or 30m"
        raise InvalidOptionError(message, context={"option": option, "value": text}) from None


def time_before(now: datetime, age: str, option: str) -> datetime:
    """The time that was an age ago.

    Raises:
        InvalidOptionError: The text is not an age, or the calendar does not go back that far.
    """
    try:
        return now - parse_age(age, option)
    except OverflowError:
        message = f"{option} is {age!r}, which is before the first year"
        raise InvalidOptionError(message, context={"option": option, "value": age}) from None


def time_text(milliseconds: int) -> str:
    """Milliseconds since 1970 as a time in UTC; as a number where the calendar ends."""
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return f"{milliseconds} ms since 1970"
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def age_text(age: timedelta) -> str:
    """An age in the largest unit of which it is a whole number: ``7d``, ``36h``."""
    seconds = age.total_seconds()
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.15g}s"

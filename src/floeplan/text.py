"""Numbers and long texts as people read them, and counts that others wrote as text."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MOST_COUNTED = 2**63 - 1


def human_bytes(size: int) -> str:
    """A size with the largest unit that leaves at least one whole of it."""
    value = float(size)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError(size)


def human_count(count: int) -> str:
    """A count with thousands set apart."""
    return f"{count:,}"


def counted(number: int, noun: str) -> str:
    """A number with its noun in the right form."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def excerpt(text: str, most: int = 60) -> str:
    """The beginning of a text that is too long for a message."""
    return text if len(text) <= most else text[: most - 3] + "..."


def percent(part: int, whole: int) -> str:
    """A share of the whole; small ones keep two significant digits, and something is never shown as nothing."""
    if not whole:
        return ""
    share = 100 * part / whole
    if share == 0 or share >= 10:
        return f"{share:.0f} %"
    return f"{share:.2g} %"


def parse_count(text: object) -> int | None:
    """The count that a text states in plain digits, as far as 64 bits hold it; whatever else it is states none."""
    if not isinstance(text, str) or not (text.isascii() and text.isdecimal()) or len(text) > len(str(_MOST_COUNTED)):
        return None
    count = int(text)
    return count if count <= _MOST_COUNTED else None

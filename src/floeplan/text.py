"""Text for messages: sizes, counts, percentages and the reason of a failure."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MAX_COUNT = 2**63 - 1


def human_bytes(size: int) -> str:
    """Format a size in the largest unit in which it is at least 1."""
    value = float(size)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError(size)


def human_count(count: int) -> str:
    """Format a count with thousands separators."""
    return f"{count:,}"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun in singular or plural: ``1 file``, ``2,000 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def excerpt(text: str, most: int = 60) -> str:
    """Shorten a text to at most ``most`` characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def one_line(text: object) -> str:
    """Replace each run of whitespace, line breaks included, by one space."""
    return " ".join(str(text).split())


def reason(error: BaseException, *, lines: int | None = None, with_class: bool = True) -> str:
    """Format an exception on one line for the end of a message: ``ClassName: text``.

    Args:
        error: The exception.
        lines: Use this many non-empty lines of the text only; exceptions of the JVM and of pydantic have many.
        with_class: Whether the class name comes first; an exception without a text is always its class name.
    """
    found = [line for line in (one_line(line) for line in str(error).splitlines()) if line][:lines]
    text = " ".join(found)
    if not text:
        return type(error).__name__
    return f"{type(error).__name__}: {text}" if with_class else text


def percent(part: int, whole: int) -> str:
    """Format a fraction as a percentage; below 10 % with two significant digits, so that only zero is shown as 0 %."""
    if not whole:
        return ""
    share = 100 * part / whole
    if share == 0 or share >= 10:
        return f"{share:.0f} %"
    return f"{share:.2g} %"


def parse_count(text: object) -> int | None:
    """Parse a non-negative 64-bit integer of plain ASCII digits; ``None`` for anything else.

    Snapshot summaries and HTTP headers are written by others, and ``int`` accepts signs, spaces and underscores.
    """
    if not isinstance(text, str) or not (text.isascii() and text.isdecimal()) or len(text) > len(str(_MAX_COUNT)):
        return None
    count = int(text)
    return count if count <= _MAX_COUNT else None

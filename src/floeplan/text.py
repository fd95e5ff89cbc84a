"""Text for messages: sizes, counts, percentages and the reason of a failure."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

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


def percent(part: float, whole: float) -> str:
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


# Masking of secrets in messages, logs, JSON documents and reports.
#
# Three things are secrets: values of catalog and store properties whose name indicates one (``password``,
# ``token``, ``s3.secret-access-key`` …), and the second part of ``name:secret``, wherever they occur; the user
# information of a URI; and, in messages and logs, the value after such a name.
#
# Fail-safe: a secret is masked in every text that contains it. Values of fewer than 8 characters are masked only as
# whole words, because they may be part of other words and paths; values of fewer than 4 characters are not masked.


MASK = "***"
_SHORTEST, _SHORT = 4, 8
_ENVIRONMENT = (b"PYICEBERG_", b"AWS_", b"AZURE_", b"GOOGLE_")
_NAME = (
    r"(?:password|passwd|secret|token|credential|access[-_.]?key|account[-_.]?key|private[-_.]?key|api[-_.]?key"
    r"|session[-_.]?key|signature|authorization|sas[-_.]|connection[-_.]?string)[\w.\-]{0,40}"
)
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_USER_INFORMATION = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_NAMED = re.compile(rf"(?P<name>{_NAME}(?:=|[\"']\s*:\s*[\"'])|\bBearer\s+)(?P<value>[^\s\"'&,;)}}]+)", re.IGNORECASE)
_SECOND_PART = re.compile(r"^([^:\s]*:|(Bearer|Basic)\s+)", re.IGNORECASE)
"""The part before the secret in ``name:secret`` and in headers."""
_known: set[str] = set()


def remember(properties: Mapping[str, object]) -> None:
    """Register the secrets among the properties of a catalog or store."""
    _known.update(_secrets(properties))


def without_secrets(text: str) -> str:
    """Mask known secrets and the user information of URIs; for results, in which names are data."""
    for secret in sorted(_all_secrets(), key=len, reverse=True):
        if secret in text:
            # A short secret is masked as a whole word only.
            pattern = re.escape(secret) if len(secret) >= _SHORT else rf"(?<![\w-]){re.escape(secret)}(?![\w-])"
            text = re.sub(pattern, MASK, text)
    return _USER_INFORMATION.sub(MASK, text) if "://" in text else text


def document_text(document: Any, default: Callable[[Any], object] | None = None, *, only_ascii: bool = False) -> str:
    """Strict JSON with secrets masked; ``default`` converts types that JSON does not have."""
    dump = _encoder(default, only_ascii).encode
    text = dump(document)
    has_secret = any(dump(secret)[1:-1] in text for secret in _all_secrets())
    has_secret = has_secret or ("@" in text and _USER_INFORMATION.search(text) is not None)
    return dump(_masked(json.loads(text))) if has_secret else text


@lru_cache(maxsize=16)
def _encoder(default: Callable[[Any], object] | None, only_ascii: bool) -> json.JSONEncoder:
    return json.JSONEncoder(allow_nan=False, ensure_ascii=only_ascii, default=default)


def _masked(value: Any) -> Any:
    """Mask strings only; numbers stay numbers."""
    if isinstance(value, dict):
        return {_masked(key): _masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item) for item in value]
    return without_secrets(value) if isinstance(value, str) else value


def redacted(text: str) -> str:
    """Also mask values after the name of a secret; for messages and logs."""
    return without_named(without_secrets(text))


def without_named(text: str) -> str:
    """Mask values after the name of a secret, for texts in which known secrets are masked later."""
    return _NAMED.sub(rf"\g<name>{MASK}", text)


def _all_secrets() -> set[str]:
    # As bytes: decoding every name of the environment takes longer than a log line.
    chosen = (os.fsdecode(name) for name in os.environb if name.startswith(_ENVIRONMENT))
    return _known.union(_secrets({name: os.environ[name] for name in chosen}))


def _secrets(properties: Mapping[str, object]) -> Iterator[str]:
    for name, value in properties.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        if isinstance(value, str):
            yield from _secrets_of(str(name), value)


@lru_cache(maxsize=256)
def _secrets_of(name: str, value: str) -> tuple[str, ...]:
    """The secrets in one property; cached, because every log line and report is checked for all of them."""
    found = [value, _SECOND_PART.sub("", value, count=1)] if _SECRET_NAME.search(name) else []
    if "://" in value and "@" in value:
        with suppress(ValueError):  # not a valid URI
            password = urlsplit(value).password
            found += [] if password is None else [password, unquote(password)]
    return tuple(secret for secret in found if len(secret) >= _SHORTEST and not secret.isspace())

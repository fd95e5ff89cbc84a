"""Masking of secrets in messages, logs, JSON documents and reports.

Three things are secrets: values of catalog and store properties whose name indicates one (``password``, ``token``,
``s3.secret-access-key`` …), and the second part of ``name:secret``, wherever they occur; the user information of a URI;
and, in messages and logs, the value after such a name.

Fail-safe: a secret is masked in every text that contains it. Values of fewer than 8 characters are masked only as whole
words, because they may be part of other words and paths; values of fewer than 4 characters are not masked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

MASK = "***"
_SHORTEST, _SHORT = 4, 8
_ENVIRONMENT = ("PYICEBERG_", "AWS_", "AZURE_", "GOOGLE_")
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
            text = _pattern(secret).sub(MASK, text)
    return _USER_INFORMATION.sub(MASK, text) if "://" in text else text


def document_text(document: Any, default: Callable[[Any], object] | None = None, *, only_ascii: bool = False) -> str:
    """Strict JSON with secrets masked; ``default`` converts types that JSON does not have."""
    dump = partial(json.dumps, allow_nan=False, ensure_ascii=only_ascii, default=default)
    text = dump(document)
    has_secret = any(dump(secret)[1:-1] in text for secret in _all_secrets()) or _USER_INFORMATION.search(text)
    return dump(_masked(json.loads(text))) if has_secret else text


def _masked(value: Any) -> Any:
    """Mask strings only; numbers stay numbers."""
    if isinstance(value, dict):
        return {_masked(key): _masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item) for item in value]
    return without_secrets(value) if isinstance(value, str) else value


def redacted(text: str) -> str:
    """Also mask values after the name of a secret; for messages and logs."""
    return _NAMED.sub(rf"\g<name>{MASK}", without_secrets(text))


def _pattern(secret: str) -> re.Pattern[str]:
    """The pattern of a secret; a short one matches whole words only."""
    literal = re.escape(secret)
    return re.compile(literal if len(secret) >= _SHORT else rf"(?<![\w-]){literal}(?![\w-])")


def _all_secrets() -> set[str]:
    environment = {name: os.environ[name] for name in os.environ if name.startswith(_ENVIRONMENT)}
    return _known.union(_secrets(environment))


def _secrets(properties: Mapping[str, object]) -> Iterator[str]:
    for name, value in properties.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        if not isinstance(value, str):
            continue
        found = [value, _SECOND_PART.sub("", value, count=1)] if _SECRET_NAME.search(str(name)) else []
        found += _passwords(value) if "://" in value and "@" in value else []
        yield from (secret for secret in found if len(secret) >= _SHORTEST and not secret.isspace())


def _passwords(uri: str) -> list[str]:
    try:
        password = urlsplit(uri).password
    except ValueError:
        return []
    return [] if password is None else [password, unquote(password)]

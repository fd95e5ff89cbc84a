"""Messages between clients and the upstream catalog: which headers pass, and bodies in which one member changes.

Documents of other catalogs have fields and numbers that a parser would write differently or not at all, so every other
byte of an edited body stays as it is. Names of headers keep their case.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response

from floeplan.rest.wire import RestError, encoded_response, unavailable

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "host"})
_OF_PROXIES = frozenset({"proxy-authenticate", "proxy-authorization", "proxy-connection"})
_OF_THE_BODY = frozenset({"content-length", "content-type", "content-encoding", "accept-encoding", "range"})
_OF_THE_PLAN = frozenset({"if-none-match", "idempotency-key"})
"""Headers of a plan request that do not belong to the request that loads its table."""
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class JsonMembers:
    """The members of a JSON object with their places in the text."""

    text: str
    values: Mapping[str, Any]
    spans: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, text: str) -> JsonMembers:
        """Parse an object.

        Raises:
            RestError: The upstream catalog sent something else.
        """
        try:
            return cls._parsed(text)
        except (ValueError, IndexError, RecursionError) as error:
            message = f"the upstream catalog sent no JSON object: {type(error).__name__}"
            raise RestError(502, "InternalServerError", message, cause="upstream") from error

    @classmethod
    def _parsed(cls, text: str) -> JsonMembers:
        values: dict[str, Any] = {}
        spans: dict[str, tuple[int, int]] = {}
        position = _expect(text, 0, "{")
        while text[_skip(text, position)] != "}":
            key, position = _DECODER.raw_decode(text, _skip(text, position))
            start = _skip(text, _expect(text, position, ":"))
            values[key], end = _DECODER.raw_decode(text, start)
            spans[key] = (start, end)
            position = _skip(text, end)
            if text[position] == ",":
                position += 1
        return cls(text, values, spans)

    def text_of(self, name: str) -> str:
        """The text of one member; ``null`` if there is none."""
        start, end = self.spans.get(name, (0, 0))
        return self.text[start:end] or "null"

    def replaced(self, name: str, value: Any) -> str:
        """The text with another value of one member."""
        dumped = json.dumps(value, ensure_ascii=False)
        if name in self.spans:
            start, end = self.spans[name]
            return self.text[:start] + dumped + self.text[end:]
        place = self.text.index("{") + 1
        return f"{self.text[:place]}{json.dumps(name)}:{dumped}{',' if self.spans else ''}{self.text[place:]}"


def _skip(text: str, position: int) -> int:
    while text[position] in " \t\r\n":
        position += 1
    return position


def _expect(text: str, position: int, character: str) -> int:
    position = _skip(text, position)
    if text[position] != character:
        raise ValueError(f"expected {character} at {position}")
    return position + 1


@contextmanager
def translated(method: str) -> Iterator[None]:
    """Turn a failure to reach the upstream catalog into the error that tells clients whether to retry."""
    try:
        yield
    except httpx.RequestError as error:
        never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        if never_sent or method in ("GET", "HEAD"):
            raise unavailable(f"the upstream catalog cannot be reached: {type(error).__name__}", "upstream") from error
        status = 504 if isinstance(error, httpx.TimeoutException) else 502
        lost = f"the response of the upstream catalog was lost ({type(error).__name__}); the change may be committed"
        raise RestError(status, "CommitStateUnknownException", lost, cause="upstream") from error


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """End-to-end headers: without those of one connection, and those that ``Connection`` names."""
    pairs = list(headers)
    named = b",".join(value for name, value in pairs if name.lower() == b"connection").decode("latin-1").lower()
    dropped = _HOP_BY_HOP | _OF_PROXIES | {name.strip() for name in named.split(",")}
    # Names keep their case: Iceberg's Java client looks for ETag, not for etag.
    return [(name, value) for name, value in pairs if name.lower().decode("latin-1") not in dropped]


def of_caller(request: Request) -> list[tuple[bytes, bytes]]:
    """The headers of a plan request for another request in the name of its caller."""
    left_out = _OF_THE_BODY | _OF_THE_PLAN
    kept = [pair for pair in end_to_end(request.headers.raw) if pair[0].decode("latin-1") not in left_out]
    return [*kept, (b"accept-encoding", b"gzip")]


def decodable(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The same for a response that is edited: in an encoding that can be decoded here."""
    return [pair for pair in end_to_end(headers) if pair[0] != b"accept-encoding"] + [(b"accept-encoding", b"gzip")]


def passed(response: httpx.Response, etag_mark: str = "") -> Response:
    """A buffered response as it came; httpx has decoded its body."""
    answer = Response(response.content, response.status_code)
    dropped = (b"content-length", b"content-encoding")
    headers = [pair for pair in end_to_end(response.headers.raw) if pair[0].lower() not in dropped]
    if response.status_code not in (204, 304):
        headers.append((b"content-length", str(len(response.content)).encode()))
    answer.raw_headers = [_marked(pair, etag_mark) for pair in headers]
    return answer


def edited(response: httpx.Response, text: str, request: Request, etag_mark: str = "") -> Response:
    """A response with another body."""
    answer = encoded_response(text.encode(), request.headers.get("accept-encoding", ""))
    dropped = (b"content-length", b"content-encoding", b"content-type", b"vary")
    kept = [_marked(pair, etag_mark) for pair in end_to_end(response.headers.raw) if pair[0].lower() not in dropped]
    answer.raw_headers = [*answer.raw_headers, *kept]
    return answer


def _marked(header: tuple[bytes, bytes], mark: str) -> tuple[bytes, bytes]:
    name, value = header
    is_tag = name.lower() == b"etag" and value.endswith(b'"')
    return (name, value[:-1] + mark.encode() + b'"') if is_tag else header

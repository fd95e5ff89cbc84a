"""Requests and responses of the Iceberg REST protocol: paths, names, callers, errors and content encodings.

Paths are matched as they were sent: a namespace is one percent-encoded segment whose separator the catalog chooses, so
nothing is decoded to route a request. Errors have the JSON of the protocol; clients decide by status whether to retry:
429 and 503 with ``Retry-After`` are retried for every method, other errors of a POST are not.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import deflate
import zstandard
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from floeplan.errors import BadInputError, CorruptError, FloeplanError, UnknownTableError, UnsupportedError
from floeplan.rest.planner import Caller
from floeplan.rest.tokens import NoSuchPlanTaskError
from floeplan.text import excerpt, reason

Identifier: TypeAlias = tuple[str, ...]
"""The levels of a namespace, with or without the name of a table."""
NAMESPACE_SEPARATOR = "\x1f"
RETRY_AFTER_SECONDS = 1
_LONGEST_MESSAGE, _LONGEST_NAME = 2000, 100
SMALLEST_COMPRESSED = 1024
"""Bodies below this size are sent as they are: compressing them saves no packet."""

_TABLE = re.compile(
    r"/v1/(?:(?P<prefix>.+?)/)?namespaces/(?P<namespace>[^/]+)/tables/(?P<table>[^/]+)"
    r"(?:/(?P<action>plan|tasks|metrics)(?:/(?P<plan_id>[^/]+))?)?"
)
_PRODUCT = re.compile(r"([A-Za-z][\w.+-]*)/(\S+)")
_ICEBERG_JAVA = re.compile(r"Apache Iceberg (\S+)")
_CATALOG_ERRORS: tuple[tuple[type[Exception], int, str], ...] = (
    (NoSuchNamespaceError, 404, "NoSuchNamespaceException"),
    (NoSuchTableError, 404, "NoSuchTableException"),
    (FileNotFoundError, 404, "NotFoundException"),  # the metadata file of a table
    (NamespaceAlreadyExistsError, 409, "AlreadyExistsException"),
    (TableAlreadyExistsError, 409, "AlreadyExistsException"),
    (NamespaceNotEmptyError, 409, "NamespaceNotEmptyException"),
    (CommitStateUnknownException, 500, "CommitStateUnknownException"),
    (CommitFailedException, 409, "CommitFailedException"),
    (BadInputError, 400, "BadRequestException"),
    (NotImplementedError, 406, "UnsupportedOperationException"),
    (ValueError, 400, "BadRequestException"),  # pydantic's validation errors included
)
_WORDINGS = (
    (re.compile(r"current schema id has changed: expected (\S+), found"), r"current schema changed: expected id \1 !="),
    (
        re.compile(r"default spec id has changed: expected (\S+), found"),
        r"default partition spec changed: expected id \1 !=",
    ),
    (
        re.compile(r"default sort order id has changed: expected (\S+), found"),
        r"default sort order changed: expected id \1 !=",
    ),
    (
        re.compile(r"last assigned (field|partition) id has changed: expected (\S+), found"),
        r"last assigned \1 id changed: expected id \2 !=",
    ),
    (re.compile(r"^Table UUID does not match"), "Requirement failed: UUID does not match"),
    (re.compile(r"^Table already exists$"), "Requirement failed: table already exists"),
)
"""Failed requirements in the words of Iceberg's Java library, which users look for."""


@dataclass(frozen=True, slots=True)
class TablePath:
    """A path below a table, in percent-encoded segments; ``action`` is what follows the table, if anything does."""

    path: str
    prefix: str
    namespace: str
    table: str
    action: str
    plan_id: str

    @classmethod
    def match(cls, raw_path: str) -> TablePath | None:
        """The table path of a request; ``None`` for other paths."""
        found = _TABLE.fullmatch(raw_path)
        if found is None or (found["plan_id"] and found["action"] != "plan"):
            return None
        end = found.end("table")
        parts = {name: value or "" for name, value in found.groupdict().items()}
        return cls(path=raw_path[:end], **parts)


def raw_path(request: Request) -> str:
    """The path as it was sent, percent-encoded."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    return raw.partition(b"?")[0].decode("latin-1")


def is_plain(path: str) -> bool:
    """Whether a path names what it says: with ``..`` it could leave the path of the upstream catalog."""
    return path.startswith("/") and not {".", ".."} & set(unquote(path).split("/"))


class RestError(Exception):
    """An error response of the protocol.

    Args:
        status: The HTTP status.
        type: The name of the exception that clients map it to.
        message: One line.
        retry: Whether clients should send the same request again; adds ``Retry-After``.
        cause: Why a request was refused, as a label of the metrics.
    """

    def __init__(self, status: int, type: str, message: str, *, retry: bool = False, cause: str = "") -> None:
        super().__init__(message)
        # A message may quote a name of the request, which may be as long as the request.
        self.status, self.type, self.message = status, type, excerpt(message, _LONGEST_MESSAGE)
        self.retry, self.cause = retry, cause

    def response(self) -> Response:
        """The response, with the error as JSON."""
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if self.retry else {}
        body = {"error": {"message": self.message, "type": self.type, "code": self.status}}
        return json_response(body, self.status, headers)


class UpstreamRefusedError(Exception):
    """The response of the upstream catalog that ends a request, passed on as it is."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"upstream answered {response.status_code}")
        self.response = response


def unavailable(message: str, cause: str) -> RestError:
    """An error that clients retry, for every method."""
    return RestError(503, "ServiceUnavailableException", message, retry=True, cause=cause)


def planning_error(error: Exception) -> RestError:
    """The response for an exception of planning.

    A request that is wrong is refused for good. What may succeed on another attempt, and what was not foreseen, is
    retried by clients: a query that fails later is better than a query that reads a wrong plan.
    """
    if isinstance(error, RestError):
        return error
    if isinstance(error, NoSuchPlanTaskError):
        return RestError(404, "NoSuchPlanTaskException", error.message, cause="plan-task")
    if isinstance(error, UnknownTableError):
        return RestError(404, "NoSuchTableException", error.message)
    if isinstance(error, BadInputError):
        return RestError(400, "BadRequestException", error.message, cause="bad-request")
    if isinstance(error, UnsupportedError):
        return RestError(400, "BadRequestException", error.message, cause="unsupported")
    if isinstance(error, CorruptError):
        return RestError(500, "InternalServerError", error.message, cause="corrupt")
    if isinstance(error, FloeplanError) and error.retryable:
        return unavailable(error.message, "storage")
    # The message of an unforeseen exception may hold anything; it is logged, not sent.
    return unavailable(f"planning failed: {type(error).__name__}; see the log of the server", "unexpected")


def catalog_error(error: Exception, *, retry: bool) -> RestError:
    """The response for an exception of a PyIceberg catalog; ``retry`` says whether it can simply be tried again."""
    for kind, status, type_ in _CATALOG_ERRORS:
        if isinstance(error, kind):
            message = reason(error, lines=2, with_class=False)
            for pattern, words in _WORDINGS:
                message = pattern.sub(words, message)
            return RestError(status, type_, message)
    if isinstance(error, FloeplanError) and not error.retryable:
        return RestError(400, "BadRequestException", error.message)
    message = f"the catalog failed: {type(error).__name__}; see the log of the server"
    return unavailable(message, "catalog") if retry else RestError(500, "InternalServerError", message, cause="catalog")


def json_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
    return Response(body, status, headers, media_type="application/json")


def encoded_response(body: bytes, accepted: str) -> Response:
    """A JSON body in the best encoding that the client accepts: zstd, gzip, or as it is."""
    sent = {"Vary": "Accept-Encoding"}
    encoding = _encoding(accepted) if len(body) >= SMALLEST_COMPRESSED else None
    if encoding is not None:
        sent["Content-Encoding"] = encoding
        body = zstandard.compress(body, 1) if encoding == "zstd" else bytes(deflate.gzip_compress(body, 1))
    return Response(body, 200, sent, media_type="application/json")


def tagged(response: Response, tag: str) -> Response:
    """A response with an ETag, in the case in which Iceberg's Java client looks for it."""
    response.raw_headers.append((b"ETag", tag.encode()))
    return response


def _encoding(accepted: str) -> str | None:
    weights: dict[str, float] = {}
    for part in accepted.lower().split(","):
        name, _, parameter = part.strip().partition(";")
        quality = parameter.strip().removeprefix("q=") if parameter else "1"
        try:
            weights[name.strip()] = float(quality)
        except ValueError:
            continue
    return next((name for name in ("zstd", "gzip") if weights.get(name, 0) > 0), None)


async def limited_body(request: Request, most: int) -> bytes:
    """The body of a request.

    Raises:
        RestError: It is larger than ``most`` bytes, or compressed: a small body could then be a large one.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RestError(415, "BadRequestException", "the request body must not be compressed", cause="body")
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            message = f"the request body exceeds {most} bytes"
            raise RestError(413, "BadRequestException", message, cause="body")
        chunks.append(chunk)
    return b"".join(chunks)


def json_object(body: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        RestError: The body is not one.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RestError(400, "BadRequestException", f"the request body is not JSON: {type(error).__name__}") from error
    if not isinstance(document, dict):
        raise RestError(400, "BadRequestException", "the request body must be a JSON object")
    return document


def caller(headers: Headers) -> Caller:
    """Who sent a request, for the audit and for plan tasks; authorisation is up to the catalog."""
    engine, version = engine_of(headers)
    return Caller(principal(headers.get("authorization", "")), engine, version)


def engine_of(headers: Headers) -> tuple[str, str]:
    """The client library and its version."""
    # Iceberg's Java client names its HTTP library in User-Agent, and itself here.
    java = _ICEBERG_JAVA.search(headers.get("x-client-version", ""))
    if java is not None:
        return "Iceberg Java", excerpt(java[1], _LONGEST_NAME)
    product = _PRODUCT.search(headers.get("user-agent", ""))
    return (excerpt(product[1], _LONGEST_NAME), excerpt(product[2], _LONGEST_NAME)) if product else ("unknown", "")


def principal(authorization: str) -> str:
    """A stable name for the sender of an Authorization header.

    The subject of a JWT, the user of basic authentication, or a digest of the token. Nothing is verified here: the
    catalog has accepted the same header before the name is used.
    """
    scheme, _, credentials = authorization.strip().partition(" ")
    credentials = credentials.strip()
    if credentials in ("", "None"):  # PyIceberg 0.12 sends "Bearer None" when it has no token
        return "anonymous"
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(credentials, validate=True).decode().partition(":")[0] or "anonymous"
        except ValueError:
            return _digest(credentials)
    parts = credentials.split(".")
    if len(parts) == 3:
        try:
            claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
            if isinstance(claims, dict) and isinstance(claims.get("sub"), str) and claims["sub"]:
                return str(claims["sub"])
        except (ValueError, RecursionError):
            pass
    return _digest(credentials)


def _digest(credentials: str) -> str:
    return f"token-{hashlib.sha256(credentials.encode()).hexdigest()[:12]}"


def decoded(segment: str, separators: tuple[str, ...]) -> tuple[str, ...]:
    """The levels of a namespace segment, split at the separators that the catalog may use."""
    text = unquote(segment)
    for separator in separators:
        text = text.replace(separator, "\x1f")
    return tuple(text.split("\x1f"))


# --- names in catalog mode


def table_identifier(target: TablePath) -> Identifier:
    """The namespace and name of a table path."""
    return (*namespace_levels(target.namespace), checked_name(unquote(target.table)))


def namespace_levels(segment: str) -> Identifier:
    """The levels of a namespace segment of a path."""
    return checked_levels(unquote(segment).split(NAMESPACE_SEPARATOR))


def checked_levels(levels: object) -> Identifier:
    """The levels of a namespace in a body."""
    if not isinstance(levels, list) or not levels:
        raise RestError(400, "BadRequestException", "a namespace must be a list of names")
    return tuple(map(checked_name, levels))


def checked_name(name: object) -> str:
    """A name that PyIceberg's catalogs keep apart from others: they join levels with dots."""
    if not isinstance(name, str) or not name or "." in name:
        message = f"{name!r} cannot be a name in this catalog: a name must not be empty or contain a dot"
        raise RestError(400, "BadRequestException", message)
    return name


def body_identifier(document: object) -> Identifier:
    """The namespace and name of a table in a body."""
    if not isinstance(document, dict):
        raise RestError(400, "BadRequestException", "a table must be named by namespace and name")
    return (*checked_levels(document.get("namespace")), checked_name(document.get("name")))


def checked_strings(document: object) -> dict[str, str]:
    """Properties in a body."""
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(value, str) for value in document.values()):
        raise RestError(400, "BadRequestException", "properties must be an object of strings")
    return dict(document)


def checked_names(document: object) -> list[str]:
    """Names of properties in a body."""
    if document is None:
        return []
    if not isinstance(document, list) or not all(isinstance(name, str) for name in document):
        raise RestError(400, "BadRequestException", "names of properties must be a list of strings")
    return list(document)

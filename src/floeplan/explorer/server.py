"""The live explorer: an HTTP server on 127.0.0.1.

Every request is checked before anything is looked up:

- ``Host`` must be 127.0.0.1 or localhost with this port (prevents DNS rebinding).
- ``Sec-Fetch-Site`` must not name another site.
- A write must be a POST of JSON with a matching ``Origin`` and the session token. The token is part of the URL that
  ``floeplan serve`` prints and of nothing that the server returns, so other local processes cannot read it.

Only a fixed list of files is served, responses are never cached, and pages load nothing from other origins. Fail-safe:
for an unexpected exception the response contains its class name only; the message, which may hold secrets, is logged.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from floeplan.errors import BadInputError, FloeplanError
from floeplan.explorer.service import ExplorerService
from floeplan.explorer.site import DATA, INDEX, TYPES, asset_paths, data_script, to_json
from floeplan.text import parse_count

ADDRESS = "127.0.0.1"
TOKEN_HEADER = "X-Floeplan-Token"
MOST_BODY_BYTES = 64 * 1024
MOST_PARAMETERS = 20
IDLE_SECONDS = 120
"""Idle connections are closed after this time."""

_API = "/api/"
_JSON = "application/json; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_log = logging.getLogger(__name__)


class RefusedError(Exception):
    """A request that is refused with an HTTP status."""

    def __init__(self, status: HTTPStatus, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.error = status, BadInputError(message, kind=kind)


class ExplorerServer(ThreadingHTTPServer):
    """Serves the explorer on 127.0.0.1; port 0 picks a free port."""

    daemon_threads = True

    def __init__(self, service: ExplorerService, port: int) -> None:
        super().__init__((ADDRESS, port), _Handler)
        self.service = service
        self.assets = asset_paths()

    @property
    def port(self) -> int:
        """The port the server listens on."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://{ADDRESS}:{self.port}/"

    @property
    def page_url(self) -> str:
        """The URL to open in a browser; with the session token where writes are allowed."""
        return f"{self.url}?token={self.service.token}" if self.service.allow_writes else self.url

    @property
    def hosts(self) -> frozenset[str]:
        """The accepted values of ``Host``."""
        return frozenset(f"{name}:{self.port}" for name in (ADDRESS, "localhost"))


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: ExplorerServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server_version, sys_version = "floeplan", ""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, respond: Any) -> None:
        try:
            self._check_caller()
            respond()
        except RefusedError as refused:
            self.close_connection = True
            self._send(refused.status, _JSON, to_json(refused.error.to_dict()))
        except FloeplanError as error:
            status = HTTPStatus.BAD_REQUEST if isinstance(error, BadInputError) else HTTPStatus.INTERNAL_SERVER_ERROR
            self._send(status, _JSON, to_json(error.to_dict()))
        except ConnectionError:
            self.close_connection = True
        except Exception as error:
            _log.exception("%s failed", self.command)
            hidden = FloeplanError(f"{type(error).__name__}; see the server log for details", kind="unexpected")
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, _JSON, to_json(hidden.to_dict()))

    def _check_caller(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            raise RefusedError(HTTPStatus.FORBIDDEN, "wrong-host", f"this explorer is served at {self.server.url} only")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise RefusedError(HTTPStatus.FORBIDDEN, "cross-origin", "cross-site requests are refused")

    def _get(self) -> None:
        url = self._request_url()
        if url.path.startswith(_API):
            name = url.path.removeprefix(_API)
            self._send(HTTPStatus.OK, _JSON, to_json(self.server.service.read(name, _parameters(url.query))))
            return
        name = url.path.lstrip("/") or INDEX
        if name == DATA:
            self._send(HTTPStatus.OK, TYPES[".js"], data_script(None))
            return
        path = self.server.assets.get(name)
        if path is None or path.suffix not in TYPES:
            raise RefusedError(HTTPStatus.NOT_FOUND, "not-found", "page not found")
        self._send(HTTPStatus.OK, TYPES[path.suffix], path.read_text(encoding="utf-8"))

    def _post(self) -> None:
        if self.headers.get("Origin") not in {f"http://{host}" for host in self.server.hosts}:
            raise RefusedError(
                HTTPStatus.FORBIDDEN, "cross-origin", "writes are accepted from this explorer's pages only"
            )
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "not-json", "the content type must be application/json"
            )
        if not hmac.compare_digest(self.headers.get(TOKEN_HEADER, "").encode(), self.server.service.token.encode()):
            message = "session token is missing or stale; open the URL that floeplan serve printed"
            raise RefusedError(HTTPStatus.FORBIDDEN, "wrong-token", message)
        body = self._body()
        name = self._request_url().path.removeprefix(_API)
        self._send(HTTPStatus.OK, _JSON, to_json(self.server.service.write(name, body)))

    def _request_url(self) -> SplitResult:
        try:
            return urlsplit(self.path)
        except ValueError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "bad-input", "invalid request URL") from error

    def _body(self) -> Mapping[str, str]:
        size = parse_count(self.headers.get("Content-Length"))
        if size is None or size > MOST_BODY_BYTES:
            message = f"the request body must not exceed {MOST_BODY_BYTES} bytes"
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", message)
        try:
            body = json.loads(self.rfile.read(size))
        except ValueError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "not-json", "the request body is not JSON") from error
        if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "not-json", "the request body must be an object of strings")
        return body

    def _send(self, status: HTTPStatus, media_type: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": media_type, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests at INFO, without the query string: it may hold predicates or the token."""
        _log.info("%s %s", self.command, self.path.partition("?")[0])


def _parameters(query: str) -> Mapping[str, str]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_PARAMETERS))
    except ValueError as error:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "bad-input", "too many query parameters") from error

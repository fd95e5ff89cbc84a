"""The live explorer: an HTTP server on 127.0.0.1, and the documents that it returns.

A request can name only tables that the catalog lists, or the one given on the command line, and never a file to read.
Errors are those of the command line. Every request is checked before anything is looked up:

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
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pyiceberg.table import Table

from floeplan.audit.reports import check_reports
from floeplan.catalog import list_tables, load_table, open_catalog
from floeplan.errors import BadInputError, FloeplanError, InvalidOptionError, UnknownTableError
from floeplan.explorer.documents import (
    MOST_FILES,
    Footers,
    RewriteRequest,
    doctor_document,
    fleet_document,
    overview_document,
    plan_document,
    plan_for,
    rewrite_document,
    upgrade_document,
)
from floeplan.explorer.file_document import file_document
from floeplan.explorer.site import DATA, INDEX, TYPES, asset_paths, data_script, to_json
from floeplan.explorer.view import TableView
from floeplan.fleet.policy import RUNS_TABLE
from floeplan.fleet.records import History, read_history
from floeplan.rewrite.execute import run_rewrite
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions, upgrade_spec
from floeplan.rewrite.strategies.registry import strategy_names
from floeplan.text import parse_count

ADDRESS = "127.0.0.1"
_EVERY_INTERFACE = ("", "0.0.0.0", "::")
TOKEN_HEADER = "X-Floeplan-Token"
MOST_BODY_BYTES = 64 * 1024
MOST_PARAMETERS = 20
IDLE_SECONDS = 120
"""Idle connections are closed after this time."""

HISTORY_SECONDS = 30
"""What runs of ``maintain`` did is read again after this time."""

MOST_VIEWS = 4
"""Table views kept in memory."""

Parameters = Mapping[str, str]

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


@dataclass(slots=True)
class ExplorerService:
    """Serves documents about the tables of a catalog.

    Attributes:
        only: The only table served; by default all tables of the catalog.
        catalog: The name of the catalog.
        allow_writes: Whether rewrites and spec upgrades are allowed.
        audit: Runs the audit of one table; called at most once for each.
        token: The session token that write requests must carry.
    """

    only: str | None
    catalog: str | None
    allow_writes: bool
    audit: Callable[[str], Mapping[str, Any]] | None
    token: str
    _views: OrderedDict[str, TableView] = field(default_factory=OrderedDict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _history: tuple[float, History] | None = None
    _audited: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _audit_lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, name: str, parameters: Parameters) -> Mapping[str, Any]:
        """A document.

        Raises:
            BadInputError: The document does not exist, or a parameter is invalid.
        """
        answers: dict[str, Callable[[Parameters], Mapping[str, Any]]] = {
            "session": lambda _: {
                "tables": self.tables(),
                "allow_writes": self.allow_writes,
                "audit": self.audit is not None,
                "strategies": list(strategy_names()),
                "version": metadata.version("floeplan"),
            },
            "fleet": self._fleet,
            "overview": lambda given: overview_document(self._view(given, refresh="refresh" in given)),
            "map": lambda given: self._view(given).map.to_dict(),
            "plan": self._plan,
            "file": lambda given: file_document(self._view(given), _needed(given, "path"), given.get("where")),
            "cell": self._cell,
            "doctor": lambda given: doctor_document(self._load(self._name(given))),
            "rewrite": lambda given: rewrite_document(self._view(given), RewriteRequest.of(given)),
            "upgrade": lambda given: upgrade_document(self._view(given), given.get("to", "current")),
            "audit": self._audit,
        }
        if name not in answers:
            raise BadInputError(f"unknown document {name!r}; known documents are {', '.join(answers)}")
        return answers[name](parameters)

    def write(self, name: str, body: Parameters) -> Mapping[str, Any]:
        """Change a table; the caller has checked the token.

        Raises:
            BadInputError: Writes are not allowed, or the table's name was not confirmed.
        """
        if not self.allow_writes:
            raise BadInputError("this explorer is read-only; start it with --allow-writes", kind="read-only")
        if name not in ("rewrite", "upgrade"):
            raise BadInputError(f"unknown action {name!r}; known actions are rewrite and upgrade")
        view = self._view(body)
        if body.get("confirm") != view.name:
            raise BadInputError(f"type the table name {view.name} to confirm", kind="not-confirmed")
        table = self._load(self._name(body))
        try:
            if name == "rewrite":
                return run_rewrite(table, RewriteRequest.of(body).options()).to_dict()
            return upgrade_spec(table, options=UpgradeOptions(to=body.get("to", "current"))).to_dict()
        finally:
            with self._lock:
                self._views.pop(self._name(body), None)

    def tables(self) -> list[str]:
        """The tables that can be requested, of all namespaces, nested ones included."""
        if self.only is not None:
            return [self.only]
        return list_tables(self.catalog)[1]

    def _name(self, parameters: Parameters) -> str:
        name = parameters.get("table") or self.only
        if name is None:
            raise InvalidOptionError("the parameter 'table' is missing", context={"option": "table"})
        return name

    def _view(self, parameters: Parameters, *, refresh: bool = False) -> TableView:
        """The cached view of a table; ``refresh`` loads it again."""
        name = self._name(parameters)
        with self._lock:
            if refresh or name not in self._views:
                self._views[name] = TableView.of(self._load(name))
            self._views.move_to_end(name)
            while len(self._views) > MOST_VIEWS:
                self._views.popitem(last=False)
            return self._views[name]

    def _load(self, name: str) -> Table:
        if name not in self.tables():
            raise UnknownTableError(f"table {name!r} is not served", context={"table": name})
        return load_table(name, self.catalog)

    def _fleet(self, parameters: Parameters) -> Mapping[str, Any]:
        """One line of the front page; what earlier runs of ``maintain`` did is read with the first."""
        name = _needed(parameters, "table")
        if name not in self.tables():
            raise UnknownTableError(f"table {name!r} is not served", context={"table": name})
        catalog = open_catalog(self.catalog)
        with self._lock:
            if self._history is None or time.monotonic() - self._history[0] > HISTORY_SECONDS:
                self._history = time.monotonic(), read_history(catalog, RUNS_TABLE)
        return fleet_document(name, catalog, self._history[1])

    def _plan(self, parameters: Parameters) -> Mapping[str, Any]:
        footers = parameters.get("footers", Footers.AUTO)
        if footers not in list(Footers):
            raise InvalidOptionError(
                f"footers is {footers!r} but must be auto, yes or no", context={"option": "footers"}
            )
        view, where = self._view(parameters), parameters.get("where", "")
        return plan_document(view, where, plan_for(view, where, Footers(footers)))

    def _cell(self, parameters: Parameters) -> dict[str, Any]:
        view = self._view(parameters)
        rows = view.map.files_in(_integer(parameters, "lane"), _integer(parameters, "bin"))
        return {"files": view.file_facts(rows[:MOST_FILES]), "total": len(rows)}

    def _audit(self, parameters: Parameters) -> Mapping[str, Any]:
        if self.audit is None:
            raise BadInputError("no scan reports; start the explorer with --reports")
        name = self._view(parameters).name
        with self._audit_lock:
            if name not in self._audited:
                self._audited[name] = self.audit(name)
            return self._audited[name]


def _needed(parameters: Parameters, name: str) -> str:
    if not parameters.get(name):
        raise InvalidOptionError(f"the parameter {name!r} is missing", context={"option": name})
    return parameters[name]


def _integer(parameters: Parameters, name: str) -> int:
    text = _needed(parameters, name)
    try:
        return int(text)
    except ValueError as error:
        raise InvalidOptionError(f"{name} is {text!r} but must be a number", context={"option": name}) from error


def audit_reports(reports: str, spark_url: str | None, catalog: str | None, table: str) -> dict[str, Any]:
    """Audit the scan reports of a table on Spark."""
    from floeplan.audit.job import audit
    from floeplan.audit.options import AuditOptions
    from floeplan.spark.session import open_session

    check_reports(reports, catalog)
    session = open_session(spark_url or "local[*]")
    return audit(session, reports, AuditOptions(table=table), catalog=catalog).to_dict()


class RefusedError(Exception):
    """A request that is refused with an HTTP status."""

    def __init__(self, status: HTTPStatus, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.error = status, BadInputError(message, kind=kind)


class ExplorerServer(ThreadingHTTPServer):
    """Serves the explorer on 127.0.0.1; port 0 picks a free port.

    On another address every document needs the session token, because other machines can reach it.
    """

    daemon_threads = True

    def __init__(self, service: ExplorerService, port: int, host: str = ADDRESS) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)
        self.service, self.host = service, host
        self.assets = asset_paths()

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in (ADDRESS, "localhost", "::1")

    @property
    def port(self) -> int:
        """The port the server listens on."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The base URL."""
        # An address that means every interface is reached by the name of the machine.
        name = socket.gethostname() if self.host in _EVERY_INTERFACE else self.host
        return f"http://[{name}]:{self.port}/" if ":" in name else f"http://{name}:{self.port}/"

    @property
    def page_url(self) -> str:
        """The URL to open in a browser; with the session token where writes are allowed."""
        needed = self.service.allow_writes or not self.is_local
        return f"{self.url}?token={self.service.token}" if needed else self.url

    @property
    def hosts(self) -> frozenset[str] | None:
        """The accepted values of ``Host``; ``None`` accepts any, where the token protects the documents."""
        if not self.is_local:
            return None
        return frozenset(f"{name}:{self.port}" for name in (ADDRESS, "localhost", "[::1]"))


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

    def _answer(self, respond: Callable[[SplitResult], None]) -> None:
        try:
            if self.server.hosts is not None and self.headers.get("Host") not in self.server.hosts:
                message = f"this explorer is served at {self.server.url} only"
                raise RefusedError(HTTPStatus.FORBIDDEN, "wrong-host", message)
            if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
                raise RefusedError(HTTPStatus.FORBIDDEN, "cross-origin", "cross-site requests are refused")
            try:
                url = urlsplit(self.path)
            except ValueError as error:
                raise RefusedError(HTTPStatus.BAD_REQUEST, "bad-input", "invalid request URL") from error
            respond(url)
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

    def _get(self, url: SplitResult) -> None:
        if url.path.startswith(_API):
            if not self.server.is_local:
                self._check_token()
            try:
                parameters = dict(parse_qsl(url.query, keep_blank_values=True, max_num_fields=MOST_PARAMETERS))
            except ValueError as error:
                raise RefusedError(HTTPStatus.BAD_REQUEST, "bad-input", "too many query parameters") from error
            document = self.server.service.read(url.path.removeprefix(_API), parameters)
            self._send(HTTPStatus.OK, _JSON, to_json(document))
            return
        name = url.path.lstrip("/") or INDEX
        if name == DATA:
            self._send(HTTPStatus.OK, TYPES[".js"], data_script(None))
            return
        path = self.server.assets.get(name)
        if path is None or path.suffix not in TYPES:
            raise RefusedError(HTTPStatus.NOT_FOUND, "not-found", "page not found")
        self._send(HTTPStatus.OK, TYPES[path.suffix], path.read_text(encoding="utf-8"))

    def _post(self, url: SplitResult) -> None:
        hosts = self.server.hosts or {self.headers.get("Host")}
        if self.headers.get("Origin") not in {f"http://{host}" for host in hosts}:
            message = "writes are accepted from this explorer's pages only"
            raise RefusedError(HTTPStatus.FORBIDDEN, "cross-origin", message)
        if self.headers.get_content_type() != "application/json":
            message = "the content type must be application/json"
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "not-json", message)
        self._check_token()
        document = self.server.service.write(url.path.removeprefix(_API), self._body())
        self._send(HTTPStatus.OK, _JSON, to_json(document))

    def _check_token(self) -> None:
        if not hmac.compare_digest(self.headers.get(TOKEN_HEADER, "").encode(), self.server.service.token.encode()):
            message = "session token is missing or stale; open the URL that floeplan serve printed"
            raise RefusedError(HTTPStatus.FORBIDDEN, "wrong-token", message)

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

"""Proxies that inject faults of networks, stores, catalogs and databases.

Rule: a fault applies to requests that match its method and path, ``times`` times from the ``nth`` on; all other
requests pass through unchanged. The proxy records requests and counts faults, so that a test can assert that its fault
occurred.
"""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Kind = Literal[
    "throttled",
    "error",
    "error-after",
    "reset",
    "reset-after",
    "truncated",
    "shortened",
    "halved",
    "doubled",
    "trickling",
    "silent",
    "silent-after",
]
"""``…-after``: the server processes the request, but its response is lost. ``silent``: no response until the client
gives up. ``truncated``: the body is shorter than its Content-Length. ``shortened``: half of the body, with a matching
Content-Length. ``halved``, ``doubled``: the response reports a wrong file length. ``trickling``: the body arrives in
small pieces."""

_ALWAYS = 1_000_000
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"})
_SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
_INTERNAL = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>Internal error.</Message></Error>"
_PIECES = 16


@dataclass
class Fault:
    """A fault and the requests it applies to.

    Attributes:
        kind: The kind of fault.
        method: A regular expression for the method.
        path: A regular expression for a part of the path and query.
        nth: The first matching request it applies to, counted from 1.
        times: The number of requests it applies to.
        status: The response status of errors.
        body: The response body of errors.
        applied: How often the fault has occurred.
    """

    kind: Kind
    method: str = ""
    path: str = ""
    nth: int = 1
    times: int = 1
    status: int = 500
    body: bytes = _INTERNAL
    applied: int = 0
    _seen: int = field(default=0, repr=False)

    def applies_to(self, method: str, path: str) -> bool:
        """Whether the fault applies to the next request; counts it."""
        if not (re.fullmatch(self.method or ".*", method) and re.search(self.path, path)):
            return False
        self._seen += 1
        happens = self.nth <= self._seen < self.nth + self.times
        self.applied += happens
        return happens


def always(kind: Kind, method: str = "", path: str = "", *, nth: int = 1) -> Fault:
    """A permanent fault."""
    return Fault(kind, method, path, nth, _ALWAYS)


class FaultProxy:
    """The proxy; ``url`` is where it listens."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        assert parts.port is not None
        self.upstream: tuple[str, int] = (parts.hostname, parts.port)
        self.requests: list[tuple[str, str]] = []
        self._faults: tuple[Fault, ...] = ()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def with_faults(self, *faults: Fault) -> Iterator[list[tuple[str, str]]]:
        """Inject faults within the block; yields the list of requests."""
        with self._lock:
            self._faults, self.requests = faults, []
        try:
            yield self.requests
        finally:
            with self._lock:
                self._faults = ()

    def fault_of(self, method: str, path: str) -> Fault | None:
        """Record the request; returns the fault that applies to it."""
        with self._lock:
            self.requests.append((method, path))
            return next((fault for fault in self._faults if fault.applies_to(method, path)), None)

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """A proxy in front of a server, at first without faults."""
    proxy = FaultProxy(upstream)
    thread = threading.Thread(target=proxy.serve, name="fault-proxy")
    thread.start()
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    proxy: FaultProxy

    def handle_error(self, *_: object) -> None:
        """Closed connections are expected."""


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


def _of_another_length(answer: _Answer, factor: float) -> _Answer:
    """The same bytes with the file length in the headers scaled."""

    def scaled(name: str, value: str) -> str:
        match name.lower():
            case "content-length":
                return str(int(int(value) * factor))
            case "content-range":
                span, _, total = value.partition("/")
                return f"{span}/{int(int(total) * factor)}"
        return value

    return replace(answer, headers=[(name, scaled(name, value)) for name, value in answer.headers])


class _Handler(BaseHTTPRequestHandler):
    """Handles requests of every method."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        body = self._request_body()
        fault = self.server.proxy.fault_of(self.command, self.path)
        match fault and fault.kind:
            case "throttled":
                self._send(_Answer(503, [("Content-Type", "application/xml")], _SLOW_DOWN))
            case "error":
                assert fault is not None
                self._send(_Answer(fault.status, [("Content-Type", "application/json")], fault.body))
            case "error-after":
                assert fault is not None
                self._forward(body)
                self._send(_Answer(fault.status, [("Content-Type", "application/json")], fault.body))
            case "reset":
                self._reset()
            case "reset-after":
                self._forward(body)
                self._reset()
            case "silent":
                self._stay_silent()
            case "silent-after":
                self._forward(body)
                self._stay_silent()
            case "truncated":
                answer = self._forward(body)
                self._send(answer, end=len(answer.body) // 2)
                self._hang_up()
            case "shortened":
                answer = self._forward(body)
                self._send(replace(answer, body=answer.body[: len(answer.body) // 2]))
            case "halved" | "doubled" as kind:
                self._send(_of_another_length(self._forward(body), 0.5 if kind == "halved" else 2))
            case "trickling":
                self._send(self._forward(body), pieces=_PIECES)
            case _:
                self._send(self._forward(body))

    def _request_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _forward(self, body: bytes) -> _Answer:
        connection = http.client.HTTPConnection(*self.server.proxy.upstream)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP | {"content-length", "expect"}:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP]
            return _Answer(answer.status, kept, answer.read())
        finally:
            connection.close()

    def _send(self, answer: _Answer, *, end: int | None = None, pieces: int = 1) -> None:
        self.send_response_only(answer.status)
        lengths = [value for name, value in answer.headers if name.lower() == "content-length"]
        for name, value in answer.headers:
            if name.lower() != "content-length":
                self.send_header(name, value)
        if answer.status != 204:
            length = lengths[0] if lengths and self.command == "HEAD" else str(len(answer.body))
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return
        body = answer.body[:end]
        step = -(-len(body) // pieces) or 1
        for at in range(0, len(body), step):
            self.wfile.write(body[at : at + step])
            self.wfile.flush()

    def _hang_up(self) -> None:
        self.close_connection = True

    def _reset(self) -> None:
        """Close with a TCP reset instead of an end of stream."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _stay_silent(self) -> None:
        """Wait until the client closes the connection."""
        self.connection.settimeout(60)
        self.connection.recv(1)
        self._hang_up()

    def log_message(self, *_: object) -> None:
        pass


# --- a proxy in front of PostgreSQL that loses a COMMIT, or the response to one
#
# Bytes pass through unchanged until a client sends COMMIT while a fault is set. ``lost``: the database does not receive
# it and rolls back when the connection ends. ``unanswered``: it commits, and the client receives no response. ``gone``
# is ``unanswered``, and no later connection is accepted.

CommitFault = Literal["lost", "unanswered", "gone"]
_COMMIT, _TERMINATE = b"COMMIT\x00", b"X\x00\x00\x00\x04"


class DatabaseProxy:
    """The proxy; ``port`` is where it listens."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._fault: CommitFault | None = None
        self._closed = False
        self.applied = 0

    @contextmanager
    def with_faults(self, fault: CommitFault) -> Iterator[None]:
        """Apply the fault to the next COMMIT within the block."""
        self._fault, self.applied = fault, 0
        try:
            yield
        finally:
            self._fault, self._closed = None, False

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connected, args=(client,), daemon=True).start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _connected(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self._closed:
                return
            with socket.create_connection(("127.0.0.1", self._upstream)) as database:
                answers = _Answers(database, client)
                answers.start()
                self._from_client(client, database, answers)
                database.shutdown(socket.SHUT_RDWR)  # close() alone would not wake the thread that reads from it

    def _from_client(self, client: socket.socket, database: socket.socket, answers: _Answers) -> None:
        while data := client.recv(65536):
            if self._fault is None or not data.endswith(_COMMIT):
                database.sendall(data)
                continue
            fault, self._fault = self._fault, None
            self._closed = fault == "gone"
            if fault != "lost":
                answers.muted = True
                database.sendall(data + _TERMINATE)
                answers.join()  # wait until the database has processed the COMMIT
            self.applied += 1
            return


class _Answers(threading.Thread):
    """Forwards responses of the database to the client."""

    def __init__(self, database: socket.socket, client: socket.socket) -> None:
        super().__init__(daemon=True)
        self._database, self._client = database, client
        self.muted = False

    def run(self) -> None:
        with suppress(OSError):
            while data := self._database.recv(65536):
                if not self.muted:
                    self._client.sendall(data)


@contextmanager
def database_proxy(upstream: int) -> Iterator[DatabaseProxy]:
    """A proxy in front of a database, at first without faults."""
    proxy = DatabaseProxy(upstream)
    thread = threading.Thread(target=proxy.serve, name="database-proxy")
    thread.start()
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join()

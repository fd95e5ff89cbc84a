"""A proxy in front of an HTTP server that misbehaves by script: what networks, stores and catalogs do now and then.

Rule: a fault befalls the requests that it names by method and path, from the n-th on and so many times; everything else
passes through unchanged. What was asked is written down, so that a test knows that its fault was met.
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
"""``…-after``: the server did what it was asked, and only its answer is lost. ``silent``: no answer until the client
has given up. ``truncated``: the body ends before the length that was announced. ``shortened``: half of it is announced
and comes, as of a file that was uploaded by halves. ``halved``, ``doubled``: a length that is not that of the file is
told to who asks for it. ``trickling``: it comes in small pieces."""

_ALWAYS = 1_000_000
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"})
_SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
_INTERNAL = (
    b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>We met an internal error.</Message></Error>"
)
_PIECES = 16


@dataclass
class Fault:
    """What happens to which requests.

    Attributes:
        kind: What happens.
        method: The method, a regular expression.
        path: A part of the path with its query, a regular expression.
        nth: The first matching request that it happens to, counted from 1.
        times: To how many.
        status: Of the answer, for errors.
        body: Likewise.
        met: How often it has happened.
    """

    kind: Kind
    method: str = ""
    path: str = ""
    nth: int = 1
    times: int = 1
    status: int = 500
    body: bytes = _INTERNAL
    met: int = 0
    _seen: int = field(default=0, repr=False)

    def befalls(self, method: str, path: str) -> bool:
        """Whether it happens to this request, which is the next one."""
        if not (re.fullmatch(self.method or ".*", method) and re.search(self.path, path)):
            return False
        self._seen += 1
        happens = self.nth <= self._seen < self.nth + self.times
        self.met += happens
        return happens


def always(kind: Kind, method: str = "", path: str = "", *, nth: int = 1) -> Fault:
    """A fault that does not go away."""
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
    def misbehaving(self, *faults: Fault) -> Iterator[list[tuple[str, str]]]:
        """Let faults happen within the block; yields the requests as they come."""
        with self._lock:
            self._faults, self.requests = faults, []
        try:
            yield self.requests
        finally:
            with self._lock:
                self._faults = ()

    def fault_of(self, method: str, path: str) -> Fault | None:
        """Write the request down; what happens to it."""
        with self._lock:
            self.requests.append((method, path))
            return next((fault for fault in self._faults if fault.befalls(method, path)), None)

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """A proxy in front of a server, without faults so far."""
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
        """Clients that are gone are what this is about."""


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


def _of_another_length(answer: _Answer, factor: float) -> _Answer:
    """The same bytes, said to be of a file that is so many times as long."""

    def told(name: str, value: str) -> str:
        match name.lower():
            case "content-length":
                return str(int(int(value) * factor))
            case "content-range":
                span, _, total = value.partition("/")
                return f"{span}/{int(int(total) * factor)}"
        return value

    return replace(answer, headers=[(name, told(name, value)) for name, value in answer.headers])


class _Handler(BaseHTTPRequestHandler):
    """Answers whatever is asked, by whatever method."""

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
                self._say_nothing()
            case "silent-after":
                self._forward(body)
                self._say_nothing()
            case "truncated":
                answer = self._forward(body)
                self._send(answer, end=len(answer.body) // 2)
                self._hang_up()
            case "shortened":
                answer = self._forward(body)
                self._send(replace(answer, body=answer.body[: len(answer.body) // 2]))
            case "halved" | "doubled" as lie:
                self._send(_of_another_length(self._forward(body), 0.5 if lie == "halved" else 2))
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
        """Close so that the client is told of a reset, not of an end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _say_nothing(self) -> None:
        """Wait until the client hangs up."""
        self.connection.settimeout(60)
        self.connection.recv(1)
        self._hang_up()

    def log_message(self, *_: object) -> None:
        pass


# --- a proxy in front of PostgreSQL that loses a COMMIT, or the answer to one
#
# Bytes pass through unchanged until a client sends COMMIT while a fault is set. ``lost``: the database does not receive
# it and rolls back when the connection ends. ``unanswered``: it commits, and the client does not receive the answer.
# ``gone`` is ``unanswered``, and no later connection is accepted.

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
        self.met = 0

    @contextmanager
    def misbehaving(self, fault: CommitFault) -> Iterator[None]:
        """The next COMMIT meets this fault; after the block all is well again."""
        self._fault, self.met = fault, 0
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
                database.shutdown(socket.SHUT_RDWR)  # closing alone waits for whoever reads from it

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
                answers.join()  # until it is done
            self.met += 1
            return


class _Answers(threading.Thread):
    """What the database says, on its way to the client."""

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
    """A proxy in front of a database, without faults so far."""
    proxy = DatabaseProxy(upstream)
    thread = threading.Thread(target=proxy.serve, name="database-proxy")
    thread.start()
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join()

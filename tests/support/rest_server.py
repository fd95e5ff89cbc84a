"""The planning server of the tests: on a thread of this process, or as the program that users start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

WAIT_SECONDS = 60


class _Thread(uvicorn.Server):
    """A server on a thread, which leaves signals alone and says when it accepts requests."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = threading.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serve an application on a thread; yields its URI."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            app, http="h11", log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=5
        )
        server = _Thread(config)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            assert server.accepting.wait(WAIT_SECONDS)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(WAIT_SECONDS)


@dataclass(slots=True)
class Program:
    """`floeplan serve-catalog` in a process of its own."""

    uri: str
    process: subprocess.Popen[str]
    log: Path
    audit: Path

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the server has logged under this name."""
        found = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [event for event in found if event["event"] == name]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_SECONDS)

    def terminate(self) -> int:
        """Ask the server to stop; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)


@contextmanager
def program(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[Program]:
    """Start the program and wait for the line that says that it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
    log, audit = folder / "server.log", folder / "audit"
    command = [sys.executable, "-m", "floeplan.cli", "serve-catalog", "--port", "0", "--audit", str(audit), *arguments]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | dict(environment or {})
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        assert line.startswith("serving "), f"{line!r}\n{log.read_text()}"
        yield Program(line.removeprefix("serving "), process, log, audit)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(WAIT_SECONDS)
        process.stdout.close()


@dataclass(slots=True)
class Received:
    """A request as it arrived."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


@dataclass(slots=True)
class Upstream:
    """A scripted REST catalog: it keeps what it receives, and answers what it was told to."""

    uri: str = ""
    received: list[Received] = field(default_factory=list)
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    """How often the next requests for a path lose their connection before they are answered."""
    hang: threading.Event = field(default_factory=threading.Event)
    """Cleared: requests below ``/slow`` wait until it is set."""

    def answer(self, path: str, document: Any, status: int = 200, **headers: str) -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers[path] = (status, {"Content-Type": "application/json", **named}, body)


@contextmanager
def upstream() -> Iterator[Upstream]:
    """Run a scripted catalog; unknown paths are echoed."""
    scripted = Upstream()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding", "") == "chunked":
                body = _chunks(self.rfile)
            scripted.received.append(Received(self.command, self.path, list(self.headers.items()), body))
            if "/slow" in self.path:
                scripted.hang.wait(WAIT_SECONDS)
            drop = scripted.dropped.get(self.path, 0)
            scripted.dropped[self.path] = max(drop - 1, 0)
            if drop or "/lost" in self.path:
                self.close_connection = True
                return
            status, headers, content = scripted.answers.get(self.path, (200, {"X-Echo": "yes"}, body))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status not in (204, 304):
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD" and status not in (204, 304):
                self.wfile.write(content)

        do_GET = do_POST = do_DELETE = do_HEAD = do_PUT = answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    scripted.uri = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield scripted
    finally:
        scripted.hang.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _chunks(stream: Any) -> bytes:
    found = b""
    while size := int(stream.readline(), 16):
        found += stream.read(size)
        stream.readline()
    stream.readline()
    return found

"""A REST catalog that sends stored responses: `python -m bench.stored_responses URI` prints where it listens.

The first time a request is sent, it goes to the server at URI; from then on its response comes from memory. What a
client takes for a scan that it repeats here is the cost of its own parsing: no server can be faster for it.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

_KEPT = ("Content-Type", "Content-Encoding", "ETag")


@dataclass(frozen=True, slots=True)
class StoredResponses:
    """The running process."""

    uri: str
    pid: int


@contextmanager
def stored_responses(uri: str) -> Iterator[StoredResponses]:
    """Start the server in a process of its own."""
    command = [sys.executable, "-m", "bench.stored_responses", uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield StoredResponses(process.stdout.readline().strip(), process.pid)
        finally:
            process.terminate()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 20  # head and body in one packet: two small ones would wait for each other
    upstream = ""
    stored: ClassVar[dict[tuple[str, str, str, bytes], tuple[int, list[tuple[str, str]], bytes]]] = {}

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key = (self.command, self.path, self.headers.get("Accept-Encoding", ""), body)
        if key not in self.stored:
            self.stored[key] = self._fetched(body)
        status, headers, content = self.stored[key]
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(content)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815

    def _fetched(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.upstream)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        connection.request(self.command, self.path, body or None, headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, [(name, response.headers[name]) for name in _KEPT if name in response.headers], content

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    _Handler.upstream = sys.argv[1].removeprefix("http://")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()

"""A proxy in front of PostgreSQL that loses a COMMIT, or the answer to one.

Rule: bytes pass through unchanged until a client sends COMMIT while a fault is set. ``lost``: the database never hears
of it, and rolls back when the connection ends. ``unanswered``: it does what it was told, and the client never hears of
that. ``gone`` is ``unanswered``, and afterwards nobody is let in.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

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

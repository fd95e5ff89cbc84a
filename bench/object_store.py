"""An object store on 127.0.0.1 that counts requests, bytes and sequential round trips.

It answers HEAD and ranged GET as S3 does, without checking credentials, after a short delay like that of a network. The
delay makes round trips visible: a request belongs to the round after the last one whose response was sent before it
arrived, so concurrent requests share a round.

It runs in a separate process, so that its CPU time does not count for the contender, and ends with its parent.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import unquote
from urllib.request import urlopen

LATENCY_SECONDS = 0.1
"""Unless a suite sets another one."""
BUCKET = "bench"


@dataclass(slots=True)
class Traffic:
    """The requests of one contender."""

    requests: int = 0
    bytes: int = 0
    round_trips: int = 0


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A running store."""

    endpoint: str

    def traffic(self) -> Traffic:
        """The traffic since the last call; resets the counters."""
        with urlopen(f"{self.endpoint}/_traffic") as answer:
            return Traffic(**json.load(answer))


@contextmanager
def serve(root: Path, latency: float = LATENCY_SECONDS) -> Iterator[ObjectStore]:
    """Serve the files of a folder as objects of the bucket; each response is delayed by the latency in seconds."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(root, latency, theirs), daemon=True)
    process.start()
    try:
        yield ObjectStore(f"http://127.0.0.1:{ours.recv()}")
    finally:
        process.terminate()
        process.join()


def _run(root: Path, latency: float, ready: Connection) -> None:
    asyncio.run(_Server(root, latency).listen(ready))


class _Server:
    def __init__(self, root: Path, latency: float) -> None:
        self.root, self.latency = root, latency
        self.traffic = Traffic()
        self.finished_rounds = 0

    async def listen(self, ready: Connection) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        asyncio.get_running_loop().add_reader(ready.fileno(), os._exit, 0)
        await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                request, *lines = head.decode("latin-1").split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
                await self._answer(writer, *request.split(" ")[:2], headers.get("range"))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, method: str, target: str, wanted: str | None) -> None:
        if target == "/_traffic":
            body = json.dumps({name: getattr(self.traffic, name) for name in Traffic.__slots__}).encode()
            self.traffic, self.finished_rounds = Traffic(), 0
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
            return
        round_ = self.finished_rounds + 1
        await asyncio.sleep(self.latency)
        sent = await self._object(writer, method, target, wanted)
        self.finished_rounds = max(self.finished_rounds, round_)
        self.traffic.requests += 1
        self.traffic.bytes += sent
        self.traffic.round_trips = max(self.traffic.round_trips, round_)

    async def _object(self, writer: asyncio.StreamWriter, method: str, target: str, wanted: str | None) -> int:
        path = self.root / unquote(target.split("?")[0]).removeprefix(f"/{BUCKET}/")
        if not path.is_file():
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return 0
        size = path.stat().st_size
        first, last = _range(wanted, size)
        status = "206 Partial Content" if wanted else "200 OK"
        head = [
            f"HTTP/1.1 {status}",
            f"Content-Length: {last - first}",
            "Accept-Ranges: bytes",
            'ETag: "1"',
            "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT",
            "Content-Type: application/octet-stream",
        ]
        if wanted:
            head.append(f"Content-Range: bytes {first}-{last - 1}/{size}")
        writer.write("\r\n".join([*head, "", ""]).encode())
        if method == "HEAD":
            return 0
        with path.open("rb") as file:
            writer.write(os.pread(file.fileno(), last - first, first))
        await writer.drain()
        return last - first


def _range(wanted: str | None, size: int) -> tuple[int, int]:
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted or "")
    if not match:
        return 0, size
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(int(last) + 1, size) if last else size

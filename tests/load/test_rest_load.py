"""Many clients of the planning server at once: complete plans, no error but 429, bounded memory.

A few clients and scans by default; 200 clients for a minute with ``FLOEPLAN_LOAD=large`` (``make load``).
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bench.server_clients import TABLE, request
from pyiceberg.table import StaticTable

import floeplan as fp
from tests.support.rest_server import Program, program
from tests.support.spark.lake import NAME, Lake
from tests.support.tables.archive import write_evolved_archive

pytestmark = [pytest.mark.load, pytest.mark.matrix]

LARGE = os.environ.get("FLOEPLAN_LOAD") == "large"
CLIENTS, SECONDS, MANIFESTS = (200, 60.0, 200) if LARGE else (16, 0.0, 12)
SCANS = 3
"""The fewest scans of each client."""
MEGABYTES = 500
FILE_PATH = re.compile(rb'"file-path":"([^"]*)"')
PATH = f"/v1/namespaces/db/tables/{TABLE.partition('.')[2]}"
DEEP: dict[str, Any] = {"type": "not", "child": True}
for _ in range(300):
    DEEP = {"type": "or", "left": {"type": "and", "left": DEEP, "right": True}, "right": False}
HOSTILE = (
    {"filter": DEEP},
    {"filter": {"type": "in", "term": "id", "values": list(range(100_001))}},
    {"filter": {"type": "eq", "term": "ts", "value": "yesterday"}},
    {"filter": {"type": "eq", "term": "id", "value": {}}},
    {"snapshot-id": 1},
)


@dataclass(slots=True)
class Balancer:
    """Sends requests to servers in turn, and to another one when a server is gone; each client has its own."""

    servers: tuple[Program, ...]
    turn: Iterator[int] = field(default_factory=itertools.count)
    statuses: Counter[int] = field(default_factory=Counter)

    def post(self, action: str, document: Any) -> bytes:
        """The body of a response; a request that is refused with 429 is repeated after the time that it says."""
        while True:
            status, body, wait = self._send(f"{PATH}/{action}", json.dumps(document))
            self.statuses[status] += 1
            if status != 429:
                return body
            assert wait is not None
            threading.Event().wait(float(wait))

    def _send(self, path: str, body: str) -> tuple[int, bytes, str | None]:
        for _ in range(2 * len(self.servers)):
            server = self.servers[next(self.turn) % len(self.servers)]
            connection = http.client.HTTPConnection(server.uri.removeprefix("http://"))
            try:
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                return response.status, response.read(), response.headers.get("Retry-After")
            except (OSError, http.client.HTTPException):
                continue
            finally:
                connection.close()
        raise AssertionError("no server answers")


def paths_of(balancer: Balancer, document: dict[str, Any]) -> list[str]:
    """The files of all pages of a plan; pages are searched, because parsing them would keep the server waiting."""
    first = balancer.post("plan", document)
    found = FILE_PATH.findall(first)
    for task in json.loads(first)["plan-tasks"]:
        found += FILE_PATH.findall(balancer.post("tasks", {"plan-task": task}))
    return sorted(path.decode() for path in found)


def test_many_clients_get_complete_plans_while_an_instance_dies(tmp_path: Path) -> None:
    metadata = write_evolved_archive(tmp_path / "table", MANIFESTS, 100)
    lake = Lake(tmp_path / "lake")
    with lake.open_catalog() as catalog:
        catalog.create_namespace("db")
        catalog.register_table(TABLE, Path(metadata).as_uri())
    entries = fp.plan_scan(StaticTable.from_metadata(str(metadata)), options=fp.ScanOptions(report=False)).files
    every = sorted(file.path for file in entries)
    keys = tmp_path / "keys.txt"
    keys.write_text(f"one {base64.b64encode(os.urandom(32)).decode()}\n")
    local = {"TYPE": "sql", "URI": f"sqlite:///{lake.database}", "WAREHOUSE": lake.warehouse.as_uri()}
    environment = {f"PYICEBERG_CATALOG__{NAME.upper()}__{key}": value for key, value in local.items()}
    environment["FLOEPLAN_CACHE"] = str(tmp_path / "cache")
    options = ("--catalog", NAME, "--plan", "*", "--keys", str(keys), "--page-bytes", "100000")
    limits = ("--max-waiting", "8", "--plan-seconds", "900")  # no deadline that a slow machine could miss
    expected: dict[int, list[str]] = {}
    statuses: Counter[int] = Counter()
    scans, lock, dying = itertools.count(), threading.Lock(), threading.Event()

    with ExitStack() as stack:
        servers = tuple(
            stack.enter_context(program(tmp_path / name, *options, *limits, environment=environment))
            for name in ("a", "b")
        )
        first = Balancer(servers)
        for day in range(20):
            expected[day] = paths_of(first, request(day))
        until = time.monotonic() + SECONDS

        def client(number: int) -> None:
            balancer = Balancer(servers, itertools.count(number))
            for turn in itertools.count():
                if turn >= SCANS and time.monotonic() > until:
                    break
                kind = (number + turn) % 8
                if kind == 0:
                    assert paths_of(balancer, {}) == every
                elif kind == 1:
                    refused = json.loads(balancer.post("plan", HOSTILE[turn % len(HOSTILE)]))
                    assert refused["error"]["type"] == "BadRequestException"
                else:
                    day = (7 * number + turn) % 20
                    assert paths_of(balancer, request(day)) == expected[day]
                if next(scans) == CLIENTS * SCANS // 3:
                    dying.set()
            with lock:
                statuses.update(balancer.statuses)

        with ThreadPoolExecutor(CLIENTS) as clients:
            running = [clients.submit(client, number) for number in range(CLIENTS)]
            while not dying.wait(0.1):
                assert not any(each.done() and each.exception() for each in running)
            servers[0].kill()
            for each in running:
                each.result()
        assert set(statuses) <= {200, 400, 429}
        assert statuses[200] > CLIENTS * SCANS
        status = Path(f"/proc/{servers[1].process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert peak is not None
        assert int(peak[1]) / 1024 < MEGABYTES, statuses
        assert "floeplan_plans_admitted 0" in _metrics(servers[1]), "no plan is left behind"


def _metrics(server: Program) -> str:
    connection = http.client.HTTPConnection(server.uri.removeprefix("http://"))
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text

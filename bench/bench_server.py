"""Scans planned by `floeplan serve-catalog` against the same scans planned by their clients.

Two servers serve the catalog of one table, one that plans and one that leaves planning to clients; the peer of every
ratio is the same client on the second server, in the same run. The selective query reads one day of one region; every
file is a scan without a filter. No scan is repeated, so plans come from decoded manifests and not from the cache of
plans. Floeplan, the peer and the floor alternate; the best of several runs counts, which excludes the warm-up of the
JVM. *CPU s, total* is the CPU of client and server together. Spark SQL ends with the partitions of the query, because
the files do not exist.

The floor of a row is the same client, in the same run, with responses that a trivial server has stored: what remains is
the client's own parsing of JSON, which no server can avoid. CPU of the trivial server is not counted.

*Server CPU ms per plan* is sent by one client over one connection. 2 ms are 1,000 plans per second on two cores. Its
floor is a response without a plan; a repeated plan shows what HTTP, loading the table, the page and the audit record
take, without evaluating the filter. The 99th percentile is measured at a fixed rate against two servers alternately,
from the time at which a request was due, with the load generator on the same cores. Memory is the peak of the server
process, with the pages of mapped files.
"""

from __future__ import annotations

import gc
import http.client
import itertools
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.cpu_clock import CpuClock, process_seconds
from bench.planning_tables import ENTRIES, evolved
from bench.results import bar_text
from bench.server_clients import TABLE, Client, JavaClient, PyIcebergClient, SparkClient, request
from bench.spark_session import start_session
from bench.stored_responses import StoredResponses, stored_responses
from tests.support.rest_server import Program, program
from tests.support.spark.lake import NAME, Lake

MANIFESTS = {"small": (20, 40), "default": (200, 4_000), "large": (200, 4_000)}
"""Of the table that clients plan, and of the large table."""
PAIRS = {"selective": 10, "every file": 6}
WARM, PLANS, SECONDS, CLIENTS = 60, 50, 8.0, 32
RATE, DISTINCT = 500.0, 20
"""Requests per second at which repeated plans are measured: half of the bar; and how many different ones repeat."""
BARS = {
    ("PyIceberg", "selective", "CPU s, client"): 0.05,
    ("PyIceberg", "selective", "CPU s, total"): 0.15,
    ("Iceberg Java", "selective", "CPU s, total"): 0.25,
    ("Spark SQL", "selective", "CPU s, total"): 0.5,
    ("PyIceberg", "every file", "wall s"): 0.4,
    ("Iceberg Java", "every file", "wall s"): 0.9,
}
MICROS_PER_FILE, PLAN_MS, P99_MS, MEGABYTES = 6.0, 2.0, 50.0, 500
NAMES = {"selective": "one day, one region", "every file": "every file"}
PATH = "/v1/namespaces/db/tables/events"

Row = dict[str, Any]
Scan = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a scan took."""

    wall: float
    client: float
    total: float
    files: int

    def metrics(self) -> dict[str, float]:
        return {"wall s": self.wall, "CPU s, client": self.client, "CPU s, total": self.total}


def run(size: str) -> list[Row]:
    few, many = MANIFESTS[size]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        rows = _compared(home / "clients", few)
        rows += _served(home / "few", few)
        return rows + _served(home / "many", many)


@contextmanager
def _servers(home: Path, manifests: int, *options: Sequence[str]) -> Iterator[list[Program]]:
    """Servers of a catalog with one table, each with its own options."""
    lake = Lake(home)
    with lake.open_catalog() as catalog:
        catalog.create_namespace("db")
        catalog.register_table(TABLE, evolved(manifests).as_uri())
    local = {"TYPE": "sql", "URI": f"sqlite:///{lake.database}", "WAREHOUSE": lake.warehouse.as_uri()}
    environment = {f"PYICEBERG_CATALOG__{NAME.upper()}__{key}": value for key, value in local.items()}
    environment["FLOEPLAN_CACHE"] = str(home / "cache")
    with ExitStack() as stack:
        yield [
            stack.enter_context(program(home / str(i), "--catalog", NAME, *given, environment=environment))
            for i, given in enumerate(options)
        ]


# --- clients


def _compared(home: Path, manifests: int) -> list[Row]:
    """Every client on the server that plans and on the one that does not."""
    os.environ["FLOEPLAN_CACHE"] = str(home / "cache")
    rows: list[Row] = []
    with (
        _servers(home, manifests, ("--plan", "*"), ()) as (planning, plain),
        stored_responses(planning.uri) as stored,
    ):
        uris = (planning.uri, plain.uri, stored.uri)
        rows += _pairs("PyIceberg", *map(PyIcebergClient, uris), stored)
        spark = start_session(Lake(home))
        try:
            rows += _pairs("Iceberg Java", *(JavaClient(spark, uri) for uri in uris), stored)
            rows += _pairs("Spark SQL", *(SparkClient(spark, uri) for uri in uris), stored)
        finally:
            spark.stop()
    return rows


def _pairs(name: str, ours: Client, theirs: Client, parsing: Client, stored: StoredResponses) -> list[Row]:
    rows = []
    for kind, pairs in PAIRS.items():
        mine, peers, floors = (_scan(client, kind) for client in (ours, theirs, parsing))
        floors(0)  # stores the responses
        costs = [
            (_cost(mine, number), _cost(peers, number), _cost(floors, 0, stored.pid)) for number in range(1, pairs + 1)
        ]
        if any(mine.files != peer.files for mine, peer, _ in costs):
            raise RuntimeError(f"{name}, {kind}: the plans differ: {costs}")
        case = f"{NAMES[kind]}, {name} ({costs[-1][0].files:,} {'partitions' if name == 'Spark SQL' else 'files'})"
        for metric in costs[0][0].metrics():
            if metric == "CPU s, client" and name != "PyIceberg":
                continue
            value, peer, floor = (min(cost.metrics()[metric] for cost in side) for side in zip(*costs, strict=True))
            bar = BARS.get((name, kind, metric))
            rows.append(_against(case, metric, value, peer, bar))
            if bar is not None:
                rows.append(_against(f"{NAMES[kind]}, {name} with stored responses (floor)", metric, floor, peer, None))
    return rows


def _scan(client: Client, kind: str) -> Scan:
    return client.selective if kind == "selective" else client.every_file


def _against(case: str, metric: str, ours: float, peer: float, bar: float | None) -> Row:
    return {
        "suite": "server",
        "case": case,
        "metric": metric,
        "ours": ours,
        "peer": f"client {peer:.3g}",
        "ratio": ours / peer,
        "bar": None if bar is None else bar_text(ours / peer, bar, ""),
    }


def _cost(scan: Scan, number: int, uncounted: int | None = None) -> Cost:
    """What a scan costs; the CPU of the process ``uncounted`` is left out."""
    tree, client, wall = CpuClock(), time.process_time(), time.perf_counter()
    other = 0.0 if uncounted is None else process_seconds(uncounted)
    files = scan(number)
    wall, client = time.perf_counter() - wall, time.process_time() - client
    other = 0.0 if uncounted is None else process_seconds(uncounted) - other
    return Cost(wall, client, tree.seconds() - other, files)


# --- the server alone


def _served(home: Path, manifests: int) -> list[Row]:
    """The server's own cost and memory, for requests of one client, and its latency at a fixed rate."""
    of = f"of {ENTRIES * manifests:,} files"
    with _servers(home, manifests, ("--plan", "*"), ("--plan", "*")) as servers:
        server = servers[0]
        files, cpu = _every_page(server)
        rows = [_alone(f"every file {of}", "server CPU µs per file", cpu / files * 1e6, MICROS_PER_FILE)]
        for each in servers:  # the manifests are decoded, and the plans that are repeated later are known
            _plans(each, range(WARM))
        for case, numbers in ((f"repeated plan {of}", [0] * PLANS), (f"new plan {of}", range(WARM, WARM + PLANS))):
            each_ms = _each_ms(server, partial(_plans, numbers=numbers))
            rows.append(_alone(case, "server CPU ms per plan", each_ms, PLAN_MS))
        floor = _each_ms(server, _health)
        rows.append(_alone(f"new plan {of}, GET /healthz instead (floor)", "server CPU ms per plan", floor, None))
        some = itertools.count()
        late = _p99(servers, RATE, lambda: next(some) % DISTINCT)
        rows.append(_alone(f"repeated plan {of}", f"p99 ms at {RATE:.0f} plans/s", late * 1e3, P99_MS))
        rows.append(_alone(f"server {of}", "peak MB", _peak_megabytes(server), MEGABYTES))
    return rows


def _post(connection: http.client.HTTPConnection, action: str, document: Any) -> bytes:
    headers = {"Content-Type": "application/json", "X-Client-Version": "Apache Iceberg 1.12.0"}
    connection.request("POST", f"{PATH}/{action}", json.dumps(document), headers)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise RuntimeError(f"{action}: {response.status} {body[:500]!r}")
    return body


def _connected(server: Program) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.uri.removeprefix("http://"))


def _every_page(server: Program) -> tuple[int, float]:
    """All pages of a scan without a filter: the number of files, and the server's CPU seconds."""
    connection = _connected(server)
    _post(connection, "plan", {"select": ["id"]})  # decodes the manifests
    before = process_seconds(server.process.pid)
    first = json.loads(_post(connection, "plan", {}))
    pages = [_post(connection, "tasks", {"plan-task": task}) for task in first["plan-tasks"]]
    seconds = process_seconds(server.process.pid) - before
    connection.close()
    return len(first["file-scan-tasks"]) + sum(page.count(b'"data-file":') for page in pages), seconds


def _each_ms(server: Program, work: Callable[[Program], None]) -> float:
    """The server's CPU in milliseconds for one of ``PLANS`` requests."""
    before = process_seconds(server.process.pid)
    work(server)
    return (process_seconds(server.process.pid) - before) / PLANS * 1e3


def _health(server: Program) -> None:
    connection = _connected(server)
    for _ in range(PLANS):
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    connection.close()


def _plans(server: Program, numbers: Iterable[int]) -> None:
    connection = _connected(server)
    for number in numbers:
        _post(connection, "plan", request(number))
    connection.close()


def _p99(servers: Sequence[Program], rate: float, next_one: Callable[[], int]) -> float:
    """The 99th percentile of the seconds from the time at which a request is due to the end of its response."""
    turns, started, late = itertools.count(), time.perf_counter(), list[float]()

    def client() -> None:
        connections = [_connected(server) for server in servers]
        while (turn := next(turns)) < rate * SECONDS:
            due = started + turn / rate
            if (wait := due - time.perf_counter()) > 0:
                time.sleep(wait)
            _post(connections[turn % len(servers)], "plan", request(next_one()))
            late.append(time.perf_counter() - due)

    # A pause of the load generator would count for every request that is due meanwhile: 0.1 s are 1.25% of them.
    gc.disable()
    try:
        threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.enable()
    if len(late) < rate * SECONDS - 1:
        raise RuntimeError(f"only {len(late)} of {rate * SECONDS:.0f} plans were answered")
    return sorted(late)[int(len(late) * 0.99)]


def _peak_megabytes(server: Program) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None, "Linux reports it"
    return int(found[1]) / 1024


def _alone(case: str, metric: str, ours: float, most: float | None) -> Row:
    shown = {"suite": "server", "case": case, "metric": metric, "ours": ours, "peer": None, "ratio": None}
    return shown | {"bar": None if most is None else bar_text(ours, most)}

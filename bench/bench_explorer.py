"""The explorer on the evolved archive: loading the facts of all files, the map, and planning while a user types.

Documents are requested over HTTP from a local server, as a page does; the best of several requests counts, in CPU time
of client and server and in wall time. The peer of the first request, with nothing cached, is PyIceberg listing the same
files (``inspect.files``). The map must stay small for tables of any size, and responses must be fast enough to plan on
every pause in typing.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from bench.cpu_clock import CpuClock
from bench.planning_tables import evolved
from floeplan.catalog import load_table
from floeplan.explorer.server import ExplorerServer, ExplorerService

MANIFESTS = {"small": 400, "default": 4_000, "large": 4_000}
TYPED = {
    "one day": "ts >= '2023-01-05' AND ts < '2023-01-06'",
    "30 days of one region": "region = 'eu' AND ts >= '2023-01-01' AND ts < '2023-01-31'",
    "a column that is not clustered": "amount BETWEEN 10 AND 20",
    "one region": "region = 'eu'",
    "every row": "",
}
REPETITIONS = 7
MAP_KILOBYTES, TYPING_MS = 100, 500

Row = dict[str, Any]


def run(size: str) -> list[Row]:
    metadata = evolved(MANIFESTS[size])
    with tempfile.TemporaryDirectory() as folder, _cached_in(Path(folder)), _serving(metadata) as request:
        rows = [_first_look(metadata, request)]
        drawn = request("map", {})
        files = sum(json.loads(drawn)["cells"]["files"])
        rows.append(_bounded(f"map ({files:,} files)", "kB", len(drawn) / 1000, MAP_KILOBYTES))
        for name, where in TYPED.items():
            plan = json.loads(request("plan", {"where": where}))
            case = f"typing: {name} ({plan['summary']['files_kept']:,} files kept)"
            rows += _timed(case, lambda where=where: request("plan", {"where": where}))
        parameters = {"path": plan["files"][0]["path"], "where": TYPED["a column that is not clustered"]}
        return rows + _timed("one file looked into", lambda: request("file", parameters))


def _first_look(metadata: Path, request: Callable[[str, dict[str, str]], bytes]) -> Row:
    """CPU seconds until the first page is loaded, with nothing cached."""
    clock = CpuClock()
    request("overview", {})
    request("map", {})
    ours = clock.seconds()
    clock = CpuClock()
    load_table(str(metadata)).inspect.files()
    peer = clock.seconds()
    row = {"suite": "explorer", "case": "first look, nothing cached", "metric": "CPU s", "ours": ours}
    return row | {"peer": f"PyIceberg {peer:.3g}", "ratio": ours / peer, "bar": None}


def _bounded(case: str, metric: str, ours: float, limit: float) -> Row:
    bar = f"ours ≤ {limit} {'met' if ours <= limit else 'MISSED'}"
    return {"suite": "explorer", "case": case, "metric": metric, "ours": ours, "peer": None, "ratio": None, "bar": bar}


def _timed(case: str, request: Callable[[], bytes]) -> list[Row]:
    """The best of several requests, in CPU time and wall time."""
    cpu, wall = [], []
    for _ in range(REPETITIONS):
        started, used = time.perf_counter(), time.process_time()
        request()
        cpu.append((time.process_time() - used) * 1000)
        wall.append((time.perf_counter() - started) * 1000)
    return [_bounded(case, "CPU ms", min(cpu), TYPING_MS), _bounded(case, "wall ms", min(wall), TYPING_MS)]


@contextmanager
def _cached_in(folder: Path) -> Iterator[None]:
    before = os.environ.get("FLOEPLAN_CACHE")
    os.environ["FLOEPLAN_CACHE"] = str(folder)
    yield
    os.environ.pop("FLOEPLAN_CACHE")
    os.environ.update({} if before is None else {"FLOEPLAN_CACHE": before})


@contextmanager
def _serving(metadata: Path) -> Iterator[Callable[[str, dict[str, str]], bytes]]:
    """A server for one table; yields a function that sends requests."""
    with ExplorerServer(ExplorerService(str(metadata), None, False, None, ""), 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        def request(name: str, parameters: dict[str, str]) -> bytes:
            with urlopen(f"{server.url}api/{name}?{urlencode(parameters)}") as response:
                return bytes(response.read())

        try:
            yield request
        finally:
            server.shutdown()
            thread.join()

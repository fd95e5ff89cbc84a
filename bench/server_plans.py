"""Planning for REST clients, the server's part: from a request to the bytes of all pages, without HTTP.

Each case runs in a new process after one plan that fills the caches of manifests; every plan of a selective query asks
for another day, so none comes from the cache of plans. Bars: 6 µs of CPU per file where every file is sent, 2 ms of
CPU for a selective plan, 500 MB.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.planning_tables import ENTRIES, evolved

MANIFESTS = {"small": 200, "default": 4_000, "large": 4_000}
REPETITIONS = 3
MICROS_PER_FILE, SELECTIVE_SECONDS, MEGABYTES = 6.0, 0.002, 500
CASES = ("every file", "one day, one region", "one day, one region, cached plan", "30 days")


def run(size: str) -> list[dict[str, Any]]:
    metadata = evolved(MANIFESTS[size])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            found = min((answer(case, metadata, folder) for _ in range(REPETITIONS)), key=lambda one: one["cpu"])
            files = f"{case} ({found['files']:,} of {ENTRIES * MANIFESTS[size]:,} files, {found['bytes'] / 1e6:.3g} MB)"
            if case == "every file":
                each = found["cpu"] / found["files"] * 1e6
                rows.append(row(files, "CPU µs/file", each, f"ours ≤ {MICROS_PER_FILE:g}", each <= MICROS_PER_FILE))
                good = found["megabytes"] <= MEGABYTES
                rows.append(row(files, "peak MB", found["megabytes"], f"ours ≤ {MEGABYTES}", good))
            else:
                limit = SELECTIVE_SECONDS if case != "30 days" else None
                bar = None if limit is None else f"ours ≤ {limit}"
                rows.append(row(files, "CPU s", found["cpu"], bar, limit is None or found["cpu"] <= limit))
    return rows


def row(case: str, metric: str, ours: float, bar: str | None, good: bool) -> dict[str, Any]:
    shown = bar and f"{bar} {'met' if good else 'MISSED'}"
    return {"suite": "server", "case": case, "metric": metric, "ours": ours, "peer": None, "ratio": None, "bar": shown}


def answer(case: str, metadata: Path, folder: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.server_plans", case, str(metadata)]
    environment = os.environ | {"FLOEPLAN_CACHE": folder}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{case}: {done.stderr.strip()[-2000:]}")
    return dict(json.loads(done.stdout))


def days(first: int, length: int, region: str | None) -> dict[str, Any]:
    """A filter as Spark sends it: timestamps in microseconds, and NOT NULL of every column."""
    start, micros = 1_640_995_200_000_000 + first * 86_400_000_000, 86_400_000_000
    filter_: dict[str, Any] = {"type": "not-null", "term": "ts"}
    tests = [("gt-eq", "ts", start), ("lt", "ts", start + length * micros)]
    for kind, term, value in [*tests, *([("eq", "region", region)] if region else [])]:
        leaf = {"type": kind, "term": term, "value": value}
        filter_ = {"type": "and", "left": filter_, "right": leaf}
    return filter_


def main(case: str, metadata: str) -> None:
    from pyiceberg.table import StaticTable

    from floeplan.rest.planner import Caller, ScanPlanner
    from floeplan.rest.requests import PlanTableScanRequest
    from floeplan.rest.tokens import KeyRing

    table, caller = StaticTable.from_metadata(metadata), Caller("bench", "Spark", "4.1")
    planner = ScanPlanner(KeyRing.generate())
    length, region = (30, None) if case == "30 days" else (1, "eu")

    def plan(number: int) -> tuple[int, int]:
        """The files and the bytes of all pages."""
        filter_: Any = True if case == "every file" else days(number, length, region)
        first = planner.plan(table, PlanTableScanRequest.from_json({"filter": filter_}), caller)
        tasks = json.loads(first.body)["plan-tasks"]
        report = first.report or {}
        pages = sum(len(planner.fetch_tasks(table, task, caller).body) for task in tasks)
        return report["metrics"]["result-data-files"]["value"], len(first.body) + pages

    plan(0)
    repeated = "cached plan" in case
    plans = 1 if case == "every file" else 50
    if case == "every file":  # the plan itself is part of what is measured
        planner = ScanPlanner(planner.keys)
    started = time.process_time()
    found = [plan(0 if repeated else 1 + number) for number in range(plans)]
    cpu = (time.process_time() - started) / plans
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu": cpu, "files": found[-1][0], "bytes": found[-1][1], "megabytes": megabytes}))


if __name__ == "__main__":
    main(*sys.argv[1:])

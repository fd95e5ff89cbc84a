"""Reading on one machine: Floeplan against PyIceberg, DuckDB, Polars and Daft, on local files and from S3.

The table has 52 files under three partition specs and 6 columns, 12 million rows at the default size, once clean and
once with 5 % of the rows deleted by position. Warm figures are the best of several runs of each query, in processes
that run all queries; the tools alternate. The first query of a process is measured in new processes with empty caches
and counts from their start, with all imports. A row compares with the best peer and shows all of them. A peer that
fails or returns other rows than PyIceberg is marked and does not count. CPU includes all threads. Polars plans with its
plugin (``polars[iceberg]``). Daft runs in an environment of its own, because it pins an older pyarrow. Results are
Arrow tables; Polars returns data frames, whose text is not converted to Arrow's layout.

From S3, the tables have a quarter of the rows, and the store (``object_store``) answers each request after 30 ms. Each
query runs in a process of its own with empty caches, after a query on the local table that imports and compiles what it
needs. Bytes and sequential round trips include the metadata.

The floor decompresses the pages of the columns, which are in memory, and decodes nothing. Two more rows read columns
with a decoder alone, without a plan, projection or deletes: with pyarrow's, and with that of Polars, whose text is
converted to Arrow's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.local_contenders import Query
from bench.local_tables import LocalTables, make_tables
from bench.object_store import ObjectStore, serve
from bench.results import HERE, bar_text

SIZES = {"small": (20_000, 1), "default": (230_769, 2), "large": (461_538, 5)}
"""Rows per file, and the number of processes of each tool."""
WARM_QUERIES = 3
WARM_BAR, FIRST_BAR, MEMORY_BAR, S3_BAR, S3_WALL_BAR = 1.0, 1.2, 1.3, 1.0, 0.8
S3_SHARE, S3_LATENCY = 4, 0.03
TIMEOUT = 600
"""Seconds after which a process counts as failed."""
PEERS = ("pyiceberg", "duckdb", "polars", "daft")
TOOLS = ("floeplan", *PEERS)
FLOORS = {
    "decompression": "decompression alone (floor)",
    "decoder": "pyarrow's decoder alone",
    "polars_decoder": "Polars' decoder to Arrow",
}
FIRST_PEERS = ("pyiceberg", "polars")
FIRST = ("all columns", "one day", "5 % deleted, region = 'eu'")
DAFT = "daft==0.7.26", "pyiceberg[pyarrow]==0.12.0"

Answers = dict[str, list[dict[str, Any]]]


def run(size: str) -> list[dict[str, Any]]:
    rows, processes = SIZES[size]
    with tempfile.TemporaryDirectory() as folder:
        local, bucket = Path(folder, "local"), Path(folder, "bucket")
        local.mkdir()
        bucket.mkdir()
        tables = make_tables(local, rows)
        found = _Bench(Path(folder), tables, processes).local_rows()
        with serve(bucket, S3_LATENCY) as store:
            remote = make_tables(bucket, rows // S3_SHARE, store.endpoint)
            return found + _Bench(Path(folder), remote, 1, store, tables.clean).s3_rows()


def queries(tables: LocalTables) -> list[Query]:
    two = ("id", "qty")
    return [
        Query("all columns", "clean"),
        Query("2 of 6 columns", "clean", two),
        Query("region = 'eu'", "clean", region="eu"),
        Query("one id", "clean", id=tables.one_id),
        Query("one day", "clean", day=tables.one_day),
        Query("count where region = 'eu'", "clean", region="eu", count=True),
        Query("limit 10 where region = 'eu'", "clean", region="eu", limit=10),
        Query("5 % deleted, all columns", "deleted"),
        Query("5 % deleted, 2 columns", "deleted", two),
        Query("5 % deleted, region = 'eu'", "deleted", region="eu"),
        Query("5 % deleted, one id", "deleted", id=tables.one_id),
        Query("5 % deleted, count", "deleted", count=True),
    ]


class _Bench:
    """Runs queries on two tables with each tool; ``warmed`` is a local table for the first query of a process."""

    def __init__(
        self, folder: Path, tables: LocalTables, processes: int, store: ObjectStore | None = None, warmed: str = ""
    ) -> None:
        self.folder, self.tables, self.processes, self.store = folder, tables, processes, store
        self.places = {"clean": tables.clean, "deleted": tables.deleted, "warmed": warmed}

    def local_rows(self) -> list[dict[str, Any]]:
        found, all_queries = [], queries(self.tables)
        warm = self._answers([query for query in all_queries for _ in range(1 + WARM_QUERIES)], [*TOOLS, *FLOORS])
        for query in all_queries:
            names = [*TOOLS, *FLOORS] if _is_decoded_only(query) else TOOLS
            for metric in ("CPU s", "wall s"):
                figures = {name: _best(query, warm[name], metric) for name in names}
                found += _compared(query.name, f"warm {metric}", figures, PEERS, WARM_BAR)
        for query in all_queries:
            if query.name in FIRST:
                first = self._answers([query], TOOLS)
                for metric, bar in (("start CPU s", FIRST_BAR), ("start wall s", FIRST_BAR), ("peak MB", MEMORY_BAR)):
                    figures = {name: _best(query, first[name], metric) for name in TOOLS}
                    label = f"first query, {metric.removeprefix('start ')}"
                    found += _compared(query.name, label, figures, FIRST_PEERS, bar)
        return found

    def s3_rows(self) -> list[dict[str, Any]]:
        found = []
        for query in queries(self.tables):
            answers = self._answers([Query("warm-up", "warmed", day=self.tables.one_day), query], TOOLS)
            for metric, bar in (("MB", S3_BAR), ("round trips", S3_BAR), ("wall s", S3_WALL_BAR)):
                figures = {name: _best(query, answers[name], metric) for name in TOOLS}
                found += _compared(query.name, f"S3 {metric}", figures, PEERS, bar)
        return found

    def _answers(self, asked: list[Query], tools: Sequence[str]) -> Answers:
        """The answers of each tool from all of its processes; one with other rows than PyIceberg's is an error."""
        found: Answers = {name: [] for name in tools}
        for _ in range(self.processes):
            for name in tools:
                found[name] += self._process(name, asked)
        expected = {answer["query"]: _rows(answer) for answer in found["pyiceberg"]}
        for name, answers in found.items():
            for answer in answers:
                known = name != "decompression" and "error" not in answer
                if known and _rows(answer) != expected[answer["query"]]:
                    answer["error"] = "other rows"
        failed = [answer for answer in found["floeplan"] if "error" in answer]
        if failed:
            raise ValueError(f"{failed[0]}; PyIceberg has {expected[failed[0]['query']]}")
        return found

    def _process(self, name: str, asked: list[Query]) -> list[dict[str, Any]]:
        """The answers of one new process with empty caches, and its traffic if it reads from the store."""
        command = [self._python(name), "-m", "bench.local_contenders", name, json.dumps(self.places)]
        if self.store is not None:
            command.append(self.store.endpoint)
            self.store.traffic()
        mine = [query for query in asked if name not in FLOORS or _is_decoded_only(query)]
        lines = "".join(f"{json.dumps(asdict(query))}\n" for query in mine)
        started = time.time()
        with tempfile.TemporaryDirectory(dir=self.folder) as home:
            environment = os.environ | {"FLOEPLAN_REPORTS": f"{home}/reports", "FLOEPLAN_CACHE": f"{home}/cache"}
            environment.pop("PYTHONDONTWRITEBYTECODE", None)  # fresh processes have compiled bytecode
            output = _output(command, lines, environment | {"DO_NOT_TRACK": "1"})
        answers = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        answers += [{"error": "no answer"} for _ in range(len(mine) - len(answers))]
        for query, answer in zip(mine, answers, strict=True):
            answer["query"] = query.name
            answer["start wall s"] = answer.get("finished", 0) - started
        if self.store is not None:
            traffic = self.store.traffic()
            answers[-1] |= {"MB": traffic.bytes / 1e6, "round trips": traffic.round_trips}
        return answers

    def _python(self, name: str) -> str:
        if name != "daft":
            return sys.executable
        place = HERE.parent / "build" / "daft"
        if not place.exists():
            uv = [sys.executable, "-m", "uv"]
            subprocess.run([*uv, "venv", "--quiet", str(place)], check=True)
            subprocess.run([*uv, "pip", "install", "--quiet", "--python", str(place / "bin/python"), *DAFT], check=True)
        return str(place / "bin/python")


def _is_decoded_only(query: Query) -> bool:
    """Whether a query reads all rows of columns, as a decoder alone can do."""
    return query.table == "clean" and not query.sql()


def _output(command: list[str], lines: str, environment: dict[str, str]) -> str:
    """What a process prints, until it ends or takes too long."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd=HERE.parent,
    ) as process:
        try:
            return process.communicate(lines, TIMEOUT)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0]


def _rows(answer: dict[str, Any]) -> tuple[object, object]:
    """What must be equal; a limit may return any rows, so that only their number is compared."""
    return answer.get("rows"), None if answer["query"].startswith("limit") else answer.get("sums")


def _best(query: Query, answers: list[dict[str, Any]], metric: str) -> float | str:
    """The best figure of a query, or the error of one run."""
    mine = [answer for answer in answers if answer["query"] == query.name]
    errors = [str(answer["error"]) for answer in mine if "error" in answer]
    return errors[0].split(":")[0] if errors else min(float(answer[metric]) for answer in mine)


def _compared(
    case: str, metric: str, values: dict[str, float | str], peers: tuple[str, ...], bar: float
) -> list[dict[str, Any]]:
    """Ours against the best peer, and the floor if it was measured."""
    ours = values["floeplan"]
    figures = {name: value for name, value in values.items() if name in peers and not isinstance(value, str)}
    if isinstance(ours, str) or not figures:
        raise ValueError(f"{case}, {metric}: {values}")
    best = min(figures, key=lambda name: figures[name])
    shown = ", ".join(
        f"{name} {value if isinstance(value, str) else format(value, '.3g')}"
        for name, value in values.items()
        if name not in ("floeplan", best, *FLOORS)
    )
    row = {"suite": "local", "case": case, "metric": metric, "ours": ours}
    text = f"best peer: {best} {figures[best]:.3g} ({shown})"
    found = [row | {"peer": text, "ratio": ours / figures[best], "bar": bar_text(ours / figures[best], bar, "")}]
    for name, label in FLOORS.items():
        floor = values.get(name)
        if isinstance(floor, float):
            mine = row | {"case": f"{case}, {label}", "ours": floor, "peer": f"best peer: {best}"}
            found.append(mine | {"ratio": floor / figures[best], "bar": None})
    return found

"""Reading on one machine: Floeplan against PyIceberg, DuckDB, Polars and Daft, on local files and on an object store.

The table has 52 files under three partition specs and 6 columns, 12 million rows at the default size, once clean and
once with 5 % of the rows deleted by position. Every line runs in new processes, the tools in turn: the first query of a
process counts from its start, with all imports; the best of the next ones is the warm figure. A row compares with the
best peer and shows them all. A peer that fails, or that returns other rows than PyIceberg, is shown as such and is no
peer of that line. CPU counts all threads. Polars plans with its plugin (``polars[iceberg]``). Daft runs in an
environment of its own, because it pins an older pyarrow. Results are Arrow tables, of Polars its own data frames, whose
text is not converted to Arrow's.

`decoder (floor)` reads the columns with pyarrow alone, without a plan, projection or deletes.

The store answers every request after 30 ms, and counts bytes and sequential round trips from the metadata file on, in a
new process; Floeplan has no local cache there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.local_contenders import Query
from bench.local_tables import LocalTables, make_stored_tables, make_tables
from bench.object_store import ObjectStore, serve
from bench.results import HERE, bar_text

SIZES = {"small": (20_000, 10_000, 2), "default": (230_769, 50_000, 3), "large": (461_538, 100_000, 5)}
"""Rows per file of the local and of the stored table, and the number of processes of each tool per line."""
WARM_QUERIES = 3
LATENCY_SECONDS = 0.03
WARM_BAR, FIRST_BAR, MEMORY_BAR, STORE_BAR, STORE_WALL_BAR = 1.0, 1.2, 1.3, 1.0, 0.8
PEERS = ("pyiceberg", "duckdb", "polars", "daft")
FIRST_PEERS = ("pyiceberg", "polars")
DAFT = "daft==0.7.26", "pyiceberg[pyarrow]==0.12.0"

Answers = dict[str, list[dict[str, Any]]]


def run(size: str) -> list[dict[str, Any]]:
    rows, stored_rows, processes = SIZES[size]
    with tempfile.TemporaryDirectory() as folder:
        local, stored = Path(folder) / "local", Path(folder) / "stored"
        local.mkdir()
        stored.mkdir()
        found = _Bench(Path(folder), make_tables(local, rows), processes).local_rows()
        tables = make_stored_tables(stored, stored_rows)
        with serve(stored, LATENCY_SECONDS) as store:
            return found + _Bench(Path(folder), tables, processes, store).stored_rows()


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
    def __init__(self, folder: Path, tables: LocalTables, processes: int, store: ObjectStore | None = None) -> None:
        self.folder, self.tables, self.processes, self.store = folder, tables, processes, store

    def local_rows(self) -> list[dict[str, Any]]:
        found = []
        for query in queries(self.tables):
            contenders = ["floeplan", *PEERS]
            has_floor = query.table == "clean" and not query.sql() and query.limit is None
            answers = self._answers(query, [*contenders, "decoder"] if has_floor else contenders)
            warm = {name: _best(runs, "cpu") for name, runs in answers.items()}
            walls = {name: _best(runs, "wall") for name, runs in answers.items()}
            found += _compared(query.name, "warm CPU s", warm, PEERS, WARM_BAR)
            found += _compared(query.name, "warm wall s", walls, PEERS, WARM_BAR)
            if query.limit is None and not query.count:
                cpu = {name: _best(runs, "first_cpu") for name, runs in answers.items() if name != "decoder"}
                first = {name: _best(runs, "first_wall") for name, runs in answers.items() if name != "decoder"}
                peak = {name: _best(runs, "peak_mb") for name, runs in answers.items() if name != "decoder"}
                found += _compared(query.name, "first query, CPU s", cpu, FIRST_PEERS, FIRST_BAR)
                found += _compared(query.name, "first query, wall s", first, FIRST_PEERS, FIRST_BAR)
                found += _compared(query.name, "first query, peak MB", peak, FIRST_PEERS, MEMORY_BAR)
        return found

    def stored_rows(self) -> list[dict[str, Any]]:
        found = []
        for query in queries(self.tables):
            answers = self._answers(query, ["floeplan", *PEERS])
            for metric, bar in (("bytes", STORE_BAR), ("round trips", STORE_BAR), ("first wall s", STORE_WALL_BAR)):
                values = {name: _best(runs, metric.replace("first wall s", "wall")) for name, runs in answers.items()}
                found += _compared(f"store: {query.name}", metric, values, PEERS, bar)
        return found

    def _answers(self, query: Query, contenders: list[str]) -> Answers:
        """What each tool reports in each of its processes; an answer with other rows becomes an error."""
        found: Answers = {name: [] for name in contenders}
        for _ in range(self.processes if self.store is None else 1):
            for name in contenders:
                found[name].append(self._process(name, query))
        expected = _rows(found["pyiceberg"][0])
        for name, runs in found.items():
            # Any rows will do for a limit, so that only their number is compared.
            same = all(_rows(one)[: 1 if query.limit else 2] == expected[: 1 if query.limit else 2] for one in runs)
            if not same:
                found[name] = [one if "error" in one else {"error": "other rows"} for one in runs]
        if any("error" in one for one in found["floeplan"]):
            raise ValueError(f"{query.name}: {found['floeplan']}; PyIceberg has {expected}")
        return found

    def _process(self, name: str, query: Query) -> dict[str, Any]:
        """One new process: its first query, and the best of the next ones; of a store only the first."""
        tables = json.dumps({"clean": self.tables.clean, "deleted": self.tables.deleted})
        command = [self._python(name), "-m", "bench.local_contenders", name, tables]
        environment = os.environ | {"FLOEPLAN_REPORTS": str(self.folder / "reports"), "DO_NOT_TRACK": "1"}
        environment["FLOEPLAN_CACHE"] = str(self.folder / ("cache" if self.store is None else f"none-{time.time_ns()}"))
        times = 1 + WARM_QUERIES
        if self.store is not None:
            command.append(self.store.endpoint)
            times = 1
            self.store.traffic()
        started = time.time()
        lines = f"{json.dumps(asdict(query))}\n" * times
        done = subprocess.run(
            command, input=lines, capture_output=True, text=True, env=environment, cwd=HERE.parent, check=False
        )
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if len(answers) != times or any("error" in answer for answer in answers):
            return {"error": next((a["error"] for a in answers if "error" in a), done.stderr[-200:])}
        first, later = answers[0], answers[1:] or answers
        found = {"rows": first["rows"], "sums": first["sums"], "peak_mb": first["peak_mb"]}
        found |= {"first_cpu": first["total_cpu"], "first_wall": first["finished"] - started}
        found |= {kind: min(answer[kind] for answer in later) for kind in ("cpu", "wall")}
        if self.store is not None:
            traffic = self.store.traffic()
            found |= {"bytes": traffic.bytes, "round trips": traffic.round_trips}
        return found

    def _python(self, name: str) -> str:
        if name != "daft":
            return sys.executable
        place = HERE.parent / "build" / "daft"
        if not place.exists():
            uv = [sys.executable, "-m", "uv"]
            subprocess.run([*uv, "venv", "--quiet", str(place)], check=True)
            subprocess.run([*uv, "pip", "install", "--quiet", "--python", str(place / "bin/python"), *DAFT], check=True)
        return str(place / "bin/python")


def _rows(answer: dict[str, Any]) -> tuple[object, object]:
    return answer.get("rows"), answer.get("sums")


def _best(runs: list[dict[str, Any]], kind: str) -> float | str:
    """The best figure of all processes, or the error of one."""
    errors = [str(one["error"]) for one in runs if "error" in one]
    return errors[0].split(":")[0] if errors else min(float(one[kind]) for one in runs)


def _compared(
    case: str, metric: str, values: dict[str, float | str], peers: tuple[str, ...], bar: float
) -> list[dict[str, Any]]:
    """Ours against the best peer, and the floor if it was measured."""
    ours = values["floeplan"]
    figures = {name: value for name, value in values.items() if name in peers and not isinstance(value, str)}
    assert isinstance(ours, float)
    best = min(figures, key=lambda name: figures[name])
    shown = ", ".join(
        f"{name} {value if isinstance(value, str) else format(value, '.3g')}"
        for name, value in values.items()
        if name not in ("floeplan", "decoder", best)
    )
    row = {"suite": "local", "case": case, "metric": metric, "ours": ours}
    text = f"best peer: {best} {figures[best]:.3g} ({shown})"
    found = [row | {"peer": text, "ratio": ours / figures[best], "bar": bar_text(ours / figures[best], bar, "")}]
    floor = values.get("decoder")
    if isinstance(floor, float):
        mine = row | {"case": f"{case}, decoder (floor)", "ours": floor, "peer": f"best peer: {best}"}
        found.append(mine | {"ratio": floor / figures[best], "bar": None})
    return found

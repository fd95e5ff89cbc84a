"""Planning scans of the evolved archive, cold and from the cache, against PyIceberg, Iceberg Java and a lower limit.

Four queries: one day of one region, 30 days, bounds of a column unrelated to the partitions, and no filter. Each
plan runs in a new process and the best of several counts; for Java, the best of several plans in one JVM. The floor is
reading and inflating the manifests that the query needs. On the table of few manifests, where that takes little time,
the floor has no bar. The bars are in ``BARS``. A plan must not keep more files than PyIceberg's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.planning_contenders import BETWEEN_QUERIES, QUERIES
from bench.planning_tables import ENTRIES, evolved, tenfold, timed

MANIFESTS = {"small": 400, "default": 4_000, "large": 4_000}
SCALING = {"small": (40, 400), "default": (40, 400, 4_000), "large": (40, 400, 4_000)}
REPETITIONS = 3
SELECTIVE = ("one day, one region", "30 days")
BARS = {"PyIceberg, large": 1 / 20, "PyIceberg, selective": 1 / 10, "Iceberg Java": 1 / 4, "read and inflate": 2.5}
MEGABYTES, CACHED_SECONDS, LINEAR = 500, 0.1, 1.5

Answer = dict[str, Any]


def run(size: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(Path(folder))
        rows = bench.queries(evolved(MANIFESTS[size]), "")
        rows += bench.queries(timed(MANIFESTS[size]), ", specs of time only")
        tables = {count * ENTRIES: evolved(count) for count in SCALING[size]}
        if size == "large":
            tables[10 * ENTRIES * MANIFESTS[size]] = tenfold(MANIFESTS[size])
        return rows + bench.scaling(tables)


class _Bench:
    """Runs contenders; ``folder`` holds the cache and the paths that each contender's last plan kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def queries(self, metadata: Path, which: str) -> list[dict[str, Any]]:
        """The queries of ``which`` table: all of them on the archive, otherwise the selective ones."""
        chosen = SELECTIVE if which else tuple(QUERIES)
        java = self.answer("Iceberg Java", metadata, BETWEEN_QUERIES.join(chosen))
        return [row for query in chosen for row in self._query(metadata, query, query + which, java[query])]

    def _query(self, metadata: Path, query: str, case: str, java: Answer) -> list[dict[str, Any]]:
        peer, floor = self.answer("PyIceberg", metadata, query), self.best("read and inflate", metadata, query)
        cold = self.best("cold", metadata, query)
        self._check(query, cold, peer, java)
        self.answer("cached", metadata, query)
        cached = self.best("cached", metadata, query)
        kept = f"{case} ({cold['files']:,} files of {floor['files']:,} manifests)"
        selective = query in SELECTIVE
        size = "selective" if selective else "large"
        rows = [
            _against(kept, "PyIceberg", cold, peer, BARS[f"PyIceberg, {size}"]),
            _against(kept, "Iceberg Java", cold, java, BARS["Iceberg Java"]),
            _against(kept, "read and inflate", cold, floor, BARS["read and inflate"] if case == query else None),
            _row(kept, "peak MB", cold, "PyIceberg", peer, f"ours ≤ {MEGABYTES}", cold["megabytes"] <= MEGABYTES),
        ]
        limit = f"ours ≤ {CACHED_SECONDS}" if selective else None
        rows.append(_row(f"{case}, cached", "CPU s", cached, "PyIceberg", peer, limit, cached["cpu"] <= CACHED_SECONDS))
        if not selective:
            objects = self.best("as objects", metadata, query)
            rows.append(_row(f"{case}, every file an object", "CPU s", objects, "PyIceberg", peer, None, True))
        return rows

    def scaling(self, tables: dict[int, Path]) -> list[dict[str, Any]]:
        """Cost per entry without a filter, each table against the one a tenth its size."""
        rows, last = [], None
        for entries, metadata in tables.items():
            found = self.best("cold", metadata, "no filter")
            cost = {"cpu": found["cpu"] / entries * 1e6}
            case = f"no filter, {entries:,} entries ({found['cpu']:.3g} s, {found['megabytes']:.0f} MB)"
            if last is not None:
                good = cost["cpu"] <= LINEAR * last["cpu"]
                rows.append(_row(case, "CPU µs/entry", cost, "a tenth", last, f"≤ {LINEAR}", good))
            last = cost
        return rows

    def _check(self, query: str, cold: Answer, peer: Answer, java: Answer) -> None:
        ours, theirs = (set(self._kept(name).read_text().splitlines()) for name in ("cold", "PyIceberg"))
        if not ours <= theirs or not cold["files"] <= java["files"] or cold["rows"] > peer["rows"]:
            counts = f"{cold['files']} of {peer['files']} and {java['files']}"
            raise RuntimeError(f"{query}: kept files that PyIceberg or Iceberg Java did not keep ({counts})")

    def best(self, contender: str, metadata: Path, query: str) -> Answer:
        return min(
            (self.answer(contender, metadata, query) for _ in range(REPETITIONS)), key=lambda found: found["cpu"]
        )

    def answer(self, contender: str, metadata: Path, query: str) -> Answer:
        program = [sys.executable, "-m", "bench.planning_contenders"]
        command = [*program, contender, str(metadata), query, str(self._kept(contender))]
        environment = os.environ | {"FLOEPLAN_CACHE": str(self.folder / "cache")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise RuntimeError(f"{contender}, {query}: {done.stderr.strip()[-2000:]}")
        return dict(json.loads(done.stdout))

    def _kept(self, contender: str) -> Path:
        return self.folder / f"kept by {contender}"


def _against(case: str, peer: str, ours: Answer, theirs: Answer, bar: float | None) -> dict[str, Any]:
    good = bar is None or ours["cpu"] <= bar * theirs["cpu"]
    return _row(case, "CPU s", ours, peer, theirs, None if bar is None else f"≤ {bar:.3g}", good)


def _row(
    case: str, metric: str, ours: Answer, peer: str, theirs: Answer, bar: str | None, good: bool
) -> dict[str, Any]:
    value = "megabytes" if metric == "peak MB" else "cpu"
    shown = {"suite": "planning", "case": case, "metric": metric, "ours": ours[value]}
    shown |= {"peer": f"{peer} {theirs[value]:.3g}", "ratio": ours[value] / theirs[value]}
    return shown | {"bar": None if bar is None else f"{bar} {'met' if good else 'MISSED'}"}

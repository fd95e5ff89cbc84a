"""Decoding all manifests of the evolved archive to columns, against PyIceberg and against reading and inflating alone.

Bars: 450,000 entries per CPU second, 2.5 times reading and inflating, 0.1 s from the cache, 400 MB.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.tables.archive import write_evolved_archive

MANIFESTS = {"small": 200, "default": 4_000, "large": 40_000}
ENTRIES = 100
REPETITIONS = 3
ENTRIES_PER_SECOND, TIMES_FLOOR, CACHED_SECONDS, MEGABYTES = 450_000, 2.5, 0.1, 400


def run(size: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        metadata = write_evolved_archive(Path(folder) / "events", MANIFESTS[size], ENTRIES)
        return measure(metadata, Path(folder) / "cache", size)


def measure(metadata: Path, cache: Path, size: str) -> list[dict[str, Any]]:
    floor = best("read and inflate", metadata, cache)
    peer = answer("PyIceberg", metadata, cache)
    rows = []
    for case in ("no filter", "bounds of one column"):
        ours = best(case, metadata, cache)
        rate = ours["entries"] / ours["cpu"]
        speed = f"≥ {ENTRIES_PER_SECOND:,} entries/s {met(rate >= ENTRIES_PER_SECOND)} ({rate:,.0f})"
        rows.append(row(case, "CPU s", ours["cpu"], "PyIceberg", peer["cpu"], speed))
        bar = f"≤ {TIMES_FLOOR} {met(ours['cpu'] <= TIMES_FLOOR * floor['cpu'])}"
        rows.append(row(case, "CPU s", ours["cpu"], "read and inflate", floor["cpu"], bar))
        memory = f"ours ≤ {MEGABYTES} {met(ours['megabytes'] <= MEGABYTES)}" if size != "large" else None
        rows.append(row(case, "peak MB", ours["megabytes"], "PyIceberg", peer["megabytes"], memory))
    for case in ("no filter, cached", "bounds of one column, cached"):
        answer(case, metadata, cache)
        ours = best(case, metadata, cache)
        bar = f"ours ≤ {CACHED_SECONDS} {met(ours['cpu'] <= CACHED_SECONDS)}" if size != "large" else None
        rows.append(row(case, "CPU s", ours["cpu"], "PyIceberg", peer["cpu"], bar))
    if size == "small":
        python = answer("Python decoder", metadata, cache)
        rows.append(row("no filter, Python decoder", "CPU s", python["cpu"], "PyIceberg", peer["cpu"], None))
    return rows


def best(contender: str, metadata: Path, cache: Path) -> dict[str, float]:
    return min((answer(contender, metadata, cache) for _ in range(REPETITIONS)), key=lambda found: found["cpu"])


def answer(contender: str, metadata: Path, cache: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.metadata_contenders", contender, str(metadata), str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{contender}: {done.stderr.strip()[-2000:]}")
    return dict(json.loads(done.stdout))


def met(good: bool) -> str:
    return "met" if good else "MISSED"


def row(case: str, metric: str, ours: float, peer: str, theirs: float, bar: str | None) -> dict[str, Any]:
    shown = {"suite": "metadata", "case": case, "metric": metric, "ours": ours, "peer": f"{peer} {theirs:.3g}"}
    return shown | {"ratio": ours / theirs, "bar": bar}

"""Selective reads of one large Parquet file: a point lookup, a narrow range, and a key in a column with a bloom filter.

The object store (``object_store``) counts bytes, requests and sequential round trips; CPU is that of a new process that
reads the local file. The file is written by pyarrow with a page index, and a bloom filter on the unsorted key. It is
created once and kept in ``.cache/bench``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.object_store import ObjectStore, serve
from bench.parquet_contenders import CONTENDERS, FILE, Query
from bench.planning_tables import CACHE

ROWS = {"small": 200_000, "default": 2_000_000, "large": 50_000_000}
ROW_GROUP = 1_000_000
REPETITIONS = {"small": 2, "default": 2, "large": 1}
FEW = {"small": 3, "default": 3, "large": 1}
"""The number of positions for cases that cost the same at each; some contenders read the whole file for each."""
STRATA = 8
"""A point lookup costs more at the start of a row group, where pages use a dictionary: one lookup in each eighth."""
ALL_COLUMNS = ("id", "ts", "key", "amount", "quantity", "score", "region", "sku", "note")
FOUR_COLUMNS = ("id", "amount", "region", "note")
METRICS = ("bytes", "requests", "round_trips", "cpu")
BARS = {
    ("point lookup", "bytes", "pyarrow"): 0.05,
    ("point lookup", "bytes", "datafusion"): 1.0,
    ("point lookup", "cpu", "datafusion"): 2.0,
    ("bloom key hit", "bytes", "datafusion"): 0.15,
}
ROUND_TRIP_BAR = 3
NEEDS_MANY_ROW_GROUPS = {"bloom key hit"}
"""Cases whose bar applies to a file of 50 row groups: in a small file the one row group that is read dominates."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The cost of one query with one contender; ``round_trips`` is the maximum of several runs, the rest their mean."""

    rows: int
    cpu: float
    bytes: float
    requests: float
    round_trips: int


def run(size: str) -> list[dict[str, Any]]:
    """Every query with every contender: one row per number and peer."""
    rows = ROWS[size]
    path = kept_file(rows)
    with serve(path.parent) as store:
        return [
            line for case, cases in queries(rows, size).items() for line in _compare(case, cases, path, store, size)
        ]


def kept_file(rows: int) -> Path:
    """The file with this number of rows; an incomplete file has another name."""
    path = CACHE / f"parquet-{rows}" / FILE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        write_file(unfinished, rows)
        unfinished.rename(path)
    return path


def write_file(path: Path, rows: int) -> None:
    """Sorted ``id`` and ``ts``; ``key`` unique and unsorted, with a bloom filter; six more; 50 bytes per row."""
    with pq.ParquetWriter(
        path,
        next(_batches(1)).schema,
        compression="zstd",
        write_page_index=True,
        bloom_filter_options={"key": {"ndv": min(rows, ROW_GROUP), "fpp": 0.01}},
    ) as writer:
        for batch in _batches(rows):
            writer.write_table(batch, row_group_size=ROW_GROUP)


def _batches(rows: int) -> Iterator[pa.Table]:
    for first in range(0, rows, ROW_GROUP):
        count = min(ROW_GROUP, rows - first)
        random = np.random.default_rng(first)
        number = np.arange(first, first + count, dtype=np.int64)
        yield pa.table(
            {
                "id": number * 3,
                "ts": pa.array(number * 1_000_003, pa.timestamp("us", tz="UTC")),
                "key": scrambled(number),
                "amount": random.gamma(2.0, 50.0, count).round(2),
                "quantity": random.integers(1, 100, count, dtype=np.int32),
                "score": random.random(count, dtype=np.float32),
                "region": pa.array(["eu", "us", "ap", "sa"]).take(pa.array(random.integers(0, 4, count))),
                "sku": pa.array([f"sku-{i:05d}" for i in range(20_000)]).take(random.integers(0, 20_000, count)),
                "note": pc.binary_join_element_wise(*(_digits(random, count) for _ in range(2)), "-"),
            }
        )


def _digits(random: np.random.Generator, count: int) -> pa.Array:
    return pa.array(random.integers(0, 1 << 62, count)).cast(pa.string())


def scrambled(number: np.ndarray) -> np.ndarray:
    """A fixed permutation of 64-bit numbers, so that keys are unique, unsorted and known."""
    return (number * 0x5851F42D4C957F2D + 0x14057B7EF767814F).astype(np.int64)


def queries(rows: int, size: str) -> dict[str, list[Query]]:
    """Each case at several representative positions of the file."""
    places = [_place(stratum, rows) for stratum in range(STRATA)]
    few = places[1::3][: FEW[size]]
    keys = scrambled(np.array(few, dtype=np.int64)).tolist()
    span = rows // 1000
    return {
        "point lookup": [Query(ALL_COLUMNS, "id", row * 3, row * 3) for row in places],
        "0.1 % range": [Query(FOUR_COLUMNS, "id", row * 3, (row + span - 1) * 3) for row in few],
        "bloom key hit": [Query(("id", "key", "amount", "note"), "key", key, key) for key in keys],
    }


def _place(stratum: int, rows: int) -> int:
    """A row in the middle of the given eighth of a row group, in a different row group for each."""
    groups, size = max(1, rows // ROW_GROUP), min(rows, ROW_GROUP)
    return stratum * groups // STRATA * size + (2 * stratum + 1) * size // (2 * STRATA)


def _compare(case: str, cases: list[Query], path: Path, store: ObjectStore, size: str) -> list[dict[str, Any]]:
    measured = {
        name: _mean([_measure(name, query, path, store, REPETITIONS[size]) for query in cases]) for name in CONTENDERS
    }
    answers = {name: one.rows for name, one in measured.items()}
    if len(set(answers.values())) != 1:
        raise AssertionError(f"{case}: the contenders disagree about the rows: {answers}")
    ours = measured.pop("floeplan")
    with_bars = size == "large" or case not in NEEDS_MANY_ROW_GROUPS
    return [
        _row(case, metric, getattr(ours, metric), peer, getattr(theirs, metric), with_bars)
        for metric in METRICS
        for peer, theirs in measured.items()
    ]


def _measure(contender: str, query: Query, path: Path, store: ObjectStore, repetitions: int) -> Measured:
    store.traffic()
    _answer(contender, query, path, store.endpoint)
    traffic = store.traffic()
    local = [_answer(contender, query, path, None) for _ in range(repetitions)]
    cpu = min(one["cpu"] for one in local)
    return Measured(local[0]["rows"], cpu, traffic.bytes, traffic.requests, traffic.round_trips)


def _mean(several: list[Measured]) -> Measured:
    count = len(several)
    return Measured(
        sum(one.rows for one in several),
        sum(one.cpu for one in several) / count,
        sum(one.bytes for one in several) / count,
        sum(one.requests for one in several) / count,
        max(one.round_trips for one in several),
    )


def _answer(contender: str, query: Query, path: Path, endpoint: str | None) -> dict[str, Any]:
    arguments: Sequence[str] = [contender, json.dumps(asdict(query)), str(path), *([endpoint] if endpoint else [])]
    command = [sys.executable, "-m", "bench.parquet_contenders", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    if done.returncode:
        raise RuntimeError(f"{contender}, {query.where}: {done.stderr.strip()[-2000:]}")
    return dict(json.loads(done.stdout))


def _row(case: str, metric: str, ours: float, peer: str, theirs: float, with_bars: bool) -> dict[str, Any]:
    ratio = ours / theirs if theirs else float("nan")
    bar = BARS.get((case, metric, peer)) if with_bars else None
    verdict = None if bar is None else f"≤ {bar:g} {'met' if ratio <= bar else 'MISSED'}"
    if metric == "round_trips" and case == "point lookup":
        verdict = f"ours ≤ {ROUND_TRIP_BAR} {'met' if ours <= ROUND_TRIP_BAR else 'MISSED'}"
    shown = {"suite": "parquet", "case": case, "metric": metric, "ours": _human(metric, ours)}
    return shown | {"peer": f"{peer} {_human(metric, theirs)}", "ratio": round(ratio, 3), "bar": verdict}


def _human(metric: str, value: float) -> str:
    if metric == "bytes":
        return f"{value / 1e6:.2f} MB"
    return f"{value:.3f} s" if metric == "cpu" else f"{value:.0f}"

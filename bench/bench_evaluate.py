"""Time to evaluate a compiled predicate of three leaves on statistics in memory.

Bars: 100 µs for 100 containers, 0.4 µs per container for 100,000 containers.
"""

from __future__ import annotations

import time
import timeit
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from bench.results import bar_text
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "score", DoubleType()), NestedField(3, "name", StringType())
)
PREDICATES = {
    "two ranges and a float": "id >= 500000 AND id < 600000 AND score > 0.5",
    "equality on three types": "id = 500000 AND score > 0.5 AND name = 'n0000050'",
    "IN, prefix and OR": "(id IN (1, 500000, 999999) OR name LIKE 'n00000%') AND score <= 0.5",
}
FEW, MANY = 100, 100_000
BAR_FEW_MICROS, BAR_MANY_MICROS_EACH = 100.0, 0.4


def run(size: str) -> list[dict[str, Any]]:
    """One row per predicate and number of containers; the size only sets the number of repetitions."""
    repeats = {"small": 3, "default": 7, "large": 15}[size]
    few, many = statistics(FEW), statistics(MANY)
    rows = []
    for case, text in PREDICATES.items():
        predicate = compile_predicate(text, SCHEMA).prunable
        micros = best_micros(lambda p=predicate: evaluate(p, few), 200, repeats)
        rows.append(row(case, f"µs for {FEW:,} containers", micros, BAR_FEW_MICROS))
        micros = best_micros(lambda p=predicate: evaluate(p, many), 3, repeats)
        rows.append(row(case, f"µs a container for {MANY:,}", micros / MANY, BAR_MANY_MICROS_EACH))
    return rows


def row(case: str, metric: str, ours: float, bar: float) -> dict[str, Any]:
    shown = {"suite": "evaluate", "case": case, "metric": metric, "ours": ours, "peer": None, "ratio": None}
    return shown | {"bar": bar_text(ours, bar)}


def best_micros(action: Any, number: int, repeats: int) -> float:
    return min(timeit.repeat(action, timer=time.process_time, number=number, repeat=repeats)) / number * 1e6


def statistics(containers: int) -> StatsTable:
    """Bounds of an ascending id, a random score and a random name; NaN counts are unknown, as in Parquet."""
    random = np.random.default_rng(7)
    everywhere, none = np.ones(containers, dtype=np.bool_), np.zeros(containers, dtype=np.int64)
    rows = np.full(containers, 10_000)
    ids, scores = np.linspace(0, 1_000_000, containers).astype(np.int64), random.random(containers)
    names = pa.array([f"n{number:07d}" for number in random.integers(0, containers, containers)])
    bounds = {
        1: (ids, ids + 1_000_000 // containers, none),
        2: (scores, scores + 0.1, none - 1),
        3: (names, names, none),
    }
    columns = {
        field_id: ColumnStats.from_counts(rows, none, nans, Bound(lower, everywhere), Bound(upper, everywhere))
        for field_id, (lower, upper, nans) in bounds.items()
    }
    return StatsTable(containers, columns)

"""Where changes are worked on: the same change in this process and in Spark's tasks, over more and more of it.

``python -m bench.dml_thresholds [rows …]`` prints for tables of so many rows how much work the runner counts (its
weights, in MiB) and what it costs here and there. ``floeplan.dml.runner.HERE_BYTES`` is chosen from it: up to there a
Spark job costs more than it spreads. One turn of each to warm up, then the better of two.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from pyiceberg.table import Table

import floeplan as fp
from bench.cpu_clock import CpuClock
from bench.dml_tables import evolved
from bench.spark_session import start_session
from floeplan.dml import changing, runner
from tests.support.lake import Lake

ROWS = (600_000, 2_400_000, 9_600_000)
TURNS = 3
EVERYTHING, NOTHING = 1 << 60, -1
CHANGES: dict[str, Callable[[Table, Any], object]] = {
    "DELETE, vectors": lambda t, spark: fp.delete(t, "customer % 50 = 7", spark=spark),
    "UPDATE, vectors": lambda t, spark: fp.update(t, {"price": "price + 1"}, "customer % 50 = 7", spark=spark),
    "DELETE, copies": lambda t, spark: fp.delete(t, "customer % 50 = 7", spark=spark, mode="copy-on-write"),
}


class _Weighed:
    """Stands in for the runner and notes the weight of the work it is given."""

    def __init__(self) -> None:
        self.bytes = 0.0

    def __call__(self, *arguments: Any, weights: Sequence[float], **named: Any) -> Any:
        self.bytes = float(sum(weights))
        return runner.run_tasks(*arguments, weights=weights, **named)


def main(sizes: Sequence[int]) -> None:
    """Print a line for each size and change."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        catalog = lake.open_catalog()
        catalog.create_namespace("dml")
        os.environ["FLOEPLAN_CACHE"] = f"{folder}/cache"
        spark = start_session(lake)
        weighed, numbers = _Weighed(), count()
        changing.__dict__["run_tasks"] = weighed
        print(f"{'rows':>12}  {'change':16} {'MiB':>6} {'here CPU':>9} {'wall':>6} {'tasks CPU':>9} {'wall':>6}")
        for rows in sizes:
            base = evolved(spark, catalog, 3, rows)
            for name, change in CHANGES.items():
                found = []
                for here in (EVERYTHING, NOTHING):
                    runner.HERE_BYTES = here
                    turns = []
                    for _ in range(TURNS):
                        table = catalog.register_table(f"dml.fork_{next(numbers)}", base.metadata_location)
                        clock, wall = CpuClock(), time.perf_counter()
                        change(table, spark)
                        turns.append((clock.seconds(), time.perf_counter() - wall))
                    found += [min(turn[which] for turn in turns[1:]) for which in (0, 1)]
                shown = f"{found[0]:9.2f} {found[1]:6.2f} {found[2]:9.2f} {found[3]:6.2f}"
                print(f"{rows:12,}  {name:16} {weighed.bytes / 2**20:6.0f} {shown}", flush=True)
            catalog.drop_table("dml.v3")
        spark.stop()


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or ROWS)

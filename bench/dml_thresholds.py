"""The same changes in this process and in Spark tasks, for growing amounts of data.

``python -m bench.dml_thresholds [rows …]`` prints, for tables of these row counts, how much work the runner counts
(its weights, in MiB) and what that costs locally and on Spark. ``floeplan.tasks.runner.LOCAL_BYTES`` is chosen from it:
below it a Spark job costs more than it saves. One warm-up turn each, then the better of two.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from bench.cpu_clock import CpuClock
from bench.dml_tables import evolved
from bench.spark_session import start_session
from floeplan.dml import delete_update as changing
from floeplan.tasks import runner
from tests.support.spark.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = (600_000, 2_400_000, 9_600_000)
TURNS = 3
EVERYTHING, NOTHING = 1 << 60, -1
Change: TypeAlias = Callable[[Table, Any], object]
CHANGES: dict[str, Change] = {
    "DELETE, vectors": lambda t, spark: fp.delete(t, "customer % 50 = 7", spark=spark),
    "UPDATE, vectors": lambda t, spark: fp.update(t, {"price": "price + 1"}, "customer % 50 = 7", spark=spark),
    "DELETE, copies": lambda t, spark: fp.delete(t, "customer % 50 = 7", spark=spark, mode="copy-on-write"),
}


class _Weighed:
    """Replaces the runner and records the weight of the work."""

    def __init__(self) -> None:
        self.bytes = 0.0

    def __call__(self, *arguments: Any, weights: Sequence[float], **named: Any) -> Any:
        self.bytes = float(sum(weights))
        return runner.run_tasks(*arguments, weights=weights, **named)


class _Thresholds:
    """Changes forks of one table, locally and in tasks."""

    def __init__(self, spark: SparkSession, catalog: SqlCatalog) -> None:
        self.spark, self.catalog = spark, catalog
        self.weighed, self.forks = _Weighed(), count()
        changing.__dict__["run_tasks"] = self.weighed

    def show(self, rows: int) -> None:
        """Print a line for each change of a table with this number of rows."""
        base = evolved(self.spark, self.catalog, 3, rows)
        for name, change in CHANGES.items():
            costs = [cost for here in (EVERYTHING, NOTHING) for cost in self._costs(change, base, here)]
            shown = "{:9.2f} {:6.2f} {:9.2f} {:6.2f}".format(*costs)
            print(f"{rows:12,}  {name:16} {self.weighed.bytes / 2**20:6.0f} {shown}", flush=True)
        self.catalog.drop_table("dml.v3")

    def _costs(self, change: Change, base: Table, here: int) -> list[float]:
        """CPU and wall seconds with this limit of local bytes, the better of the turns after the first."""
        runner.LOCAL_BYTES = here
        turns = [self._turn(change, base) for _ in range(TURNS)]
        return [min(turn[which] for turn in turns[1:]) for which in (0, 1)]

    def _turn(self, change: Change, base: Table) -> tuple[float, float]:
        table = self.catalog.register_table(f"dml.fork_{next(self.forks)}", base.metadata_location)
        clock, wall = CpuClock(), time.perf_counter()
        change(table, self.spark)
        return clock.seconds(), time.perf_counter() - wall


def main(sizes: Sequence[int]) -> None:
    """Print a line for each size and change."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        catalog = lake.open_catalog()
        catalog.create_namespace("dml")
        os.environ["FLOEPLAN_CACHE"] = f"{folder}/cache"
        spark = start_session(lake)
        thresholds = _Thresholds(spark, catalog)
        print(f"{'rows':>12}  {'change':16} {'MiB':>6} {'here CPU':>9} {'wall':>6} {'tasks CPU':>9} {'wall':>6}")
        for rows in sizes:
            thresholds.show(rows)
        spark.stop()


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or ROWS)

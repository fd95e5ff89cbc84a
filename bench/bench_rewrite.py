"""Rewriting data files on Spark: ``fp.rewrite_data_files`` against ``CALL system.rewrite_data_files``.

Tables written by Iceberg's own writer, one session, the same codec and target size. Every turn works on a fork of its
own; contenders take turns, the one to begin changes, and the best turn of each counts. CPU seconds of the whole tree of
processes, wall seconds, bytes of the new files, and how many of them a filter on two columns leaves to be read. After
each case Spark reads both forks: they hold the same rows.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from bench.cpu_clock import CpuClock
from bench.dml_tables import COLUMNS, ROWS
from bench.spark_session import start_session
from tests.support.lake import NAME, Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1024**2
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
"""Iceberg's procedure parses sort orders only with these."""


@dataclass(frozen=True, slots=True)
class Size:
    """Rows of the table of small files and their number; the same of files that are good but for their size."""

    rows: int
    files: int
    good_files: int
    target: int
    turns: int


SIZES = {
    "small": Size(1_500_000, 60, 2, 16 * MIB, 2),
    "default": Size(12_000_000, 300, 12, 128 * MIB, 3),
    "large": Size(48_000_000, 600, 24, 256 * MIB, 3),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A rewrite said twice: what Floeplan is asked, and the arguments of Iceberg's procedure.

    ``targets`` is by how much new files are larger than in other cases.
    """

    name: str
    table: str
    bar: float
    asked: dict[str, Any]
    procedure: str = "strategy => 'binpack'"
    targets: int = 1


CASES = (
    Case("binpack", "small_files", 0.35, {}),
    Case("binpack, 5 % deleted", "deleted_from", 0.25, {}),
    Case("stitch", "good_files", 0.08, {}, targets=4),
    Case(
        "sort",
        "small_files",
        0.35,
        {"strategy": "sort", "by": ("customer", "ts")},
        "strategy => 'sort', sort_order => 'customer ASC NULLS FIRST, ts ASC NULLS FIRST'",
    ),
    Case(
        "Z-order",
        "small_files",
        0.35,
        {"strategy": "zorder", "by": ("customer", "ts")},
        "strategy => 'sort', sort_order => 'zorder(customer, ts)'",
    ),
)
TWO_COLUMNS = (
    "customer BETWEEN 500000 AND 510000 AND ts >= TIMESTAMP '2023-06-01 00:00:00' "
    "AND ts < TIMESTAMP '2023-06-05 00:00:00'"
)


def run(size: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        catalog = lake.open_catalog()
        catalog.create_namespace("rewrite")
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--conf spark.sql.extensions={EXTENSIONS} pyspark-shell"
        spark = start_session(lake)
        try:
            return _Bench(spark, catalog, SIZES[size]).rows()
        finally:
            spark.stop()


class _Bench:
    def __init__(self, spark: SparkSession, catalog: SqlCatalog, size: Size) -> None:
        self.spark, self.catalog, self.size = spark, catalog, size
        self.forks = count()

    def rows(self) -> list[dict[str, Any]]:
        self._write("small_files", self.size.files)
        self._write("deleted_from", self.size.files)
        fp.delete(self.catalog.load_table("rewrite.deleted_from"), "qty < 5", mode="merge-on-read", spark=self.spark)
        self._write("good_files", self.size.good_files)
        return [row for case in CASES for row in self._compared(case)]

    def _write(self, name: str, files: int) -> None:
        properties = "'format-version'='2', 'write.distribution-mode'='none'"
        self.spark.sql(f"CREATE TABLE {NAME}.rewrite.{name} ({COLUMNS}) USING iceberg TBLPROPERTIES ({properties})")
        rows = ROWS.format(first=0, last=self.size.rows, tasks=files)
        self.spark.sql(f"INSERT INTO {NAME}.rewrite.{name} {rows}")

    def _compared(self, case: Case) -> list[dict[str, Any]]:
        location = self.catalog.load_table(f"rewrite.{case.table}").metadata_location
        contenders: list[Callable[[Table], object]] = [
            lambda table: self._ours(case, table),
            lambda table: self._theirs(case, table),
        ]
        best = [[float("inf")] * 2, [float("inf")] * 2]
        for turn in range(self.size.turns):
            forks = [self._fork(location) for _ in contenders]
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                wall, cpu = time.perf_counter(), CpuClock()
                contenders[which](forks[which])
                taken = cpu.seconds(), time.perf_counter() - wall
                for metric, value in enumerate(taken):
                    best[metric][which] = min(best[metric][which], value)
        prints = [self._fingerprint(fork) for fork in forks]
        assert prints[0] == prints[1], (case.name, prints)
        plans = [fp.plan_scan(fork.refresh()) for fork in forks]
        found: dict[str, tuple[list[float], float | None]] = {
            "CPU s": (best[0], case.bar),
            "wall s": (best[1], case.bar),
            "MiB written": ([sum(file.file_size for file in plan.files) / MIB for plan in plans], 1.03),
            "files written": ([len(plan.files) for plan in plans], None),
            "files read by a filter on two columns": (
                [len(fp.plan_scan(fork, TWO_COLUMNS).files) for fork in forks],
                None,
            ),
        }
        return [_row(case.name, metric, numbers, bar) for metric, (numbers, bar) in found.items()]

    def _fork(self, location: str) -> Table:
        return self.catalog.register_table(f"rewrite.fork_{next(self.forks)}", location)

    def _ours(self, case: Case, table: Table) -> None:
        options = {"rewrite-all": "true", "target-file-size-bytes": str(self.size.target * case.targets)}
        done = fp.rewrite_data_files(table, **case.asked, options=options, spark=self.spark)
        assert not done.failures
        assert bool(done.groups_stitched) == (case.name == "stitch"), (case.name, done.groups_stitched)

    def _theirs(self, case: Case, table: Table) -> None:
        name = ".".join(table.name())
        options = f"map('rewrite-all', 'true', 'target-file-size-bytes', '{self.size.target * case.targets}')"
        self.spark.sql(
            f"CALL {NAME}.system.rewrite_data_files(table => '{name}', {case.procedure}, options => {options})"
        ).collect()

    def _fingerprint(self, table: Table) -> object:
        """The number of rows, and a sum over all that is in them, as Iceberg reads them."""
        columns = ", ".join(field.name for field in table.schema().fields)
        hashed = f"sum(CAST(xxhash64({columns}) AS DECIMAL(38, 0)))"
        return self.spark.sql(f"SELECT count(*), {hashed} FROM {NAME}.{'.'.join(table.name())}").collect()


def _row(case: str, metric: str, numbers: Sequence[float], bar: float | None) -> dict[str, Any]:
    ours, theirs = numbers
    ratio = ours / max(theirs, 1e-9)
    verdict = "" if bar is None else f"≤ {bar} {'met' if ratio <= bar else 'MISSED'}"
    shown = {"suite": "rewrite", "case": case, "metric": metric}
    return shown | {"ours": ours, "peer": theirs, "ratio": ratio, "bar": verdict}

"""Sorting and clustering one large group on a standalone cluster of two workers with one core and 1 GiB each.

The group is larger than an executor, so ``fp.rewrite_data_files`` sorts it in ranges, one Spark task each. Each case
has three runs on forks of one table: Floeplan on both workers, Floeplan on one worker, and Iceberg's procedure on both
workers. All results must have the same rows. CPU seconds are those of all processes, including the cluster's. Before
every run, a run on a small table starts the executors and Python workers.

A worker with one core runs one task at a time, but uses more than one core: while a Python task computes, its executor
moves rows, compiles and collects garbage, and the driver works too. Therefore two workers cannot take less time than
the CPU seconds of their run divided by the number of cores: the floor of their wall time. Tasks that only compute show
what the cluster itself allows.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import floeplan as fp
from bench.bench_rewrite import CASES, EXTENSIONS, Case
from bench.cpu_clock import CpuClock
from bench.dml_tables import COLUMNS, ROWS
from bench.spark_session import start_session
from tests.support.servers import spark_cluster
from tests.support.spark.lake import NAME, Lake

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

MIB = 1024**2
FEWER_WORKERS, CPU, WALL = 0.6, 0.5, 0.6
"""The bars: wall time of two workers to one, and CPU and wall time to Iceberg's."""


@dataclass(frozen=True, slots=True)
class Size:
    """Rows and files of the group, the target file size, and the bytes of a task; the default of a worker if none."""

    rows: int
    files: int
    target: int
    task_bytes: int | None = None


SIZES = {
    "small": Size(1_500_000, 24, 4 * MIB, 8 * MIB),
    "default": Size(84_000_000, 168, 128 * MIB),
    "large": Size(168_000_000, 336, 128 * MIB),
}
LITTLE = Size(40_000, 4, MIB // 8, MIB // 4)
"""A table whose rewrite starts the Python workers of all executors."""
TASKS, STEPS = 16, 10_000_000
"""Tasks that only compute, and what each of them adds up, in less than a second of CPU time."""
SORTED = tuple(case for case in CASES if case.name in ("sort", "Z-order"))
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.executor.cores": "1",
    "spark.sql.extensions": EXTENSIONS,
}


def run(size: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        catalog = lake.open_catalog()
        catalog.create_namespace("cluster")
        found: dict[tuple[str, str], tuple[float, float]] = {}
        prints, computing = set[str](), list[float]()
        for workers in (2, 1):
            with spark_cluster(Path(folder) / f"workers-{workers}", workers) as url:
                spark = start_session(lake, url, SETTINGS)
                try:
                    bench = _Bench(spark, catalog, SIZES[size], workers)
                    for case in SORTED:
                        for side in ("ours", "theirs") if workers == 2 else ("ours",):
                            spent, rows = bench.measured(case, side)
                            found[case.name, f"{side} {workers}"] = spent
                            prints.add(rows)
                    computing.append(_compute(spark))
                finally:
                    spark.stop()
        assert len(prints) == 1, prints
    alone = _row("tasks that only compute", "wall s", computing[0], "one worker", computing[1], None)
    return [row for case in SORTED for row in _rows(case.name, found)] + [alone]


class _Bench:
    def __init__(self, spark: SparkSession, catalog: SqlCatalog, size: Size, workers: int) -> None:
        self.spark, self.catalog, self.size = spark, catalog, size
        self.forks = (f"cluster.fork_{workers}_{number}" for number in count())
        if not catalog.table_exists("cluster.group"):
            self._write("group", size.rows, size.files)
        self._write(f"little_{workers}", LITTLE.rows, LITTLE.files)
        self.little = f"cluster.little_{workers}"

    def measured(self, case: Case, side: str) -> tuple[tuple[float, float], str]:
        """CPU and wall seconds, and a checksum of the rows."""
        rewrite = self._ours if side == "ours" else self._theirs
        rewrite(case, self._fork(self.little), LITTLE)
        table = self._fork("cluster.group")
        started, cpu = time.perf_counter(), CpuClock()
        rewrite(case, table, self.size)
        spent = (cpu.seconds(), time.perf_counter() - started)
        columns = ", ".join(field.name for field in table.schema().fields)
        hashed = f"sum(CAST(xxhash64({columns}) AS DECIMAL(38, 0)))"
        rows = self.spark.sql(f"SELECT count(*), {hashed} FROM {NAME}.{'.'.join(table.name())}").collect()
        return spent, repr(rows)

    def _write(self, name: str, rows: int, files: int) -> None:
        properties = "'format-version'='2', 'write.distribution-mode'='none'"
        self.spark.sql(f"CREATE TABLE {NAME}.cluster.{name} ({COLUMNS}) USING iceberg TBLPROPERTIES ({properties})")
        self.spark.sql(f"INSERT INTO {NAME}.cluster.{name} {ROWS.format(first=0, last=rows, tasks=files)}")

    def _fork(self, name: str) -> Table:
        return self.catalog.register_table(next(self.forks), self.catalog.load_table(name).metadata_location)

    def _ours(self, case: Case, table: Table, size: Size) -> None:
        options = {"rewrite-all": "true", "target-file-size-bytes": str(size.target)}
        if size.task_bytes is not None:
            options["range-task-bytes"] = str(size.task_bytes)
        done = fp.rewrite_data_files(table, **case.arguments, options=options, spark=self.spark)
        assert not done.failures
        assert [one.rows_by for one in done.ranges] == ["shuffle"], done.ranges

    def _theirs(self, case: Case, table: Table, size: Size) -> None:
        options = f"map('rewrite-all', 'true', 'target-file-size-bytes', '{size.target}')"
        self.spark.sql(
            f"CALL {NAME}.system.rewrite_data_files(table => '{'.'.join(table.name())}', {case.procedure}, "
            f"options => {options})"
        ).collect()


def _compute(spark: SparkSession) -> float:
    """Wall seconds of equal Python tasks without data; the second of two runs, after the workers have started."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            total = sum(number * number for number in range(STEPS))
            yield pa.RecordBatch.from_arrays([pa.array([total % 2**31] * batch.num_rows)], names=["total"])

    for _ in range(2):
        started = time.perf_counter()
        spark.range(0, TASKS, 1, TASKS).mapInArrow(count, "total long").toArrow()
    return time.perf_counter() - started


def _rows(case: str, found: dict[tuple[str, str], tuple[float, float]]) -> list[dict[str, Any]]:
    ours, one_worker, theirs = (found[case, key] for key in ("ours 2", "ours 1", "theirs 2"))
    cores = os.cpu_count() or 1
    return [
        _row(case, "CPU s", ours[0], "Iceberg", theirs[0], CPU),
        _row(case, "wall s", ours[1], "Iceberg", theirs[1], WALL),
        _row(case, "wall s", ours[1], "one worker", one_worker[1], FEWER_WORKERS),
        _row(f"{case}, all cores busy (floor)", "wall s", ours[0] / cores, "one worker", one_worker[1], None),
        _row(case, "CPU s", ours[0], "one worker", one_worker[0], None),
    ]


def _row(case: str, metric: str, ours: float, peer: str, theirs: float, bar: float | None) -> dict[str, Any]:
    ratio = ours / theirs
    return {
        "suite": "cluster",
        "case": case,
        "metric": metric,
        "ours": ours,
        "peer": f"{peer} {theirs:.3g}",
        "ratio": ratio,
        "bar": "" if bar is None else f"≤ {bar} {'met' if ratio <= bar else 'missed'}",
    }

"""Rewriting data files on Spark: ``fp.rewrite_data_files`` against ``CALL system.rewrite_data_files``.

Tables written by Iceberg's own writer, one session, the same codec and target size. Each run works on its own fork of
the table. Contenders alternate, in changing order, and the best run of each counts. Measured are CPU seconds of all
processes, wall seconds, the memory of a process that runs tasks (the JVM for the peer), the bytes written, the time
Iceberg needs to read the new files, and how many of them a filter on two columns keeps. Iceberg verifies that both
results have the same rows.

Clustering is measured separately: the number of files that a filter on two columns reads before and after, on a table
of many files.

`python -m bench.bench_rewrite SIZE TEXT` measures the cases whose names contain the text, and keeps nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from bench.cpu_clock import CpuClock
from bench.dml_tables import COLUMNS, ROWS
from bench.results import markdown
from bench.rewrite_memory import PeakMemory
from bench.spark_session import start_session
from floeplan.metadata.files import local_path
from floeplan.rewrite.run.group import PositionMapBuilder
from tests.support.spark.lake import NAME, Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1024**2
TASK_MEGABYTES = 600
"""The memory limit of a task that packs files, for any number and size of files."""
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
"""Iceberg's procedure parses sort orders only with these."""


@dataclass(frozen=True, slots=True)
class Size:
    """Rows and files of the table of small files, and of the table of files whose only fault is their size."""

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
    """A rewrite: the arguments for Floeplan, and those of Iceberg's procedure.

    ``targets`` is the factor by which new files are larger than in other cases.
    """

    name: str
    table: str
    bar: float
    arguments: dict[str, Any]
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
CURVES = ("zorder", "hilbert")
CARRIED = "1,000,000 deletes carried over 10,000 runs"
_NEVER = float("inf")
TWO_COLUMNS = (
    "customer BETWEEN 500000 AND 510000 AND ts >= TIMESTAMP '2023-06-01 00:00:00' "
    "AND ts < TIMESTAMP '2023-06-05 00:00:00'"
)


def run(size: str, only: str = "") -> list[dict[str, Any]]:
    """All cases, or those whose names contain a text."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        catalog = lake.open_catalog()
        catalog.create_namespace("rewrite")
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--conf spark.sql.extensions={EXTENSIONS} pyspark-shell"
        spark = start_session(lake)
        try:
            return _Bench(spark, catalog, SIZES[size]).rows(only)
        finally:
            spark.stop()


class _Bench:
    def __init__(self, spark: SparkSession, catalog: SqlCatalog, size: Size) -> None:
        self.spark, self.catalog, self.size = spark, catalog, size
        self.forks = count()

    def rows(self, only: str) -> list[dict[str, Any]]:
        cases = [case for case in CASES if only in case.name]
        curves = [curve for curve in CURVES if only in _clustering(curve)]
        tables = {case.table for case in cases} | ({"small_files"} if curves else set())
        for name in sorted(tables):
            self._write(name, self.size.good_files if name == "good_files" else self.size.files)
        if "deleted_from" in tables:
            deleted = self.catalog.load_table("rewrite.deleted_from")
            fp.delete(deleted, "qty < 5", mode="merge-on-read", spark=self.spark)
        carried = [_carried_over()] if only in CARRIED else []
        return [*(row for case in cases for row in self._compared(case)), *map(self._clustered, curves), *carried]

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
        cpu_seconds, wall_seconds, megabytes = [_NEVER, _NEVER], [_NEVER, _NEVER], [0.0, 0.0]
        for turn in range(self.size.turns):
            forks = [self._fork(location) for _ in contenders]
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                memory, wall, cpu = PeakMemory(), time.perf_counter(), CpuClock()
                contenders[which](forks[which])
                cpu_seconds[which] = min(cpu_seconds[which], cpu.seconds())
                wall_seconds[which] = min(wall_seconds[which], time.perf_counter() - wall)
                megabytes[which] = max(megabytes[which], (memory.of_workers, memory.of_jvm)[which]())
        scanned = self._scanned(case, forks)
        files = [fp.plan_scan(fork.refresh()).files for fork in forks]
        left = [float(len(fp.plan_scan(fork, TWO_COLUMNS).files)) for fork in forks]
        memory_bar = _bar(megabytes[0], TASK_MEGABYTES, "ours ") if "strategy" not in case.arguments else ""
        rows = [
            _row(case.name, "CPU s", cpu_seconds, case.bar),
            _row(case.name, "wall s", wall_seconds, case.bar),
            _row(case.name, "peak MB of a task", megabytes) | {"bar": memory_bar},
            _row(case.name, "MiB written", [sum(file.file_size for file in some) / MIB for some in files], 1.03),
            _row(case.name, "files written", [len(some) for some in files]),
            _row(case.name, "CPU s to read all", scanned),
            _row(case.name, "files read by a filter on two columns", left),
        ]
        if case.name == "stitch":
            rows.append(_row("stitch: the bytes alone (floor)", "CPU s", [self._copied(case), cpu_seconds[1]]))
        return rows

    def _copied(self, case: Case) -> float:
        """CPU seconds to copy the bytes of the files into one file, mostly in the kernel."""
        files = fp.plan_scan(self.catalog.load_table(f"rewrite.{case.table}")).files
        best = _NEVER
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(self.size.turns):
                cpu = CpuClock()
                with (Path(folder) / str(turn)).open("wb", buffering=0) as out:
                    for file in files:
                        with Path(local_path(file.path)).open("rb", buffering=0) as source:
                            shutil.copyfileobj(source, out, 8 * MIB)
                best = min(best, cpu.seconds())
        return best

    def _scanned(self, case: Case, forks: Sequence[Table]) -> list[float]:
        """CPU seconds in which Iceberg reads all rows of each fork; the rows must be equal."""
        best, prints = [_NEVER] * len(forks), set[str]()
        for _ in range(2):
            for which, fork in enumerate(forks):
                cpu = CpuClock()
                prints.add(repr(self._fingerprint(fork)))
                best[which] = min(best[which], cpu.seconds())
        assert len(prints) == 1, (case.name, prints)
        return best

    def _clustered(self, curve: str) -> dict[str, Any]:
        """The number of files that a filter on two columns reads, before and after."""
        table = self._fork(self.catalog.load_table("rewrite.small_files").metadata_location)
        size = sum(file.file_size for file in fp.plan_scan(table).files)
        before = len(fp.plan_scan(table, TWO_COLUMNS).files)
        options = {"rewrite-all": "true", "target-file-size-bytes": str(size // self.size.files)}
        fp.rewrite_data_files(table, strategy=curve, by=("customer", "ts"), options=options, spark=self.spark)
        after = len(fp.plan_scan(table.refresh(), TWO_COLUMNS).files)
        return _row(_clustering(curve), "files read by a filter on two columns", [after, before], 0.1)

    def _fork(self, location: str) -> Table:
        return self.catalog.register_table(f"rewrite.fork_{next(self.forks)}", location)

    def _ours(self, case: Case, table: Table) -> None:
        options = {"rewrite-all": "true", "target-file-size-bytes": str(self.size.target * case.targets)}
        done = fp.rewrite_data_files(table, **case.arguments, options=options, spark=self.spark)
        assert not done.failures
        assert bool(done.groups_stitched) == (case.name == "stitch"), (case.name, done.groups_stitched)

    def _theirs(self, case: Case, table: Table) -> None:
        name = ".".join(table.name())
        options = f"map('rewrite-all', 'true', 'target-file-size-bytes', '{self.size.target * case.targets}')"
        self.spark.sql(
            f"CALL {NAME}.system.rewrite_data_files(table => '{name}', {case.procedure}, options => {options})"
        ).collect()

    def _fingerprint(self, table: Table) -> object:
        """The row count and a checksum of all values, as Iceberg reads them."""
        columns = ", ".join(field.name for field in table.schema().fields)
        hashed = f"sum(CAST(xxhash64({columns}) AS DECIMAL(38, 0)))"
        return self.spark.sql(f"SELECT count(*), {hashed} FROM {NAME}.{'.'.join(table.name())}").collect()


def _carried_over() -> dict[str, Any]:
    """Concurrent deletes, remapped from two old files to new ones with their runs of rows shuffled."""
    half, size, rng = 5_000, 2_000, np.random.default_rng(11)
    builder = PositionMapBuilder(["a", "b"])
    for source in (0, 1):
        builder.add_read(source, np.arange(half) * size, np.full(half, size))
    firsts = rng.permutation(2 * half) * size
    builder.add_written(["x", "y"], [half * size] * 2, [(firsts, np.full(2 * half, size))])
    moved = builder.finish()
    positions = np.sort(rng.choice(half * size, 500_000, replace=False))
    cpu = time.process_time()
    found = [moved.remap(path, positions) for path in ("a", "b")]
    seconds = time.process_time() - cpu
    assert sum(len(places) for one in found for places in one.values()) == 1_000_000
    return _row(CARRIED, "CPU s", [seconds, 0.0]) | {"peer": None, "ratio": None, "bar": _bar(seconds, 0.5, "ours ")}


def _clustering(curve: str) -> str:
    return f"clustered, {curve}"


def _row(case: str, metric: str, numbers: Sequence[float], bar: float | None = None) -> dict[str, Any]:
    ours, theirs = numbers
    ratio = ours / max(theirs, 1e-9)
    shown = {"suite": "rewrite", "case": case, "metric": metric}
    return shown | {"ours": ours, "peer": theirs, "ratio": ratio, "bar": "" if bar is None else _bar(ratio, bar)}


def _bar(value: float, most: float, of: str = "") -> str:
    return f"{of}≤ {most} {'met' if value <= most else 'MISSED'}"


if __name__ == "__main__":
    print(markdown(run(sys.argv[1], only=sys.argv[2])))

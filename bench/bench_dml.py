"""Changing rows on Spark: ``fp.delete``, ``fp.update``, ``fp.merge`` and ``fp.append`` against Iceberg's own commands.

One table, merge-on-read, same session. Every turn works on a fork of its own, so each contender changes the same rows;
contenders take turns, and the best turn of each counts. CPU seconds of the whole tree of processes, and wall seconds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from bench.bench_read import _session as start_session
from bench.bench_read import cpu_seconds
from tests.support.lake import NAME, Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZES = {"small": (8, 250_000), "default": (16, 1_000_000), "large": (32, 1_000_000)}
"""Data files, and rows in each."""
TURNS = 3
MERGE_ON_READ = {f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")}

Change = Callable[[Table, str], int | None]


def run(size: str) -> list[dict[str, Any]]:
    files, rows = SIZES[size]
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        catalog = lake.open_catalog()
        catalog.create_namespace("dml")
        table = catalog.create_table("dml.base", _rows(0, 1).schema, properties=MERGE_ON_READ)
        for number in range(files):
            fp.append(table, _rows(number * rows, rows))
        spark = start_session(lake)
        try:
            return _Bench(spark, catalog, table, files * rows).rows()
        finally:
            spark.stop()


def _rows(first: int, rows: int) -> pa.Table:
    chance = np.random.default_rng(first)
    return pa.table(
        {
            "id": np.arange(first, first + rows),
            "customer": chance.integers(0, 1_000_000, rows),
            "qty": chance.integers(0, 100, rows),
            "price": chance.random(rows),
            "note": pa.array(chance.integers(0, 5_000, rows)).cast(pa.string()),
            "at": pa.array(chance.integers(0, 10**15, rows), pa.timestamp("us")),
        }
    )


class _Bench:
    def __init__(self, spark: SparkSession, catalog: SqlCatalog, table: Table, rows: int) -> None:
        self.spark, self.catalog, self.table, self.total = spark, catalog, table, rows
        self.forks = count()

    def rows(self) -> list[dict[str, Any]]:
        found = [
            *self._measured(
                "DELETE 5 % of the rows, all files",
                lambda table, _: fp.delete(table, "customer % 20 = 3", spark=self.spark).rows_deleted,
                lambda _, name: self._sql(f"DELETE FROM {name} WHERE customer % 20 = 3"),
                0.2,
            ),
            *self._measured(
                "UPDATE 1 % of the rows, all files",
                lambda table, _: (
                    fp.update(table, {"price": "price * 2"}, "customer % 100 = 3", spark=self.spark).rows_updated
                ),
                lambda _, name: self._sql(f"UPDATE {name} SET price = price * 2 WHERE customer % 100 = 3"),
                0.2,
            ),
        ]
        for keys in (50_000, 1_000_000):
            found += self._merge(keys)
        return [*found, *self._append()]

    def _merge(self, keys: int) -> list[dict[str, Any]]:
        """A tenth of the keys are new."""
        ids = np.unique(np.random.default_rng(keys).integers(0, int(self.total * 1.1), keys))
        source = self.spark.createDataFrame(pa.table({"id": ids, "qty": ids % 7})).cache()
        source.createOrReplaceTempView("bench_source")
        source.count()
        found = self._measured(
            f"MERGE {keys:,} keys",
            lambda table, _: self._merged(table, source),
            lambda _, name: self._sql(
                f"MERGE INTO {name} t USING bench_source s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.qty = s.qty "
                "WHEN NOT MATCHED THEN INSERT (id, qty) VALUES (s.id, s.qty)"
            ),
            0.2,
        )
        source.unpersist()
        return found

    def _merged(self, table: Table, source: DataFrame) -> int:
        merge = fp.merge(table, source, "t.id = s.id").when_matched_update({"qty": "s.qty"})
        return merge.when_not_matched_insert({"id": "id", "qty": "qty"}).execute().rows_updated

    def _append(self) -> list[dict[str, Any]]:
        frame = self.spark.table(f"{NAME}.dml.base").where(f"id < {self.total // 4}")
        frame.createOrReplaceTempView("bench_rows")
        return self._measured(
            "INSERT a quarter of the rows from a DataFrame",
            lambda table, _: fp.append(table, frame).rows_inserted,
            lambda _, name: self._sql(f"INSERT INTO {name} SELECT * FROM bench_rows"),
            1.0,
        )

    def _sql(self, text: str) -> None:
        self.spark.sql(text)

    def _measured(self, case: str, ours: Change, theirs: Change, bar: float) -> list[dict[str, Any]]:
        best = {"CPU s": [float("inf")] * 2, "wall s": [float("inf")] * 2}
        left: list[int] = [0, 0]
        for _ in range(TURNS):
            for number, change in enumerate((ours, theirs)):
                name = f"dml.fork_{next(self.forks)}"
                table = self.catalog.register_table(name, self.table.metadata_location)
                wall, cpu = time.perf_counter(), cpu_seconds()
                change(table, f"{NAME}.{name}")
                taken = {"CPU s": cpu_seconds() - cpu, "wall s": time.perf_counter() - wall}
                for metric, value in taken.items():
                    best[metric][number] = min(best[metric][number], value)
                left[number] = fp.plan_scan(self.catalog.load_table(name)).count()
        assert left[0] == left[1], (case, left)
        return [_row(case, metric, *values, bar) for metric, values in best.items()]


def _row(case: str, metric: str, ours: float, theirs: float, bar: float) -> dict[str, Any]:
    ratio = ours / theirs
    return {
        "suite": "dml",
        "case": case,
        "metric": metric,
        "ours": ours,
        "peer": theirs,
        "ratio": ratio,
        "bar": f"≤ {bar} {'ok' if ratio <= bar else 'missed'}",
    }

"""Reading on Spark: ``fp.read`` against ``spark.read.parquet`` and Iceberg's own reader, in one session.

Six columns sorted by ``id``: all columns, two columns, and a range of 0.1 % of the rows; the same with 5 % of the rows
deleted by position and by key; and opening many files. For comparison, Spark's Parquet reader excludes the same rows by
a column value, and by row index without a lookup; the latter is the floor for position deletes on that reader. Python
tasks that pass Arrow to Spark are measured too, also on ORC and Avro files, which they always read.

Both sides cache decoded position deletes between runs (Iceberg in its executor cache, which is on by default); reading
them without the cache is a separate row. Floeplan also caches lists of files; the query that is short enough for this
to matter is also measured without it. CPU seconds of all processes, planning included. Contenders alternate, and the
best run of each counts.

The cost of position deletes is the row index and the file of each row: 0.2 to 0.3 of the 4 CPU s of a full scan of
24 million rows with 5 % deleted, and as much of the 1.15 s of summing two columns. Spark's reader returns the file in a
struct per row, another 0.13 s of the sum. Looking up the bitmap takes 0.06 s of the sum. A scan per file, which needs
no file per row, is no alternative: a scan takes 70 to 100 ms before its first row.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

import floeplan as fp
from bench.cpu_clock import CpuClock
from bench.read_tables import DELETED, EVERY, OF_OTHER_FORMATS, REMAINDER, make_tables
from bench.spark_session import start_session
from floeplan.spark.read.columns import ROW_INDEX
from floeplan.spark.read.deletes import cached_bitmap, cached_row_test
from floeplan.spark.read.file_log import cached_frame
from tests.support.spark.lake import NAME, Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SIZES = {"small": (8, 250_000, 1_000), "default": (32, 750_000, 10_000), "large": (64, 750_000, 10_000)}
"""Data files, rows in each, and files of the table of many files."""
TURNS, LONG_TURNS = 12, 4
"""Both sides become faster for a dozen turns while code is compiled. Few turns suffice for clear results."""
SHORT_TURNS, SHORT_READS = 16, 25
"""Reads per turn of a query of 0.1 s: JIT compilation takes as long again, in bursts over hundreds of queries, so the
best single read would be an outlier.
"""

Read = Callable[[str | None], "DataFrame"]
Act = Callable[["DataFrame"], object]


def run(size: str) -> list[dict[str, Any]]:
    files, rows, many = SIZES[size]
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        tables = make_tables(lake.open_catalog(), files, rows, many)
        spark = start_session(lake)
        try:
            return _Bench(spark, tables, files * rows, many).rows()
        finally:
            spark.stop()


class _Bench:
    def __init__(self, spark: SparkSession, tables: dict[str, Table], rows: int, many: int) -> None:
        self.spark, self.tables, self.total, self.many = spark, tables, rows, many

    def rows(self) -> list[dict[str, Any]]:
        middle, width = self.total // 2, self.total // 1000
        narrow = f"id >= {middle} AND id < {middle + width}"
        found = []
        for case, act, where, bar in (
            ("all columns", _all_columns, None, 1.0),
            ("sum of 2 of 6 columns", _two_columns, None, 1.0),
            ("a thousandth of the rows", _two_columns, narrow, 0.7),
        ):
            sides = self._ours("clean"), self._parquet, self._iceberg("clean"), self._uncached("clean")
            turns, reads = (SHORT_TURNS, SHORT_READS) if where else (TURNS, 1)
            ours, floor, iceberg, uncached = self._turns(act, where, *sides, turns=turns, reads=reads)
            found.append(_row(case, "spark.read.parquet", ours, floor, None if where else 1.05))
            found.append(_row(case, "Iceberg", ours, iceberg, bar))
            if where:
                found.append(_row(f"{case}, files not read before", "Iceberg", uncached, iceberg, None))
        for case, act, bar in (("all columns", _all_columns, 0.8), ("sum of 2 columns", _two_columns, 1.1)):
            found += self._deleted_by_position(case, act, bar)
        ours, iceberg = self._turns(_all_columns, None, self._ours("keys"), self._iceberg("keys"), turns=LONG_TURNS)
        found.append(_row("5 % deleted by key, all columns", "Iceberg", ours, iceberg, 0.8))
        return [*found, self._opening(), *self._orc_and_avro()]

    def _deleted_by_position(self, case: str, act: Act, bar: float) -> Iterator[dict[str, Any]]:
        peer = self._iceberg("positions")
        ours, iceberg, uncached, by_value, by_number, in_tasks = self._turns(
            act,
            None,
            self._ours("positions"),
            peer,
            self._uncached("positions"),
            self._left_out,
            self._numbered,
            self._in_tasks(act),
        )
        yield _row(f"5 % deleted by position, {case}", "Iceberg", ours, iceberg, bar)
        yield _row(f"the same, deletes not cached, {case}", "Iceberg", uncached, iceberg, None)
        yield _row(f"5 % left out by value, {case}", "Iceberg", by_value, iceberg, None)
        yield _row(f"5 % left out by row number alone, {case} (floor)", "Iceberg", by_number, iceberg, None)
        yield _row(f"5 % deleted by position, in Python tasks, {case}", "Iceberg", in_tasks, iceberg, None)

    def _opening(self) -> dict[str, Any]:
        paths = [file.path for file in fp.plan_scan(self.tables["many"]).files]
        ours, listed = self._turns(
            lambda frame: frame.schema, None, self._ours("many"), lambda _: self.spark.read.parquet(*paths), turns=1
        )
        return _row(f"opening {self.many:,} files", "spark.read.parquet", ours, listed, 0.1)

    def _orc_and_avro(self) -> Iterator[dict[str, Any]]:
        """Python tasks against Iceberg's readers, and against Spark's own ORC reader, which finds columns by name."""
        paths = [file.path for file in fp.plan_scan(self.tables["orc"]).files]
        schema = self.spark.table(f"{NAME}.read.orc").schema
        rows = len(paths) * OF_OTHER_FORMATS[1]
        narrow = f"id >= {rows // 2} AND id < {rows // 2 + rows // 1000}"

        def native(where: str | None) -> DataFrame:
            frame = self.spark.read.schema(schema).orc(paths)
            return frame if where is None else frame.where(where)

        for case, act, columns, where in (
            ("all columns", _all_columns, None, None),
            ("sum of 2 columns", _two_columns, ["id", "qty"], None),
            ("a thousandth of the rows", _two_columns, ["id", "qty"], narrow),
        ):
            for name in ("orc", "avro"):
                ours = partial(fp.read, self.spark, self.tables[name], columns=columns)
                sides = [ours, self._iceberg(name), *([native] if name == "orc" else [])]
                costs = self._turns(act, where, *sides, turns=LONG_TURNS)
                for peer, cost in zip(("Iceberg", "spark.read.orc"), costs[1:], strict=False):
                    yield _row(f"{name.upper()}, {case}", peer, costs[0], cost, None)

    def _turns(self, act: Act, where: str | None, *contenders: Read, turns: int = TURNS, reads: int = 1) -> list[float]:
        """The cost of a read in the best turn of each contender; all must return the same result."""
        best = [float("inf")] * len(contenders)
        results: list[object] = [None] * len(contenders)
        for _ in range(turns):
            for number, read in enumerate(contenders):
                clock = CpuClock()
                for _ in range(reads):
                    results[number] = act(read(where))
                best[number] = min(best[number], clock.seconds() / reads)
        assert act is not _two_columns or all(result == results[0] for result in results), results
        return best

    def _ours(self, name: str) -> Read:
        return lambda where: fp.read(self.spark, self.tables[name], where)

    def _iceberg(self, name: str) -> Read:
        def read(where: str | None) -> DataFrame:
            frame = self.spark.table(f"{NAME}.read.{name}")
            return frame if where is None else frame.where(where)

        return read

    def _parquet(self, where: str | None) -> DataFrame:
        frame = self.spark.read.parquet(*self._paths())
        return frame if where is None else frame.where(where)

    def _paths(self) -> list[str]:
        return [file.path for file in fp.plan_scan(self.tables["clean"]).files]

    @cached_property
    def _with_number(self) -> StructType:
        """Computed once, since it is not part of the floor."""
        return self._parquet(None).schema.add(ROW_INDEX, "long")

    def _uncached(self, name: str) -> Read:
        """Without cached files and deletes."""

        def read(where: str | None) -> DataFrame:
            for held in (cached_bitmap, cached_row_test, cached_frame):
                held.cache_clear()
            return fp.read(self.spark, self.tables[name], where)

        return read

    def _in_tasks(self, act: Act) -> Read:
        """Without Spark's reader; tasks get the column names explicitly, since Spark does not pass them."""
        columns = ["id", "qty"] if act is _two_columns else None
        options = fp.ReadOptions(path="arrow")
        return lambda _: fp.read(self.spark, self.tables["positions"], columns=columns, options=options)

    def _left_out(self, _: str | None) -> DataFrame:
        """The rows that are not deleted, by Spark's reader with a filter on values."""
        return self._parquet(f"NOT ({DELETED})")

    def _numbered(self, _: str | None) -> DataFrame:
        """The same with a filter on the reader's row index: the minimum cost of position deletes."""
        numbered = self.spark.read.schema(self._with_number).parquet(*self._paths())
        return numbered.where(f"{ROW_INDEX} % {EVERY} <> {REMAINDER}").drop(ROW_INDEX)


def _all_columns(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _two_columns(frame: DataFrame) -> object:
    return frame.selectExpr("sum(id)", "sum(qty)").collect()


def _row(case: str, peer: str, ours: float, theirs: float, bar: float | None) -> dict[str, Any]:
    ratio = ours / theirs
    verdict = "" if bar is None else f"≤ {bar} {'ok' if ratio <= bar else 'missed'}"
    return {
        "suite": "read",
        "case": case,
        "metric": f"CPU s against {peer}",
        "ours": ours,
        "peer": theirs,
        "ratio": ratio,
        "bar": verdict,
    }

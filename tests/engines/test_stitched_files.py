"""Stitched files of every writer: every reader sees all rows, and row group metadata is preserved."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from datafusion import SessionContext

from floeplan.parquet.read.reader import read
from floeplan.rewrite.pages.new_file import stitch
from tests.support.parquet.facts import IO, expected_facts, facts_of, opened, same_place
from tests.support.parquet.files import SPARK_OPTIONS, WRITERS, sample_table, shown, write_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

PARTS = 3
LATE = "sorted = 2999 OR (sorted BETWEEN 1234 AND 1236)"


def by_duckdb(path: Path, where: str) -> list[int]:
    return [row[0] for row in duckdb.sql(f"SELECT sorted FROM '{path}' WHERE {where}").fetchall()]


def by_polars(path: Path, where: str) -> list[int]:
    return list(pl.scan_parquet(path).select("sorted").filter(pl.sql_expr(where)).collect()["sorted"])


def by_datafusion(path: Path, where: str) -> list[int]:
    context = SessionContext()
    context.register_parquet("rows", str(path))
    return context.sql(f"SELECT sorted FROM rows WHERE {where}").to_arrow_table()["sorted"].to_pylist()


def by_pyarrow(path: Path, where: str) -> list[int]:
    rows = pq.read_table(path, columns=["sorted"])["sorted"]
    chosen = pc.is_in(rows, pa.array([1234, 1235, 1236, 2999], rows.type))
    return rows.filter(chosen).to_pylist() if where == LATE else rows.to_pylist()


def by_floeplan(path: Path, where: str) -> list[int]:
    return read(str(path), where, ["sorted"]).table["sorted"].to_pylist()


READERS: dict[str, Callable[[Path, str], list[int]]] = {
    "duckdb": by_duckdb,
    "polars": by_polars,
    "datafusion": by_datafusion,
    "pyarrow": by_pyarrow,
    "floeplan": by_floeplan,
}


@cache
def parts() -> list[pa.Table]:
    whole = sample_table()
    size = -(-whole.num_rows // PARTS)
    return [whole.slice(first, size) for first in range(0, whole.num_rows, size)]


def check(paths: list[Path], out: Path) -> None:
    stitch([opened(path) for path in paths], IO, str(out))
    assert same_place(facts_of(out)) == expected_facts(paths)
    everything = [row for path in paths for row in pq.read_table(path, columns=["sorted"])["sorted"].to_pylist()]
    for name, reader in READERS.items():
        assert sorted(reader(out, "sorted IS NOT NULL")) == sorted(everything), name
        assert sorted(reader(out, LATE)) == [1234, 1235, 1236, 2999], name


@pytest.mark.parametrize("writer", WRITERS)
def test_files_of_one_writer_become_one(writer: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.parquet" for number in range(PARTS)]
    for path, rows in zip(paths, parts(), strict=True):
        WRITERS[writer](rows, path)
    check(paths, tmp_path / "stitched.parquet")


@pytest.mark.parametrize("settings", SPARK_OPTIONS)
def test_files_of_spark_become_one_that_spark_reads(settings: str, spark: SparkSession, tmp_path: Path) -> None:
    paths = [write_spark(rows, tmp_path / str(n), spark, settings) for n, rows in enumerate(parts())]
    out = tmp_path / "stitched.parquet"
    check(paths, out)
    frame = spark.read.parquet(str(out))
    assert frame.where(LATE).select("sorted").toArrow()["sorted"].to_pylist() == [1234, 1235, 1236, 2999]
    separate = spark.read.parquet(*map(str, paths))
    assert shown(frame.orderBy("sorted").toArrow()) == shown(separate.orderBy("sorted").toArrow())

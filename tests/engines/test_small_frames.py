"""DataFrames collected into this process: only those proven to be small, with the same rows as Spark writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import functions as F  # noqa: N812

import floeplan as fp
from floeplan.spark.jvm import collect_if_small, is_small
from tests.support.spark.matrix import Matrix

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

ANY_SIZE = 1 << 62


def test_only_plans_that_never_grow_are_trusted(spark: SparkSession) -> None:
    some = spark.range(100)
    assert is_small(some.where("id > 3").select("id"), ANY_SIZE)
    assert is_small(some.groupBy("id").count().orderBy("id").limit(5), ANY_SIZE)
    assert not is_small(some.selectExpr("explode(sequence(0, id)) AS id"), ANY_SIZE)
    assert not is_small(some.crossJoin(spark.range(100)), ANY_SIZE)
    assert not is_small(some.mapInArrow(lambda batches: batches, "id long"), ANY_SIZE)


def test_values_that_may_be_longer_than_estimated_are_not_trusted(spark: SparkSession) -> None:
    texts = spark.range(100).where("id > 3").select(F.col("id"), F.lit("short").alias("text"))
    assert is_small(texts, ANY_SIZE)
    assert is_small(texts.selectExpr("id + 1 AS id", "CAST(concat(text, id) AS INT) AS n"), ANY_SIZE)
    long = ("repeat(id, 10000)", "sequence(0, id)", "struct(repeat(id, 10000) AS s)", f"'{'x' * 1000}'")
    for value in long:
        assert not is_small(texts.selectExpr(f"{value} AS long"), ANY_SIZE), value
    assert not is_small(texts.groupBy((F.col("id") % 2).alias("g")).agg(F.collect_list("id")), ANY_SIZE)
    assert not is_small(texts.selectExpr("repeat(id, 10000) AS long").groupBy("long").count(), ANY_SIZE)


def test_what_spark_estimates_to_be_large_stays_in_spark(spark: SparkSession) -> None:
    assert collect_if_small(spark.range(1000), 1000) is None
    rows = collect_if_small(spark.range(1000), 8000)
    assert rows is not None
    assert rows.num_rows == 1000


def test_rows_beyond_the_driver_limit_stay_in_spark(spark: SparkSession) -> None:
    settings = spark.sparkContext._jsc.sc().conf()  # type: ignore[union-attr]
    before = settings.get("spark.driver.maxResultSize", "1g")
    settings.set("spark.driver.maxResultSize", "10k")
    try:
        assert collect_if_small(spark.range(0, 100_000, 1, 2), ANY_SIZE) is None
    finally:
        settings.set("spark.driver.maxResultSize", before)
    assert collect_if_small(spark.range(0, 100_000, 1, 2), ANY_SIZE) is not None


def test_other_failures_of_spark_are_raised(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="not small at all"):
        collect_if_small(spark.range(10).where("id < 5 OR raise_error('not small at all') IS NULL"), ANY_SIZE)


def test_frames_are_appended_alike_here_and_in_spark(
    matrix: Matrix, local_catalog: SqlCatalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = range(200)
    texts = spark.createDataFrame(pa.table({"id": numbers, "region": [f"r{number % 3}" for number in numbers]}))
    rows = texts.selectExpr(
        "CAST(id + 90000 AS INT) AS pk", "CAST(id % 9 AS INT) AS n", "region",
        "timestamp_seconds(1709251200 + id * 70000) AS ts",
    )  # fmt: skip
    assert is_small(rows, 1 << 20)
    found = []
    for here in (128 << 20, -1):
        monkeypatch.setattr("floeplan.tasks.runner.LOCAL_BYTES", here)
        made = matrix.fork("evolving_v3_vectors")
        table = local_catalog.load_table(made.identifier)
        names = {field.name for field in table.schema().fields}
        result = fp.append(table, rows.select(*(name for name in rows.columns if name in names)))
        assert result.rows_inserted == 200
        found.append(sorted(map(repr, made.rows().to_pylist())))
    assert found[0] == found[1]

"""DataFrames taken into this process: only those that are small for sure, and with the same rows as Spark writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import floeplan as fp
from floeplan.spark.small_frames import collected, is_small
from tests.support.matrix import Matrix

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

ANY_SIZE = 1 << 62


def test_only_steps_that_never_grow_are_believed(spark: SparkSession) -> None:
    some = spark.range(100)
    assert is_small(some.where("id > 3").select("id"), ANY_SIZE)
    assert is_small(some.groupBy("id").count().orderBy("id").limit(5), ANY_SIZE)
    assert not is_small(some.selectExpr("explode(sequence(0, id)) AS id"), ANY_SIZE)
    assert not is_small(some.crossJoin(spark.range(100)), ANY_SIZE)
    assert not is_small(some.mapInArrow(lambda batches: batches, "id long"), ANY_SIZE)


def test_what_spark_estimates_to_be_large_stays_in_spark(spark: SparkSession) -> None:
    assert collected(spark.range(1000), 1000) is None
    rows = collected(spark.range(1000), 8000)
    assert rows is not None
    assert rows.num_rows == 1000


def test_frames_are_appended_alike_here_and_in_spark(
    matrix: Matrix, local_catalog: SqlCatalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.sql(
        "SELECT CAST(id + 90000 AS INT) AS pk, CAST(id % 9 AS INT) AS n, concat('r', id % 3) AS region, "
        "timestamp_seconds(1709251200 + id * 70000) AS ts FROM range(200)"
    )
    found = []
    for here in (128 << 20, -1):
        monkeypatch.setattr("floeplan.dml.runner.HERE_BYTES", here)
        made = matrix.fork("evolving_v3_vectors")
        table = local_catalog.load_table(made.identifier)
        names = {field.name for field in table.schema().fields}
        result = fp.append(table, rows.select(*(name for name in rows.columns if name in names)))
        assert result.rows_inserted == 200
        found.append(sorted(map(repr, made.rows().to_pylist())))
    assert found[0] == found[1]

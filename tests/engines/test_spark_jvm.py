"""The internal JVM APIs that ``floeplan.spark.jvm`` wraps exist and behave as documented."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floeplan.spark.jvm import (
    _sequence,
    class_name,
    elements,
    optimized_plan,
    plan_nodes,
    reads_clock,
    select_texts,
    unscaled,
    with_settings,
    with_size,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


def sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"rows": [batch.num_rows for batch in batches]})


def test_one_query_runs_with_its_own_settings(spark: SparkSession) -> None:
    """Without ``cloneSession`` or ``Dataset.ofRows`` the original query would be returned."""
    query = spark.range(0, 25, 1, 1).mapInArrow(sizes, "rows long")
    copied = with_settings(query, {ROWS_PER_BATCH: "10"})
    assert copied is not query
    assert copied.toArrow().column("rows").to_pylist() == [10, 10, 5]
    assert query.toArrow().column("rows").to_pylist() == [25]


def test_decimals_have_unscaled_values(spark: SparkSession) -> None:
    """Without ``UnscaledValue`` there would be no frame."""
    values = "CAST(-1.05 AS DECIMAL(12, 2)) AS `a.b`", "CAST(NULL AS DECIMAL(18, 0)) AS c", "'x' AS d"
    found = unscaled(spark.range(1).selectExpr(*values), ["a.b", "c"])
    assert found is not None
    assert found.dtypes == [("a.b", "bigint"), ("c", "bigint"), ("d", "string")]
    assert [tuple(row) for row in found.collect()] == [(-105, None, "x")]


def test_expressions_are_sent_to_the_jvm_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``PythonUtils.toSeq`` each selection would send its expressions again, by ``selectExpr``."""
    rows, texts = spark.range(2), ("id + 1 AS `a b`", "CAST(NULL AS INT) AS n")
    monkeypatch.setattr(type(rows), "selectExpr", None)
    for first in (0, 2):
        found = select_texts(rows.where(f"id + {first} = 0"), texts)
        assert [tuple(row) for row in found.collect()] == ([(1, None)] if first == 0 else [])
    assert _sequence.cache_info().hits > 0


def test_the_optimized_plan_has_nodes_expressions_and_an_estimate(spark: SparkSession) -> None:
    plan = optimized_plan(spark.range(100).where("id > 3").selectExpr("id + 1 AS id"))
    assert plan is not None
    assert [class_name(node) for node in plan_nodes(plan)] == ["Project", "Filter", "Range"]
    assert int(str(plan.stats().sizeInBytes())) == 800
    (value,) = elements(plan.expressions())
    assert (class_name(value), class_name(value.child())) == ("Alias", "Add")
    assert value.child().dataType().typeName() == "long"


def test_a_relation_has_the_size_it_is_given(spark: SparkSession, tmp_path: Path) -> None:
    """Without statistics of a catalog table Spark would use the size of the file."""
    pq.write_table(pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]}), tmp_path / "f.parquet")
    frame = spark.read.parquet(str(tmp_path / "f.parquet"))
    sized = with_size(frame, 36 * 2**30, 10**9)
    plan = optimized_plan(sized.select("a").where("a > 1"))
    assert plan is not None
    assert int(str(plan.stats().sizeInBytes())) == 16 * 2**30  # of 8 + 8 bytes a row, of 8 + 8 + 20
    assert sized.where("a > 1 AND _metadata.file_name = 'f.parquet'").count() == 2
    assert with_size(spark.range(3), 5, 3).count() == 3  # no relation of files
    spark.conf.set("spark.sql.cbo.enabled", "true")
    try:
        counted = optimized_plan(with_size(frame, 36 * 2**30, 10**9).select("a"))
        assert counted is not None
        assert int(str(counted.stats().rowCount().get())) == 10**9
    finally:
        spark.conf.unset("spark.sql.cbo.enabled")


def test_queries_that_read_the_clock_are_recognised(spark: SparkSession) -> None:
    for query, expected in (
        ("SELECT 1", False),
        ("SELECT * FROM range(3) WHERE id < year(current_date())", True),
        ("SELECT * FROM range(3) WHERE id IN (SELECT unix_seconds(now()))", True),
    ):
        assert reads_clock(spark.sql(query)) is expected

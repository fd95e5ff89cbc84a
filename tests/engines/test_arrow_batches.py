"""Batches sent to tasks are bounded by rows if no row is wide, and by bytes otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import Observation, functions

import floeplan as fp
from floeplan.spark import write
from floeplan.spark.jvm import with_settings
from floeplan.spark.write import (
    BATCH_ROWS,
    WideRowError,
    flag_wide_rows,
    has_default_batch_size,
    without_flag,
)
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

ROWS, BYTES = write.BATCHES


@pytest.fixture(autouse=True)
def _in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks write rows whatever their number, and short texts count as wide."""
    monkeypatch.setattr("floeplan.tasks.runner.LOCAL_BYTES", -1)
    monkeypatch.setattr(write, "MAX_ROW_BYTES", 100)


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Records the columns of each written frame."""
    found: list[list[str]] = []

    def noted(frame: Any, target: Any, keep: Any, *, row_batches: bool) -> Any:
        found.append(frame.columns)
        return write_in_tasks(frame, target, keep, row_batches=row_batches)

    write_in_tasks = write._write_in_tasks
    monkeypatch.setattr(write, "_write_in_tasks", noted)
    return found


@pytest.mark.parametrize(
    ("text", "wide"),
    [
        ("repeat('x', 100)", False),
        ("repeat('x', 101)", True),
        ("repeat('ä', 51)", True),
        ("CAST(repeat('x', 101) AS BINARY)", True),
        ("named_struct('a', 1, 'in.ner', repeat('x', 101))", True),
        ("CAST(NULL AS STRING)", False),
        ("CAST(1.5 AS DECIMAL(12, 2))", False),
        ("NULL", False),
    ],
)
def test_texts_of_a_row_are_measured_together(spark: SparkSession, text: str, wide: bool) -> None:
    frame = spark.range(1).selectExpr(f"{text} AS `a b`", "'' AS wide", "id")
    found = flag_wide_rows(frame)
    assert found is not None
    row = found.collect()[0]
    assert found.columns == ["a b", "wide", "id", "wide_"]
    assert row["wide_"] is wide
    assert (row["a b"] is None) == (wide or "NULL" in text)
    assert row["id"] == 0


@pytest.mark.parametrize("text", ["array(1)", "map('a', 1)", "named_struct('a', array(1))", "parse_json('1')"])
def test_rows_with_values_of_any_length_are_left_to_spark(spark: SparkSession, text: str) -> None:
    assert flag_wide_rows(spark.range(1).selectExpr(f"{text} AS value")) is None


def test_a_task_stops_at_the_first_wide_row() -> None:
    good = pa.record_batch({"id": [1, 2], "wide": [False, False]})
    arriving = without_flag(iter([good, pa.record_batch({"id": [3], "wide": [True]})]))
    assert next(arriving).to_pydict() == {"id": [1, 2]}
    with pytest.raises(WideRowError):
        next(arriving)


@pytest.mark.parametrize(
    ("widest", "session", "attempts"),
    [
        pytest.param(50, {}, [["id", "day", "note", "wide"]], marks=pytest.mark.matrix),
        (101, {}, [["id", "day", "note", "wide"], ["id", "day", "note"]]),
        (101, {BYTES: "1m"}, [["id", "day", "note"]]),
    ],
)
def test_rows_of_any_width_are_appended_once(
    spark: SparkSession,
    local_catalog: SqlCatalog,
    spread: list[list[str]],
    widest: int,
    session: dict[str, str],
    attempts: list[list[str]],
) -> None:
    name = f"narrow.t{len(attempts)}_{widest}_{len(session)}"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.narrow")
    columns = "id BIGINT, day DATE, note STRUCT<text: STRING>"
    spark.sql(f"CREATE TABLE local.{name} ({columns}) USING iceberg PARTITIONED BY (month(day))")
    rows = spark.range(0, 400, 1, 4).selectExpr(
        "id",
        "date_add(DATE '2024-01-01', CAST(id AS INT)) AS day",
        f"named_struct('text', repeat('x', if(id = 399, {widest}, 3))) AS note",
    )
    for key, value in session.items():
        spark.conf.set(key, value)
    try:
        result = fp.append(local_catalog.load_table(name), rows)
    finally:
        for key in session:
            spark.conf.unset(key)
    assert spread == attempts
    assert result.rows_inserted == 400
    assert result.data_files_added == 14, "each month is written by one task"
    assert spark.table(f"local.{name}").exceptAll(rows).isEmpty()
    assert spark.table(f"local.{name}").count() == 400
    data = Path(local_catalog.load_table(name).location().removeprefix("file://"), "data")
    assert len(list(data.rglob("*.parquet"))) == 14, "nothing is left of an abandoned attempt"


def sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"rows": [batch.num_rows for batch in batches]})


def test_batches_are_bounded_by_rows_only_for_our_queries(spark: SparkSession) -> None:
    query = spark.range(0, 2 * BATCH_ROWS + 1, 1, 1).mapInArrow(sizes, "rows long")
    moved = with_settings(query, write.BATCHES)
    assert spark.conf.getAll.keys().isdisjoint((ROWS, BYTES))
    assert query.toArrow().column("rows").to_pylist() == [2 * BATCH_ROWS + 1]
    spark.conf.set(ROWS, "5000")
    try:
        assert moved.toArrow().column("rows").to_pylist() == [BATCH_ROWS, BATCH_ROWS, 1]
        assert spark.conf.get(ROWS) == "5000"
    finally:
        spark.conf.unset(ROWS)


@pytest.mark.parametrize("setting", [ROWS, BYTES])
def test_an_explicit_batch_size_of_the_session_is_kept(spark: SparkSession, setting: str) -> None:
    assert has_default_batch_size(spark)
    spark.conf.set(setting, "777")
    try:
        assert not has_default_batch_size(spark)
    finally:
        spark.conf.unset(setting)


def test_a_frame_keeps_the_state_of_its_session(spark: SparkSession) -> None:
    """Observations, cached data, views, variables and functions of the session."""
    spark.udf.register("plus_one", lambda value: value + 1, "long")
    spark.range(0, 10, 1, 2).createOrReplaceTempView("ten")
    spark.sql("DECLARE OR REPLACE VARIABLE least BIGINT DEFAULT 3")
    kept = spark.sql("SELECT plus_one(id) AS id FROM ten WHERE id >= least").cache()
    seen = Observation()
    try:
        assert kept.count() == 7
        observed = kept.observe(seen, functions.sum("id").alias("total"))
        moved = with_settings(observed.where("id > 5"), write.BATCHES)
        assert sorted(moved.toArrow().column("id").to_pylist()) == [6, 7, 8, 9, 10]
        assert seen.get == {"total": 49}
        assert "InMemoryTableScan" in moved._jdf.queryExecution().executedPlan().toString()
    finally:
        kept.unpersist()
        spark.sql("DROP TEMPORARY VARIABLE least")
        spark.catalog.dropTempView("ten")


def test_a_session_that_cannot_be_copied_keeps_its_batches(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = spark.range(1)
    monkeypatch.setattr(spark, "_jsparkSession", None)
    assert with_settings(frame, write.BATCHES) is frame


def test_decimals_are_appended_as_they_are(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    """Those that distribute rows and those of more than 18 digits are sent as decimals, the others as integers."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.narrow")
    columns = "id BIGINT, price DECIMAL(18, 4), `a b` DECIMAL(5, 2), tax DECIMAL(9, 0), total DECIMAL(38, 6)"
    partitions = "truncate(100, tax), bucket(2, `a b`)"
    spark.sql(f"CREATE TABLE local.narrow.decimals ({columns}) USING iceberg PARTITIONED BY ({partitions})")
    frame = spark.range(0, 600, 1, 3).selectExpr(
        "id",
        "CASE WHEN id % 7 > 0 THEN CAST((id - 300) * 33333333333.0001 AS DECIMAL(18, 4)) END AS price",
        "CAST(id - 300.55 AS DECIMAL(5, 2)) AS `a b`",
        "CAST(id - 300 AS DECIMAL(9, 0)) AS tax",
        "CAST((id - 300) * 1e25 AS DECIMAL(38, 6)) AS total",
    )
    table = local_catalog.load_table("narrow.decimals")
    sent, types = write.with_unscaled_decimals(frame, WriteTarget.of(table))
    assert types == {"price": pa.decimal128(18, 4)}
    assert dict(sent.dtypes)["price"] == "bigint"
    fp.append(table, frame)
    written = spark.table("local.narrow.decimals")
    assert written.exceptAll(frame).count() == 0 == frame.exceptAll(written).count()
    assert written.where("price < 0").count() == frame.where("price < 0").count() > 0

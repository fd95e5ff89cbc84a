"""Rows on their way to tasks: batches are bounded by rows where no row is wide, and by bytes where one is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import floeplan as fp
from floeplan.spark import appending, narrow_rows
from floeplan.spark.narrow_rows import BATCH_ROWS, WideRowError, batches_by_rows, marked, narrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

ROWS, BYTES = narrow_rows._SETTINGS


@pytest.fixture(autouse=True)
def _in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows there are, tasks write them, and what is wide is found in short texts."""
    monkeypatch.setattr("floeplan.dml.runner.HERE_BYTES", -1)
    monkeypatch.setattr(narrow_rows, "WIDEST", 100)


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The columns of each frame that is written."""
    found: list[list[str]] = []

    def noted(frame: Any, *arguments: Any) -> Any:
        found.append(frame.columns)
        return write(frame, *arguments)

    write = appending._write_in_tasks
    monkeypatch.setattr(appending, "_write_in_tasks", noted)
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
    found = marked(frame)
    assert found is not None
    row = found.collect()[0]
    assert found.columns == ["a b", "wide", "id", "wide_"]
    assert row["wide_"] is wide
    assert (row["a b"] is None) == (wide or "NULL" in text)
    assert row["id"] == 0


@pytest.mark.parametrize("text", ["array(1)", "map('a', 1)", "named_struct('a', array(1))", "parse_json('1')"])
def test_rows_with_values_of_any_length_are_left_to_spark(spark: SparkSession, text: str) -> None:
    assert marked(spark.range(1).selectExpr(f"{text} AS value")) is None


def test_a_task_gives_up_at_the_first_wide_row() -> None:
    good = pa.record_batch({"id": [1, 2], "wide": [False, False]})
    arriving = narrow(iter([good, pa.record_batch({"id": [3], "wide": [True]})]))
    assert next(arriving).to_pydict() == {"id": [1, 2]}
    with pytest.raises(WideRowError):
        next(arriving)


@pytest.mark.parametrize(
    ("widest", "session", "attempts"),
    [
        (50, {}, [["id", "day", "note", "wide"]]),
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
    assert len(list(data.rglob("*.parquet"))) == 14, "nothing is left of an attempt that was given up"


def test_the_settings_stay_as_long_as_anyone_needs_them(spark: SparkSession) -> None:
    before = {name: spark.conf.get(name) for name in (ROWS, BYTES)}
    with batches_by_rows(spark) as first:
        with batches_by_rows(spark) as second:
            assert first
            assert second
        assert spark.conf.get(ROWS) == str(BATCH_ROWS)
        assert spark.conf.get(BYTES) == str(2**31 - 1)
    assert {name: spark.conf.get(name) for name in before} == before
    assert before.keys().isdisjoint(spark.conf.getAll)


def test_batches_end_at_a_number_of_rows(spark: SparkSession) -> None:
    def sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"rows": [batch.num_rows for batch in batches]})

    rows = spark.range(0, 2 * BATCH_ROWS + 1, 1, 1)
    with batches_by_rows(spark):
        found = rows.mapInArrow(sizes, "rows long").toArrow()
    assert found.column("rows").to_pylist() == [BATCH_ROWS, BATCH_ROWS, 1]


@pytest.mark.parametrize("setting", [ROWS, BYTES])
def test_a_session_that_was_told_how_large_batches_are_keeps_them(spark: SparkSession, setting: str) -> None:
    spark.conf.set(setting, "777")
    try:
        with batches_by_rows(spark) as possible:
            assert not possible
            assert spark.conf.get(setting) == "777"
        assert spark.conf.get(setting) == "777"
    finally:
        spark.conf.unset(setting)


def test_the_settings_go_when_the_work_fails(spark: SparkSession) -> None:
    with pytest.raises(ZeroDivisionError), batches_by_rows(spark):
        raise ZeroDivisionError
    assert spark.conf.getAll.keys().isdisjoint((ROWS, BYTES))

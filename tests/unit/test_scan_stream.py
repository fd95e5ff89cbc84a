"""Streaming a plan: the same rows as reading it whole, bounded in memory, stopped early, and cut at a limit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType

from floeplan.scan import stream as streaming
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.scan.read import FilePart, PlanReader
from floeplan.scan.stream import stream
from tests.support.tables.layouts import Files, Layout

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False), NestedField(2, "name", StringType(), required=False), schema_id=0
)
FILES, ROWS, GROUP = 5, 40, 10


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Five files of four row groups; an equality delete and a position delete apply to one each."""
    files = Files(tmp_path_factory.mktemp("streamed"))
    paths = []
    for number in range(FILES):
        first = number * ROWS
        rows = [{"id": n, "name": f"n{n % 7}"} for n in range(first, first + ROWS)]
        paths.append(files.data(rows, SCHEMA, group=GROUP, sequence_number=1 if number == 3 else 5))
    files.keys([{"id": 3 * ROWS + 1}], Schema(SCHEMA.fields[0]), [1], sequence_number=2)
    files.positions([(paths[2], 5)], sequence_number=6, referenced_data_file=paths[2])
    return files.table(Layout(SCHEMA, (PartitionSpec(spec_id=0),)))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One part for each row group, and two of them at a time."""
    monkeypatch.setattr(streaming, "PART_BYTES", 1)
    monkeypatch.setattr(streaming, "AHEAD_BYTES", 400)


@pytest.fixture
def parts_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows that each part selects, as parts are read."""
    found: list[int] = []
    read = PlanReader.read_part

    def counted(self: PlanReader, part: FilePart, limit: int | None = None) -> pa.Table:
        found.append(part.selection.row_count)
        return read(self, part, limit)

    monkeypatch.setattr(PlanReader, "read_part", counted)
    return found


def planned(table: Table, where: str | None = None) -> ScanPlan:
    return plan_scan(table, where, options=ScanOptions(report=False))


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("floeplan-read")]


@pytest.mark.parametrize("where", [None, "id >= 75 AND id < 130", "name = 'n3'", "id > 100000"])
def test_stream_has_the_rows_of_the_table(table: Table, where: str | None) -> None:
    plan = planned(table, where)
    whole = plan.to_arrow()
    reader = plan.to_arrow_batch_reader()
    assert reader.schema == whole.schema
    assert reader.read_all().equals(whole)
    assert pa.table(plan).equals(whole)
    assert pa.table(plan).equals(whole)  # again: a plan is not used up
    unordered = plan.to_arrow_batch_reader(["id"], in_order=False).read_all()
    assert sorted(unordered["id"].to_pylist()) == sorted(whole["id"].to_pylist())
    assert plan.to_arrow_batch_reader(["name", "id"]).schema.names == ["name", "id"]


@pytest.mark.parametrize("where", [None, "id < 110", "name = 'n3'"])
@pytest.mark.parametrize("limit", [0, 1, 10, 11, 95, 124, 125, 1000])
def test_limit_returns_the_first_rows(table: Table, where: str | None, limit: int) -> None:
    plan = planned(table, where)
    expected = plan.to_arrow().slice(0, limit)
    assert plan.to_arrow(limit=limit).equals(expected)
    assert plan.to_arrow_batch_reader(limit=limit).read_all().equals(expected)


@pytest.mark.parametrize(
    ("where", "limit", "selected"),
    [
        (None, 0, []),
        (None, 1, [1]),
        (None, 25, [10, 10, 5]),
        (None, 41, [10, 10, 10, 10, 1]),
        ("name = 'n3'", 1, [10]),
        ("name = 'n3'", 3, [10, 10]),
        ("id >= 40", 12, [10, 2]),
    ],
)
def test_limit_reads_no_more_than_it_must(
    table: Table, parts_read: list[int], where: str | None, limit: int, selected: list[int]
) -> None:
    assert planned(table, where).to_arrow(limit=limit).num_rows == limit
    assert sorted(parts_read, reverse=True) == selected


def test_files_are_read_a_few_parts_ahead(table: Table, parts_read: list[int]) -> None:
    found = stream(planned(table), SCHEMA)
    next(found)
    assert 1 <= len(parts_read) < FILES * ROWS // GROUP
    found.close()


def test_one_part_is_read_even_if_it_is_larger_than_the_room(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "AHEAD_BYTES", 0)
    assert sum(rows.num_rows for rows in stream(planned(table), SCHEMA)) == FILES * ROWS - 2


@pytest.mark.parametrize("how", ["close", "delete", "break"])
def test_early_stop_ends_the_threads(table: Table, how: str, parts_read: list[int]) -> None:
    reader = planned(table).to_arrow_batch_reader()
    reader.read_next_batch()
    assert reading_threads()
    if how == "close":
        reader.close()
    elif how == "break":
        for _ in reader:
            break
    del reader
    assert reading_threads() == []
    assert len(parts_read) < FILES * ROWS // GROUP


def test_error_of_a_file_ends_the_stream(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for number in range(3):
        files.data([{"id": number, "name": "x"}], SCHEMA)
    table = files.table(Layout(SCHEMA, (PartitionSpec(spec_id=0),)))
    Path(planned(table).files[1].path.removeprefix("file://")).unlink()
    with pytest.raises(Exception, match="does not exist although the table refers to it: restore it"):
        planned(table).to_arrow_batch_reader().read_all()
    assert reading_threads() == []


def test_pandas_and_polars(table: Table) -> None:
    plan = planned(table, "name = 'n3'")
    rows = plan.to_arrow()
    assert plan.to_pandas(["id"], limit=4)["id"].tolist() == rows["id"].to_pylist()[:4]
    lazy = plan.to_polars()
    assert isinstance(lazy, pl.LazyFrame)
    assert lazy.collect()["id"].to_list() == rows["id"].to_pylist()
    assert lazy.select(pl.len()).collect().item() == rows.num_rows
    assert (
        lazy.filter(pl.col("id") > 50).head(3).collect()["id"].to_list()
        == [n for n in rows["id"].to_pylist() if n > 50][:3]
    )


def test_polars_reads_the_columns_and_rows_of_a_query(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def recorded(plan: ScanPlan, schema: Schema, **options: Any) -> Iterator[pa.Table]:
        asked.append(([field.name for field in schema.fields], options["limit"]))
        return stream(plan, schema, **options)

    monkeypatch.setattr(streaming, "stream", recorded)
    assert planned(table).to_polars().select("name").head(2).collect().shape == (2, 1)
    assert asked == [(["name"], 2)]


def test_duckdb_and_datafusion(table: Table) -> None:
    plan = planned(table, "id < 100")
    with duckdb.connect() as connection:
        assert plan.to_duckdb(connection, "events").count("*").fetchall() == [(99,)]
        query = "SELECT count(*), max(a.id) FROM events a JOIN events b USING (id) WHERE b.name = 'n3'"
        assert connection.sql(query).fetchall() == [(14, 94)]
        assert len(connection.sql("SELECT * FROM events LIMIT 3").fetchall()) == 3
    context = datafusion.SessionContext()
    plan.to_datafusion(context, "events")
    assert context.sql("SELECT sum(id) AS total FROM events").to_pydict() == {"total": [4865]}

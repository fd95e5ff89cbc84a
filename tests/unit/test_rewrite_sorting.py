"""Sorts that spill to disk: same result as in memory, sorted ranges, no files left."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import DecimalType, DoubleType, LongType, NestedField, StringType, StructType

import floeplan as fp
from floeplan.rewrite.run.rewrite_group import task_memory
from floeplan.rewrite.run.sorting import sort_on_disk
from floeplan.rewrite.strategies.base import RowOrder, parse_order
from floeplan.rewrite.strategies.curves import level_codes
from floeplan.rewrite.strategies.registry import find_strategy
from floeplan.write.partitioning import take_rows
from tests.support.tables.two_specs import EVENTS, catalog, events

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
    NestedField(3, "v", DoubleType(), required=False),
    NestedField(4, "s", StructType(NestedField(5, "d", DecimalType(12, 2), required=False)), required=False),
)


def made_rows(count: int, seed: int = 5) -> pa.Table:
    rng = np.random.default_rng(seed)
    v = rng.normal(size=count).round(1)
    v[rng.random(count) < 0.05] = np.nan
    d = pa.array(rng.integers(-999, 999, count).astype(np.int32)).cast(pa.decimal128(12, 2))
    return pa.table(
        {
            "id": pa.array(np.arange(count), mask=rng.random(count) < 0.1),
            "name": pa.array([f"n{i}" for i in rng.integers(0, 50, count)], mask=rng.random(count) < 0.1),
            "v": pa.array(v, mask=rng.random(count) < 0.1),
            "s": pa.StructArray.from_arrays([d], ["d"]),
            "place": np.arange(count),
        }
    )


def on_disk(order: RowOrder, rows: pa.Table, ranges: int) -> list[pa.Table]:
    names = [field.name for field in order.key_schema.fields]
    sample = rows.select(names).take(pa.array(np.arange(0, rows.num_rows, 7)))
    pieces = (rows.slice(first, 300) for first in range(0, rows.num_rows, 300))
    return list(sort_on_disk(order, pieces, sample, ranges, rows.num_rows))


def order_of(strategy: str, *by: str) -> RowOrder:
    parsed: SortOrder = parse_order(by, SCHEMA)
    return find_strategy(strategy).row_order(SCHEMA, parsed)


def sorted_rows(order: RowOrder, rows: pa.Table) -> pa.Table:
    return take_rows(rows, pa.array(order.permutation(rows)))


@pytest.mark.parametrize(
    "by",
    [("id",), ("v desc nulls last", "id"), ("name", "v desc"), ("s.d nulls last", "name desc nulls first")],
)
def test_a_sort_over_disk_is_the_sort_in_memory(by: tuple[str, ...]) -> None:
    order, rows = order_of("sort", *by), made_rows(2000)
    ranges = on_disk(order, rows, 6)
    assert len(ranges) >= 4
    assert pa.concat_tables(ranges)["place"].to_pylist() == sorted_rows(order, rows)["place"].to_pylist()


@pytest.mark.parametrize(("strategy", "by"), [("sort", "name"), ("zorder", "name"), ("hilbert", "name")])
def test_rows_with_equal_keys_stream_through_in_their_order(strategy: str, by: str) -> None:
    rows = made_rows(1000).set_column(1, "name", pa.array(["same"] * 1000))
    ranges = on_disk(order_of(strategy, by), rows, 4)
    assert [table.num_rows for table in ranges] == [300, 300, 300, 100], "at most one input batch in memory"
    assert pa.concat_tables(ranges)["place"].to_pylist() == list(range(1000))
    assert ranges[0].schema.names == rows.schema.names


def test_a_key_of_most_rows_does_not_make_the_ranges_beside_it_large() -> None:
    names = pa.array([f"n{i}" if i % 10 == 0 else "n4" for i in range(3000)])
    order, rows = order_of("sort", "name", "id"), made_rows(3000).set_column(1, "name", names)
    by_name = order_of("sort", "name")
    ranges = on_disk(by_name, rows, 10)
    assert pa.concat_tables(ranges)["place"].to_pylist() == sorted_rows(by_name, rows)["place"].to_pylist()
    assert max(table.num_rows for table in ranges) <= 300
    assert pa.concat_tables(on_disk(order, rows, 10))["id"].equals(sorted_rows(order, rows)["id"])


@pytest.mark.parametrize("strategy", ["sort", "zorder"])
def test_empty_batches_are_ignored(strategy: str) -> None:
    """All rows of a row group may be deleted."""
    order, rows = order_of(strategy, "id"), made_rows(1000)
    pieces = iter([rows.slice(0, 0), rows.slice(0, 600), rows.slice(600, 0), rows.slice(600)])
    ranges = list(sort_on_disk(order, pieces, rows.select(["id"]), 3, 1000))
    assert sorted(pa.concat_tables(ranges)["place"].to_pylist()) == list(range(1000))


@pytest.mark.parametrize("curve", ["zorder", "hilbert"])
def test_a_curve_over_disk_narrows_every_column_of_every_range(curve: str) -> None:
    rng = np.random.default_rng(1)
    rows = made_rows(8000).set_column(0, "id", pa.array(rng.permutation(8000)))
    rows = rows.set_column(2, "v", pa.array(rng.random(8000)))
    ranges = on_disk(order_of(curve, "id", "v"), rows, 16)
    assert sorted(np.concatenate([table["place"] for table in ranges]).tolist()) == list(range(8000))
    assert all(table.schema.names == rows.schema.names for table in ranges)
    hit = [
        min(table["id"].to_pylist()) <= 3000 <= max(table["id"].to_pylist())
        and min(table["v"].to_pylist()) <= 0.4 <= max(table["v"].to_pylist())
        for table in ranges
    ]
    assert len(ranges) >= 12
    assert sum(hit) <= 4


def test_nothing_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    order, rows = order_of("sort", "id"), made_rows(1000)
    assert len(on_disk(order, rows, 5)) >= 5
    assert not list(tmp_path.iterdir())
    names = [field.name for field in order.key_schema.fields]
    broken = sort_on_disk(order, iter([rows, pa.table({"other": [1]})]), rows.select(names), 3, 1001)
    with pytest.raises(KeyError):
        list(broken)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("strategy", "by"), [("sort", ["v desc", "id"]), ("hilbert", ["id", "v"])])
def test_a_group_larger_than_memory_is_rewritten(tmp_path: Path, strategy: str, by: list[str]) -> None:
    table = catalog(tmp_path).create_table("db.t", EVENTS)
    for first in (2000, 0, 1000):
        fp.append(table, events(first, first + 1000))
    fp.delete(table, "id % 100 = 7", mode="merge-on-read")
    before = fp.plan_scan(table).to_arrow().sort_by("id")
    options = {"rewrite-all": "true", "task-memory-bytes": "60000"}
    result = fp.rewrite_data_files(table, strategy=strategy, by=by, options=options)
    assert result.files_added == 1
    after = fp.plan_scan(table).to_arrow()
    assert after.sort_by("id").equals(before)
    if strategy == "sort":
        by_v = sorted((i for i in before["id"].to_pylist() if i % 10), reverse=True)
        nulls = [i for i in before["id"].to_pylist() if not i % 10]
        assert after["id"].to_pylist() == by_v + nulls, "descending, so nulls are last"


def test_numbers_have_the_codes_of_values_that_are_ranked() -> None:
    rng = np.random.default_rng(11)
    numbers = pa.array(rng.integers(-50, 50, 500), mask=rng.random(500) < 0.1)
    levels = pa.array(np.unique(rng.integers(-40, 40, 30)))
    ranked = [values.cast(pa.decimal128(20, 0)) for values in (levels, numbers)]
    assert level_codes(levels, numbers, 6).tolist() == level_codes(*ranked, 6).tolist()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"spark.master": "local[4]", "spark.driver.memory": "8g", "spark.executor.memory": "1g"}, 2 * 1024**3),
        ({"spark.master": "local", "spark.driver.memory": "512m"}, 512 * 1024**2),
        (
            {"spark.master": "spark://h:7077", "spark.executor.memory": "6g", "spark.executor.cores": "3"},
            2 * 1024**3,
        ),
        ({"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "3g"}, 3 * 1024**3),
        ({"spark.master": "local[2]", "spark.executor.pyspark.memory": "2g", "spark.driver.memory": "8g"}, 1024**3),
        ({}, 1024**3),
    ],
)
def test_the_memory_of_a_task_is_its_share_of_the_executor(settings: dict[str, str], expected: int) -> None:
    session = SimpleNamespace(conf=settings)
    assert task_memory(session) == expected  # type: ignore[arg-type]

"""Distribution keys: equal for all rows of a partition, in its order, in any session time zone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

import floeplan as fp
from floeplan.partition.transforms import Transform, apply
from floeplan.spark.distribution import transform_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

HOUR = 3_600_000_000
TIMES = sorted(
    {
        at * HOUR + off
        for at in (-(10**6), -8761, -8760, -745, -744, -25, -24, -1, 0, 1, 23, 24, 744, 1416, 8760, 474_000, 2 * 10**6)
        for off in (-1, 0, 1, HOUR // 2)
    }
)
DAYS = [-700_000, -366, -365, -32, -31, -1, 0, 1, 30, 31, 58, 59, 364, 365, 19_783, 10**6]
NUMBERS = [-(2**31), -101, -100, -99, -1, 0, 1, 99, 100, 2**31 - 1]
CASES: list[tuple[PrimitiveType, str, Transform, list[int]]] = [
    *(
        (source, made, transform, TIMES)
        for source, made in (
            (TimestamptzType(), "timestamp_micros(n)"),
            (
                TimestampType(),
                "timestamp_ntz'1970-01-01' + make_dt_interval(0, 0, 0, CAST(n AS DECIMAL(20)) / 1000000)",
            ),
        )
        for transform in (YearTransform(), MonthTransform(), DayTransform(), HourTransform())
    ),
    *(
        (DateType(), "date_from_unix_date(CAST(n AS INT))", transform, DAYS)
        for transform in (YearTransform(), MonthTransform(), DayTransform())
    ),
    (IntegerType(), "CAST(n AS INT)", TruncateTransform(100), NUMBERS),
    (LongType(), "n", TruncateTransform(7), [-(2**63) + 7, *NUMBERS, 2**53 + 1, 2**63 - 1]),
    (LongType(), "n", IdentityTransform(), NUMBERS),
]


@pytest.fixture
def abroad(spark: SparkSession) -> Iterator[SparkSession]:
    """A session in a time zone with a half-hour offset and daylight saving time."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Australia/Adelaide")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", str(before))


@pytest.mark.parametrize(("source", "made", "transform", "values"), CASES, ids=lambda value: str(value)[:20])
def test_rows_of_a_partition_and_only_they_are_spread_alike(
    abroad: SparkSession, source: PrimitiveType, made: str, transform: Transform, values: list[int]
) -> None:
    rows = abroad.createDataFrame([(value,) for value in values], "n BIGINT").selectExpr("n", f"{made} AS `a b`")
    keys = {
        row.n: row.key for row in rows.selectExpr("n", f"{transform_sql('`a b`', source, transform)} AS key").collect()
    }
    partitions = [apply(transform, source, value) for value in sorted(values)]
    found = [keys[value] for value in sorted(values)]
    for at in range(1, len(values)):
        assert (partitions[at] == partitions[at - 1]) == (found[at] == found[at - 1]), sorted(values)[at]
        assert found[at] >= found[at - 1], sorted(values)[at]


def test_texts_are_spread_by_their_beginning(spark: SparkSession) -> None:
    text = transform_sql("s", StringType(), TruncateTransform(2))
    raw = transform_sql("b", BinaryType(), TruncateTransform(2))
    row = spark.sql(f"SELECT {text} AS s, {raw} AS b FROM (SELECT 'äöü' AS s, X'010203' AS b)").collect()[0]
    assert (row.s, bytes(row.b)) == ("äö", b"\x01\x02")


def test_rows_without_a_time_are_spread_too(spark: SparkSession) -> None:
    keys = ", ".join(
        transform_sql("n", source, transform)
        for source in (TimestamptzType(), TimestampType(), DateType())
        for transform in (YearTransform(), MonthTransform(), DayTransform(), HourTransform())
        if not (isinstance(source, DateType) and isinstance(transform, HourTransform))
    )
    assert set(spark.sql(f"SELECT {keys} FROM (SELECT NULL AS n)").collect()[0]) == {None}


def test_rows_of_a_sorted_table_are_spread_in_ranges_of_its_order(
    spark: SparkSession, local_catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floeplan.tasks.runner.LOCAL_BYTES", -1)
    schema = Schema(NestedField(1, "ts", TimestamptzType()), NestedField(2, "id", LongType()))
    by_day = SortField(1, DayTransform(), SortDirection.DESC, NullOrder.NULLS_LAST)
    by_id = SortField(2, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST)
    local_catalog.create_namespace_if_not_exists("spread")
    table = local_catalog.create_table("spread.sorted", schema, sort_order=SortOrder(by_day, by_id))
    rows = spark.range(0, 500, 1, 3).selectExpr("timestamp_micros((id * 7919 % 500 - 250) * 20000000000) AS ts", "id")
    before = spark.conf.get("spark.sql.adaptive.coalescePartitions.enabled")
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    try:
        assert fp.append(table, rows).rows_inserted == 500
    finally:
        spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", str(before))
    assert spark.table("local.spread.sorted").exceptAll(rows).isEmpty()
    files = [pq.read_table(path.removeprefix("file://")) for path in table.inspect.files()["file_path"].to_pylist()]
    days = [file["ts"].cast(pa.int64()).to_numpy() // (24 * HOUR) for file in files]
    assert all((np.diff(of_file) <= 0).all() for of_file in days)
    ranges = sorted((int(of_file.min()), int(of_file.max())) for of_file in days)
    assert len(ranges) > 1
    assert all(one[1] <= other[0] for one, other in pairwise(ranges))

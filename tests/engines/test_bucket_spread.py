"""Rows of a bucket go to one task: Spark computes buckets exactly as Iceberg does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

import floeplan as fp
from floeplan.partition.transforms import apply
from floeplan.spark.distribution import bucket_sql, with_hash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.engines

NUMBERS = [-(2**63), -(2**31), -1, 0, 1, 34, 2**31 - 1, 2**40, 2**63 - 1]
SMALL = [number for number in NUMBERS if -(2**31) <= number < 2**31]
TIMES = [-1, 0, 1, -(10**15), 10**15, 1_510_871_468_000_001]
TEXTS = ["", "a", "ab", "abc", "iceberg", "äöü😀", "\0", "\0\0\0\0", "x" * 4097, *(chr(65 + n) * n for n in range(40))]
NTZ = "timestamp_ntz'1970-01-01' + make_dt_interval(0, 0, 0, CAST(v AS DECIMAL(30)) / 1000000)"


@pytest.mark.parametrize(
    ("source", "made", "values"),
    [
        (IntegerType(), "CAST(v AS INT)", SMALL),
        (LongType(), "v", NUMBERS),
        (LongType(), "CAST(v AS INT)", SMALL),
        (DateType(), "date_from_unix_date(CAST(v AS INT))", [-700_000, -1, 0, 1, 17_486, 10**6]),
        (TimestamptzType(), "timestamp_micros(v)", TIMES),
        (TimestampType(), NTZ, TIMES),
        (StringType(), "v", TEXTS),
        (StringType(), "v COLLATE UTF8_LCASE", TEXTS),
        (BinaryType(), "v", [text.encode()[::-1] for text in TEXTS]),
        (UUIDType(), "v", [bytes(range(n, n + 16)) for n in (0, 100, 240)]),
        (FixedType(6), "v", [bytes(range(n, n + 6)) for n in (0, 100, 250)]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_buckets_are_those_of_iceberg(
    spark: SparkSession, source: PrimitiveType, made: str, values: list[int | str | bytes]
) -> None:
    rows = spark.createDataFrame(pa.table({"v": values})).selectExpr("v", f"{made} AS `a b`")
    hashed = with_hash(rows, "`a b`", source, "hashed")
    found = {row.v: row.bucket for row in hashed.selectExpr("v", f"{bucket_sql('hashed', 1009)} AS bucket").collect()}
    assert {bytes(key) if isinstance(key, bytearray) else key: bucket for key, bucket in found.items()} == {
        value: apply(BucketTransform(1009), source, value) for value in values
    }


@pytest.mark.parametrize("source", [IntegerType(), DateType(), TimestamptzType(), StringType(), BinaryType()], ids=str)
def test_null_has_no_bucket(spark: SparkSession, source: PrimitiveType) -> None:
    rows = with_hash(spark.sql("SELECT NULL AS v"), "v", source, "hashed")
    assert rows.selectExpr(bucket_sql("hashed", 16)).collect()[0][0] is None


def test_random_strings(spark: SparkSession) -> None:
    random = np.random.default_rng(5)
    texts = [random.bytes(length) for length in random.integers(0, 70, 500)]
    rows = with_hash(spark.createDataFrame(pa.table({"v": texts})), "v", BinaryType(), "hashed")
    found = [row.bucket for row in rows.selectExpr(f"{bucket_sql('hashed', 2**31 - 1)} AS bucket").collect()]
    assert found == [apply(BucketTransform(2**31 - 1), BinaryType(), text) for text in texts]


@pytest.fixture
def four_tasks(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """Write rows in four tasks, whatever their number."""
    monkeypatch.setattr("floeplan.tasks.runner.LOCAL_BYTES", -1)
    wanted = {"spark.sql.adaptive.coalescePartitions.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    before = {name: str(spark.conf.get(name)) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "ts", TimestamptzType()),
    NestedField(4, "price", DecimalType(9, 2)),
    NestedField(5, "inner", StructType(NestedField(6, "key", StringType()))),
)


def made(catalog: SqlCatalog, name: str, spec: PartitionSpec, order: SortOrder | None = None) -> Table:
    catalog.create_namespace_if_not_exists("buckets")
    return catalog.create_table(f"buckets.{name}", SCHEMA, partition_spec=spec, sort_order=order or SortOrder())


def appended(spark: SparkSession, table: Table) -> pa.Table:
    """The files after appending 600 rows of one day, some with nulls."""
    rows: DataFrame = spark.range(0, 600, 1, 3).selectExpr(
        "nullif(id, 7) AS id",
        "nullif(concat('name ', id), 'name 8') AS name",
        "timestamp_micros(id) AS ts",
        "CAST(id AS DECIMAL(9, 2)) AS price",
        "named_struct('key', concat('k', id)) AS inner",
    )
    assert fp.append(table, rows).rows_inserted == 600
    assert spark.table(f"local.{'.'.join(table.name())}").exceptAll(rows).isEmpty()
    return table.refresh().inspect.files()


@pytest.mark.parametrize(
    ("source_id", "name", "partitions"), [(1, "id", 9), (2, "name", 9), (6, "inner_key", 8), (3, "ts", 8)]
)
def test_a_bucket_gets_one_file(
    four_tasks: SparkSession, local_catalog: SqlCatalog, source_id: int, name: str, partitions: int
) -> None:
    spec = PartitionSpec(PartitionField(source_id, 1000, BucketTransform(8), f"{name}_bucket"))
    assert appended(four_tasks, made(local_catalog, name, spec)).num_rows == partitions


def test_columns_are_never_taken_for_hashes(four_tasks: SparkSession, local_catalog: SqlCatalog) -> None:
    """For any column name: rows are distributed by additional hash columns."""
    local_catalog.create_namespace_if_not_exists("buckets")
    names = ["id", "_hash", "_HASH_1", "_hash_1_filled", "_hash__1"]
    schema = Schema(*(NestedField(number, name, StringType()) for number, name in enumerate(names, 1)))
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(8), "id_bucket"))
    table = local_catalog.create_table("buckets.named", schema, partition_spec=spec)
    rows = four_tasks.range(0, 64, 1, 3).selectExpr(*(f"concat('{name}', id) AS `{name}`" for name in names))
    fp.append(table, rows)
    assert four_tasks.table("local.buckets.named").exceptAll(rows).isEmpty()
    assert table.refresh().inspect.files().num_rows == 8


def test_buckets_of_one_day_are_written_in_several_tasks(four_tasks: SparkSession, local_catalog: SqlCatalog) -> None:
    day = PartitionField(3, 1000, DayTransform(), "day")
    spec = PartitionSpec(day, PartitionField(2, 1001, BucketTransform(8), "name_bucket"))
    files = appended(four_tasks, made(local_catalog, "of_a_day", spec))
    assert files.num_rows == 9
    assert len({path.rpartition("/")[2].rpartition("-")[0] for path in files["file_path"].to_pylist()}) > 1


def test_what_spark_cannot_hash_is_spread_by_the_rest(four_tasks: SparkSession, local_catalog: SqlCatalog) -> None:
    day = PartitionField(3, 1000, DayTransform(), "day")
    spec = PartitionSpec(day, PartitionField(4, 1001, BucketTransform(8), "price_bucket"))
    assert appended(four_tasks, made(local_catalog, "by_price", spec)).num_rows == 8


def test_a_table_sorted_by_bucket_is_spread_in_ranges_of_buckets(
    four_tasks: SparkSession, local_catalog: SqlCatalog
) -> None:
    order = SortOrder(SortField(2, BucketTransform(16)), SortField(1, IdentityTransform()))
    table = made(local_catalog, "sorted", PartitionSpec(), order)
    appended(four_tasks, table)
    ranges = []
    for path in table.inspect.files()["file_path"].to_pylist():
        names = pq.read_table(path.removeprefix("file://"))["name"].to_pylist()
        buckets = [-1 if name is None else apply(BucketTransform(16), StringType(), name) for name in names]
        assert buckets == sorted(buckets)
        ranges.append((buckets[0], buckets[-1]))
    assert len(ranges) > 1
    assert all(one[1] <= other[0] for one, other in pairwise(sorted(ranges)))

"""``format("floeplan")``: batch and streaming reads and writes with Spark's data source lookup."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from floeplan.datasource.io import BATCH_ID, QUERY_ID, FloeplanReader

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.spark.lake import Lake

pytestmark = pytest.mark.spark

NUMBERS = count()
SCHEMA = pa.schema({"k": pa.int64(), "part": pa.string()})


@pytest.fixture
def table(local_catalog: SqlCatalog) -> Table:
    local_catalog.create_namespace_if_not_exists("source")
    made = local_catalog.create_table(f"source.table_{next(NUMBERS)}", SCHEMA)
    made.append(rows_of(range(10)))
    return made


@pytest.fixture
def source_options(lake: Lake, table: Table) -> dict[str, str]:
    return {
        "table": ".".join(table.name()),
        "catalog": "local",
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{lake.database}",
        "catalog.warehouse": lake.warehouse.as_uri(),
    }


def rows_of(numbers: range) -> pa.Table:
    return pa.table({"k": list(numbers), "part": [f"p{n % 3}" for n in numbers]}, schema=SCHEMA)


def keys(frame: DataFrame) -> list[int]:
    return sorted(row["k"] for row in frame.collect())


def test_read_with_options(spark: SparkSession, table: Table, source_options: dict[str, str]) -> None:
    first = table.current_snapshot().snapshot_id  # type: ignore[union-attr]
    table.append(rows_of(range(10, 20)))
    reader = spark.read.format("floeplan").options(**source_options)
    assert keys(reader.load()) == list(range(20))
    assert reader.option("where", "k >= 15").option("columns", "k").load().columns == ["k"]
    assert keys(reader.option("where", "k >= 15").load()) == list(range(15, 20))
    past = spark.read.format("floeplan").options(**source_options).option("snapshot-id", first)
    assert keys(past.load()) == list(range(10))


def test_a_metadata_file_needs_no_catalog(spark: SparkSession, table: Table) -> None:
    assert keys(spark.read.format("floeplan").load(table.metadata_location)) == list(range(10))


def test_temporary_view(spark: SparkSession, source_options: dict[str, str]) -> None:
    options = ", ".join(f"`{name}` '{value}'" for name, value in source_options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW of_floeplan USING floeplan OPTIONS ({options}, where 'k < 3')")
    assert keys(spark.sql("SELECT * FROM of_floeplan WHERE part <> 'p1'")) == [0, 2]
    assert keys(spark.table("of_floeplan")) == [0, 1, 2]


def test_bad_options_are_one_clear_line(spark: SparkSession, source_options: dict[str, str]) -> None:
    with pytest.raises(Exception, match="has no option 'whre'; it has table"):
        spark.read.format("floeplan").options(**source_options, whre="k = 1").load()
    with pytest.raises(Exception, match="no column 'nope'"):
        spark.read.format("floeplan").options(**source_options, columns="nope").load()


def test_append_and_overwrite(spark: SparkSession, table: Table, source_options: dict[str, str]) -> None:
    def write(numbers: range, mode: str, **options: str) -> None:
        frame = spark.createDataFrame(rows_of(numbers)).repartition(2)
        frame.write.format("floeplan").options(**source_options, **options).mode(mode).save()

    write(range(10, 15), "append")
    assert sorted(table.refresh().scan().to_arrow()["k"].to_pylist()) == list(range(15))
    write(range(100, 103), "overwrite", **{"overwrite-where": "k < 12"})
    assert sorted(table.refresh().scan().to_arrow()["k"].to_pylist()) == [12, 13, 14, 100, 101, 102]
    write(range(2), "overwrite")
    assert sorted(table.refresh().scan().to_arrow()["k"].to_pylist()) == [0, 1]


def test_a_failed_write_leaves_the_table_as_it_was(
    spark: SparkSession, table: Table, source_options: dict[str, str]
) -> None:
    before = table.metadata_location
    frame = spark.range(0, 4, 1, 1).selectExpr("id AS k", "IF(id = 3, raise_error('stop'), 'p') AS part")
    with pytest.raises(Exception, match="stop"):
        frame.write.format("floeplan").options(**source_options).mode("append").save()
    assert table.refresh().metadata_location == before


def test_filters_are_not_pushed_because_spark_reuses_filtered_partitions(spark: SparkSession) -> None:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Pushing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "pushing"

        def schema(self) -> str:
            return "id int"

        def reader(self, schema: Any) -> DataSourceReader:
            class Reader(DataSourceReader):
                wanted: Any = None

                def pushFilters(self, filters: Any) -> Any:  # noqa: N802
                    for pushed in filters:
                        if type(pushed).__name__ == "EqualTo":
                            self.wanted = pushed.value
                        yield pushed

                def partitions(self) -> Any:
                    everything = range(100)
                    return [InputPartition(i) for i in ([self.wanted] if self.wanted is not None else everything)]

                def read(self, partition: Any) -> Any:
                    yield (partition.value,)

            return Reader()

    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, "true")
    try:
        spark.dataSource.register(Pushing)
        frame = spark.read.format("pushing").load()
        assert frame.filter("id = 5").count() == 1
        assert frame.count() != 100, "Spark no longer reuses filtered partitions: filters can be pushed down"
    finally:
        spark.conf.set(name, before)
    assert FloeplanReader.pushFilters is DataSourceReader.pushFilters


class TestStreams:
    """Streams on Spark; offsets and batches are also tested without Spark."""

    @pytest.mark.matrix
    def test_appends_arrive_once_over_restarts(
        self, spark: SparkSession, table: Table, source_options: dict[str, str], tmp_path: Path
    ) -> None:
        def stream() -> list[int]:
            rows = spark.readStream.format("floeplan").options(**source_options).load()
            query = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
            query.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()
            return keys(spark.read.schema("k long, part string").parquet(str(tmp_path / "rows")))

        assert stream() == list(range(10))
        table.append(rows_of(range(10, 15)))
        table.append(rows_of(range(15, 20)))
        assert stream() == list(range(20))

    @pytest.mark.matrix
    def test_batches_are_written_once(
        self, spark: SparkSession, table: Table, source_options: dict[str, str], tmp_path: Path
    ) -> None:
        def write() -> list[int]:
            rows = spark.readStream.schema("k long, part string").parquet(str(tmp_path / "in"))
            query = rows.writeStream.format("floeplan").options(**source_options)
            running = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
            running.trigger(availableNow=True).start().awaitTermination()
            return sorted(table.refresh().scan().to_arrow()["k"].to_pylist())

        spark.createDataFrame(rows_of(range(10, 15))).write.parquet(str(tmp_path / "in"))
        assert write() == list(range(15))
        summary = table.current_snapshot().summary.additional_properties  # type: ignore[union-attr]
        assert summary[BATCH_ID] == "0"
        # A query that was killed after the commit, before Spark's checkpoint, repeats the batch.
        for noted in ("0", ".0.crc"):
            (tmp_path / "checkpoint" / "commits" / noted).unlink()
        assert write() == list(range(15))
        assert summary[QUERY_ID] == json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]

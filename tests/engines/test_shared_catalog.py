"""Spark (Iceberg's jar) and PyIceberg see the same tables, which cross-engine tests rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines


def test_pyiceberg_reads_a_table_of_two_specs_written_by_spark(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.shared")
    spark.sql("CREATE TABLE local.shared.evolved (id BIGINT, region STRING) USING iceberg PARTITIONED BY (region)")
    spark.sql("INSERT INTO local.shared.evolved VALUES (1, 'eu'), (2, 'us')")
    spark.sql("ALTER TABLE local.shared.evolved REPLACE PARTITION FIELD region WITH bucket(4, id)")
    spark.sql("INSERT INTO local.shared.evolved VALUES (3, 'eu')")

    table = local_catalog.load_table("shared.evolved")

    assert sorted(table.specs()) == [0, 1]
    assert set(table.inspect.files()["spec_id"].to_pylist()) == {0, 1}
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
    assert table.scan(row_filter="region = 'eu'").to_arrow().num_rows == 2


def test_spark_reads_what_pyiceberg_appends(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    local_catalog.create_namespace_if_not_exists("shared")
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
    local_catalog.create_table("shared.appended", schema=rows.schema).append(rows)

    assert spark.table("local.shared.appended").count() == 3

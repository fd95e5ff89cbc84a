"""Maintenance on Spark's tables: Spark reads what was maintained, and Spark's own maintenance is yielded to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import floeplan as fp
from floeplan.fleet.policy import Policy
from floeplan.fleet.run import MaintainOptions, run_maintenance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

NAME = "db.maintained"


def append_one_by_one(catalog: SqlCatalog, region: str) -> None:
    table = catalog.load_table(NAME)
    for number in range(12):
        fp.append(table, pa.table({"id": [number], "region": [region]}), fast=True)


def test_spark_reads_what_was_maintained_and_its_maintenance_is_yielded_to(
    spark: SparkSession, local_catalog: SqlCatalog
) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.db")
    modes = "'format-version'='2', 'write.delete.mode'='merge-on-read', 'write.distribution-mode'='none'"
    spark.sql(
        f"CREATE TABLE local.{NAME} (id BIGINT, region STRING) USING iceberg PARTITIONED BY (region) "
        f"TBLPROPERTIES ({modes})"
    )
    # Six tasks write a file for each of two regions.
    rows = "SELECT id, IF(id % 2 = 0, 'eu', 'us') FROM range(0, 120, 1, 6)"
    spark.sql(f"INSERT INTO local.{NAME} {rows}")
    spark.sql(f"DELETE FROM local.{NAME} WHERE id % 3 = 0")
    before = sorted(map(tuple, spark.table(f"local.{NAME}").collect()))
    options = MaintainOptions(tables=(NAME,), policy=Policy(runs=None))
    done = run_maintenance(options, catalog=local_catalog, spark=spark)
    compacted = next(one for one in done.tables[0].work if one.work.kind == "compact")
    assert compacted.status.value == "done"
    assert compacted.achieved is not None
    assert (compacted.achieved["files"], compacted.achieved["files_after"]) == (12, 2)
    spark.sql(f"REFRESH TABLE local.{NAME}")
    assert sorted(map(tuple, spark.table(f"local.{NAME}").collect())) == before
    assert spark.sql(f"SELECT count(*) FROM local.{NAME}.delete_files").first()[0] == 0

    append_one_by_one(local_catalog, "eu")
    call = f"CALL local.system.rewrite_data_files(table => '{NAME}', options => map('min-input-files', '2'))"
    spark.sql(f"REFRESH TABLE local.{NAME}")
    assert spark.sql(call).first()["rewritten_data_files_count"] > 0
    append_one_by_one(local_catalog, "us")
    result = run_maintenance(options, catalog=local_catalog, spark=spark)
    assert {one.status.value for one in result.tables[0].work} == {"yielded"}
    assert "rewrote the table" in str(result.left())
    assert result.exit_code == 0

"""CALL and CREATE TABLE have the columns, the effect and the tables of Iceberg's own on Spark."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import count, product
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import floeplan as fp
from floeplan.sql_text.call import PROCEDURES, ProcedureResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

_numbers = count()
LATER = "TIMESTAMP '2100-01-01 00:00:00'"
CALLS = (
    "rewrite_position_delete_files(table => '{t}', options => map('rewrite-all', 'true'))",
    "rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true', 'delete-file-threshold', '1'))",
    "rewrite_data_files(table => '{t}', strategy => 'sort', sort_order => 'zorder(id, region)', "
    "options => map('rewrite-all', 'true'), where => 'region = \\'eu\\'')",
    "rewrite_manifests('{t}')",
    "ancestors_of('{t}')",
    "set_current_snapshot('{t}', {first})",
    "set_current_snapshot('{t}', {last})",
    "rollback_to_snapshot('{t}', {first})",
    "cherrypick_snapshot('{t}', {third})",
    "set_current_snapshot('{t}', {first})",
    "fast_forward('{t}', 'main', 'kept')",
    f"expire_snapshots(table => '{{t}}', older_than => {LATER}, retain_last => 1)",
    "remove_orphan_files(table => '{t}', dry_run => true)",
)


def evolved(spark: SparkSession, name: str) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.calls")
    modes = "'write.delete.mode'='merge-on-read', 'format-version'='2'"
    columns = "(id BIGINT, region STRING, d DATE)"
    spark.sql(f"CREATE TABLE {name} {columns} USING iceberg PARTITIONED BY (months(d)) TBLPROPERTIES ({modes})")
    rows = "SELECT id, IF(id % 2 = 0, 'eu', 'us'), DATE '2024-03-01' FROM range({}, {})"
    for start in range(0, 40, 10):
        spark.sql(f"INSERT INTO {name} {rows.format(start, start + 10)}")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD region")
    spark.sql(f"INSERT INTO {name} {rows.format(40, 50)}")
    spark.sql(f"DELETE FROM {name} WHERE id IN (3, 44)")
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH kept")


def test_procedures_have_the_columns_and_the_effect_of_iceberg(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    number = next(_numbers)
    theirs, ours = f"calls.theirs{number}", f"calls.ours{number}"
    for name in (theirs, ours):
        evolved(spark, f"local.{name}")
    called = set()
    for call in CALLS:
        results = []
        for name, run in ((theirs, spark.sql), (ours, lambda text: fp.sql(spark, text, catalog=local_catalog))):
            loaded = local_catalog.load_table(name)
            snapshots, last = [one.snapshot_id for one in loaded.snapshots()], loaded.metadata.refs["kept"].snapshot_id
            text = call.format(t=name, first=snapshots[0], third=snapshots[min(2, len(snapshots) - 1)], last=last)
            called.add(text.partition("(")[0])
            catalog = "local" if name == theirs else "floeplan"
            results.append(run(f"CALL {catalog}.system.{text}"))
        expected, found = results
        assert isinstance(found, ProcedureResult)
        assert list(found.columns) == expected.columns, call
        assert len(found.rows) == len(expected.collect()), call
        spark.catalog.refreshTable(f"local.{ours}")
        rows = [sorted(map(tuple, spark.table(f"local.{name}").collect())) for name in (theirs, ours)]
        assert rows[0] == rows[1], call
    assert called | {"rollback_to_timestamp"} == set(PROCEDURES)
    time = "TIMESTAMP '2100-01-01 00:00:00'"
    expected = spark.sql(f"CALL local.system.rollback_to_timestamp('{theirs}', {time})")
    found = fp.sql(None, f"CALL floeplan.system.rollback_to_timestamp('{ours}', {time})", catalog=local_catalog)
    assert isinstance(found, ProcedureResult)
    assert list(found.columns) == expected.columns


def test_created_tables_are_those_of_spark(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.calls")
    number = next(_numbers)
    definition = (
        "(id BIGINT NOT NULL, small TINYINT, ts TIMESTAMP, ntz TIMESTAMP_NTZ, d DATE, region STRING COMMENT 'x', "
        "n DECIMAL(9, 2), b BINARY, s STRUCT<a: INT, l: ARRAY<STRUCT<x: DOUBLE>>>, m MAP<STRING, BIGINT>) "
        "USING iceberg PARTITIONED BY (days(ts), bucket(16, id), truncate(3, region), years(d)) "
        "TBLPROPERTIES ('format-version' = '2')"
    )
    theirs, ours = f"calls.theirs{number}", f"calls.ours{number}"
    spark.sql(f"CREATE TABLE local.{theirs} {definition}")
    fp.sql(None, f"CREATE TABLE {ours} {definition}", catalog=local_catalog)
    tables = [local_catalog.load_table(name) for name in (theirs, ours)]
    assert tables[0].schema() == tables[1].schema()
    assert tables[0].spec() == tables[1].spec()
    spark.sql(f"INSERT INTO local.{ours} (id, region) VALUES (1, 'eu')")
    query = f"SELECT id, region, id * 2 AS twice FROM {ours} WHERE id < 10"
    made = fp.sql(spark, f"CREATE TABLE calls.ctas{number} PARTITIONED BY (region) AS {query}", catalog=local_catalog)
    assert (made.to_dict()["rows_inserted"], made.to_dict()["partitioned_by"]) == (1, ["region"])
    assert [tuple(row) for row in spark.table(f"local.calls.ctas{number}").collect()] == [(1, "eu", 2)]
    frame = spark.range(5).selectExpr("id", "current_timestamp() AS at")
    assert fp.create_table(f"calls.frame{number}", frame, catalog=local_catalog).rows_inserted == 5
    assert spark.table(f"local.calls.frame{number}").count() == 5


@pytest.mark.parametrize("changed", ["us", "eu"], ids=["another-partition-has-changed", "the-partition-has-changed"])
def test_dynamic_overwrites_are_picked_as_by_iceberg(
    spark: SparkSession, local_catalog: SqlCatalog, changed: str
) -> None:
    """Overwrites by Spark and by Floeplan, on a branch, each picked by Spark and by Floeplan."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.calls")
    for writer, picker in product(("spark", "floeplan"), repeat=2):
        name = f"calls.replaced{next(_numbers)}"
        spark.sql(f"CREATE TABLE local.{name} (id BIGINT, region STRING) USING iceberg PARTITIONED BY (region)")
        spark.sql(f"INSERT INTO local.{name} VALUES (1, 'eu'), (2, 'us')")
        spark.sql(f"ALTER TABLE local.{name} CREATE BRANCH audit")
        new = spark.sql("SELECT CAST(3 AS BIGINT) AS id, 'eu' AS region")
        if writer == "spark":
            new.writeTo(f"local.{name}.branch_audit").overwritePartitions()
        else:
            fp.overwrite(local_catalog.load_table(name), new, dynamic=True, branch="audit")
        spark.catalog.refreshTable(f"local.{name}")
        spark.sql(f"INSERT INTO local.{name} VALUES (4, '{changed}')")
        call = f"system.cherrypick_snapshot('{name}', {local_catalog.load_table(name).refs()['audit'].snapshot_id})"
        expected = [(2, "us"), (3, "eu"), (4, "us")]
        with nullcontext() if changed == "us" else pytest.raises(Exception, match="partition"):
            if picker == "spark":
                spark.sql(f"CALL local.{call}")
            else:
                fp.sql(None, f"CALL floeplan.{call}", catalog=local_catalog)
        if changed == "eu":
            expected = [(1, "eu"), (2, "us"), (4, "eu")]
        spark.catalog.refreshTable(f"local.{name}")
        assert sorted(map(tuple, spark.table(f"local.{name}").collect())) == expected, (writer, picker)

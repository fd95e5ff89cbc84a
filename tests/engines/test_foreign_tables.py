"""What engines leave in tables and what tables ask for: Spark with Iceberg's own jar reads what became of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.catalog import load_table
from floeplan.errors import UnknownTableError
from floeplan.maintenance.doctor import doctor
from floeplan.transaction.change import Operation
from floeplan.transaction.commit import commit_change
from floeplan.write.data_files import write_data_files
from floeplan.write.target import WriteTarget
from tests.support.tables.commits import Rows, arrow, create_table, equality_delete, fork, live_entries, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

ALL = {"rewrite-all": "true"}


@pytest.fixture(scope="module", autouse=True)
def _namespace(local_catalog: SqlCatalog) -> None:
    local_catalog.create_namespace_if_not_exists("foreign")


def upsert(table: Table, rows: Rows) -> Table:
    """As a streaming writer commits under spec 0: an equality delete of the keys, and their rows."""
    deletes = equality_delete(table, [row[0] for row in rows], 0, rows[0][1], bounds=True)
    data = write_data_files(WriteTarget.of(table, spec_id=0), [arrow(rows)], file_name_token="test")
    return commit_change(table, replace(deletes, operation=Operation.OVERWRITE, added_data=data)).table


def spark_rows(spark: SparkSession, name: str) -> Rows:
    return sorted((row["id"], row["part"]) for row in spark.table(f"local.{name}").collect())


@pytest.mark.parametrize("version", [2, 3])
def test_spark_leaves_no_fewer_delete_files_and_reads_the_same_rows(
    spark: SparkSession, local_catalog: SqlCatalog, version: int
) -> None:
    table = create_table(local_catalog, version, rows=[], name=f"foreign.upserts{version}")
    for first, part in ((0, "a"), (10, "b"), (20, "a"), (5, "a"), (30, "a")):
        table = upsert(table, rows_of(first, first + 10, part))
    other = fork(table, f"foreign.by_spark{version}")
    expected = spark_rows(spark, f"foreign.upserts{version}")
    spark.sql(
        f"CALL local.system.rewrite_data_files(table => 'foreign.by_spark{version}', "
        "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true'))"
    )
    done = fp.rewrite_data_files(table, options=ALL)
    ours, theirs = (int((live_entries(one.refresh()).content != 0).sum()) for one in (table, other))
    assert (done.files_rewritten, ours) == (5, 0)
    assert theirs >= ours
    assert spark_rows(spark, f"foreign.upserts{version}") == expected


def test_spark_reads_repaired_late_deletes(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    table = create_table(local_catalog, rows=[], name="foreign.late")
    for first, part in ((0, "a"), (10, "b"), (20, "a")):
        table = upsert(table, rows_of(first, first + 10, part))
    spark.sql("ALTER TABLE local.foreign.late ADD PARTITION FIELD bucket(4, id)")
    fp.rewrite_data_files(table.refresh(), spec="current", allow_late_equality_deletes=True)
    upsert(table.refresh(), rows_of(0, 5, "a"))
    every = sorted(rows_of(0, 10) + rows_of(10, 20, "b") + rows_of(20, 30))
    assert spark_rows(spark, "foreign.late") == sorted(every + rows_of(0, 5))
    doctor(table.refresh(), repair=True)
    assert spark_rows(spark, "foreign.late") == every
    fp.rewrite_data_files(table.refresh(), options=ALL)
    assert spark_rows(spark, "foreign.late") == every


def test_late_deletes_are_found_where_spark_has_moved_rows(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    """Spark always rewrites files into the current spec, and its snapshots do not say from which one."""
    table = create_table(local_catalog, rows=[], name="foreign.late_by_spark")
    for first, part in ((0, "a"), (10, "b"), (20, "a")):
        table = upsert(table, rows_of(first, first + 10, part))
    spark.sql("ALTER TABLE local.foreign.late_by_spark ADD PARTITION FIELD bucket(4, id)")
    spark.sql(
        "CALL local.system.rewrite_data_files(table => 'foreign.late_by_spark', "
        "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true'))"
    )
    table = upsert(table.refresh(), rows_of(0, 5, "a") + rows_of(40, 45, "a"))
    doubled = spark_rows(spark, "foreign.late_by_spark")
    assert len(doubled) == 40
    for _ in range(2):  # a rewrite keeps what proves it
        (found,) = [one for one in doctor(table.refresh()).findings if one.kind == "late-equality-deletes"]
        assert (found.severity, found.fix, found.spec_id) == ("error", None, 0)
        assert "without deleting 5 rows that moved: delete those rows" in found.message
        fp.rewrite_data_files(table, options={"min-input-files": "100"})
    doctor(table.refresh(), repair=True)
    assert spark_rows(spark, "foreign.late_by_spark") == doubled, "from which spec the rows came is not proven"


def test_metadata_as_the_table_asks_for_is_read_and_continued_by_spark(
    spark: SparkSession, local_catalog: SqlCatalog
) -> None:
    """Compressed, with few old files, and without the partition statistics of expired snapshots."""
    name = "local.foreign.properties"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, part STRING) USING iceberg PARTITIONED BY (part) TBLPROPERTIES ("
        "'write.metadata.compression-codec'='gzip', 'write.metadata.previous-versions-max'='2', "
        "'write.metadata.delete-after-commit.enabled'='true')"
    )
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a')")
    spark.sql("CALL local.system.compute_partition_stats('foreign.properties')")
    table = local_catalog.load_table("foreign.properties")
    assert len(table.metadata.partition_statistics) == 1
    for first in range(10, 50, 10):
        fp.append(table, arrow(rows_of(first, first + 10)))
    fp.expire_snapshots(table.refresh(), older_than_ms=2**53, dry_run=False)
    assert table.refresh().metadata.partition_statistics == []
    spark.sql(f"INSERT INTO {name} VALUES (2, 'b')")
    assert spark_rows(spark, "foreign.properties") == sorted([(1, "a"), (2, "b"), *rows_of(10, 50)])
    folder = Path(table.location().removeprefix("file:").removeprefix("//")) / "metadata"
    files = sorted(path.name for path in folder.glob("*.metadata.json"))
    assert len(files) == 3
    assert all(file.endswith(".gz.metadata.json") for file in files)


def test_a_table_with_a_variant_of_spark_and_a_view(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    name = "local.foreign.variants"
    spark.sql(f"CREATE TABLE {name} (id BIGINT, v VARIANT) USING iceberg TBLPROPERTIES ('format-version'='3')")
    spark.sql(f"INSERT INTO {name} SELECT id, parse_json(concat('{{\"a\": ', id, '}}')) FROM range(0, 100, 1, 1)")
    table = load_table("foreign.variants", local_catalog)
    assert fp.plan_scan(table, "id < 10", columns=["id"]).to_arrow().num_rows == 10
    assert fp.plan_scan(table).to_arrow().column("v").null_count == 0
    assert fp.plan_scan(table, "v IS NULL").summary.files_kept == 0
    assert fp.plan_scan(table, "v IS NOT NULL").to_arrow(columns=["id"]).num_rows == 100
    assert fp.read(spark, table).where("v:a::int >= 90").count() == 10
    assert fp.read(spark, table, where="id < 10", columns=["id"]).count() == 10
    fp.delete(table, "id >= 50", mode="merge-on-read")
    left = spark.sql(f"SELECT id, variant_get(v, '$.a', 'int') AS a FROM {name}").collect()
    assert sorted((row["id"], row["a"]) for row in left) == [(i, i) for i in range(50)]

    spark.sql(f"CREATE VIEW local.foreign.few AS SELECT id FROM {name}")
    with pytest.raises(UnknownTableError, match=r"foreign.few is a view in catalog 'local'"):
        load_table("foreign.few", local_catalog)


def test_stripe_statistics_of_javas_writer_drop_no_row(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    """A NaN begins a row group, whose bounds Java then leaves out; times are around 1970, dates around 1582."""
    name = "local.foreign.stripes"
    spark.sql(
        f"CREATE TABLE {name} (pk BIGINT, b BOOLEAN, f FLOAT, d DOUBLE, day DATE, ts TIMESTAMP_NTZ, tz TIMESTAMP, "
        "short DECIMAL(9, 2), long DECIMAL(38, 10)) USING iceberg TBLPROPERTIES ('write.format.default' = 'orc', "
        "'write.metadata.metrics.default' = 'none')"
    )
    number = "CAST(IF(id = 10000, 'NaN', CAST(id - IF(id > 10000, 50000, 0) AS STRING)) AS {})"
    clock = "make_interval(0, 0, 0, 0, 0, 0, id / 2000)"
    spark.sql(
        f"INSERT INTO {name} SELECT id, true, {number.format('FLOAT')}, CAST(id AS DOUBLE), "
        f"DATE_ADD(DATE '1581-10-01', CAST(id AS INT)), TIMESTAMP_NTZ '1969-12-31 23:59:55.5' + {clock}, "
        f"TIMESTAMP '1969-12-31 23:59:55.5Z' + {clock}, CAST(id / 100 AS DECIMAL(9, 2)), "
        "CAST(id AS DECIMAL(38, 10)) * 12345678901234567 FROM range(0, 20000, 1, 1)"
    )
    table = local_catalog.load_table("foreign.stripes")
    conditions = {
        "NOT b": 0,
        "f < -20000": 1,
        "isnan(f)": 1,
        "d > 19999": 0,
        "d > 19998": 1,
        "day < DATE '1582-10-10'": 1,
        "ts < TIMESTAMP_NTZ '1970-01-01 00:00:00'": 1,
        "ts > TIMESTAMP_NTZ '1970-01-03 00:00:00'": 0,
        "tz >= TIMESTAMP '1970-01-01 00:00:00Z' AND tz < TIMESTAMP '1970-01-01 00:00:00.6Z'": 1,
        "tz > TIMESTAMP '1970-01-01 00:00:07Z'": 0,
        "short > 199.98": 1,
        "short > 199.99": 0,
        "long < 0": 0,
        "long > 246901230000000000000": 1,
    }
    answers = [f"({condition}) IS TRUE AS c{at}" for at, condition in enumerate(conditions)]
    rows = spark.table(name).selectExpr("pk", *answers).toArrow()
    for at, (condition, stripes) in enumerate(conditions.items()):
        plan = fp.plan_scan(table, condition, columns=["pk"])
        assert plan.summary.row_groups_kept == stripes, condition
        expected = sorted(rows["pk"].filter(rows[f"c{at}"]).to_pylist())
        assert sorted(plan.to_arrow()["pk"].to_pylist()) == expected, condition
        assert plan.count() == len(expected), condition


def test_far_timestamps_of_javas_orc_writer_are_read(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    """Nanoseconds since 1970, which pyarrow returns, reach from 1677 to 2262."""
    name = "local.foreign.far"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, ts TIMESTAMP_NTZ, tz TIMESTAMP) USING iceberg TBLPROPERTIES "
        "('write.format.default' = 'orc')"
    )
    times = (
        "'9999-12-31 23:59:59.999999'",
        "'0003-01-01 00:00:00.000001'",
        "'1582-10-04 23:59:59.9999'",
        "'1969-12-31 23:59:59.5'",
        "'2024-02-29 01:02:03.000004'",
    )
    case = " ".join(f"WHEN {at} THEN TIMESTAMP_NTZ {time}" for at, time in enumerate(times))
    spark.sql(
        f"INSERT INTO {name} SELECT id, t, t FROM (SELECT id, CASE id % 6 {case} END t FROM range(0, 2000, 1, 1))"
    )
    table = local_catalog.load_table("foreign.far")
    fp.update(table, {"id": "id + 5000"}, "id < 2", mode="copy-on-write")
    for where in ("true", "ts > TIMESTAMP_NTZ '3000-01-01 00:00:00'", "tz < TIMESTAMP '1600-01-01 00:00:00Z'"):
        ours = fp.plan_scan(table.refresh(), where).to_arrow()
        theirs = spark.sql(f"SELECT * FROM {name} WHERE {where}").toArrow().cast(ours.schema)
        assert ours.sort_by("id").equals(theirs.sort_by("id")), where

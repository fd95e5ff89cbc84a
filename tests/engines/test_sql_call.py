"""CALL and CREATE TABLE have the columns, the effect and the tables of Iceberg's own on Spark."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from itertools import count, product
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import floeplan as fp
from floeplan.errors import BadInputError
from floeplan.sql_text.call import PROCEDURES, ProcedureResult

if TYPE_CHECKING:
    from pyiceberg.table import Table
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
    assert called | {"rollback_to_timestamp", "create_changelog_view"} == set(PROCEDURES)
    time = "TIMESTAMP '2100-01-01 00:00:00'"
    expected = spark.sql(f"CALL local.system.rollback_to_timestamp('{theirs}', {time})")
    found = fp.sql(None, f"CALL floeplan.system.rollback_to_timestamp('{ours}', {time})", catalog=local_catalog)
    assert isinstance(found, ProcedureResult)
    assert list(found.columns) == expected.columns


CHANGES = (
    "INSERT INTO {t} SELECT id, IF(id % 2 = 0, 'eu', 'us'), CAST(id AS DOUBLE) FROM range(10)",
    "INSERT INTO {t} VALUES (20, 'eu', -0.0D), (21, 'eu', 0.0D), (22, NULL, double('NaN')), "
    "(23, 'us', 1), (23, 'us', 1)",
    "UPDATE {t} SET n = n + 100 WHERE id IN (3, 4)",  # copy-on-write: the other rows of the file are carried over
    "DELETE FROM {t} WHERE id IN (5, 22)",
    "INSERT INTO {t} VALUES (5, 'us', 5), (22, NULL, double('NaN')), (30, 'new', 1)",
    "UPDATE {t} SET n = n - 100 WHERE id IN (3)",
    "MERGE INTO {t} USING (SELECT 6L AS id UNION ALL SELECT 31L) s ON {t}.id = s.id "
    "WHEN MATCHED THEN UPDATE SET region = 'mx' WHEN NOT MATCHED THEN INSERT (id, region, n) VALUES (s.id, 'mx', 0)",
    "UPDATE {t} SET n = IF(n = 0, 0.0D, -0.0D) WHERE id = 20",
    "DELETE FROM {t} WHERE id = 30",
    "CALL local.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))",
    "DELETE FROM {t} WHERE id = 8",
)


def changed_table(spark: SparkSession, catalog: SqlCatalog, mode: str) -> Table:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.calls")
    name = f"calls.changes{next(_numbers)}"
    modes = ", ".join(f"'write.{change}.mode'='{mode}'" for change in ("delete", "update", "merge"))
    spark.sql(
        f"CREATE TABLE local.{name} (id BIGINT NOT NULL, region STRING, n DOUBLE) USING iceberg "
        f"PARTITIONED BY (truncate(1, region)) TBLPROPERTIES ({modes}, 'format-version'='2')"
    )
    for change in CHANGES:
        spark.sql(change.format(t=name if change.startswith("CALL") else f"local.{name}"))
    spark.sql(f"ALTER TABLE local.{name} SET IDENTIFIER FIELDS id")
    return catalog.load_table(name)


def view_rows(spark: SparkSession, name: str, table: Table, *, labels: bool = True) -> Counter[str]:
    """The rows of a view; of a snapshot its number, which is that in a table with the same changes."""
    numbers = {one.snapshot_id: number for number, one in enumerate(table.snapshots())}
    rows = [row.asDict() for row in spark.table(name).collect()]
    for row in rows:
        row["_commit_snapshot_id"] = numbers[row["_commit_snapshot_id"]]
        if not labels:
            del row["_commit_snapshot_id"], row["_change_ordinal"]
    return Counter(repr(sorted(row.items())) for row in rows)


def test_the_changelog_view_has_the_rows_of_iceberg(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    table = changed_table(spark, local_catalog, "copy-on-write")
    name, history = ".".join(table.name()), table.snapshots()
    third, last = history[2], history[-1]
    spans = (
        "",
        f"'start-snapshot-id', '{third.snapshot_id}'",
        f"'start-snapshot-id', '{history[1].snapshot_id}', 'end-snapshot-id', '{history[6].snapshot_id}'",
        f"'start-timestamp', '{third.timestamp_ms}'",
        f"'start-timestamp', '{third.timestamp_ms - 1}', 'end-timestamp', '{history[6].timestamp_ms}'",
        f"'start-timestamp', '{last.timestamp_ms + 1}'",
        "'end-timestamp', '1000'",
    )
    more = ("", ", net_changes => true", ", identifier_columns => array('id', 'n')", ", compute_updates => true")
    kinds = set[str]()
    for span, what in (*product(spans[:3], more), *product(spans[3:], more[:1])):
        if what.endswith("compute_updates => true") and not span:
            continue  # two rows of the id 23 were inserted, so that the id does not identify rows there
        arguments = f"(table => '{name}', options => map({span}){what}"
        spark.sql(f"CALL local.system.create_changelog_view{arguments}, changelog_view => 'theirs')")
        made = fp.sql(
            spark,
            f"CALL floeplan.system.create_changelog_view{arguments}, changelog_view => 'ours')",
            catalog=local_catalog,
        )
        assert isinstance(made, ProcedureResult)
        assert made.rows == (("ours",),)
        assert spark.table("ours").columns == spark.table("theirs").columns
        expected = view_rows(spark, "theirs", table)
        assert view_rows(spark, "ours", table) == expected, (span, what)
        kinds |= {kind for row in expected for kind in ("UPDATE_BEFORE", "UPDATE_AFTER", "DELETE") if kind in row}
    assert kinds == {"UPDATE_BEFORE", "UPDATE_AFTER", "DELETE"}
    # By default and in Iceberg's order.
    positions = f"('{name}', 'ours', map(), true, array('id', 'n'))"
    for arguments in (f"('{name}')", positions):
        results = [
            run(f"CALL {catalog}.system.create_changelog_view{arguments}")
            for catalog, run in (
                ("local", spark.sql),
                ("floeplan", lambda text: fp.sql(spark, text, catalog=local_catalog)),
            )
        ]
        assert [tuple(row) for row in results[0].collect()] == list(results[1].rows)
    spark.sql(f"DELETE FROM local.{name} WHERE id = 23")
    for text, message in (
        ("compute_updates => true, net_changes => true", "exclude each other"),
        ("identifier_columns => array('nope')", "has no column nope"),
        ("identifier_columns => 'id'", "must be an array"),
        ("options => map('start-snapshot-id', '1', 'start-timestamp', '1')", "exclude each other"),
        ("options => map('start-timestamp', '2', 'end-timestamp', '1')", "is after"),
        ("options => map('since', '2')", "option since"),
    ):
        call = f"CALL floeplan.system.create_changelog_view(table => '{name}', {text})"
        with pytest.raises(BadInputError, match=message):
            fp.sql(spark, call, catalog=local_catalog)
    fp.sql(spark, f"CALL floeplan.system.create_changelog_view('{name}', 'ours', NULL, true)", catalog=local_catalog)
    with pytest.raises(Exception, match="deletes several rows with the same id"):
        spark.table("ours").collect()


def test_the_changelog_view_applies_deletes(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    """Iceberg's procedure refuses delete files; with them the changes are those of the same changes without."""
    theirs, ours = (changed_table(spark, local_catalog, mode) for mode in ("copy-on-write", "merge-on-read"))
    options = (", compute_updates => true, identifier_columns => array('id', 'n')", ", net_changes => true")
    for what in options:
        for table, catalog in ((theirs, "local"), (ours, "floeplan")):
            start = table.snapshots()[1].snapshot_id
            arguments = f"options => map('start-snapshot-id', '{start}'), changelog_view => '{catalog}'{what}"
            text = f"CALL {catalog}.system.create_changelog_view(table => '{'.'.join(table.name())}', {arguments})"
            if table is ours:
                fp.sql(spark, text, catalog=local_catalog)
            else:
                spark.sql(text)
        # Net changes are labelled with the last snapshot that wrote a row, and only one of the tables wrote it again.
        labels = "net_changes" not in what
        expected = view_rows(spark, "local", theirs, labels=labels)
        assert view_rows(spark, "floeplan", ours, labels=labels) == expected, what
        assert expected


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

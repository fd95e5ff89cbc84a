"""Tables that migrations and years of schema changes leave: Floeplan reads and changes the rows that Spark reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.maintenance.doctor import doctor
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions
from tests.support.spark import iceberg_java as java

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.engines, pytest.mark.matrix]

ALL = {"rewrite-all": "true"}
ALLOW = {"allow_late_equality_deletes": True}
"""Tables have equality deletes under old specs, and no writer that goes on adding them."""
Rows = dict[int, tuple[Any, ...]]


def create(spark: SparkSession, name: str, columns: str, properties: Mapping[str, str], partition: str = "") -> None:
    settings = {"write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"} | dict(properties)
    text = ", ".join(f"'{key}' = '{value}'" for key, value in settings.items())
    partitioned = f"PARTITIONED BY ({partition})" if partition else ""
    spark.sql(f"CREATE TABLE {name} ({columns}) USING iceberg {partitioned} TBLPROPERTIES ({text})")


def migrated(format_: str) -> Callable[..., None]:
    """Files of Hive without field ids, read by name mapping, then renamed, promoted and added columns."""

    def build(spark: SparkSession, name: str, version: int, folder: Path) -> None:
        source = folder / f"hive_{format_}_{version}"
        rows = (
            "SELECT CAST(id AS INT) AS id, CAST(id % 3 AS INT) AS k, CAST(id AS FLOAT) AS f, concat('s', id) AS s, "
            "named_struct('x', CAST(id AS INT), 'y', concat('y', id)) AS st, map('a', CAST(id AS INT)) AS m, "
            "array(named_struct('z', CAST(id AS INT))) AS l FROM range(20)"
        )
        spark.sql(rows).repartition(2, "id").write.format(format_).save(str(source))
        columns = (
            "id INT, k INT, f FLOAT, s STRING, st STRUCT<x: INT, y: STRING>, m MAP<STRING, INT>, "
            "l ARRAY<STRUCT<z: INT>>"
        )
        create(spark, name, columns, {"format-version": str(version)})
        call = f"CALL local.system.add_files(table => '{name}', source_table => '`{format_}`.`{source}`')"
        spark.sql(call)
        spark.sql(f"DELETE FROM {name} WHERE id IN (3, 7)")
        for change in (
            "RENAME COLUMN s TO text",
            "RENAME COLUMN st.x TO first",
            "ALTER COLUMN id TYPE BIGINT",
            "ALTER COLUMN k TYPE BIGINT",
            "ALTER COLUMN f TYPE DOUBLE",
            "ALTER COLUMN st.first TYPE BIGINT",
            "ALTER COLUMN l.element.z TYPE BIGINT",
            "ADD COLUMN st.new STRING",
            "ADD COLUMN extra INT",
            "ADD PARTITION FIELD bucket(2, k)",
        ):
            spark.sql(f"ALTER TABLE {name} {change}")
        spark.sql(
            f"INSERT INTO {name} SELECT id, id % 3, CAST(id AS DOUBLE), concat('t', id), "
            "named_struct('first', id, 'y', 'q', 'new', 'n'), map('b', 1), array(named_struct('z', id)), 5 "
            "FROM range(20, 30)"
        )
        spark.sql(f"DELETE FROM {name} WHERE id IN (4, 25)")

    return build


def hive_partitions(format_: str) -> Callable[..., None]:
    """Files without their partition column, one of them of the null partition, in a table whose spec evolves."""

    def build(spark: SparkSession, name: str, version: int, folder: Path) -> None:
        source = folder / f"partitions_{format_}_{version}"
        rows = spark.sql(
            "SELECT id, concat('s', id) AS s, IF(id % 4 = 3, NULL, CAST(id % 4 AS INT)) AS k, "
            "date_add(DATE '1969-12-30', CAST(id % 4 AS INT)) AS d FROM range(20)"
        )
        rows.repartition(1).write.format(format_).partitionBy("k", "d").save(str(source))
        create(spark, name, "id BIGINT, s STRING, k INT, d DATE", {"format-version": str(version)}, "k, d")
        spark.sql(f"CALL local.system.add_files(table => '{name}', source_table => '`{format_}`.`{source}`')")
        spark.sql(f"DELETE FROM {name} WHERE id IN (3, 5, 9)")
        for change in (
            "ALTER COLUMN k TYPE BIGINT",
            "RENAME COLUMN k TO key",
            "REPLACE PARTITION FIELD d WITH month(d)",
            "DROP PARTITION FIELD k",
        ):
            spark.sql(f"ALTER TABLE {name} {change}")
        spark.sql(f"INSERT INTO {name} SELECT id, 't', id, DATE '1969-12-31' FROM range(20, 26)")
        table = java.load_table(spark, name)
        beside = next(t.file().location() for t in java.planned_tasks(spark, table) if t.file().specId() == 0)
        java.delete_equal(spark, table, [{"s": "s0"}, {"s": "s4"}, {"s": "s7"}], beside=beside)
        java.delete_equal(spark, table, [{"key": 22}, {"key": None}], spec_id=0, beside=beside)

    return build


def mixed_deletes(delete_format: str) -> Callable[..., None]:
    """Position deletes of partitions under two specs in another format, then an upgrade and deletion vectors."""

    def build(spark: SparkSession, name: str, version: int, folder: Path) -> None:
        properties = {
            "format-version": "2",
            "write.delete.format.default": delete_format,
            "write.delete.granularity": "partition",
        }
        create(spark, name, "id BIGINT, k BIGINT, d DATE", properties, "k")
        for first in (0, 10):
            spark.sql(
                f"INSERT INTO {name} SELECT id, id % 2, date_add(DATE '1969-12-25', CAST(id AS INT)) "
                f"FROM range({first}, {first + 10})"
            )
        spark.sql(f"DELETE FROM {name} WHERE id IN (1, 2, 11, 12)")
        spark.sql(f"ALTER TABLE {name} REPLACE PARTITION FIELD k WITH month(d)")
        spark.sql(f"INSERT INTO {name} SELECT id, id % 2, DATE '1969-12-30' FROM range(20, 30)")
        spark.sql(f"DELETE FROM {name} WHERE id IN (5, 15, 21, 22)")
        if version == 3:
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '3')")
            spark.sql(f"DELETE FROM {name} WHERE id IN (6, 23)")
            spark.sql(f"INSERT INTO {name} SELECT id, id % 2, DATE '1970-01-30' FROM range(30, 33)")

    return build


def equality_on_changed_columns(spark: SparkSession, name: str, version: int, folder: Path) -> None:
    """Keys of columns that were promoted, renamed and dropped since, with nulls, NaN and zeros of both signs."""
    columns = "id BIGINT, k INT, s STRING, x DOUBLE, gone INT"
    create(spark, name, columns, {"format-version": str(version)})
    spark.sql(
        f"INSERT INTO {name} VALUES (0, 0, 'a', 0.0D, 0), (1, 1, NULL, -0.0D, 1), (2, NULL, 'b', double('NaN'), 2), "
        "(3, 3, 'c', 1.5D, 3), (4, 4, NULL, NULL, NULL), (5, 5, 'e', 2.5D, 5), (6, NULL, NULL, double('-inf'), 6), "
        "(7, 7, 'g', 3.5D, 7), (8, 8, 'h', -0.0D, 8), (9, 9, 'i', double('NaN'), NULL)"
    )
    table = java.load_table(spark, name)
    java.delete_equal(spark, table, [{"x": -0.0}, {"x": math.nan}])
    java.delete_equal(spark, table, [{"k": None, "s": None}])
    java.delete_equal(spark, table, [{"gone": 3}, {"gone": None}])
    java.delete_equal(spark, table, [{"k": 5}])
    for change in ("ALTER COLUMN k TYPE BIGINT", "RENAME COLUMN s TO text", "DROP COLUMN gone", "ADD COLUMN new INT"):
        spark.sql(f"ALTER TABLE {name} {change}")
    spark.sql(f"INSERT INTO {name} SELECT id, id, 'new', 0.0D, 3 FROM range(10, 15)")
    table.refresh()
    java.delete_equal(spark, table, [{"k": 12}, {"k": 7}])
    java.delete_equal(spark, table, [{"new": 4}])


def defaults(spark: SparkSession, name: str, version: int, folder: Path) -> None:
    """Columns with initial defaults, one of them a key of equality deletes that apply to files without it."""
    create(spark, name, "id BIGINT, s STRUCT<a: INT>", {"format-version": "3"})
    spark.sql(f"INSERT INTO {name} SELECT id, named_struct('a', CAST(id AS INT)) FROM range(6)")
    table = java.load_table(spark, name)
    java.add_columns(spark, table, {"n": 7, "t": "x"})
    spark.sql(f"REFRESH TABLE {name}")
    spark.sql(f"INSERT INTO {name} SELECT id, NULL, CAST(id AS INT), IF(id = 8, NULL, 'y') FROM range(6, 10)")
    table.refresh()
    java.delete_equal(spark, table, [{"id": 1, "n": 7}, {"id": 2, "n": 8}])
    java.delete_equal(spark, table, [{"t": None}])
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD n")
    spark.sql(f"INSERT INTO {name} VALUES (20, NULL, 7, 'z'), (21, NULL, NULL, NULL)")


TABLES: dict[str, tuple[Callable[..., None], tuple[int, ...], tuple[str, ...]]] = {
    "migrated parquet": (
        migrated("parquet"),
        (2, 3),
        ("k = 1", "f > 10.5", "text = 's5'", "st.first < 6", "extra IS NULL"),
    ),
    "migrated orc": (migrated("orc"), (2,), ("k = 1", "f > 10.5", "text = 's5'", "st.first < 6", "extra IS NULL")),
    "hive parquet": (
        hive_partitions("parquet"),
        (2, 3),
        ("key = 1", "key IS NULL", "d < DATE '1970-01-01'", "key > 0"),
    ),
    "hive orc": (hive_partitions("orc"), (2,), ("key = 1", "key IS NULL", "d < DATE '1970-01-01'", "key > 0")),
    "avro deletes": (mixed_deletes("avro"), (2, 3), ("d < DATE '1970-01-01'", "k = 1 AND id > 4", "id > 22")),
    "orc deletes": (mixed_deletes("orc"), (2, 3), ("d < DATE '1970-01-01'", "k = 1 AND id > 4", "id > 22")),
    "parquet deletes": (mixed_deletes("parquet"), (2, 3), ("d < DATE '1970-01-01'", "k = 1", "id > 22")),
    "equality deletes": (equality_on_changed_columns, (2, 3), ("k > 3", "x = 0", "text IS NULL", "new IS NULL")),
    "defaults": (defaults, (3,), ("n = 7", "t = 'x'", "n > 7", "t IS NULL", "s.a > 2")),
}
CASES = [(name, version) for name, (_, versions, _) in TABLES.items() for version in versions]
CHANGES: tuple[tuple[str, Callable[[Table], object], Callable[[Rows], Rows]], ...] = (
    ("delete", lambda table: fp.delete(table, "id = 8", mode="merge-on-read", **ALLOW), lambda rows: without(rows, 8)),
    (
        "delete by file",
        lambda table: fp.delete(table, "id = 0", mode="copy-on-write", **ALLOW),
        lambda rows: without(rows, 0),
    ),
    (
        "update",
        lambda table: fp.update(table, {"id": "id + 100"}, "id IN (1, 10, 20)", mode="merge-on-read", **ALLOW),
        lambda rows: shifted(rows, 1, 10, 20),
    ),
    (
        "update by file",
        lambda table: fp.update(table, {"id": "id + 100"}, "id IN (3, 13, 21)", mode="copy-on-write", **ALLOW),
        lambda rows: shifted(rows, 3, 13, 21),
    ),
    (
        "merge",
        lambda table: (
            fp.merge(table, pa.table({"number": [5, 14, 24]}), "id = number", **ALLOW)
            .when_matched_update({"id": "id + 100"})
            .execute()
        ),
        lambda rows: shifted(rows, 5, 14, 24),
    ),
    ("rewrite", lambda table: fp.rewrite_data_files(table, options=ALL), dict),
    ("sort", lambda table: fp.rewrite_data_files(table, strategy="sort", by=["id DESC"], options=ALL), dict),
    ("upgrade", lambda table: fp.upgrade_spec(table, options=UpgradeOptions(**ALLOW)), dict),
)


def without(rows: Rows, number: int) -> Rows:
    return {key: row for key, row in rows.items() if key != number}


def shifted(rows: Rows, *numbers: int) -> Rows:
    return {key + 100 if key in numbers else key: row for key, row in rows.items()}


def plain(name: str, found: Any) -> Any:
    """Maps of Arrow are lists of pairs, structs dictionaries in the order of their fields."""
    if name == "m" and found is not None:
        return tuple(sorted(dict(found).items()))
    if isinstance(found, dict):
        return tuple(plain("", one) for one in found.values())
    if isinstance(found, list):
        return tuple(plain("", one) for one in found)
    if isinstance(found, float):
        return repr(found)  # NaN equals itself, and zeros keep their sign
    return tuple(plain("", one) for one in found) if hasattr(found, "asDict") else found


def spark_rows(spark: SparkSession, name: str, where: str = "true") -> Rows:
    spark.sql(f"REFRESH TABLE {name}")
    found = spark.sql(f"SELECT * FROM {name} WHERE {where}").collect()
    rows = {row["id"]: tuple(plain(n, row[n]) for n in row.__fields__ if n != "id") for row in found}
    assert len(rows) == len(found), "ids are unique"
    return rows


def our_rows(table: Table, where: str | None = None) -> Rows:
    found = fp.plan_scan(table.refresh(), where).to_arrow().to_pylist()
    rows = {row["id"]: tuple(plain(n, one) for n, one in row.items() if n != "id") for row in found}
    assert len(rows) == len(found), "ids are unique"
    return rows


@pytest.mark.parametrize(("name", "version"), CASES)
def test_rows_are_those_of_spark_and_survive_every_change(
    spark: SparkSession, local_catalog: SqlCatalog, tmp_path: Path, name: str, version: int
) -> None:
    build, _, predicates = TABLES[name]
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.odd")
    identifier = f"odd.{name.replace(' ', '_')}_{version}"
    build(spark, f"local.{identifier}", version, tmp_path)
    table = fp.load_table(identifier, local_catalog)
    expected = spark_rows(spark, f"local.{identifier}")
    assert our_rows(table) == expected
    for where in predicates:
        assert our_rows(table, where) == spark_rows(spark, f"local.{identifier}", where), where
        ours = fp.read(spark, table.refresh(), where=where, columns=["id"]).collect()
        assert sorted(row["id"] for row in ours) == sorted(our_rows(table, where)), where
    assert not [finding for finding in doctor(table.refresh()).findings if finding.severity == "error"]
    for what, change, model in CHANGES:
        change(table.refresh())
        expected = model(expected)
        assert our_rows(table) == expected, what
        assert spark_rows(spark, f"local.{identifier}") == expected, what
    assert not [finding for finding in doctor(table.refresh()).findings if finding.severity == "error"]

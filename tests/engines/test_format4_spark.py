"""Tables of format 4 that Spark with Iceberg's jar and Floeplan change in turns: each reads what the other wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.maintenance.expire import expire_snapshots
from floeplan.maintenance.rewrite_manifests import rewrite_manifests
from floeplan.scan.plan import plan_scan
from floeplan.snapshot.reader import SnapshotReader

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

NAME = "local.turns.events"
COLUMNS = "id bigint, region string, ts timestamp, price decimal(9, 2), key binary"
ROW = "({0}, '{1}', TIMESTAMP '2024-03-0{2} 10:00:00', {0}.25, X'0{2}')"


def rows(first: int, last: int) -> str:
    return ", ".join(ROW.format(number, ("eu", "us")[number % 2], number % 3 + 1) for number in range(first, last))


def manifests(table: Table) -> list[Path]:
    found = SnapshotReader.open(table, table.current_snapshot()).manifests.path.to_pylist()
    return [Path(path.removeprefix("file:").replace("//", "/")) for path in found]


def described(fields: Any) -> list[Any]:
    """Names, ids, types and nullability, however Arrow represents them."""
    found = []
    for field in fields:
        type_: Any = str(field.type).removeprefix("large_")
        if pa.types.is_struct(field.type):
            type_ = described(field.type)
        elif pa.types.is_map(field.type):
            type_ = described([field.type.key_field, field.type.item_field])
        elif pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
            type_ = described([field.type.value_field])
        found.append((field.name, field.metadata.get(b"PARQUET:field_id"), type_, field.nullable))
    return found


def test_spark_and_floeplan_change_a_table_in_turns(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    def change(statement: str) -> None:
        spark.sql(statement.replace("{t}", NAME))

    def agreed(count: int) -> Table:
        """The table, whose rows Spark and Floeplan read alike."""
        table = fp.load_table("turns.events", local_catalog)
        assert table.metadata.format_version == 4
        ours = plan_scan(table, "id >= 0").to_arrow().sort_by("id")
        theirs = spark.sql(f"SELECT * FROM {NAME} ORDER BY id").toArrow()
        assert len(ours) == count
        assert [ours[name].to_pylist() for name in ("id", "region", "price", "key")] == [
            theirs[name].to_pylist() for name in ("id", "region", "price", "key")
        ]
        where = "region = 'eu' AND ts >= TIMESTAMP '2024-03-02'"
        on_spark = fp.read(spark, table, where=where).select("id").orderBy("id").toArrow()
        assert on_spark == spark.sql(f"SELECT id FROM {NAME} WHERE {where} ORDER BY id").toArrow()
        return table

    change("CREATE NAMESPACE IF NOT EXISTS local.turns")
    change(f"CREATE TABLE {{t}} ({COLUMNS}) USING iceberg TBLPROPERTIES ('format-version' = '4')")
    change(f"INSERT INTO {{t}} VALUES {rows(0, 10)}")
    change("ALTER TABLE {t} ADD PARTITION FIELD region")
    change("ALTER TABLE {t} ADD PARTITION FIELD truncate(100, price)")
    change(f"INSERT INTO {{t}} VALUES {rows(10, 20)}")
    table = agreed(20)
    theirs = {str(described(pq.ParquetFile(path).schema_arrow)) for path in manifests(table)}

    fp.append(table, plan_scan(table, "id < 5").to_arrow())
    agreed(25)
    fp.delete(table, where="id = 12", mode="merge-on-read")
    change("DELETE FROM {t} WHERE id = 13")
    table = agreed(23)
    fp.update(table, set={"region": "'ap'"}, where="id IN (1, 15)")
    change("UPDATE {t} SET region = 'xx' WHERE id = 16")
    table = agreed(23)
    fp.rewrite_data_files(table, options={"rewrite-all": "true"})
    fp.upgrade_spec(table)
    rewrite_manifests(table)
    table = agreed(23)
    ours = {str(described(pq.ParquetFile(path).schema_arrow)) for path in manifests(table)}
    assert theirs & ours, "no manifest has the schema of one that Iceberg wrote"
    change(f"INSERT INTO {{t}} VALUES {rows(30, 32)}")
    change(f"CALL local.system.rewrite_manifests('{NAME}')")
    change(f"CALL local.system.rewrite_data_files(table => '{NAME}', options => map('rewrite-all', 'true'))")
    table = agreed(25)
    assert expire_snapshots(table, older_than_ms=2**60, retain_last=1, dry_run=False).snapshots_after == 1
    table = agreed(25)
    assert not [finding for finding in fp.doctor(table).findings if finding.severity == "error"]
    ids = spark.sql(f"SELECT count(DISTINCT _row_id), count(*) FROM {NAME}").collect()[0]
    assert ids[0] == ids[1] == 25


def test_a_table_that_floeplan_upgraded_goes_on_in_spark(spark: SparkSession, local_catalog: SqlCatalog) -> None:
    name = "local.turns.upgraded"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.turns")
    spark.sql(f"CREATE TABLE {name} (id bigint) USING iceberg TBLPROPERTIES ('format-version' = '1')")
    for to in (2, 3, 4):
        spark.sql(f"INSERT INTO {name} VALUES ({to})")
        table = fp.load_table("turns.upgraded", local_catalog)
        assert fp.upgrade_format(table, to).from_version == to - 1
        fp.append(table, pa.table({"id": [10 * to]}))
        spark.sql(f"DELETE FROM {name} WHERE id = {to}")
        found = spark.sql(f"SELECT id FROM {name} ORDER BY id").toArrow()["id"].to_pylist()
        assert found == [10 * number for number in range(2, to + 1)]
    table = fp.load_table("turns.upgraded", local_catalog)
    assert {path.suffix for path in manifests(table)} == {".avro", ".parquet"}
    assert sorted(plan_scan(table).to_arrow()["id"].to_pylist()) == [20, 30, 40]

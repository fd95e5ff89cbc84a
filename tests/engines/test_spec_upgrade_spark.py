"""Spark with Iceberg's own jar on tables whose files were moved to another spec by metadata only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from floeplan.maintenance.doctor import doctor
from floeplan.maintenance.rewrite_manifests import rewrite_manifests
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions, upgrade_spec
from floeplan.transaction.commit import commit_change
from tests.support.spark.matrix import Matrix, MatrixTable, interpreted, parametrized
from tests.support.tables.commits import delete_change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

TABLES = (
    "evolving_v1",
    "evolving_v2_position_file",
    "evolving_v2_equality",
    "evolving_v2_to_v3_vectors",
    "voids_v1_to_v3_vectors",
    "imported_v2_position_file",
)
ALONE = UpgradeOptions(allow_coarser=True, metadata_only=True, allow_late_equality_deletes=True)


def contents(table: MatrixTable) -> list[str]:
    """Every row as text, since NaN does not equal itself."""
    with interpreted(table.spark):
        return sorted(map(repr, table.rows().to_pylist()))


@pytest.mark.parametrize("name", parametrized(TABLES))
def test_spark_reads_the_same_rows_after_every_move(matrix: Matrix, local_catalog: SqlCatalog, name: str) -> None:
    """Move to every spec of the table in turn, then cluster manifests; Spark reads the snapshots in one query."""
    table = matrix.fork(name)
    rows = contents(table)
    moved, snapshots = 0, {}
    for spec_id in sorted(local_catalog.load_table(table.identifier).metadata.specs()):
        options = replace(ALONE, to=spec_id)
        result = upgrade_spec(local_catalog.load_table(table.identifier), options=options)
        moved += result.files_by_metadata
        snapshots[f"the move to spec {spec_id}"] = current_snapshot_id(local_catalog, table)
    rewrite_manifests(local_catalog.load_table(table.identifier))
    snapshots["manifests were clustered"] = current_snapshot_id(local_catalog, table)
    for after, found in contents_of(table, snapshots).items():
        assert found == rows, f"after {after}"
    assert doctor(local_catalog.load_table(table.identifier)).healthy
    assert moved or name == "evolving_v2_equality"


def current_snapshot_id(catalog: SqlCatalog, table: MatrixTable) -> int:
    snapshot = catalog.load_table(table.identifier).current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def contents_of(table: MatrixTable, snapshots: Mapping[str, int]) -> dict[str, list[str]]:
    """The rows of several snapshots."""
    queries = [f"SELECT '{of}' AS of, * FROM {table.name} VERSION AS OF {at}" for of, at in snapshots.items()]
    with interpreted(table.spark):
        answered = table.spark.sql(" UNION ALL ".join(queries)).toArrow().to_pylist()
    found: dict[str, list[str]] = {of: [] for of in snapshots}
    for row in answered:
        found[row.pop("of")].append(repr(row))
    return {of: sorted(rows) for of, rows in found.items()}


@pytest.mark.parametrize(
    "name", parametrized(["evolving_v1", "evolving_v2_position_partition", "evolving_v2_to_v3_vectors"])
)
def test_all_files_end_under_the_current_spec(matrix: Matrix, local_catalog: SqlCatalog, name: str) -> None:
    table = matrix.fork(name)
    rows = contents(table)
    result = upgrade_spec(local_catalog.load_table(table.identifier), options=UpgradeOptions(allow_coarser=True))
    current = local_catalog.load_table(table.identifier).metadata.default_spec_id
    data = table.metadata("data_files")
    assert set(data["spec_id"].to_pylist()) == {current}
    assert result.files_left == 0
    assert contents(table) == rows


@pytest.fixture
def by_region(spark: SparkSession, local_catalog: SqlCatalog) -> str:
    """Files of one region each from before the table was partitioned by region, and one from after."""
    name = "local.moves.regions"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.moves")
    spark.sql(f"CREATE OR REPLACE TABLE {name} (id BIGINT, region STRING) USING iceberg")
    for at, region in enumerate(("eu", "us", "eu", "ap")):
        spark.sql(f"INSERT INTO {name} SELECT id + {at * 100}, '{region}' FROM range(0, 100, 1, 1)")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD region")
    spark.sql(f"INSERT INTO {name} SELECT id + 400, 'us' FROM range(0, 100, 1, 1)")
    return name


def exchanges(spark: SparkSession, name: str) -> int:
    """Exchanges in the plan of a group-by on region with storage-partitioned joins enabled."""
    settings = {
        "spark.sql.sources.v2.bucketing.enabled": "true",
        "spark.sql.iceberg.planning.preserve-data-grouping": "true",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.requireAllClusterKeysForCoPartition": "false",
    }
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        query = spark.sql(f"SELECT region, count(*) AS n FROM {name} GROUP BY region")
        counted = {row["region"]: row["n"] for row in query.collect()}
        assert counted == {"eu": 200, "us": 200, "ap": 100}
        return str(query._jdf.queryExecution().executedPlan().toString()).count("Exchange hashpartitioning")
    finally:
        for key, value in before.items():
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)


def test_a_grouping_by_partition_needs_no_exchange_after_the_move(
    spark: SparkSession, local_catalog: SqlCatalog, by_region: str
) -> None:
    assert exchanges(spark, by_region) == 1
    result = upgrade_spec(local_catalog.load_table("moves.regions"), options=ALONE)
    assert (result.files_by_metadata, result.files_left) == (4, 0)
    assert exchanges(spark, by_region) == 0
    spark.sql(f"CALL local.system.expire_snapshots(table => '{by_region}', older_than => now(), retain_last => 1)")
    assert exchanges(spark, by_region) == 0


def test_spark_changes_a_moved_table(spark: SparkSession, local_catalog: SqlCatalog, by_region: str) -> None:
    """Both kinds of deletes, a merge, and Iceberg's own rewrites."""
    start = spark.sql(f"SELECT snapshot_id FROM {by_region}.snapshots ORDER BY committed_at DESC").first()
    assert start is not None
    upgrade_spec(local_catalog.load_table("moves.regions"), options=ALONE)
    spark.sql(f"ALTER TABLE {by_region} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    spark.sql(f"DELETE FROM {by_region} WHERE id % 100 = 7")
    spark.sql(f"UPDATE {by_region} SET region = 'xx' WHERE id = 8")
    spark.sql(
        f"MERGE INTO {by_region} t USING (SELECT 9 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (id, region) VALUES (s.id, 'new')"
    )
    expected = sorted(set(range(500)) - {7, 107, 207, 307, 407, 9})
    assert ids(spark, by_region) == expected
    for procedure in ("rewrite_manifests", "rewrite_position_delete_files", "rewrite_data_files"):
        spark.sql(f"CALL local.system.{procedure}(table => '{by_region}')")
        assert ids(spark, by_region) == expected
    found = local_catalog.load_table("moves.regions").scan().to_arrow()
    assert sorted(found["id"].to_pylist()) == expected
    assert spark.sql(f"SELECT count(*) FROM {by_region} VERSION AS OF {start[0]}").first()[0] == 500  # type: ignore[index]
    spark.sql(f"CALL local.system.expire_snapshots(table => '{by_region}', older_than => now(), retain_last => 1)")
    assert ids(spark, by_region) == expected


def test_a_concurrent_delete_is_repaired_before_spark_reads_it(
    spark: SparkSession, local_catalog: SqlCatalog, by_region: str
) -> None:
    """A merge-on-read delete is planned, the files move, the delete commits: Spark rejects it until repaired."""
    stale = local_catalog.load_table("moves.regions")
    in_flight = delete_change(stale, slice(0, 2))
    upgrade_spec(stale, options=ALONE)
    commit_change(stale, in_flight)
    with pytest.raises(Exception, match="Mismatched partition specs"):
        ids(spark, by_region)
    result = doctor(local_catalog.load_table("moves.regions"), repair=True)
    assert result.healthy
    assert len(ids(spark, by_region)) == 498


def ids(spark: SparkSession, name: str) -> list[int]:
    found: pa.Table = spark.sql(f"SELECT id FROM {name}").toArrow()
    return sorted(found["id"].to_pylist())

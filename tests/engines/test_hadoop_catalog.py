"""Table folders shared with Spark's HadoopCatalog: both commit in turns and read each other's rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import floeplan as fp
from floeplan.transaction.catalog_commit import CommitOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def hadoop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of the catalog `hadoop` of Spark."""
    warehouse = tmp_path_factory.mktemp("hadoop")
    catalog = "spark.sql.catalog.hadoop"
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    for key, value in {"type": "hadoop", "warehouse": warehouse.as_uri(), "cache-enabled": "false"}.items():
        spark.conf.set(f"{catalog}.{key}", value)
    return warehouse


def ids(spark: SparkSession, folder: Path) -> tuple[list[int], list[int]]:
    """The ids that Spark and Floeplan read."""
    by_spark = [row[0] for row in spark.table("hadoop.db.events").select("id").collect()]
    return sorted(by_spark), sorted(fp.plan_scan(str(folder), columns=["id"]).to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("codec", ["none", pytest.param("gzip", marks=pytest.mark.matrix)])
def test_both_commit_in_turns(hadoop: Path, spark: SparkSession, codec: str) -> None:
    spark.sql("DROP TABLE IF EXISTS hadoop.db.events")
    spark.sql(
        "CREATE TABLE hadoop.db.events (id BIGINT, region STRING) USING iceberg PARTITIONED BY (region) TBLPROPERTIES "
        f"('write.metadata.compression-codec' = '{codec}', 'write.delete.mode' = 'merge-on-read')"
    )
    folder = hadoop / "db" / "events"
    rows = [pa.table({"id": [n, n + 1], "region": ["eu", "us"]}) for n in (10, 20, 30)]
    spark.sql("INSERT INTO hadoop.db.events VALUES (1, 'eu'), (2, 'us')")
    fp.append(str(folder), rows[0])
    spark.sql("INSERT INTO hadoop.db.events VALUES (3, 'eu')")
    fp.delete(str(folder), "id = 2")
    spark.sql("DELETE FROM hadoop.db.events WHERE id = 10")
    assert ids(spark, folder) == ([1, 3, 11],) * 2

    # Spark commits between the refresh and the commit of Floeplan, which tries again on the newer table.
    def interfere(step: str) -> None:
        if step == "before-commit" and not interfered:
            interfered.append(step)
            spark.sql("INSERT INTO hadoop.db.events VALUES (4, 'us')")

    interfered: list[str] = []
    result = fp.append(str(folder), rows[1], options=CommitOptions(on_step=interfere))
    assert result.attempts == 2
    fp.rewrite_data_files(str(folder), options={"rewrite-all": "true"})
    spark.sql("INSERT INTO hadoop.db.events VALUES (5, 'us')")
    assert ids(spark, folder) == ([1, 3, 4, 5, 11, 20, 21],) * 2
    assert (folder / "metadata" / "version-hint.text").read_text() == "10"

"""Every way to read a table on Spark, for sessions of every kind; functions take the session first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import floeplan as fp
from floeplan.audit.job import audit
from tests.support.core_table import evolved, ids
from tests.support.scan_reports import leaf, own_report, write_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_every_way(spark: SparkSession, properties: Mapping[str, str]) -> None:
    """The data source, what was appended and what changed, and metadata tables."""
    table, rows = evolved(properties, 2)
    first = table.current_snapshot().snapshot_id  # type: ignore[union-attr]
    source = {"table": "core.v2", "catalog": "core", **{f"catalog.{key}": value for key, value in properties.items()}}
    fp.register(spark)
    shown = spark.read.format("floeplan").options(**source, where="id >= 100", columns="id").load()
    assert ids(shown) == list(range(100, 120))
    more = fp.read(spark, table, "id < 2").selectExpr("id + 700 AS id", "region", "ts", "v")
    more.write.format("floeplan").mode("append").options(**source).save()
    fp.delete(table.refresh(), "id = 5", spark=spark, mode="merge-on-read")
    second = table.refresh().metadata.snapshots[-2].snapshot_id
    assert ids(fp.incremental(spark, table, first, second)) == [700, 701]
    changes = fp.incremental(spark, table, first, changelog=True).toArrow().to_pylist()
    assert sorted((row["_change_type"], row["id"]) for row in changes) == [
        ("DELETE", 5), ("INSERT", 700), ("INSERT", 701)
    ]  # fmt: skip
    assert fp.metadata_table(spark, table, "snapshots").count() == len(table.metadata.snapshots)
    files = fp.metadata_table(spark, table, "files").where("content = 0").toArrow()
    assert sum(files.column("record_count").to_pylist()) == len(rows) + 2


def audit_reports(spark: SparkSession, folder: Path) -> list[str]:
    """The predicates an audit flags."""
    reports = [own_report(leaf("eq", "user", value), kept=90, total=100, why="spread") for value in (7, 8)]
    place = write_lines(folder / "reports/scan.jsonl", reports)
    return [finding.filter for finding in audit(spark, str(place)).flagged]

"""Rewrites with concurrent commits of Iceberg's own writer and with killed workers: no row is lost or doubled."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.io import PY_IO_IMPL

import floeplan as fp
from floeplan.transaction.catalog_commit import CommitOptions
from tests.support.faults import killed_workers as killing_io

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

ALL = {"rewrite-all": "true"}
MODES = ", ".join(f"'write.{command}.mode'='merge-on-read'" for command in ("delete", "update", "merge"))
START = {number: number * 10 for number in range(60)}


@pytest.fixture
def written(spark: SparkSession, local_catalog: SqlCatalog, version: int) -> Table:
    """Ids 0–59 in two files of each of three parts, with some deleted rows."""
    name = f"rewrites.t{uuid.uuid4().hex[:8]}"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.rewrites")
    spark.sql(
        f"CREATE TABLE local.{name} (id BIGINT, v BIGINT, part INT) USING iceberg PARTITIONED BY (part) "
        f"TBLPROPERTIES ('format-version'='{version}', {MODES})"
    )
    for first in (0, 30):
        rows = f"SELECT id, id * 10 AS v, cast(id % 3 AS INT) AS part FROM range({first}, {first + 30}, 1, 1)"
        spark.sql(f"INSERT INTO local.{name} {rows}")
    spark.sql(f"DELETE FROM local.{name} WHERE id IN (5, 6)")
    return local_catalog.load_table(name)


def read(spark: SparkSession, table: Table) -> dict[int, int]:
    """The rows as Iceberg reads them, each once."""
    rows = spark.sql(f"SELECT id, v FROM local.{'.'.join(table.name())}").collect()
    found = {row["id"]: row["v"] for row in rows}
    assert len(found) == len(rows)
    return found


def without(*gone: int) -> dict[int, int]:
    return {key: v for key, v in START.items() if key not in (5, 6, *gone)}


MERGE = """
    MERGE INTO {} AS t USING (SELECT id FROM range(0, 70, 9)) AS s ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET v = -1
    WHEN NOT MATCHED THEN INSERT (id, v, part) VALUES (s.id, -2, 0)
"""
OTHERS = {
    "delete": ("DELETE FROM {} WHERE id % 7 = 1", without(*range(1, 60, 7)), 0),
    "merge": (MERGE, without() | dict.fromkeys(range(0, 60, 9), -1) | {63: -2}, 0),
    "a part": ("DELETE FROM {} WHERE part = 1", without(*range(1, 60, 3)), 1),
}


@pytest.mark.parametrize(("version", "step"), [(2, "before-commit"), (3, "before-commit"), (2, "refreshed")])
@pytest.mark.parametrize("other", OTHERS)
def test_concurrent_commits_of_spark_are_neither_lost_nor_undone(
    spark: SparkSession, written: Table, other: str, step: str
) -> None:
    statement, expected, failed = OTHERS[other]
    waiting = [statement.format(f"local.{'.'.join(written.name())}")]

    def on_step(name: str) -> None:
        if name == step and waiting:
            spark.sql(waiting.pop())

    done = fp.rewrite_data_files(written, options=ALL, commit=CommitOptions(on_step=on_step))
    assert not waiting
    assert done.groups_failed == failed
    assert read(spark, written) == expected
    assert {row["id"]: row["v"] for row in fp.plan_scan(written).to_arrow().to_pylist()} == expected


@pytest.mark.parametrize("version", [2])
def test_a_killed_task_is_repeated_by_another(
    spark: SparkSession, written: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floeplan.tasks.runner.LOCAL_BYTES", -1)
    kill = tmp_path / "kill"
    kill.touch()
    folder = Path(written.location().removeprefix("file:")) / "data"
    before = set(folder.rglob("*.parquet"))
    properties = {killing_io.KILL: str(kill), killing_io.SPARED: str(os.getpid()), PY_IO_IMPL: killing_io.NAME}
    with written.transaction() as transaction:
        transaction.set_properties(properties)
    done = fp.rewrite_data_files(written, options=ALL, spark=spark)
    assert not kill.exists()
    assert (done.groups_failed, done.files_rewritten) == (0, 6)
    assert read(spark, written) == without()
    made = set(folder.rglob("*.parquet")) - before
    live = {Path(file.path.removeprefix("file:")) for file in fp.plan_scan(written.refresh()).files}
    assert live < made
    (half,) = made - live
    assert half.read_bytes() == b"PAR1 and no more", "an unreferenced file"

"""Large groups sorted in ranges by Spark tasks: the rows and order of one task, with concurrent deletes and kills."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.io import PY_IO_IMPL

import floeplan as fp
from floeplan.rewrite.plan.model import RewriteResult
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.commit import commit_change
from tests.support.faults import killed_workers as killing_io
from tests.support.tables.commits import equality_delete
from tests.support.tables.ranges import skewed_rows

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

OPTIONS = {"rewrite-all": "true", "target-file-size-bytes": "5000", "range-task-bytes": "8000"}
ROWS = 6000
Make = Callable[..., "Table"]


@pytest.fixture
def make(spark: SparkSession, local_catalog: SqlCatalog) -> Make:
    """Makes a table of six files, with some rows deleted by position."""

    def made(version: int, partition: str = "") -> Table:
        name = f"ranges.t{uuid.uuid4().hex[:8]}"
        spark.sql("CREATE NAMESPACE IF NOT EXISTS local.ranges")
        spark.sql(
            f"CREATE TABLE local.{name} (id BIGINT, v DOUBLE, name STRING) USING iceberg {partition} TBLPROPERTIES ("
            f"'format-version'='{version}', 'write.delete.mode'='merge-on-read')"
        )
        table = local_catalog.load_table(name)
        for first in range(0, ROWS, 1000):
            fp.append(table, skewed_rows(first, 1000))
        fp.delete(table, "id % 10 = 3", mode="merge-on-read")
        return table

    return made


def rewrite(table: Table, spark: SparkSession | None, *by: str, **more: Any) -> RewriteResult:
    return fp.rewrite_data_files(table, **{"strategy": "sort", "by": by, "options": OPTIONS, "spark": spark} | more)


def written(table: Table) -> list[dict[str, Any]]:
    """The rows of all files in the order of the files; what Spark reads is in no order."""
    columns = fp.plan_scan(table.refresh()).to_arrow()
    return [{name: repr(value) for name, value in row.items()} for row in columns.to_pylist()]


def ids(spark: SparkSession, table: Table) -> list[int]:
    """As Iceberg reads them."""
    rows = spark.sql(f"SELECT id FROM local.{'.'.join(table.name())}").toArrow()
    found: list[int] = rows.column("id").to_pylist()
    return sorted(found)


def leftovers(table: Table) -> list[Path]:
    return list(Path(table.location().removeprefix("file:")).rglob("*.rowmap"))


@pytest.mark.parametrize(("version", "by", "way"), [(2, ("v", "name"), "shuffle"), (3, ("id",), "range-reads")])
def test_ranges_on_spark_are_the_sort_of_one_task(
    spark: SparkSession, make: Make, version: int, by: tuple[str, ...], way: str
) -> None:
    alone, table = make(version), make(version)
    rewrite(alone, None, *by)
    done = rewrite(table, spark, *by)
    (ranges,) = done.ranges
    assert ranges.rows_by == way
    assert ranges.tasks > 2
    assert done.to_dict()["ranges"][0]["rows_by"] == way
    assert written(table) == written(alone)
    assert leftovers(table) == []


@pytest.mark.parametrize(("version", "strategy"), [pytest.param(2, "zorder", marks=pytest.mark.matrix), (3, "sort")])
def test_deletes_that_arrive_meanwhile_are_carried_over(
    spark: SparkSession, make: Make, version: int, strategy: str
) -> None:
    """By position from Spark, and by key; some rows are deleted by key before."""
    table = make(version)
    table = commit_change(table, equality_delete(table, [20, 2021], 0)).table
    waiting = [f"DELETE FROM local.{'.'.join(table.name())} WHERE id % 7 = 1 OR v IS NULL"]
    gone = {20, 2021, 40, 4042}
    expected = [
        row
        for row in fp.plan_scan(table).to_arrow().to_pylist()
        if row["id"] % 7 != 1 and row["v"] is not None and row["id"] not in gone
    ]

    def on_step(name: str) -> None:
        if name == "before-commit" and waiting:
            spark.sql(waiting.pop())
            now = table.catalog.load_table(table.name())
            commit_change(now, equality_delete(now, [40, 4042], 0))

    done = rewrite(table, spark, "v", "name", strategy=strategy, commit=CommitOptions(on_step=on_step))
    assert not waiting
    assert done.ranges[0].rows_by == "shuffle"
    assert done.deletes_carried > 0
    assert (done.groups_failed, done.files_rewritten) == (0, 6)
    assert ids(spark, table) == sorted(row["id"] for row in expected)
    found = fp.plan_scan(table.refresh()).to_arrow()
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected))
    assert leftovers(table) == []


@pytest.mark.matrix
def test_groups_in_ranges_are_committed_one_by_one(spark: SparkSession, make: Make) -> None:
    """With partial progress."""
    table = make(2, "PARTITIONED BY (truncate(3000, id))")
    before = ids(spark, table)
    options = OPTIONS | {"partial-progress.enabled": "true", "partial-progress.max-commits": "2"}
    done = rewrite(table, spark, "v", "name", options=options)
    assert [one.group_id for one in sorted(done.ranges, key=lambda one: one.group_id)] == [0, 1]
    assert len(done.snapshot_ids) == 2
    assert ids(spark, table) == before
    assert leftovers(table) == []


def test_a_group_that_cannot_be_committed_leaves_nothing(spark: SparkSession, make: Make) -> None:
    table = make(2)
    before = ids(spark, table)
    folder = Path(table.location().removeprefix("file:")) / "data"
    files = set(folder.rglob("*"))
    waiting = [table]

    def on_step(name: str) -> None:
        if name == "before-commit" and waiting:
            fp.rewrite_data_files(waiting.pop(), options={"rewrite-all": "true"})  # replaces the same files

    with pytest.raises(fp.FloeplanError, match="another writer removed"):
        rewrite(table, spark, "v", commit=CommitOptions(on_step=on_step))
    assert ids(spark, table) == before
    live = {Path(file.path.removeprefix("file:")) for file in fp.plan_scan(table.refresh()).files}
    assert set(folder.rglob("*")) == files | live


@pytest.mark.matrix
def test_a_killed_task_is_repeated(spark: SparkSession, make: Make, tmp_path: Path) -> None:
    table = make(2)
    before = ids(spark, table)
    kill = tmp_path / "kill"
    kill.touch()
    properties = {killing_io.KILL: str(kill), killing_io.SPARED: str(os.getpid()), PY_IO_IMPL: killing_io.NAME}
    with table.transaction() as transaction:
        transaction.set_properties(properties)
    done = rewrite(table, spark, "v", "name")
    assert not kill.exists()
    assert done.ranges[0].tasks > 2
    assert ids(spark, table) == before
    assert leftovers(table) == []


def test_rows_of_a_failing_file_fail_the_group(spark: SparkSession, make: Make) -> None:
    """An error of a reading task arrives as it was raised, and nothing is committed."""
    table = make(2)
    path = Path(fp.plan_scan(table).files[2].path.removeprefix("file:"))
    snapshots = len(table.refresh().metadata.snapshots)
    path.unlink()
    with pytest.raises(fp.FloeplanError, match=path.name):
        rewrite(table, spark, "v")
    assert len(table.refresh().metadata.snapshots) == snapshots


def test_an_exchange_moves_every_row_to_its_partition(spark: SparkSession) -> None:
    from floeplan.spark import exchange

    def divide(batch: Any) -> Any:
        for number in batch:
            for partition in (0, 2, 3):
                yield partition, pa.table({"n": [number] * 3, "p": [partition] * 3})

    def receive(partition: int, tables: Any, attempt: str) -> tuple[int, list[int], str]:
        rows = pa.concat_tables(tables)
        assert set(rows["p"].to_pylist()) == {partition}
        return partition, sorted(rows["n"].to_pylist()), attempt

    found = exchange.run_exchange(divide, [[1, 2], [3]], receive, 4, spark, description="test", discard=lambda _: None)
    assert [(partition, numbers) for partition, numbers, _ in found] == [
        (p, [1, 1, 1, 2, 2, 2, 3, 3, 3]) for p in (0, 2, 3)
    ]
    assert len({attempt for *_, attempt in found}) == 3

"""A failed Spark job: files of its finished tasks are removed, and the table is unchanged.

Two of six tasks run at a time, so most are finished when the last one starts and fails. Files of tasks whose end was
not reported to the driver are unknown and may stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

import floeplan as fp
from floeplan.errors import FloeplanError
from floeplan.metadata.files import TableFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

TASKS = 6


@pytest.fixture(autouse=True)
def _in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is read and written by its own task, whatever its size."""
    monkeypatch.setattr("floeplan.tasks.runner.LOCAL_BYTES", -1)
    monkeypatch.setattr("floeplan.dml.spark_rows.FILES_PER_TASK_BYTES", 1)


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records files that this process removes."""
    found: list[str] = []

    def noted(files: TableFiles, paths: Iterable[str]) -> tuple[str, ...]:
        gone = remove(files, paths)
        found.extend(gone)
        return gone

    remove = TableFiles.remove
    monkeypatch.setattr(TableFiles, "remove", noted)
    return found


@pytest.fixture
def table(local_catalog: SqlCatalog) -> Table:
    """One file per task; its row is the number of the task."""
    local_catalog.create_namespace_if_not_exists("dying")
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "v", LongType()))
    made = local_catalog.create_table(f"dying.t{uuid4().hex}", schema, properties={"format-version": "2"})
    for number in range(TASKS):
        fp.append(made, pa.table({"a": [TASKS - 1 - number], "v": [number]}))
    return made


def files(table: Table) -> set[str]:
    return {path.as_uri() for path in Path(table.location().removeprefix("file://")).rglob("*.parquet")}


def assert_few_left(table: Table, before: set[str], removed: list[str]) -> None:
    """Finished tasks have left no files: each but the last wrote one."""
    assert removed
    assert before.isdisjoint(removed)
    left = files(table)
    assert left >= before
    assert len(left - before) <= TASKS - 1 - len(removed)


@pytest.fixture
def damaged(table: Table) -> Iterator[Path]:
    """The file of the last task, cut; afterwards it is as before, and all rows are still the same."""
    paths = [file.path for file in fp.plan_scan(table).files]
    rows = [pq.read_table(path.removeprefix("file://")) for path in paths]
    assert [row["a"].to_pylist() for row in rows] == [[number] for number in range(TASKS)]
    file = Path(paths[-1].removeprefix("file://"))
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    yield file
    file.write_bytes(content)
    assert fp.plan_scan(table.refresh()).to_arrow().to_pylist() == pa.concat_tables(rows).to_pylist()


def test_a_file_that_cannot_be_read_for_an_update(
    spark: SparkSession, table: Table, removed: list[str], damaged: Path
) -> None:
    """Each task reads and changes a file."""
    before = files(table)
    with pytest.raises(FloeplanError, match=damaged.name):
        fp.update(table, {"v": "v + 1"}, "md5(CAST(a AS STRING)) IS NOT NULL", spark=spark)
    assert_few_left(table, before, removed)


def test_a_file_that_cannot_be_read_for_a_merge(spark: SparkSession, table: Table, damaged: Path) -> None:
    """The rows of all files are joined before the first one is written."""
    before = files(table)
    source = spark.range(TASKS).withColumnRenamed("id", "a").hint("broadcast")
    on = "t.a = s.a AND md5(CAST(t.a AS STRING)) = md5(CAST(s.a AS STRING))"
    merge = fp.merge(table, source, on, spark=spark).when_matched_update({"v": "t.v + 1"})
    with pytest.raises(FloeplanError, match=damaged.name):
        merge.execute()
    assert files(table) == before


def test_rows_that_cannot_be_computed(spark: SparkSession, table: Table, removed: list[str]) -> None:
    before = files(table)
    rows = spark.range(0, TASKS, 1, TASKS)
    with pytest.raises(Exception, match="no such row"):
        fp.append(table, rows.selectExpr(f"if(id = {TASKS - 1}, raise_error('no such row'), id) AS a"))
    assert_few_left(table, before, removed)
    assert len(fp.plan_scan(table.refresh()).files) == TASKS

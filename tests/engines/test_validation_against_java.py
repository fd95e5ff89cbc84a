"""Every conflict check against Iceberg Java's own: the same history gives the same result.

Java's ``apply`` validates and writes manifests but commits nothing, so that one table serves many checks.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.update import AddPartitionSpecUpdate, SetDefaultSpecUpdate

from floeplan.errors import CommitConflictError
from floeplan.predicate.compile import compile_predicate
from floeplan.scan.plan import plan_scan
from floeplan.transaction.change import Check, ConflictValidation, IsolationLevel, Operation, SnapshotChange
from floeplan.transaction.metadata_json import writable_metadata
from floeplan.transaction.validation import ValidationContext, validate
from tests.support.spark import iceberg_java
from tests.support.tables.commits import (
    NO_SCAN_EXTRAS,
    Write,
    appending,
    copy_on_write_delete,
    create_table,
    fork,
    merge_on_read_delete,
    replacing,
    rows_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

START = rows_of(0, 10, "a") + rows_of(10, 20, "b") + rows_of(20, 30, "a")
FILTERS = ("true", "part = 'a'", "part = 'b'", "id = 3", "id = 102", "id >= 150")
PARTITIONS = ("part = 'a'", "part = 'b'", "part = 'c'")
FILES = ("id = 3", "id = 14", "id = 25")
"""Predicates that match one data file each."""

CONCURRENT: dict[str, list[Write]] = {
    "appends": [appending(rows_of(100, 105, "a")), appending(rows_of(200, 205, "b"))],
    "row deletes": [merge_on_read_delete("id = 3", lambda row: row[0] == 3)],
    "row deletes elsewhere": [merge_on_read_delete("id = 14", lambda row: row[0] == 14)],
    "an overwrite": [copy_on_write_delete("id = 4", lambda row: row[0] == 4)],
    "a dropped partition": [copy_on_write_delete("part = 'b'", lambda row: row[1] == "b")],
    "a rewrite": [replacing("part = 'a'")],
    "deletes, then a rewrite": [merge_on_read_delete("id = 3", lambda row: row[0] == 3), replacing("part = 'a'")],
}


def java_refuses(update: Any) -> bool:
    try:
        update.apply()
    except Py4JJavaError as error:
        if not error.java_exception.getClass().getName().endswith("ValidationException"):
            raise
        return True
    return False


def refuses(planned_on: Table, now: Table, checks: Iterable[Check], where: str, **more: Any) -> bool:
    start = planned_on.metadata.current_snapshot_id
    removed = SnapshotChange(Operation.OVERWRITE, removed_data=more.pop("removed", frozenset()))
    expr = compile_predicate(where, now.schema()).predicate
    validation = ConflictValidation(start, frozenset(checks), expr, **more)
    try:
        validate(ValidationContext(now.metadata, now.metadata.current_snapshot_id, removed, validation, now.io))
    except CommitConflictError:
        return True
    return False


class ValidationCase:
    """A table with commits after planning, opened in Python and in Java."""

    def __init__(self, spark: SparkSession, planned_on: Table, now: Table) -> None:
        self.planned_on, self.now = planned_on, now
        self.name = f"local.db.{now.name()[-1]}"
        self.spark = spark
        self.java = iceberg_java.load_table(spark, self.name)
        self.start = planned_on.metadata.current_snapshot_id
        self.files = {
            task.file().location(): task.file()
            for task in iceberg_java.planned_tasks(spark, self.java, snapshot_id=self.start)
        }

    def row_delta(self, where: str) -> Any:
        filter_ = iceberg_java.convert(self.spark, self.name, where)
        return self.java.newRowDelta().validateFromSnapshot(self.start).conflictDetectionFilter(filter_)

    def path(self, where: str) -> str:
        (path,) = plan_scan(self.planned_on, where, options=NO_SCAN_EXTRAS).files.entries.path.to_pylist()
        return str(path)

    def ours(self, checks: Iterable[Check], where: str = "true", **more: Any) -> bool:
        return refuses(self.planned_on, self.now, checks, where, **more)

    def agreements(self) -> Iterable[tuple[str, bool, bool]]:
        """Each check with Java's result and ours."""
        for where in FILTERS:
            data = java_refuses(self.row_delta(where).validateNoConflictingDataFiles())
            yield f"new data where {where}", data, self.ours([Check.NO_NEW_DATA], where)
            deletes = java_refuses(self.row_delta(where).validateNoConflictingDeleteFiles())
            yield f"new deletes where {where}", deletes, self.ours([Check.NO_NEW_DELETES], where)
        for where in PARTITIONS:
            filter_ = iceberg_java.convert(self.spark, self.name, where)
            overwrite = self.java.newOverwrite().validateFromSnapshot(self.start).overwriteByRowFilter(filter_)
            ours = self.ours([Check.NO_NEW_DELETES, Check.NO_REMOVED_DATA], where)
            yield f"removed data where {where}", java_refuses(overwrite.validateNoConflictingDeletes()), ours
        for where in FILES:
            yield from self._about_file(self.path(where))

    def _about_file(self, path: str) -> Iterable[tuple[str, bool, bool]]:
        paths = self.spark._jvm.java.util.List.of(path)
        exists = self.row_delta("true").validateDataFilesExist(paths)
        referenced = {"referenced_data_files": frozenset({path})}
        yield f"{path} exists", java_refuses(exists), self.ours([Check.REFERENCED_FILES_EXIST], **referenced)
        kept = self.row_delta("true").validateDataFilesExist(paths).validateDeletedFiles()
        yield f"{path} kept", java_refuses(kept), self.ours([Check.REFERENCED_FILES_NOT_DELETED], **referenced)
        overwrite = self.java.newOverwrite().validateFromSnapshot(self.start).deleteFile(self.files[path])
        checks = [Check.NO_NEW_DELETES_FOR_REMOVED, Check.REMOVED_FILES_EXIST]
        ours = self.ours(checks, removed=frozenset({path}))
        yield f"{path} removed", java_refuses(overwrite.validateNoConflictingDeletes()), ours


def with_another_spec(table: Table) -> Table:
    with writable_metadata(table.io):
        updates = AddPartitionSpecUpdate(spec=PartitionSpec(spec_id=1)), SetDefaultSpecUpdate(spec_id=1)
        table.catalog.commit_table(table, (), updates)
    return table.catalog.load_table(table.name())


@pytest.mark.parametrize(
    ("version", "evolve"),
    [
        pytest.param(2, lambda table: table, id="2-one spec", marks=pytest.mark.matrix),
        pytest.param(2, with_another_spec, id="2-two specs", marks=pytest.mark.matrix),
        pytest.param(3, lambda table: table, id="3-one spec", marks=pytest.mark.matrix),
        pytest.param(3, with_another_spec, id="3-two specs"),
    ],
)
def test_the_checks_are_those_of_java(
    spark: SparkSession, local_catalog: SqlCatalog, version: int, evolve: Callable[[Table], Table]
) -> None:
    local_catalog.create_namespace_if_not_exists("db")
    token = uuid.uuid4().hex[:6]
    base = evolve(create_table(local_catalog, version, START, f"db.base{token}"))
    for number, (name, writes) in enumerate(CONCURRENT.items()):
        table = planned_on = fork(base, f"db.t{token}_{number}")
        for write in writes:
            table = write.plan(table, IsolationLevel.SERIALIZABLE).commit().table
        results = list(ValidationCase(spark, planned_on, table).agreements())
        assert len(results) == 2 * len(FILTERS) + len(PARTITIONS) + 3 * len(FILES)
        assert {java for _, java, _ in results} == {True, False}, "some are conflicts and some are not"
        assert [check for check, java, ours in results if java != ours] == [], name

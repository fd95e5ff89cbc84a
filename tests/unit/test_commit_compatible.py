"""Commits to a table whose schema, spec or format changed after planning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    RemovePartitionSpecsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

from floeplan.errors import CommitConflictError
from floeplan.transaction.change import IsolationLevel, Operation
from floeplan.transaction.commit import commit_change
from floeplan.transaction.metadata_json import writable_metadata
from tests.support.tables.commits import (
    append,
    create_table,
    leftovers,
    merge_on_read_delete,
    open_catalog,
    patient,
    read_rows,
    replacing,
    rows_of,
)

pytestmark = pytest.mark.unit

BEFORE = rows_of(0, 10)
ID, PART = NestedField(1, "id", LongType()), NestedField(2, "part", StringType())


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return create_table(catalog, 2, BEFORE)


def alter(table: Table, *updates: TableUpdate) -> None:
    """A concurrent schema change."""
    with writable_metadata(table.io):
        table.catalog.commit_table(table, (), updates)


def upgrade(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upgrade to format 3, which PyIceberg implements but rejects."""
    monkeypatch.setattr("pyiceberg.table.update.SUPPORTED_TABLE_FORMAT_VERSION", 3)
    alter(table, UpgradeFormatVersionUpdate(format_version=3))


def new_schema(*fields: NestedField) -> tuple[TableUpdate, ...]:
    return AddSchemaUpdate(schema=Schema(*fields, schema_id=1)), SetCurrentSchemaUpdate(schema_id=1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([PART], "column id was dropped"),
        ([NestedField(1, "id", StringType()), PART], "column id became string"),
        ([NestedField(1, "id", LongType(), required=True), PART], "column id became required"),
        ([ID, PART, NestedField(3, "v", DoubleType(), required=True)], "required column v was added"),
    ],
)
def test_rows_of_an_incompatible_schema_are_a_conflict(table: Table, fields: list[NestedField], reason: str) -> None:
    change = append(table, rows_of(100, 102))
    alter(table, *new_schema(*fields))
    with pytest.raises(CommitConflictError, match=reason):
        commit_change(table, change, options=patient())
    assert not leftovers(table)


@pytest.mark.parametrize(
    "fields",
    [
        [ID, PART, NestedField(3, "v", DoubleType())],
        [PART, ID],
        [NestedField(1, "number", LongType()), PART],
    ],
    ids=["added", "reordered", "renamed"],
)
def test_rows_fit_a_schema_that_grew(table: Table, fields: list[NestedField]) -> None:
    change = append(table, rows_of(100, 102))
    alter(table, *new_schema(*fields))
    result = commit_change(table, change, options=patient())
    assert result.summary["total-records"] == "12"


def test_rows_fit_a_wider_type(catalog: SqlCatalog) -> None:
    narrow = catalog.create_table("db.narrow", Schema(NestedField(1, "id", IntegerType()), PART))
    change = append(narrow, rows_of(100, 102))
    alter(narrow, *new_schema(ID, PART))
    commit_change(narrow, change, options=patient())
    assert read_rows(narrow) == rows_of(100, 102)


def test_rows_written_again_need_no_column_that_was_dropped(table: Table) -> None:
    planned = replacing("true").plan(table, IsolationLevel.SERIALIZABLE)
    alter(table, *new_schema(ID, PART, NestedField(3, "v", DoubleType(), required=True)))
    assert planned.change.operation is Operation.REPLACE
    assert planned.commit().summary["total-records"] == "10"


def test_a_spec_that_was_removed_is_a_conflict(catalog: SqlCatalog) -> None:
    table = create_table(catalog, 2, [])
    change = append(table, rows_of(100, 102))
    alter(table, AddPartitionSpecUpdate(spec=PartitionSpec(spec_id=1)), SetDefaultSpecUpdate(spec_id=1))
    alter(table, RemovePartitionSpecsUpdate(spec_ids=[0]))
    with pytest.raises(CommitConflictError, match="partition spec 0 was removed"):
        commit_change(table, change, options=patient())
    assert not leftovers(table)


def test_another_default_spec_is_no_conflict(table: Table) -> None:
    change = append(table, rows_of(100, 102))
    alter(table, AddPartitionSpecUpdate(spec=PartitionSpec(spec_id=1)), SetDefaultSpecUpdate(spec_id=1))
    result = commit_change(table, change, options=patient())
    assert [manifest.spec_id for manifest in result.manifests_written] == [0]
    assert read_rows(table) == BEFORE + rows_of(100, 102)


def test_position_deletes_do_not_outlive_an_upgrade_to_vectors(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = merge_on_read_delete("id = 3", lambda row: row[0] == 3).plan(table, IsolationLevel.SERIALIZABLE)
    upgrade(table, monkeypatch)
    with pytest.raises(CommitConflictError, match="upgraded to format 3 while position deletes were written"):
        planned.commit()
    assert read_rows(table) == BEFORE
    assert not leftovers(table)


def test_rows_outlive_an_upgrade(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    change = append(table, rows_of(100, 102))
    upgrade(table, monkeypatch)
    result = commit_change(table, change, options=patient())
    assert result.table.metadata.format_version == 3
    assert read_rows(table) == BEFORE + rows_of(100, 102)


def test_a_schema_that_changes_between_check_and_commit_is_checked_again(table: Table) -> None:
    change = append(table, rows_of(100, 102))

    def drop_column(step: str) -> None:
        if step == "before-commit":
            alter(table, *new_schema(PART))

    with pytest.raises(CommitConflictError, match="column id was dropped"):
        commit_change(table, change, options=patient(on_step=drop_column))
    assert not leftovers(table)


def test_metadata_is_changed_in_the_same_commit(table: Table) -> None:
    updates = AddPartitionSpecUpdate(spec=PartitionSpec(spec_id=1)), SetDefaultSpecUpdate(spec_id=1)
    result = commit_change(table, append(table, rows_of(100, 102)), options=patient(), extra_updates=updates)
    assert result.table.metadata.default_spec_id == 1
    assert len(result.table.metadata.metadata_log) == len(table.metadata.metadata_log) + 1
    assert read_rows(table) == BEFORE + rows_of(100, 102)

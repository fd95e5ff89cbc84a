"""Conflict validation: every check against concurrent commits."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.update import AddPartitionSpecUpdate, SetDefaultSpecUpdate
from pyiceberg.transforms import BucketTransform

from floeplan.errors import BadInputError, CommitConflictError
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import Content, EntriesTable, Status, new_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.compile import compile_predicate
from floeplan.scan.plan import plan_scan
from floeplan.transaction.change import Check, ConflictValidation, IsolationLevel, Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from floeplan.transaction.metadata_json import writable_metadata
from floeplan.transaction.refs import rollback_to
from floeplan.transaction.validation import MAX_NAMED_FILES, ValidationContext, validate
from tests.support.tables.commits import (
    NO_SCAN_EXTRAS,
    append,
    copy_on_write_delete,
    create_table,
    fork,
    merge_on_read_delete,
    open_catalog,
    replacing,
    rows_of,
    write_rows,
)

pytestmark = pytest.mark.unit

SERIALIZABLE = IsolationLevel.SERIALIZABLE
OVERWRITE = SnapshotChange(Operation.OVERWRITE)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlCatalog]:
    """With a table of each format version: ids 0–9 and 20–29 of part a, 10–19 of part b, in three files."""
    opened = open_catalog(tmp_path_factory.mktemp("lake"))
    for version in (2, 3):
        create_table(opened, version, name=f"db.v{version}")
    yield opened
    opened.close()


def fresh(catalog: SqlCatalog, version: int) -> Table:
    """A fork of one of the tables."""
    return fork(catalog.load_table(f"db.v{version}"), f"db.{uuid.uuid4().hex}")


@pytest.fixture(params=[2, 3])
def table(catalog: SqlCatalog, request: pytest.FixtureRequest) -> Table:
    return fresh(catalog, request.param)


def paths(table: Table, where: str = "true") -> list[str]:
    found: list[str] = plan_scan(table, where, options=NO_SCAN_EXTRAS).files.entries.path.to_pylist()
    return found


def run_check(
    planned_on: Table, check: Check, change: SnapshotChange = OVERWRITE, where: str = "true", **more: object
) -> None:
    """Run one check of a change against the current table."""
    now = planned_on.catalog.load_table(planned_on.name())
    expr = compile_predicate(where, now.schema()).predicate
    start = planned_on.metadata.current_snapshot_id
    validation = replace(ConflictValidation(start, frozenset({check}), expr), **more)  # type: ignore[arg-type]
    validate(ValidationContext(now.metadata, now.metadata.current_snapshot_id, change, validation, now.io))


def conflicts(planned_on: Table, check: Check, change: SnapshotChange = OVERWRITE, **more: object) -> bool:
    try:
        run_check(planned_on, check, change, **more)  # type: ignore[arg-type]
    except CommitConflictError as error:
        return error.context["check"] == check.name
    return False


def delete(table: Table, where: str, *ids: int) -> Table:
    return merge_on_read_delete(where, lambda row: row[0] in ids).plan(table, SERIALIZABLE).commit().table


def rewrite(table: Table, where: str) -> Table:
    return replacing(where).plan(table, SERIALIZABLE).commit().table


def overwrite(table: Table, where: str, *ids: int) -> Table:
    return copy_on_write_delete(where, lambda row: row[0] in ids).plan(table, SERIALIZABLE).commit().table


def add(table: Table, first: int, part: str = "a") -> Table:
    return commit_change(table, append(table, rows_of(first, first + 5, part))).table


# ---------------------------------------------------------------------------------------------------- new data files


@pytest.mark.parametrize(
    ("where", "conflict"),
    [
        ("true", True),
        ("part = 'a'", True),
        ("part = 'b'", False),
        ("id = 102", True),
        ("id = 200", False),
        ("id < 50 OR part = 'b'", False),
        ("length(part) = 7", True),
    ],
)
def test_new_data_conflicts_where_it_may_match(table: Table, where: str, conflict: bool) -> None:
    add(table, 100)
    assert conflicts(table, Check.NO_NEW_DATA, where=where) is conflict


def test_rows_written_again_elsewhere_are_no_new_data(table: Table) -> None:
    rewrite(table, "part = 'a'")
    assert not conflicts(table, Check.NO_NEW_DATA)


def test_rows_of_an_overwrite_are_new_data(table: Table) -> None:
    overwrite(table, "id = 3", 3)
    assert conflicts(table, Check.NO_NEW_DATA, where="part = 'a'")
    assert not conflicts(table, Check.NO_NEW_DATA, where="part = 'b'")


def test_every_snapshot_since_the_start_is_checked(table: Table) -> None:
    add(add(add(table, 100), 200, "b"), 300, "b")
    assert conflicts(table, Check.NO_NEW_DATA, where="id = 102")


def test_files_of_older_specs_are_evaluated_by_their_own_spec(table: Table) -> None:
    """The conflicting file has a spec that is not the default and that the filter has no field of."""
    bucketed = PartitionSpec(PartitionField(1, 1001, BucketTransform(4), "id_bucket"), spec_id=1)
    old_spec = append(table, rows_of(100, 105, "b"))
    with writable_metadata(table.io):
        updates = AddPartitionSpecUpdate(spec=bucketed), SetDefaultSpecUpdate(spec_id=1)
        table.catalog.commit_table(table, (), updates)
    now = table.catalog.load_table(table.name())
    commit_change(now, append(now, [(7, "c")]))
    commit_change(now, old_spec)
    assert conflicts(now, Check.NO_NEW_DATA, where="part = 'b'")
    assert conflicts(now, Check.NO_NEW_DATA, where="id = 7")
    assert not conflicts(now, Check.NO_NEW_DATA, where="part = 'a'")
    assert not conflicts(now, Check.NO_NEW_DATA, where="id = 8")


# ------------------------------------------------------------------------------------------------------- new deletes


def test_new_deletes_conflict_in_partitions_that_may_match(table: Table) -> None:
    delete(table, "id = 3", 3)
    assert conflicts(table, Check.NO_NEW_DELETES, where="part = 'a'")
    assert conflicts(table, Check.NO_NEW_DELETES, where="id = 25"), "the bounds of deletes are not those of rows"
    assert not conflicts(table, Check.NO_NEW_DELETES, where="part = 'b'")


def test_new_deletes_conflict_with_the_removal_of_their_data_file(table: Table) -> None:
    first, second = paths(table, "id = 3"), paths(table, "id = 23")
    delete(table, "id = 3", 3)
    check = Check.NO_NEW_DELETES_FOR_REMOVED
    assert conflicts(table, check, replace(OVERWRITE, removed_data=frozenset(first)))
    assert not conflicts(table, check, replace(OVERWRITE, removed_data=frozenset(second)))


def test_two_vectors_of_one_file_are_a_conflict_like_one(catalog: SqlCatalog) -> None:
    table = fresh(catalog, 3)
    removed = replace(OVERWRITE, removed_data=frozenset(paths(table, "id = 3")))
    delete(delete(table, "id = 3", 3), "id = 4", 4)
    assert conflicts(table, Check.NO_NEW_DELETES_FOR_REMOVED, removed)


def delete_entries(table: Table, part: str | None, content: Content) -> EntriesTable:
    """A delete file for a whole partition; only its entry is read."""
    equality = content is Content.EQUALITY_DELETES
    columns = {
        "file_path": pa.array([f"{table.location()}/data/{part}-{content}.parquet"]),
        "file_format": pa.array(["PARQUET"]),
        "status": pa.array([Status.ADDED]),
        "spec_id": pa.array([0]),
        "content": pa.array([content]),
        "record_count": pa.array([1]),
        "file_size_in_bytes": pa.array([100]),
        "partition.1000": pa.array([part], pa.large_string()),
    }
    if equality:
        columns["equality_ids"] = pa.array([[1]])
    return new_entries(columns, UnionPartitionType.of_table(table.metadata))


@pytest.mark.parametrize("content", [Content.POSITION_DELETES, Content.EQUALITY_DELETES])
def test_deletes_of_a_partition_apply_to_the_files_in_it(catalog: SqlCatalog, content: Content) -> None:
    table = fresh(catalog, 2)
    commit_change(table, SnapshotChange(Operation.DELETE, added_deletes=delete_entries(table, "a", content)))
    check = Check.NO_NEW_DELETES_FOR_REMOVED
    in_a, in_b = (replace(OVERWRITE, removed_data=frozenset(paths(table, f"part = '{p}'"))) for p in "ab")
    assert conflicts(table, check, in_a)
    assert not conflicts(table, check, in_b)
    assert not conflicts(table, check, OVERWRITE)
    entries = plan_scan(table, options=NO_SCAN_EXTRAS).files.entries
    assert conflicts(table, check, replace(in_a, removed_entries=entries))
    assert not conflicts(table, check, replace(in_b, removed_entries=entries))
    unknown = replace(in_b, removed_data=in_b.removed_data | {"of an earlier time.parquet"})
    assert not conflicts(table, check, replace(unknown, removed_entries=entries))


def test_rows_that_keep_their_sequence_number_keep_newer_equality_deletes(catalog: SqlCatalog) -> None:
    table = fresh(catalog, 2)
    again = write_rows(table, rows_of(0, 10))
    at = again.table.schema.get_field_index("sequence_number")
    aged = EntriesTable(again.table.set_column(at, "sequence_number", pa.array([1], pa.int64())), again.partition_types)
    removed = frozenset(paths(table, "id = 3"))
    keeps_age = SnapshotChange(Operation.REPLACE, added_data=aged, removed_data=removed)
    is_younger = SnapshotChange(Operation.REPLACE, added_data=again, removed_data=removed)
    check = Check.NO_NEW_DELETES_FOR_REMOVED
    entries = delete_entries(table, "a", Content.EQUALITY_DELETES)
    after = commit_change(table, SnapshotChange(Operation.DELETE, added_deletes=entries)).table
    assert not conflicts(table, check, keeps_age)
    assert conflicts(table, check, is_younger)
    entries = delete_entries(table, "a", Content.POSITION_DELETES)
    commit_change(after, SnapshotChange(Operation.DELETE, added_deletes=entries))
    assert conflicts(table, check, keeps_age), "positions in a removed file do not apply to another file"


def test_a_vector_conflicts_with_another_for_the_same_file(catalog: SqlCatalog) -> None:
    table = fresh(catalog, 3)
    same, other = (
        merge_on_read_delete(f"id = {i}", lambda row, i=i: row[0] == i).plan(table, SERIALIZABLE).change  # type: ignore[misc]
        for i in (4, 24)
    )
    delete(table, "id = 3", 3)
    assert conflicts(table, Check.NO_NEW_DVS, same)
    assert not conflicts(table, Check.NO_NEW_DVS, other)


# ---------------------------------------------------------------------------------------------- files that went away


def test_removed_data_conflicts_where_it_may_have_matched(table: Table) -> None:
    overwrite(table, "part = 'b'", *range(10, 20))
    assert conflicts(table, Check.NO_REMOVED_DATA, where="part = 'b'")
    assert not conflicts(table, Check.NO_REMOVED_DATA, where="part = 'a'")


def test_data_files_that_deletes_refer_to_must_be_there(table: Table) -> None:
    referenced = frozenset(paths(table, "id = 3"))
    rewrite(table, "part = 'a'")
    for check in (Check.REFERENCED_FILES_EXIST, Check.REFERENCED_FILES_NOT_DELETED):
        assert conflicts(table, check, referenced_data_files=referenced)
        assert not conflicts(table, check, referenced_data_files=frozenset(paths(table, "part = 'b'")))


def test_the_targets_of_new_deletes_are_checked_implicitly(table: Table) -> None:
    change = merge_on_read_delete("id = 3", lambda row: row[0] == 3).plan(table, SERIALIZABLE).change
    rewrite(table, "part = 'a'")
    assert conflicts(table, Check.REFERENCED_FILES_EXIST, change)


def test_a_fully_deleted_file_conflicts_only_with_rewrites_of_its_rows(table: Table) -> None:
    referenced = frozenset(paths(table, "part = 'b'"))
    overwrite(table, "part = 'b'", *range(10, 20))
    assert not conflicts(table, Check.REFERENCED_FILES_EXIST, referenced_data_files=referenced)
    assert conflicts(table, Check.REFERENCED_FILES_NOT_DELETED, referenced_data_files=referenced)


def test_files_to_be_removed_must_be_there(table: Table) -> None:
    removed = frozenset(paths(table, "id = 3"))
    other = frozenset(paths(table, "part = 'b'"))
    rewrite(table, "part = 'a'")
    assert conflicts(table, Check.REMOVED_FILES_EXIST, replace(OVERWRITE, removed_data=removed))
    assert not conflicts(table, Check.REMOVED_FILES_EXIST, replace(OVERWRITE, removed_data=other))


def test_delete_files_to_be_removed_must_be_there(table: Table) -> None:
    before = delete(table, "id = 3", 3)
    (file,) = plan_scan(before, "id = 4", options=NO_SCAN_EXTRAS).files
    ids = frozenset(DeleteFileId(d.path, d.content_offset) for d in file.deletes)
    change = replace(OVERWRITE, removed_deletes=ids)
    assert not conflicts(before, Check.REMOVED_FILES_EXIST, change)
    rewrite(before, "part = 'a'")
    assert conflicts(before, Check.REMOVED_FILES_EXIST, change)


def test_a_file_that_never_existed_cannot_be_removed(table: Table) -> None:
    change = replace(OVERWRITE, removed_data=frozenset({"nowhere.parquet"}))
    validation = ConflictValidation(table.metadata.current_snapshot_id, frozenset({Check.REMOVED_FILES_EXIST}))
    with pytest.raises(CommitConflictError, match=r"does not have, such as nowhere\.parquet"):
        commit_change(table, change, validation=validation)


# -------------------------------------------------------------------------------------------------- partition sets


def test_a_set_of_partitions_replaces_a_filter(table: Table) -> None:
    of_b = plan_scan(table, "part = 'b'", options=NO_SCAN_EXTRAS).files.entries
    add(table, 100, "a")
    assert not conflicts(table, Check.NO_NEW_DATA, partitions=of_b)
    add(table, 200, "b")
    assert conflicts(table, Check.NO_NEW_DATA, partitions=of_b)


def test_partitions_of_another_spec_may_overlap(table: Table) -> None:
    of_b = plan_scan(table, "part = 'b'", options=NO_SCAN_EXTRAS).files.entries
    with writable_metadata(table.io):
        updates = AddPartitionSpecUpdate(spec=PartitionSpec(spec_id=1)), SetDefaultSpecUpdate(spec_id=1)
        table.catalog.commit_table(table, (), updates)
    add(table.catalog.load_table(table.name()), 100, "c")
    assert conflicts(table, Check.NO_NEW_DATA, partitions=of_b)


# ---------------------------------------------------------------------------------------------------------- history


def test_nothing_happened_is_no_conflict(table: Table) -> None:
    for check in Check:
        assert not conflicts(table, check)


def test_a_starting_snapshot_outside_the_history_is_a_conflict(table: Table) -> None:
    newer = add(table, 100)
    start = table.metadata.current_snapshot_id
    assert start is not None
    rollback_to(newer, start)
    with pytest.raises(CommitConflictError, match="cannot determine what was committed since snapshot"):
        run_check(newer, Check.NO_NEW_DATA, where="part = 'b'")


def test_snapshots_checked_by_an_earlier_attempt_are_not_read_again(table: Table) -> None:
    checked = add(table, 100)
    now = add(checked, 200, "b")
    check = frozenset({Check.NO_NEW_DATA})

    def context(where: str, up_to: int | None) -> ValidationContext:
        expr = compile_predicate(where, now.schema()).predicate
        validation = ConflictValidation(table.metadata.current_snapshot_id, check, expr)
        head = now.metadata.current_snapshot_id
        return ValidationContext(now.metadata, head, OVERWRITE, validation, now.io, up_to)

    validate(context("id = 102", checked.metadata.current_snapshot_id))
    for where, up_to in [("id = 102", None), ("id = 202", checked.metadata.current_snapshot_id), ("id = 102", 7)]:
        with pytest.raises(CommitConflictError):
            validate(context(where, up_to))


def test_without_a_starting_snapshot_the_whole_history_is_checked(table: Table) -> None:
    assert conflicts(table, Check.NO_NEW_DATA, starting_snapshot_id=None, where="id = 3")
    assert not conflicts(table, Check.NO_NEW_DATA, starting_snapshot_id=None, where="id = 333")


def test_a_snapshot_without_an_operation_may_contain_any_change(table: Table) -> None:
    now = rewrite(table, "part = 'a'")
    head = now.metadata.current_snapshot_id
    silent = [
        snapshot.model_copy(update={"summary": None}) if snapshot.snapshot_id == head else snapshot
        for snapshot in now.metadata.snapshots
    ]
    metadata = now.metadata.model_copy(update={"snapshots": silent})
    validation = ConflictValidation(table.metadata.current_snapshot_id, frozenset({Check.NO_NEW_DATA}))
    with pytest.raises(CommitConflictError, match="operation unknown"):
        validate(ValidationContext(metadata, head, OVERWRITE, validation, now.io))


# --------------------------------------------------------------------------------------------------------- messages


def test_a_conflict_names_its_cause(table: Table) -> None:
    rows = [(number, f"p{number}") for number in range(100, 108)]
    after = commit_change(table, append(table, rows)).table
    head = after.metadata.current_snapshot_id
    with pytest.raises(CommitConflictError) as error:
        run_check(table, Check.NO_NEW_DATA, where="id >= 100")
    context = error.value.context
    assert context["snapshot_id"] == head
    assert (context["operation"], context["snapshot_operation"]) == ("overwrite", "append")
    assert context["file_count"] == 8
    assert len(context["files"]) == MAX_NAMED_FILES  # type: ignore[arg-type]
    assert set(context["files"]) <= set(paths(after, "id >= 100"))  # type: ignore[call-overload]
    assert f"snapshot {head} (append) added" in error.value.message
    assert "and 3 more" in error.value.message
    assert "run the operation again" in error.value.message
    assert error.value.retryable
    assert error.value.exit_code == 3


def test_a_change_cannot_remove_what_its_deletes_refer_to(table: Table) -> None:
    change = merge_on_read_delete("id = 3", lambda row: row[0] == 3).plan(table, SERIALIZABLE).change
    both = replace(change, removed_data=frozenset(paths(table, "id = 3")))
    with pytest.raises(BadInputError, match="and also adds deletes for it"):
        run_check(table, Check.REFERENCED_FILES_EXIST, both)

"""Equality deletes and rewrites: applied deletes are removed, newer ones still apply to the same rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import CommitConflictError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.change import SnapshotChange
from floeplan.transaction.commit import commit_change
from tests.support.tables.commits import append, equality_delete, evolved_table, open_catalog, rows_of

pytestmark = pytest.mark.unit

ALL = {"rewrite-all": "true"}
OLD, NEW = 0, 1


def made(folder: Path) -> Table:
    """Ids 0–39 in four unpartitioned files, then 100–104 and 105–109 of part a, 110–114 of part b."""
    table = evolved_table(open_catalog(folder))
    for rows in (rows_of(100, 105, "a"), rows_of(105, 110, "a"), rows_of(110, 115, "b")):
        table = commit_change(table, append(table, rows)).table
    return table


def ids(table: Table) -> set[int]:
    found = fp.plan_scan(table.refresh()).to_arrow()["id"].to_pylist()
    assert len(found) == len(set(found))
    return set(found)


EVERYTHING = set(range(40)) | set(range(100, 115))


def concurrently(table: Table, change: SnapshotChange, step: str) -> CommitOptions:
    """Commits a change when the rewrite reaches a step."""
    waiting = [change]

    def on_step(name: str) -> None:
        if name == step and waiting:
            commit_change(table.catalog.load_table(table.name()), waiting.pop())

    return CommitOptions(on_step=on_step)


@pytest.mark.parametrize("step", ["refreshed", "before-commit"])
@pytest.mark.parametrize("spec", ["keep", "current", 0])
def test_a_newer_global_delete_applies_to_moved_rows(tmp_path: Path, spec: str | int, step: str) -> None:
    table = made(tmp_path)
    change = equality_delete(table, [3, 15, 101, 112], OLD)
    done = fp.rewrite_data_files(table, spec=spec, options=ALL, commit=concurrently(table, change, step))
    assert (done.groups_failed, done.files_rewritten) == (0, 7)
    assert ids(table) == EVERYTHING - {3, 15, 101, 112}


@pytest.mark.parametrize("step", ["refreshed", "before-commit"])
def test_a_newer_partition_delete_applies_to_rows_that_stay(tmp_path: Path, step: str) -> None:
    table = made(tmp_path)
    change = equality_delete(table, [3, 101, 112], NEW, "a")
    done = fp.rewrite_data_files(table, options=ALL, commit=concurrently(table, change, step))
    assert (done.groups_failed, done.files_rewritten) == (0, 7)
    assert ids(table) == EVERYTHING - {101}, "3 is in no partition, 112 in another"


@pytest.mark.parametrize("step", ["refreshed", "before-commit"])
def test_rows_do_not_move_into_a_partition_with_a_newer_delete(tmp_path: Path, step: str) -> None:
    table = made(tmp_path)
    change = equality_delete(table, [3, 101], NEW, "a")
    done = fp.rewrite_data_files(table, spec="current", options=ALL, commit=concurrently(table, change, step))
    assert ids(table) == EVERYTHING - {101}
    assert done.groups_failed
    assert done.files_rewritten, "part b is rewritten"


@pytest.mark.parametrize("step", ["refreshed", "before-commit"])
def test_rows_do_not_leave_a_partition_with_a_newer_delete(tmp_path: Path, step: str) -> None:
    table = made(tmp_path)
    change = equality_delete(table, [101], NEW, "a")
    with pytest.raises(CommitConflictError, match="cannot be carried over"):
        fp.rewrite_data_files(table, spec=OLD, options=ALL, commit=concurrently(table, change, step))
    assert ids(table) == EVERYTHING - {101}
    assert len(fp.plan_scan(table).files) == 7


def test_files_with_a_new_sequence_number_would_escape_newer_deletes(tmp_path: Path) -> None:
    table = made(tmp_path)
    change = equality_delete(table, [3, 101], OLD)
    options = {**ALL, "use-starting-sequence-number": "false"}
    with pytest.raises(CommitConflictError, match="cannot be carried over"):
        fp.rewrite_data_files(table, options=options, commit=concurrently(table, change, "before-commit"))
    assert ids(table) == EVERYTHING - {3, 101}


def test_a_global_delete_is_removed_with_the_last_file_it_applies_to(tmp_path: Path) -> None:
    table = made(tmp_path)
    table = commit_change(table, equality_delete(table, [3, 101], OLD)).table
    part = fp.rewrite_data_files(table, where="id < 100", options=ALL)
    assert part.delete_files_removed == 0
    assert ids(table) == EVERYTHING - {3, 101}
    rest = fp.rewrite_data_files(table, where="id >= 100", options=ALL)
    assert rest.delete_files_removed == 1
    assert ids(table) == EVERYTHING - {3, 101}
    assert not any(file.deletes for file in fp.plan_scan(table).files)


def test_files_without_a_live_row_leave_nothing_behind(tmp_path: Path) -> None:
    table = made(tmp_path)
    table = commit_change(table, equality_delete(table, sorted(EVERYTHING), OLD)).table
    done = fp.rewrite_data_files(table, options=ALL)
    assert (done.files_rewritten, done.files_added, done.delete_files_removed) == (7, 0, 1)
    assert ids(table) == set()
    assert table.scan().to_arrow().num_rows == 0


@pytest.mark.parametrize(
    ("column", "value"), [("file_format", pa.array(["LANCE"], pa.large_string())), ("key_metadata", pa.array([b"k"]))]
)
def test_files_whose_deletes_cannot_be_read_are_not_planned(tmp_path: Path, column: str, value: pa.Array) -> None:
    """Neither by the dry run nor by the run: their rows cannot be rewritten without the delete."""
    table = made(tmp_path)
    change = equality_delete(table, [101], NEW, "a")
    entries = change.added_deletes
    assert entries is not None
    at = entries.table.schema.get_field_index(column)
    unreadable = entries.table.set_column(at, column, value.cast(entries.table.schema.field(at).type))
    table = commit_change(table, replace(change, added_deletes=EntriesTable(unreadable, entries.partition_types))).table
    planned = fp.RewriteDataFilesPlanner(table, fp.RewriteOptions(rewrite_all=True)).plan_with_stats()
    assert planned.plan.skipped == {"unreadable-deletes": 2}
    assert [w.message for w in planned.warnings if w.kind == "unreadable"] == [
        "2 files skipped: a delete file of an unknown format, or an encrypted one, applies to them"
    ]
    done = fp.rewrite_data_files(table, options=ALL)
    assert (done.groups_failed, done.files_rewritten) == (0, 5)
    assert done.planning.plan.skipped == planned.plan.skipped
    again = fp.RewriteDataFilesPlanner(table.refresh(), fp.RewriteOptions(rewrite_all=True)).plan()
    assert again.skipped == planned.plan.skipped

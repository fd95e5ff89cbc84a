"""Delete files that apply to no data file are removed: by a rewrite, by changes that remove data, never too early."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.maintenance.doctor import doctor
from floeplan.metadata.manifests.entries import Content
from floeplan.transaction.change import Operation
from floeplan.transaction.commit import commit_change
from tests.support.tables.commits import (
    Rows,
    append,
    create_table,
    delete_first_rows,
    equality_delete,
    live_entries,
    open_catalog,
    patient,
    read_rows,
    rows_of,
    write_rows,
)

pytestmark = pytest.mark.unit

ALL = {"rewrite-all": "true"}


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return open_catalog(tmp_path)


def upsert(table: Table, rows: Rows) -> Table:
    """What a streaming writer commits: an equality delete of the keys, and their rows with the same sequence number."""
    deletes = equality_delete(table, [row[0] for row in rows], 0, rows[0][1], bounds=True)
    change = replace(deletes, operation=Operation.OVERWRITE, added_data=write_rows(table, rows))
    return commit_change(table, change, options=patient()).table


def upserts(catalog: SqlCatalog, version: int = 2, count: int = 5) -> Table:
    """Ids that are all new, so that no delete applies to a row."""
    table = create_table(catalog, version, rows=[])
    for at in range(count):
        table = upsert(table, rows_of(at * 10, at * 10 + 10, "a"))
    return table


def files(table: Table) -> tuple[int, int]:
    """Data files and delete files."""
    content = live_entries(table.catalog.load_table(table.name())).content
    return int((content == Content.DATA).sum()), int((content != Content.DATA).sum())


@pytest.mark.parametrize("version", [2, 3])
def test_a_rewrite_removes_the_deletes_of_upserts_of_new_keys(catalog: SqlCatalog, version: int) -> None:
    table = upserts(catalog, version)
    assert files(table) == (5, 5)
    done = fp.rewrite_data_files(table, options=ALL)
    assert (files(table), done.delete_files_removed) == ((1, 0), 5)
    assert read_rows(table) == rows_of(0, 50, "a")
    assert fp.rewrite_data_files(table).snapshot_ids == ()


def test_the_option_keeps_them(catalog: SqlCatalog) -> None:
    table = upserts(catalog)
    fp.rewrite_data_files(table, options={**ALL, "remove-dangling-deletes": "false"})
    assert files(table) == (1, 5)


def test_a_rewrite_removes_deletes_of_a_spec_without_data(catalog: SqlCatalog) -> None:
    table = upserts(catalog)
    with table.update_spec() as update:
        update.add_identity("id")
    fp.rewrite_data_files(table, spec="current", allow_late_equality_deletes=True)
    assert files(table)[1] == 0
    assert read_rows(table) == rows_of(0, 50, "a")


def test_a_rewrite_without_files_to_rewrite_removes_what_the_doctor_reports(catalog: SqlCatalog) -> None:
    table = upserts(catalog)
    (found,) = (finding for finding in doctor(table).findings if finding.kind == "dangling-deletes")
    assert (found.files, found.fix) == (5, "floeplan rewrite db.t"), "their keys are above those of older files"
    small = {"min-input-files": "100"}
    done = fp.rewrite_data_files(table, options=small)
    assert (done.files_rewritten, done.delete_files_removed, len(done.snapshot_ids)) == (0, 5, 1)
    assert files(table) == (5, 0)
    assert "dangling-deletes" not in {finding.kind for finding in doctor(table.refresh()).findings}
    assert fp.rewrite_data_files(table, options=small).snapshot_ids == ()


def test_deletes_that_apply_to_a_row_stay(catalog: SqlCatalog) -> None:
    table = upserts(catalog)
    table = upsert(table, rows_of(5, 15, "a"))
    assert read_rows(table) == rows_of(0, 50, "a")
    fp.rewrite_data_files(table, options={"min-input-files": "100"})
    assert files(table) == (6, 1), "only the last delete shares keys with older files"
    assert read_rows(table) == rows_of(0, 50, "a")


def test_deletes_of_other_partitions_stay(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    table = commit_change(table, equality_delete(table, [3], 0, "a")).table
    table = commit_change(table, equality_delete(table, [13], 0, "b")).table
    fp.rewrite_data_files(table, where="part = 'b'", options=ALL)
    assert files(table) == (3, 1)
    every = rows_of(0, 10) + rows_of(10, 20, "b") + rows_of(20, 30)
    assert read_rows(table) == [row for row in every if row[0] not in (3, 13)]


@pytest.mark.parametrize("version", [2, 3])
def test_a_copy_on_write_update_removes_them(catalog: SqlCatalog, version: int) -> None:
    table = upserts(catalog, version)
    done = fp.update(table, {"part": "'b'"}, "id >= 0", mode="copy-on-write")
    assert (files(table)[1], done.delete_files_removed) == (0, 5)
    assert read_rows(table) == rows_of(0, 50, "b")


def test_an_update_of_some_files_keeps_deletes_of_the_others(catalog: SqlCatalog) -> None:
    table = upsert(upserts(catalog), rows_of(5, 15, "a"))
    fp.update(table, {"part": "'b'"}, "id >= 40", mode="copy-on-write")
    assert read_rows(table) == rows_of(0, 40, "a") + rows_of(40, 50, "b")


def test_a_delete_of_every_row_removes_them(catalog: SqlCatalog) -> None:
    table = upserts(catalog)
    done = fp.delete(table, "true")
    assert (files(table), done.delete_files_removed) == ((0, 0), 5)
    assert read_rows(table) == []


def test_position_deletes_of_a_partition_do_not_survive_a_rewrite_in_several_commits(catalog: SqlCatalog) -> None:
    table = delete_first_rows(create_table(catalog, rows=rows_of(0, 40, "a")), slice(None), per_file=False)
    assert files(table) == (4, 1)
    options = {**ALL, "max-file-group-input-files": "1", "partial-progress.enabled": "true"}
    done = fp.rewrite_data_files(table, options=options)
    assert (len(done.snapshot_ids), files(table)) == (4, (4, 0))
    assert len(read_rows(table)) == 36


def test_a_concurrent_append_of_older_keys_keeps_its_rows(catalog: SqlCatalog) -> None:
    table = upserts(catalog)
    late = append(table, rows_of(100, 110, "a"))
    fp.rewrite_data_files(table, options=ALL)
    table = commit_change(table, late, options=patient()).table
    assert read_rows(table) == rows_of(0, 50, "a") + rows_of(100, 110, "a")

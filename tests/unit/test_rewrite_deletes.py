"""Merging position delete files: the rows stay, fewer files do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.cli.main import main
from floeplan.errors import BadInputError, CommitConflictError
from floeplan.metadata.delete_index import DeleteKind
from floeplan.sql_text.call import ProcedureResult
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from floeplan.transaction.properties import set_properties
from floeplan.transaction.upgrade_format import upgrade_format
from floeplan.write.position_deletes import write_position_deletes
from floeplan.write.target import WriteTarget
from tests.support.tables.commits import (
    arrow,
    create_table,
    equality_delete,
    open_catalog,
    patient,
    read_rows,
    rows_of,
)

pytestmark = pytest.mark.unit

FILE, PARTITION, VECTOR = DeleteKind.POSITION_FILE, DeleteKind.POSITION_PARTITION, DeleteKind.VECTOR


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return open_catalog(tmp_path)


def deleted(catalog: SqlCatalog, granularity: str = "partition", specs: int = 1) -> Table:
    """Ids 0–29, of which 0, 5, 10, 15, 20 and 25 were deleted one by one."""
    table = create_table(catalog)
    set_properties(table, {"write.delete.granularity": granularity})
    if specs > 1:
        with table.refresh().update_spec() as update:
            update.add_field("id", "bucket[2]", "bucket")
        fp.append(table.refresh(), arrow(rows_of(30, 40)))
    for number in range(0, 30, 5):
        fp.delete(table, f"id = {number}", mode="merge-on-read")
    return table.refresh()


def kinds(table: Table) -> list[DeleteKind]:
    """The kinds of all delete files that apply to data files."""
    newest = table.catalog.load_table(table.name())
    files = fp.plan_scan(newest, options=fp.ScanOptions(report=False)).files
    return sorted({(one.path, one.content_offset or 0): one.kind for file in files for one in file.deletes}.values())


@pytest.mark.parametrize("specs", [1, 2])
def test_delete_files_of_a_partition_are_merged(catalog: SqlCatalog, specs: int) -> None:
    table = deleted(catalog, specs=specs)
    before, files = read_rows(table), kinds(table)
    assert len(files) == 6
    planned = fp.rewrite_position_delete_files(table, min_input_files=2, dry_run=True)
    assert (planned.rewritten_delete_files, planned.data_files, planned.snapshot_id) == (6, 3, None)
    assert kinds(table) == files
    done = fp.rewrite_position_delete_files(table, min_input_files=2)
    assert (done.rewritten_delete_files, done.added_delete_files, done.data_files) == (6, 2, 3)
    assert kinds(table) == [FILE, PARTITION], "part b has one data file, part a two"
    assert read_rows(table) == before
    summary = table.refresh().current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert (summary.operation.value, summary["removed-position-delete-files"]) == ("replace", "6")
    assert summary["total-position-deletes"] == "6"
    again = fp.rewrite_position_delete_files(table, min_input_files=2)
    assert (again.rewritten_delete_files, again.snapshot_id) == (0, None)


def test_few_files_are_left_unless_all_are_requested(catalog: SqlCatalog) -> None:
    table = deleted(catalog)
    before = read_rows(table)
    assert fp.rewrite_position_delete_files(table).snapshot_id is None
    assert fp.rewrite_position_delete_files(table, rewrite_all=True, where="part = 'b'").rewritten_delete_files == 2
    assert len(kinds(table)) == 5
    assert fp.rewrite_position_delete_files(table, rewrite_all=True).added_delete_files == 2
    assert read_rows(table) == before


def test_with_file_granularity_one_per_data_file_remains(catalog: SqlCatalog) -> None:
    """Changes of ours leave one per data file, which need not be merged; those of others become that."""
    table = deleted(catalog)
    set_properties(table, {"write.delete.granularity": "file"})
    before = read_rows(table)
    done = fp.rewrite_position_delete_files(table, min_input_files=2)
    assert (done.rewritten_delete_files, done.added_delete_files) == (6, 3)
    assert kinds(table) == [FILE] * 3
    assert read_rows(table) == before
    assert fp.rewrite_position_delete_files(table, min_input_files=2).snapshot_id is None


def test_they_become_deletion_vectors_in_format_3(catalog: SqlCatalog) -> None:
    table = deleted(catalog)
    before = read_rows(table)
    upgrade_format(table, 3)
    fp.delete(table, "id = 11", mode="merge-on-read")
    before.remove((11, "b"))
    done = fp.rewrite_position_delete_files(table)
    assert (done.added_delete_files, done.data_files) == (2, 2), "part b has a vector already"
    assert kinds(table) == [VECTOR] * 3
    assert read_rows(table) == before
    summary = table.refresh().current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert summary["added-dvs"] == "2"


def test_a_vector_has_the_positions_of_all_delete_files_of_its_data_file(catalog: SqlCatalog) -> None:
    """Readers of a vector ignore position delete files, those that were not selected included."""
    table = create_table(catalog)
    set_properties(table, {"write.delete.granularity": "partition"})
    fp.delete(table, "id IN (1, 21)", mode="merge-on-read")
    fp.delete(table, "id = 22", mode="merge-on-read")
    upgrade_format(table, 3)
    before = read_rows(table)
    done = fp.rewrite_position_delete_files(table, where="id < 10")
    assert (done.rewritten_delete_files, done.added_delete_files) == (2, 2), "the second one has no other data file"
    assert read_rows(table) == before
    assert kinds(table) == [VECTOR] * 2


def test_equality_deletes_stay_and_dangling_ones_go(catalog: SqlCatalog) -> None:
    table = deleted(catalog)
    table = commit_change(table, equality_delete(table, [7], 0, "a", bounds=True)).table
    table = commit_change(table, equality_delete(table, [700], 0, "a", bounds=True)).table
    before = read_rows(table)
    done = fp.rewrite_position_delete_files(table, rewrite_all=True)
    assert (done.rewritten_delete_files, done.dangling_delete_files) == (6, 1)
    assert kinds(table) == [DeleteKind.EQUALITY_PARTITION, FILE, PARTITION]
    assert read_rows(table) == before


def test_positions_of_removed_files_are_dropped(catalog: SqlCatalog) -> None:
    table = deleted(catalog)
    fp.rewrite_data_files(table, where="id < 10", options={"rewrite-all": "true", "remove-dangling-deletes": "false"})
    before = read_rows(table)
    done = fp.rewrite_position_delete_files(table, rewrite_all=True)
    assert done.snapshot_id is not None
    summary = table.refresh().current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert summary["total-position-deletes"] == "4"
    assert read_rows(table) == before


@pytest.mark.parametrize("version", [2, 3])
def test_a_concurrent_change_of_the_same_deletes_is_a_conflict(catalog: SqlCatalog, version: int) -> None:
    table = deleted(catalog)
    set_properties(table, {"write.delete.granularity": "file"})
    fp.rewrite_position_delete_files(table, rewrite_all=True)
    if version == 3:
        upgrade_format(table, 3)
    others: list[int] = []

    def first(step: str) -> None:
        if step == "before-commit" and not others:
            others.append(1)
            fp.delete(catalog.load_table("db.t"), "id = 1", mode="merge-on-read")

    before = delete_files(table)
    with pytest.raises(CommitConflictError):
        fp.rewrite_position_delete_files(table, rewrite_all=True, commit=patient(on_step=first))
    assert len(delete_files(table) - before) == 1, "that of the other writer"
    assert (1, "a") not in read_rows(table)
    fp.rewrite_position_delete_files(table, rewrite_all=True)
    assert len(read_rows(table)) == 23


def delete_files(table: Table) -> set[Path]:
    return set(Path(table.location().removeprefix("file://")).rglob("*-deletes.*"))


def test_command_and_procedure(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__WAREHOUSE", tmp_path.as_uri())
    table = deleted(catalog)
    command = ["rewrite-deletes", "db.t", "--min-input-files", "3", "--catalog", "local"]
    assert main([*command, "--dry-run"]) == 0
    assert "4 (" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["rewritten_delete_files"], document["added_delete_files"]) == (4, 1)
    assert main(command) == 0
    assert capsys.readouterr().out == "no position delete files to merge\n"

    def call(options: str) -> object:
        text = f"CALL floeplan.system.rewrite_position_delete_files(table => 'db.t', options => map({options}))"
        result = fp.sql(None, text, catalog=catalog)
        assert isinstance(result, ProcedureResult)
        return result.to_dict()["rows"][0]["rewritten_delete_files_count"]

    assert call("'rewrite-all', 'true', 'min-input-files', '2'") == 3
    for wrong in ("'max-files', '2'", "'min-input-files', 'x'"):
        with pytest.raises(BadInputError, match="the options are rewrite-all and min-input-files"):
            call(wrong)
    assert len(read_rows(table)) == 24


def test_a_delete_file_of_two_partitions_is_replaced_in_both(catalog: SqlCatalog) -> None:
    """A writer that did not see a move by metadata deleted rows of a moved file; the repair recorded that twice."""
    table = create_table(catalog)
    set_properties(table, {"write.delete.granularity": "partition"})
    files = fp.plan_scan(table.refresh(), "part = 'a'").files.entries
    late = write_position_deletes(
        WriteTarget.of(table), files, [np.array([1]), np.array([1])], file_name_token="late", per_file=False
    )
    with table.update_spec() as update:
        update.add_field("id", "truncate[10]", "tens")
    moved = fp.upgrade_spec(table.refresh(), options=fp.UpgradeOptions(where="id < 10", metadata_only=True))
    assert moved.files_by_metadata == 1
    commit_change(table.refresh(), SnapshotChange(Operation.DELETE, added_deletes=late))
    fp.doctor(table.refresh(), repair=True)
    for number in (22, 23):
        fp.delete(table, f"id = {number}", mode="merge-on-read")
    before = read_rows(table)
    assert len(before) == 26
    done = fp.rewrite_position_delete_files(table, min_input_files=3)
    assert done.snapshot_id is not None
    assert read_rows(table) == before
    assert kinds(table) == [FILE] * 2

"""Cherry-picks: what a snapshot of one branch appended, committed to another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.cli.main import main
from floeplan.errors import BadInputError, UnknownSnapshotError, UnsupportedError
from floeplan.sql_text.call import ProcedureResult
from floeplan.transaction.refs import create_branch
from tests.support.tables.commits import arrow, create_table, open_catalog, patient, read_rows, rows_of

pytestmark = pytest.mark.unit


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return open_catalog(tmp_path)


def staged(table: Table, rows: list[tuple[int, str]], summary: dict[str, str] | None = None) -> int:
    """Rows that are appended to the branch ``audit`` only; returns their snapshot."""
    if "audit" not in table.refresh().metadata.refs:
        create_branch(table, "audit")
    done = fp.append(table.refresh(), arrow(rows), branch="audit", summary=summary)
    assert done.snapshot_id is not None
    return done.snapshot_id


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rows_of_another_branch_are_appended(catalog: SqlCatalog, version: int) -> None:
    table = create_table(catalog, version)
    picked = staged(table, rows_of(50, 55, "b"))
    fp.append(table, arrow(rows_of(60, 65)))
    planned = fp.cherry_pick(table, picked, dry_run=True)
    assert (planned.snapshot_id, planned.rows_inserted, planned.fast_forward) == (None, 5, False)
    assert len(read_rows(table)) == 35
    done = fp.cherry_pick(table, picked)
    assert (done.data_files_added, done.rows_inserted, done.fast_forward) == (1, 5, False)
    assert done.snapshot_id == table.metadata.current_snapshot_id != picked
    assert len(read_rows(table)) == 40
    assert set(rows_of(50, 55, "b")) <= set(read_rows(table))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["source-snapshot-id"] == str(picked)
    # The rows are new in this branch: earlier deletes do not apply to them, later ones do.
    fp.delete(table, "id >= 52")
    assert len(read_rows(table)) == 32


def test_row_ids_are_those_of_the_new_snapshot(catalog: SqlCatalog) -> None:
    table = create_table(catalog, 3)
    picked = staged(table, rows_of(50, 55))
    fp.append(table, arrow(rows_of(60, 65)))
    fp.cherry_pick(table, picked)
    ids = fp.plan_scan(table, columns=["_row_id"]).to_arrow().column(0).to_pylist()
    assert len(set(ids)) == len(ids) == 40
    assert max(ids) < table.refresh().metadata.next_row_id  # type: ignore[union-attr]


def test_a_child_of_the_head_becomes_the_head(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    picked = staged(table, rows_of(50, 55))
    done = fp.cherry_pick(table, picked)
    assert (done.fast_forward, done.snapshot_id, done.rows_inserted) == (True, picked, 5)
    assert table.refresh().metadata.current_snapshot_id == picked


def test_a_change_that_is_no_append_can_only_be_moved_to(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    create_branch(table, "audit")
    deleted = fp.delete(table, "id = 3", branch="audit").snapshot_id
    assert deleted is not None
    assert fp.cherry_pick(table, deleted, dry_run=True).fast_forward
    fp.append(table, arrow(rows_of(60, 65)))
    refused = (
        r"is neither an append nor a dynamic overwrite \((delete|overwrite)\) and its parent is not the head of main"
    )
    with pytest.raises(UnsupportedError, match=refused):
        fp.cherry_pick(table, deleted)


def test_nothing_is_picked_twice(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    picked = staged(table, rows_of(50, 55), {"wap.id": "audit-1"})
    again = staged(table, rows_of(70, 75), {"wap.id": "audit-1"})
    fp.append(table, arrow(rows_of(60, 65)))
    done = fp.cherry_pick(table, picked)
    assert table.refresh().current_snapshot().summary["published-wap-id"] == "audit-1"  # type: ignore[union-attr, index]
    before = read_rows(table)
    for source in (picked, again, done.snapshot_id, table.snapshots()[0].snapshot_id):
        assert source is not None
        with pytest.raises(BadInputError, match="main has the changes of snapshot"):
            fp.cherry_pick(table, source)
    assert read_rows(table) == before
    with pytest.raises(UnknownSnapshotError, match="no snapshot 42"):
        fp.cherry_pick(table, 42)


def test_files_that_the_branch_has_are_not_added_again(catalog: SqlCatalog) -> None:
    """The snapshot that brought them may have expired; here they were registered without a trace of the source."""
    table = create_table(catalog)
    picked = staged(table, rows_of(50, 55))
    path = next(f.path for f in fp.plan_scan(table.refresh(), "id >= 50", ref="audit").files)
    fp.append(table, [path], add_files=True)
    with pytest.raises(BadInputError, match=r"main has data file .* already"):
        fp.cherry_pick(table, picked)


def test_a_concurrent_pick_of_the_same_snapshot_is_seen(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    picked = staged(table, rows_of(50, 55))
    fp.append(table, arrow(rows_of(60, 65)))
    others: list[int] = []

    def first(step: str) -> None:
        if step == "before-commit" and not others:
            others.append(picked)
            fp.cherry_pick(catalog.load_table("db.t"), picked)

    with pytest.raises(BadInputError, match="main has the changes of snapshot"):
        fp.cherry_pick(table, picked, options=patient(on_step=first))
    assert len(read_rows(table)) == 40


def test_a_concurrent_append_is_no_obstacle(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    picked = staged(table, rows_of(50, 55))
    fp.append(table, arrow(rows_of(60, 65)))
    others: list[int] = []

    def first(step: str) -> None:
        if step == "before-commit" and not others:
            others.append(1)
            fp.append(catalog.load_table("db.t"), arrow(rows_of(80, 85)))

    fp.cherry_pick(table, picked, options=patient(on_step=first))
    assert len(read_rows(table)) == 45


def test_a_branch_that_moves_before_a_fast_forward_gets_an_append(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    picked = staged(table, rows_of(50, 55))
    others: list[int] = []

    def first(step: str) -> None:
        if step == "before-commit" and not others:
            others.append(1)
            fp.append(catalog.load_table("db.t"), arrow(rows_of(80, 85)))

    done = fp.cherry_pick(table, picked, options=patient(on_step=first))
    assert others
    assert not done.fast_forward
    assert len(read_rows(table)) == 40


def test_files_keep_the_spec_they_were_written_under(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    picked = staged(table, rows_of(50, 55))
    with table.refresh().update_spec() as update:
        update.add_field("id", "bucket[2]", "bucket")
    fp.append(table.refresh(), arrow(rows_of(60, 65)))
    fp.cherry_pick(table, picked)
    (file,) = fp.plan_scan(table.refresh(), "id >= 50 AND id < 55").files
    assert file.spec_id == 0
    assert len(read_rows(table)) == 40


def staged_overwrite(table: Table, rows: list[tuple[int, str]]) -> int:
    """A dynamic overwrite of the branch ``audit`` only; returns its snapshot."""
    create_branch(table.refresh(), "audit")
    done = fp.overwrite(table.refresh(), arrow(rows), dynamic=True, branch="audit")
    assert done.snapshot_id is not None
    return done.snapshot_id


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_dynamic_overwrite_replaces_the_same_files(catalog: SqlCatalog, version: int) -> None:
    table = create_table(catalog, version)
    if version > 1:  # a delete file of a replaced data file goes with it
        fp.delete(table, "id = 3", mode="merge-on-read")
    picked = staged_overwrite(table, rows_of(50, 55, "a"))
    fp.append(table, arrow(rows_of(60, 65, "b")))
    planned = fp.cherry_pick(table, picked, dry_run=True)
    assert (planned.data_files_added, planned.data_files_removed, planned.fast_forward) == (1, 2, False)
    done = fp.cherry_pick(table, picked)
    assert (done.rows_inserted, done.data_files_removed) == (5, 2)
    assert read_rows(table) == sorted(rows_of(10, 20, "b") + rows_of(50, 55, "a") + rows_of(60, 65, "b"))
    summary = table.refresh().current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert (summary.operation.value, summary["replace-partitions"]) == ("overwrite", "true")
    assert summary["total-delete-files"] == "0"
    with pytest.raises(BadInputError, match="main has the changes of snapshot"):
        fp.cherry_pick(table, picked)


def compacted(table: Table) -> None:
    fp.rewrite_data_files(table, where="part = 'a'", options={"rewrite-all": "true"})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda table: fp.append(table, arrow(rows_of(60, 65, "a"))), id="append"),
        pytest.param(compacted, id="rewrite"),
        pytest.param(lambda table: fp.delete(table, "id < 10", mode="copy-on-write"), id="delete"),
    ],
)
def test_partitions_that_have_changed_are_not_replaced(catalog: SqlCatalog, change: Callable[[Table], object]) -> None:
    table = create_table(catalog)
    picked = staged_overwrite(table, rows_of(50, 55, "a"))
    change(table.refresh())
    before = read_rows(table)
    with pytest.raises(
        UnsupportedError, match=r"main has changed the partitions that snapshot \d+ replaced, in snapshot"
    ):
        fp.cherry_pick(table, picked)
    assert read_rows(table) == before


def test_files_of_another_spec_may_lie_in_a_replaced_partition(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    picked = staged_overwrite(table, rows_of(50, 55, "a"))
    with table.refresh().update_spec() as update:
        update.add_field("id", "bucket[2]", "bucket")
    fp.append(table.refresh(), arrow(rows_of(60, 65, "a")))
    with pytest.raises(UnsupportedError, match="main has changed the partitions"):
        fp.cherry_pick(table, picked)


def test_an_overwrite_of_another_history_is_refused(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    staged(table, rows_of(40, 45, "a"))
    replaced = fp.overwrite(table.refresh(), arrow(rows_of(50, 55, "a")), dynamic=True, branch="audit").snapshot_id
    fp.append(table.refresh(), arrow(rows_of(60, 65, "b")))
    assert replaced is not None
    with pytest.raises(UnsupportedError, match="which is not in the history of main"):
        fp.cherry_pick(table, replaced)


def test_an_overwrite_that_copied_rows_is_no_dynamic_one(catalog: SqlCatalog) -> None:
    """A file of another spec has rows inside and outside of the replaced partition; the others are written again."""
    table = create_table(catalog)
    with table.update_spec() as update:
        update.remove_field("part")
    fp.append(table.refresh(), arrow(rows_of(60, 65, "a") + rows_of(65, 70, "b")))
    with table.refresh().update_spec() as update:
        update.add_identity("part")
    picked = staged_overwrite(table, rows_of(50, 55, "a"))
    fp.append(table.refresh(), arrow(rows_of(80, 85, "b")))
    with pytest.raises(UnsupportedError, match="is neither an append nor a dynamic overwrite"):
        fp.cherry_pick(table, picked)


def test_a_concurrent_change_of_a_replaced_partition_is_seen(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    picked = staged_overwrite(table, rows_of(50, 55, "a"))
    fp.append(table, arrow(rows_of(60, 65, "b")))
    others: list[int] = []

    def first(step: str) -> None:
        if step == "before-commit" and not others:
            others.append(1)
            fp.append(catalog.load_table("db.t"), arrow(rows_of(80, 85, "a")))

    with pytest.raises(UnsupportedError, match="main has changed the partitions"):
        fp.cherry_pick(table, picked, options=patient(on_step=first))
    assert len(read_rows(table)) == 40


def test_command_and_procedure(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__WAREHOUSE", tmp_path.as_uri())
    table = create_table(catalog)
    first, second = staged(table, rows_of(50, 55)), staged(table, rows_of(70, 71))
    fp.append(table, arrow(rows_of(60, 65)))
    command = ["cherrypick", "db.t", "--snapshot-id", str(first), "--catalog", "local"]
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out == f"main would get what snapshot {first} appended: 1 data file, 5 rows\n"
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["operation"], document["rows_inserted"]) == ("cherrypick", 5)
    assert main(command) == 2
    result = fp.sql(None, f"CALL floeplan.system.cherrypick_snapshot('db.t', {second})", catalog=catalog)
    assert isinstance(result, ProcedureResult)
    current = table.refresh().metadata.current_snapshot_id
    assert result.to_dict()["rows"] == [{"source_snapshot_id": second, "current_snapshot_id": current}]
    assert len(read_rows(table)) == 41

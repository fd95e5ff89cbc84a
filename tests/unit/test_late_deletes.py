"""Writers of equality deletes that go on under an old spec: refused, warned of, found and repaired."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.cli.main import main
from floeplan.errors import UnsupportedError
from floeplan.maintenance.doctor import Finding, doctor
from floeplan.rewrite.plan import equality_writers
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions
from floeplan.transaction.change import Operation
from floeplan.transaction.commit import commit_change
from floeplan.transaction.metadata_json import writable_metadata
from floeplan.write.data_files import write_data_files
from floeplan.write.target import WriteTarget
from tests.support.tables.commits import (
    Rows,
    arrow,
    create_table,
    equality_delete,
    open_catalog,
    partition_by_part,
    patient,
    read_rows,
    rows_of,
    unpartitioned_table,
)

pytestmark = pytest.mark.unit

ALL = {"rewrite-all": "true"}


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return open_catalog(tmp_path)


def upsert(table: Table, rows: Rows) -> Table:
    """As a streaming writer that keeps the spec it began with: deletes and rows under spec 0."""
    deletes = equality_delete(table, [row[0] for row in rows], 0, rows[0][1], bounds=True)
    data = write_data_files(WriteTarget.of(table, spec_id=0), [arrow(rows)], file_name_token="test")
    change = replace(deletes, operation=Operation.OVERWRITE, added_data=data)
    return commit_change(table.refresh(), change, options=patient()).table


def streamed(catalog: SqlCatalog, version: int = 2) -> Table:
    """Upserts of ids 0–29 under spec 0 (by part), then the table is partitioned by a bucket of the id as well."""
    table = create_table(catalog, version, rows=[])
    for first, part in ((0, "a"), (10, "b"), (20, "a")):
        table = upsert(table, rows_of(first, first + 10, part))
    with writable_metadata(table.io), table.update_spec() as update:
        update.add_field("id", "bucket[1]", "bucket")
    return table.refresh()


def late(table: Table) -> list[Finding]:
    found = doctor(table.catalog.load_table(table.name())).findings
    return [finding for finding in found if finding.kind == "late-equality-deletes"]


@pytest.mark.parametrize("how", ["rewrite", "upgrade"])
def test_rows_do_not_leave_a_spec_with_a_live_writer(catalog: SqlCatalog, how: str) -> None:
    table = streamed(catalog)
    before = table.metadata.current_snapshot_id
    move = fp.upgrade_spec if how == "upgrade" else partial(fp.rewrite_data_files, spec="current")
    with pytest.raises(UnsupportedError, match=r"equality deletes under partition spec 0.*--allow-late") as refused:
        move(table)
    assert refused.value.kind == "live-equality-writer"
    assert table.refresh().metadata.current_snapshot_id == before
    assert fp.rewrite_data_files(table, options=ALL).files_rewritten == 3, "rows that keep their spec can be rewritten"


def test_a_writer_that_ended_long_ago_does_not_count(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = streamed(catalog)
    monkeypatch.setattr(equality_writers, "RECENT_HOURS", 0)
    assert fp.rewrite_data_files(table, spec="current").files_rewritten == 3


def test_deletes_of_an_unpartitioned_spec_apply_everywhere(catalog: SqlCatalog) -> None:
    table = unpartitioned_table(catalog)
    table = commit_change(table, equality_delete(table, [3], 0)).table
    table = partition_by_part(table)
    done = fp.rewrite_data_files(table, spec="current")
    assert [w.kind for w in done.planning.warnings] == ["late-equality-deletes"]
    table = commit_change(table.refresh(), equality_delete(table, [7], 0)).table
    assert 7 not in {row[0] for row in read_rows(table)}
    assert late(table) == []


def test_a_dry_run_warns_and_the_option_allows(catalog: SqlCatalog, capsys: pytest.CaptureFixture[str]) -> None:
    table = streamed(catalog)
    options = fp.RewriteOptions(spec="current")
    warned = [w.kind for w in fp.RewriteDataFilesPlanner(table, options).plan_with_stats().warnings]
    assert warned == ["late-equality-deletes", "live-equality-writer"]
    dry = fp.upgrade_spec(table, options=UpgradeOptions(dry_run=True))
    assert sum("equality deletes" in note for note in dry.notes) == 2
    assert main(["upgrade-spec", table.metadata_location, "--dry-run", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["notes"]) == 3
    done = fp.rewrite_data_files(table, spec="current", allow_late_equality_deletes=True)
    assert done.files_rewritten == 3


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("how", ["rewrite", "upgrade"])
def test_doubled_rows_are_counted_and_the_repair_deletes_them(catalog: SqlCatalog, how: str, version: int) -> None:
    table = streamed(catalog, version)
    if how == "rewrite":
        fp.rewrite_data_files(table, spec="current", allow_late_equality_deletes=True)
    else:
        fp.upgrade_spec(table, options=UpgradeOptions(allow_late_equality_deletes=True))
    assert late(table) == []
    table = upsert(table, rows_of(0, 5, "a") + rows_of(40, 45, "a"))
    table = upsert(table, rows_of(10, 12, "b"))
    every = rows_of(0, 10) + rows_of(10, 20, "b") + rows_of(20, 30)
    doubled = rows_of(0, 5) + rows_of(10, 12, "b")
    assert read_rows(table) == sorted(every + rows_of(40, 45) + doubled)
    (found,) = late(table)
    assert (found.files, found.spec_id, found.fix) == (2, 0, "floeplan doctor db.t --repair")
    assert "7 rows" in found.message
    repaired = doctor(table, repair=True, commit=patient()).repaired
    assert repaired is not None
    assert repaired.delete_files == 2
    assert read_rows(table) == sorted(every + rows_of(40, 45))
    assert late(table) == []
    again = doctor(table.refresh(), repair=True, commit=patient()).repaired
    assert again is not None
    assert again.snapshot_id is None


def test_rows_that_did_not_move_are_counted_and_not_deleted(catalog: SqlCatalog) -> None:
    """A file made of rows of both specs: which of them the writer meant cannot be proven."""
    table = streamed(catalog)
    fp.append(table, arrow(rows_of(50, 60)))
    fp.rewrite_data_files(table, spec="current", options=ALL, allow_late_equality_deletes=True)
    table = upsert(table, rows_of(55, 60, "a"))
    (found,) = late(table)
    assert (found.fix, "5 rows" in found.message) == (None, True)
    before = read_rows(table)
    doctor(table, repair=True, commit=patient())
    assert read_rows(table) == before


def test_keys_of_another_partition_are_not_doubled(catalog: SqlCatalog) -> None:
    table = streamed(catalog)
    fp.rewrite_data_files(table, spec="current", allow_late_equality_deletes=True)
    table = commit_change(table.refresh(), equality_delete(table, [3], 0, "b", bounds=True)).table
    assert late(table) == [], "id 3 is of part a"
    assert len(read_rows(table)) == 30


def test_a_copy_on_write_update_that_moves_rows_is_marked(catalog: SqlCatalog) -> None:
    table = streamed(catalog)
    fp.update(table, {"part": "'c'"}, "id < 5", mode="copy-on-write")
    summary = table.refresh().current_snapshot().summary.additional_properties  # type: ignore[union-attr]
    assert summary["floeplan.moved-from-specs"] == summary["floeplan.replaced-specs"] == "0"
    fp.rewrite_data_files(table, options=ALL)
    kept = table.refresh().current_snapshot().summary.additional_properties  # type: ignore[union-attr]
    assert "floeplan.moved-from-specs" not in kept

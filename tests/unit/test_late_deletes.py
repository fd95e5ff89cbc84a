"""Writers of equality deletes that go on under an old spec: refused, warned of, found and repaired."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

import floeplan as fp
from floeplan.cli.main import main
from floeplan.dml.commit import DmlResult
from floeplan.dml.merge.builder import Merge
from floeplan.errors import UnsupportedError
from floeplan.fleet.policy_file import parse_policy
from floeplan.maintenance.doctor import Finding, Severity, doctor
from floeplan.rewrite.spec_upgrade import late_deletes
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions
from floeplan.sql_text.call import ProcedureResult
from floeplan.transaction import equality_writers
from floeplan.transaction.change import Operation
from floeplan.transaction.commit import commit_change
from floeplan.transaction.metadata_json import writable_metadata
from floeplan.write.data_files import write_data_files
from floeplan.write.target import WriteTarget
from tests.support.tables.commits import (
    Rows,
    arrow,
    create_table,
    data_specs,
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


def streamed(catalog: SqlCatalog, version: int = 2, buckets: int = 1) -> Table:
    """Upserts of ids 0–29 under spec 0 (by part), then the table is partitioned by a bucket of the id as well."""
    table = create_table(catalog, version, rows=[])
    for first, part in ((0, "a"), (10, "b"), (20, "a")):
        table = upsert(table, rows_of(first, first + 10, part))
    with writable_metadata(table.io), table.update_spec() as update:
        update.add_field("id", f"bucket[{buckets}]", "bucket")
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


def test_a_writer_behind_the_commits_of_another_is_found(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with the current spec may have added more snapshots than are looked at."""
    table = streamed(catalog)
    monkeypatch.setattr(equality_writers, "_MOST_LISTS", 1)
    deletes = equality_delete(table, [100], 1, "a", bounds=True)
    table = commit_change(table, deletes, options=patient()).table
    with pytest.raises(UnsupportedError, match=r"equality deletes under partition spec 0"):
        fp.rewrite_data_files(table, spec="current")


@pytest.mark.parametrize("how", ["rewrite", "upgrade", "update"])
def test_a_writer_whose_snapshots_have_expired_may_be_live(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its deletes are still there, and the history does not say how old they are."""
    table = streamed(catalog)
    fp.append(table, arrow(rows_of(50, 60, "c")))
    fp.expire_snapshots(table.refresh(), older_than=timedelta(0), dry_run=False)
    move = {
        "rewrite": lambda: fp.rewrite_data_files(table.refresh(), spec="current"),
        "upgrade": lambda: fp.upgrade_spec(table.refresh()),
        "update": lambda: fp.update(table.refresh(), {"id": "id"}, "id = 3"),
    }[how]
    with pytest.raises(UnsupportedError, match=r"expired and may be of the last 24 hours, .*partition spec 0.*--allow"):
        move()
    monkeypatch.setattr(equality_writers, "RECENT_HOURS", 0)
    move()
    assert data_specs(table.refresh()) != [0, 0, 0, 1]


def test_expired_snapshots_without_equality_deletes_are_no_writer(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    fp.delete(table, "id = 3", mode="merge-on-read")
    fp.delete(table, "id = 13", mode="merge-on-read")
    with writable_metadata(table.io), table.refresh().update_spec() as update:
        update.add_field("id", "bucket[1]", "bucket")
    fp.expire_snapshots(table.refresh(), older_than=timedelta(0), dry_run=False)
    assert fp.rewrite_data_files(table.refresh(), spec="current").files_rewritten == 3


def test_a_rewrite_warns_that_it_hides_doubled_rows(catalog: SqlCatalog) -> None:
    """Late deletes apply to older files only: not to new ones of the same rows."""
    table = streamed(catalog)
    fp.rewrite_data_files(table, spec="current", allow_late_equality_deletes=True)

    def warnings() -> list[str]:
        planner = fp.RewriteDataFilesPlanner(table.refresh(), fp.RewriteOptions(rewrite_all=True))
        return [f"{one.kind}: {one.message}" for one in planner.plan_with_stats().warnings]

    upsert(table, rows_of(40, 45, "a"))
    assert warnings() == [], "keys of new rows double nothing"
    upsert(table, rows_of(0, 5, "a"))
    (warning,) = warnings()
    assert warning.startswith("doubled-rows: 1 equality delete file came after rows had left their spec")
    doctor(table.refresh(), repair=True, commit=patient())
    assert warnings() == []


def test_a_rewrite_keeps_late_deletes_until_they_are_repaired(catalog: SqlCatalog) -> None:
    """They apply to no file of their partition, and prove which rows are doubled."""
    table = streamed(catalog)
    fp.rewrite_data_files(table, spec="current", allow_late_equality_deletes=True)
    table = upsert(table, rows_of(0, 5, "a"))
    assert "dangling-deletes" not in {finding.kind for finding in doctor(table).findings}
    fp.rewrite_data_files(table.refresh())
    assert len(read_rows(table)) == 35
    assert late(table)
    doctor(table.refresh(), repair=True, commit=patient())
    assert read_rows(table) == sorted(rows_of(0, 10, "a") + rows_of(10, 20, "b") + rows_of(20, 30, "a"))


def test_what_would_be_refused_is_neither_recommended_nor_planned(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, policy = streamed(catalog), parse_policy('[defaults]\nupgrade-specs = "rewrite"')

    def advice() -> tuple[bool, bool]:
        (report,) = fp.maintain(policy=policy, dry_run=True, catalog=catalog).tables
        recommended = "old-specs" in {finding.kind for finding in doctor(table).findings}
        return recommended, "upgrade-spec" in {one.work.kind for one in report.work}

    assert advice() == (False, False)
    monkeypatch.setattr(equality_writers, "RECENT_HOURS", 0)
    assert advice() == (True, True)


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
    assert found.severity is Severity.ERROR
    assert "7 rows" in found.message
    repaired = doctor(table, repair=True, commit=patient()).repaired
    assert repaired is not None
    assert repaired.delete_files == 2
    assert read_rows(table) == sorted(every + rows_of(40, 45))
    assert late(table) == []
    again = doctor(table.refresh(), repair=True, commit=patient()).repaired
    assert again is not None
    assert again.snapshot_id is None


@pytest.mark.parametrize("how", ["rewrite", "change", "metadata"])
def test_doubled_rows_are_counted_after_the_snapshot_that_moved_them_has_expired(catalog: SqlCatalog, how: str) -> None:
    """Which spec the rows came from is unknown then, so nothing is repaired."""
    table = streamed(catalog)
    if how == "rewrite":
        fp.rewrite_data_files(table, spec="current", allow_late_equality_deletes=True)
    elif how == "change":
        fp.update(table, {"id": "id"}, "id < 30", mode="copy-on-write", allow_late_equality_deletes=True)
    else:
        with writable_metadata(table.io), table.update_spec() as update:
            update.remove_field("bucket").add_field("part", "truncate[1]", "first")
        done = fp.upgrade_spec(table.refresh(), options=UpgradeOptions(allow_late_equality_deletes=True))
        assert done.files_by_metadata
    fp.expire_snapshots(upsert(table, rows_of(30, 40, "a")), older_than=timedelta(0), dry_run=False)
    assert late(table) == [], "keys of new rows double nothing"
    upsert(table, rows_of(0, 10, "a"))
    (found,) = late(table)
    assert found.message.startswith("1 delete file was added under an old spec after rows were moved out of it")
    assert "without deleting 10 rows that moved: delete those rows" in found.message
    assert len(table.refresh().metadata.snapshots) == 2


def test_doubled_rows_are_an_error_and_what_is_not_compared_a_warning(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = streamed(catalog)
    fp.rewrite_data_files(table, spec="current", allow_late_equality_deletes=True)
    table = upsert(table, rows_of(0, 5, "a"))
    assert main(["doctor", table.metadata_location, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [one["severity"] for one in found if one["kind"] == "late-equality-deletes"] == ["error"]
    monkeypatch.setattr(late_deletes, "MOST_FILES", 0)
    assert main(["doctor", table.metadata_location, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    (one,) = [one for one in found if one["kind"] == "late-equality-deletes"]
    assert (one["severity"], one["fix"], one["files"]) == ("warning", None, 1)
    assert "may not delete rows that moved: check their rows" in one["message"]


def test_rows_that_did_not_move_are_counted_and_not_deleted(catalog: SqlCatalog) -> None:
    """A file made of rows of both specs: which of them the writer meant cannot be proven."""
    table = streamed(catalog)
    fp.append(table, arrow(rows_of(50, 60)))
    fp.rewrite_data_files(table, spec="current", options=ALL, allow_late_equality_deletes=True)
    table = upsert(table, rows_of(55, 60, "a"))
    (found,) = late(table)
    assert (found.severity, found.fix, "5 rows" in found.message) == (Severity.ERROR, None, True)
    before = read_rows(table)
    doctor(table, repair=True, commit=patient())
    assert read_rows(table) == before


@pytest.mark.parametrize("others", [[], [(3, "b")]])
def test_a_repair_does_not_delete_rows_that_stayed_in_another_partition(catalog: SqlCatalog, others: Rows) -> None:
    """Recorded under an unpartitioned spec, a delete applies to the whole table."""
    table = upsert(create_table(catalog, rows=[]), rows_of(0, 10))
    if others:
        table = upsert(table, others)
    with writable_metadata(table.io), table.update_spec() as update:
        update.remove_field("part")
    fp.rewrite_data_files(table, spec="current", where="part = 'a'", options=ALL, allow_late_equality_deletes=True)
    table = upsert(table, [(3, "a")])
    expected = sorted(rows_of(0, 10) + others)
    assert read_rows(table) == sorted([*expected, (3, "a")])
    (found,) = late(table)
    assert "without deleting 1 row that moved" in found.message
    assert (found.fix is None) == bool(others)
    doctor(table, repair=True, commit=patient())
    assert read_rows(table) == (sorted([*expected, (3, "a")]) if others else expected)


def test_keys_of_another_partition_are_not_doubled(catalog: SqlCatalog) -> None:
    table = streamed(catalog)
    fp.rewrite_data_files(table, spec="current", allow_late_equality_deletes=True)
    table = commit_change(table.refresh(), equality_delete(table, [3], 0, "b", bounds=True)).table
    assert late(table) == [], "id 3 is of part a"
    assert len(read_rows(table)) == 30


def test_a_copy_on_write_update_that_moves_rows_is_marked(catalog: SqlCatalog) -> None:
    table = streamed(catalog)
    fp.update(table, {"part": "'c'"}, "id < 5", mode="copy-on-write", allow_late_equality_deletes=True)
    summary = table.refresh().current_snapshot().summary.additional_properties  # type: ignore[union-attr]
    assert summary["floeplan.moved-from-specs"] == summary["floeplan.replaced-specs"] == "0"
    fp.rewrite_data_files(table, options=ALL)
    kept = table.refresh().current_snapshot().summary.additional_properties  # type: ignore[union-attr]
    assert "floeplan.moved-from-specs" not in kept


# Changes of rows.

COPY, MERGE = "copy-on-write", "merge-on-read"
bucket = BucketTransform(4).transform(LongType())
APART = next(i for i in range(90, 200) if bucket(i) != bucket(4))
"""A new id that is not in the bucket of 4."""
Change = Callable[..., DmlResult]


def changes(mode: str) -> dict[str, Change]:
    """Updates of id 4, and deletes of id 3 or in partitions without id 4."""
    new = arrow([(APART, "a")])

    def merged(table: Table, rows: Rows, **options: bool) -> Merge:
        return fp.merge(table, arrow(rows), on="id", mode=mode, **options)

    return {
        "update": lambda table, **options: fp.update(table, {"part": "part"}, "id = 4", mode=mode, **options),
        "merge update": lambda table, **options: merged(table, [(4, "a")], **options).when_matched_update().execute(),
        "delete": lambda table, **options: fp.delete(table, "id = 3", mode=mode, **options),
        "merge delete": lambda table, **options: merged(table, [(3, "a")], **options).when_matched_delete().execute(),
        "overwrite": lambda table, **options: fp.overwrite(table, new, "id = 3", mode=mode, **options),
        "dynamic overwrite": lambda table, **options: fp.overwrite(table, new, dynamic=True, mode=mode, **options),
    }


MOVING: dict[str, Change] = {f"{name} {COPY}": change for name, change in changes(COPY).items()}
MOVING |= {f"{name} {MERGE}": changes(MERGE)[name] for name in ("update", "merge update")}
STAYING: dict[str, Change] = {
    f"{name} {MERGE}": changes(MERGE)[name] for name in changes(MERGE) if "update" not in name
}
STAYING |= {
    "delete of whole files": lambda table: fp.delete(table, "part = 'b'", mode=COPY),
    "overwrite of whole files": lambda table: fp.overwrite(table, arrow([(APART, "b")]), "part = 'b'", mode=COPY),
    "insert": lambda table: fp.merge(table, arrow([(APART, "a")]), on="id").when_not_matched_insert().execute(),
}


def cases(changes: dict[str, Change]) -> list[Any]:
    """Their names; CI alone runs those of which another command has the same code."""
    left = (f"merge update {COPY}", f"merge delete {COPY}", f"merge delete {MERGE}", f"overwrite {MERGE}")
    return [pytest.param(name, marks=pytest.mark.matrix if name in left else ()) for name in changes]


def files_of(table: Table) -> set[Path]:
    return set(Path(table.location().removeprefix("file://")).rglob("*"))


@pytest.mark.parametrize("name", cases(MOVING))
def test_a_change_does_not_move_rows_away_from_a_live_writer(catalog: SqlCatalog, name: str) -> None:
    table = streamed(catalog, buckets=4)
    before, files = table.metadata.current_snapshot_id, files_of(table)
    with pytest.raises(
        UnsupportedError, match=r"under partition spec 0.*to spec 1; stop it, .*--allow-late"
    ) as refused:
        MOVING[name](table)
    assert refused.value.kind == "live-equality-writer"
    assert ("mode=merge-on-read" in str(refused.value)) == ("update" not in name)
    assert table.refresh().metadata.current_snapshot_id == before
    assert files_of(table) == files

    # Without the check the next upsert does not delete the row that has moved.
    assert MOVING[name](table, allow_late_equality_deletes=True).committed
    assert read_rows(table).count((4, "a")) == 1
    upsert(table, [(4, "a")])
    assert read_rows(table).count((4, "a")) == 2
    assert [finding.files for finding in late(table)] == [1]


@pytest.mark.parametrize("name", cases(STAYING))
def test_a_change_that_moves_no_rows_is_allowed(catalog: SqlCatalog, name: str) -> None:
    table = streamed(catalog, buckets=4)
    assert STAYING[name](table).committed
    upsert(table, [(4, "a")])
    assert read_rows(table).count((4, "a")) == 1
    assert late(table) == []


def test_rows_of_the_current_spec_and_of_an_ended_writer_are_changed(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = streamed(catalog)
    fp.append(table, arrow(rows_of(50, 60, "c")))
    assert fp.update(table, {"id": "id + 100"}, "part = 'c'", mode=COPY).rows_updated == 10
    monkeypatch.setattr(equality_writers, "RECENT_HOURS", 0)
    assert fp.update(table, {"id": "id + 100"}, "part = 'a'", mode=COPY).rows_updated == 20


def test_statements_and_commands_refuse_and_take_the_option(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__WAREHOUSE", tmp_path.as_uri())
    monkeypatch.setattr("floeplan.spark.session.open_session", lambda _: pytest.fail("a refusal needs no Spark"))
    table = streamed(catalog)
    pq.write_table(arrow([(4, "a")]), tmp_path / "new.parquet")
    merged = ["merge", "db.t", "--source", f"{tmp_path}/new.parquet", "--on", "id", "--when-matched-update", "*"]
    for command in (
        ["delete", "db.t", "--where", "id = 3", "--dry-run"],
        ["update", "db.t", "--set", "id = 2", "--where", "id = 2", "--dry-run"],
        [*merged, "--dry-run"],
        ["delete", "db.t", "--where", "id = 3"],
        ["update", "db.t", "--set", "id = 5", "--where", "id = 5"],
        merged,
        ["sql", "DELETE FROM db.t WHERE id = 6"],
        ["sql", "INSERT INTO db.t REPLACE WHERE id = 7 VALUES (7, 'a')"],
    ):
        streamed_again(table)
        arguments = [*command, "--catalog", "local", "--json"]
        assert main(arguments) == 1
        assert json.loads(capsys.readouterr().out)["error"]["kind"] == "live-equality-writer"
        assert main([*arguments, "--allow-late-equality-deletes"]) == 0
        capsys.readouterr()


def test_the_procedure_refuses_and_its_option_allows(catalog: SqlCatalog) -> None:
    table = streamed(catalog)
    moves = "'rewrite-all', 'true', 'target-spec-id', '1'"
    call = "CALL floeplan.system.rewrite_data_files(table => 'db.t', options => map({}))"
    with pytest.raises(UnsupportedError, match="equality deletes under partition spec 0"):
        fp.sql(call.format(moves), catalog=catalog)
    result = fp.sql(call.format(f"{moves}, 'allow-late-equality-deletes', true"), catalog=catalog)
    assert isinstance(result, ProcedureResult)
    assert result.to_dict()["rows"][0]["rewritten_data_files_count"] == 3
    assert len(read_rows(table)) == 30


def streamed_again(table: Table) -> None:
    """Ids 0–9 under the old spec once more."""
    fp.delete(table, "TRUE")
    upsert(table, rows_of(0, 10))


def test_the_data_source_refuses_and_removes_what_was_written(tmp_path: Path, catalog: SqlCatalog) -> None:
    from floeplan.datasource.io import FloeplanWriter, SourceOptions

    table = streamed(catalog)
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}
    options = {f"catalog.{name}": value for name, value in properties.items()}
    options |= {"table": "db.t", "catalog": "local", "overwrite-where": "id = 3"}

    def overwrite(options: dict[str, str]) -> None:
        writer = FloeplanWriter(SourceOptions(options), overwrite=True)
        writer.commit([writer.write(iter(arrow([(3, "a")]).to_batches()))])

    files = files_of(table)
    with pytest.raises(UnsupportedError, match="mode=merge-on-read"):
        overwrite(options)
    assert {file for file in files_of(table) - files if file.is_file()} == set()
    overwrite(options | {"allow-late-equality-deletes": "true"})
    assert len(read_rows(table)) == 30

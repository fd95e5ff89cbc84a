"""Clustered manifests, expired snapshots and orphans: what is removed, and what must stay."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import SetPartitionStatisticsUpdate

from floeplan.cli.main import main
from floeplan.errors import (
    CommitConflictError,
    CorruptMetadataError,
    InvalidOptionError,
    UnknownSnapshotError,
    UnknownSpecError,
    UnsupportedError,
)
from floeplan.maintenance import orphans
from floeplan.maintenance.expire import expire_snapshots
from floeplan.maintenance.orphans import remove_orphans
from floeplan.maintenance.rewrite_manifests import rewrite_manifests
from floeplan.metadata.files import Location
from floeplan.scan.plan import plan_scan
from floeplan.transaction.change import IsolationLevel
from floeplan.transaction.commit import commit_change
from floeplan.transaction.metadata_json import writable_metadata
from floeplan.transaction.refs import Retention, create_branch, create_tag, rollback_to
from tests.support.tables.commits import (
    NO_SCAN_EXTRAS,
    append,
    copy_on_write_delete,
    create_table,
    delete_first_rows,
    entry_values,
    evolved_table,
    files_under,
    leftovers,
    no_retry,
    open_catalog,
    patient,
    reachable,
    read_rows,
    rows_of,
    unreliable,
)

pytestmark = pytest.mark.unit

LATER = 2**53
WEEK = 7 * 24 * 3600


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return open_catalog(tmp_path)


def reloaded(table: Table) -> Table:
    return table.catalog.load_table(table.name())


def interleaved(catalog: SqlCatalog, version: int = 2, commits: int = 8) -> Table:
    """Every commit adds a file to each of four parts."""
    table = create_table(catalog, version, rows=[])
    for at in range(commits):
        rows = [row for i, part in enumerate("abcd") for row in rows_of(at * 40 + i * 10, at * 40 + i * 10 + 10, part)]
        table = commit_change(table, append(table, rows)).table
    return table


def kept_manifests(table: Table) -> tuple[int, int]:
    summary = plan_scan(reloaded(table), "part = 'b'", options=NO_SCAN_EXTRAS).summary
    return summary.manifests_kept, summary.manifests_total


@pytest.mark.parametrize("version", [1, 2, 3])
def test_clustered_manifests_are_pruned(catalog: SqlCatalog, version: int) -> None:
    table = interleaved(catalog, version)
    rows, entries = read_rows(table), entry_values(table, "sequence_number", "snapshot_id", "first_row_id", "spec_id")
    assert kept_manifests(table) == (8, 8)
    result = rewrite_manifests(table, least_entries=8, commit=patient())
    assert (result.manifests_before, result.manifests_after) == (8, 4)
    assert kept_manifests(table) == (1, 4)
    assert [(s.overlap_before, s.overlap_after) for s in result.specs] == [(8.0, 1.0)]
    assert entry_values(reloaded(table), "sequence_number", "snapshot_id", "first_row_id", "spec_id") == entries
    assert read_rows(table) == rows
    assert not leftovers(table)


def test_clustered_manifests_are_left_alone(catalog: SqlCatalog) -> None:
    table = interleaved(catalog)
    rewrite_manifests(table, least_entries=8, commit=patient())
    files = files_under(table)
    again = rewrite_manifests(reloaded(table), least_entries=8, commit=patient())
    assert (again.snapshot_id, again.manifests_before, again.manifests_after) == (None, 4, 4)
    assert files_under(table) == files


def test_each_spec_keeps_to_itself_and_deletes_are_clustered_too(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog)
    for at in (100, 200):
        table = commit_change(table, append(table, rows_of(at, at + 10, "a") + rows_of(at + 10, at + 20, "b"))).table
        table = delete_first_rows(table, slice(0, 2))
    rows = read_rows(table)
    planned = rewrite_manifests(table, least_entries=1, dry_run=True)
    only = rewrite_manifests(table, spec_ids=[1], least_entries=1, commit=patient())
    assert [(s.spec_id, s.content) for s in planned.specs] == [(0, "data"), (1, "data"), (1, "deletes")]
    assert only.specs == planned.specs[1:]  # the dry run reads partitions only, and reports the same
    rewrite_manifests(reloaded(table), least_entries=1, commit=patient())
    assert read_rows(table) == rows


def test_a_spec_that_is_not_there_is_refused(catalog: SqlCatalog) -> None:
    with pytest.raises(UnknownSpecError, match="7"):
        rewrite_manifests(create_table(catalog), spec_ids=[7])


def test_expired_snapshots_lose_their_unreferenced_files(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    copy_on_write_delete("id < 15", lambda row: row[0] < 15).plan(table, IsolationLevel.SERIALIZABLE).commit()
    table, rows = reloaded(table), read_rows(table)
    before = files_under(table)
    planned = expire_snapshots(table, older_than_ms=LATER)
    assert files_under(table) == before
    result = expire_snapshots(table, older_than_ms=LATER, dry_run=False)
    assert (planned.expired, planned.removed) == (result.expired, result.removed)
    assert (result.snapshots_before, result.snapshots_after, result.data_files) == (4, 1, 2)
    assert before - files_under(table) == set(result.removed)
    assert not leftovers(table)
    assert read_rows(table) == rows


def test_branches_tags_and_the_newest_snapshots_are_kept(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    first, second, third = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    create_tag(table, "start", first, options=patient())
    create_branch(table, "side", second, options=patient())
    result = expire_snapshots(reloaded(table), older_than_ms=LATER, dry_run=False)
    assert result.expired == ()
    assert {s.snapshot_id for s in reloaded(table).metadata.snapshots} == {first, second, third}
    for ref, expected in (("start", 10), ("side", 20), ("main", 30)):
        assert len(read_rows(table, ref)) == expected


def test_a_time_at_which_an_expired_snapshot_was_current_is_refused(catalog: SqlCatalog) -> None:
    """The tagged snapshot before it would have other rows; a rollback makes an older snapshot current again."""
    table = create_table(catalog)
    first, before = table.metadata.current_snapshot_id, read_rows(table)
    assert first is not None
    create_tag(table, "kept", first)
    commit_change(reloaded(table), append(table, rows_of(40, 45)), options=patient())
    second = reloaded(table).current_snapshot()
    assert second is not None
    rollback_to(reloaded(table), first, options=patient())
    third = commit_change(reloaded(table), append(table, rows_of(50, 55)), options=patient()).table
    rolled_back = third.metadata.snapshot_log[-2].timestamp_ms
    expire_snapshots(third, older_than_ms=LATER, retain_last=2, dry_run=False, commit=patient())
    table = reloaded(third)
    assert [entry.snapshot_id for entry in table.metadata.snapshot_log] == [first, table.metadata.current_snapshot_id]
    assert len(plan_scan(table, timestamp_ms=rolled_back).to_arrow()) == len(before)
    with pytest.raises(UnknownSnapshotError, match="no snapshot as old as"):
        plan_scan(table, timestamp_ms=min(second.timestamp_ms, rolled_back - 1))


def test_retain_last_and_recent_snapshots_are_kept(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    ids = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    assert expire_snapshots(table, older_than_ms=LATER, retain_last=2).expired == (ids[0],)
    assert expire_snapshots(table).expired == ()
    limit = table.metadata.snapshots[1].timestamp_ms
    expected = sorted(s.snapshot_id for s in table.metadata.snapshots if s.timestamp_ms < limit)
    assert list(expire_snapshots(table, older_than_ms=limit).expired) == expected


def test_refs_that_are_too_old_are_dropped(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    first = table.metadata.snapshots[0].snapshot_id
    create_tag(table, "start", first, retention=Retention(max_ref_age_ms=1), options=patient())
    table = reloaded(table)
    result = expire_snapshots(table, older_than_ms=LATER, now_ms=LATER, dry_run=False)
    assert result.refs_removed == ("start",)
    assert first in result.expired
    assert reloaded(table).metadata.refs.keys() == {"main"}
    assert len(read_rows(table)) == 30


def test_files_are_not_removed_when_the_catalog_refuses(catalog: SqlCatalog) -> None:
    table = unreliable(create_table(catalog), CommitFailedException("no"))
    before = files_under(table)
    with pytest.raises(CommitConflictError):
        expire_snapshots(table, older_than_ms=LATER, dry_run=False, commit=no_retry())
    assert files_under(table) == before


def test_a_concurrently_created_tag_keeps_its_snapshot(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    first = table.metadata.snapshots[0].snapshot_id
    made = []

    def tag_concurrently(step: str) -> None:
        if step == "before-commit" and not made:
            made.append(create_tag(reloaded(table), "start", first, options=patient()))

    result = expire_snapshots(table, older_than_ms=LATER, dry_run=False, commit=patient(on_step=tag_concurrently))
    assert first not in result.expired
    assert len(read_rows(table, "start")) == 10


def test_a_table_that_shares_files_is_refused(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    with writable_metadata(table.io), table.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    for command in (expire_snapshots, remove_orphans):
        with pytest.raises(UnsupportedError, match=r"gc\.enabled"):
            command(reloaded(table))


def age(table: Table, seconds: float) -> None:
    """Make all files older."""
    for path in files_under(table):
        local = path.removeprefix("file://")
        os.utime(local, (Path(local).stat().st_mtime - seconds,) * 2)


def crashed(table: Table) -> set[str]:
    """A commit that crashes before its request to the catalog; returns the files it leaves."""

    class Died(BaseException):
        pass

    def die(step: str) -> None:
        if step == "before-commit":
            raise Died

    known = files_under(table)
    with pytest.raises(Died):
        commit_change(table, append(table, rows_of(90, 95)), options=patient(on_step=die))
    return files_under(table) - known


def test_exactly_the_leftovers_of_a_crashed_commit_are_orphans(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    lost = crashed(table)
    assert len(lost) == 3
    age(table, WEEK)
    stray = Path(table.location().removeprefix("file://")) / "data" / "_private.txt"
    stray.write_text("not ours")
    os.utime(stray, (0, 0))
    planned = remove_orphans(table)
    assert set(planned.orphans) == lost
    assert lost < files_under(table)
    result = remove_orphans(table, dry_run=False)
    assert set(result.removed) == lost
    assert reachable(table) < files_under(table)
    assert stray.exists()
    assert len(read_rows(table)) == 30


def test_young_files_may_belong_to_a_commit_under_way(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    crashed(table)
    result = remove_orphans(table, dry_run=False)
    assert (result.orphans, result.files_too_young) == ((), 3)
    with pytest.raises(InvalidOptionError, match="age"):
        remove_orphans(table, older_than=timedelta(hours=1))


def test_files_of_old_snapshots_are_no_orphans(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    copy_on_write_delete("id < 15", lambda row: row[0] < 15).plan(table, IsolationLevel.SERIALIZABLE).commit()
    age(table, WEEK)
    assert remove_orphans(reloaded(table)).orphans == ()


def test_a_table_that_names_its_files_under_another_authority_is_refused(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(catalog)
    age(table, WEEK)
    named = [path.replace("file://", "file://elsewhere") for path in reachable(table)]
    monkeypatch.setattr(orphans, "reachable_files", lambda _, **__: pa.array(named))
    with pytest.raises(CorruptMetadataError, match="elsewhere"):
        remove_orphans(table, dry_run=False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/a/x", "s3a://b/a//x"),
        ("file:/a/b", "file:///a/b"),
        ("/a/b", "file:/a/b"),
        ("file://localhost/a/b", "/a/b"),
    ],
)
def test_locations_that_mean_the_same_are_the_same(one: str, other: str) -> None:
    assert Location.parse(one) == Location.parse(other)


def test_the_commands_are_dry_runs_by_default(
    catalog: SqlCatalog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = create_table(catalog)
    crashed(table)
    age(table, WEEK)
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__TYPE", "sql")
    before = files_under(table)
    assert main(["expire", "db.t", "--older-than", "0", "--catalog", "local", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["snapshots_after"] == 1
    assert main(["remove-orphans", "db.t", "--catalog", "local", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["orphans"]) == 3
    assert main(["rewrite-manifests", "db.t", "--catalog", "local", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["manifests_before"] == 3
    assert main(["upgrade-spec", "db.t", "--catalog", "local", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files_left"] == 0
    assert files_under(table) == before
    for command in ("expire", "remove-orphans"):
        assert main([command, "db.t", "--catalog", "local", "--older-than", "1"]) == 0
        assert "add --yes" in capsys.readouterr().out
    assert main(["rewrite-manifests", "db.t", "--catalog", "local"]) == 0
    assert "3 → 1 manifests" in capsys.readouterr().out
    assert main(["upgrade-spec", "db.t", "--catalog", "local"]) == 0
    assert "moved" in capsys.readouterr().out
    assert main(["remove-orphans", "db.t", "--catalog", "local", "--yes"]) == 0
    assert "3 removed" in capsys.readouterr().out
    assert len(read_rows(table)) == 30


def test_partition_statistics_of_expired_snapshots_go_with_their_file(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    first, last = table.metadata.snapshots[0].snapshot_id, table.metadata.snapshots[-1].snapshot_id
    for snapshot_id in (first, last):
        path = f"{table.location()}/metadata/partition-stats-{snapshot_id}.parquet"
        Path(path.removeprefix("file://")).write_bytes(b"statistics")
        entry = {"snapshot-id": snapshot_id, "statistics-path": path, "file-size-in-bytes": 10}
        update = SetPartitionStatisticsUpdate.model_validate({"partition-statistics": entry})
        catalog.commit_table(reloaded(table), (), (update,))
    done = expire_snapshots(reloaded(table), older_than_ms=LATER, dry_run=False)
    assert first in done.expired
    left = reloaded(table).metadata.partition_statistics
    assert [entry.snapshot_id for entry in left] == [last]
    assert [path for path in done.removed if "partition-stats" in path] == [
        f"{table.location()}/metadata/partition-stats-{first}.parquet"
    ]
    assert all(Path(entry.statistics_path.removeprefix("file://")).exists() for entry in left)

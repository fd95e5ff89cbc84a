"""Metadata-only moves of files to another spec: which files move, and that rows do not change."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, MonthTransform, TruncateTransform
from pyiceberg.types import LongType, TimestampType

from floeplan.cli.main import main
from floeplan.dml.append import append as dml_append
from floeplan.errors import InvalidOptionError, UnknownColumnError, UnknownSpecError
from floeplan.metadata.manifests.entries import Content, EntriesTable, Status
from floeplan.partition.evolution import AddField, Term
from floeplan.partition.transforms import Transform
from floeplan.partition.union import SpecProjection
from floeplan.rewrite.spec_upgrade.move import is_coarser
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions, upgrade_spec
from floeplan.transaction.catalog_commit import Timing
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from floeplan.transaction.evolve_spec import evolve_spec
from floeplan.transaction.metadata_json import writable_metadata
from floeplan.transaction.refs import create_branch
from floeplan.write.data_files import write_data_files
from floeplan.write.target import WriteTarget
from tests.support.tables.commits import (
    ROWS,
    append,
    arrow,
    create_table,
    data_specs,
    delete_change,
    delete_first_rows,
    entry_values,
    equality_delete,
    evolved_table,
    files_under,
    leftovers,
    live_entries,
    open_catalog,
    patient,
    read_rows,
    rows_of,
)

pytestmark = pytest.mark.unit

METADATA_ONLY = UpgradeOptions(metadata_only=True)
KEPT = ("sequence_number", "file_sequence_number", "snapshot_id", "first_row_id", "record_count", "lower_bounds")


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return open_catalog(tmp_path)


def reloaded(table: Table) -> Table:
    return table.catalog.load_table(table.name())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_proven_files_move_and_nothing_else_about_them_changes(catalog: SqlCatalog, version: int) -> None:
    table = evolved_table(catalog, version)
    before, rows, files = entry_values(table, *KEPT), read_rows(table), files_under(table)
    result = upgrade_spec(table, options=METADATA_ONLY, commit=patient())
    moved = reloaded(table)
    assert (result.files_by_metadata, result.files_left, result.reasons) == (3, 1, {"spans-partitions": 1})
    assert data_specs(moved) == [0, 1, 1, 1]
    assert entry_values(moved, *KEPT) == before
    assert {status for spec, status in entry_values(moved, "spec_id", "status").values() if spec == 1} == {
        Status.EXISTING
    }
    assert read_rows(moved) == rows
    assert sorted((row["id"], row["part"]) for row in moved.scan().to_arrow().to_pylist()) == rows
    assert {path for path in files_under(table) - files if path.endswith(".parquet")} == set()
    assert not leftovers(table)


def test_there_is_one_manifest_per_partition(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog)
    upgrade_spec(table, options=METADATA_ONLY, commit=patient())
    manifests = reloaded(table).current_snapshot().manifests(table.io)  # type: ignore[union-attr]
    assert sorted((m.partition_spec_id, m.existing_files_count) for m in manifests) == [(0, 0), (1, 1), (1, 2)]


def test_the_snapshot_is_a_replacement_and_its_parent_can_still_be_read(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog)
    start = table.current_snapshot()
    result = upgrade_spec(table, options=METADATA_ONLY, commit=patient())
    head = reloaded(table).current_snapshot()
    assert start is not None
    assert head is not None
    assert head.snapshot_id == result.snapshot_ids[0]
    assert head.summary is not None
    assert head.summary.operation.value == "replace"
    assert head.summary["total-data-files"] == "4"
    assert head.parent_snapshot_id == start.snapshot_id
    old = reloaded(table).scan(snapshot_id=start.snapshot_id).to_arrow()
    assert old.num_rows == 40


def test_a_second_run_does_nothing(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog)
    upgrade_spec(table, options=METADATA_ONLY, commit=patient())
    files = files_under(table)
    again = upgrade_spec(reloaded(table), options=METADATA_ONLY, commit=patient())
    assert (again.files_by_metadata, again.snapshot_ids, again.files_left) == (0, (), 1)
    assert files_under(table) == files


def test_a_dry_run_reports_the_plan_and_changes_nothing(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog)
    files = files_under(table)
    planned = upgrade_spec(table, options=UpgradeOptions(dry_run=True, metadata_only=True))
    assert planned.to_dict() | {"notes": []} == {
        "target_spec_id": 1,
        "files_total": 4,
        "files_by_metadata": 3,
        "files_by_rewrite": 0,
        "files_left": 1,
        "reasons": {"spans-partitions": 1},
        "deletes_carried": 0,
        "snapshot_ids": [],
        "notes": [],
        "dry_run": True,
    }
    assert "INSERT OVERWRITE" in planned.notes[0]
    assert files_under(table) == files


def test_files_are_moved_in_batches_and_an_interrupted_run_is_resumed(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog)
    commits = []

    def stop_at_the_second(step: str) -> None:
        commits.extend([step] if step == "committed" else [])
        if step == "validated" and len(commits) == 1:
            raise KeyboardInterrupt

    options = UpgradeOptions(files_per_commit=1, metadata_only=True)
    with pytest.raises(KeyboardInterrupt):
        upgrade_spec(table, options=options, commit=patient(on_step=stop_at_the_second))
    assert data_specs(reloaded(table)) == [0, 0, 0, 1]
    result = upgrade_spec(reloaded(table), options=options, commit=patient())
    assert (result.files_by_metadata, len(result.snapshot_ids)) == (2, 2)
    assert read_rows(table) == sorted(row for rows in ROWS for row in rows)


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_that_reference_a_file_move_with_it(catalog: SqlCatalog, version: int) -> None:
    table = delete_first_rows(evolved_table(catalog, version), slice(None))
    rows = read_rows(table)
    assert len(rows) == 36
    result = upgrade_spec(table, options=METADATA_ONLY, commit=patient())
    moved = reloaded(table)
    entries = live_entries(moved)
    assert (result.files_by_metadata, result.deletes_carried) == (3, 3)
    assert sorted(entries.spec_id[entries.content != Content.DATA].tolist()) == [0, 1, 1, 1]
    assert read_rows(moved) == rows
    assert sorted((row["id"], row["part"]) for row in moved.scan().to_arrow().to_pylist()) == rows


def test_files_with_a_position_delete_of_several_files_are_not_moved(catalog: SqlCatalog) -> None:
    table = delete_first_rows(evolved_table(catalog), slice(0, 2), per_file=False)
    late = commit_change(table, append(table, rows_of(40, 50, "a"))).table
    rows = read_rows(late)
    result = upgrade_spec(late, options=METADATA_ONLY, commit=patient())
    assert result.reasons == {"position-deletes-of-old-partition": 3, "spans-partitions": 1}
    assert result.files_by_metadata == 0
    assert read_rows(late) == rows


@pytest.mark.parametrize("version", [2, 3])
def test_concurrent_deletes_are_moved_after_their_files(catalog: SqlCatalog, version: int) -> None:
    table = evolved_table(catalog, version)
    in_flight = delete_change(table, slice(None))
    upgrade_spec(table, options=METADATA_ONLY, commit=patient())
    stray = commit_change(table, in_flight, options=patient()).table
    expected = np.setdiff1d(np.arange(40), [rows[0][0] for rows in ROWS]).tolist()
    result = upgrade_spec(stray, options=METADATA_ONLY, commit=patient())
    assert (result.files_by_metadata, result.deletes_carried) == (0, 3)
    assert [row[0] for row in read_rows(stray)] == expected


def test_a_concurrent_delete_of_several_files_applies_in_their_new_partitions(
    catalog: SqlCatalog,
) -> None:
    table = evolved_table(catalog)
    in_flight = delete_change(table, slice(None), per_file=False)
    upgrade_spec(table, options=METADATA_ONLY, commit=patient())
    stray = commit_change(table, in_flight, options=patient()).table
    assert len(read_rows(stray)) > 36
    result = upgrade_spec(stray, options=METADATA_ONLY, commit=patient())
    assert (result.files_by_metadata, result.deletes_carried) == (0, 1)
    assert len(read_rows(stray)) == 36
    assert len(reloaded(table).scan().to_arrow()) == 36
    again = upgrade_spec(reloaded(table), options=METADATA_ONLY, commit=patient())
    assert again.snapshot_ids == ()


def test_a_commit_that_others_overtake_is_planned_again(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog)
    raced = []

    def append_concurrently(step: str) -> None:
        if step == "before-commit" and not raced:
            raced.append(step)
            newest = reloaded(table)
            commit_change(newest, append(newest, rows_of(40, 50, "c")))
            commit_change(reloaded(table), delete_change(reloaded(table), slice(0, 1)), options=patient())

    result = upgrade_spec(table, options=METADATA_ONLY, commit=patient(on_step=append_concurrently))
    assert result.files_by_metadata == 3
    assert len(read_rows(table)) == 49
    assert data_specs(reloaded(table)) == [0, 1, 1, 1, 1]
    assert not leftovers(table)


def test_global_equality_deletes_forbid_nothing_and_still_apply(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog)
    table = commit_change(table, equality_delete(table, [3, 13, 33], spec_id=0)).table
    result = upgrade_spec(table, options=METADATA_ONLY, commit=patient())
    assert (result.files_by_metadata, result.deletes_carried) == (3, 0)
    assert [row[0] for row in read_rows(table)] == np.setdiff1d(np.arange(40), [3, 13, 33]).tolist()


def test_a_newer_equality_delete_of_the_new_partition_keeps_a_file_where_it_is(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog)
    table = commit_change(table, equality_delete(table, [3], spec_id=1, part="a")).table
    result = upgrade_spec(table, options=METADATA_ONLY, commit=patient())
    assert result.reasons == {"spans-partitions": 1, "equality-deletes-of-new-partition": 2}
    assert len(read_rows(table)) == 40


def test_an_older_equality_delete_of_the_new_partition_is_ignored(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog, files=ROWS[:1])
    table = commit_change(table, equality_delete(table, [43], spec_id=1, part="b")).table
    table = commit_change(table, SnapshotChange(Operation.APPEND, added_data=_old_spec_rows(table))).table
    result = upgrade_spec(table, options=METADATA_ONLY, commit=patient())
    assert result.files_by_metadata == 2
    assert len(read_rows(table)) == 20


def _old_spec_rows(table: Table) -> EntriesTable:
    rows = [arrow(rows_of(40, 50, "b"))]
    return write_data_files(WriteTarget.of(table, spec_id=0), rows, file_name_token="test")


def test_a_newer_equality_delete_of_the_old_partition_keeps_a_file_where_it_is(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog, files=())
    for part in ("a", "b"):
        table = commit_change(table, append(table, rows_of(ord(part), ord(part) + 10, part))).table
    table = commit_change(table, equality_delete(table, [ord("a")], spec_id=1, part="a")).table
    with writable_metadata(table.io), table.update_spec() as update:
        update.add_field("id", TruncateTransform(1000), "id_trunc")
    table = reloaded(table)
    options = UpgradeOptions(metadata_only=True, allow_late_equality_deletes=True)
    result = upgrade_spec(table, options=options, commit=patient())
    assert (result.files_by_metadata, result.reasons) == (1, {"equality-deletes-of-old-partition": 1})
    assert len(read_rows(table)) == 19


def test_partition_information_is_dropped_only_on_request(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog, files=ROWS[:3])
    upgrade_spec(table, options=METADATA_ONLY, commit=patient())
    rows = read_rows(table)
    refused = upgrade_spec(reloaded(table), to=0, commit=patient())
    assert (refused.files_by_metadata, refused.reasons) == (0, {"coarser-target": 3})
    allowed = upgrade_spec(reloaded(table), options=UpgradeOptions(to=0, allow_coarser=True), commit=patient())
    assert (allowed.files_by_metadata, data_specs(reloaded(table))) == (3, [0, 0, 0])
    assert read_rows(table) == rows


def test_files_that_lose_nothing_are_rewritten_though_others_would(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog)
    moved = upgrade_spec(table, options=METADATA_ONLY, commit=patient())
    assert (moved.files_by_metadata, moved.reasons) == (3, {"spans-partitions": 1})
    with reloaded(table).update_spec() as update:
        update.remove_field("part")
        update.add_field("part", TruncateTransform(1), "part_start")
    rows, finer = read_rows(table), data_specs(reloaded(table)).count(1)
    planned = upgrade_spec(reloaded(table), options=UpgradeOptions(dry_run=True))
    result = upgrade_spec(reloaded(table), commit=patient())
    for found in (planned, result):
        assert (found.files_by_metadata, found.files_by_rewrite, found.files_left) == (0, 1, finer)
        assert found.reasons == {"coarser-target": finer, "spans-partitions": 1}
    assert sorted(set(data_specs(reloaded(table)))) == [1, 2]
    assert read_rows(table) == rows
    assert upgrade_spec(reloaded(table), commit=patient()).snapshot_ids == ()


@pytest.mark.parametrize(("to", "error"), [(7, UnknownSpecError), ("newest", InvalidOptionError)])
def test_a_spec_that_is_not_there_is_refused(catalog: SqlCatalog, to: int | str, error: type[Exception]) -> None:
    with pytest.raises(error, match=str(to)):
        upgrade_spec(evolved_table(catalog), to=to)


@pytest.mark.parametrize("to", ["current", 2])
def test_a_spec_that_was_added_since_the_table_was_loaded_is_found(catalog: SqlCatalog, to: int | str) -> None:
    table = evolved_table(catalog)
    stale = reloaded(table)
    evolve_spec(table, (AddField(Term(("id",), BucketTransform(1))),))
    assert upgrade_spec(stale, options=UpgradeOptions(to=to, dry_run=True)).target_spec_id == 2
    assert upgrade_spec(stale, to=to).files_left == 0


def test_a_table_without_snapshots_has_nothing_to_move(catalog: SqlCatalog) -> None:
    result = upgrade_spec(evolved_table(catalog, files=()), commit=patient())
    assert (result.files_total, result.snapshot_ids) == (0, ())


FIELDS = {
    "id": IdentityTransform(),
    "b16": BucketTransform(16),
    "b4": BucketTransform(4),
    "t10": TruncateTransform(10),
    "t20": TruncateTransform(20),
}


@pytest.mark.parametrize(
    ("target", "own", "coarser"),
    [
        ([], ["id"], True),
        (["b4"], ["b16"], True),
        (["b16"], ["b4"], False),
        (["b16"], ["id"], True),
        (["t20"], ["t10"], True),
        (["t10"], ["t20"], False),
        (["b4"], ["t10"], False),
        (["b4"], ["b16", "t10"], True),
        (["id"], ["id"], False),
    ],
)
def test_a_spec_is_coarser_when_its_values_follow_from_the_other(
    target: list[str], own: list[str], coarser: bool
) -> None:
    def spec(names: list[str]) -> SpecProjection:
        fields = [PartitionField(1, 1000 + at, FIELDS[name], name) for at, name in enumerate(names)]
        return SpecProjection.of(PartitionSpec(*fields), {1: (LongType(),)})

    assert is_coarser(spec(target), spec(own)) is coarser


def test_a_month_is_coarser_than_a_day() -> None:
    def spec(transform: Transform) -> SpecProjection:
        return SpecProjection.of(PartitionSpec(PartitionField(1, 1000, transform, "t")), {1: (TimestampType(),)})

    assert is_coarser(spec(MonthTransform()), spec(DayTransform()))
    assert not is_coarser(spec(DayTransform()), spec(MonthTransform()))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_cannot_be_moved_is_rewritten(catalog: SqlCatalog, version: int) -> None:
    table = evolved_table(catalog, version)
    rows, planned = read_rows(table), upgrade_spec(table, options=UpgradeOptions(dry_run=True))
    result = upgrade_spec(table, commit=patient())
    for found in (planned, result):
        assert (found.files_by_metadata, found.files_by_rewrite, found.files_left) == (3, 1, 0)
        assert found.reasons == {"spans-partitions": 1}
    assert len(result.snapshot_ids) == 2
    assert data_specs(reloaded(table)) == [1] * 5
    assert read_rows(table) == rows
    again = upgrade_spec(reloaded(table), commit=patient())
    assert (again.files_by_metadata, again.files_by_rewrite, again.snapshot_ids) == (0, 0, ())


def test_files_that_deletes_hold_back_are_rewritten(catalog: SqlCatalog) -> None:
    table = delete_first_rows(evolved_table(catalog), slice(0, 2), per_file=False)
    rows = read_rows(table)
    result = upgrade_spec(table, commit=patient())
    assert (result.files_by_metadata, result.files_by_rewrite) == (0, 4)
    assert set(data_specs(reloaded(table))) == {1}
    assert read_rows(table) == rows


def test_concurrent_deletes_are_found_within_the_grace_period(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog, files=ROWS[:3])
    in_flight = delete_change(table, slice(None))
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds
        if now[0] == 2.0:
            commit_change(table, in_flight, options=patient())

    timing = Timing(clock=lambda: now[0], sleep=wait)
    options = UpgradeOptions(grace_seconds=5)
    result = upgrade_spec(table, options=options, commit=patient(timing=timing))
    assert (result.deletes_carried, len(result.snapshot_ids)) == (3, 2)
    assert len(read_rows(table)) == 27


def test_only_files_of_which_every_row_matches_are_moved(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog, files=ROWS[:3])
    options = UpgradeOptions(where="id < 15")
    result = upgrade_spec(table, options=options, commit=patient())
    assert (result.files_by_metadata, result.files_left, result.reasons) == (1, 0, {})
    assert data_specs(reloaded(table)) == [0, 0, 1]
    with pytest.raises(UnknownColumnError, match="nothing"):
        upgrade_spec(table, options=UpgradeOptions(where="nothing = 1"))


def test_a_file_whose_value_stands_only_in_its_partition_keeps_it(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = create_table(catalog, rows=rows_of(0, 10, "a"))
    folder = tmp_path / "hive" / "part=b"
    folder.mkdir(parents=True)
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    pq.write_table(pa.table({"id": range(10, 20)}, schema=schema), folder / "rows.parquet")
    dml_append(table, [str(folder / "rows.parquet")], add_files=True, hive_partitions=True)
    with writable_metadata(table.io), table.update_spec() as update:
        update.remove_field("part")
    rows = read_rows(table)
    assert rows == rows_of(0, 10, "a") + rows_of(10, 20, "b")
    options = UpgradeOptions(allow_coarser=True, metadata_only=True)
    result = upgrade_spec(reloaded(table), options=options, commit=patient())
    assert (result.files_by_metadata, result.reasons) == (1, {"values-only-in-partition": 1})
    assert read_rows(table) == rows
    result = upgrade_spec(reloaded(table), options=UpgradeOptions(allow_coarser=True), commit=patient())
    assert (result.files_by_rewrite, result.files_left) == (1, 0)
    assert read_rows(table) == rows


def test_only_the_branch_that_is_named_changes(catalog: SqlCatalog) -> None:
    table = create_branch(evolved_table(catalog), "side", options=patient())
    head = table.metadata.current_snapshot_id
    result = upgrade_spec(table, branch="side", commit=patient())
    newest = reloaded(table)
    assert (result.files_by_metadata, result.files_by_rewrite) == (3, 1)
    assert newest.metadata.current_snapshot_id == head
    assert newest.metadata.refs["side"].snapshot_id == result.snapshot_ids[-1]
    assert read_rows(table, "side") == read_rows(table)


def test_a_file_of_metadata_can_be_planned_on_but_not_changed(
    catalog: SqlCatalog, capsys: pytest.CaptureFixture[str]
) -> None:
    location = evolved_table(catalog).metadata_location
    assert main(["upgrade-spec", location, "--dry-run"]) == 0
    assert "would move" in capsys.readouterr().out
    assert main(["upgrade-spec", location]) == 2
    assert "read-only" in capsys.readouterr().err


def test_a_spec_written_out_is_added_and_new_data_is_not_written_under_it(
    catalog: SqlCatalog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = evolved_table(catalog, files=ROWS[:3])
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__TYPE", "sql")
    command = ["upgrade-spec", "db.t", "--catalog", "local", "--to", "truncate(100, id), part", "--json"]
    assert main([*command, "--dry-run"]) == 2
    assert "dry run" in capsys.readouterr().out
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["files_by_metadata"] == 3
    assert (data_specs(reloaded(table)), reloaded(table).metadata.default_spec_id) == ([2, 2, 2], 1)
    assert main([*command, "--dry-run"]) == 0
    assert read_rows(table) == sorted(row for rows in ROWS[:3] for row in rows)

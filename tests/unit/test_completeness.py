"""Metadata files truncated between two Avro blocks: an error or a warning, never silently missing rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.cli.main import main
from floeplan.dml.commit import DmlResult
from floeplan.errors import CorruptMetadataError
from floeplan.maintenance.doctor import doctor
from floeplan.maintenance.expire import expire_snapshots
from floeplan.maintenance.orphans import remove_orphans
from floeplan.metadata.cache import EntriesCache
from floeplan.metadata.manifests.entries import EntryColumns
from floeplan.metadata.manifests.list_writer import ListedSnapshot, encode_manifest_list
from floeplan.metadata.manifests.manifest_list import MANIFEST_COUNT, parse_manifest_list, read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.execute import rewrite_data_files
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions, upgrade_spec
from floeplan.scan.plan import plan_scan
from floeplan.transaction.commit import commit_change
from tests.support.fuzz.mutation import block_ends
from tests.support.tables.commits import (
    NO_SCAN_EXTRAS,
    SCHEMA,
    append,
    arrow,
    create_table,
    files_under,
    open_catalog,
    read_rows,
    rows_of,
)
from tests.support.tables.manifests import Writer, varint, write_manifests

pytestmark = pytest.mark.unit

WRITER = Writer(sync_interval=40)
ENTRIES = [WRITER.entry(f"f{n}.parquet", status=(n + 1) % 3, sequence_number=1, record_count=n) for n in range(12)]
COUNTED = {
    "added_files_count": 4,
    "existing_files_count": 4,
    "deleted_files_count": 4,
    "added_rows_count": 18,
    "existing_rows_count": 26,
    "deleted_rows_count": 22,
}
LATER = 2**53


def entries_of(folder: Path, data: bytes, listed_values: dict[str, Any], *, live: bool) -> int:
    listed = read_manifest_list(write_manifests(folder, [(data, listed_values)]))
    return len(read_entries(listed, UnionPartitionType((), {0: ()}), EntryColumns(frozenset()), live=live))


def whole_manifest() -> tuple[bytes, list[int]]:
    data = WRITER.manifest(ENTRIES)
    *cuts, end = block_ends(data)
    assert end == len(data)
    assert len(cuts) > 3
    return data, cuts


@pytest.mark.parametrize("live", [True, False])
def test_a_manifest_cut_between_blocks_is_damaged(tmp_path: Path, live: bool) -> None:
    data, cuts = whole_manifest()
    assert entries_of(tmp_path, data, COUNTED, live=live) == (8 if live else 12)
    for cut in cuts:
        with pytest.raises(CorruptMetadataError, match=rf"m0.avro is damaged at byte {cut}: the file ends here"):
            entries_of(tmp_path, data[:cut], COUNTED | {"manifest_length": len(data)}, live=live)


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("length", [1, 10**9])
def test_counts_are_used_if_the_length_is_wrong(tmp_path: Path, length: int, live: bool) -> None:
    """Tables with rewritten paths keep old manifest lengths; some writers record the length too early."""
    data, cuts = whole_manifest()
    listed_values = COUNTED | {"manifest_length": length}
    assert entries_of(tmp_path, data, listed_values, live=live) == (8 if live else 12)
    for cut in cuts:
        with pytest.raises(CorruptMetadataError, match=f"damaged at byte {cut}"):
            entries_of(tmp_path, data[:cut], listed_values, live=live)


def test_the_length_is_used_if_the_counts_are_wrong(tmp_path: Path) -> None:
    """Some writers count the files of the whole table, or all files ever deleted."""
    data, _ = whole_manifest()
    for wrong in ("existing_files_count", "deleted_files_count", "added_rows_count"):
        assert entries_of(tmp_path, data, COUNTED | {wrong: 1000}, live=False) == 12


@pytest.mark.parametrize("wrong", ["added_files_count", "existing_rows_count"])
def test_a_short_manifest_needs_all_its_counts(tmp_path: Path, wrong: str) -> None:
    data, _ = whole_manifest()
    with pytest.raises(CorruptMetadataError, match="the file ends here"):
        entries_of(tmp_path, data, COUNTED | {"manifest_length": len(data) + 1, wrong: 1}, live=True)


def test_missing_counts_prove_nothing(tmp_path: Path) -> None:
    writer = Writer(version=1)
    data = writer.manifest([writer.entry()])
    listed_values = dict.fromkeys(COUNTED) | {"manifest_length": len(data) + 1}
    path = write_manifests(tmp_path, [(data, listed_values)], writer)
    with pytest.raises(CorruptMetadataError, match="the file ends here"):
        read_entries(read_manifest_list(path), UnionPartitionType((), {0: ()}))


def test_nothing_of_a_cut_manifest_gets_into_the_cache(tmp_path: Path) -> None:
    data, cuts = whole_manifest()
    listed = read_manifest_list(write_manifests(tmp_path, [(data, COUNTED)]))
    cache, union = EntriesCache(tmp_path / "cache"), UnionPartitionType((), {0: ()})
    (tmp_path / "m0.avro").write_bytes(data[: cuts[0]])
    with pytest.raises(CorruptMetadataError, match="the file ends here"):
        cache.read_entries(listed, union, EntryColumns())
    (tmp_path / "m0.avro").write_bytes(data)
    whole = read_entries(listed, union, EntryColumns())
    assert len(whole) == 12
    assert len(cache.read_entries(listed, union, EntryColumns())) == len(whole.live())


def test_our_manifest_lists_record_the_number_of_manifests(tmp_path: Path) -> None:
    few = read_manifest_list(write_manifests(tmp_path, [(WRITER.manifest(ENTRIES), COUNTED)]))
    many = few.take(np.zeros(3000, dtype=np.int64))
    data = encode_manifest_list(many, ListedSnapshot(2, 70, None, 7), codec="null").data
    assert len(parse_manifest_list(data, "list.avro")) == 3000
    *cuts, _ = block_ends(data)
    assert len(cuts) > 1
    for cut in cuts:
        with pytest.raises(CorruptMetadataError, match=r"list.avro is damaged .* of the 3000 manifests"):
            parse_manifest_list(data[:cut], "list.avro")


def by_another_writer(table: Table) -> Path:
    """The newest manifest list without the manifest count that only Floeplan writes."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    path = Path(snapshot.manifest_list.removeprefix("file://"))
    path.write_bytes(path.read_bytes().replace(varint(len(MANIFEST_COUNT)) + MANIFEST_COUNT.encode(), OTHER, 1))
    return path


OTHER = varint(len(MANIFEST_COUNT)) + b"x" * len(MANIFEST_COUNT)


def cut_to_the_header(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: block_ends(data)[0]])


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_plan_and_the_doctor_warn_of_a_list_that_lacks_files(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    table = create_table(open_catalog(tmp_path), version)
    path = by_another_writer(table)
    assert plan_scan(table, options=NO_SCAN_EXTRAS).warnings == ()
    assert "short-manifest-list" not in {finding.kind for finding in doctor(table).findings}
    cut_to_the_header(path)
    (warning,) = plan_scan(table, options=NO_SCAN_EXTRAS).warnings
    assert warning.kind == "short-manifest-list"
    assert (warning.context["listed"], warning.context["total"]) == (0, 3)
    assert "has 0 of the 3 data files" in warning.message
    assert caplog.messages == [warning.message]
    assert [(f.kind, f.files) for f in doctor(table).findings] == [("short-manifest-list", 3)]


def test_what_removes_files_refuses_a_list_that_lacks_files(tmp_path: Path) -> None:
    table = create_table(open_catalog(tmp_path))
    path = by_another_writer(table)
    intact = path.read_bytes()
    there = files_under(table)
    cut_to_the_header(path)
    for dry_run in (True, False):
        with pytest.raises(CorruptMetadataError, match=r"0 of the 3 data files .* --trust-lists"):
            remove_orphans(table, dry_run=dry_run, now_s=2.0**40)
        with pytest.raises(CorruptMetadataError, match="--trust-lists"):
            expire_snapshots(table, older_than_ms=LATER, dry_run=dry_run)
    assert files_under(table) == there
    assert len(remove_orphans(table, trust_lists=True, now_s=2.0**40).orphans) == 2
    path.write_bytes(intact)
    assert len(read_rows(table)) == 30


def test_a_rewrite_refuses_a_list_that_lacks_files(tmp_path: Path) -> None:
    """Otherwise rows come back whose delete file is missing from the list."""
    table = create_table(open_catalog(tmp_path))
    cut_to_the_header(by_another_writer(table))
    refused = r"0 of the 3 data files .* would be written back: restore the manifest list, or pass --trust-lists"
    with pytest.raises(CorruptMetadataError, match=refused):
        RewriteDataFilesPlanner(table).plan_with_stats()
    with pytest.raises(CorruptMetadataError, match=refused):
        rewrite_data_files(table)
    assert RewriteDataFilesPlanner(table, RewriteOptions(trust_lists=True)).plan().groups == ()
    assert rewrite_data_files(table, trust_lists=True).snapshot_ids == ()
    for dry_run in (True, False):
        with pytest.raises(CorruptMetadataError, match=r"0 of the 3 data files .* --trust-lists"):
            upgrade_spec(table, options=UpgradeOptions(dry_run=dry_run))
    assert upgrade_spec(table, options=UpgradeOptions(trust_lists=True)).files_total == 0


def test_a_change_of_rows_refuses_a_list_that_lacks_files(tmp_path: Path) -> None:
    """Otherwise rows come back whose delete file is missing from the list, and a merge inserts existing rows."""
    table = create_table(open_catalog(tmp_path))
    cut_to_the_header(by_another_writer(table))
    rows = arrow([(1, "a")])
    changes: list[Callable[[bool], DmlResult]] = [
        lambda trust: fp.delete(table, "TRUE", trust_lists=trust),
        lambda trust: fp.update(table, {"id": "id + 1"}, trust_lists=trust),
        lambda trust: fp.merge(table, rows, on="id", trust_lists=trust).when_matched_delete().execute(),
        lambda trust: fp.sql(None, "DELETE FROM db.t", catalog=table.catalog, trust_lists=trust),  # type: ignore[return-value]
        lambda trust: fp.overwrite(table, rows, dynamic=True, trust_lists=trust),
        lambda trust: fp.overwrite(table, rows, "FALSE", trust_lists=trust),
    ]
    for change in changes:
        there = files_under(table)
        with pytest.raises(CorruptMetadataError, match=r"\d of the \d data files .* written back: .* --trust-lists"):
            change(False)
        assert files_under(table) == there
        assert change(True).rows_deleted == 0


def test_an_append_to_a_list_that_lacks_files_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An append reads no rows, and the totals of its snapshot still count the missing files."""
    table = create_table(open_catalog(tmp_path))
    cut_to_the_header(by_another_writer(table))
    caplog.clear()
    fp.append(table, arrow([(1, "a")]))
    (message,) = caplog.messages
    assert "has 0 of the 3 data files" in message
    assert message.endswith("the new snapshot has only the files it lists")
    (warning,) = plan_scan(table, options=NO_SCAN_EXTRAS).warnings
    assert (warning.context["listed"], warning.context["total"]) == (1, 4)


def test_trust_lists_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = create_table(open_catalog(tmp_path))
    cut_to_the_header(by_another_writer(table))
    for command in (["rewrite"], ["upgrade-spec"]):
        arguments = [*command, table.metadata_location, "--dry-run", "--json"]
        assert main(arguments) == 1
        assert json.loads(capsys.readouterr().out)["error"]["kind"] == "corrupt-metadata"
        assert main([*arguments, "--trust-lists"]) == 0
        capsys.readouterr()


def test_trust_lists_of_commands_that_change_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__WAREHOUSE", tmp_path.as_uri())
    table = create_table(open_catalog(tmp_path))
    cut_to_the_header(by_another_writer(table))
    pq.write_table(arrow([(1, "a")]), tmp_path / "new.parquet")
    for command in (
        ["delete", "db.t", "--where", "id = 1", "--dry-run"],
        ["delete", "db.t", "--where", "id = 1"],
        ["update", "db.t", "--set", "id = 2", "--where", "TRUE", "--dry-run"],
        ["update", "db.t", "--set", "id = 2", "--where", "TRUE"],
        ["merge", "db.t", "--source", f"{tmp_path}/new.parquet", "--on", "id", "--when-matched-update", "*"],
        ["sql", "DELETE FROM db.t WHERE id = 1"],
    ):
        arguments = [*command, "--catalog", "local", "--json"]
        assert main(arguments) == 1
        assert json.loads(capsys.readouterr().out)["error"]["kind"] == "corrupt-metadata"
        assert main([*arguments, "--trust-lists"]) == 0
        capsys.readouterr()


def test_invalid_totals_are_ignored(tmp_path: Path) -> None:
    table = create_table(open_catalog(tmp_path))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    for total in ("-1", "²", "many", "9" * 5000, ""):
        snapshot.summary.additional_properties["total-data-files"] = total
        assert plan_scan(table, options=NO_SCAN_EXTRAS).warnings == ()


def test_totals_follow_every_change_of_ours(tmp_path: Path) -> None:
    table = create_table(open_catalog(tmp_path))
    table = commit_change(table, append(table, rows_of(40, 50, "b"))).table
    assert expire_snapshots(table, older_than_ms=LATER, dry_run=False).snapshots_after == 1
    assert remove_orphans(table, older_than=timedelta(days=1)).orphans == ()


def test_lists_and_totals_of_pyiceberg_agree(tmp_path: Path) -> None:
    """For every operation of PyIceberg; ``test_doctor_matrix`` checks tables of Spark."""
    table = open_catalog(tmp_path).create_table("db.p", SCHEMA)
    table.append(arrow(rows_of(0, 30)))
    table.append(arrow(rows_of(30, 60, "b")))
    table.overwrite(arrow(rows_of(0, 5, "c")), "id < 10")
    table.delete("part = 'b' AND id < 40")
    table.upsert(arrow(rows_of(50, 70, "d")), ["id"])
    table.delete("id >= 0")
    table.append(arrow(rows_of(0, 3)))
    for snapshot in table.metadata.snapshots:
        assert plan_scan(table, snapshot_id=snapshot.snapshot_id, options=NO_SCAN_EXTRAS).warnings == ()
    assert remove_orphans(table, now_s=2.0**40).orphans == ()

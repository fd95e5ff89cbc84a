"""Findings of the doctor, and its repairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.cli.main import main
from floeplan.errors import CorruptMetadataError
from floeplan.maintenance import doctor as rules
from floeplan.maintenance.doctor import DoctorResult, Severity, doctor
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions, upgrade_spec
from floeplan.scan.model import ScanOptions
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from tests.support.tables.commits import (
    append,
    create_table,
    delete_change,
    delete_first_rows,
    evolved_table,
    live_entries,
    open_catalog,
    patient,
    read_rows,
    rows_of,
)

pytestmark = pytest.mark.unit

ALONE = UpgradeOptions(metadata_only=True)
ODD_OF_A = "part = 'a' AND id % 2 = 1"


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return open_catalog(tmp_path)


def reloaded(table: Table) -> Table:
    return table.catalog.load_table(table.name())


def kinds(result: DoctorResult) -> set[str]:
    return {finding.kind for finding in result.findings}


def with_stray_deletes(catalog: SqlCatalog, version: int, *, per_file: bool = True) -> Table:
    """A merge-on-read writer that started before a move and committed after it."""
    table = evolved_table(catalog, version)
    in_flight = delete_change(table, slice(None), per_file=per_file)
    upgrade_spec(table, options=ALONE, commit=patient())
    return commit_change(table, in_flight, options=patient()).table


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "change",
    [
        partial(fp.update, set={"id": "id"}, where=ODD_OF_A, mode="copy-on-write"),
        partial(fp.delete, where=ODD_OF_A, mode="copy-on-write"),
        partial(fp.rewrite_data_files, where="part = 'a'", options={"rewrite-all": "true"}),
    ],
)
def test_changes_see_deletes_in_another_partition_whatever_the_filter(
    catalog: SqlCatalog, version: int, change: Callable[[Table], object]
) -> None:
    """Their manifest may hold no partition of the filter; the rows they delete would be written back."""
    table = create_table(catalog, version)
    first = next(at for at, path in enumerate(sorted(live_entries(table).path.to_pylist())) if "part=a" in path)
    deletes = delete_change(table, slice(first, first + 1)).added_deletes
    (name,) = (name for name in deletes.table.column_names if name.startswith("partition."))
    at = deletes.table.schema.get_field_index(name)
    elsewhere = deletes.table.set_column(at, name, pa.array(["b"], deletes.table.schema.field(name).type))
    misplaced = EntriesTable(elsewhere, deletes.partition_types)
    table = commit_change(table, SnapshotChange(Operation.DELETE, added_deletes=misplaced), options=patient()).table
    with pytest.raises(CorruptMetadataError, match=r"is recorded in another spec or partition"):
        change(table)
    assert reloaded(table).metadata.current_snapshot_id == table.metadata.current_snapshot_id


def test_a_healthy_table_has_no_findings(catalog: SqlCatalog) -> None:
    assert doctor(create_table(catalog)).findings == ()


@pytest.mark.parametrize("version", [2, 3])
def test_stray_deletes_are_found_and_repaired(catalog: SqlCatalog, version: int) -> None:
    table = with_stray_deletes(catalog, version)
    with pytest.raises(CorruptMetadataError, match=r"delete file .* is recorded in another spec or partition"):
        fp.plan_scan(table)
    reading_on = ScanOptions(misplaced_deletes=True)
    applied, some = (
        sorted(fp.plan_scan(table, where, options=reading_on).to_arrow()["id"].to_pylist())
        for where in (None, "part = 'a' AND id >= 0")
    )
    assert len(applied) == 36
    found = doctor(table)
    (stray,) = (finding for finding in found.findings if finding.kind == "stray-deletes")
    assert (stray.severity, stray.spec_id, stray.files, found.healthy) == (Severity.ERROR, 0, 3, False)
    result = doctor(table, repair=True, commit=patient())
    assert result.repaired is not None
    assert (result.repaired.delete_files, result.healthy) == (3, True)
    assert sorted(fp.plan_scan(reloaded(table)).to_arrow()["id"].to_pylist()) == applied
    assert sorted(fp.plan_scan(reloaded(table), "part = 'a'").to_arrow()["id"].to_pylist()) == some
    again = doctor(reloaded(table), repair=True, commit=patient())
    assert again.repaired is not None
    assert again.repaired.snapshot_id is None


def test_deletes_that_do_not_apply_to_moved_files_are_found_and_repaired(catalog: SqlCatalog) -> None:
    table = with_stray_deletes(catalog, 2, per_file=False)
    assert "unreached-deletes" in kinds(doctor(table))
    assert len(read_rows(table)) == 39
    assert doctor(table, repair=True, commit=patient()).healthy
    assert len(read_rows(table)) == 36


def test_two_vectors_of_one_file_are_found(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog, 3)
    second = delete_change(table, slice(0, 1))
    table = delete_first_rows(table, slice(0, 1))
    assert "several-vectors" not in kinds(doctor(table))
    table = commit_change(table, second, options=patient()).table
    assert "several-vectors" in kinds(doctor(table))


def test_deletes_of_removed_files_are_reported(catalog: SqlCatalog) -> None:
    table = delete_first_rows(evolved_table(catalog, 2), slice(0, 1))
    assert "dangling-deletes" not in kinds(doctor(table))
    entries = live_entries(table)
    gone = entries.array("referenced_data_file").drop_null().to_pylist()
    table = commit_change(
        table, SnapshotChange(Operation.DELETE, removed_data=frozenset(gone)), options=patient()
    ).table
    assert "dangling-deletes" in kinds(doctor(table))


def test_files_without_bounds_and_files_of_old_specs_are_reported(catalog: SqlCatalog) -> None:
    table = evolved_table(catalog)
    found = {finding.kind: finding for finding in doctor(table).findings}
    assert "missing-statistics" not in found
    assert (found["old-specs"].spec_id, found["old-specs"].files) == (0, 4)
    added = append(table, rows_of(50, 60, "a")).added_data
    assert added is not None
    bare = EntriesTable(_without_bounds(added), added.partition_types)
    table = commit_change(table, SnapshotChange(Operation.APPEND, added_data=bare)).table
    (finding,) = (finding for finding in doctor(table).findings if finding.kind == "missing-statistics")
    assert (finding.files, finding.spec_id, len(finding.examples)) == (1, 1, 1)


def _without_bounds(added: EntriesTable) -> object:
    at = added.table.schema.get_field_index("lower_bounds")
    return added.table.set_column(at, "lower_bounds", pa.nulls(len(added), added.table.schema.field(at).type))


def test_large_counts_are_reported(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create_table(catalog, rows=rows_of(0, 60))
    table.transaction().set_properties({"history.expire.max-snapshot-age-ms": "0"}).commit_transaction()
    for name, value in (("MANY_SNAPSHOTS", 3), ("MANY_SMALL_FILES", 3), ("SPREAD", 1.5)):
        monkeypatch.setattr(rules, name, value)
    assert kinds(doctor(reloaded(table))) == {"many-snapshots", "small-files", "many-manifests"}


def test_the_command_exits_with_1_only_for_errors(catalog: SqlCatalog, capsys: pytest.CaptureFixture[str]) -> None:
    table = with_stray_deletes(catalog, 2)
    assert main(["doctor", table.metadata_location, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert found[0].keys() >= {"severity", "kind", "message", "spec_id", "files"}
    assert main(["doctor", table.metadata_location]) == 1
    assert "stray-deletes (spec 0)" in capsys.readouterr().out
    assert main(["doctor", table.metadata_location, "--repair"]) == 2
    assert "read-only" in capsys.readouterr().err
    doctor(table, repair=True, commit=patient())
    assert main(["doctor", reloaded(table).metadata_location]) == 0


def test_removed_delete_files_are_ignored(catalog: SqlCatalog) -> None:
    table = delete_first_rows(evolved_table(catalog), slice(0, 1))
    (path,) = (
        path
        for path, content in zip(live_entries(table).path.to_pylist(), live_entries(table).content, strict=True)
        if content != 0
    )
    change = SnapshotChange(Operation.DELETE, removed_deletes=frozenset({DeleteFileId(path)}))
    assert doctor(commit_change(table, change, options=patient()).table).healthy

"""Damaged tables: partition summaries and entries that contradict the files."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.catalog import open_catalog as open_embedded
from floeplan.cli.main import main
from floeplan.maintenance.doctor import Finding, Severity, doctor
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.list_writer import ListedSnapshot, encode_manifest_list
from floeplan.metadata.manifests.manifest_list import ManifestListTable, read_manifest_list
from floeplan.scan.plan import plan_scan
from floeplan.snapshot import reader
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from tests.support.tables.commits import NO_SCAN_EXTRAS, append, create_table, open_catalog, patient, read_rows, rows_of

pytestmark = pytest.mark.unit

Damage = Callable[[ManifestListTable], ManifestListTable]


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return open_catalog(tmp_path)


def damaged(table: Table, damage: Damage) -> Table:
    """The table with a replaced manifest list."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    listed = damage(read_manifest_list(snapshot.manifest_list, table.io))
    head = ListedSnapshot(
        format_version=table.metadata.format_version,
        snapshot_id=snapshot.snapshot_id,
        parent_snapshot_id=snapshot.parent_snapshot_id,
        sequence_number=snapshot.sequence_number or 0,
    )
    Path(snapshot.manifest_list.removeprefix("file://")).write_bytes(encode_manifest_list(listed, head).data)
    return table.refresh()


def only(table: Table, kind: str, **options: object) -> Finding:
    (found,) = (finding for finding in doctor(table, **options).findings if finding.kind == kind)  # type: ignore[arg-type]
    return found


def excluding_b(listed: ManifestListTable) -> ManifestListTable:
    """Every summary contains only part a."""
    a = pa.array([b"a"] * len(listed.summaries.lower), listed.summaries.lower.type)
    return replace(listed, summaries=replace(listed.summaries, lower=a, upper=a))


def without_nulls(listed: ManifestListTable) -> ManifestListTable:
    return replace(
        listed, summaries=replace(listed.summaries, contains_null=np.zeros_like(listed.summaries.contains_null))
    )


def test_partitions_that_the_list_excludes_are_found_and_repaired(catalog: SqlCatalog) -> None:
    table = damaged(create_table(catalog), excluding_b)
    assert plan_scan(table, "part = 'b'", options=NO_SCAN_EXTRAS).count() == 0
    found = only(table, "wrong-summaries")
    assert (found.severity, found.files, found.fix) == (Severity.ERROR, 1, "floeplan doctor db.t --repair")
    result = doctor(table, repair=True, commit=patient())
    assert (result.healthy, result.manifests_repaired) == (True, 1)
    assert plan_scan(table.refresh(), "part = 'b'", options=NO_SCAN_EXTRAS).count() == 10
    assert len(read_rows(table)) == 30
    assert doctor(table.refresh(), repair=True, commit=patient()).manifests_repaired == 0


def test_nulls_that_the_list_denies_are_found(catalog: SqlCatalog) -> None:
    table = create_table(catalog, rows=[(number, None) for number in range(10)])  # type: ignore[misc]
    assert doctor(table).healthy
    assert only(damaged(table, without_nulls), "wrong-summaries").files == 1


def test_manifests_of_an_unknown_spec_are_found(catalog: SqlCatalog) -> None:
    def relabel(listed: ManifestListTable) -> ManifestListTable:
        return replace(listed, spec_id=np.where(np.arange(len(listed)) == 0, 9, listed.spec_id))

    table = damaged(create_table(catalog), relabel)
    found = only(table, "unknown-spec")
    assert (found.severity, found.spec_id, found.files, len(found.examples)) == (Severity.ERROR, 9, 1, 1)


def test_a_file_that_is_listed_twice_is_found(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    change = append(table, rows_of(50, 60))
    for _ in range(2):
        table = commit_change(table, change).table
    found = only(table, "duplicate-paths")
    assert (found.severity, found.files) == (Severity.ERROR, 1)


def under_b(added: EntriesTable | None, *, bounds: bool) -> SnapshotChange:
    """Rows of part a recorded in part b, with or without bounds."""
    assert added is not None
    table = added.table
    (name,) = (name for name in table.column_names if name.startswith("partition."))
    changes = {name: pa.array(["b"] * len(added), table.schema.field(name).type)}
    if not bounds:
        changes |= {
            name: pa.nulls(len(added), table.schema.field(name).type) for name in ("lower_bounds", "upper_bounds")
        }
    for name, column in changes.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return SnapshotChange(Operation.APPEND, added_data=EntriesTable(table, added.partition_types))


@pytest.mark.parametrize("bounds", [True, False])
def test_values_outside_their_partition_are_found(catalog: SqlCatalog, bounds: bool) -> None:
    """By bounds if there are any, otherwise by sampled rows."""
    table = create_table(catalog)
    table = commit_change(table, under_b(append(table, rows_of(50, 60, "a")).added_data, bounds=bounds)).table
    found = only(table, "misfiled-values", sample=10)
    assert (found.severity, found.files) == (Severity.ERROR, 1)
    by_metadata = {finding.kind for finding in doctor(table, sample=0).findings}
    assert ("misfiled-values" in by_metadata) == bounds


def test_manifests_that_are_read_in_parts_have_the_same_findings(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(catalog)
    for bounds in (True, False):
        table = commit_change(table, under_b(append(table, rows_of(50, 60, "a")).added_data, bounds=bounds)).table
    found = doctor(table)
    assert {finding.kind for finding in found.findings} >= {"misfiled-values", "missing-statistics"}
    monkeypatch.setattr(reader, "_FILES_OF_A_PART", 1)
    assert doctor(table) == found


def test_columns_that_queries_filter_by_should_have_bounds(
    floeplan_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOEPLAN_REPORTS", str(floeplan_home / "reports"))
    opened = open_embedded()
    opened.create_namespace("db")
    rows = pa.table({"id": [1, 2, 3], "note": ["x", "y", None]})
    opened.create_table("db.t", rows.schema, properties={"write.metadata.metrics.column.note": "none"})
    fp.append("db.t", rows)
    for where in ("note = 'x'", "id = 2"):
        plan_scan("db.t", where)
    assert main(["doctor", "db.t", "--reports", os.environ["FLOEPLAN_REPORTS"], "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["kind"], found["files"]) == ("filtered-without-bounds", 1)
    assert "note" in found["message"]
    metrics, rewrite = found["fix"].split(" && ")
    assert metrics == 'floeplan properties db.t "write.metadata.metrics.column.note=truncate(16)"'
    assert rewrite == "floeplan rewrite db.t --option rewrite-all=true"
    assert doctor("db.t").findings == ()
    for command in (metrics, rewrite):
        assert main(shlex.split(command)[1:]) == 0
    assert doctor("db.t", filtered=["note", "id"]).findings == ()


def test_the_suggested_fix_names_the_table_as_given(catalog: SqlCatalog) -> None:
    table = damaged(create_table(catalog), excluding_b)
    (found,) = doctor(table.metadata_location).findings
    assert found.fix == f"floeplan doctor {table.metadata_location} --repair"


def test_a_day_that_pyiceberg_stored_as_a_month_is_found(catalog: SqlCatalog) -> None:
    """PyIceberg's append of data files records them in the default spec, whatever their spec."""
    rows = pa.table({"id": [1, 2, 3], "day": pa.array([date(2024, 3, 5)] * 3)})
    for name in ("db.source", "db.damaged"):
        catalog.create_table(name, rows.schema, properties={"format-version": "2"})
        fp.sql(None, f"ALTER TABLE {name} ADD PARTITION FIELD days(day)", catalog=catalog)
    fp.append(catalog.load_table("db.source"), rows)
    (task,) = catalog.load_table("db.source").scan().plan_files()
    replaced = "ALTER TABLE db.damaged REPLACE PARTITION FIELD day_day WITH months(day)"
    fp.sql(None, replaced, catalog=catalog)
    damaged_table = catalog.load_table("db.damaged")
    with damaged_table.transaction() as change, change.update_snapshot().fast_append() as appending:
        appending.append_data_file(task.file)
    table = catalog.load_table("db.damaged")
    assert plan_scan(table, "day >= DATE '2024-03-01' AND day < DATE '2024-04-01'", options=NO_SCAN_EXTRAS).count() == 0
    assert only(table, "misfiled-values", sample=0).files == 1


def test_a_missing_data_file_is_found(catalog: SqlCatalog) -> None:
    table = create_table(catalog)
    (first, *_) = table.scan().plan_files()
    Path(first.file.file_path.removeprefix("file://")).unlink()
    found = only(table, "missing-files")
    assert (found.severity, found.files, found.examples) == (Severity.ERROR, 1, (first.file.file_path,))

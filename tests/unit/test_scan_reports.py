"""Scan reports: Iceberg's names and structure, stores shared by many writers, and failures that do not fail a scan."""

from __future__ import annotations

import json
import multiprocessing
import resource
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType

from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.report import JsonLinesReportStore, TableReportStore, default_folder, default_store, scan_report
from tests.support.tables.layouts import Files, Layout
from tests.support.tables.two_specs import catalog, events, two_spec_table

pytestmark = pytest.mark.unit

COUNTS = {
    "result-data-files",
    "result-delete-files",
    "total-data-manifests",
    "total-delete-manifests",
    "scanned-data-manifests",
    "skipped-data-manifests",
    "skipped-data-files",
    "skipped-delete-files",
    "scanned-delete-manifests",
    "skipped-delete-manifests",
    "indexed-delete-files",
    "equality-delete-files",
    "positional-delete-files",
    "dvs",
}
SIZES = {"total-file-size-in-bytes", "total-delete-file-size-in-bytes"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return two_spec_table(tmp_path_factory.mktemp("events"))


def values(report: Mapping[str, Any]) -> dict[str, int]:
    return {name: metric["value"] for name, metric in report["metrics"].items() if "value" in metric}


def test_report_has_the_names_and_shapes_of_iceberg(table: Table) -> None:
    report = scan_report(plan_scan(table, "region = 'eu' AND id > 150", columns=["id", "v"]))
    assert report["report-type"] == "scan-report"
    assert report["table-name"] == "db.events"
    assert report["snapshot-id"] == table.metadata.current_snapshot_id
    assert report["schema-id"] == 0
    assert report["projected-field-ids"] == [1, 4]
    assert report["projected-field-names"] == ["id", "v"]
    assert report["filter"] == {
        "type": "and",
        "left": {"type": "eq", "term": "region", "value": "eu"},
        "right": {"type": "gt", "term": "id", "value": 150},
    }
    metrics = report["metrics"]
    assert metrics.keys() == COUNTS | SIZES | {"total-planning-duration"}
    assert all(metrics[name].keys() == {"unit", "value"} for name in COUNTS | SIZES)
    assert {metrics[name]["unit"] for name in COUNTS} == {"count"}
    assert {metrics[name]["unit"] for name in SIZES} == {"bytes"}
    assert metrics["total-planning-duration"].keys() == {"count", "time-unit", "total-duration"}
    assert metrics["total-planning-duration"]["time-unit"] == "nanoseconds"
    assert report["metadata"] == {"engine-name": "floeplan", "engine-version": version("floeplan")}
    assert json.loads(json.dumps(report, allow_nan=False)).keys() == report.keys()


def test_report_counts_what_was_read_and_what_was_not(table: Table) -> None:
    found = values(scan_report(plan_scan(table, "region = 'eu' AND id >= 200")))
    assert found["total-data-manifests"] == found["scanned-data-manifests"] == 3
    assert (found["result-data-files"], found["skipped-data-files"]) == (1, 4)
    assert found["total-file-size-in-bytes"] > 0
    assert scan_report(plan_scan(table))["filter"] is True
    report = scan_report(plan_scan(table, "FALSE"))
    assert report["filter"] is False
    assert values(report)["skipped-data-manifests"] == 3


def test_report_counts_each_kind_of_delete(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()), schema_id=0)
    files = Files(tmp_path)
    first, second = (files.data([{"id": n, "name": "x"} for n in range(at, at + 3)], schema) for at in (0, 10))
    files.positions([(first, 0)])
    files.vector(second, [1])
    files.keys([{"id": 2}], schema, [1])
    files.keys([{"id": 99}], schema, [1], lower_bounds={1: b"\x63" + bytes(7)}, upper_bounds={1: b"\x63" + bytes(7)})
    plan = plan_scan(files.table(Layout(schema, (PartitionSpec(spec_id=0),), version=3)))
    found = values(scan_report(plan))
    kinds = ("positional-delete-files", "dvs", "equality-delete-files", "indexed-delete-files", "result-delete-files")
    assert [found[kind] for kind in kinds] == [1, 1, 2, 4, 4]
    assert found["total-delete-file-size-in-bytes"] > 0
    assert plan.count() == 3


def test_report_of_our_own_has_numbers_per_spec_and_pass(table: Table) -> None:
    own = scan_report(plan_scan(table, "region <> 'eu'"))["floeplan"]
    assert own["predicate"] == "region != 'eu'"
    fields = {spec["spec_id"]: spec["partition_fields"] for spec in own["specs"]}
    assert fields == {0: [], 1: ["region"]}
    assert [step["name"] for step in own["passes"]] == ["manifest list", "manifest entries", "footers"]
    assert own["summary"]["files_total"] == 5


def test_a_report_has_the_values_of_a_long_list_once(table: Table) -> None:
    listed = [10**12 + i for i in range(5_000)]
    report = scan_report(plan_scan(table, f"id IN ({', '.join(map(str, listed))})"))
    assert report["filter"]["values"] == listed
    assert len(json.dumps(report)) < 2 * len(json.dumps(report["filter"]))


def test_table_without_snapshot_has_a_report(tmp_path: Path) -> None:
    empty = catalog(tmp_path).create_table("db.empty", events(0, 1).schema)
    report = scan_report(plan_scan(empty, "id = 1"))
    assert report["snapshot-id"] == -1
    assert values(report)["result-data-files"] == 0


def test_every_scan_leaves_one_line_in_the_default_folder(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOEPLAN_REPORTS", str(tmp_path / "some" / "reports"))
    plan_scan(table, "id = 1")
    plan_scan(table, "region = 'é'")
    plan_scan(table, options=ScanOptions(report=False))
    (file,) = (tmp_path / "some" / "reports").iterdir()
    filters = [json.loads(line)["filter"]["value"] for line in file.read_text().splitlines()]
    assert filters == [1, "é"]


def test_reports_can_be_disabled_by_the_environment(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOEPLAN_REPORTS", "OFF")
    assert default_store() is None
    assert plan_scan(table).warnings == ()


def test_the_default_folder_is_not_the_current_one(
    table: Table, floeplan_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLOEPLAN_REPORTS")
    store = default_store()
    assert isinstance(store, JsonLinesReportStore)
    assert store.directory == floeplan_home / "reports"
    assert not store.directory.exists()
    monkeypatch.delenv("FLOEPLAN_HOME")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_folder() == tmp_path / ".local/state/floeplan/reports"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    current = tmp_path / "current"
    current.mkdir()
    monkeypatch.chdir(current)
    plan_scan(table)
    assert list(current.iterdir()) == []
    assert len(list((tmp_path / "state/floeplan/reports").iterdir())) == 1


def test_files_of_reports_are_rotated_and_the_oldest_removed(tmp_path: Path) -> None:
    (tmp_path / "scan-20200101-000.jsonl").write_text("x" * 700)
    (tmp_path / "other.jsonl").write_text("x" * 700)
    store = JsonLinesReportStore(tmp_path, most_bytes=1000, file_bytes=300)
    for line in range(20):
        store.append({"line": line, "padding": "x" * 80})
    files = sorted(tmp_path.glob("scan-*.jsonl"))
    assert "scan-20200101-000.jsonl" not in {file.name for file in files}
    assert (tmp_path / "other.jsonl").exists()
    assert all(file.stat().st_size < 300 + 110 for file in files)
    assert sum(file.stat().st_size for file in files) < 1000 + 300 + 110
    kept = [json.loads(line)["line"] for file in files for line in file.read_text().splitlines()]
    assert kept == list(range(20))[-len(kept) :]


def test_reports_go_to_a_new_file_when_somebody_removes_the_last(tmp_path: Path) -> None:
    store = JsonLinesReportStore(tmp_path / "reports")
    for line in range(3):
        store.append({"line": line})
        (written,) = (tmp_path / "reports").iterdir()
        assert json.loads(written.read_text()) == {"line": line}
        written.unlink()
    (tmp_path / "reports").rmdir()
    store.append({"line": 3})
    assert len(list((tmp_path / "reports").iterdir())) == 1


def _append(folder: Path, writer: int, lines: int) -> None:
    store = JsonLinesReportStore(folder)
    for line in range(lines):
        store.append({"writer": writer, "line": line, "padding": "x" * 5000})


def test_lines_of_many_writers_stay_whole(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as processes:
        list(processes.map(_append, [tmp_path] * 2, range(4, 6), [20] * 2))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(_append, [tmp_path] * 4, range(4), [20] * 4))
    lines = [json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert sorted((line["writer"], line["line"]) for line in lines) == [(w, n) for w in range(6) for n in range(20)]


def test_a_line_that_is_written_in_part_is_an_error(tmp_path: Path) -> None:
    """As on a disk that becomes full: a limit on the size of files lets the kernel write the first bytes only."""
    store = JsonLinesReportStore(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(OSError, match="No space left on device"):
            store.append({"table-name": "db.events" * 10})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (written,) = tmp_path.iterdir()
    assert written.stat().st_size == 20


def test_reports_in_a_table(table: Table, tmp_path: Path) -> None:
    opened = catalog(tmp_path)
    first, second = (TableReportStore.create(opened, "db.reports") for _ in range(2))
    for store in (first, second, first):
        assert plan_scan(table, "id = 1", options=ScanOptions(report=store)).warnings == ()
    rows = opened.load_table("db.reports").scan().to_arrow().to_pylist()
    assert [(row["table_name"], row["predicate"]) for row in rows] == [("db.events", "id = 1")] * 3
    assert json.loads(rows[0]["report"])["report-type"] == "scan-report"


class Refusing:
    def append(self, report: Mapping[str, Any]) -> None:
        raise OSError("disk full")


def test_failing_store_is_a_warning_and_no_failure(table: Table) -> None:
    plan = plan_scan(table, "id = 1", options=ScanOptions(report=Refusing()))
    (warning,) = plan.warnings
    assert (warning.kind, warning.message) == ("report-not-stored", "the scan report was not stored: disk full")
    assert plan.count() == 1
    assert "disk full" in plan.explain()


def test_folder_that_cannot_be_made_is_a_warning(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FLOEPLAN_REPORTS", str(tmp_path / "file" / "reports"))
    (warning,) = plan_scan(table).warnings
    assert warning.kind == "report-not-stored"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

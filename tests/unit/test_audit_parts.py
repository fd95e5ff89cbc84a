"""The parts of the audit that need no Spark: fingerprints, trends, options, times, output, selectivity."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from floeplan.audit.findings import (
    ADVICE,
    DELETES,
    LARGE,
    OLD_SPEC,
    AuditOptions,
    AuditResult,
    Finding,
    fingerprint,
    readable,
)
from floeplan.audit.job import trend
from floeplan.audit.reports import check_table
from floeplan.catalog import open_catalog
from floeplan.cli.commands.audit import draw, since_time
from floeplan.cli.main import main
from floeplan.errors import InvalidOptionError, UnknownTableError
from floeplan.rewrite.execute import rewrite_data_files
from floeplan.scan.plan import plan_scan
from floeplan.scan.report import scan_report
from tests.support.scan_reports import leaf, own_report, write_lines
from tests.support.tables.two_specs import EVENTS, catalog, events

pytestmark = pytest.mark.unit


def finding(**changes: Any) -> Finding:
    values: dict[str, Any] = {
        "table": "db.t",
        "shape": '{"type":"eq","term":"a","value":"?"}',
        "opaque": "",
        "runs": 4,
        "ratios": {"manifests": 1.0, "files": 0.5, "row_groups": None, "rows": 0.5, "bytes": 0.004},
        "bytes_kept": 4096,
        "bytes_per_run": 1024.0,
        "selectivity": 0.01,
        "trend": 2.0,
        "first_run": "2024-03-01T00:00:00",
        "last_run": "2024-03-02T00:00:00",
        "reasons": {"no statistics": 4},
    }
    return Finding(**values | changes)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ("true", "true"),
        ('{"type":"starts-with","term":"a","value":"?"}', "a LIKE ?"),
        ('{"type":"not","child":{"type":"is-nan","term":"a"}}', "NOT (isnan(a))"),
        (
            '{"type":"and","left":{"type":"or","left":{"type":"is-null","term":"a"},"right":{"type":"not-in","term":"b",'
            '"values":"?"}},"right":{"type":"lt-eq","term":{"type":"transform","transform":"day","term":"ts"},"value":"?"}}',
            "(a IS NULL OR b NOT IN (?)) AND day(ts) <= ?",
        ),
        ('ref(name="id") == ?', 'ref(name="id") == ?'),
        ('{"type":"something-new"}', '{"type":"something-new"}'),
    ],
)
def test_shapes_are_shown_as_sql_and_unknown_ones_unchanged(shape: str, text: str) -> None:
    assert readable(shape) == text


def test_fingerprints_distinguish_tables_filters_and_opaque_pieces() -> None:
    names = {fingerprint(t, s, o) for t in ("a", "b") for s in ("x", "y") for o in ("", "z")}
    assert len(names) == 8
    assert finding().fingerprint == finding(runs=9).fingerprint


def test_trend_compares_the_halves_of_the_time() -> None:
    days = [
        (date(2024, 3, day), runs, size) for day, runs, size in ((1, 1, 100), (2, 3, 300), (9, 1, 400), (10, 1, 200))
    ]
    assert trend(days) == pytest.approx(3.0)
    assert trend(days[:1]) is None
    assert trend([(date(2024, 3, 1), 1, 0), (date(2024, 3, 9), 1, 5)]) is None


def test_the_most_frequent_reason_is_named_and_the_most_specific_of_equals() -> None:
    assert finding(reasons={DELETES: 3, OLD_SPEC: 1}).reason == DELETES
    assert finding(reasons={DELETES: 2, "no statistics": 2}).reason == "no statistics"
    assert finding(reasons={}).reason == LARGE
    assert finding(guessed=True).to_dict()["basis"] == "form of the filter"


def test_times_and_ages_are_parsed() -> None:
    now = datetime(2024, 3, 8, tzinfo=UTC)
    assert since_time("7d", now) == now - timedelta(days=7)
    assert since_time("90m", now) == now - timedelta(minutes=90)
    assert since_time("2024-03-01", now) == datetime(2024, 3, 1, tzinfo=UTC)
    with pytest.raises(InvalidOptionError, match="neither a time"):
        since_time("yesterday", now)


def test_thresholds_are_checked_before_spark_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidOptionError, match="min_files is -1"):
        AuditOptions(min_files=-1)
    assert main(["audit", "--min-ratio", "-1"]) == 2
    assert "--min-ratio is '-1'" in capsys.readouterr().err


def test_a_place_without_reports_is_named_before_spark_starts(
    floeplan_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOEPLAN_REPORTS", "off")
    assert main(["audit"]) == 2
    expected = f"there are no reports at {floeplan_home / 'reports'}; plan or scan a table first, or give a folder"
    assert expected in capsys.readouterr().err
    assert main(["audit", "--reports", "db.nothing"]) == 2
    assert "db.nothing" in capsys.readouterr().err


def test_the_drawing_shows_ratios_reason_and_advice() -> None:
    console = Console(width=140, record=True, file=StringIO(), soft_wrap=True)
    console.print(draw(AuditResult(2, 9, 1, 5000, 1, (finding(),))))
    text = console.export_text()
    assert "2 queries in 9 runs" in text
    assert "1 line without a scan report" in text
    assert "██████░░░░░░ 50 %" in text
    assert "█░░░░░░░░░░░ 0.4 %" in text
    assert "growing 2.0×" in text
    assert f"no statistics → {ADVICE['no statistics']}" in text
    assert "row groups" not in text


@pytest.mark.parametrize(
    ("where", "share"),
    [
        ("id < 25", 0.25),
        ("id BETWEEN 10 AND 19", 0.1),
        ("id = 50", 0.01),
        ("id IN (1, 2, 3)", 0.03),
        ("id < 50 AND region = 'eu'", 0.5),
        ("id < 10 OR id >= 90", 0.2),
        ("NOT (id >= 25)", 0.25),
        ("id < 1000", 1.0),
        ("region = 'eu'", None),
        ("id < 50 OR region = 'eu'", None),
        ("id != 3", None),
    ],
)
def test_reports_have_the_estimated_selectivity(tmp_path: Path, where: str, share: float | None) -> None:
    table = catalog(tmp_path).create_table("db.t", events(0, 1).schema)
    table.append(events(0, 100))
    report = scan_report(plan_scan(table, where))
    assert report["floeplan"]["default_spec_id"] == 0
    found = report["floeplan"]["selectivity"]
    assert (found is None) == (share is None)
    assert share is None or np.isclose(found, share, atol=0.011)


def test_reports_say_what_decided_each_conjunct_and_which_share_of_rows_is_proven(tmp_path: Path) -> None:
    table = catalog(tmp_path).create_table("db.t", events(0, 1).schema)
    with table.update_spec() as update:
        update.add_identity("region")
    table.append(events(0, 90))
    own = scan_report(plan_scan(table, "region = 'eu' AND id < 45"))["floeplan"]
    region, number = own["passes"][1]["effects"]
    assert (region["decided"], region["undecided"]) == ("partition", 0)
    assert (number["decided"], number["undecided"]) == ("nothing", 3)
    assert [spec["undecided"] for spec in own["specs"]] == [0, 3]
    proven = scan_report(plan_scan(table, "region = 'eu'"))["floeplan"]
    assert proven["selectivity"] == pytest.approx(1 / 3)
    assert proven["passes"][1]["effects"][0]["why"] == ""


def test_reports_know_when_the_layout_changed(tmp_path: Path) -> None:
    table = catalog(tmp_path).create_table("db.t", events(0, 1).schema)
    table.append(events(0, 10))
    assert scan_report(plan_scan(table))["floeplan"]["layout_changed_ms"] is None
    rewrite_data_files(table, options={"rewrite-all": "true"})
    rewritten = table.refresh().current_snapshot()
    table.append(events(10, 20))
    own = scan_report(plan_scan(table.refresh()))["floeplan"]
    assert own["layout_changed_ms"] == rewritten.timestamp_ms  # type: ignore[union-attr]


def test_a_table_that_neither_the_catalog_nor_reports_name_is_refused_before_spark_starts(
    tmp_path: Path, floeplan_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = open_catalog()
    lake.create_namespace("db")
    lake.create_table("db.quiet", EVENTS)
    lines = [own_report(leaf("eq", "user", 7), kept=1, total=100, table=name) for name in ("db.events", "prod.db.été")]
    folder = str(write_lines(tmp_path / "reports/scan.jsonl", lines))
    nowhere = ["--spark", "sc://localhost:1"]  # there is no such session
    assert main(["audit", "--reports", folder, "--table", "db.nope", *nowhere]) == 2
    assert "no table 'db.nope'" in capsys.readouterr().err
    for known in ("db.quiet", "db.events", "db.été"):
        check_table(known, folder, lake)
    with pytest.raises(UnknownTableError):
        check_table("db.nope", folder, lake)
    (tmp_path / "reports/scan.jsonl.1").touch()  # a file that is not plainly text
    check_table("db.nope", folder, lake)
    check_table("db.nope", "s3://bucket/reports", lake)

"""Audit records, metrics and logs of the planning server, and the command that explains a recorded plan."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floeplan as fp
from floeplan.audit.reports import read_workload
from floeplan.catalog import open_catalog
from floeplan.cli.main import main
from floeplan.rest.planner import Caller, ScanPlanner
from floeplan.rest.records import AuditRecorder, JsonFormatter, Metrics, redacted_report
from floeplan.rest.requests import PlanTableScanRequest
from floeplan.rest.tokens import KeyRing

pytestmark = pytest.mark.unit

ANA = Caller("ana", "PyIceberg", "0.12.0")
FILTER = {
    "type": "and",
    "left": {"type": "lt", "term": "id", "value": 5},
    "right": {"type": "in", "term": "name", "values": ["secret-a", "secret-b"]},
}


@pytest.fixture
def table(floeplan_home: Path) -> Any:
    catalog = open_catalog()
    catalog.create_namespace("db")
    created = catalog.create_table("db.t", pa.schema([("id", pa.int64()), ("name", pa.string())]))
    for start in range(0, 30, 10):
        fp.append(created, pa.table({"id": list(range(start, start + 10)), "name": ["secret-a"] * 10}))
    return catalog.load_table("db.t")


def record(table: Any, folder: Path, **options: bool) -> str:
    """Plan a scan and record it; returns the plan id."""
    request = PlanTableScanRequest.from_json({"filter": FILTER})
    planned = ScanPlanner(KeyRing.generate()).plan(table, request, ANA)
    AuditRecorder(folder, Metrics(), **options).plan(planned, ANA, "db.t", sent_bytes=100, ms=1.5)
    assert planned.plan_id is not None
    return planned.plan_id


def test_a_plan_is_recorded_as_a_scan_report(table: Any, tmp_path: Path) -> None:
    plan_id = record(table, tmp_path / "audit")
    (path,) = (tmp_path / "audit").glob("*.jsonl")
    (written,) = map(json.loads, path.read_text().splitlines())
    assert written["server"] | {"body-bytes": 0} == {
        "plan-id": plan_id,
        "principal": "ana",
        "engine": "PyIceberg",
        "engine-version": "0.12.0",
        "cached": False,
        "body-bytes": 0,
        "sent-bytes": 100,
        "ms": 1.5,
    }
    assert written["floeplan"]["summary"]["files_kept"] == 1
    workload = read_workload(str(tmp_path / "audit"), "db.t", table.schema())
    assert (workload.runs, workload.unusable) == (1, 0)


def test_a_redacted_record_holds_no_literal(table: Any, tmp_path: Path) -> None:
    record(table, tmp_path / "audit", redact=True)
    (path,) = (tmp_path / "audit").glob("*.jsonl")
    assert "secret-" not in path.read_text()
    written = json.loads(path.read_text())
    assert written["floeplan"]["summary"]["files_kept"] == 1
    assert written["metrics"]["result-data-files"] == {"unit": "count", "value": 1}
    assert read_workload(str(tmp_path / "audit"), "db.t", table.schema()).unusable == 1


def test_equal_literals_have_equal_digests() -> None:
    hidden = [redacted_report({"filter": {"type": "eq", "term": "a", "value": value}}) for value in (1, 1, 2)]
    assert hidden[0] == hidden[1] != hidden[2]


def test_literals_of_the_newer_form_are_hidden_on_either_side() -> None:
    forms = ({"left": {"type": "reference", "name": "a"}, "right": "secret"}, {"left": "secret", "right": 7})
    assert "secret" not in json.dumps([redacted_report({"filter": {"type": "eq", **form}}) for form in forms])


def test_explain_plan(table: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "audit"
    plan_id = record(table, folder)
    latest = record(table, folder)
    assert main(["explain-plan", plan_id, "--reports", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "ana with PyIceberg 0.12.0" in text
    assert "db.t" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["id", "<", "5", "0/3", "2/3", "0", "2", "1"] in lines, text  # bounds drop 2 files and overlap in 1
    assert main(["explain-plan", "last", "--reports", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["server"]["plan-id"] == latest
    for unknown in ("no-such-plan", "last"):
        assert main(["explain-plan", unknown, "--reports", str(tmp_path / "empty")]) == 2
        assert "--audit" in capsys.readouterr().err


def test_a_record_that_cannot_be_written_is_counted_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    metrics = Metrics()
    recorder = AuditRecorder(tmp_path / "file", metrics)
    assert "floeplan_audit_errors_total 0" in metrics.text({})  # a counter that begins with 1 does not increase
    recorder.client_report({"report-type": "commit-report"}, ANA, "db.t")
    assert "floeplan_audit_errors_total 1" in metrics.text({})


def test_metrics_are_in_the_format_of_prometheus() -> None:
    metrics = Metrics()
    metrics.add("requests_total", 1, endpoint="plan", status="200")
    metrics.add("requests_total", 2, status="200", endpoint="plan")
    metrics.add("odd_total", 1, name='a"b\\c\nd')
    for seconds in (0.001, 0.3, 99.0):
        metrics.observe("seconds", seconds)
    lines = metrics.text({"now": 3.0}).splitlines()
    assert lines[:2] == ["# TYPE now gauge", "now 3"]
    assert 'requests_total{endpoint="plan",status="200"} 3' in lines
    assert 'odd_total{name="a\\"b\\\\c d"} 1' in lines
    assert [line for line in lines if "le=" in line][-1] == 'seconds_bucket{le="+Inf"} 3'
    assert 'seconds_bucket{le="0.005"} 1' in lines
    assert "seconds_count 3" in lines


def test_names_that_clients_make_up_do_not_fill_the_metrics() -> None:
    metrics = Metrics()
    for number in range(1_000):
        metrics.add("plans_total", 1, engine=f"engine-{number}")
        metrics.observe("plan_seconds", 0.1, engine=f"engine-{number}")
    lines = metrics.text({}).splitlines()
    assert 'plans_total{engine="engine-7"} 1' in lines
    assert 'plans_total{engine="other"} 900' in lines
    assert 'plan_seconds_count{engine="other"} 900' in lines
    assert sum(line.startswith("plans_total") for line in lines) == 101


def test_log_lines_are_json_without_secrets() -> None:
    logged = logging.LogRecord("floeplan.rest", logging.INFO, "", 0, "uses token=abcdefgh", (), None)
    logged.fields = {"plan_id": "7", "table": "db.t"}
    line = json.loads(JsonFormatter().format(logged))
    assert (line["plan_id"], line["level"]) == ("7", "INFO")
    assert "abcdefgh" not in line["event"]

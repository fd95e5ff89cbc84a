"""The audit on Spark: queries by shape, flags and reasons, reports of every writer, and stored findings."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from floeplan.audit.findings import AuditOptions, AuditResult, Finding
from floeplan.audit.job import audit, store_findings
from floeplan.catalog import load_table
from floeplan.cli.main import main
from floeplan.errors import BadInputError
from floeplan.rewrite.execute import rewrite_data_files
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.report import JsonLinesReportStore, TableReportStore
from tests.support.scan_reports import foreign_report, leaf, own_report, write_lines
from tests.support.tables.two_specs import catalog, two_spec_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SPREAD = "values are spread over all files"


def by_filter(result: AuditResult) -> dict[str, Finding]:
    return {finding.filter: finding for finding in result.flagged}


def test_queries_are_flagged_with_their_reasons(spark: SparkSession, tmp_path: Path) -> None:
    folder = write_lines(
        tmp_path / "reports/scan.jsonl",
        [
            own_report(leaf("eq", "user", 7), kept=90, total=100, why=SPREAD, when="2024-03-01T00:00:00+00:00"),
            own_report(leaf("eq", "user", 812), kept=100, total=100, why=SPREAD, when="2024-03-05T00:00:00+00:00"),
            own_report(leaf("eq", "region", "eu"), kept=2, total=100, partition_field="region"),
            own_report(leaf("gt", "id"), kept=99, total=100, why="range over bucket", partition_field="id"),
            own_report(leaf("lt", "age"), kept=80, total=100, why=SPREAD, selectivity=0.75),
            own_report(leaf("lt", "score"), kept=80, total=100, why=SPREAD, selectivity=0.01),
            own_report(leaf("not-eq", "kind"), kept=100, total=100, why="!= excludes almost nothing"),
            own_report(leaf("in", "day", [1, 2]), kept=50, total=100, partition_field="day", old_spec_kept=45),
            own_report(leaf("eq", "late"), kept=5, total=100, deletes=9, partition_field="late"),
            own_report(leaf("eq", "tiny"), kept=5, total=100, manifests=(60, 90), partition_field="tiny"),
            own_report(leaf("eq", "name"), kept=60, total=100, opaque=["upper(name) = 'A'"], why="no statistics"),
            own_report(True, kept=100, total=100),
            own_report(True, kept=100, total=100, table="db.huge", file_size=2**36),
            "",
            "this line is no report",
            json.dumps({"report-type": "commit-report", "table-name": "db.events", "metrics": {}}),
        ],
    )
    result = audit(spark, str(folder))
    found = by_filter(result)
    assert {text: finding.reason for text, finding in found.items()} == {
        "user = ?": SPREAD,
        "id > ?": "range over bucket",
        "score < ?": SPREAD,
        "kind != ?": "!= excludes almost nothing",
        "day IN (?)": "old-spec files",
        "late = ?": "delete files",
        "tiny = ?": "many small manifests",
        "name = ? AND upper(name) = ?": "no statistics",
        "true": "no filter",
    }
    assert found["true"].table == "db.huge"
    assert (result.queries, result.runs, result.unreadable) == (12, 13, 1)
    user = found["user = ?"]
    assert user.runs == 2
    assert user.ratios["files"] == pytest.approx(0.95)
    assert user.ratios["row_groups"] is None
    assert user.bytes_kept == 190_000
    assert user.trend == pytest.approx(100 / 90)
    assert [day.to_dict() for day in user.days] == [
        {"day": "2024-03-01", "runs": 1, "bytes_kept": 90_000},
        {"day": "2024-03-05", "runs": 1, "bytes_kept": 100_000},
    ]
    assert (user.first_run, user.last_run) == ("2024-03-01T00:00:00+00:00", "2024-03-05T00:00:00+00:00")
    assert all(finding.advice for finding in result.flagged)
    assert [f.bytes_kept for f in result.flagged] == sorted((f.bytes_kept for f in result.flagged), reverse=True)
    json.dumps(result.to_dict(), allow_nan=False)
    few = audit(spark, str(folder), AuditOptions(most=1, since=datetime(2024, 3, 2, tzinfo=UTC)))
    assert (few.runs, few.flagged_total, len(few.flagged)) == (1, 1, 1)


def test_queries_of_an_empty_table_are_no_finding(spark: SparkSession, tmp_path: Path) -> None:
    lines = [own_report(leaf("eq", "user", 7), kept=0, total=0), own_report(leaf("eq", "age", 7), kept=90, total=100)]
    result = audit(spark, str(write_lines(tmp_path / "reports/scan.jsonl", lines)), AuditOptions(min_runs=0))
    assert (result.queries, len(result.flagged)) == (2, 0)


@pytest.mark.matrix
def test_nothing_but_the_result_reaches_the_terminal(tmp_path: Path) -> None:
    """A JVM of its own, which prints a warning when it starts."""
    folder = write_lines(tmp_path / "reports/scan.jsonl", [own_report(leaf("eq", "user", 7), kept=1, total=100)])
    command = [sys.executable, "-m", "floeplan.cli", "audit", "--reports", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 query in 1 run" in done.stdout


@pytest.mark.matrix
def test_spark_writes_nothing_to_the_current_folder(tmp_path: Path) -> None:
    """A name that only Spark may know makes it open its own catalog, which has a folder."""
    current, home = tmp_path / "current", tmp_path / "home"
    current.mkdir()
    command = [sys.executable, "-m", "floeplan.cli", "sql", "SELECT * FROM nope"]
    variables = {**os.environ, "FLOEPLAN_HOME": str(home), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=current, env=variables)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "TABLE_OR_VIEW_NOT_FOUND" in done.stderr
    assert list(current.iterdir()) == []
    assert not list(tmp_path.glob("floeplan-spark-*"))


def test_long_literals_are_left_out_of_the_shape_of_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """With a pattern that recurses for every character they would end the JVM."""
    lists: list[list[Any]] = [list(range(100_000)), [f'a "{i}" ]\\' for i in range(20_000)]]
    opaque = ["upper(name) = '" + "''" * size + "'" for size in (1, 50_000)]
    lines = [
        own_report(leaf("in", "user", values), kept=90, total=100, why=SPREAD, opaque=[text])
        for values, text in zip(lists, opaque, strict=True)
    ]
    result = audit(spark, str(write_lines(tmp_path / "reports/scan.jsonl", lines)))
    assert [(finding.runs, finding.reason) for finding in result.flagged] == [(2, SPREAD)]


def test_findings_follow_from_what_the_planner_left_undecided(spark: SparkSession, tmp_path: Path) -> None:
    folder = write_lines(
        tmp_path / "reports/scan.jsonl",
        [
            own_report(leaf("eq", "pruned"), kept=33, total=100, undecided=0, partition_field="pruned"),
            own_report(leaf("eq", "wanted"), kept=33, total=100, undecided=33, selectivity=0.33),
            own_report(leaf("eq", "half"), kept=50, total=100, undecided=50, partition_field="half"),
            own_report(leaf("lt", "all"), kept=100, total=100, undecided=0, file_size=2**36, selectivity=1.0),
        ],
    )
    result = audit(spark, str(folder))
    assert {text: finding.reason for text, finding in by_filter(result).items()} == {
        "half = ?": "bounds overlap in many files"
    }
    assert result.to_dict()["flagged"][0]["basis"] == "planner"


def test_runs_before_the_layout_changed_do_not_count(spark: SparkSession, tmp_path: Path) -> None:
    before, change, after = (f"2024-03-0{day}T00:00:00+00:00" for day in (1, 2, 3))
    folder = write_lines(
        tmp_path / "reports/scan.jsonl",
        [
            own_report(leaf("eq", "cured"), kept=90, total=100, why=SPREAD, when=before),
            own_report(leaf("eq", "cured"), kept=2, total=100, when=after, layout_changed=change),
            own_report(leaf("eq", "still"), kept=90, total=100, why=SPREAD, when=before),
            own_report(leaf("eq", "still"), kept=80, total=100, why=SPREAD, when=after, layout_changed=change),
            own_report(leaf("eq", "once"), kept=90, total=100, why=SPREAD, when=before),
            own_report(leaf("eq", "old"), kept=90, total=100, why=SPREAD, when=before, table="db.evolved", spec_id=1),
            own_report(leaf("eq", "new"), kept=1, total=100, when=after, table="db.evolved", spec_id=2),
        ],
    )
    result = audit(spark, str(folder))
    (still,) = result.flagged
    assert (still.filter, still.runs, still.bytes_kept) == ("still = ?", 1, 80_000)
    assert (result.queries, result.runs, result.outdated, result.flagged_total) == (5, 7, 4, 1)


def test_a_table_that_was_rewritten_after_its_last_report_is_not_blamed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = two_spec_table(tmp_path)
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__WAREHOUSE", tmp_path.as_uri())
    store = JsonLinesReportStore(tmp_path / "reports")
    plan_scan(table, "upper(region) = 'EU'", options=ScanOptions(report=store))
    found = audit(spark, str(tmp_path / "reports"), catalog="local")
    assert [finding.reason for finding in found.flagged] == ["only rows can answer it"]
    rewrite_data_files(table, options={"rewrite-all": "true"})
    after = audit(spark, str(tmp_path / "reports"), catalog="local")
    assert (after.flagged, after.flagged_total, after.outdated) == ((), 0, 1)


def test_reports_of_iceberg_are_audited(spark: SparkSession, tmp_path: Path) -> None:
    both = {"type": "or", "left": leaf("eq", "a"), "right": leaf("gt", "b")}
    logged = (
        "26/11/15 INFO LoggingMetricsReporter: Received metrics report: ScanReport{tableName=local.db.t, snapshotId=3, "
        'filter=ref(name="id") == "(2-digit-int)", schemaId=0, projectedFieldIds=[1], projectedFieldNames=[id], '
        "scanMetrics=ScanMetricsResult{totalPlanningDuration=TimerResult{timeUnit=NANOSECONDS, totalDuration=PT1S, "
        "count=1}, resultDataFiles=CounterResult{unit=COUNT, value=8}, totalDataManifests=CounterResult{unit=COUNT, "
        "value=1}, scannedDataManifests=CounterResult{unit=COUNT, value=1}, totalFileSizeInBytes=CounterResult{"
        "unit=BYTES, value=4096}, skippedDataFiles=CounterResult{unit=COUNT, value=2}}, metadata={}}"
    )
    folder = write_lines(
        tmp_path / "logs/node1.log",
        [
            foreign_report(both, kept=9, skipped=1),
            "26/11/15 12:00:00 INFO reporter: " + json.dumps(foreign_report(leaf("not-eq", "c"), kept=10, skipped=0)),
            foreign_report(leaf("eq", "d"), kept=10, skipped=0, scanned=1, manifests=100),
            logged,
            logged.replace("2-digit", "5-digit"),
        ],
    )
    result = audit(spark, str(folder))
    found = by_filter(result)
    assert {text: finding.reason for text, finding in found.items()} == {
        "a = ? OR b > ?": "one side of OR matches everywhere",
        "c != ?": "!= excludes almost nothing",
        'ref(name="id") == ?': SPREAD,
    }
    assert found['ref(name="id") == ?'].runs == 2
    assert found['ref(name="id") == ?'].bytes_kept == 8192
    assert (result.queries, result.unreadable) == (4, 0)


def test_reports_written_by_iceberg_are_parsed(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS local.audited")
    spark.sql("CREATE TABLE local.audited.t (id BIGINT, v STRING) USING iceberg")
    for first in (0, 100, 200):
        spark.range(first, first + 300).selectExpr("id", "'x' AS v").coalesce(1).writeTo("local.audited.t").append()
    as_json, as_text = _java_reports(spark, "local.audited.t", 250)
    folder = write_lines(tmp_path / "logs/a.log", [as_json, f"INFO Received metrics report: {as_text}"])
    result = audit(spark, str(folder), AuditOptions(min_factor=0))
    assert (result.queries, result.runs, result.unreadable) == (2, 2, 0)
    assert {finding.table for finding in result.flagged} == {"local.audited.t"}
    assert {finding.ratios["files"] for finding in result.flagged} == {1.0}
    assert len({finding.bytes_kept for finding in result.flagged}) == 1
    assert "id = ?" in by_filter(result)


def _java_reports(spark: SparkSession, name: str, wanted: int) -> tuple[str, str]:
    """Iceberg's report of a scan for one id, as sent to REST catalogs and as logged."""
    jvm = spark._jvm
    assert jvm is not None
    iceberg = jvm.org.apache.iceberg
    table = iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
    reporter = iceberg.metrics.InMemoryMetricsReporter()
    scan = table.newScan().metricsReporter(reporter).filter(iceberg.expressions.Expressions.equal("id", wanted))
    tasks = scan.planFiles()
    found = tasks.iterator()
    while found.hasNext():
        found.next()
    tasks.close()
    report = reporter.scanReport()
    return iceberg.metrics.ScanReportParser.toJson(report), report.toString()


def test_reports_of_the_planner_are_read_by_the_audit(
    spark: SparkSession, tmp_path: Path, floeplan_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = two_spec_table(tmp_path)
    opened = catalog(tmp_path)
    rows = TableReportStore.create(opened, "db.reports")
    for store in (JsonLinesReportStore(tmp_path / "reports"), rows):
        for where in ("v > 1.5", "v > 120.25", "region = 'eu' AND upper(region) = 'EU'", "id BETWEEN 3 AND 9"):
            plan_scan(table, where, options=ScanOptions(report=store))
    options = AuditOptions(min_files=1, min_factor=0)
    from_folder = audit(spark, str(tmp_path / "reports"), options)
    assert (from_folder.queries, from_folder.runs, from_folder.unreadable) == (3, 4, 0)
    assert by_filter(from_folder).keys() == {"v > ?", "region = ? AND upper(region) = ?"}
    assert by_filter(from_folder)["v > ?"].selectivity > 0.25  # type: ignore[operator]
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__WAREHOUSE", tmp_path.as_uri())
    from_table = audit(spark, "db.reports", options, catalog="local")
    assert _without_times(from_table) == _without_times(from_folder)
    store_findings(from_table, "db.findings", "local")
    store_findings(from_table, "db.findings", "local")
    stored = load_table("db.findings", "local").scan().to_arrow()
    assert stored.num_rows == 2 * len(from_table.flagged)
    assert set(stored["reason"].to_pylist()) == {finding.reason for finding in from_table.flagged}


def _without_times(result: AuditResult) -> Any:
    document = result.to_dict()
    for finding in document["flagged"]:
        del finding["first_run"], finding["last_run"]
    return document


def test_a_place_without_reports_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no reports at"):
        audit(spark, str(tmp_path / "nowhere"))


def test_a_table_that_compressed_reports_do_not_name_must_exist(
    spark: SparkSession, tmp_path: Path, floeplan_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark decompresses them, so that only it knows their tables."""
    folder = write_lines(tmp_path / "reports/scan.jsonl", [own_report(leaf("eq", "user", 7), kept=1, total=100)])
    plain = folder / "scan.jsonl"
    (folder / "scan.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert main(["audit", "--reports", str(folder), "--table", "db.nope"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert "db.nope" in shown.err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_secrets_in_reports_of_others_are_not_shown(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: list[str],
) -> None:
    key = "wJalrXUtnFEMI"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key)
    lines = [
        foreign_report(leaf("eq", key), kept=9, skipped=1, table=f"db.{key}"),
        own_report(leaf("eq", "name"), kept=60, total=100, opaque=[f"upper(name) = '{key}'"], table=f"db.{key}"),
    ]
    folder = write_lines(tmp_path / "reports/scan.jsonl", lines)
    assert main(["-v", "audit", "--reports", str(folder), "--min-files", "1", *form]) == 0
    shown = capsys.readouterr()
    assert "db.***" in shown.out
    assert key not in shown.out + shown.err

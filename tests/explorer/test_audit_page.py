"""The audit document, computed on Spark on the first request."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from floeplan.audit.reports import check_reports
from floeplan.errors import BadInputError
from floeplan.explorer.server import ExplorerService, audit_reports
from tests.support.scan_reports import leaf, own_report, write_lines

pytestmark = pytest.mark.spark


def test_reports_are_audited_once_and_then_shown_again(spark: SparkSession, tmp_path: Path) -> None:
    report = own_report(leaf("eq", "user"), kept=90, total=100, why="values are spread over all files")
    planned_for = {"metadata": {"engine-name": "Iceberg Java", "engine-version": "1.12.0"}}
    lines = [report | planned_for, report | planned_for, report | {"metadata": {}}]
    folder = str(write_lines(tmp_path / "reports/one.jsonl", lines))
    service = ExplorerService("db.events", None, False, partial(audit_reports, folder, None, None), "")
    document = service.read("audit", {})
    assert (document["queries"], document["runs"]) == (1, 3)
    assert document["flagged"][0]["days"][0]["runs"] == 3
    assert document["flagged"][0]["engines"] == {"Iceberg Java 1.12.0": 2, "unknown engine": 1}
    assert service.read("audit", {}) is document


def test_a_place_without_reports_is_noticed_without_spark() -> None:
    with pytest.raises(BadInputError, match="no reports"):
        check_reports("/nowhere/at/all", None)

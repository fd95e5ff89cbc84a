"""The audit document, computed on Spark on the first request."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from floeplan.audit.reports import check_reports
from floeplan.errors import BadInputError, UnknownTableError
from floeplan.explorer.server import ExplorerService, audit_reports
from floeplan.explorer.view import TableView
from tests.support.explorer import NAME
from tests.support.scan_reports import leaf, own_report, write_lines

pytestmark = pytest.mark.spark


def test_reports_of_a_table_are_audited_once_and_then_shown_again(
    spark: SparkSession, view: TableView, tmp_path: Path
) -> None:
    report = own_report(
        leaf("eq", "user"),
        kept=90,
        total=100,
        why="values are spread over all files",
        when="2124-03-01T12:00:00.000+00:00",  # after the last change of the table's layout
        table=NAME,
        spec_id=view.table.spec().spec_id,
    )
    planned_for = {"metadata": {"engine-name": "Iceberg Java", "engine-version": "1.12.0"}}
    others = [report | {"table-name": "db.others"}, report | {"table-name": f"other_{NAME}"}]
    lines = [report | planned_for, report | planned_for, report | {"metadata": {}, "table-name": f"prod.{NAME}"}]
    folder = str(write_lines(tmp_path / "reports/one.jsonl", lines + others))
    service = ExplorerService(NAME, None, False, partial(audit_reports, folder, None, None), "")
    document = service.read("audit", {})
    assert (document["queries"], document["runs"]) == (2, 3)  # a table is named with its catalog or without
    assert [one["runs"] for one in document["flagged"]] == [2, 1]
    assert [one["engines"] for one in document["flagged"]] == [{"Iceberg Java 1.12.0": 2}, {"unknown engine": 1}]
    assert service.read("audit", {}) is document
    with pytest.raises(UnknownTableError, match=r"db\.others"):
        service.read("audit", {"table": "db.others"})


def test_a_place_without_reports_is_noticed_without_spark() -> None:
    with pytest.raises(BadInputError, match="no reports"):
        check_reports("/nowhere/at/all", None)

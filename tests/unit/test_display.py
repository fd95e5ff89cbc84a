"""What notebooks and the prompt show: the text of a plan, tables of plans and results, and a repr within a screen."""

from __future__ import annotations

from pathlib import Path

import pytest
import rich.console
from pyiceberg.table import Table

import floeplan as fp
from floeplan.display import Displayed, table_html
from floeplan.fleet.report import Facts, MaintainResult, Status, TableReport, WorkReport
from floeplan.fleet.work import Work
from floeplan.scan.plan import plan_scan
from floeplan.sql_text.call import ProcedureResult
from tests.support.tables.two_specs import two_spec_table

pytestmark = pytest.mark.unit

SCREEN = 24 * 80


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return two_spec_table(tmp_path)


def test_explain_returns_its_text_in_a_notebook(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_scan(table, "region = 'eu'")
    outside = plan.explain()
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert plan.explain() == outside
    assert "region = 'eu'" in outside


def test_a_plan_is_shown_with_its_pyramid_specs_and_conjuncts(table: Table) -> None:
    plan = plan_scan(table, "region = 'eu' AND id < 250")
    assert repr(plan).startswith("<ScanPlan of db.events where region = 'eu' AND id < 250: 3 of 5 files, ")
    html = plan._repr_html_()
    for text in ("manifests", "row groups", "unpartitioned", "1/3", "id &lt; 250", "exact on region"):
        assert text in html
    assert "<b>&lt;ScanPlan" in html


def test_every_result_fits_a_screen_and_is_shown_as_a_table(table: Table) -> None:
    results = [
        plan_scan(table, "id < 250"),
        plan_scan(table).files,
        fp.RewriteDataFilesPlanner(table, fp.RewriteOptions(rewrite_all=True)).plan(),
        fp.RewriteDataFilesPlanner(table, fp.RewriteOptions(rewrite_all=True)).plan_with_stats(),
        fp.rewrite_data_files(table, options={"rewrite-all": "true"}),
        fp.delete(table.refresh(), where="id = 3"),
        fp.upgrade_spec(table.refresh()),
        fp.rewrite_manifests(table.refresh()),
        fp.expire_snapshots(table.refresh(), older_than_ms=2**60, retain_last=1),
        fp.doctor(table.refresh()),
        fp.inspect_table(table.refresh()),
        fp.why(table.refresh(), table.refresh().inspect.files()["file_path"][0].as_py(), "id < 3"),
    ]
    for result in results:
        assert len(repr(result)) <= SCREEN, result
        if isinstance(result, Displayed):
            assert "<table>" in result._repr_html_()


def test_a_rewrite_plan_shows_its_groups_and_why_files_are_skipped(table: Table) -> None:
    plan = fp.RewriteDataFilesPlanner(table, fp.RewriteOptions(rewrite_all=True, partition_filter="id < 150")).plan()
    html = plan._repr_html_()
    assert "rewrite-all" in html
    assert "skipped" in html


def test_tables_escape_texts_and_end() -> None:
    html = table_html("<t>", ("a",), [(f"<b>{n}",) for n in range(30)])
    assert "<t>" not in html
    assert "<b>3" not in html
    assert html.count("<tr>") == 21
    assert "and 10 more" in html


def test_a_procedure_and_a_run_show_their_rows() -> None:
    one = ProcedureResult("rewrite_manifests", ("rewritten_manifests_count", "added_manifests_count"), ((60, 5),))
    assert repr(one) == "<rewrite_manifests: rewritten_manifests_count=60, added_manifests_count=5>"
    assert "<td" in one._repr_html_()
    assert ">60</td>" in one._repr_html_()
    assert repr(ProcedureResult("ancestors_of", ("id",), ((1,), (2,), (3,)))) == "<ancestors_of: id=1, and 2 more>"
    assert repr(ProcedureResult("ancestors_of", ("id",), ())) == "<ancestors_of: no rows>"
    work = WorkReport(Work("compact", "30 files into 1", 5), status=Status.DONE)
    run = MaintainResult("r", (TableReport("db.<b>", facts=Facts(files=30), work=(work,)),))
    html = run._repr_html_()
    assert ">db.&lt;b&gt;</td>" in html
    assert ">compact done</td>" in html

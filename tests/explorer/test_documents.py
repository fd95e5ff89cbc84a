"""Documents of the pages, compared with plans and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from floeplan.errors import BadInputError, UnknownFileError
from floeplan.explorer.documents import (
    Footers,
    RewriteRequest,
    doctor_document,
    for_browsers,
    overview_document,
    plan_document,
    plan_for,
    rewrite_document,
    upgrade_document,
)
from floeplan.explorer.file_document import file_document
from floeplan.explorer.site import data_script, to_json, write_report
from floeplan.explorer.view import TableView
from tests.support.explorer import EVIL, NAME
from tests.support.tables.two_specs import events

pytestmark = pytest.mark.unit

PREDICATES = (
    "mission = 'apollo'",
    "ts >= TIMESTAMP_NTZ '2024-01-12' AND ts < TIMESTAMP_NTZ '2024-01-14'",
    "payload > 250100 AND mission IN ('gemini', 'mercury')",
    "voltage > 29.8 OR ts < TIMESTAMP_NTZ '2024-01-02'",
    "voltage > 100",
    "mission IS NOT NULL",
)


@pytest.mark.parametrize("where", PREDICATES)
def test_a_file_has_no_row_exactly_when_metadata_drops_it(view: TableView, where: str) -> None:
    kept = {file.path for file in plan_for(view, where, Footers.NO).files}
    for path in view.files.path.to_pylist()[::5]:
        document = file_document(view, path, where)
        assert (document["answer"] == "no row") == (path not in kept), document["conjuncts"]


@pytest.mark.parametrize("where", PREDICATES)
def test_row_groups_of_a_file_are_those_the_plan_keeps(view: TableView, where: str) -> None:
    for file in plan_for(view, where, Footers.YES).files[::4]:
        groups = file_document(view, file.path, where)["row_groups"]["groups"]
        kept = tuple(at for at, group in enumerate(groups) if group["kept"])
        assert kept == (tuple(range(len(groups))) if file.row_groups is None else file.row_groups)


@pytest.mark.parametrize("where", PREDICATES)
def test_survivors_on_the_map_are_the_files_of_the_plan(view: TableView, where: str) -> None:
    plan = plan_for(view, where)
    document = plan_document(view, where, plan)
    kept = {file.path for file in plan.files}
    assert sum(document["kept_by_cell"]) == len(kept)
    cells = view.map.to_dict()["cells"]
    for at, survivors in enumerate(document["kept_by_cell"]):
        rows = view.map.files_in(cells["lane"][at], cells["bin"][at])
        assert survivors == len(kept & set(view.files.path.take(rows).to_pylist()))


def test_the_map_holds_every_file_once(view: TableView) -> None:
    cells = view.map.to_dict()["cells"]
    assert sum(cells["files"]) == len(view.files) == 70
    assert sum(cells["bytes"]) == view.files.ints("file_size_in_bytes").sum()
    assert sum(cells["deletes"]) == view.delete_counts.sum() > 0


def test_lanes_are_partitions_without_their_time_and_bins_are_days(view: TableView) -> None:
    drawn = view.map.to_dict()
    assert [(lane["spec_id"], lane["label"]) for lane in drawn["lanes"]] == [
        *((spec, f"mission={mission}") for spec in (0, 1) for mission in (EVIL, "apollo", "gemini", "mercury")),
        (2, "time only"),
    ]
    assert drawn["axis"]["unit"] == "day"
    assert (drawn["axis"]["labels"][0], drawn["axis"]["labels"][-1]) == ("2024-01-01", "2024-01-30")


def test_footers_are_opened_only_for_few_files_by_default(view: TableView, monkeypatch: pytest.MonkeyPatch) -> None:
    where = "voltage > 29.8"
    assert plan_document(view, where, plan_for(view, where))["summary"]["row_groups_kept"] is not None
    monkeypatch.setattr("floeplan.explorer.documents.FEW_FILES", 1)
    assert plan_document(view, where, plan_for(view, where))["footers"] is False
    assert plan_document(view, where, plan_for(view, where, Footers.YES))["footers"] is True


def test_a_condition_is_shown_next_to_the_bounds_of_its_column(view: TableView) -> None:
    path = plan_for(view, "payload = 0").files[0].path
    conjuncts = file_document(view, path, "payload = 0 AND mission > 'a' AND voltage BETWEEN 1 AND 2")["conjuncts"]
    drawn = {one["predicate"].split()[0]: one["range"] for one in conjuncts}
    assert drawn["mission"] is None
    assert drawn["payload"]["wanted"][0] == drawn["payload"]["file"][0]
    assert drawn["voltage"]["wanted"][1] < drawn["voltage"]["file"][0]


def test_a_file_of_another_table_is_unknown(view: TableView) -> None:
    with pytest.raises(UnknownFileError, match="no data file"):
        file_document(view, "/etc/passwd", None)


def test_totals_of_a_plan_are_those_of_the_overview(view: TableView) -> None:
    """The table has delete files, which the totals of its snapshot summary include."""
    overview, summary = overview_document(view), plan_document(view, None, plan_for(view, None))["summary"]
    assert summary["manifests_total"] == overview["sizes"]["data_manifests"]
    assert summary["bytes_total"] == overview["sizes"]["data_bytes"]
    assert (summary["files_total"], summary["rows_total"]) == (overview["files"], overview["rows"])


def test_an_overview_has_the_commit_times_of_each_spec_and_no_property(view: TableView) -> None:
    document = overview_document(view)
    assert [(spec["files"], spec["default"]) for spec in document["specs"]] == [(20, False), (40, False), (10, True)]
    assert document["specs"][0]["last_ms"] <= document["specs"][1]["first_ms"]
    assert document["delete_files"]["position"] == 6
    assert "write.parquet" not in json.dumps(document)


def test_findings_have_the_command_that_fixes_them(view: TableView) -> None:
    findings = doctor_document(view.table)["findings"]
    fixes = {finding["kind"]: finding["fix"] for finding in findings}
    assert fixes["old-specs"].startswith(f"floeplan upgrade-spec {NAME}")
    assert fixes["small-files"] == f"floeplan rewrite {NAME}"


def test_a_preview_of_a_rewrite_changes_nothing_and_shows_its_command(view: TableView) -> None:
    before = view.table.metadata_location
    document = rewrite_document(view, RewriteRequest("sort", "ts, payload", "current", "mission = 'apollo'"))
    assert document["files"] > 0
    assert document["command"] == (
        f"floeplan rewrite {NAME} --strategy sort --by ts,payload --spec current "
        "--partition-filter \"mission = 'apollo'\""
    )
    assert upgrade_document(view)["files_total"] == 70
    assert view.table.refresh().metadata_location == before
    with pytest.raises(BadInputError, match="strategy"):
        rewrite_document(view, RewriteRequest("shuffle"))


def test_a_command_is_safe_to_paste() -> None:
    assert (
        RewriteRequest(where="a = '$(reboot)'")
        .command("db.t")
        .endswith("""--partition-filter 'a = '"'"'$(reboot)'"'"''""")
    )
    assert RewriteRequest(by="a;b", strategy="sort").command("db.t").endswith('--by "a;b"')


def test_numbers_reach_javascript_as_they_are() -> None:
    given: dict[str, Any] = {"id": 2**60, "small": 2**40, "nan": float("nan"), "list": [np.float64(1.5), True, None]}
    assert for_browsers(given) == {"id": str(2**60), "small": 2**40, "nan": "nan", "list": [1.5, True, None]}
    assert json.loads(to_json(given))["id"] == str(2**60)


def test_nothing_in_a_report_can_end_its_script() -> None:
    script = data_script({"path": "</script><script>alert(1)</script>\u2028&"})
    assert "<" not in script
    assert "\u2028" not in script
    assert json.loads(script.removeprefix("window.FLOEPLAN_REPORT = ").rstrip(";\n"))["path"].startswith("</script>")


def test_no_secret_of_a_catalog_or_a_table_gets_into_a_report(tmp_path: Path) -> None:
    secrets = {"token": "hush-1", "s3.secret-access-key": "hush-2"}
    opened = SqlCatalog("own", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri(), **secrets)
    opened.create_namespace("db")
    table = opened.create_table("db.events", events(0, 1).schema, properties={"owner.password": "hush-3"})
    table.append(events(0, 50), snapshot_properties={"job.key": "hush-4"})
    write_report(table, tmp_path / "site", ["id = 3", "v > 1"])
    assert "hush" not in (tmp_path / "site" / "data.js").read_text()
    opened.close()

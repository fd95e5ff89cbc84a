"""The pages end to end in Chromium: from a file without network, and served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from floeplan.audit.findings import AuditResult, DayOfRuns, Finding
from floeplan.catalog import load_table
from floeplan.explorer.documents import plan_for
from floeplan.explorer.server import ExplorerServer, ExplorerService
from floeplan.explorer.site import write_report
from floeplan.explorer.view import TableView
from tests.support.explorer import EVIL, NAME, SCREENSHOTS, TOKEN, serving
from tests.support.tables.archive import write_evolved_archive
from tests.support.tables.two_specs import two_spec_table

pytestmark = pytest.mark.services

WEEK = "ts >= '2024-01-12' AND ts < '2024-01-19' AND voltage > 29.5"
VIEWS = ("plan", "history", "rewrite", "health", "audit")
FINDING = Finding(
    table=NAME,
    shape=f"mission = ? AND voltage > ? {EVIL}",
    opaque="",
    runs=12,
    ratios={"manifests": 1.0, "files": 0.9, "row_groups": None, "rows": 0.9, "bytes": 0.8},
    bytes_kept=5_000_000,
    bytes_per_run=416_666.0,
    selectivity=0.01,
    trend=2.5,
    first_run="2024-01-01T00:00:00+00:00",
    last_run="2024-01-09T00:00:00+00:00",
    reasons={"values are spread over all files": 12},
    days=(DayOfRuns(date(2024, 1, 1), 4, 1_000_000), DayOfRuns(date(2024, 1, 9), 8, 4_000_000)),
    engines={"Iceberg Java 1.12.0": 9, f"PyIceberg {EVIL}": 3},
)
UNNAMED = """[...document.querySelectorAll("a, button, input, select, textarea, [role=img]")]
    .filter((one) => !one.getAttribute("aria-label") && !one.labels?.length && !one.textContent.trim())
    .map((one) => one.outerHTML)"""
"""Elements without an accessible name."""

FIRST_CELL = """() => {
    const place = document.querySelector(".chart");
    const [x, y] = echarts.getInstanceByDom(place).convertToPixel({ seriesIndex: 0 }, [0, 0]);
    return { x, y };
}"""
LANE_LABELS = """() => {
    const map = [...document.querySelectorAll(".chart")].map(echarts.getInstanceByDom).find((one) => one);
    const { data, axisLabel } = map.getOption().yAxis[0];
    return data.map(axisLabel.formatter);
}"""
AUDIT = AuditResult(queries=3, runs=40, unreadable=0, bytes_kept=9_000_000, flagged_total=1, flagged=(FINDING,))


@pytest.fixture(scope="module")
def site(explored_home: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("site") / "report"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOEPLAN_HOME", str(explored_home))
        result = write_report(load_table(NAME), folder, [WEEK, f"mission = '{EVIL}'"], audit=AUDIT.to_dict())
    return Path(result.path).as_uri()


@pytest.fixture
def quiet(page: Page) -> Iterator[Page]:
    """A page without console errors such as policy violations; error responses are allowed."""
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield page
    assert [text for text in errors if "server responded with a status" not in text] == []


def level(page: Page, name: str) -> str:
    return str(page.locator(".level", has_text=name).get_attribute("aria-label"))


def test_a_report_opens_from_a_file_without_a_network(quiet: Page, site: str, view: TableView) -> None:
    requested: list[str] = []
    quiet.on("request", lambda request: requested.append(request.url))
    quiet.context.set_offline(True)
    quiet.goto(site)
    summary = plan_for(view, WEEK).summary
    expect(quiet.locator(".ask .status")).to_contain_text(f"{summary.files_kept} files of 70")
    assert level(quiet, "files") == f"files: {summary.files_kept} of 70 read"
    assert level(quiet, "row groups") == f"row groups: {summary.row_groups_kept} of {summary.row_groups_total} read"
    expect(quiet.locator("canvas")).to_have_count(1)
    assert all(url.startswith("file:") for url in requested)


def test_a_file_is_opened_with_the_keyboard_and_shows_the_reason(quiet: Page, site: str) -> None:
    quiet.goto(site)
    quiet.locator("button.link.mono").first.focus()
    quiet.keyboard.press("Enter")
    dialog = quiet.locator("#file-dialog")
    expect(dialog.get_by_role("heading", name="Row groups")).to_be_visible()
    expect(dialog).to_contain_text("voltage > 29.5")
    expect(dialog.locator(".range")).to_have_count(3)
    quiet.screenshot(path=SCREENSHOTS / "file-dialog.png")
    quiet.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_names_of_the_table_are_text_and_never_html(quiet: Page, site: str) -> None:
    quiet.goto(site)
    quiet.get_by_role("button", name=f"mission = '{EVIL}'").click()
    expect(quiet.locator(".ask .status")).to_contain_text("files")
    quiet.locator("button.link.mono").first.click()
    expect(quiet.locator("#file-dialog")).to_contain_text(EVIL)
    quiet.keyboard.press("Escape")
    quiet.get_by_text("Show as a table").first.click()
    quiet.locator("canvas").hover(position=quiet.evaluate(FIRST_CELL))
    expect(quiet.locator(".tip")).to_contain_text(EVIL)
    quiet.screenshot(path=SCREENSHOTS / "tooltip.png")
    for name in VIEWS:
        quiet.goto(f"{site}#/{name}")
        expect(quiet.locator("section.card").first).to_be_visible()
    assert quiet.evaluate("window.hacked") is None
    assert quiet.locator("img[src=x]").count() == 0


def test_findings_of_an_audit_are_shown_with_their_trend(quiet: Page, site: str) -> None:
    quiet.goto(f"{site}#/audit")
    expect(quiet.locator("main")).to_contain_text("growing 2.5×")
    expect(quiet.locator("main")).to_contain_text(FINDING.advice)
    quiet.get_by_text("Show as a table").click()
    expect(quiet.get_by_role("table", name="Bytes per run by day")).to_contain_text("2024-01-09")


def test_findings_of_an_audit_are_listed_by_engine(quiet: Page, site: str) -> None:
    quiet.goto(f"{site}#/audit")
    rows = quiet.get_by_role("table", name="Flagged queries by engine").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("Iceberg Java 1.12.0")
    expect(rows.first).to_contain_text("mission = ?")
    expect(quiet.locator(".finding")).to_contain_text("12 runs by Iceberg Java 1.12.0 (9), PyIceberg")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_every_view_fits_its_window(browser: Browser, site: str, scheme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for name in VIEWS:
        page.goto(f"{site}#/{name}")
        expect(page.locator("section.card").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(UNNAMED) == [], name
        page.screenshot(path=SCREENSHOTS / f"{name}-{width}-{scheme}.png", full_page=True)
    context.close()


def test_specs_without_live_files_are_folded_and_counts_have_their_total(browser: Browser, tmp_path: Path) -> None:
    """At the width of a phone too, where wide tables show that they scroll."""
    table = two_spec_table(tmp_path)
    for number in range(2, 8):
        with table.update_spec() as update:
            update.add_field("id", f"bucket[{number}]", f"b{number}")
    site = Path(write_report(table, tmp_path / "report", ["id < 150"]).path).as_uri()
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(site)
    assert level(page, "files") == "files: 2 of 5 read"
    expect(page.locator(".level", has_text="files").locator(".of")).to_have_text(" of 5")
    page.locator(".level .of").first.scroll_into_view_if_needed()
    expect(page.locator(".level", has_text="files").locator(".of")).to_be_visible()
    folded = page.locator(".unused-specs")
    expect(folded.locator("summary")).to_have_text("6 partition specs without live files")
    expect(folded.locator("tbody tr").first).to_be_hidden()
    wide = page.get_by_role("region", name="What each spec keeps").first
    assert wide.evaluate("one => one.scrollWidth > one.clientWidth")
    assert "local" in wide.evaluate("one => getComputedStyle(one).backgroundAttachment")
    assert page.evaluate(LANE_LABELS) == ["unpartitioned", "ap", "eu", "us"], "names of fields would hide the values"
    page.screenshot(path=tmp_path / "plan.png", full_page=True)
    page.goto(f"{site}#/history")
    expect(page.locator(".line li:visible")).to_have_count(3)
    expect(page.locator(".line li").first).to_contain_text("2 of 5 files")
    page.locator(".unused-specs summary").click()
    expect(page.locator(".line li:visible")).to_have_count(8)
    context.close()


def test_colours_follow_the_system_until_one_is_chosen(quiet: Page, site: str) -> None:
    quiet.emulate_media(color_scheme="dark")
    quiet.goto(site)
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = quiet.evaluate(ground)
    quiet.get_by_role("button", name="Colours: system").click()
    assert quiet.evaluate(ground) != dark
    quiet.get_by_role("button", name="Colours: light").click()
    assert quiet.evaluate(ground) == dark


def test_planning_follows_the_typing(quiet: Page, server: ExplorerServer, view: TableView) -> None:
    quiet.goto(server.url)
    box = quiet.get_by_role("textbox")
    expect(quiet.locator(".ask .status")).to_contain_text("70 files of 70")
    box.press_sequentially("payload = 250100", delay=5)
    kept = plan_for(view, "payload = 250100").summary.files_kept
    expect(quiet.locator(".ask .status")).to_contain_text(f"{kept} file")
    expect(quiet.locator(".legend").first).to_contain_text("pruned by the predicate")
    box.fill("payloat = 3")
    expect(quiet.locator(".ask .status.bad")).to_have_text("there is no column payloat; did you mean payload?")
    assert box.get_attribute("aria-invalid") == "true"
    box.fill("voltage > 100")
    expect(quiet.locator("main")).to_contain_text("No file can contain a matching row")


def test_a_cell_of_the_map_lists_its_files(quiet: Page, server: ExplorerServer) -> None:
    quiet.goto(server.url)
    quiet.get_by_text("Show as a table").first.click()
    quiet.get_by_role("button", name="mission=apollo, 2024-01-01").click()
    card = quiet.get_by_role("region", name="Files of the cell")
    expect(card.get_by_role("button")).to_have_count(1)
    quiet.locator("canvas").click(position={"x": 420, "y": 20})
    expect(quiet.locator("main")).to_contain_text("delete file")


def test_a_rewrite_is_previewed_and_not_offered_if_writes_are_disabled(quiet: Page, server: ExplorerServer) -> None:
    quiet.goto(f"{server.url}#/rewrite")
    expect(quiet.locator("main")).to_contain_text("20 → 4")
    quiet.get_by_label("Strategy").select_option("zorder")
    expect(quiet.locator("main")).to_contain_text("needs the columns to cluster by")
    quiet.get_by_label("By", exact=True).fill("ts, payload")
    expect(quiet.locator("main")).to_contain_text("--strategy zorder --by ts,payload")
    assert quiet.get_by_role("button", name="now").count() == 0


def test_a_write_needs_the_typed_name_of_the_table(
    quiet: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOEPLAN_HOME", str(tmp_path))
    (tmp_path / "warehouse").mkdir()
    table = two_spec_table(tmp_path)
    with serving(ExplorerService("db.events", None, True, None, TOKEN)) as running:
        quiet.goto(f"{running.page_url}#/rewrite")
        expect(quiet).to_have_url(f"{running.url}?table=db.events#/rewrite")
        quiet.reload()
        quiet.get_by_role("button", name="Upgrade now…").click()
        go = quiet.get_by_role("button", name="Change the table")
        expect(go).to_be_disabled()
        quiet.get_by_label("Type db.events to confirm").fill("db.event")
        expect(go).to_be_disabled()
        assert table.refresh().metadata.current_snapshot_id == load_table("db.events").metadata.current_snapshot_id
        before = table.metadata.current_snapshot_id
        quiet.get_by_label("Type db.events to confirm").fill("db.events")
        go.click()
        expect(quiet.locator("#confirm-dialog")).to_contain_text("committed")
        assert table.refresh().metadata.current_snapshot_id != before
        quiet.get_by_role("button", name="Close").click()
        expect(quiet.locator("main")).to_contain_text("All files already have the current spec")


def test_a_page_without_the_token_cannot_write(quiet: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOEPLAN_HOME", str(tmp_path))
    (tmp_path / "warehouse").mkdir()
    table = two_spec_table(tmp_path)
    with serving(ExplorerService("db.events", None, True, None, TOKEN)) as running:
        quiet.goto(f"{running.url}#/rewrite")
        quiet.get_by_role("button", name="Upgrade now…").click()
        quiet.get_by_label("Type db.events to confirm").fill("db.events")
        quiet.get_by_role("button", name="Change the table").click()
        expect(quiet.locator("#confirm-dialog")).to_contain_text("open the URL that floeplan serve printed")
    before = table.metadata.current_snapshot_id
    assert table.refresh().metadata.current_snapshot_id == before


def test_a_table_that_cannot_be_shown_is_examined(quiet: Page, tmp_path: Path) -> None:
    metadata = write_evolved_archive(tmp_path, manifests=3, entries=2)
    document = json.loads(metadata.read_text())
    document["partition-specs"] = document["partition-specs"][1:]
    metadata.write_text(json.dumps(document))
    with serving(ExplorerService(str(metadata), None, False, None, TOKEN)) as running:
        quiet.goto(running.url)
        expect(quiet.locator(".note.bad")).to_contain_text("spec 0")
        expect(quiet.locator(".finding").first).to_contain_text("unknown")


def test_a_catalog_of_many_tables_lets_one_choose(quiet: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOEPLAN_HOME", str(tmp_path))
    (tmp_path / "warehouse").mkdir()
    for name in ("db.events", "db.others"):
        two_spec_table(tmp_path, name)
    with serving(ExplorerService(None, None, False, None, TOKEN)) as running:
        quiet.goto(running.url)
        quiet.get_by_role("button", name="db.others").click()
        expect(quiet.get_by_label("Table", exact=True)).to_have_value("db.others")
        expect(quiet.locator(".ask .status")).to_contain_text("5 files of 5")


def test_switching_tables_while_one_is_loaded_shows_the_last(
    quiet: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documents of the first table arrive after the second was chosen; ``quiet`` fails on uncaught errors."""
    monkeypatch.setenv("FLOEPLAN_HOME", str(tmp_path))
    (tmp_path / "warehouse").mkdir()
    for name in ("db.events", "db.others"):
        two_spec_table(tmp_path, name)
    with serving(ExplorerService(None, None, False, None, TOKEN)) as running:
        held: dict[str, Route] = {}
        quiet.route("**/api/map?table=db.events*", lambda route: held.update(map=route))
        quiet.route("**/api/overview?table=db.others*", lambda route: held.update(overview=route))
        quiet.goto(f"{running.url}?table=db.events")
        choice = quiet.get_by_label("Table", exact=True)
        expect(choice).to_have_value("db.events")
        with quiet.expect_request("**/api/overview?table=db.others*"):
            choice.select_option("db.others")
        with quiet.expect_response("**/api/plan?*"):  # the view of the first table goes on when its map arrives
            held["map"].continue_()
        # The page has handled the response when a request that it makes later is answered.
        quiet.evaluate("fetch('/api/session').then((response) => response.json())")
        held["overview"].continue_()
        expect(quiet.locator("#foot")).to_contain_text("db/others")
        expect(quiet.locator(".ask .status")).to_contain_text("5 files of 5")

"""The front page: all tables with their health, last and next work, on a desktop and on a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import floeplan as fp
from floeplan.catalog import open_catalog
from floeplan.explorer.server import ExplorerServer, ExplorerService
from tests.support.explorer import SCREENSHOTS, TOKEN, serving
from tests.support.tables.two_specs import EVENTS, events

pytestmark = pytest.mark.services

EVIL = "db.<b>evil"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExplorerServer]:
    """An explorer of a catalog with five tables, of which one was maintained and one cannot be read."""
    home = tmp_path_factory.mktemp("fleet")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PYICEBERG_")]:
            patch.delenv(name)
        patch.setenv("FLOEPLAN_HOME", str(home))
        patch.setenv("HOME", str(home))
        lake = open_catalog()
        lake.create_namespace("db")
        for name, number in (("db.small", 12), ("db.done", 12), (EVIL, 1), ("db.lost", 1)):
            table = lake.create_table(name, EVENTS)
            for at in range(number):
                fp.append(table, events(at * 10, at * 10 + 10), fast=True)
        fp.maintain("db.done", catalog=lake)
        merged = {"commit.manifest.min-count-to-merge": "2"}
        by_month = lake.create_table("db.months", EVENTS, properties=merged)
        with by_month.update_spec() as change:
            change.add_field("ts", "month", "month")
        for at in range(12):
            fp.append(by_month.refresh(), events(at, at + 1))
        Path(lake.load_table("db.lost").metadata_location.removeprefix("file://")).unlink()
        lake.close()
        with serving(ExplorerService(None, None, False, None, TOKEN)) as running:
            yield running


def row(page: Page, name: str) -> str:
    line = page.locator("table.fleet tbody tr", has_text=name)
    expect(line.locator(".tag")).to_be_visible()
    return " | ".join(line.locator("td").all_inner_texts())


def test_the_front_page_shows_every_table_and_opens_one_with_a_click(page: Page, fleet: ExplorerServer) -> None:
    page.goto(fleet.url)
    expect(page.locator("table.fleet tbody tr .tag")).to_have_count(6)
    assert row(page, "db.small").startswith("info | db.small | ")
    assert "compact and 1 more" in row(page, "db.small").replace("\n", " ")
    assert "compact done" in row(page, "db.done")
    assert "waits: compact leaves 12 files" in row(page, "db.months")
    assert row(page, EVIL).startswith(f"healthy | {EVIL}")
    assert row(page, "db.lost").startswith("unreadable")
    assert "that does not exist" in row(page, "db.lost")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "fleet.png", full_page=True)
    first = page.locator("table.fleet tbody tr").first
    assert "db.lost" in first.inner_text(), "what needs attention comes first"
    page.get_by_label("Filter tables").fill("sma")
    expect(page.locator("table.fleet tbody tr")).to_have_count(1)
    page.get_by_role("button", name="db.small").click()
    expect(page.get_by_label("Table", exact=True)).to_have_value("db.small")
    page.locator(".brand").click()
    expect(page.locator("table.fleet")).to_be_visible()


def test_a_table_that_cannot_be_loaded_leaves_the_way_to_the_others(browser: Browser, fleet: ExplorerServer) -> None:
    page = browser.new_page(reduced_motion="reduce")
    page.goto(f"{fleet.url}?table=db.lost#/health")
    choice = page.get_by_label("Table", exact=True)
    expect(choice).to_have_value("db.lost")
    expect(page.locator("main .note")).to_contain_text("that does not exist")
    expect(page.locator("#tabs a")).to_have_count(0)
    choice.select_option("db.small")
    expect(page.locator("#foot")).to_contain_text("db/small")
    choice.select_option("db.lost")
    expect(page.locator("main .note")).to_contain_text("that does not exist")
    expect(page.locator("#foot")).not_to_contain_text("db/small")
    page.locator(".brand").click()
    expect(page.locator("table.fleet")).to_be_visible()
    page.close()


def test_the_front_page_fits_a_phone(browser: Browser, fleet: ExplorerServer) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, reduced_motion="reduce")
    page = context.new_page()
    page.goto(fleet.url)
    expect(page.locator("table.fleet tbody tr .tag")).to_have_count(6)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "fleet-phone.png", full_page=True)
    context.close()

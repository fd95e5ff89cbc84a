"""One explored table for all read-only tests, a real server and a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from floeplan.catalog import load_table, open_catalog
from floeplan.explorer.server import ExplorerServer, ExplorerService
from floeplan.explorer.view import TableView
from tests.support.explorer import NAME, SCREENSHOTS, TOKEN, explored_table, serving


@contextmanager
def embedded(home: Path) -> Iterator[Path]:
    """A home for the embedded catalog; ignores the PyIceberg configuration of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PYICEBERG_")]:
            patch.delenv(name)
        patch.setenv("FLOEPLAN_HOME", str(home))
        patch.setenv("HOME", str(home))
        yield home


@pytest.fixture(scope="package")
def explored_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("explored")
    with embedded(home):
        catalog = open_catalog()
        explored_table(catalog)
        catalog.close()
    return home


@pytest.fixture
def home(explored_home: Path) -> Iterator[Path]:
    """The embedded catalog with the explored table, which tests must not change."""
    with embedded(explored_home):
        yield explored_home


@pytest.fixture
def view(home: Path) -> TableView:
    return TableView.of(load_table(NAME))


@pytest.fixture
def server(home: Path) -> Iterator[ExplorerServer]:
    """A read-only explorer of the whole catalog."""
    with serving(ExplorerService(None, None, False, None, TOKEN)) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, one per module: while Playwright runs, asyncio cannot be used elsewhere in this thread."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or "chromium", args=["--no-sandbox"]
        )
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page on which no script may fail; saves a final screenshot."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    opened.screenshot(path=SCREENSHOTS / f"{request.node.name}.png", full_page=True)
    context.close()
    assert errors == []

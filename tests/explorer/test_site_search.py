"""The search of the documentation, opened from a folder: a browser loads no files for scripts there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Page

from tests.support.documents import ROOT

pytestmark = pytest.mark.unit

PAGES = ("pruning", "glossary", "maintain")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some pages with the theme and the plugins of the site; without the API reference, which takes long to build."""
    folder = tmp_path_factory.mktemp("site")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    plugins = [plugin for plugin in settings["plugins"] if isinstance(plugin, str)]
    assert plugins == ["search", "offline"]
    (folder / "docs").mkdir()
    for name in PAGES:
        shutil.copy(ROOT / f"docs/{name}.md", folder / f"docs/{name}.md")
    shutil.copy(ROOT / "docs/pruning.md", folder / "docs/index.md")
    shutil.copytree(ROOT / "docs/vendor", folder / "docs/vendor")
    own = {"docs_dir": "docs", "site_dir": "site", "nav": None, "plugins": plugins, "validation": None}
    (folder / "mkdocs.yml").write_text(yaml.safe_dump({k: v for k, v in (settings | own).items() if v is not None}))
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", str(folder / "mkdocs.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def test_search_finds_a_page_and_opens_it(site: Path, page: Page) -> None:
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.set_default_timeout(120_000)
    page.locator(".md-search__input").click()
    page.locator(".md-search-result__meta", has_text="Type to start searching").wait_for()  # the index is loaded
    page.keyboard.type("lease")
    found = page.locator(".md-search-result__link", has_text="Two runs, dead runs").first
    found.wait_for()
    found.click()
    page.wait_for_url("**/maintain.html*")
    assert "Maintaining all tables" in page.locator("h1").inner_text()
    assert [url for url in loaded if url.startswith("http")] == []

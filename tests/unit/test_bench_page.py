"""The committed benchmark page agrees with the committed ratios."""

from __future__ import annotations

import json
import re

import pytest
from bench import check, page, picture, results, v4_picture
from bench.results import row_name, verdict

pytestmark = pytest.mark.unit

UNMEASURED = {"cluster", "tpch"}
"""Suites that may be missing on the page: not yet measured at its size."""
ALL = {path.stem.removeprefix("bench_") for path in results.HERE.glob("bench_*.py")}


def measured() -> tuple[str, dict[str, list[results.Row]]]:
    """The size and the rows of every suite on the page."""
    return page.published_size() or "small", {found.suite: found.rows for found in page.published()}


def test_suites_are_measured_or_named_as_unmeasured() -> None:
    shown = set(measured()[1])
    assert ALL >= shown >= ALL - UNMEASURED


def test_the_page_is_what_its_own_rows_make() -> None:
    """So a run of one suite changes no table of another."""
    made = page.page(page.published(), "two cores")
    shown, again = ([line for line in text.splitlines() if line[:1] == "|"] for text in (page.PAGE.read_text(), made))
    assert sorted(again) == sorted(shown)


def test_page_picture_and_ratios_come_together() -> None:
    assert page.PAGE.exists() == check.RATIOS.exists() == picture.PICTURE.exists()
    nav = (results.HERE.parent / "mkdocs.yml").read_text()
    assert page.PAGE.exists() == (page.PAGE.name in nav)


def test_the_page_and_the_committed_ratios_agree() -> None:
    size, suites = measured()
    shown = {
        f"{suite}-{size}": {row_name(row): float(row["ratio"]) for row in rows if row["ratio"]}
        for suite, rows in suites.items()
        if rows
    }
    committed = json.loads(check.RATIOS.read_text()) if check.RATIOS.exists() else {}
    assert shown == {key: ratios for key, ratios in committed.items() if key.endswith(f"-{size}")}


def test_the_size_and_the_date_of_every_suite_are_shown() -> None:
    size, suites = measured()
    text = page.PAGE.read_text()
    days = [
        re.search(rf"^\| \[{suite}\]\(#{suite}\) \| {size} \| \d{{4}}-\d\d-\d\d \|", text, re.M) for suite in suites
    ]
    assert None not in days


def test_every_bar_is_marked_passed_or_missed_and_misses_come_first() -> None:
    _, suites = measured()
    verdicts = [verdict(row) for rows in suites.values() for row in rows if row["bar"]]
    assert None not in verdicts
    if page.PAGE.exists():
        first = page.PAGE.read_text().split("\n## Bars missed\n")[1].split("\n## ")[0]
        assert sum("**missed**" in line for line in first.splitlines()) == verdicts.count("missed")


def test_the_figures_of_the_metadata_tree_show_the_rows_of_the_page() -> None:
    rows = [row | {"suite": "v4"} for row in measured()[1]["v4"]]
    drawn = v4_picture.pictures(results.SuiteResult("v4", "default", rows, {}, 0.0))
    document = (results.HERE.parent / "docs" / "v4.md").read_text()
    for name, text in drawn.items():
        assert (v4_picture.IMAGES / f"v4-{name}.svg").read_text() == text
        assert f"images/v4-{name}.svg" in document

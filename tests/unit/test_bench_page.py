"""The committed page of the benchmarks says what the committed ratios say, and can be found."""

from __future__ import annotations

import json
import re

import pytest
from bench import check, page, picture, results
from bench.results import row_name, verdict

pytestmark = pytest.mark.unit

SUITES = sorted(path.stem.removeprefix("bench_") for path in results.HERE.glob("bench_*.py"))


def told() -> tuple[str, dict[str, list[dict[str, str]]]]:
    """The size the page is of, and the rows of every suite, read back from it."""
    if not page.PAGE.exists():
        return "small", {suite: [] for suite in SUITES}
    text = page.PAGE.read_text()
    size = re.search(r"^Size (\w+)\W", text, re.MULTILINE)
    assert size is not None
    return size[1], {suite: rows_told(text, suite) for suite in SUITES}


def rows_told(text: str, suite: str) -> list[dict[str, str]]:
    """The table of a suite."""
    section = text.split(f"\n## {suite}\n")[1].split("\n## ")[0]
    _, _, *lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [dict(zip(results.COLUMNS, row, strict=True)) for row in cells]


def test_page_picture_and_ratios_come_together() -> None:
    assert page.PAGE.exists() == check.RATIOS.exists() == picture.PICTURE.exists()
    nav = (results.HERE.parent / "mkdocs.yml").read_text()
    assert page.PAGE.exists() == (page.PAGE.name in nav)


def test_every_ratio_of_the_page_is_committed_and_the_other_way_round() -> None:
    size, suites = told()
    shown = {
        f"{suite}-{size}": {row_name(row): float(row["ratio"]) for row in rows if row["ratio"]}
        for suite, rows in suites.items()
        if rows
    }
    committed = json.loads(check.RATIOS.read_text()) if check.RATIOS.exists() else {}
    assert shown == {key: ratios for key, ratios in committed.items() if key.endswith(f"-{size}")}


def test_the_size_and_the_day_of_every_suite_are_told() -> None:
    size, suites = told()
    text = page.PAGE.read_text()
    days = [
        re.search(rf"^\| \[{suite}\]\(#{suite}\) \| {size} \| \d{{4}}-\d\d-\d\d \|", text, re.M) for suite in suites
    ]
    assert None not in days


def test_every_bar_of_the_page_says_whether_it_is_met_and_every_miss_is_told_first() -> None:
    _, suites = told()
    verdicts = [verdict(row) for rows in suites.values() for row in rows if row["bar"]]
    assert None not in verdicts
    if page.PAGE.exists():
        first = page.PAGE.read_text().split("\n## Bars missed\n")[1].split("\n## ")[0]
        assert sum("**missed**" in line for line in first.splitlines()) == verdicts.count("missed")

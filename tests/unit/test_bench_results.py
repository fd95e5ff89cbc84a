"""Benchmark results: the page shows misses, and ratios are compared beyond noise."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from bench import check, page, picture, results
from bench.results import SuiteResult, row_name, stated, verdict

pytestmark = pytest.mark.unit


def row(case: str, ratio: float | None, bar: str | None = None, metric: str = "CPU s", peer: str = "Spark 2") -> Any:
    return {"case": case, "metric": metric, "ours": 1.23456, "peer": peer, "ratio": ratio, "bar": bar}


def suite(*rows: Any, name: str = "read") -> SuiteResult:
    return SuiteResult(name, "small", list(rows), results.machine(), 1.0, "2026-11-16")


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(check, "RATIOS", tmp_path / "ratios.json")


def test_rows_keep_their_name_from_run_to_run() -> None:
    one = row("30 days (9,950 files, wall 2.3 s)", 0.5, peer="Iceberg Java 1.65")
    other = row("30 days (9,951 files, wall 9.9 s)", 0.7, peer="Iceberg Java 3.2 s")
    assert row_name(one) == row_name(other) == "30 days | CPU s | Iceberg Java"


@pytest.mark.parametrize(
    ("bar", "found"),
    [("≤ 0.2 MISSED", "missed"), ("≤ 0.7 missed", "missed"), ("≤ 1 met", "met"), ("≤ 1.0 ok", "met"), (None, None)],
)
def test_bars_are_passed_or_missed(bar: str | None, found: str | None) -> None:
    assert verdict(row("x", 1.0, bar)) == found


@pytest.mark.parametrize("rows", [[row("x", 0.5, "≤ 0.7")], [row("x (1 file)", 0.5), row("x (2 files)", 0.5)]])
def test_a_bar_needs_a_verdict_and_a_ratio_a_unique_name(rows: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"bars that do not say met or missed.*ratios of one name"):
        stated(rows)


def test_the_picture_has_a_dot_for_every_ratio_to_a_peer() -> None:
    drawn = picture.picture([suite(row("a", 0.02, "≤ 1 met"), row("b", 30.0, "≤ 1 MISSED"), row("c", None))])
    assert drawn.count("<title>") == 3
    assert drawn.count(picture.COLOURS["missed"]) == 2
    ElementTree.fromstring(drawn)


def test_results_are_kept() -> None:
    suite(row("x", 0.5)).save()
    assert SuiteResult.load("read", "small") == suite(row("x", 0.5))
    assert SuiteResult.load("read", "large") is None


def test_the_page_shows_misses_first_and_names_no_machine() -> None:
    lost, missed, won = row("lost", 3.0), row("missed", 0.9, "≤ 0.5 missed"), row("won", 0.1, "≤ 0.5 met")
    text = page.page([suite(won, lost, missed)], results.machine_text(results.machine()))
    bars, others = text.split("## Bars missed")[1].split("## read")[0].split("## Where a peer is better")
    assert "| ≤ 0.5 **missed** |" in bars
    assert "| lost |" in others
    assert "| won |" not in bars + others
    assert "| [read](#read) | small | 2026-11-16 | 1 | 1 | 0 | 2 | 1 | 1 |" in text
    assert text.index("**1 of 2 bars [missed](#bars-missed), none beyond reach.**") < text.index("## Summary")
    assert "GiB of memory" in text
    assert not {"/root", "/home", "/tmp", "/work"} & set(text.split())


def test_the_page_shows_which_missed_bars_are_below_their_floor() -> None:
    rows = [
        row("scan", 0.9, "≤ 0.8 missed"),
        row("scan", 0.7, "≤ 0.9 met", metric="wall s"),
        row("scan, numbered (floor)", 0.88),
        row("scan, by value (floor)", 0.85),
        row("sum", 1.2, "≤ 1.1 MISSED"),
        row("sum, numbered (floor)", 1.15),
        row("sum, by value (floor)", 0.7),
        row("memory", 0.5, "ours ≤ 1,000 met", metric="MB"),
    ]
    text = page.page([suite(*rows)], "two cores")
    assert "**2 of 4 bars [missed](#bars-missed), 1 of these beyond reach (below the measured floor)" in text
    bars = text.split("## Bars missed")[1].split("## Where")[0]
    assert "| 1.2 | ≤ 1.1 **missed** | 0.7 |" in bars
    assert "| 0.9 | ≤ 0.8 **missed** | 0.85, above the bar |" in bars
    assert "(floor)" not in text.split("## read")[0], "floors are not results of a peer"
    assert "| [read](#read) | small | 2026-11-16 | 2 | 2 | 1 | 3 | 1 | 1 |" in text


def test_a_floor_is_compared_with_our_own_figure_if_the_bar_is() -> None:
    barred, floor = row("x", 0.5, "ours ≤ 1,000 MISSED"), row("x (floor)", 0.1) | {"ours": 1200.0}
    (found,) = results.with_floors([barred, floor])
    assert (found["floor"], found["beyond_reach"]) == (1200.0, True)


def test_a_page_without_misses_says_so() -> None:
    assert "**All 1 bars are met.**" in page.page([suite(row("won", 0.1, "≤ 0.5 met"))], "")


def test_measuring_one_suite_keeps_the_rows_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(page, "PICTURE", tmp_path / "benchmarks.svg")
    assert (page.published(), page.published_size()) == ([], None)
    floors = [row("a | b", 0.9, "≤ 0.8 MISSED"), row("a | b (floor)", 0.85), row("none", None, peer="")]
    dml = suite(*floors, row("10 %", 2.5), name="dml")
    page.write_page([dml, suite(row("x", 0.5))])
    before = page.PAGE.read_text()
    page.write_page([suite(row("x", 0.7, "≤ 0.5 missed"))])
    text = page.PAGE.read_text()
    assert text.split("## dml")[1].split("## read")[0] == before.split("## dml")[1].split("## read")[0]
    assert "| dml | a \\| b | CPU s | 1.23 | Spark 2 | 0.9 | ≤ 0.8 **missed** | 0.85, above the bar |" in text
    assert ("**1 of 1 bars" in before, "**2 of 2 bars" in text) == (True, True)
    page.write_page([dml])
    assert page.PAGE.read_text() == text
    assert page.published_size() == "small"
    page.write_page([SuiteResult("dml", "large", dml.rows, dml.machine, 1.0, "2026-11-17")])
    assert [(found.suite, found.size) for found in page.published()] == [("dml", "large")]


def test_results_without_a_date_use_the_modification_time() -> None:
    suite(row("x", 0.5)).save()
    path = results.FOLDER / "read-small.json"
    report = json.loads(path.read_text())
    del report["measured"]
    path.write_text(json.dumps(report))
    os.utime(path, (0, 86_400 * 3))
    found = SuiteResult.load("read", "small")
    assert found is not None
    assert found.measured == "1970-01-04"


def test_a_suite_without_committed_ratios_cannot_be_checked() -> None:
    check.accept([suite(row("a", 0.5), name="dml")])
    found = check.check(suite(row("a", 0.5)), lambda: pytest.fail("measured again"))
    assert list(found) == ["read-small"]


def test_a_regression_is_worse_twice_and_beyond_noise() -> None:
    check.accept([suite(row("a", 0.5), row("b", 0.5), row("bytes", 0.5, metric="bytes"), row("gone", 0.5))])
    first = suite(row("a", 0.6), row("b", 0.9), row("bytes", 0.52, metric="bytes"), row("new", 9.0))
    again = suite(row("a", 0.9), row("b", 0.55), row("bytes", 0.52, metric="bytes"))
    found = check.check(first, lambda: again)
    assert list(found) == ["bytes | bytes | Spark", "gone | CPU s | Spark"]
    assert found["bytes | bytes | Spark"].startswith("0.5 → 0.52")


def test_a_run_without_regressions_is_not_repeated() -> None:
    check.accept([suite(row("a", 0.5))])
    assert check.check(suite(row("a", 0.5)), lambda: pytest.fail("measured again")) == {}


def test_accepting_a_suite_leaves_the_others() -> None:
    check.accept([suite(row("a", 0.5)), suite(row("b", 0.123456), name="dml")])
    check.accept([suite(row("a", 0.4))])
    assert check.committed() == {"read-small": {"a | CPU s | Spark": 0.4}, "dml-small": {"b | CPU s | Spark": 0.123}}

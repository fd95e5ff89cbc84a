"""What benchmarks measured: the page tells losses, and ratios are compared beyond noise."""

from __future__ import annotations

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
    return SuiteResult(name, "small", list(rows), results.machine(), 1.0)


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
def test_bars_say_whether_they_are_met(bar: str | None, found: str | None) -> None:
    assert verdict(row("x", 1.0, bar)) == found


@pytest.mark.parametrize("rows", [[row("x", 0.5, "≤ 0.7")], [row("x (1 file)", 0.5), row("x (2 files)", 0.5)]])
def test_a_bar_says_whether_it_is_met_and_a_ratio_has_a_name_of_its_own(rows: list[Any]) -> None:
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


def test_the_page_tells_what_was_missed_first_and_names_no_machine() -> None:
    lost, missed, won = row("lost", 3.0), row("missed", 0.9, "≤ 0.5 missed"), row("won", 0.1, "≤ 0.5 met")
    text = page.page([suite(won, lost, missed)])
    bars, others = text.split("## Bars missed")[1].split("## read")[0].split("## Where a peer did better")
    assert "| ≤ 0.5 **missed** |" in bars
    assert "| lost |" in others
    assert "| won |" not in bars + others
    assert "| [read](#read) | 1 | 1 | 2 | 1 | 1 |" in text
    assert "GiB of memory" in text
    assert not {"/root", "/home", "/tmp", "/work"} & set(text.split())


def test_only_what_is_worse_twice_and_beyond_noise_is_a_regression() -> None:
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

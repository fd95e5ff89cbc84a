"""The demo runs to its end, is deterministic, and can be removed completely."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from floeplan.catalog import open_catalog
from floeplan.cli import demo as demo_command
from floeplan.cli.demo import Chapter, Stage, ask_for_a_week, preview_rewrite, tell_history
from floeplan.cli.demo_archive import NAMESPACE, Archive
from floeplan.cli.main import main
from floeplan.errors import FloeplanError
from tests.support.advice import follow_advice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def stage(home: Path) -> Stage:
    return Stage(Archive.of(open_catalog(), "small"), home / "demo", "floeplan", "")


def facts(story: dict[str, Any]) -> list[dict[str, Any]]:
    return [chapter["facts"] for chapter in story["chapters"]]


@pytest.mark.matrix
def test_the_demo_shows_what_it_promises_and_can_be_removed(
    floeplan_home: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped: list[SparkSession | None] = []
    monkeypatch.setattr(Stage, "stop_spark", lambda stage: stopped.append(stage._spark))
    assert main(["demo", "--size", "small", "--json"]) == 0
    assert stopped == [spark], "the session that is open, which other tests still need"
    text = capsys.readouterr().out
    history, week, others, preview, rewrite, upgrade, audit, advice, page = facts(json.loads(text))
    assert set(history["files_by_spec"]) == {"0", "1", "2"}
    assert history["delete_files"] > 0
    assert others["pyiceberg_files"] == week["files_kept"]
    assert others["pyiceberg_overwrite"].startswith("refused")
    assert others["rows_lost"] == 1000
    assert preview["files"] == rewrite["files_rewritten"]
    assert rewrite["same_rows"]
    assert rewrite["after"]["files_kept"] < rewrite["before"]["files_kept"] / 2
    assert upgrade["files_by_metadata"] == history["files_by_spec"]["0"]
    assert upgrade["manifests_after"] < upgrade["manifests_before"]
    assert [reason for _, reason in audit["flagged"]] == ["values are spread over all files"]
    assert advice["same_rows"]
    assert advice["after"]["files_kept"] < advice["before"]["files_kept"]
    assert page["plans"] == 2
    assert (floeplan_home / "demo/site/index.html").exists()
    again = stage(floeplan_home)
    repeated = [play(again).facts for play in (tell_history, ask_for_a_week, preview_rewrite)]
    assert json.loads(json.dumps(repeated)) == [history, week, preview]
    assert main(["demo", "--clean"]) == 0
    assert not (floeplan_home / "demo").exists()
    assert not list((floeplan_home / "warehouse").rglob("*.parquet"))
    assert not open_catalog().namespace_exists(NAMESPACE)


@pytest.mark.matrix
def test_a_failed_demo_leaves_nothing(
    floeplan_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Stage) -> Chapter:
        raise FloeplanError("no luck")

    monkeypatch.setattr(demo_command, "CHAPTERS", (tell_history, fail))
    assert main(["demo", "--size", "small"]) == 1
    assert "1. An archive of eight missions" in capsys.readouterr().out
    assert not open_catalog().namespace_exists(NAMESPACE)
    assert not list((floeplan_home / "warehouse").rglob("*.parquet"))


def test_a_size_that_does_not_exist_is_bad_input(floeplan_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--size", "huge"]) == 2
    assert "small, medium, large" in capsys.readouterr().err


@pytest.mark.matrix
def test_the_advice_for_the_table_of_the_demo_is_gone_once_it_is_followed(floeplan_home: Path) -> None:
    table = Archive.of(open_catalog(), "small").build(lambda step: None)
    rows = table.scan().count()
    followed = follow_advice(table)
    assert followed[:2] == ["small-files", "old-specs"]
    assert table.refresh().scan().count() == rows

"""`floeplan rewrite` as scripts see it: JSON keys, progress on stderr, exit codes, and the table afterwards."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table
from rich.console import Console

import floeplan as fp
from floeplan.catalog import open_catalog
from floeplan.cli.main import main
from floeplan.metadata.files import local_path
from floeplan.rewrite import progress
from floeplan.rewrite.progress import BarProgress, JsonProgress
from tests.support.tables.two_specs import EVENTS, events

pytestmark = pytest.mark.unit

KEYS = {
    "plan",
    "filter_stats",
    "warnings",
    "snapshot_ids",
    "files_rewritten",
    "files_added",
    "bytes_rewritten",
    "bytes_added",
    "delete_files_removed",
    "groups_failed",
}


@pytest.fixture
def table(floeplan_home: Path) -> Table:
    """Two files in each of three regions, in the embedded catalog."""
    catalog = open_catalog()
    catalog.create_namespace_if_not_exists("db")
    table = catalog.create_table("db.events", EVENTS)
    with table.update_spec() as update:
        update.add_identity("region")
    fp.append(table, events(0, 150))
    fp.append(table, events(150, 300))
    return table


@pytest.fixture
def run(table: Table, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on the table; returns the exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["rewrite", "db.events", *arguments])
        return code, *capsys.readouterr()

    return run


def test_the_result_has_the_promised_keys_and_progress_goes_to_stderr(run: Any, table: Table) -> None:
    code, out, err = run("--option", "rewrite-all=true", "--json", "--progress", "json")
    found, lines = json.loads(out), [json.loads(line) for line in err.splitlines()]
    assert code == 0
    assert found.keys() >= KEYS
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    assert found["snapshot_ids"] == [snapshot.snapshot_id]
    assert (found["files_rewritten"], found["files_added"], found["groups_failed"]) == (6, 3, 0)
    assert lines[0]["event"] == "start"
    assert lines[-1] | {"seconds": 0} == {
        "event": "committed",
        "seconds": 0,
        "snapshot_id": snapshot.snapshot_id,
        "groups": 3,
    }
    done = [event for event in lines if event["event"] == "progress"][-1]
    assert (done["groups_done"], done["bytes_done"], done["eta_seconds"]) == (3, done["bytes"], 0)


def test_what_was_done_is_drawn(run: Any) -> None:
    code, out, err = run("--option", "min-input-files=2", "--where", "region = 'eu'")
    assert (code, err) == (0, "")
    assert "rewrite of db.events" in out
    assert "2 (" in out
    assert "into 1 (" in out
    code, out, _ = run("--option", "min-input-files=2", "--where", "region = 'eu'")
    assert code == 0
    assert "nothing to rewrite; nothing was committed" in out


def test_a_failed_group_is_named_and_sets_the_exit_code(run: Any, table: Table) -> None:
    broken = next(file.path for file in fp.plan_scan(table).files if file.partition == {"region": "us"})
    Path(str(local_path(broken))).write_bytes(b"not a Parquet file, and too long to be taken for an empty one")
    code, out, _ = run("--option", "rewrite-all=true", "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["groups_failed"], found["files_rewritten"]) == (1, 4)
    code, out, _ = run("--option", "rewrite-all=true", "--where", "region = 'us'")
    assert (code, out) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--progress", "loud"), "--progress is 'loud' but must be auto, bar, json or none"),
        (("--option", "partial-progress.max-commits=0"), "'partial-progress.max-commits' is set to 0 but must be > 0"),
        (("--option", "partial-progress=true"), "did you mean partial-progress.enabled"),
        (("--branch", "nope"), "no branch"),
    ],
)
def test_bad_input_changes_nothing(run: Any, table: Table, arguments: tuple[str, ...], message: str) -> None:
    before = table.metadata_location
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert table.refresh().metadata_location == before


def test_a_table_opened_by_its_metadata_file_is_not_rewritten(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewrite", table.metadata_location]) == 2
    assert "read-only" in capsys.readouterr().err


def test_the_bar_shows_groups_bytes_rate_and_time_left() -> None:
    stream = io.StringIO()
    bar = BarProgress(Console(file=stream, force_terminal=True, width=140))
    bar.start(4, 1000)
    bar.done(2, 500, 1)
    bar.committed(77, 2)
    bar.stop()
    shown = stream.getvalue()
    assert "2/4 groups, 1 failed" in shown
    assert "snapshot 77" in shown
    assert "500/1,000 bytes" in shown


def test_progress_within_a_group(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are counted as they are read, and never beyond the total."""
    monkeypatch.setattr(progress, "JSON_SECONDS", 0.0)
    stream = io.StringIO()
    for strategy, by in (("binpack", []), ("sort", ["id"])):
        fp.rewrite_data_files(
            table, strategy=strategy, by=by, options={"rewrite-all": "true"}, progress=JsonProgress(stream)
        )
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        reading = [line for line in lines if line["event"] == "progress" and line["groups_done"] == 0]
        assert len(reading) >= 2
        assert reading == sorted(reading, key=lambda line: line["bytes_done"])
        assert 0 < reading[0]["bytes_done"] < lines[0]["bytes"]
        assert max(line["bytes_done"] for line in reading) <= lines[0]["bytes"]
        for line in reading:
            left = (line["bytes"] - line["bytes_done"]) / line["bytes_per_second"]
            assert line["eta_seconds"] == pytest.approx(left, abs=0.06)
        stream = io.StringIO()


def test_the_bar_moves_within_a_group() -> None:
    stream = io.StringIO()
    bar = BarProgress(Console(file=stream, force_terminal=True, width=140))
    bar.start(1, 1000)
    bar.read(300)
    bar.read(900)
    bar.done(1, 1000, 0)
    bar.stop()
    assert "1,000/1,000 bytes" in stream.getvalue()


def test_the_bar_shows_the_rate_and_the_time_left_within_a_group() -> None:
    stream = io.StringIO()
    bar = BarProgress(Console(file=stream, force_terminal=True, width=140))
    bar.start(1, 1000)
    bar.read(300)
    bar.read(300)
    bar.stop()
    last = stream.getvalue().rpartition("rewriting")[2]
    assert "0/1 groups" in last
    assert "600/1,000 bytes" in last
    assert re.search(r"\d ([kMGT]B|bytes)/s", last)
    assert re.search(r"\d:\d\d:\d\d", last)


def test_json_progress_has_the_rate() -> None:
    stream = io.StringIO()
    made = JsonProgress(stream)
    made.start(2, 100)
    made.done(1, 50, 0)
    event = json.loads(stream.getvalue().splitlines()[1])
    assert event["bytes_per_second"] > 0
    assert event["eta_seconds"] >= 0

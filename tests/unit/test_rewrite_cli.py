"""`floeplan rewrite --dry-run` as scripts see it: JSON keys, exit codes, one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from floeplan.cli.main import main
from tests.support.tables.two_specs import two_spec_table

pytestmark = pytest.mark.unit

GROUP = {"group_id", "spec_id", "output_spec_id", "partition", "files", "bytes", "expected_outputs", "reasons"}
STATS = {"unevaluable_specs", "eval_errors", "fail_open_partitions", "fail_open_files"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return two_spec_table(tmp_path_factory.mktemp("events"))


@pytest.fixture
def run(table: Table, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run the command on the table; returns the exit code, stdout and stderr."""
    monkeypatch.setenv("FLOEPLAN_CACHE", str(tmp_path))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["rewrite", table.metadata_location, "--dry-run", *arguments])
        return code, *capsys.readouterr()

    return run


def test_the_plan_has_the_promised_keys(run: Any) -> None:
    code, out, _ = run("--partition-filter", "region = 'eu'", "--option", "rewrite-all=true", "--json")
    found = json.loads(out)
    assert code == 0
    assert found.keys() >= {"plan", "filter_stats", "warnings"}
    assert all(group.keys() >= GROUP for group in found["plan"]["groups"])
    assert found["filter_stats"].keys() == STATS
    assert [(g["spec_id"], g["partition"], g["files"]) for g in found["plan"]["groups"]] == [
        (0, {}, 2),
        (1, {"region": "eu"}, 1),
    ]
    assert found["plan"]["skipped"] == [{"reason": "outside-filter", "files": 2}]


def test_the_plan_is_drawn_per_spec_and_partition(run: Any) -> None:
    code, out, _ = run("--spec", "1", "--where", "id < 200 AND id + 1 > 5")
    assert code == 0
    assert "0 → 1" in out
    assert "from its rows" in out
    assert "1 group: 2 files" in out
    assert "into about 1" in out
    assert "skipped: 3 files no-matching-rows" in out


def test_the_plan_shows_which_groups_spark_divides(run: Any) -> None:
    options = [
        f"--option={one}" for one in ("rewrite-all=true", "range-task-bytes=1000", "target-file-size-bytes=1000")
    ]
    code, out, _ = run("--strategy", "sort", "--by", "id", *options, "--json")
    found = json.loads(out)["ranges"]
    assert code == 0
    assert found[0].keys() == {"group_id", "tasks", "rows_by", "read_bytes", "moved_bytes", "reason"}
    code, out, _ = run("--strategy", "sort", "--by", "id", *options)
    one = found[0]
    shown = [f"group {one['group_id']}: {one['tasks']} Spark tasks by {one['rows_by']}", f"  {one['reason']}"]
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[lines.index(shown[0]) :][:2] == shown
    assert max(map(len, shown)) < 80
    assert json.loads(run("--strategy", "sort", "--by", "id", "--json")[1])["ranges"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--option", "min-input=3"), 2, "unknown rewrite option 'min-input'"),
        (("--option", "rewrite-all"), 2, "write name=value"),
        (("--option", "min-input-files=0"), 2, "'min-input-files' is set to 0 but must be > 0"),
        (("--spec", "7"), 2, "no partition spec 7"),
        (("--strategy", "magic"), 2, "unknown strategy 'magic'"),
        (("--where", "nope = 1"), 2, "no column nope"),
        (("--strict", "--partition-filter", "id > 5", "--option", "rewrite-all=true"), 4, "spec 1 (id > 5: no"),
    ],
)
def test_failures_are_one_line_with_their_exit_code(
    run: Any, arguments: tuple[str, ...], code: int, message: str
) -> None:
    found, out, err = run(*arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1

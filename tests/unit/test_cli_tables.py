"""``floeplan list``, ``snapshots``, ``rollback``, ``branch``, ``tag`` and ``properties``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.catalog import open_catalog
from floeplan.cli.main import main

pytestmark = pytest.mark.unit

SCHEMA = pa.schema({"k": pa.int64()})
Json = Callable[..., Any]


@pytest.fixture
def table(floeplan_home: Path) -> Iterator[Table]:
    """Three appends of ten rows."""
    catalog = open_catalog()
    for namespace in ("db", "db.inner", "other"):
        catalog.create_namespace(namespace)
    catalog.create_table("db.inner.nested", SCHEMA)
    catalog.create_table("other.t", SCHEMA)
    made = catalog.create_table("db.t", SCHEMA)
    for start in (0, 10, 20):
        fp.append(made.refresh(), pa.table({"k": range(start, start + 10)}, SCHEMA))
    yield made.refresh()
    catalog.close()


@pytest.fixture
def ids(table: Table) -> list[int]:
    return [one.snapshot_id for one in table.snapshots()]


@pytest.fixture
def run(table: Table, capsys: pytest.CaptureFixture[str]) -> Json:
    """Run a command with --json; returns its document."""

    def run(*arguments: str, code: int = 0) -> Any:
        assert main([*arguments, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return run


def failure(run: Json, *arguments: str) -> str:
    message: str = run(*arguments, code=2)["error"]["message"]
    return message


def rows() -> int:
    return fp.plan_scan("db.t", options=fp.ScanOptions(report=False)).count()


def test_list_shows_tables_of_all_or_one_namespace(run: Json, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == {"catalog": "local", "tables": ["db.inner.nested", "db.t", "other.t"]}
    assert run("list", "db")["tables"] == ["db.inner.nested", "db.t"]
    assert "no namespace 'nope'" in failure(run, "list", "nope")
    assert main(["list", "other"]) == 0
    assert capsys.readouterr().out == "other.t\n"


def test_list_without_an_embedded_catalog_makes_none(floeplan_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "no tables in catalog 'local'\n"
    assert not (floeplan_home / "catalog.db").exists()


def test_snapshots_are_shown_newest_first(run: Json, ids: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    run("tag", "db.t", "first", "--at", str(ids[0]))
    found = run("snapshots", "db.t")["snapshots"]
    assert [one["snapshot_id"] for one in found] == ids[::-1]
    assert [one["refs"] for one in found] == [["main"], [], ["first"]]
    assert [one["current"] for one in found] == [True, False, False]
    assert found[0]["parent_id"] == ids[1]
    assert found[0]["summary"]["added-records"] == "10"
    assert len(run("snapshots", "db.t", "--limit", "1")["snapshots"]) == 1
    run("branch", "db.t", "old", "--at", str(ids[1]))
    assert [one["snapshot_id"] for one in run("snapshots", "db.t", "--branch", "old")["snapshots"]] == ids[1::-1]
    assert "no branch or tag nope" in failure(run, "snapshots", "db.t", "--branch", "nope")
    assert main(["snapshots", "db.t"]) == 0
    assert "+1 file, +10 rows" in capsys.readouterr().out


def test_rollback_moves_main_back(run: Json, ids: list[int]) -> None:
    moved = {"table": "db.t", "branch": "main", "from_snapshot_id": ids[2], "to_snapshot_id": ids[0]}
    dry = run("rollback", "db.t", "--to", str(ids[0]), "--dry-run")
    assert dry == moved | {"snapshots_undone": 2, "dry_run": True}
    assert rows() == 30
    assert run("rollback", "db.t", "--to", str(ids[0])) == dry | {"dry_run": False}
    assert rows() == 10


def test_rollback_goes_to_a_time_an_age_or_a_tag(run: Json, table: Table, ids: list[int]) -> None:
    run("tag", "db.t", "second", "--at", str(ids[1]))
    assert run("rollback", "db.t", "--to", "second", "--dry-run")["to_snapshot_id"] == ids[1]
    last = datetime.fromtimestamp(table.snapshots()[2].timestamp_ms / 1000, UTC) + timedelta(seconds=1)
    assert run("rollback", "db.t", "--to", last.isoformat(), "--dry-run")["to_snapshot_id"] == ids[2]
    assert run("rollback", "db.t", "--to", "0s", "--dry-run")["to_snapshot_id"] == ids[2]
    assert "no snapshot as old as" in failure(run, "rollback", "db.t", "--to", "7d")
    assert "not a snapshot id, time, age, branch or tag" in failure(run, "rollback", "db.t", "--to", "soon")
    assert "not an ancestor" in failure(run, "rollback", "db.t", "--to", "1")


def test_branches_are_created_moved_and_dropped(run: Json, ids: list[int]) -> None:
    assert [one["name"] for one in run("branch", "db.t")["refs"]] == ["main"]
    tried = run("branch", "db.t", "b", "--dry-run")
    assert (tried["changed"], tried["action"], tried["dry_run"]) == ("b", "created", True)
    assert [one["name"] for one in run("branch", "db.t")["refs"]] == ["main"]
    options = ("--at", str(ids[0]), "--retain", "30d", "--snapshot-age", "12h", "--keep", "2")
    made = run("branch", "db.t", "b", *options)
    assert made["action"] == "created"
    assert made["changed"] == "b"
    assert made["refs"][0] == {
        "name": "b",
        "type": "branch",
        "snapshot_id": ids[0],
        "max_ref_age_ms": 30 * 86_400_000,
        "max_snapshot_age_ms": 12 * 3_600_000,
        "min_snapshots_to_keep": 2,
    }
    assert "exists already" in failure(run, "branch", "db.t", "b")
    assert run("branch", "db.t", "b", "--fast-forward", "main")["refs"][0]["snapshot_id"] == ids[2]
    moved = run("branch", "db.t", "b", "--replace", "--at", str(ids[1]))
    assert (moved["refs"][0]["snapshot_id"], moved["action"]) == (ids[1], "moved")
    dropped = run("branch", "db.t", "b", "--drop")
    assert ([one["name"] for one in dropped["refs"]], dropped["action"]) == (["main"], "dropped")
    assert "main cannot be dropped" in failure(run, "branch", "db.t", "main", "--drop")
    assert "exclude each other" in failure(run, "branch", "db.t", "b", "--drop", "--at", str(ids[0]))
    assert "name the branch" in failure(run, "branch", "db.t", "--drop")
    assert "--retain is 'soon'" in failure(run, "branch", "db.t", "b", "--retain", "soon")


def test_tags_are_created_and_dropped(run: Json, ids: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tag", "db.t", "v1", "--retain", "365d")["refs"][0]["snapshot_id"] == ids[2]
    assert "no snapshot 5" in failure(run, "tag", "db.t", "v2", "--at", "5")
    assert "v1 is a tag, not a branch" in failure(run, "branch", "db.t", "v1", "--drop")
    assert main(["tag", "db.t"]) == 0
    assert f"v1 {ids[2]} ref 365d" in " ".join(capsys.readouterr().out.split())
    assert run("tag", "db.t", "v1", "--drop", "--dry-run")["refs"] != []
    assert run("tag", "db.t", "v1", "--drop")["refs"] == []


def test_properties_are_shown_set_and_removed(run: Json, capsys: pytest.CaptureFixture[str]) -> None:
    dry = run("properties", "db.t", "a.b=1", "c = x=y ", "--dry-run")
    assert (dry["set"], dry["properties"].get("a.b")) == ({"a.b": "1", "c": "x=y"}, None)
    assert run("properties", "db.t", "a.b=1", "c = x=y ")["properties"].items() >= {"a.b": "1", "c": "x=y"}.items()
    changed = run("properties", "db.t", "a.b=2", "--unset", "c", "--unset", "never-set")
    assert changed["removed"] == ["c"]
    before = fp.load_table("db.t").metadata_location
    assert run("properties", "db.t", "--unset", "never-set")["removed"] == []
    assert fp.load_table("db.t").metadata_location == before
    assert main(["properties", "db.t", "--unset", "never-set"]) == 0
    assert capsys.readouterr().out == "db.t: nothing to remove\n"
    shown = run("properties", "db.t")["properties"]
    assert shown["a.b"] == "2"
    assert "c" not in shown
    assert main(["properties", "db.t"]) == 0
    assert "a.b" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["format-version=3"], "reserved: use upgrade-format"),
        (["a"], "'a' has no value"),
        (["=1"], "has no name"),
        (["a=1", "--unset", "a"], "both set and removed"),
    ],
)
def test_properties_that_cannot_be_set(run: Json, arguments: list[str], message: str) -> None:
    assert message in failure(run, "properties", "db.t", *arguments)


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        ("branch db.t audit", "branch audit: created"),
        ("tag db.t month --dry-run", "tag month: dry run: not created"),
        ("branch db.t main --drop --dry-run", ""),
        ("properties db.t a=b --unset c --dry-run", "db.t: dry run: nothing was changed"),
        ("properties db.t a=b", "db.t: changed"),
        ("properties db.t", "db.t has no properties"),
    ],
)
@pytest.mark.usefixtures("table")
def test_changes_are_reported_as_text(arguments: str, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == (0 if first else 2)
    assert capsys.readouterr().out.partition("\n")[0].strip() == first


def test_a_metadata_file_is_read_only(run: Json, table: Table) -> None:
    path = table.metadata_location.removeprefix("file://")
    assert len(run("snapshots", path)["snapshots"]) == 3
    assert run("properties", path)["table"]
    for change in (["properties", path, "a=1"], ["tag", path, "x"], ["rollback", path, "--to", "1"]):
        assert "read-only" in failure(run, *change)

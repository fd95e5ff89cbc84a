"""The output of `floeplan inspect`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import floeplan as fp
from floeplan.cli.main import main
from floeplan.maintenance.inspect import inspect_table
from floeplan.transaction.commit import commit_change
from tests.support.tables.commits import append, delete_first_rows, evolved_table, open_catalog, rows_of
from tests.support.tables.two_specs import two_spec_table

pytestmark = pytest.mark.unit


def test_specs_files_and_deletes_are_shown(tmp_path: Path) -> None:
    table = evolved_table(open_catalog(tmp_path))
    table = commit_change(table, append(table, rows_of(40, 50, "a") + rows_of(50, 60, "b"))).table
    table = delete_first_rows(table, slice(0, 2))
    found = inspect_table(table)
    assert [(spec["spec_id"], spec["spec"], spec["default"]) for spec in found.specs] == [
        (0, "unpartitioned", False),
        (1, "identity(part)", True),
    ]
    assert [(one.spec_id, one.files, one.rows, one.partitions, one.manifests) for one in found.files_by_spec] == [
        (0, 4, 40, 1, 4),
        (1, 2, 20, 2, 1),
    ]
    assert found.delete_files == {"position": 2, "vectors": 0, "equality": 0, "rows": 2}
    assert found.sizes["data_bytes"] == sum(one.bytes for one in found.files_by_spec)
    assert sum(one["files"] for one in found.sizes["histogram"]) == 6
    assert [snapshot["operation"] for snapshot in found.snapshots] == ["delete", *["append"] * 5]
    assert found.snapshots[0]["current"]


def test_the_command_draws_it_and_has_the_promised_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = evolved_table(open_catalog(tmp_path))
    assert main(["inspect", table.metadata_location, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() >= {"specs", "schemas", "snapshots", "files_by_spec", "delete_files", "sizes"}
    assert main(["inspect", table.metadata_location]) == 0
    drawn = capsys.readouterr().out
    assert "identity(part)" in drawn
    assert "█" in drawn
    assert "100 %" in drawn


def test_manifests_without_live_files_are_counted_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan counts them, too."""
    table = two_spec_table(tmp_path)
    fp.rewrite_data_files(table, options={"rewrite-all": "true"})
    location = table.refresh().metadata_location
    assert main(["inspect", location]) == 0
    listed = fp.plan_scan(table).summary.manifests_total
    live = inspect_table(table).sizes["manifests"]
    assert f"; {listed - live} more without live files" in capsys.readouterr().out


def test_a_table_without_snapshots_is_shown_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = evolved_table(open_catalog(tmp_path), files=())
    assert main(["inspect", table.metadata_location]) == 0
    assert "unpartitioned" in capsys.readouterr().out

"""A full filesystem that also holds the catalog's database: a change succeeds, or the table is unchanged.

One more page is free each time, so that space runs out at data, manifests, the list, metadata and the database in turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults.full_filesystem import CHANGES, LIMITED, MOUNTED

pytestmark = [pytest.mark.unit, pytest.mark.matrix]

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = ("unshare", "--map-root-user", "--mount")
REASONS = {MOUNTED: ("No space left on device", "disk is full"), LIMITED: ("File too large", "disk I/O error")}


@pytest.fixture(scope="module")
def tries(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    how = MOUNTED if _may_mount(tmp_path_factory.mktemp("mount")) else LIMITED
    command = [sys.executable, "-m", "tests.support.faults.full_filesystem", how, str(tmp_path_factory.mktemp("full"))]
    alone = NAMESPACE if how == MOUNTED else ()
    done = subprocess.run([*alone, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return how, json.loads(done.stdout)


def _may_mount(folder: Path) -> bool:
    command = [*NAMESPACE, "mount", "-t", "tmpfs", "none", str(folder)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_atomic(tries: tuple[str, list[Any]], change: str) -> None:
    how, found = tries
    mine = [one for one in found if one["change"] == change]
    for one in mine:
        assert one["rows"] == ("changed" if one["error"] is None else "as before"), one
        assert one["missing"] == 0, one
    failed = [one for one in mine if one["error"] is not None]
    assert 0 < len(failed) < len(mine), "some fit, some do not"
    for one in failed:
        assert one["kind"] is not None, one
        assert any(reason in one["error"] for reason in REASONS[how]), one


def test_nothing_is_left_over_unless_a_commit_was_running(tries: tuple[str, list[Any]]) -> None:
    for one in tries[1]:
        under_way = one["error"] is not None and any(name.endswith(".metadata.json") for name in one["left_over"])
        assert under_way or not one["left_over"], one

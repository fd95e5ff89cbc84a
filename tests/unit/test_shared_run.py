"""Processes that share a run: every test is run once, by one of them, and a failure of any is a failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import run_tests

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]


def run(folder: Path, jobs: int) -> tuple[int, str]:
    (folder / "conftest.py").write_text('pytest_plugins = ["tests.support.shared_run"]\n')
    environment = os.environ | {"FLOEPLAN_TEST_JOBS": str(jobs), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(run_tests.__file__), "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_two_processes_run_every_test_once(tmp_path: Path) -> None:
    for number in range(6):
        body = f"def test_a(): open({str(tmp_path / 'ran')!r}, 'a').write('{number} ')\ndef test_b(): pass\n"
        (tmp_path / f"test_{number}.py").write_text(body)
    code, output = run(tmp_path, 2)
    assert code == 0, output
    assert sorted((tmp_path / "ran").read_text().split()) == list("012345")
    assert sum(map(int, re.findall(r"(\d+) passed", output))) == 12


def test_a_failure_in_either_process_is_one(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"test_{number}.py").write_text(f"def test_a(): assert {number} != 2\n")
    code, output = run(tmp_path, 2)
    assert code == 1
    assert "1 failed" in output

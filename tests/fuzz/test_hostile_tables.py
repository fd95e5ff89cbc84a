"""Damaged tables: every operation returns a result or a Floeplan error, in bounded time and memory.

Cases that once failed are kept in ``corpus/tables`` and run first. ``make fuzz`` runs many more, new ones every time.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fuzz import fuzzing

pytestmark = [pytest.mark.property, pytest.mark.matrix]

CORPUS = Path(__file__).parent / "corpus" / "tables"
COUNT = 80
SHARE = 10
"""A multiple of a test's time, since every case runs many operations."""


def test_damaged_files_give_a_result_or_a_floeplan_error() -> None:
    kept = sorted(map(str, CORPUS.glob("*.json")))
    assert kept
    command = [sys.executable, "-m", "tests.support.fuzz.hostile_tables", str(COUNT), str(SHARE), *kept]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600 + SHARE * fuzzing.SECONDS)
    assert not done.stdout, f"add the following to {CORPUS.name} and fix it:\n{done.stdout}"
    assert done.returncode == 0, f"it crashed on the last of these:\n{done.stderr[-4000:]}"

"""Damaged tables: whatever is asked, an error of ours or an answer, in bounded time and memory, and no crash.

Cases that once failed are kept in ``corpus/tables`` and come first. ``make fuzz`` tries many more,
other ones every time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fuzz import fuzzing

pytestmark = pytest.mark.property

CORPUS = Path(__file__).parent / "corpus" / "tables"
COUNT = 80 if os.environ.get("CI") else 40
SHARE = 10
"""Of the seconds of a test: everything is asked of every table."""


def test_damaged_files_give_an_error_of_ours_or_an_answer() -> None:
    kept = sorted(map(str, CORPUS.glob("*.json")))
    assert kept
    command = [sys.executable, "-m", "tests.support.fuzz.hostile_tables", str(COUNT), str(SHARE), *kept]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600 + SHARE * fuzzing.SECONDS)
    assert not done.stdout, f"put what follows into {CORPUS.name} and mend it:\n{done.stdout}"
    assert done.returncode == 0, f"it died of the last of these:\n{done.stderr[-4000:]}"

"""Damaged tables: whatever is asked, an error of ours or an answer, in bounded time and memory, and no crash.

Cases that once failed are kept in ``corpus/tables`` and come first. ``HYPOTHESIS_PROFILE=long`` (``make fuzz``) tries
many more, other ones every time.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import SystemRandom

import pytest
from hypothesis import settings

pytestmark = pytest.mark.property

CORPUS = Path(__file__).parent / "corpus" / "tables"
LONG = settings().max_examples > 1000
SEED, COUNT = (SystemRandom().randrange(2**40), 5000) if LONG else (0, 80)


def test_damaged_files_give_an_error_of_ours_or_an_answer() -> None:
    kept = sorted(map(str, CORPUS.glob("*.json")))
    assert kept
    command = [sys.executable, "-m", "tests.support.hostile_tables", str(SEED), str(COUNT), *kept]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60 + COUNT)
    assert not done.stdout, f"put what follows into {CORPUS.name} and mend it:\n{done.stdout}"
    assert done.returncode == 0, f"it died of the last of these:\n{done.stderr[-4000:]}"

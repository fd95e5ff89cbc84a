"""Writers that are killed at a step of their commit, each a process of ``tests.support.crashing_commit``."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class KilledWriters:
    """The process that starts them: what it is asked, and what it answers."""

    questions: IO[str]
    answers: IO[str]

    def kill_at(self, folder: Path, kind: str, step: str) -> None:
        """Let a writer change the table of a folder until it is killed at this step."""
        self.questions.write(f"{folder} {kind} {step}\n")
        self.questions.flush()
        assert int(self.answers.readline()) == signal.SIGKILL


@contextmanager
def killed_writers() -> Iterator[KilledWriters]:
    """Writers, started one after the other."""
    command = [sys.executable, "-m", "tests.support.crashing_commit"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield KilledWriters(process.stdin, process.stdout)
        process.stdin.close()

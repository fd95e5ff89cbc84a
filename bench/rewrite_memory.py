"""The most memory a process that runs tasks had at once, while something ran.

Python workers of Spark are where Floeplan's tasks run, or this process for little work; the JVM is where Iceberg's do,
all of them together and what else Spark keeps there. The kernel remembers the most a process had; it is told to forget
before, so that what ran earlier does not count.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from bench.cpu_clock import process_tree

_FORGET = "5"
_WORKERS, _JVM = b"pyspark.daemon", b"java"


class PeakMemory:
    """Measures from when it is made."""

    def __init__(self) -> None:
        for pid in process_tree():
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text(_FORGET)

    def of_workers(self) -> float:
        """MB of the largest worker, or of this process when Spark had nothing to do."""
        return _most(_WORKERS) or _resident(os.getpid())

    def of_jvm(self) -> float:
        """MB of the JVM."""
        return _most(_JVM)


def _most(command: bytes) -> float:
    return max((_resident(pid) for pid in process_tree() if command in _command(pid)), default=0.0)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _resident(pid: int) -> float:
    """The most it had since it was told to forget, in MB; nothing once it ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM")), 0.0)

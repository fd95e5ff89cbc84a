"""Peak memory of the processes that run tasks.

Floeplan's tasks run in Spark's Python workers, or in this process for little work; Iceberg's tasks run in the JVM,
together with everything else of Spark. The kernel records the peak of each process; it is reset before the measurement.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from bench.cpu_clock import process_tree

_FORGET = "5"
_WORKERS, _JVM = b"pyspark.daemon", b"java"


class PeakMemory:
    """Measures from its creation."""

    def __init__(self) -> None:
        for pid in process_tree():
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text(_FORGET)

    def of_workers(self) -> float:
        """MB of the largest worker, or of this process if Spark had nothing to do."""
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
    """Peak MB since the reset; None if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM")), 0.0)

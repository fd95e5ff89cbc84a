"""CPU time of a process tree, in which processes may start and end during the measurement.

Rule: every process counts with its user and system time since the clock was started, read from its CPU clock in
nanoseconds; ``/proc`` has a resolution of 10 ms, a tenth of a short query. The times of ended children are not used:
Spark's Python daemon does not wait for them, and others would count for their whole life. A process that starts and
ends between two reads is missed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


class CpuClock:
    """Measures from its creation."""

    def __init__(self) -> None:
        self._before = _used()

    def seconds(self) -> float:
        """CPU seconds so far of this process and all its descendants."""
        return sum(used - self._before.get(process, 0.0) for process, used in _used().items())


def process_tree() -> list[int]:
    """This process and all that descend from it."""
    return [pid for pid, _ in _tree()]


def process_seconds(pid: int) -> float:
    """CPU seconds of one process since it started."""
    return time.clock_gettime(_clock_of(pid))


def _used() -> dict[tuple[int, int], float]:
    """CPU seconds of each process of the tree, by pid and start time."""
    found = {}
    for process in _tree():
        try:
            found[process] = time.clock_gettime(_clock_of(process[0]))
        except OSError:  # it has ended
            continue
    return found


def _clock_of(pid: int) -> int:
    """The id of the CPU clock of a process on Linux."""
    return (~pid << 3) | 2


def _tree() -> list[tuple[int, int]]:
    """This process and all its descendants, by pid and start time."""
    found: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(entry.name)] = int(fields[1]), int(fields[19])
    family = {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in family} - family:
        family |= more
    return [(pid, found[pid][1]) for pid in family]

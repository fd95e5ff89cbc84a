"""CPU time of a tree of processes, some of which come and go while it is measured.

Rule: every process counts for what it used since the clock was started, by its own user and system time, which its CPU
clock tells in nanoseconds; the text of ``/proc`` tells it in hundredths of a second, a tenth of what a short query
takes. What a process of the tree says of its ended children is not used: Spark's Python daemon lets them end
unaccounted, and those that are accounted would count for all of their life. A process that begins and ends unseen is
missed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


class CpuClock:
    """Measures from when it is made."""

    def __init__(self) -> None:
        self._before = _used()

    def seconds(self) -> float:
        """CPU seconds so far, of this process and of all that descend from it."""
        return sum(used - self._before.get(process, 0.0) for process, used in _used().items())


def process_tree() -> list[int]:
    """This process and all that descend from it."""
    return [pid for pid, _ in _tree()]


def _used() -> dict[tuple[int, int], float]:
    """CPU seconds of each process of the tree, by its number and when it began."""
    found = {}
    for process in _tree():
        try:
            found[process] = time.clock_gettime(_clock_of(process[0]))
        except OSError:  # it has ended meanwhile
            continue
    return found


def _clock_of(pid: int) -> int:
    """The CPU clock of a process, as Linux numbers them."""
    return (~pid << 3) | 2


def _tree() -> list[tuple[int, int]]:
    """This process and all that descend from it, each by its number and when it began."""
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

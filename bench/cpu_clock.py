"""CPU time of a tree of processes, some of which come and go while it is measured.

Rule: every process counts for what it used since the clock was started, by its own user and system time. What a
process of the tree says of its ended children is not used: Spark's Python daemon lets them end unaccounted, and those
that are accounted would count for all of their life. A process that begins and ends unseen is missed.
"""

from __future__ import annotations

import os
from pathlib import Path


class CpuClock:
    """Measures from when it is made."""

    def __init__(self) -> None:
        self._before = _ticks()

    def seconds(self) -> float:
        """CPU seconds so far, of this process and of all that descend from it."""
        used = sum(ticks - self._before.get(process, 0) for process, ticks in _ticks().items())
        return used / os.sysconf("SC_CLK_TCK")


def process_tree() -> list[int]:
    """This process and all that descend from it."""
    return [pid for pid, _ in _ticks()]


def _ticks() -> dict[tuple[int, int], int]:
    """User and system time of each process of the tree, by its number and when it began."""
    found: dict[int, tuple[int, int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(entry.name)] = int(fields[1]), int(fields[19]), int(fields[11]) + int(fields[12])
    family = {os.getpid()}
    while more := {pid for pid, (parent, _, _) in found.items() if parent in family} - family:
        family |= more
    return {(pid, found[pid][1]): found[pid][2] for pid in family}

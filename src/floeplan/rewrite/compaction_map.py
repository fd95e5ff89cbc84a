"""Where the rows of rewritten files went: runs of rows of old files, and the runs of new files they became.

A run of ``count`` rows from position ``source_start`` of an old file is found, in the same order, from position
``target_start`` of a new one. Rows that were deleted before the rewrite are in no run. With the map, deletes that
another writer adds to the old files while they are being replaced are carried over to the new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from floeplan.errors import FloeplanError

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CompactionMap:
    """Runs in the order of the old files and their rows; files by their place in ``sources`` and ``targets``."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    source: Ints
    source_start: Ints
    target: Ints
    target_start: Ints
    count: Ints

    def __len__(self) -> int:
        return len(self.count)

    def remap(self, path: str, positions: npt.ArrayLike) -> dict[str, Ints]:
        """Positions in an old file as sorted positions in new files; rows that had been deleted before are gone.

        Costs a search of the runs per position, all at once.
        """
        wanted = np.asarray(positions, dtype=np.int64)
        first, last = np.searchsorted(self.source, self.sources.index(path) + np.array([0, 1]))
        starts = self.source_start[first:last]
        run = np.searchsorted(starts, wanted, side="right") - 1
        known = run >= 0
        known[known] = (wanted[known] - starts[run[known]]) < self.count[first:last][run[known]]
        at = first + run[known]
        moved = self.target_start[at] + wanted[known] - self.source_start[at]
        target = self.target[at]
        return {self.targets[i]: np.sort(moved[target == i]) for i in np.unique(target).tolist()}


Runs: TypeAlias = tuple[Ints, Ints]
"""Starts and lengths of runs of numbers, in any order."""


def runs_of(numbers: Ints) -> Runs:
    """Numbers as runs of consecutive ones, in their order."""
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 2) != 1)
    return numbers[starts], np.diff(np.append(starts, len(numbers)))


@dataclass(slots=True)
class MapBuilder:
    """Follows rows on their way: read from old files in some order, numbered as they come, written by their numbers."""

    sources: Sequence[str]
    rows: int = 0
    _targets: list[str] = field(default_factory=list)
    _read: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    _written: list[tuple[Ints, Ints, Ints, Ints]] = field(default_factory=list)

    def read(self, source: int, starts: Ints, counts: Ints) -> Ints:
        """Rows at these runs of positions of a source were read; their numbers."""
        first = self.rows
        self._read.append((np.full(len(starts), source, dtype=np.int64), starts, counts))
        self.rows += int(counts.sum())
        return np.arange(first, self.rows, dtype=np.int64)

    def wrote(self, targets: Sequence[str], rows: Sequence[int], numbers: Sequence[Runs]) -> None:
        """New files hold, one after the other and so many rows each, the rows of these numbers in this order."""
        starts, counts = (np.concatenate([part[i] for part in numbers] or [_NONE]) for i in range(2))
        place = np.cumsum(counts) - counts
        file_end = np.cumsum(rows)
        if int(counts.sum()) != sum(rows):
            raise FloeplanError(f"{int(counts.sum())} rows were read and {sum(rows)} written; nothing is committed")
        edges = np.union1d(place, file_end[:-1])
        run = np.searchsorted(place, edges, side="right") - 1
        file = np.searchsorted(file_end, edges, side="right")
        size = np.diff(np.append(edges, file_end[-1]))
        at = edges - (file_end - np.asarray(rows))[file]
        self._written.append((file + len(self._targets), at, starts[run] + edges - place[run], size))
        self._targets += targets

    def finish(self) -> CompactionMap:
        """The map; every run of numbers is cut where a run of positions ends."""
        source, position, size = (np.concatenate([part[i] for part in self._read] or [_NONE]) for i in range(3))
        file, at, number, rows = (np.concatenate([part[i] for part in self._written] or [_NONE]) for i in range(4))
        first = np.cumsum(size) - size
        piece, run = _overlaps(first, number, rows)
        start = np.maximum(first[run], number[piece])
        end = np.minimum((first + size)[run], (number + rows)[piece])
        old = position[run] + start - first[run]
        order = np.lexsort((old, source[run]))
        return CompactionMap(
            tuple(self.sources),
            tuple(self._targets),
            source[run][order],
            old[order],
            file[piece][order],
            (at[piece] + start - number[piece])[order],
            (end - start)[order],
        )


_NONE = np.zeros(0, dtype=np.int64)


def _overlaps(first: Ints, number: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """For runs of numbers, the runs in which these were read: pairs of both, run by run."""
    low = np.searchsorted(first, number, side="right") - 1
    count = np.searchsorted(first, number + rows, side="left") - low
    piece = np.repeat(np.arange(len(number)), count)
    return piece, np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count) + low[piece]

"""Where the rows of rewritten files went, so that what happens to a row of an old file can happen to it in a new one.

Live rows of the old files are numbered in the order in which they are read; rows that were deleted before have no
number. The new files together hold all of them, one after the other: the *place* of a row counts over all new files.
A map is runs of positions that were read, and runs of numbers with the place each begins at; where rows were
shuffled, it is the place of every number.

With the map, deletes that another writer adds to the old files while they are being replaced are carried over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from floeplan.errors import FloeplanError
from floeplan.vectors import Ints

Runs: TypeAlias = tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.integer[Any]]]
"""Starts and lengths of runs of numbers, in any order."""

_NOTHING: Runs = (np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.uint8))
_SHUFFLED = 4
"""With fewer rows than this to a run on average, a place for every number is smaller than the runs."""


@dataclass(frozen=True, slots=True)
class CompactionMap:
    """The way of rows from old files to new ones.

    Attributes:
        sources: The old files.
        targets: The new files.
        target_rows: Rows of each new file.
        source: For each run of positions that was read, its old file.
        source_start: Its first position.
        count: Its rows; numbers count on from run to run.
        first: The first number of each run that was written, ascending; ``None`` when every number has its own place.
        place: The place of each of these.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    target_rows: Ints
    source: Ints
    source_start: Ints
    count: Ints
    first: Ints | None
    place: npt.NDArray[np.integer[Any]]
    _number: Ints = field(init=False, repr=False, compare=False)
    _source_number: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_number", np.cumsum(self.count) - self.count)
        object.__setattr__(self, "_source_number", {path: number for number, path in enumerate(self.sources)})

    def __reduce__(self) -> tuple[Callable[..., CompactionMap], tuple[Any, ...]]:
        """Maps are sent by every task and may have millions of runs: numbers travel as narrow as they can."""
        runs = np.bincount(self.source, minlength=len(self.sources))
        first = None if self.first is None else _narrow(self.first)
        numbers = (_narrow(runs), _narrow(self.source_start), _narrow(self.count), first, _narrow(self.place))
        return _received, (self.sources, self.targets, self.target_rows, *numbers)

    def remap(self, path: str, positions: npt.ArrayLike) -> dict[str, Ints]:
        """Positions in an old file as sorted positions in new files; rows that had been deleted before are left out.

        Costs a search of the runs per position, all at once.
        """
        place = np.sort(self._places(self._numbers(self._source_number[path], np.asarray(positions, dtype=np.int64))))
        ends = np.cumsum(self.target_rows)
        cuts = np.searchsorted(place, ends)
        starts = np.concatenate(([0], cuts[:-1]))
        return {
            self.targets[i]: place[starts[i] : cuts[i]] - (ends[i] - self.target_rows[i])
            for i in np.flatnonzero(cuts > starts).tolist()
        }

    def _numbers(self, source: int, positions: Ints) -> Ints:
        """The numbers of the rows at some positions of an old file."""
        low, high = np.searchsorted(self.source, [source, source + 1])
        starts, count = self.source_start[low:high], self.count[low:high]
        run = np.searchsorted(starts, positions, side="right") - 1
        positions, run = positions[run >= 0], run[run >= 0]
        inside = positions - starts[run]
        read = inside < count[run]
        return np.asarray(self._number[low:high][run[read]] + inside[read])

    def _places(self, numbers: Ints) -> Ints:
        if self.first is None:
            return self.place[numbers].astype(np.int64)
        run = np.searchsorted(self.first, numbers, side="right") - 1
        return np.asarray(self.place[run] + numbers - self.first[run])


def _received(
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    target_rows: Ints,
    runs: Ints,
    source_start: Ints,
    count: Ints,
    first: Ints | None,
    place: npt.NDArray[np.integer[Any]],
) -> CompactionMap:
    """A map as it was sent, with the number of runs of each old file."""
    return CompactionMap(
        sources=sources,
        targets=targets,
        target_rows=target_rows,
        source=np.repeat(np.arange(len(sources)), runs),
        source_start=source_start.astype(np.int64),
        count=count.astype(np.int64),
        first=None if first is None else first.astype(np.int64),
        place=place if first is None else place.astype(np.int64),
    )


def runs_of(numbers: Ints) -> Runs:
    """Ints as runs of consecutive ones, in their order, or each by itself where that is smaller.

    There may be as many runs as rows, so they are kept narrow.
    """
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 2) != 1)
    first, counts = _narrow(numbers[starts]), _narrow(np.diff(np.append(starts, len(numbers))))
    alone = _narrow(numbers)
    return each_alone(alone) if alone.nbytes < first.nbytes + counts.nbytes else (first, counts)


def each_alone(numbers: npt.NDArray[np.integer[Any]]) -> Runs:
    """Ints that were shuffled, each as a run of its own."""
    return numbers, np.broadcast_to(np.uint8(1), len(numbers))


def _narrow(numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))), copy=False)


@dataclass(slots=True)
class MapBuilder:
    """Follows rows on their way: read from old files in their order, numbered so, and written by their numbers."""

    sources: Sequence[str]
    rows: int = 0
    _targets: list[str] = field(default_factory=list)
    _target_rows: list[int] = field(default_factory=list)
    _read: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    _written: list[Runs] = field(default_factory=list)

    def read(self, source: int, starts: Ints, counts: Ints) -> Ints:
        """Rows at these runs of positions of a source were read; their numbers."""
        first = self.rows
        self.note_read(source, starts, counts)
        return np.arange(first, self.rows, dtype=np.int64)

    def note_read(self, source: int, starts: Ints, counts: Ints) -> None:
        """Rows at these runs of positions of a source were read, and will be written in this order."""
        self._read.append((np.full(len(starts), source, dtype=np.int64), starts, counts))
        self.rows += int(counts.sum())

    def wrote(self, targets: Sequence[str], rows: Sequence[int], numbers: Sequence[Runs]) -> None:
        """New files hold, one after the other and so many rows each, the rows of these numbers in this order."""
        read = sum(int(counts.sum()) for _, counts in numbers)
        if read != sum(rows):
            raise FloeplanError(f"{read} rows were read and {sum(rows)} written; nothing is committed")
        self._targets += targets
        self._target_rows += rows
        self._written += numbers

    def finish(self) -> CompactionMap:
        """The map."""
        if self.rows != sum(self._target_rows):
            raise FloeplanError(f"{self.rows} rows were read and {sum(self._target_rows)} written")
        source, position, size = (_joined([part[i] for part in self._read]) for i in range(3))
        runs = sum(len(start) for start, _ in self._written)
        first, place = (None, self._every_place()) if _SHUFFLED * runs > self.rows else self._places_of_runs()
        rows = np.array(self._target_rows, dtype=np.int64)
        return CompactionMap(tuple(self.sources), tuple(self._targets), rows, source, position, size, first, place)

    def _places_of_runs(self) -> tuple[Ints, Ints]:
        """The first numbers of all runs, ascending, and the place of each."""
        start, count = (_joined([part[i] for part in self._written]) for i in range(2))
        order = np.argsort(start)
        return start[order], (np.cumsum(count) - count)[order]

    def _every_place(self) -> npt.NDArray[Any]:
        """The place of every number, in as few bytes as hold it; what was written is let go piece by piece."""
        places = np.empty(self.rows, dtype=np.min_scalar_type(self.rows))
        done = 0
        for at, (start, count) in enumerate(self._written):
            place = np.arange(done, done + int(count.sum()), dtype=places.dtype)
            places[start if len(start) == len(place) else _numbers(start, count)] = place
            done += len(place)
            self._written[at] = _NOTHING
        return places


def _numbers(start: npt.NDArray[np.integer[Any]], count: npt.NDArray[np.integer[Any]]) -> Ints:
    """The numbers of runs, one by one."""
    lengths = count.astype(np.int64)
    before = np.cumsum(lengths) - lengths
    return np.asarray(np.repeat(start.astype(np.int64) - before, lengths) + np.arange(int(lengths.sum())))


def _joined(parts: Sequence[npt.NDArray[np.integer[Any]]]) -> Ints:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64, copy=False)

"""Which rows of a file to read: sorted, disjoint runs of row numbers, convertible to a Roaring bitmap.

Operations take time proportional to the number of runs, not of rows. Row numbers are positions in the file;
``relative_to`` renumbers them over the kept row groups, which is what a reader that is given a list of row groups
expects.

Roaring bitmaps hold 32-bit numbers. A file with more rows has no bitmap; the runs hold the same information.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from floeplan.errors import UnsupportedError
from floeplan.vectors import Mask, expand_runs

Rows: TypeAlias = npt.NDArray[np.int64]

ROARING_ROW_LIMIT = 2**32 - 1


@dataclass(frozen=True, slots=True, eq=False)
class RowSelection:
    """Runs ``[starts, starts + counts)``: ascending, apart from each other, none empty."""

    starts: Rows
    counts: Rows

    @classmethod
    def from_runs(cls, starts: npt.ArrayLike, counts: npt.ArrayLike) -> RowSelection:
        """From runs in any order, overlapping or not."""
        first, size = np.asarray(starts, dtype=np.int64), np.asarray(counts, dtype=np.int64)
        first, size = first[size > 0], size[size > 0]
        if len(first) == 0:
            return cls(first, size)
        order = np.argsort(first, kind="stable")
        first, reach = first[order], np.maximum.accumulate((first + size)[order])
        opens = np.concatenate(([True], first[1:] > reach[:-1]))
        starts_of_runs = first[opens]
        return cls(starts_of_runs, reach[np.append(opens[1:], True)] - starts_of_runs)

    @classmethod
    def from_mask(cls, mask: Mask, first_row: int = 0) -> RowSelection:
        """From one flag per row, the first of them for ``first_row``."""
        if not len(mask):
            return cls.none()
        changes = np.flatnonzero(mask[1:] != mask[:-1]) + 1
        edges = np.concatenate(([0] if mask[0] else [], changes, [len(mask)] if mask[-1] else [])).astype(np.int64)
        return cls(edges[::2] + first_row, edges[1::2] - edges[::2])

    @classmethod
    def from_rows(cls, rows: Rows) -> RowSelection:
        """From ascending row numbers, duplicates allowed."""
        if not len(rows):
            return cls.none()
        opens = np.flatnonzero(np.diff(rows) > 1) + 1
        starts, last = rows[np.append(0, opens)], rows[np.append(opens, len(rows)) - 1]
        return cls(starts, last + 1 - starts)

    @classmethod
    def from_pages(cls, first_rows: Rows, row_counts: Rows, keep: Mask) -> RowSelection:
        """From the kept ones among pages or other row ranges."""
        return cls.from_runs(first_rows[keep], row_counts[keep])

    @classmethod
    def from_bitmap(cls, bitmap: BitMap) -> RowSelection:
        """From a bitmap, without listing its rows."""
        moved = bitmap.shift(1)  # a row in the bitmap but not in the shifted one starts a run, the reverse ends one
        starts = np.asarray((bitmap - moved).to_array(), dtype=np.int64)
        ends = np.asarray((moved - bitmap).to_array(), dtype=np.int64)
        if len(ends) < len(starts):
            ends = np.append(ends, 2**32)
        return cls(starts, ends - starts)

    @classmethod
    def all_rows(cls, total: int) -> RowSelection:
        """Rows 0 to ``total``."""
        return cls(np.zeros(1, dtype=np.int64), np.array([total], dtype=np.int64)) if total > 0 else cls.none()

    @classmethod
    def none(cls) -> RowSelection:
        """No row."""
        return cls.from_runs([], [])

    @property
    def row_count(self) -> int:
        """Number of selected rows."""
        return int(self.counts.sum())

    @property
    def ends(self) -> Rows:
        """The row after each run."""
        return self.starts + self.counts

    def __bool__(self) -> bool:
        return len(self.starts) > 0

    def __len__(self) -> int:
        return len(self.starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowSelection):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.counts, other.counts)

    def __hash__(self) -> int:
        return hash((self.starts.tobytes(), self.counts.tobytes()))

    def contains(self, rows: npt.ArrayLike) -> Mask:
        """For each row number, whether it is selected."""
        wanted = np.asarray(rows, dtype=np.int64)
        if not self:
            return np.zeros(wanted.shape, dtype=np.bool_)
        run = np.searchsorted(self.starts, wanted, side="right") - 1
        return np.asarray((run >= 0) & (wanted < self.ends[run]))

    def overlaps(self, first_rows: Rows, row_counts: Rows) -> Mask:
        """For each row range, whether any row of it is selected."""
        run = np.searchsorted(self.ends, first_rows, side="right")
        starts = np.append(self.starts, np.iinfo(np.int64).max)
        return np.asarray((row_counts > 0) & (starts[run] < first_rows + row_counts))

    def rank(self, rows: npt.ArrayLike) -> Rows:
        """For each row number, the number of selected rows before it."""
        wanted = np.asarray(rows, dtype=np.int64)
        if not self:
            return np.zeros_like(wanted)
        run = np.searchsorted(self.starts, wanted, side="right") - 1
        before = (np.cumsum(self.counts) - self.counts)[run] + np.minimum(wanted - self.starts[run], self.counts[run])
        return np.where(run < 0, 0, before)

    def at(self, ranks: Rows) -> Rows:
        """Row numbers by their rank among the selected rows: the inverse of ``rank``."""
        if len(self) == 1:
            return np.asarray(ranks + self.starts[0])
        before = np.cumsum(self.counts) - self.counts
        run = np.searchsorted(before, ranks, side="right") - 1
        return np.asarray(ranks + (self.starts - before)[run])

    def intersect(self, other: RowSelection) -> RowSelection:
        """Rows in both selections."""
        if other is self:
            return self
        return self._combine(other, np.logical_and)

    def union(self, other: RowSelection) -> RowSelection:
        """Rows in either selection."""
        return self._combine(other, np.logical_or)

    def difference(self, other: RowSelection) -> RowSelection:
        """Rows in this selection but not in the other."""
        if other is self or not other:
            return self if not other else RowSelection.none()
        return self._combine(other, lambda mine, theirs: mine & ~theirs)

    def invert(self, total: int) -> RowSelection:
        """Rows of ``0 .. total`` that are not selected."""
        return RowSelection.all_rows(total).difference(self)

    def _combine(self, other: RowSelection, keep: Callable[[Mask, Mask], Mask]) -> RowSelection:
        cuts = distinct(np.concatenate((self.starts, self.ends, other.starts, other.ends)))
        first, size = cuts[:-1], np.diff(cuts)
        return RowSelection.from_pages(first, size, keep(self.contains(first), other.contains(first)))

    def slice(self, offset: int = 0, limit: int | None = None) -> RowSelection:
        """Skip the first ``offset`` selected rows and take at most ``limit`` of the rest."""
        total = self.row_count
        first, last = min(offset, total), total if limit is None else min(offset + limit, total)
        ranks = np.cumsum(self.counts) - self.counts
        low, high = np.clip(first - ranks, 0, self.counts), np.clip(last - ranks, 0, self.counts)
        return RowSelection.from_runs(self.starts + low, high - low)

    def narrow(self, mask: Mask) -> RowSelection:
        """Keep the selected rows whose flag is set; the mask has one flag per *selected* row."""
        ranks = RowSelection.from_mask(mask)
        return ranks._moved(np.cumsum(self.counts) - self.counts, self.starts)

    def relative_to(self, first_rows: Rows, row_counts: Rows) -> RowSelection:
        """Renumber over the given ascending row groups, concatenated; rows outside of them are dropped."""
        ends = first_rows + row_counts
        seamless = len(ends) > 0 and bool((first_rows[1:] == ends[:-1]).all())
        if seamless and self and self.starts[0] >= first_rows[0] and self.ends[-1] <= ends[-1]:
            return RowSelection(self.starts - first_rows[0], self.counts)
        inside = self.intersect(RowSelection.from_runs(first_rows, row_counts))
        return inside._moved(first_rows, np.cumsum(row_counts) - row_counts)

    def absolute_from(self, first_rows: Rows, row_counts: Rows) -> RowSelection:
        """Undo ``relative_to``: from positions in the given row groups to positions in the file."""
        return self._moved(np.cumsum(row_counts) - row_counts, first_rows)

    def _moved(self, old: Rows, new: Rows) -> RowSelection:
        """Shift every row by ``new - old`` of the last ``old`` at or before it."""
        if not self:
            return self
        first = distinct(np.concatenate((self.starts, old[self.contains(old)])))
        run = np.searchsorted(self.starts, first, side="right") - 1
        size = np.minimum(self.ends[run], np.append(first[1:], np.iinfo(np.int64).max)) - first
        interval = np.searchsorted(old, first, side="right") - 1
        return RowSelection.from_runs(first + (new - old)[interval], size)

    def to_rows(self) -> Rows:
        """Every selected row number; takes memory proportional to the rows."""
        return expand_runs(self.starts, self.counts)

    def to_mask(self, total: int) -> Mask:
        """One flag for each of ``total`` rows; the selection must lie within them."""
        mask = np.zeros(total, dtype=np.bool_)
        mask[self.to_rows()] = True
        return mask

    def to_bitmap(self) -> BitMap:
        """The same rows as a Roaring bitmap, built from ranges."""
        if self and int(self.ends[-1]) > ROARING_ROW_LIMIT:
            raise UnsupportedError(
                f"row {int(self.ends[-1]) - 1} does not fit a 32-bit Roaring bitmap; use the runs of the selection"
            )
        bitmap = BitMap()
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            bitmap.add_range(start, end)
        return bitmap

    def to_pairs(self) -> list[list[int]]:
        """``[[first_row, count], …]`` for JSON."""
        return [list(pair) for pair in zip(self.starts.tolist(), self.counts.tolist(), strict=True)]


def distinct(numbers: Rows) -> Rows:
    """The distinct numbers, ascending."""
    # np.unique imports numpy.ma, which takes longer than a point lookup.
    ordered = np.sort(numbers, kind="stable")
    return np.asarray(ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0])

"""Evaluation of a predicate over pages, although the pages of different columns do not line up.

Rows are cut wherever a page of any predicate column begins. Within such a segment every column has exactly one page,
so the statistics of that page hold for the segment, and one evaluation covers all segments of all row groups::

    a   |---- page 0 ----|------- page 1 -------|
    b   |-- page 0 --|---- page 1 ----|- page 2 -|
        |     s0     |s1 |     s2     |   s3     |

AND, OR and NOT need no rules of their own here: the tri-state algebra has them. What the row group already proved holds
for each of its segments, so both states are combined. A column without a page index is one page per row group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.page_index import PageIndex
from floeplan.parquet.footer.statistics import page_column_stats
from floeplan.parquet.prune.selection import RowSelection, distinct
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import Column, IrExpr
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable, Tri, TriState
from floeplan.vectors import Ints


@dataclass(frozen=True, slots=True)
class Segments:
    """Row ranges that cover a file without gaps, each with the state of the predicate there."""

    row_group: Ints
    first_row: Ints
    row_count: Ints
    state: npt.NDArray[np.int8]

    @property
    def selection(self) -> RowSelection:
        """Rows that may match."""
        return RowSelection.from_pages(self.first_row, self.row_count, self.state != TriState.FALSE)

    @property
    def proven(self) -> RowSelection:
        """Rows that are known to match."""
        return RowSelection.from_pages(self.first_row, self.row_count, self.state == TriState.TRUE)

    def refined(self, finer: Segments) -> Segments:
        """Replace the row groups that the finer segments cover with those segments."""
        coarse = ~np.isin(self.row_group, finer.row_group)
        first_row = np.concatenate((self.first_row[coarse], finer.first_row))
        order = np.argsort(first_row, kind="stable")
        return Segments(
            np.concatenate((self.row_group[coarse], finer.row_group))[order],
            first_row[order],
            np.concatenate((self.row_count[coarse], finer.row_count))[order],
            np.concatenate((self.state[coarse], finer.state))[order],
        )


def row_group_segments(footer: ParquetFooter, states: Tri) -> Segments:
    """One segment per row group."""
    groups = np.arange(footer.num_row_groups, dtype=np.int64)
    return Segments(groups, footer.first_rows, footer.row_group_rows, states.states())


def page_segments(
    footer: ParquetFooter,
    expr: IrExpr,
    pages: Mapping[int, tuple[Column, PageIndex]],
    row_groups: Ints,
    known: StatsTable,
    states: Tri,
) -> Segments:
    """Evaluate the predicate over the pages of some row groups.

    Args:
        footer: The file's footer.
        expr: The predicate.
        pages: By field id, the columns that have a page index, and the index over exactly these row groups.
        row_groups: The row groups, ascending; none is empty.
        known: Statistics of all row groups of the file, for the columns without pages.
        states: The states that statistics and Bloom filters gave to all row groups of the file.
    """
    firsts, ends = footer.first_rows[row_groups], (footer.first_rows + footer.row_group_rows)[row_groups]
    page_rows = {field: footer.first_rows[index.row_group] + index.first_row for field, (_, index) in pages.items()}
    # Cut at every page and row-group boundary; cuts at the end of a row group open no segment.
    cuts = distinct(np.concatenate((firsts, ends, *page_rows.values())))
    position = np.searchsorted(firsts, cuts, side="right") - 1
    inside = cuts < ends[position]
    first_row, group = cuts[inside], row_groups[position[inside]]
    row_count = np.diff(cuts, append=cuts[-1])[inside]
    # Statistics of each segment: those of its page, else those of its row group.
    columns = {field: _take_stats(stats, group) for field, stats in known.columns.items()}
    for field, (column, index) in pages.items():
        stats = page_column_stats(index, column)
        if stats is not None:
            page = np.searchsorted(page_rows[field], first_row, side="right") - 1
            columns[field] = _within(_take_stats(stats, page), columns.get(field))
    finer = evaluate(expr, StatsTable(len(first_row), columns))
    coarser = Tri(states.may_true[group], states.may_false[group], states.may_null[group])
    return Segments(group, first_row, row_count, finer.refine(coarser).states())


def _within(page: ColumnStats, group: ColumnStats | None) -> ColumnStats:
    """A page holds no null, NaN or value where its row group holds none."""
    if group is None:
        return page
    flags = {name: getattr(page, name) & getattr(group, name) for name in ("may_null", "may_nan", "may_value")}
    return replace(page, **flags)


def _take_stats(stats: ColumnStats, positions: Ints) -> ColumnStats:
    """Gather the statistics of containers by position."""
    return ColumnStats(
        stats.may_null[positions],
        stats.may_nan[positions],
        stats.may_value[positions],
        _take_bound(stats.lower, positions),
        _take_bound(stats.upper, positions),
    )


def _take_bound(bound: Bound | None, positions: Ints) -> Bound | None:
    if bound is None:
        return None
    values = bound.values
    taken = values[positions] if isinstance(values, np.ndarray) else values.take(pa.array(positions))
    return Bound(taken, bound.valid[positions])

"""What pruning a file is asked and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.page_index import PageIndex
from floeplan.parquet.footer.statistics import page_column_stats
from floeplan.parquet.prune.selection import ROARING_ROW_LIMIT, RowSelection, distinct
from floeplan.parquet.source import IoCounters
from floeplan.predicate.compile import CompileResult
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import Column, IrExpr
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable
from floeplan.predicate.tristate import Tri, TriState
from floeplan.vectors import Ints

# Asking a predicate about pages, although the pages of different columns do not line up.
#
# Rows are cut wherever a page of any asked column begins. Within such a segment every column has exactly one page, so
# the statistics of that page hold for the segment, and one evaluation over all segments of all row groups answers::
#
#     a   |---- page 0 ----|------- page 1 -------|
#     b   |-- page 0 --|---- page 1 ----|- page 2 -|
#         |     s0     |s1 |     s2     |   s3     |
#
# AND, OR and NOT need no rules of their own here: the tri-state algebra has them. What the row group already proved
# holds for each of its segments too, and both answers are combined. A column without a page index is one page per row
# group.


@dataclass(frozen=True, slots=True)
class Segments:
    """Row ranges of a file that fill it without gaps, each with what is known of the predicate there."""

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
        """With the row groups that the finer segments cover replaced by them."""
        coarse = ~np.isin(self.row_group, finer.row_group)
        first_row = np.concatenate((self.first_row[coarse], finer.first_row))
        order = np.argsort(first_row, kind="stable")
        return Segments(
            np.concatenate((self.row_group[coarse], finer.row_group))[order],
            first_row[order],
            np.concatenate((self.row_count[coarse], finer.row_count))[order],
            np.concatenate((self.state[coarse], finer.state))[order],
        )


def row_group_segments(footer: ParquetFooter, answer: Tri) -> Segments:
    """One segment per row group."""
    groups = np.arange(footer.num_row_groups, dtype=np.int64)
    return Segments(groups, footer.first_rows, footer.row_group_rows, answer.states())


def page_segments(
    footer: ParquetFooter,
    expr: IrExpr,
    pages: Mapping[int, tuple[Column, PageIndex]],
    row_groups: Ints,
    known: StatsTable,
    answer: Tri,
) -> Segments:
    """Evaluate the predicate over the pages of some row groups.

    Args:
        footer: The file's footer.
        expr: The predicate.
        pages: By field id, the columns that have a page index, and the index over exactly these row groups.
        row_groups: The row groups, ascending; none is empty.
        known: Statistics of all row groups of the file, for the columns without pages.
        answer: What is already known of the predicate for all row groups of the file.
    """
    firsts, ends = footer.first_rows[row_groups], (footer.first_rows + footer.row_group_rows)[row_groups]
    page_rows = {field: footer.first_rows[index.row_group] + index.first_row for field, (_, index) in pages.items()}
    cuts = distinct(np.concatenate((firsts, ends, *page_rows.values())))
    place = np.searchsorted(firsts, cuts, side="right") - 1
    inside = cuts < ends[place]
    first_row, group = cuts[inside], row_groups[place[inside]]
    row_count = np.diff(cuts, append=cuts[-1])[inside]
    columns = {field: take_stats(stats, group) for field, stats in known.columns.items()}
    for field, (column, index) in pages.items():
        stats = page_column_stats(index, column)
        if stats is not None:
            page = np.searchsorted(page_rows[field], first_row, side="right") - 1
            columns[field] = _within(take_stats(stats, page), columns.get(field))
    finer = evaluate(expr, StatsTable(len(first_row), columns))
    coarser = Tri(answer.may_true[group], answer.may_false[group], answer.may_null[group])
    return Segments(group, first_row, row_count, finer.refine(coarser).states())


def _within(page: ColumnStats, group: ColumnStats | None) -> ColumnStats:
    """A page holds no null, NaN or value where its row group holds none."""
    if group is None:
        return page
    flags = {name: getattr(page, name) & getattr(group, name) for name in ("may_null", "may_nan", "may_value")}
    return replace(page, **flags)


def take_stats(stats: ColumnStats, positions: Ints) -> ColumnStats:
    """The statistics of some containers, in the order and as often as asked for."""
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


# ---


@dataclass(frozen=True, slots=True)
class PruneOptions:
    """What pruning may use and what it returns."""

    page_index: bool = True
    """Ask the column and offset indexes about the row groups that statistics leave open."""
    bloom_filter: bool = True
    """Ask bloom filters about equalities in the row groups that statistics leave open."""
    emit_roaring: bool = False
    """Also return the selected rows as a Roaring bitmap."""
    case_sensitive: bool = True
    """Whether column names in the predicate must match exactly."""


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The rows of a file that may match, and what is known of them."""

    file: str
    compile_result: CompileResult
    row_groups: tuple[int, ...]
    """Row groups to read, ascending."""
    row_selection: RowSelection
    """Rows to read, numbered over the kept row groups laid end to end."""
    file_selection: RowSelection
    """The same rows, numbered over the file."""
    proven: RowSelection
    """Those of the selected rows, numbered over the file, that are known to match: no residual is needed for them."""
    roaring_bitmap: BitMap | None
    """``file_selection`` as a bitmap, when asked for and possible."""
    roaring_skipped: str | None
    """Why there is no bitmap although one was asked for."""
    row_group_states: npt.NDArray[np.int8]
    """A ``TriState`` per row group of the file."""
    segments: Segments
    """The finest row ranges that were judged, over the whole file."""
    rows_total: int
    pages_total: int
    """Data pages of the predicate's columns whose index was read; those of decided row groups are not."""
    pages_kept: int
    """How many of them hold a selected row."""
    bytes_read: int
    requests: int
    round_trips: int
    notes: tuple[str, ...]
    """What could not be used."""

    @property
    def row_groups_total(self) -> int:
        """Row groups in the file."""
        return len(self.row_group_states)

    @property
    def rows_selected(self) -> int:
        """How many rows are left to read."""
        return self.file_selection.row_count

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the result."""
        return {
            "file": self.file,
            "rows_total": self.rows_total,
            "rows_selected": self.rows_selected,
            "rows_proven": self.proven.row_count,
            "row_groups_total": self.row_groups_total,
            "row_groups_kept": list(self.row_groups),
            "pages_total": self.pages_total,
            "pages_kept": self.pages_kept,
            "row_selection": self.file_selection.to_pairs(),
            "roaring_skipped": self.roaring_skipped,
            "compile": self.compile_result.to_dict(),
            "bytes_read": self.bytes_read,
            "requests": self.requests,
            "round_trips": self.round_trips,
            "notes": list(self.notes),
        }


def build_result(
    footer: ParquetFooter,
    compiled: CompileResult,
    segments: Segments,
    pages: tuple[int, int],
    cost: IoCounters,
    notes: tuple[str, ...],
    emit_roaring: bool,
) -> PruneResult:
    """Sum up the judged segments; ``pages`` is (total, kept)."""
    selection = segments.selection
    kept = np.flatnonzero(selection.overlaps(footer.first_rows, footer.row_group_rows))
    bitmap, skipped = _bitmap(selection, footer.num_rows) if emit_roaring else (None, None)
    return PruneResult(
        file=footer.file,
        compile_result=compiled,
        row_groups=tuple(kept.tolist()),
        row_selection=selection.relative_to(footer.first_rows[kept], footer.row_group_rows[kept]),
        file_selection=selection,
        proven=segments.proven,
        roaring_bitmap=bitmap,
        roaring_skipped=skipped,
        row_group_states=_row_group_states(footer, segments),
        segments=segments,
        rows_total=footer.num_rows,
        pages_total=pages[0],
        pages_kept=pages[1],
        bytes_read=cost.bytes,
        requests=cost.requests,
        round_trips=cost.round_trips,
        notes=notes,
    )


def _bitmap(selection: RowSelection, rows_total: int) -> tuple[BitMap | None, str | None]:
    if rows_total > ROARING_ROW_LIMIT:
        return None, f"{rows_total} rows are more than a 32-bit bitmap can number; the row selection says the same"
    return selection.to_bitmap(), None


def _row_group_states(footer: ParquetFooter, segments: Segments) -> npt.NDArray[np.int8]:
    """A row group is decided when all its segments with rows agree."""
    holds = segments.row_count > 0
    groups, states = segments.row_group[holds], segments.state[holds]
    lowest = np.full(footer.num_row_groups, TriState.TRUE, dtype=np.int8)
    highest = np.full(footer.num_row_groups, TriState.FALSE, dtype=np.int8)
    np.minimum.at(lowest, groups, states)
    np.maximum.at(highest, groups, states)
    return np.where(lowest == highest, lowest, np.minimum(highest, TriState.UNKNOWN)).astype(np.int8)

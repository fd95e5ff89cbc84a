"""What pruning a file is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from floeplan.parquet.footer import ParquetFooter
from floeplan.parquet.segments import Segments
from floeplan.parquet.selection import ROARING_ROW_LIMIT, RowSelection
from floeplan.parquet.source import IoCounters
from floeplan.predicate.compile import CompileResult
from floeplan.predicate.tristate import TriState


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

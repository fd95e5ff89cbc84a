"""``PruneResult``: which rows of a file may match, and the ``Segments`` of rows that were evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from floeplan.display import Displayed
from floeplan.parquet.prune.selection import RowSelection
from floeplan.predicate.compile import CompileResult
from floeplan.predicate.stats import TriState
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


@dataclass(frozen=True, slots=True, repr=False)
class PruneResult(Displayed):
    """The rows of a file that may match."""

    file: str
    compile_result: CompileResult
    row_groups: tuple[int, ...]
    """Row groups to read, ascending."""
    row_selection: RowSelection
    """Rows to read, numbered over the kept row groups laid end to end."""
    file_selection: RowSelection
    """The same rows, numbered over the file."""
    proven: RowSelection
    """The selected rows, numbered over the file, that are proven to match: they need no residual."""
    roaring_bitmap: BitMap | None
    """``file_selection`` as a bitmap, when requested and possible."""
    roaring_skipped: str | None
    """Why a requested bitmap is missing."""
    row_group_states: npt.NDArray[np.int8]
    """A ``TriState`` per row group of the file."""
    segments: Segments
    """The finest row ranges that were evaluated, over the whole file."""
    rows_total: int
    pages_total: int
    """Data pages with statistics of the predicate's columns, in row groups that only the page index could decide."""
    pages_kept: int
    """How many of them hold a selected row."""
    bytes_read: int
    requests: int
    round_trips: int
    notes: tuple[str, ...]
    """Metadata that was missing or could not be used."""

    @property
    def row_groups_total(self) -> int:
        """Row groups in the file."""
        return len(self.row_group_states)

    @property
    def rows_selected(self) -> int:
        """Number of rows to read."""
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

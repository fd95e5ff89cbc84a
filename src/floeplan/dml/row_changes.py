"""Which rows of a file change, decided on a few of its columns before any other column is read.

A decision has clauses: each deletes rows or updates them. For one file it returns the rows that change and the clause
that applies to each; every other row stays. Files are decided independently, in parallel.

Fail-safe: a deleted row never changes, and no expression that can fail is evaluated on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from floeplan.dml.assign import Assignments
from floeplan.predicate.build import field_ids, has_opaque
from floeplan.predicate.rows.arrow_columns import Resolver, typed_columns_of
from floeplan.predicate.rows.evaluate import matching_mask
from floeplan.scan.delete_files import Positions
from floeplan.scan.file_rows import PlannedRows
from floeplan.scan.model import FileScan
from floeplan.vectors import Ints, Mask


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The rows of a file that change, in file order.

    Attributes:
        positions: Their positions in the file.
        clause: The number of the clause that applies to each.
        source: In a merge, the source row that matched each of them, negative for none.
        matched_sources: In a merge, the source rows that matched any target row, changed or not.
    """

    positions: Positions
    clause: npt.NDArray[np.int16]
    source: Ints | None = None
    matched_sources: BitMap64 | None = None

    @classmethod
    def one_clause(cls, positions: Positions) -> RowChanges:
        """Rows that the first clause changes."""
        return cls(positions, np.zeros(len(positions), dtype=np.int16))


@dataclass(frozen=True, slots=True)
class Clause:
    """Updates rows, or deletes them when it has no assignments."""

    assignments: Assignments | None = None


class Decision(Protocol):
    """Chooses the rows of a file that change."""

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """The clauses that may apply."""

    def fields(self, file: FileScan) -> frozenset[int]:
        """The fields the decision reads."""

    def decide(self, file: FileScan, planned: PlannedRows) -> RowChanges:
        """The changes among the rows of the file that the plan kept."""

    def resolver(self, rows: pa.Table, schema: Schema, source: Ints | None) -> Resolver:
        """Resolves the columns of assignments, for rows matched by these source rows."""


@dataclass(frozen=True, slots=True)
class Matching:
    """Changes every row for which the plan's predicate is TRUE."""

    schema: Schema
    clause: Clause = field(default_factory=Clause)

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """The one clause."""
        return (self.clause,)

    def fields(self, file: FileScan) -> frozenset[int]:
        """The fields of the residual."""
        return frozenset(field_ids(file.residual))

    def decide(self, file: FileScan, planned: PlannedRows) -> RowChanges:
        """Evaluate the residual."""
        # An opaque expression can fail on a deleted row, so those are filtered out first; otherwise evaluating all rows
        # is cheaper than copying the live ones.
        if has_opaque(file.residual):
            found = np.flatnonzero(self._mask(file, planned.undeleted(), planned.live_count))
            return RowChanges.one_clause(planned.undeleted_positions(found))
        return RowChanges.one_clause(
            planned.positions(self._mask(file, planned.rows, len(planned.live)) & planned.live)
        )

    def _mask(self, file: FileScan, rows: pa.Table, count: int) -> Mask:
        if rows.num_columns:
            return matching_mask(file.residual, rows, self.schema)
        return np.full(count, bool(matching_mask(file.residual, pa.table({"row": pa.nulls(1)}), Schema())[0]))

    def resolver(self, rows: pa.Table, schema: Schema, source: Ints | None) -> Resolver:
        """Columns of the row itself."""
        return typed_columns_of(rows, schema)


@dataclass(frozen=True, slots=True)
class DeletePositions:
    """Deletes rows whose positions are already known."""

    positions: Mapping[str, BitMap64]

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """One clause, which deletes."""
        return (Clause(),)

    def fields(self, file: FileScan) -> frozenset[int]:
        """No fields."""
        return frozenset()

    def decide(self, file: FileScan, planned: PlannedRows) -> RowChanges:
        """The positions that are still live."""
        found = rows_of(self.positions[file.path])
        found = found[planned.selection.contains(found)]
        return RowChanges.one_clause(found[planned.live[planned.selection.rank(found)]])

    def resolver(self, rows: pa.Table, schema: Schema, source: Ints | None) -> Resolver:
        """Columns of the row itself."""
        return typed_columns_of(rows, schema)


def rows_of(numbers: BitMap64) -> Ints:
    """The values of a bitmap, ascending."""
    return np.frombuffer(numbers.to_array(), dtype=np.uint64).astype(np.int64)

"""What becomes of the rows of a file, decided on a few of its columns before any other is read.

A decision names clauses: each deletes rows or gives them new values. It says which rows change, and by which clause;
every other row stays. Deciding never looks at more than the rows of one file, so files are decided in parallel.

Fail-safe: a row that is deleted already never changes, and no expression that can fail is evaluated on it.
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


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The rows that change, in their order: positions, and the number of the clause that applies to each.

    Attributes:
        positions: Where in the file they are.
        clause: Which clause applies.
        source: For a join, the source row each of them met, negative for none.
        met: For a join, the source rows that met any target row, changed or not.
    """

    positions: Positions
    clause: npt.NDArray[np.int16]
    source: npt.NDArray[np.int64] | None = None
    met: BitMap64 | None = None

    @classmethod
    def one_clause(cls, positions: Positions) -> RowChanges:
        """All by the first clause."""
        return cls(positions, np.zeros(len(positions), dtype=np.int16))


@dataclass(frozen=True, slots=True)
class Clause:
    """Rows get new values, or without assignments are deleted."""

    assignments: Assignments | None = None


class Decision(Protocol):
    """Decides about the live rows of a file."""

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """What may become of a row."""

    def fields(self, file: FileScan) -> frozenset[int]:
        """The fields that are looked at."""

    def decide(self, file: FileScan, planned: PlannedRows) -> RowChanges:
        """The fates of the rows of the file that a plan kept."""

    def resolver(self, rows: pa.Table, schema: Schema, source: npt.NDArray[np.int64] | None) -> Resolver:
        """Where the assignments find their columns, for rows that met these source rows."""


@dataclass(frozen=True, slots=True)
class Matching:
    """Every row for which the plan's predicate is TRUE."""

    schema: Schema
    clause: Clause = field(default_factory=Clause)

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """The one clause."""
        return (self.clause,)

    def fields(self, file: FileScan) -> frozenset[int]:
        """Those of the residual."""
        return frozenset(field_ids(file.residual))

    def decide(self, file: FileScan, planned: PlannedRows) -> RowChanges:
        """Ask the residual: of all rows where it cannot fail, which spares copying those that are left."""
        if has_opaque(file.residual):
            found = np.flatnonzero(self._mask(file, planned.undeleted(), planned.live_count))
            return RowChanges.one_clause(planned.undeleted_positions(found))
        return RowChanges.one_clause(
            planned.positions(self._mask(file, planned.rows, len(planned.live)) & planned.live)
        )

    def _mask(self, file: FileScan, rows: pa.Table, count: int) -> npt.NDArray[np.bool_]:
        if rows.num_columns:
            return matching_mask(file.residual, rows, self.schema)
        return np.full(count, bool(matching_mask(file.residual, pa.table({"row": pa.nulls(1)}), Schema())[0]))

    def resolver(self, rows: pa.Table, schema: Schema, source: npt.NDArray[np.int64] | None) -> Resolver:
        """Columns of the row itself."""
        return typed_columns_of(rows, schema)


@dataclass(frozen=True, slots=True)
class DeletePositions:
    """Rows whose positions were found elsewhere are deleted."""

    positions: Mapping[str, BitMap64]

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """Deleting."""
        return (Clause(),)

    def fields(self, file: FileScan) -> frozenset[int]:
        """None."""
        return frozenset()

    def decide(self, file: FileScan, planned: PlannedRows) -> RowChanges:
        """Look the positions up."""
        gone = rows_of(self.positions[file.path])
        gone = gone[planned.selection.contains(gone)]
        return RowChanges.one_clause(gone[planned.live[planned.selection.rank(gone)]])

    def resolver(self, rows: pa.Table, schema: Schema, source: npt.NDArray[np.int64] | None) -> Resolver:
        """Columns of the row itself."""
        return typed_columns_of(rows, schema)


def rows_of(numbers: BitMap64) -> npt.NDArray[np.int64]:
    """The numbers of a bitmap, ascending."""
    return np.frombuffer(numbers.to_array(), dtype=np.uint64).astype(np.int64)

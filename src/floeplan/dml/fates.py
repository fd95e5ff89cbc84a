"""What becomes of the rows of a file, decided on a few of its columns before any other is read.

A decision names clauses: each deletes rows or gives them new values. For every live row it says which clause applies,
or that the row stays. Deciding never looks at more than the rows of one file, so files are decided in parallel.
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
from floeplan.predicate.arrow_columns import Resolver, typed_columns_of
from floeplan.predicate.build import field_ids
from floeplan.predicate.rows import matching_mask
from floeplan.scan.model import FileScan

STAYS = -1


@dataclass(frozen=True, slots=True)
class Fates:
    """For every row the number of the clause that applies or ``STAYS``; for a join also the source row it met."""

    clause: npt.NDArray[np.int16]
    source: npt.NDArray[np.int64] | None = None
    met: BitMap64 | None = None
    """Source rows that met any target row, changed or not."""


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

    def decide(self, file: FileScan, rows: pa.Table, positions: npt.NDArray[np.int64]) -> Fates:
        """The fates of rows at these positions of the file."""

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

    def decide(self, file: FileScan, rows: pa.Table, positions: npt.NDArray[np.int64]) -> Fates:
        """Ask the residual."""
        mask = matching_mask(file.residual, rows, self.schema) if rows.num_columns else _constant(file, len(positions))
        return Fates(np.where(mask, 0, STAYS).astype(np.int16))

    def resolver(self, rows: pa.Table, schema: Schema, source: npt.NDArray[np.int64] | None) -> Resolver:
        """Columns of the row itself."""
        return typed_columns_of(rows, schema)


@dataclass(frozen=True, slots=True)
class Given:
    """Rows whose positions were found elsewhere are deleted."""

    positions: Mapping[str, BitMap64]

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """Deleting."""
        return (Clause(),)

    def fields(self, file: FileScan) -> frozenset[int]:
        """None."""
        return frozenset()

    def decide(self, file: FileScan, rows: pa.Table, positions: npt.NDArray[np.int64]) -> Fates:
        """Look the positions up."""
        gone = rows_of(self.positions[file.path])
        return Fates(np.where(np.isin(positions, gone), 0, STAYS).astype(np.int16))

    def resolver(self, rows: pa.Table, schema: Schema, source: npt.NDArray[np.int64] | None) -> Resolver:
        """Columns of the row itself."""
        return typed_columns_of(rows, schema)


def rows_of(numbers: BitMap64) -> npt.NDArray[np.int64]:
    """The numbers of a bitmap, ascending."""
    return np.frombuffer(numbers.to_array(), dtype=np.uint64).astype(np.int64)


def _constant(file: FileScan, rows: int) -> npt.NDArray[np.bool_]:
    """A residual without columns is the same on every row."""
    one = matching_mask(file.residual, pa.table({"row": pa.nulls(1)}), Schema())
    return np.full(rows, bool(one[0]))

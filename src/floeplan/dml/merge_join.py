"""Deciding the rows of a file in a merge: joined with the source, first clause that applies wins.

Of a target row that met source rows, the first WHEN MATCHED clause whose condition holds applies; of one that met none,
the first WHEN NOT MATCHED BY SOURCE clause. A row that no clause applies to stays.

Fail-safe: when clauses would apply to one target row for two source rows, there is no telling which is meant; that is
an error and nothing is committed. Deleting it twice is the exception: a single unconditional DELETE is the same either
way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from floeplan.dml.fates import Clause, Fates
from floeplan.dml.keys import KeyIndex, Rows, key_values
from floeplan.dml.merge import When
from floeplan.dml.merge_condition import MergeCondition
from floeplan.dml.merge_names import is_source
from floeplan.errors import BadInputError, UnsupportedError
from floeplan.predicate.arrow_columns import Resolver, typed_columns_of
from floeplan.predicate.build import field_ids
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.predicate.rows import matching_mask
from floeplan.scan.file_rows import PlannedRows
from floeplan.scan.model import FileScan
from floeplan.write.position_deletes import merge_positions

MOST_PAIRS = 50_000_000
STAYS = -1
"""In place of a clause: none applies."""


@dataclass(frozen=True, slots=True)
class MergeSource:
    """The rows merged into the table, and their index by key."""

    rows: pa.Table
    schema: Schema
    index: KeyIndex
    key_types: tuple[pa.DataType, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """The decision of a merge."""

    schema: Schema
    source: MergeSource
    condition: MergeCondition
    matched: tuple[When, ...]
    by_source: tuple[When, ...]

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """Those of matched rows, then those of rows that met nothing."""
        return tuple(Clause(when.assignments) for when in (*self.matched, *self.by_source))

    def fields(self, file: FileScan) -> frozenset[int]:
        """Keys, and what conditions ask of the target."""
        conditions = [when.condition for when in (*self.matched, *self.by_source)]
        asked = [self.condition.target_only, self.condition.pairs, *conditions]
        keys = frozenset(key.target for key in self.condition.keys)
        return keys.union(*map(field_ids, asked))

    def decide(self, file: FileScan, planned: PlannedRows) -> Fates:
        """Join and ask the clauses."""
        rows, count = planned.undeleted(), planned.live_count
        target, source = self._pairs(rows, count)
        clause, met_row = np.full(count, STAYS, dtype=np.int16), np.full(count, STAYS, dtype=np.int64)
        chosen = self._first_that_applies(self.matched, rows, target, source)
        acting = chosen != STAYS
        self._check_single(target[acting])
        clause[target[acting]], met_row[target[acting]] = chosen[acting], source[acting]
        alone = np.ones(count, dtype=np.bool_)
        alone[target] = False
        self._decide_alone(rows, np.flatnonzero(alone), clause)
        changed = np.flatnonzero(clause != STAYS)
        where = planned.undeleted_positions(changed)
        return Fates(where, clause[changed], met_row[changed], merge_positions(source))

    def resolver(self, rows: pa.Table, schema: Schema, source: npt.NDArray[np.int64] | None) -> Resolver:
        """Columns of the target rows and of the source rows they met."""
        met = self.source.rows if source is None else self.source.rows.take(pa.array(source, mask=source < 0))
        return both_sides(typed_columns_of(rows, schema), typed_columns_of(met, self.source.schema))

    def _pairs(self, rows: pa.Table, count: int) -> tuple[Rows, Rows]:
        """Target and source rows that meet."""
        of_target = typed_columns_of(rows, self.schema)
        usable = true_mask(self.condition.target_only, count, of_target)
        found = zip(self.condition.keys, self.source.key_types, strict=True)
        keys = [key_values(of_target(key.target), type_) for key, type_ in found]
        if not keys and count * len(self.source.index.order) > MOST_PAIRS:
            raise UnsupportedError("a merge without an equality between target and source needs Spark; give a session")
        target, source = self.source.index.pairs(keys, usable)
        if self.condition.pairs == TRUE or not len(target):
            return target, source
        agree = true_mask(self.condition.pairs, len(target), self._resolve_pairs(rows, target, source))
        return target[agree], source[agree]

    def _first_that_applies(
        self, whens: Sequence[When], rows: pa.Table, target: Rows, source: Rows
    ) -> npt.NDArray[np.int16]:
        chosen = np.full(len(target), STAYS, dtype=np.int16)
        for number, when in enumerate(whens):
            open_ = np.flatnonzero(chosen == STAYS)
            if not len(open_):
                break
            resolve = self._resolve_pairs(rows, target[open_], source[open_])
            chosen[open_[true_mask(when.condition, len(open_), resolve)]] = number
        return chosen

    def _decide_alone(self, rows: pa.Table, alone: Rows, clause: npt.NDArray[np.int16]) -> None:
        """Rows that met nothing."""
        for number, when in enumerate(self.by_source, start=len(self.matched)):
            open_ = alone[clause[alone] == STAYS]
            resolve = typed_columns_of(rows.take(pa.array(open_)) if rows.num_columns else rows, self.schema)
            clause[open_[true_mask(when.condition, len(open_), resolve)]] = number

    def _check_single(self, target: Rows) -> None:
        """Target rows come in their order, so a row that acts twice stands beside itself."""
        if len(self.matched) == 1 and self.matched[0] == When():
            return
        times = int((np.diff(target) == 0).sum())
        if times:
            raise BadInputError(
                f"several source rows match one target row ({times} too many); make the source unique by its key",
                kind="ambiguous-merge",
            )

    def _resolve_pairs(self, rows: pa.Table, target: Rows, source: Rows) -> Resolver:
        of_target, of_source = (
            typed_columns_of(rows, self.schema),
            typed_columns_of(self.source.rows, self.source.schema),
        )
        left, right = pa.array(target), pa.array(source)
        return both_sides(lambda i: of_target(i).take(left), lambda i: of_source(i).take(right))


def both_sides(of_target: Resolver, of_source: Resolver) -> Resolver:
    """A column of either side, by field id."""
    return lambda field_id: of_source(field_id) if is_source(field_id) else of_target(field_id)


def true_mask(expr: IrExpr, rows: int, resolve: Resolver) -> npt.NDArray[np.bool_]:
    """Where a condition is TRUE."""
    if expr == TRUE or not rows:
        return np.ones(rows, dtype=np.bool_)
    return matching_mask(expr, pa.table({"row": pa.nulls(rows)}), resolve)

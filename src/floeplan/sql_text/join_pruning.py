"""Plan the tables of a query with a large one by the join keys of small ones, too.

``fact JOIN dim ON fact.k = dim.k WHERE dim.x = 5``: the condition on ``dim`` says nothing about ``fact``, but the keys
that ``dim`` has after it do. They are read when the query is planned, from few files and by this process, and ``fact``
is planned with ``k IN (keys)`` as well, which prunes its manifests, partitions and files. Smaller tables come first, so
that a key set can pass through several joins: region, nation, supplier. A table in between is planned by keys as well,
large or not: the rows that Spark then does not broadcast, join, shuffle and sort are more than its files.

Rule: keys are read of a table with a condition, with at most ``MOST_ROWS`` rows and ``MOST_BYTES`` bytes of columns,
for a table that is at least ``LARGER`` times as large. If that table is large, its files must differ in the column, and
what the keys prune is used if it saves a ``LEAST_SAVED`` part of the bytes; otherwise it is planned as without joins.

Fail-safe: the keys are those of the snapshot that the query reads, and no fewer than the query joins, since planning
uses a weaker condition than the query's own. ``join_keys`` returns only joins that drop rows without a match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType, TimestampType, TimestamptzType

from floeplan.metadata.manifests.stats import file_stats
from floeplan.predicate.build import and_, conjuncts, one_of
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import FALSE, TRUE, Between, Cmp, CmpOp, Column, IrExpr, IsNull
from floeplan.scan.plan import ScanPlan
from floeplan.spark.join_keys import JoinKey, KeyColumn

MOST_ROWS, MOST_BYTES = 100_000, 16 * 2**20
"""The largest table of which keys are read; the bytes are those of the columns that the query uses."""
LEAST_BYTES, LARGER = 16 * 2**20, 4
"""The smallest table that counts as large, and how much larger than the table of the keys one must be."""
LEAST_SAVED = 0.2
MOST_LISTED = 1000
"""More keys than this are used as a range, or not at all if they are strings."""

_KEY_TYPES = (IntegerType, LongType, DateType, TimestampType, TimestamptzType, StringType)
"""Types of which Spark and Iceberg compare values in the same way, without -0.0 and NaN."""

Replan = Callable[[int, IrExpr, tuple[str, ...] | None], ScanPlan]
"""Plan a reference again with a predicate, and with these columns if given."""


def can_prune(plans: Sequence[ScanPlan | None]) -> bool:
    """Whether some table is large enough to be planned by the keys of another one with a condition."""
    known = [plan for plan in plans if plan is not None]
    return any(
        _is_large(large)
        and any(_is_small(small, large) and _is_restricted(small.compiled.predicate) for small in known)
        for large in known
    )


def plan_by_keys(
    plans: Sequence[ScanPlan | None], schemas: Sequence[Schema | None], keys: Sequence[JoinKey], replan: Replan
) -> list[ScanPlan | None]:
    """The plans of the references of a query; those that join keys prune are made again."""
    return _KeyPlanning(list(plans), schemas, replan).run(keys) if can_prune(plans) else list(plans)


@dataclass(slots=True)
class _KeyPlanning:
    plans: list[ScanPlan | None]
    schemas: Sequence[Schema | None]
    replan: Replan
    found: dict[KeyColumn, pa.Array] = field(default_factory=dict)

    def run(self, keys: Sequence[JoinKey]) -> list[ScanPlan | None]:
        usable = [key for key in keys if self._is_usable(key)]
        usable.sort(key=lambda key: (self._plan(key.column).summary.bytes_kept, key.column))
        for reference, group in groupby(usable, key=attrgetter("column.reference")):
            self._reduce(reference, list(group))
        return self.plans

    def _is_usable(self, key: JoinKey) -> bool:
        if self.plans[key.column.reference] is None or self.plans[key.other.reference] is None:
            return False
        one, other = self._field(key.column), self._field(key.other)
        return isinstance(one.field_type, _KEY_TYPES) and one.field_type == other.field_type

    def _reduce(self, reference: int, keys: Sequence[JoinKey]) -> None:
        """Add the keys of smaller tables to the predicate of a reference."""
        plan = self.plans[reference]
        assert plan is not None
        large = _is_large(plan)
        conditions = []
        for key in keys:
            small = self._plan(key.other)
            if not _is_restricted(small.compiled.predicate) or not _is_small(small, plan):
                continue
            field_ = self._field(key.column)
            column = Column(field_.field_id, field_.field_type, (field_.name,))  # type: ignore[arg-type]
            if large and not _files_differ(plan, column):
                continue
            conditions.append(_condition(column, self._keys(key.other)))
        if not conditions:
            return
        planned = self.replan(reference, and_(plan.compiled.predicate, *conditions), None)
        if not large or planned.summary.bytes_kept <= (1 - LEAST_SAVED) * plan.summary.bytes_kept:
            self.plans[reference] = planned

    def _keys(self, column: KeyColumn) -> pa.Array:
        """The distinct values of a column of a small table, without null, which equals nothing."""
        if column not in self.found:
            name = self._field(column).name
            rows = self.replan(column.reference, self._plan(column).compiled.predicate, (name,)).to_arrow()
            self.found[column] = pc.unique(rows.column(name)).drop_null()
        return self.found[column]

    def _plan(self, column: KeyColumn) -> ScanPlan:
        plan = self.plans[column.reference]
        assert plan is not None
        return plan

    def _field(self, column: KeyColumn) -> NestedField:
        schema = self.schemas[column.reference]
        assert schema is not None
        return schema.fields[column.ordinal]


def _is_large(plan: ScanPlan) -> bool:
    return len(plan.files) > 1 and plan.summary.bytes_kept >= LEAST_BYTES


def _is_small(plan: ScanPlan, other: ScanPlan) -> bool:
    """Whether the keys of a table may be read to plan the other one."""
    own = plan.summary
    return own.rows_kept <= MOST_ROWS and own.bytes_kept <= min(MOST_BYTES, other.summary.bytes_kept // LARGER)


def _is_restricted(predicate: IrExpr) -> bool:
    """Whether a predicate has more than the ``IS NOT NULL`` that Spark adds for joins."""
    return any(not (isinstance(part, IsNull) and part.negated) for part in conjuncts(predicate))


def _files_differ(plan: ScanPlan, column: Column) -> bool:
    """Whether few files of a plan can have one value of a column: by a partition field, or by their bounds."""
    if any(one.bound.source_id == column.field_id and not one.bound.obstacle for one in plan.totals.union.fields):
        return True
    entries = plan.files.entries
    stats = file_stats(entries, [column])
    known = stats.columns.get(column.field_id)
    if known is None or known.lower is None or not isinstance(known.lower.values, np.ndarray):
        return False
    lower = np.sort(known.lower.values[known.lower.valid])
    if not len(lower):
        return False
    keep = evaluate(Cmp(column, CmpOp.EQ, int(lower[len(lower) // 2])), stats).keep
    sizes = entries.ints("file_size_in_bytes")
    return bool(sizes[keep].sum() <= (1 - LEAST_SAVED) * sizes.sum())


def _condition(column: Column, keys: pa.Array) -> IrExpr:
    """What every row with one of the keys satisfies."""
    if not len(keys):
        return FALSE
    if not isinstance(column.type, StringType):
        keys = keys.cast(pa.int32() if isinstance(column.type, IntegerType | DateType) else pa.int64())
    if len(keys) <= MOST_LISTED:
        return one_of(column, keys.to_pylist())
    if isinstance(column.type, StringType):
        return TRUE
    ends = pc.min_max(keys)
    return Between(column, ends["min"].as_py(), ends["max"].as_py())

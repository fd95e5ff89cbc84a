"""Evaluate the IR over a ``StatsTable``: a tri-state answer per container, vectorised.

Every leaf answer follows from four questions about the ordinary values of a container — may one be below, at or
below, at or above, above the literal — and from whether nulls and NaN may occur:

==============  ==========================================  ==========================
leaf            TRUE may occur if                           FALSE may occur if
==============  ==========================================  ==========================
``x = v``       a value may be <= v and one may be >= v     may be < v, > v, or NaN
``x < v``       may be < v                                  may be >= v, or NaN
``x > v``       may be > v, or NaN                          may be <= v
``x IS NULL``   a null may occur                            a value or NaN may occur
==============  ==========================================  ==========================

NULL may occur where a null may occur, except for the leaves that never yield NULL. NaN is equal to itself and
above everything, as in Spark. For a column without statistics and for an opaque piece, all three may occur.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial, reduce
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.types import BooleanType, DecimalType, PrimitiveType

from floeplan import arrow_compute as pc
from floeplan.predicate import ir
from floeplan.predicate.ir import CmpOp, Column, IrExpr
from floeplan.predicate.literals import Value
from floeplan.predicate.stats import POOL, Bound, ColumnStats, StatsTable, Tri, Vector, kleene, to_mask
from floeplan.vectors import Mask, arrow_binary, arrow_values, integers

_Numbers: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.float64] | npt.NDArray[np.uint64]"
_NUMPY_COMPARE = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "=": np.equal}
_ARROW_COMPARE = {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal, "=": pc.equal}


@runtime_checkable
class BoundsTest(Protocol):
    """Evaluates a condition on the stored bounds of a column whose values have no order."""

    def answer(self, stats: ColumnStats) -> Tri:
        """What may occur among the rows of each container."""

    def shown(self, stats: ColumnStats) -> str:
        """The bounds of the first container that the answer comes from."""


def evaluate(expr: IrExpr, stats: StatsTable) -> Tri:
    """Answer the predicate for every container of the table."""
    return kleene(expr, stats.nonempty, lambda leaf: answer_leaf(leaf, stats))


def may_match(expr: IrExpr, stats: StatsTable) -> Mask:
    """Where TRUE may occur, as ``evaluate(expr, stats).may_true``; comparisons then need half as many masks."""
    match expr:
        case ir.And(operands):
            return reduce(np.logical_and, (may_match(operand, stats) for operand in operands))
        case ir.Or(operands):
            return reduce(np.logical_or, (may_match(operand, stats) for operand in operands))
        case ir.Cmp(column, op, value) if op in _MAY_BE and not (isinstance(value, float) and math.isnan(value)):
            known = stats.columns.get(column.field_id)
            if known is not None:
                mask = _MAY_BE[op](known, in_domain(known, physical(column.type, value)))
                return mask | known.may_nan if op in (CmpOp.GT, CmpOp.GE, CmpOp.NE) else mask
    return evaluate(expr, stats).may_true


def answer_leaf(leaf: IrExpr, stats: StatsTable) -> Tri:
    """Answer one leaf from the statistics of its column; without statistics all three may occur."""
    if isinstance(leaf, ir.Transformed):
        return evaluate(leaf.source, stats)
    column = getattr(leaf, "column", None)
    known = stats.columns.get(column.field_id) if column is not None else None
    if isinstance(leaf, ir.BloomEq | ir.BloomInList):
        return _bloom(leaf, known, stats)
    if known is None:
        return Tri.unknown(stats.nonempty)
    if isinstance(leaf, ir.Bounded) and isinstance(leaf.test, BoundsTest):
        answer = leaf.test.answer(known)
        return ~answer if leaf.negated else answer
    return _from_statistics(leaf, known)


def _from_statistics(leaf: IrExpr, stats: ColumnStats) -> Tri:
    match leaf:
        case ir.Cmp(column, CmpOp.NULL_SAFE_EQ, value):
            equal = _compare(stats, column.type, CmpOp.EQ, value)
            return Tri(equal.may_true, equal.may_false | stats.may_null, _none(stats))
        case ir.Cmp(column, op, value):
            return _compare(stats, column.type, op, value)
        case ir.Between(column, low, high, inclusive):
            above, below = (CmpOp.GE, CmpOp.LE) if inclusive else (CmpOp.GT, CmpOp.LT)
            return _compare(stats, column.type, above, low) & _compare(stats, column.type, below, high)
        case ir.IsNull(_, negated):
            answer = Tri(stats.may_null, stats.may_value | stats.may_nan, _none(stats))
        case ir.IsNaN(_, negated):
            answer = Tri(stats.may_nan, stats.may_value | stats.may_null, _none(stats))
        case ir.InList(column, values, negated):
            answer = _in_list(stats, column, values)
        case ir.StartsWith(_, prefix, negated):
            answer = _starts_with(stats, prefix)
        case _:
            return Tri.unknown(stats.may_null | stats.may_nan | stats.may_value)
    return ~answer if negated else answer


def _none(stats: ColumnStats) -> Mask:
    return np.zeros(len(stats.may_null), dtype=np.bool_)


def _compare(stats: ColumnStats, type_: PrimitiveType, op: CmpOp, value: Value) -> Tri:
    if isinstance(value, float) and math.isnan(value):
        return _compare_nan(stats, op)
    literal, nan = in_domain(stats, physical(type_, value)), stats.may_nan

    def may_be(op: str) -> Mask:
        return _may_be(stats, literal, op)

    match op:
        case CmpOp.EQ:
            may_true, may_false = _may_equal(stats, literal), _may_differ(stats, literal) | nan
        case CmpOp.NE:
            may_true, may_false = _may_differ(stats, literal) | nan, _may_equal(stats, literal)
        case CmpOp.LT:
            may_true, may_false = may_be("<"), may_be(">=") | nan
        case CmpOp.LE:
            may_true, may_false = may_be("<="), may_be(">") | nan
        case CmpOp.GT:
            may_true, may_false = may_be(">") | nan, may_be("<=")
        case CmpOp.GE:
            may_true, may_false = may_be(">=") | nan, may_be("<")
        case _:
            raise AssertionError(op)
    return Tri(may_true, may_false, stats.may_null)


def _may_be(stats: ColumnStats, literal: Value | pa.Scalar, op: str) -> Mask:
    """Whether an ordinary value may compare so, by the bound that faces the literal; without a bound it may."""
    bound = stats.lower if op in ("<", "<=") else stats.upper
    if bound is None:
        return stats.may_value
    return stats.may_value & (~bound.valid | compare(bound.values, op, literal))


def _may_equal(stats: ColumnStats, literal: Value | pa.Scalar) -> Mask:
    """Whether an ordinary value may equal the literal."""
    if stats.lower is not None and stats.lower is stats.upper:  # every container has one value
        return stats.may_value & (~stats.lower.valid | compare(stats.lower.values, "=", literal))
    return _may_be(stats, literal, "<=") & _may_be(stats, literal, ">=")


def _may_differ(stats: ColumnStats, literal: Value | pa.Scalar) -> Mask:
    """Whether an ordinary value may differ from the literal."""
    if stats.lower is not None and stats.lower is stats.upper:
        return stats.may_value & ~(stats.lower.valid & compare(stats.lower.values, "=", literal))
    return _may_be(stats, literal, "<") | _may_be(stats, literal, ">")


def _compare_nan(stats: ColumnStats, op: CmpOp) -> Tri:
    """A comparison with the literal NaN, which is equal to NaN and above every value."""
    nan, value = stats.may_nan, stats.may_value
    nothing = _none(stats)
    may_true, may_false = {
        CmpOp.EQ: (nan, value),
        CmpOp.NE: (value, nan),
        CmpOp.LT: (value, nan),
        CmpOp.LE: (value | nan, nothing),
        CmpOp.GT: (nothing, value | nan),
        CmpOp.GE: (nan, value),
    }[op]
    return Tri(may_true, may_false, stats.may_null)


_MAY_BE: Mapping[CmpOp, Callable[[ColumnStats, Value | pa.Scalar], Mask]] = {
    CmpOp.EQ: _may_equal,
    CmpOp.NE: _may_differ,
    **{op: partial(_may_be, op=op.value) for op in (CmpOp.LT, CmpOp.LE, CmpOp.GT, CmpOp.GE)},
}
"""Whether an ordinary value may be such that a comparison with the literal is TRUE."""


def physical(type_: PrimitiveType, value: Value) -> Value:
    """A canonical literal in the domain of its column's bounds.

    Booleans become integers, and decimals of at most 18 digits unscaled integers.
    """
    if isinstance(type_, DecimalType) and type_.precision <= 18:
        return int(value.scaleb(type_.scale))  # type: ignore[union-attr]
    return int(value) if isinstance(type_, BooleanType) else value


def in_domain(stats: ColumnStats, value: Value) -> Value | pa.Scalar:
    """A physical literal as its column's bounds compare with it: an Arrow scalar for Arrow vectors."""
    bound = stats.lower or stats.upper
    if bound is None or isinstance(bound.values, np.ndarray):
        return value
    if isinstance(value, str | bytes):
        return _text_scalar(value, bound.values.type)
    return pa.scalar(value, type=bound.values.type)


@lru_cache(maxsize=256)
def _text_scalar(value: str | bytes, type_: pa.DataType) -> pa.Scalar:
    """Cached, because every pruning pass compares the same literals."""
    return pc.cast(arrow_binary([value.encode() if isinstance(value, str) else value]), type_)[0]


def compare(values: Vector, op: str, value: Value | pa.Scalar) -> Mask:
    """Compare a vector of bounds with one literal of the same domain."""
    if isinstance(values, np.ndarray):
        return np.asarray(_NUMPY_COMPARE[op](values, value))  # type: ignore[arg-type]
    return to_mask(_ARROW_COMPARE[op](values, value, memory_pool=POOL))


def _in_list(stats: ColumnStats, column: Column, values: tuple[Value, ...]) -> Tri:
    """IN: TRUE may occur if a listed value lies between the bounds; FALSE unless all values are one listed value."""
    wants_nan = any(isinstance(v, float) and math.isnan(v) for v in values)
    ordinary = [physical(column.type, v) for v in values if not (isinstance(v, float) and math.isnan(v))]
    inside, pinned = _listed(stats, ordinary)
    may_true = stats.may_value & inside
    may_false = stats.may_value & ~pinned
    if wants_nan:
        return Tri(may_true | stats.may_nan, may_false, stats.may_null)
    return Tri(may_true, may_false | stats.may_nan, stats.may_null)


def _listed(stats: ColumnStats, values: list[Value]) -> tuple[Mask, Mask]:
    """Whether any listed value lies between the bounds, and whether the bounds pin down one listed value.

    Both by rank: with the listed values sorted, a container covers those from the first at or above its lower bound
    up to the last at or below its upper bound.
    """
    nothing = _none(stats)
    if not values:
        return nothing, nothing
    if stats.lower is None and stats.upper is None:
        return ~nothing, nothing
    lower_rank, upper_rank, listed = _ranks(stats.lower, stats.upper, values)
    first = 0 if lower_rank is None else np.searchsorted(listed, lower_rank, side="left")
    last = len(listed) if upper_rank is None else np.searchsorted(listed, upper_rank, side="right")
    if stats.lower is not None:
        first = np.where(stats.lower.valid, first, 0)
    if stats.upper is not None:
        last = np.where(stats.upper.valid, last, len(listed))
    inside = np.asarray(first < last)
    if stats.lower is None or stats.upper is None:
        return inside, nothing
    pinned = inside & stats.lower.valid & stats.upper.valid & np.asarray(lower_rank == upper_rank)
    return inside, pinned


def _ranks(
    lower: Bound | None, upper: Bound | None, values: list[Value]
) -> tuple[_Numbers | None, _Numbers | None, _Numbers]:
    """Bounds and listed values as numbers in one order: themselves, or their joint ranks for Arrow vectors."""
    sample = (lower or upper).values  # type: ignore[union-attr]
    if isinstance(sample, np.ndarray):
        listed = np.sort(np.array(values, dtype=sample.dtype))
        return lower and lower.values, upper and upper.values, listed  # type: ignore[return-value]
    present = [bound.values for bound in (lower, upper) if bound is not None]
    chunks = pa.chunked_array([arrow_values(values, sample.type), *present])
    ranks = integers(pc.rank(chunks, tiebreaker="min"))
    listed, *rest = np.split(ranks, np.cumsum([len(values), *map(len, present)])[:-1])
    lower_rank = rest.pop(0) if lower is not None else None
    return lower_rank, rest.pop(0) if upper is not None else None, np.sort(listed)


def _starts_with(stats: ColumnStats, prefix: str) -> Tri:
    """LIKE 'p%': strings with the prefix form one interval, so all strings between two with the prefix have it."""
    lower, upper, literal = stats.lower, stats.upper, in_domain(stats, prefix)
    may_true, may_false = stats.may_value, stats.may_value
    if upper is not None:
        may_true = may_true & (~upper.valid | compare(upper.values, ">=", literal))
    if lower is not None:
        has_prefix = to_mask(pc.starts_with(lower.values, prefix))
        may_true = may_true & (~lower.valid | compare(lower.values, "<=", literal) | has_prefix)
        if upper is not None:
            both_have_prefix = lower.valid & has_prefix & upper.valid & to_mask(pc.starts_with(upper.values, prefix))
            may_false = may_false & ~both_have_prefix
    return Tri(may_true, may_false, stats.may_null)


def _bloom(leaf: ir.BloomEq | ir.BloomInList, known: ColumnStats | None, stats: StatsTable) -> Tri:
    """Equality by statistics and bloom filter; a filter can only rule out TRUE."""
    values = (leaf.value,) if isinstance(leaf, ir.BloomEq) else leaf.values
    plain = ir.InList(leaf.column, values)
    answer = Tri.unknown(stats.nonempty) if known is None else _from_statistics(plain, known)
    # Filters hash bit patterns: zeros are probed with both signs; NaN has many patterns and stays unknown.
    if stats.bloom is None or any(isinstance(v, float) and math.isnan(v) for v in values):
        return answer
    other_zeros = tuple(-v for v in values if isinstance(v, float) and v == 0)
    might = stats.bloom.might_contain(leaf.column, values + other_zeros)
    return answer if might is None else Tri(answer.may_true & might, answer.may_false, answer.may_null)

"""Evaluate the IR on Arrow rows, exactly and vectorised.

Rule: every row answers TRUE, FALSE or NULL with Spark's semantics. NaN is equal to itself and above every other
value, -0.0 equals 0.0, ``isnan(NULL)`` is FALSE, strings and bytes are ordered by their unsigned bytes (UTF-8), and
AND, OR and NOT are Kleene's. Opaque pieces are evaluated last and only on the rows the other operands leave undecided,
so that ``b <> 0 AND a / b > 1`` never divides by zero. Fail-safe: data that cannot be compared exactly is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from floeplan.predicate.build import has_opaque
from floeplan.predicate.ir import (
    And,
    Between,
    BloomEq,
    BloomInList,
    Cmp,
    CmpOp,
    Column,
    FalseExpr,
    InList,
    IrExpr,
    IsNaN,
    IsNull,
    Not,
    NullExpr,
    Opaque,
    Or,
    StartsWith,
    TrueExpr,
)
from floeplan.predicate.literals import Value
from floeplan.predicate.rows.arrow_columns import Comparable, Resolver, columns_of, comparable, typed_columns_of
from floeplan.predicate.stats import to_mask

Combine: TypeAlias = Callable[[pa.ChunkedArray, pa.ChunkedArray], pa.ChunkedArray]


def evaluate_rows(expr: IrExpr, table: pa.Table, columns: Schema | Resolver) -> pa.ChunkedArray:
    """Evaluate the predicate on every row: a boolean array with null for NULL.

    Args:
        expr: The predicate, bound by field id.
        table: The rows.
        columns: The schema whose field ids the predicate uses, or a function from field id to the column's data.
    """
    if isinstance(columns, Schema):
        return _Evaluation(table, columns_of(table, columns), typed_columns_of(table, columns)).answer(expr)
    return _Evaluation(table, columns, columns).answer(expr)


def matching_mask(expr: IrExpr, table: pa.Table, columns: Schema | Resolver) -> npt.NDArray[np.bool_]:
    """Which rows evaluate to TRUE."""
    chunks = [to_mask(chunk) for chunk in evaluate_rows(expr, table, columns).chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.zeros(0, dtype=np.bool_), *chunks])


def filter_rows(expr: IrExpr, table: pa.Table, columns: Schema | Resolver) -> pa.Table:
    """Return the rows that evaluate to TRUE, in order."""
    return table if isinstance(expr, TrueExpr) else table.filter(evaluate_rows(expr, table, columns))


class _Evaluation:
    """Evaluates one predicate on one table; each column is prepared once."""

    def __init__(self, table: pa.Table, resolve: Resolver, resolve_typed: Resolver) -> None:
        self._table = table
        self._resolve = resolve
        self._resolve_typed = resolve_typed
        self._ready: dict[Column, Comparable] = {}

    def answer(self, expr: IrExpr) -> pa.ChunkedArray:
        match expr:
            case And(operands):
                return self._combine(operands, pc.and_kleene, decisive=False)
            case Or(operands):
                return self._combine(operands, pc.or_kleene, decisive=True)
            case Not(operand):
                return pc.invert(self.answer(operand))
            case TrueExpr():
                return self._constant(True)
            case FalseExpr():
                return self._constant(False)
            case NullExpr():
                return self._constant(None)
            case Opaque(_, _, expression):
                # Imported late: sqlglot and the expression evaluator, which most predicates do not need.
                from floeplan.predicate.rows.expressions import evaluate_condition

                return evaluate_condition(expression, self._table, self._resolve_typed)
        return self._leaf(expr)

    def _combine(self, operands: tuple[IrExpr, ...], combine: Combine, *, decisive: bool) -> pa.ChunkedArray:
        """Combine operands; those with opaque pieces last, and only on the rows that are still undecided."""
        guarded = [operand for operand in operands if has_opaque(operand)]
        plain = [operand for operand in operands if not has_opaque(operand)]
        answer = reduce(combine, map(self.answer, plain)) if plain else self._constant(not decisive)
        for operand in guarded:
            undecided = pc.fill_null(pc.not_equal(answer, decisive), True)
            answer = combine(answer, self._only_on(undecided.combine_chunks(), operand))
        return answer

    def _only_on(self, mask: pa.Array, expr: IrExpr) -> pa.ChunkedArray:
        """The answer on the rows of the mask, and NULL on the others."""
        if mask.true_count == len(mask):
            return self.answer(expr)
        rows = self._table.select([]).filter(mask)
        part = _Evaluation(rows, lambda i: self._resolve(i).filter(mask), lambda i: self._resolve_typed(i).filter(mask))
        answer = part.answer(expr).combine_chunks()
        return pa.chunked_array([pc.replace_with_mask(pa.nulls(len(mask), pa.bool_()), mask, answer)])

    def _leaf(self, leaf: IrExpr) -> pa.ChunkedArray:
        match leaf:
            case Cmp(column, CmpOp.NULL_SAFE_EQ, value):
                return pc.fill_null(_compare(self._column(column), CmpOp.EQ, value), False)
            case Cmp(column, op, value):
                return _compare(self._column(column), op, value)
            case BloomEq(column, value):
                return _compare(self._column(column), CmpOp.EQ, value)
            case Between(column, low, high, inclusive):
                above, below = (CmpOp.GE, CmpOp.LE) if inclusive else (CmpOp.GT, CmpOp.LT)
                data = self._column(column)
                return pc.and_kleene(_compare(data, above, low), _compare(data, below, high))
            case InList(column, values, negated):
                return _negated(_is_in(self._column(column), values), negated)
            case BloomInList(column, values):
                return _is_in(self._column(column), values)
            case StartsWith(column, prefix, negated):
                return _negated(pc.starts_with(self._column(column).values, prefix.encode()), negated)
            case IsNull(column, negated):
                return _negated(pc.is_null(self._column(column).values), negated)
            case IsNaN(column, negated):
                return _negated(self._is_nan(self._column(column)), negated)
        raise AssertionError(f"no row semantics for {type(leaf).__name__}")

    def _column(self, column: Column) -> Comparable:
        if column not in self._ready:
            self._ready[column] = comparable(column, self._resolve(column.field_id))
        return self._ready[column]

    def _constant(self, value: bool | None) -> pa.ChunkedArray:
        return pa.chunked_array([pa.repeat(pa.scalar(value, type=pa.bool_()), self._table.num_rows)])

    def _is_nan(self, data: Comparable) -> pa.ChunkedArray:
        return pc.fill_null(pc.is_nan(data.values), False) if data.is_float else self._constant(False)


def _negated(answer: pa.ChunkedArray, negated: bool) -> pa.ChunkedArray:
    return pc.invert(answer) if negated else answer


def _compare(data: Comparable, op: CmpOp, value: Value) -> pa.ChunkedArray:
    """Compare with a literal; "greater" is "not at or below", which puts NaN above everything."""
    if isinstance(value, float) and math.isnan(value):
        return _compare_nan(data, op)
    values, literal = data.align(value)
    match op:
        case CmpOp.EQ:
            return pc.equal(values, literal)
        case CmpOp.NE:
            return pc.not_equal(values, literal)
        case CmpOp.LT:
            return pc.less(values, literal)
        case CmpOp.LE:
            return pc.less_equal(values, literal)
        case CmpOp.GT:
            return pc.invert(pc.less_equal(values, literal))
        case CmpOp.GE:
            return pc.invert(pc.less(values, literal))
    raise AssertionError(f"no row semantics for {op}")


def _compare_nan(data: Comparable, op: CmpOp) -> pa.ChunkedArray:
    """Compare with NaN: nothing is above it, everything is at or below it."""
    nan = pc.is_nan(data.values)
    match op:
        case CmpOp.EQ | CmpOp.GE:
            return nan
        case CmpOp.NE | CmpOp.LT:
            return pc.invert(nan)
        case CmpOp.LE:
            return pc.or_(nan, pc.invert(nan))
    return pc.and_(nan, pc.invert(nan))


def _is_in(data: Comparable, values: tuple[Value, ...]) -> pa.ChunkedArray:
    """Membership, NULL where the value is NULL."""
    answer = data.is_in(values)
    if not data.values.null_count:
        return answer
    return pc.if_else(pc.is_valid(data.values), answer, pa.scalar(None, type=pa.bool_()))

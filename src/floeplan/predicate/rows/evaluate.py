"""Evaluate predicates and SQL expressions on Arrow rows, exactly and vectorised.

Rule: every row answers TRUE, FALSE or NULL with Spark's semantics. NaN is equal to itself and above every other
value, -0.0 equals 0.0, ``isnan(NULL)`` is FALSE, strings and bytes are ordered by their unsigned bytes (UTF-8), and
AND, OR and NOT are Kleene's. Opaque pieces are evaluated last and only on the rows the other operands leave undecided,
so that ``b <> 0 AND a / b > 1`` never divides by zero.

SQL expressions are opaque pieces, and the values that SET and INSERT assign. Values are stored by Spark's ANSI store
assignment: numbers into numbers if they fit, any single value into text, dates and timestamps into each other,
everything else only into its own type.

Fail-safe: data that cannot be compared exactly is an error. An assignment that could lose something raises
``TypeMismatchError`` naming the column; an expression that only Spark can evaluate raises ``UnsupportedError``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from floeplan.arrow_compute import scalar
from floeplan.errors import BadInputError, EvaluationError, FloeplanError, TypeMismatchError, UnsupportedError
from floeplan.predicate import ir
from floeplan.predicate.build import has_opaque
from floeplan.predicate.ir import CmpOp
from floeplan.predicate.literals import Value
from floeplan.predicate.rows.arrow_columns import Comparable, Resolver, Rows, columns_of, comparable, typed_columns_of
from floeplan.predicate.rows.types import BOOLEAN, STRING, Vector, cast, is_number, normalize
from floeplan.predicate.spark_text import Interval
from floeplan.predicate.stats import to_mask
from floeplan.text import excerpt
from floeplan.vectors import Mask, arrow, flags, signed, without_nulls

if TYPE_CHECKING:
    from sqlglot import exp

Combine: TypeAlias = Callable[[pa.ChunkedArray, pa.ChunkedArray], pa.ChunkedArray]


def evaluate_rows(expr: ir.IrExpr, table: pa.Table, columns: Schema | Resolver) -> pa.ChunkedArray:
    """Evaluate the predicate on every row: a boolean array with null for NULL.

    Args:
        expr: The predicate, bound by field id.
        table: The rows.
        columns: The schema whose field ids the predicate uses, or a function from field id to the column's data.
    """
    if isinstance(columns, Schema):
        return _Evaluation(table, columns_of(table, columns), typed_columns_of(table, columns)).answer(expr)
    return _Evaluation(table, columns, columns).answer(expr)


def matching_mask(expr: ir.IrExpr, table: pa.Table, columns: Schema | Resolver) -> Mask:
    """Which rows evaluate to TRUE."""
    return to_mask(evaluate_rows(expr, table, columns).combine_chunks())


def filter_rows(expr: ir.IrExpr, table: pa.Table, columns: Schema | Resolver) -> pa.Table:
    """Return the rows that evaluate to TRUE, in order."""
    return table if isinstance(expr, ir.TrueExpr) else table.filter(evaluate_rows(expr, table, columns))


class _Evaluation:
    """Evaluates one predicate on one table; each column is prepared once."""

    def __init__(self, table: pa.Table, resolve: Resolver, resolve_typed: Resolver) -> None:
        self._table = table
        self._resolve = resolve
        self._resolve_typed = resolve_typed
        self._ready: dict[ir.Column, Comparable] = {}

    def answer(self, expr: ir.IrExpr) -> pa.ChunkedArray:
        match expr:
            case ir.And(operands):
                return self._combine(operands, pc.and_kleene, decisive=False)
            case ir.Or(operands):
                return self._combine(operands, pc.or_kleene, decisive=True)
            case ir.Not(operand):
                return pc.invert(self.answer(operand))
            case ir.TrueExpr():
                return self._constant(True)
            case ir.FalseExpr():
                return self._constant(False)
            case ir.NullExpr():
                return self._constant(None)
            case ir.Transformed(source=source):
                return self.answer(source)
            case ir.Bounded(piece=piece, negated=negated):
                return pc.invert(self.answer(piece)) if negated else self.answer(piece)
            case ir.Opaque(_, _, ir.IrExpr() as leaf):
                return self._leaf(leaf)
            case ir.Opaque(_, _, expression):
                return evaluate_condition(expression, self._table, self._resolve_typed)
        return self._leaf(expr)

    def _encoded_leaf(self, leaf: ir.IrExpr, column: ir.Column, data: pa.ChunkedArray) -> pa.ChunkedArray:
        """The answer of each row by that of its dictionary value; a null row has the answer of a null value."""
        answers = []
        for chunk in data.chunks:
            values = chunk.dictionary
            with_null = pa.concat_arrays([values, pa.nulls(1, values.type)])
            rows, held = pa.table([with_null], ["values"]), {column.field_id: with_null}
            one = _Evaluation(rows, held.__getitem__, self._resolve_typed)
            answer = one._leaf(leaf).combine_chunks()
            # NumPy looks truth values up four times as fast as Arrow takes them, and compares faster still.
            indices = signed(without_nulls(chunk.indices, len(values)))
            unknown = flags(answer.is_null())
            nulls = unknown.take(indices) if unknown[: len(values) + bool(chunk.null_count)].any() else None
            true = to_mask(answer)
            hits = np.flatnonzero(true).astype(indices.dtype)  # of another type, all indices would be converted
            answers.append(arrow(indices == hits[0] if len(hits) == 1 else true.take(indices), nulls))
        return pa.chunked_array(answers, type=pa.bool_())

    def _combine(self, operands: tuple[ir.IrExpr, ...], combine: Combine, *, decisive: bool) -> pa.ChunkedArray:
        """Combine operands; those with opaque pieces last, and only on the rows that are still undecided."""
        guarded = [operand for operand in operands if has_opaque(operand)]
        plain = [operand for operand in operands if not has_opaque(operand)]
        answer = reduce(combine, map(self.answer, plain)) if plain else self._constant(not decisive)
        for operand in guarded:
            undecided = pc.fill_null(pc.not_equal(answer, scalar(decisive, pa.bool_())), scalar(True, pa.bool_()))
            answer = combine(answer, self._only_on(undecided.combine_chunks(), operand))
        return answer

    def _only_on(self, mask: pa.Array, expr: ir.IrExpr) -> pa.ChunkedArray:
        """The answer on the rows of the mask, and NULL on the others."""
        if mask.true_count == len(mask):
            return self.answer(expr)
        rows = self._table.select([]).filter(mask)
        part = _Evaluation(rows, lambda i: self._resolve(i).filter(mask), lambda i: self._resolve_typed(i).filter(mask))
        answer = part.answer(expr).combine_chunks()
        return pa.chunked_array([pc.replace_with_mask(pa.nulls(len(mask), pa.bool_()), mask, answer)])

    def _leaf(self, leaf: ir.IrExpr) -> pa.ChunkedArray:
        column = getattr(leaf, "column", None)
        if column is not None and (data := self._encoded(column)) is not None:
            return self._encoded_leaf(leaf, column, data)
        match leaf:
            case ir.Cmp(column, CmpOp.NULL_SAFE_EQ, value):
                return pc.fill_null(_compare(self._column(column), CmpOp.EQ, value), False)
            case ir.Cmp(column, op, value):
                return _compare(self._column(column), op, value)
            case ir.BloomEq(column, value):
                return _compare(self._column(column), CmpOp.EQ, value)
            case ir.Between(column, low, high, inclusive):
                above, below = (CmpOp.GE, CmpOp.LE) if inclusive else (CmpOp.GT, CmpOp.LT)
                data = self._column(column)
                return pc.and_kleene(_compare(data, above, low), _compare(data, below, high))
            case ir.InList(column, values) | ir.BloomInList(column, values):
                answer = _is_in(self._column(column), values)
            case ir.StartsWith(column, prefix):
                answer = pc.starts_with(self._column(column).values, prefix.encode())
            case ir.IsNull(column):
                answer = pc.is_null(self._column(column).values)
            case ir.IsNaN(column):
                data = self._column(column)
                answer = pc.fill_null(pc.is_nan(data.values), False) if data.is_float else self._constant(False)
            case _:
                raise AssertionError(f"no row semantics for {type(leaf).__name__}")
        return pc.invert(answer) if getattr(leaf, "negated", False) else answer

    def _encoded(self, column: ir.Column) -> pa.ChunkedArray | None:
        """The data of a column, if it is encoded with dictionaries that have fewer values than rows."""
        if column in self._ready:
            return None
        data = self._resolve(column.field_id)
        if not isinstance(data, pa.ChunkedArray) or not pt.is_dictionary(data.type):
            return None
        return data if sum(len(chunk.dictionary) for chunk in data.chunks) < len(data) else None

    def _column(self, column: ir.Column) -> Comparable:
        if column not in self._ready:
            self._ready[column] = comparable(column, self._resolve(column.field_id))
        return self._ready[column]

    def _constant(self, value: bool | None) -> pa.ChunkedArray:
        return pa.chunked_array([pa.repeat(scalar(value, pa.bool_()), self._table.num_rows)])


def _compare(data: Comparable, op: CmpOp, value: Value) -> pa.ChunkedArray:
    """Compare with a literal; "greater" is "not at or below", which puts NaN above everything."""
    if isinstance(value, float) and math.isnan(value):
        return _compare_nan(data, op)
    values, literal = data.align(value)
    if op in (CmpOp.GT, CmpOp.GE):
        return pc.invert((pc.less_equal if op is CmpOp.GT else pc.less)(values, literal))
    function = {CmpOp.EQ: pc.equal, CmpOp.NE: pc.not_equal, CmpOp.LT: pc.less, CmpOp.LE: pc.less_equal}[op]
    return function(values, literal)


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
    return pc.if_else(pc.is_valid(data.values), answer, scalar(None, pa.bool_()))


@dataclass(frozen=True, slots=True)
class SqlExpression:
    """A parsed expression whose columns are placeholders that hold field ids."""

    tree: exp.Expr
    text: str


def evaluate_condition(expression: object, table: pa.Table, resolve: Resolver) -> pa.ChunkedArray:
    """Evaluate the expression of an opaque piece on every row of the table.

    Args:
        expression: What ``Opaque.expression`` holds.
        table: The rows; only their number is used.
        resolve: The data of a column by field id, in the Arrow type of the column.
    """
    if not isinstance(expression, SqlExpression):
        raise UnsupportedError(f"a {type(expression).__name__} cannot be evaluated on rows")
    rows = Rows(table.num_rows, resolve)
    answer = evaluate_sql(expression, rows)
    if isinstance(answer, Interval) or answer.type not in (BOOLEAN, pa.null()):
        raise TypeMismatchError(f"{expression.text} is not a condition")
    return pa.chunked_array([rows.spread(answer).cast(BOOLEAN)])


def evaluate_sql(expression: SqlExpression, rows: Rows) -> Vector | Interval:
    """Evaluate an expression of any type; a constant stays a scalar."""
    # Imported late: plain predicates need no sqlglot, whose import takes as long as that of the rest of a first read.
    from sqlglot import exp

    from floeplan.predicate.rows.nodes import evaluate

    try:
        return evaluate(expression.tree, rows)
    except TypeMismatchError:
        raise
    except (BadInputError, pa.ArrowInvalid) as error:
        reason = str(error).partition("\n")[0]
        error_type = BadInputError if expression.tree.find(exp.Placeholder) is None else EvaluationError
        raise error_type(
            f"cannot evaluate {excerpt(expression.text)}: {reason}", context={"text": expression.text}
        ) from error
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedError(f"{expression.text} cannot be evaluated outside Spark") from error


@dataclass(frozen=True, slots=True)
class ValueExpression:
    """A compiled expression and the fields it reads."""

    expression: SqlExpression
    field_ids: tuple[int, ...]

    def reworded(self, change: Callable[[str], str]) -> ValueExpression:
        """The same expression with its text changed, for an engine that reads the text."""
        return replace(self, expression=replace(self.expression, text=change(self.expression.text)))

    def evaluate(self, rows: int, resolve: Resolver) -> pa.Array:
        """Its value on every row, in the evaluator's type."""
        over = Rows(rows, resolve)
        value = evaluate_sql(self.expression, over)
        if isinstance(value, Interval):
            raise TypeMismatchError(f"{self.expression.text} is an interval and cannot be stored")
        return over.spread(value)


def store(values: pa.Array, type_: pa.DataType, field: NestedField, text: str) -> pa.Array:
    """Cast values to the Arrow type of the column they are assigned to."""
    if values.type == type_:
        return values
    evaluator_type = STRING if isinstance(type_, pa.UuidType) else normalize(pa.nulls(0, type_)).type
    if not _storable(values.type, evaluator_type):
        given = str(values.type).removeprefix("large_")
        raise TypeMismatchError(
            f"{text} is {given} and cannot be stored in column {field.name}, which is {field.field_type}; write a cast",
            context={"column": field.name, "type": str(field.field_type)},
        )
    try:
        if pt.is_nested(type_) or pt.is_null(values.type):
            return values.cast(type_)
        if isinstance(type_, pa.UuidType):
            raise UnsupportedError("text cannot be stored as a UUID outside Spark")
        return cast(values, evaluator_type).cast(type_)
    except UnsupportedError:
        raise
    except (FloeplanError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise TypeMismatchError(
            f"{text} does not fit column {field.name}, which is {field.field_type}: {reason}",
            context={"column": field.name, "type": str(field.field_type)},
        ) from error


def _storable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether Spark's ANSI mode assigns one type to the other without an explicit cast."""
    if source == target or pt.is_null(source):
        return True
    if pt.is_nested(source) or pt.is_nested(target):
        return bool(pt.is_nested(source) and pt.is_nested(target))
    if target == STRING or (is_number(source) and is_number(target)):
        return True
    return all(pt.is_date(type_) or pt.is_timestamp(type_) for type_ in (source, target))

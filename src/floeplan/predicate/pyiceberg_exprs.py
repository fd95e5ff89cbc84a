"""Compile PyIceberg expressions into the IR, so that they match the rows that PyIceberg's own scan returns.

PyIceberg filters rows with Arrow, whose results differ from Spark's in three points. The IR reproduces them:

* ``NotIn`` matches nulls, all other comparisons do not; ``NotNaN`` does not match nulls.
* ``>`` and ``>=`` do not match NaN (for Spark, NaN is the largest value), but the negations of ``<=`` and ``<`` do.
* A literal for a float column is rounded to float before it is compared.

Negations are pushed to the leaves during compilation, so each leaf states exactly the rows it matches. Literals are
coerced as in SQL; in addition, an integer for a date, time or timestamp column is its internal value, as in PyIceberg.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pyiceberg import expressions as ice
from pyiceberg.expressions import literals as ice_literals
from pyiceberg.types import DoubleType, FloatType, StringType, TimeType

from floeplan.errors import BadInputError, TypeMismatchError
from floeplan.predicate import casts
from floeplan.predicate.build import and_, negate, or_
from floeplan.predicate.casts import TEMPORAL_UNIT, NeedsRows, Term
from floeplan.predicate.ir import FALSE, TRUE, CmpOp, Column, InList, IrExpr, IsNaN, IsNull, StartsWith
from floeplan.predicate.literals import Kind, Literal, literal_of
from floeplan.predicate.names import Names

_COMPARISONS: dict[type, CmpOp] = {
    ice.EqualTo: CmpOp.EQ,
    ice.NotEqualTo: CmpOp.NE,
    ice.LessThan: CmpOp.LT,
    ice.LessThanOrEqual: CmpOp.LE,
    ice.GreaterThan: CmpOp.GT,
    ice.GreaterThanOrEqual: CmpOp.GE,
    ice.BoundEqualTo: CmpOp.EQ,
    ice.BoundNotEqualTo: CmpOp.NE,
    ice.BoundLessThan: CmpOp.LT,
    ice.BoundLessThanOrEqual: CmpOp.LE,
    ice.BoundGreaterThan: CmpOp.GT,
    ice.BoundGreaterThanOrEqual: CmpOp.GE,
}
_KINDS: tuple[tuple[type, Kind], ...] = (
    (ice_literals.DateLiteral, Kind.DATE),
    (ice_literals.TimeLiteral, Kind.TIME),
    (ice_literals.TimestampLiteral, Kind.TIMESTAMP),
)


def compile_pyiceberg(expression: ice.BooleanExpression, names: Names, *, negated: bool = False) -> IrExpr:
    """Compile an expression, bound or not, or its negation."""
    match expression:
        case ice.AlwaysTrue():
            return FALSE if negated else TRUE
        case ice.AlwaysFalse():
            return TRUE if negated else FALSE
        case ice.Not():
            return compile_pyiceberg(expression.child, names, negated=not negated)
        case ice.And() | ice.Or():
            join = and_ if isinstance(expression, ice.And) != negated else or_
            return join(*(compile_pyiceberg(operand, names, negated=negated) for operand in _operands(expression)))
        case ice.UnboundPredicate() | ice.BoundPredicate():
            return _predicate(expression, names, negated)
    raise BadInputError(f"a PyIceberg {type(expression).__name__} cannot be used as a predicate")


def _operands(expression: ice.And | ice.Or) -> list[ice.BooleanExpression]:
    """The operands of nested ANDs or ORs, flattened without recursion: PyIceberg nests one level per operand."""
    kind = type(expression)
    stack: list[ice.BooleanExpression] = [expression]
    operands: list[ice.BooleanExpression] = []
    while stack:
        node = stack.pop()
        if isinstance(node, kind):
            stack += [node.right, node.left]
        else:
            operands.append(node)
    return operands


def _predicate(predicate: Any, names: Names, negated: bool) -> IrExpr:
    column = _column(predicate.term, names)
    try:
        match predicate:
            case ice.IsNull() | ice.BoundIsNull():
                return IsNull(column, negated)
            case ice.NotNull() | ice.BoundNotNull():
                return IsNull(column, not negated)
            case ice.IsNaN() | ice.BoundIsNaN():
                return _is_nan(column, negated)
            case ice.NotNaN() | ice.BoundNotNaN():
                return _is_nan(column, not negated)
            case ice.In() | ice.BoundIn():
                return _in(column, predicate.literals, negated)
            case ice.NotIn() | ice.BoundNotIn():
                return _in(column, predicate.literals, not negated)
            case ice.StartsWith() | ice.BoundStartsWith():
                return _starts_with(column, predicate.literal, negated)
            case ice.NotStartsWith() | ice.BoundNotStartsWith():
                return _starts_with(column, predicate.literal, not negated)
        return _compare(column, _COMPARISONS[type(predicate)], predicate.literal, negated)
    except NeedsRows as reason:
        raise TypeMismatchError(f"{predicate}: {reason}; use a literal of the column's type") from None


def _column(term: object, names: Names) -> Column:
    if isinstance(term, ice.BoundReference):
        return names.find_id(term.field.field_id, term.field.name)
    if isinstance(term, ice.Reference):
        return names.find_dotted(term.name)
    raise BadInputError(f"a PyIceberg term of type {type(term).__name__} cannot be used in a predicate")


def _is_float(column: Column) -> bool:
    return isinstance(column.type, FloatType | DoubleType)


def _is_nan(column: Column, negated: bool) -> IrExpr:
    if not _is_float(column):
        raise TypeMismatchError(f"column {column} is {column.type} and never NaN; IsNaN needs a float or double column")
    return and_(IsNull(column, negated=True), IsNaN(column, negated=True)) if negated else IsNaN(column)


def _compare(column: Column, op: CmpOp, literal: ice_literals.Literal[Any], negated: bool) -> IrExpr:
    expr = casts.compare(Term(column, column.type), op, _literal(column, literal))
    if op in (CmpOp.GT, CmpOp.GE) and _is_float(column):
        expr = and_(expr, IsNaN(column, negated=True))
    return negate(expr) if negated else expr


def _in(column: Column, literals: set[ice_literals.Literal[Any]], negated: bool) -> IrExpr:
    ordered = sorted((_literal(column, literal) for literal in literals), key=lambda literal: str(literal.value))
    expr = casts.in_list(Term(column, column.type), ordered)
    return or_(negate(expr), IsNull(column)) if negated else expr


def _starts_with(column: Column, literal: ice_literals.Literal[Any], negated: bool) -> IrExpr:
    if not isinstance(column.type, StringType) or not isinstance(literal.value, str):
        raise TypeMismatchError(
            f"StartsWith needs a string column and a string, not {column.type} and {literal.value!r}"
        )
    prefix = str(literal_of(literal.value).value)
    return StartsWith(column, prefix, negated) if prefix else InList(column, (), not negated)


def _literal(column: Column, literal: ice_literals.Literal[Any]) -> Literal:
    value = literal.value
    unit = TEMPORAL_UNIT.get(type(column.type))
    for class_, kind in _KINDS:
        if isinstance(literal, class_) and isinstance(value, int):
            return Literal(kind, value if kind is Kind.DATE else value * 1000)
    if unit is not None and isinstance(value, int):
        return Literal(Kind.TIME if isinstance(column.type, TimeType) else Kind.TIMESTAMP, value * unit)
    if isinstance(column.type, FloatType) and isinstance(value, int | float):
        with np.errstate(over="ignore"):
            return Literal(Kind.DOUBLE, float(np.float32(value)))
    return literal_of(value)

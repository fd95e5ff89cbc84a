"""Compile predicates: one entry point for SQL text, PyIceberg expressions, tuples and IR.

Text is compiled by ``plain_sql`` if it is plain, and by ``sql_compiler`` otherwise, which imports sqlglot.

Tuples are those of pyarrow: ``("a", ">", 1)``, a list of them joined by AND, a list of lists joined by OR of ANDs. The
operators are ``= == != <> < <= > >= <=> in "not in" like "not like" "is null" "is not null"``. Values are Python or
NumPy values; ``None`` is NULL, so ``("a", "=", None)`` matches no row, as in SQL.

PyIceberg expressions match the rows that PyIceberg's own scan returns. It filters rows with Arrow, whose results differ
from Spark's in three points. The IR reproduces them:

* ``NotIn`` matches nulls, all other comparisons do not; ``NotNaN`` does not match nulls.
* ``>`` and ``>=`` do not match NaN (for Spark, NaN is the largest value), but the negations of ``<=`` and ``<`` do.
* A literal for a float column is rounded to float before it is compared.

Negations are pushed to the leaves during compilation, so each leaf states exactly the rows it matches. Literals are
coerced as in SQL; in addition, an integer for a date, time or timestamp column is its internal value, as in PyIceberg.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from pyiceberg import expressions as ice
from pyiceberg.expressions import literals as ice_literals
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, StringType, TimeType

from floeplan.errors import BadInputError, TypeMismatchError
from floeplan.predicate import casts
from floeplan.predicate.build import and_, negate, or_, without_opaque
from floeplan.predicate.casts import TEMPORAL_UNIT, NeedsRows, Term
from floeplan.predicate.ir import FALSE, TRUE, Cmp, CmpOp, Column, InList, IrExpr, IsNaN, IsNull, StartsWith
from floeplan.predicate.literals import Kind, Literal, literal_of
from floeplan.predicate.names import Names
from floeplan.predicate.plain_sql import compile_plain
from floeplan.predicate.spark_text import parse_like

if TYPE_CHECKING:
    from floeplan.predicate.sql_compiler import CompileError

_OPERATORS = {op.value: op for op in CmpOp} | {"==": CmpOp.EQ, "<>": CmpOp.NE}

_ICE_OPERATORS: dict[type, CmpOp] = {
    ice.EqualTo: CmpOp.EQ,
    ice.NotEqualTo: CmpOp.NE,
    ice.LessThan: CmpOp.LT,
    ice.LessThanOrEqual: CmpOp.LE,
    ice.GreaterThan: CmpOp.GT,
    ice.GreaterThanOrEqual: CmpOp.GE,
}
_NEGATIVE = (ice.NotNull, ice.NotNaN, ice.NotIn, ice.NotStartsWith)

PredicateSource: TypeAlias = "str | ice.BooleanExpression | IrExpr | Sequence[object]"
"""Spark-SQL text, a PyIceberg expression, IR, or tuples ``(column, operator, value)`` as in pyarrow."""


@dataclass(frozen=True, slots=True)
class CompileResult:
    """A compiled predicate.

    Args:
        predicate: The whole predicate; it matches exactly the rows of its source.
        prunable: The predicate without its opaque pieces, for statistics; every matching row satisfies it.
        residual: What remains to be evaluated on the rows of a kept container that is not proven to match as a whole.
        errors: One entry per opaque piece.
    """

    predicate: IrExpr
    prunable: IrExpr
    residual: IrExpr
    errors: tuple[CompileError, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "prunable": str(self.prunable),
            "residual": str(self.residual),
            "errors": [error.to_dict() for error in self.errors],
        }


def compile_predicate(source: PredicateSource, schema: Schema, *, case_sensitive: bool = True) -> CompileResult:
    """Compile a predicate against a schema.

    Args:
        source: The predicate, in any supported form.
        schema: The schema that resolves its column names; the result is bound by field id.
        case_sensitive: Whether column names must match exactly; if not, a name that matches two columns is an error.

    Raises:
        UnknownColumnError: A column is not in the schema.
        TypeMismatchError: A literal cannot be compared with its column.
        PredicateSyntaxError: The text is not a predicate.
    """
    names = Names(schema, case_sensitive)
    errors: tuple[CompileError, ...] = ()
    if isinstance(source, str):
        predicate, errors = _compile_text(source, names)
    elif isinstance(source, ice.BooleanExpression):
        predicate = _compile_pyiceberg(source, names)
    elif isinstance(source, IrExpr):
        predicate = source
    elif isinstance(source, list | tuple):
        predicate = _compile_tuples(source, names)
    else:
        raise BadInputError(
            f"unsupported predicate type: {type(source).__name__}; "
            "use SQL text, a PyIceberg expression or (column, op, value)"
        )
    return CompileResult(predicate, without_opaque(predicate), predicate, errors)


def _compile_text(sql: str, names: Names) -> tuple[IrExpr, tuple[CompileError, ...]]:
    plain = compile_plain(sql, names)
    if plain is not None:
        return plain, ()
    from floeplan.predicate.sql_compiler import compile_sql  # sqlglot takes 150 ms to import

    return compile_sql(sql, names)


def _compile_tuples(source: Sequence[object], names: Names) -> IrExpr:
    """Compile one tuple, a list of tuples, or a list of lists of tuples."""
    if isinstance(source, tuple) and source and isinstance(source[0], str):
        return _compile_tuple(source, names)
    if source and all(isinstance(group, list) for group in source):
        groups: Sequence[list[object]] = source  # type: ignore[assignment]
        return or_(*(and_(*(_compile_tuple(leaf, names) for leaf in group)) for group in groups))
    return and_(*(_compile_tuple(leaf, names) for leaf in source)) if source else TRUE


def _compile_tuple(leaf: object, names: Names) -> IrExpr:
    if not isinstance(leaf, tuple) or len(leaf) not in (2, 3) or not all(isinstance(part, str) for part in leaf[:2]):
        raise BadInputError(f"a predicate tuple is (column, operator, value), not {leaf!r}")
    column = names.find_dotted(leaf[0])
    term = Term(column, column.type)
    operator = " ".join(leaf[1].lower().split())
    if operator in ("is null", "is not null"):
        return IsNull(column, negated=operator == "is not null")
    if len(leaf) == 2:
        raise BadInputError(f"the predicate tuple {leaf!r} has no value")
    value, positive = leaf[2], operator.removeprefix("not ")
    try:
        if operator in _OPERATORS:
            return casts.compare(term, _OPERATORS[operator], literal_of(value))
        if positive == "in":
            if isinstance(value, str | bytes) or not isinstance(value, Collection):
                raise BadInputError(f"IN on column {column} needs a list of values, not {value!r}")
            expr = casts.in_list(term, map(literal_of, value))
        elif positive == "like":
            expr = _like(column, value)
        else:
            raise BadInputError(
                f"unknown operator {operator!r} on column {column}; use one of {', '.join(_OPERATORS)}, in, not in, "
                "like, not like, is null, is not null"
            )
        return negate(expr) if operator.startswith("not ") else expr
    except NeedsRows as reason:
        message = f"{leaf!r}: {reason}; use a value of the column's type"
        raise TypeMismatchError(message, context={"column": leaf[0]}) from None


def _like(column: Column, value: object) -> IrExpr:
    if not isinstance(column.type, StringType) or not isinstance(value, str):
        raise TypeMismatchError(f"LIKE needs a string column and a string pattern, not {column.type} and {value!r}")
    pattern = parse_like(value)
    if pattern.is_plain:
        return Cmp(column, CmpOp.EQ, pattern.prefix)
    if pattern.is_prefix:
        return StartsWith(column, pattern.prefix) if pattern.prefix else InList(column, (), negated=True)
    raise BadInputError(f"LIKE {value!r} has a wildcard before its end; write the predicate as SQL text")


def _compile_pyiceberg(expression: ice.BooleanExpression, names: Names, *, negated: bool = False) -> IrExpr:
    """Compile an expression, bound or not, or its negation."""
    match expression:
        case ice.AlwaysTrue():
            return FALSE if negated else TRUE
        case ice.AlwaysFalse():
            return TRUE if negated else FALSE
        case ice.Not():
            return _compile_pyiceberg(expression.child, names, negated=not negated)
        case ice.And() | ice.Or():
            # PyIceberg nests one level per operand: flattened without recursion.
            stack: list[ice.BooleanExpression] = [expression]
            operands: list[ice.BooleanExpression] = []
            while stack:
                node = stack.pop()
                if isinstance(node, type(expression)):
                    stack += [node.right, node.left]
                else:
                    operands.append(node)
            join = and_ if isinstance(expression, ice.And) != negated else or_
            return join(*(_compile_pyiceberg(operand, names, negated=negated) for operand in operands))
        case ice.UnboundPredicate() | ice.BoundPredicate():
            try:
                return _compile_ice_predicate(expression, names, negated)
            except NeedsRows as reason:
                raise TypeMismatchError(f"{expression}: {reason}; use a literal of the column's type") from None
    raise BadInputError(f"a PyIceberg {type(expression).__name__} cannot be used as a predicate")


def _compile_ice_predicate(predicate: Any, names: Names, negated: bool) -> IrExpr:
    """Compile a predicate, bound or not, or its negation."""
    kind = predicate.as_unbound if isinstance(predicate, ice.BoundPredicate) else type(predicate)
    if kind in _NEGATIVE:  # each is the negation of the positive form that the cases below name
        negated = not negated
    reference = predicate.term
    if isinstance(reference, ice.BoundReference):
        column = names.find_id(reference.field.field_id, reference.field.name)
    elif isinstance(reference, ice.Reference):
        column = names.find_dotted(reference.name)
    else:
        raise BadInputError(f"a PyIceberg term of type {type(reference).__name__} cannot be used in a predicate")
    is_float, term = isinstance(column.type, FloatType | DoubleType), Term(column, column.type)
    if kind in (ice.IsNull, ice.NotNull):
        return IsNull(column, negated)
    if kind in (ice.IsNaN, ice.NotNaN):
        if not is_float:
            message = f"column {column} is {column.type} and never NaN; IsNaN needs a float or double column"
            raise TypeMismatchError(message)
        return and_(IsNull(column, negated=True), IsNaN(column, negated=True)) if negated else IsNaN(column)
    if kind in (ice.In, ice.NotIn):
        literals = [_ice_literal(column, literal) for literal in predicate.literals]
        expr = casts.in_list(term, sorted(literals, key=lambda literal: str(literal.value)))
        return or_(negate(expr), IsNull(column)) if negated else expr
    if kind in (ice.StartsWith, ice.NotStartsWith):
        value = predicate.literal.value
        if not isinstance(column.type, StringType) or not isinstance(value, str):
            raise TypeMismatchError(f"StartsWith needs a string column and a string, not {column.type} and {value!r}")
        prefix = str(literal_of(value).value)
        return StartsWith(column, prefix, negated) if prefix else InList(column, (), not negated)
    op = _ICE_OPERATORS[kind]
    expr = casts.compare(term, op, _ice_literal(column, predicate.literal))
    if op in (CmpOp.GT, CmpOp.GE) and is_float:
        expr = and_(expr, IsNaN(column, negated=True))
    return negate(expr) if negated else expr


def _ice_literal(column: Column, literal: ice_literals.Literal[Any]) -> Literal:
    value = literal.value
    match literal:
        case ice_literals.DateLiteral():
            return Literal(Kind.DATE, value)
        case ice_literals.TimeLiteral():
            return Literal(Kind.TIME, value * 1000)
        case ice_literals.TimestampLiteral():
            return Literal(Kind.TIMESTAMP, value * 1000)
    unit = TEMPORAL_UNIT.get(type(column.type))
    if unit is not None and isinstance(value, int):
        return Literal(Kind.TIME if isinstance(column.type, TimeType) else Kind.TIMESTAMP, value * unit)
    if isinstance(column.type, FloatType) and isinstance(value, int | float):
        with np.errstate(over="ignore"):
            return Literal(Kind.DOUBLE, float(np.float32(value)))
    return literal_of(value)

"""Compile predicates: one entry point for SQL text, PyIceberg expressions, tuples and IR.

Tuples are those of pyarrow: ``("a", ">", 1)``, a list of them joined by AND, a list of lists joined by OR of ANDs. The
operators are ``= == != <> < <= > >= <=> in "not in" like "not like" "is null" "is not null"``. Values are Python or
NumPy values; ``None`` is NULL, so ``("a", "=", None)`` matches no row, as in SQL.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.types import StringType

from floeplan.errors import BadInputError, TypeMismatchError
from floeplan.predicate import casts
from floeplan.predicate.build import and_, negate, or_, without_opaque
from floeplan.predicate.casts import NeedsRows, Term
from floeplan.predicate.ir import TRUE, Cmp, CmpOp, Column, InList, IrExpr, IsNull, StartsWith
from floeplan.predicate.literals import literal_of
from floeplan.predicate.names import Names
from floeplan.predicate.pyiceberg_exprs import compile_pyiceberg
from floeplan.predicate.spark_text import parse_like
from floeplan.predicate.sql.compiler import CompileError, compile_sql

_OPERATORS = {op.value: op for op in CmpOp} | {"==": CmpOp.EQ, "<>": CmpOp.NE}

PredicateSource: TypeAlias = "str | BooleanExpression | IrExpr | Sequence[object]"
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
        predicate, errors = compile_sql(source, names)
    elif isinstance(source, BooleanExpression):
        predicate = compile_pyiceberg(source, names)
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
    operator = " ".join(leaf[1].lower().split())
    if operator in ("is null", "is not null"):
        return IsNull(column, negated=operator == "is not null")
    if len(leaf) == 2:
        raise BadInputError(f"the predicate tuple {leaf!r} has no value")
    try:
        return _compare(column, operator, leaf[2])
    except NeedsRows as reason:
        raise TypeMismatchError(
            f"{leaf!r}: {reason}; use a value of the column's type", context={"column": leaf[0]}
        ) from None


def _compare(column: Column, operator: str, value: object) -> IrExpr:
    term = Term(column, column.type)
    if operator in _OPERATORS:
        return casts.compare(term, _OPERATORS[operator], literal_of(value))
    positive = operator.removeprefix("not ")
    if positive == "in":
        if isinstance(value, str | bytes) or not isinstance(value, Collection):
            raise BadInputError(f"IN on column {column} needs a list of values, not {value!r}")
        expr = casts.in_list(term, map(literal_of, value))
    elif positive == "like":
        expr = _like(column, value)
    else:
        raise BadInputError(
            f"unknown operator {operator!r} on column {column}; use one of {', '.join(_OPERATORS)}, in, not in, like, "
            "not like, is null, is not null"
        )
    return negate(expr) if operator.startswith("not ") else expr


def _like(column: Column, value: object) -> IrExpr:
    if not isinstance(column.type, StringType) or not isinstance(value, str):
        raise TypeMismatchError(f"LIKE needs a string column and a string pattern, not {column.type} and {value!r}")
    pattern = parse_like(value)
    if pattern.is_plain:
        return Cmp(column, CmpOp.EQ, pattern.prefix)
    if pattern.is_prefix:
        return StartsWith(column, pattern.prefix) if pattern.prefix else InList(column, (), negated=True)
    raise BadInputError(f"LIKE {value!r} has a wildcard before its end; write the predicate as SQL text")

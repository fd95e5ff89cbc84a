"""Compiling predicates: one entry for SQL text, PyIceberg expressions, tuples and IR.

``CompileResult`` says three things: the predicate itself, with pieces that no statistics can answer as ``Opaque``
leaves; the prunable part, which every matching row satisfies; and the residual, what is still to be evaluated on the
rows of a container that is not proven to match as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema

from floeplan.errors import BadInputError
from floeplan.predicate.build import without_opaque
from floeplan.predicate.diagnostics import CompileError
from floeplan.predicate.ir import IrExpr
from floeplan.predicate.names import Names
from floeplan.predicate.pyiceberg_exprs import compile_pyiceberg
from floeplan.predicate.sql import compile_sql
from floeplan.predicate.tuples import compile_tuples

PredicateSource: TypeAlias = "str | BooleanExpression | IrExpr | Sequence[object]"
"""Spark-SQL text, a PyIceberg expression, IR, or tuples ``(column, operator, value)`` as pyarrow takes them."""


@dataclass(frozen=True, slots=True)
class CompileResult:
    """A compiled predicate.

    Args:
        predicate: The whole predicate; row for row the same as its source.
        prunable: What statistics can be asked: the predicate weakened by leaving opaque pieces out.
        residual: What must still be evaluated on rows of a container that is kept but not proven.
        errors: One entry per piece that stayed opaque.
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
        source: The predicate in any of its forms.
        schema: The schema whose names it uses; the result is bound by field id.
        case_sensitive: Whether column names must match exactly; otherwise a name that fits two columns is an error.

    Raises:
        UnknownColumnError: A name the schema does not have.
        TypeMismatchError: A literal that cannot be compared with its column.
        PredicateSyntaxError: Text that is no predicate.
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
        predicate = compile_tuples(source, names)
    else:
        raise BadInputError(
            f"{type(source).__name__} is no predicate; use SQL text, a PyIceberg expression or (column, op, value)"
        )
    return CompileResult(predicate, without_opaque(predicate), predicate, errors)

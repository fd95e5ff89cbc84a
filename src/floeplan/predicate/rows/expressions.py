"""Row evaluation of what the IR cannot express: SQL expressions on Arrow data, with Spark's (ANSI) semantics.

Rule: the answer on every row is Spark's, with NULL as null. AND, OR, CASE, IF and COALESCE ask their later operands
only on the rows that get there, so that ``b <> 0 AND a / b > 1`` does not divide by zero. Time zones are UTC.

Fail-safe: a function outside the known set, or a case where the result could differ from Spark's, raises
``UnsupportedError`` naming it; an overflow or a malformed value raises ``EvaluationError`` where a row has it and
``BadInputError`` where the expression itself has. No row is ever guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.types import NestedField
from sqlglot import exp

from floeplan.errors import (
    BadInputError,
    EvaluationError,
    FloeplanError,
    TypeMismatchError,
    UnsupportedError,
)
from floeplan.predicate.rows.arrow_columns import Resolver
from floeplan.predicate.rows.intervals import Interval
from floeplan.predicate.rows.nodes import Resolve, Rows, evaluate
from floeplan.predicate.rows.types import BOOLEAN, STRING, Vector, cast, entering, is_number
from floeplan.text import excerpt


@dataclass(frozen=True, slots=True)
class SqlExpression:
    """A parsed expression whose columns are placeholders that hold field ids."""

    tree: exp.Expr
    text: str


def evaluate_opaque(expression: object, table: pa.Table, resolve: Resolve) -> pa.ChunkedArray:
    """Evaluate an opaque predicate on every row of the table.

    Args:
        expression: What ``Opaque.expression`` holds.
        table: The rows; only their number is used here.
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
    try:
        return evaluate(expression.tree, rows)
    except TypeMismatchError:
        raise
    except (BadInputError, pa.ArrowInvalid) as error:
        reason = str(error).partition("\n")[0]
        at_fault = BadInputError if expression.tree.find(exp.Placeholder) is None else EvaluationError
        raise at_fault(
            f"cannot evaluate {excerpt(expression.text)}: {reason}", context={"text": expression.text}
        ) from error
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedError(f"{expression.text} cannot be evaluated outside Spark") from error


# Expressions of any type: what a SET clause or a list of values assigns, evaluated on Arrow rows.
#
# Rule: the value on every row is Spark's (see ``floeplan.predicate.rows.expressions``), stored as Spark's ANSI
# store assignment
# stores it: numbers into numbers when they fit, anything of a single value into text, dates and timestamps into each
# other, everything else only into its own type.
#
# Fail-safe: an assignment that could lose something is an error naming the column; an expression that only Spark can
# evaluate raises ``UnsupportedError``.


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


def stored(values: pa.Array, type_: pa.DataType, field: NestedField, text: str) -> pa.Array:
    """Values as a column of an Arrow type holds them."""
    if values.type == type_:
        return values
    if not _storable(values.type, type_):
        raise TypeMismatchError(
            f"{text} is {values.type} and cannot be stored in column {field.name}, which is {field.field_type}; "
            "write a cast",
            context={"column": field.name, "type": str(field.field_type)},
        )
    try:
        return _cast(values, type_)
    except UnsupportedError:
        raise
    except (FloeplanError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise TypeMismatchError(
            f"{text} does not fit column {field.name}, which is {field.field_type}: {reason}",
            context={"column": field.name, "type": str(field.field_type)},
        ) from error


def _storable(source: pa.DataType, target: pa.DataType) -> bool:
    """Spark's ANSI rule of what may be assigned without a cast."""
    entered = _entered_type(target)
    if source == entered or pt.is_null(source):
        return True
    if pt.is_nested(source) or pt.is_nested(target):
        return bool(pt.is_nested(source) and pt.is_nested(target))
    if is_number(source) and is_number(entered):
        return True
    if entered == STRING:
        return True
    days = [pt.is_date(t) or pt.is_timestamp(t) for t in (source, entered)]
    return all(days)


def _cast(values: pa.Array, type_: pa.DataType) -> pa.Array:
    if pt.is_nested(type_) or pt.is_null(values.type):
        return values.cast(type_)
    if isinstance(type_, pa.UuidType):
        raise UnsupportedError("text cannot be stored as a UUID outside Spark")
    inside: Vector = cast(values, _entered_type(type_))
    return inside.cast(type_)


def _entered_type(type_: pa.DataType) -> pa.DataType:
    """The evaluator's type of a column type."""
    return entering(pa.nulls(0, type_)).type if not isinstance(type_, pa.UuidType) else STRING

"""SQL expressions on Arrow rows: conditions that the IR cannot express, and values that SET and INSERT assign.

Values are stored by Spark's ANSI store assignment: numbers into numbers if they fit, any single value into text, dates
and timestamps into each other, everything else only into its own type.

Fail-safe: an assignment that could lose something raises ``TypeMismatchError`` naming the column; an expression that
only Spark can evaluate raises ``UnsupportedError``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.types import NestedField
from sqlglot import exp

from floeplan.errors import BadInputError, EvaluationError, FloeplanError, TypeMismatchError, UnsupportedError
from floeplan.predicate.rows.arrow_columns import Resolver, Rows
from floeplan.predicate.rows.intervals import Interval
from floeplan.predicate.rows.nodes import evaluate
from floeplan.predicate.rows.types import BOOLEAN, STRING, Vector, cast, is_number, normalize
from floeplan.text import excerpt


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
        raise TypeMismatchError(
            f"{text} is {values.type} and cannot be stored in column {field.name}, which is {field.field_type}; "
            "write a cast",
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

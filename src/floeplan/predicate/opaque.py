"""Row evaluation of what the IR cannot express: SQL expressions on Arrow data, with Spark's (ANSI) semantics.

Rule: the answer on every row is Spark's, with NULL as null. AND, OR, CASE, IF and COALESCE ask their later operands
only on the rows that get there, so that ``b <> 0 AND a / b > 1`` does not divide by zero. Time zones are UTC.

Fail-safe: a function outside the known set, or a case where the result could differ from Spark's, raises
``UnsupportedError`` naming it; an overflow or a malformed value raises ``EvaluationError`` where a row has it and
``BadInputError`` where the expression itself has. No row is ever guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from floeplan.errors import BadInputError, EvaluationError, TypeMismatchError, UnsupportedError
from floeplan.predicate.intervals import Interval
from floeplan.predicate.opaque_nodes import Resolve, Rows, evaluate
from floeplan.predicate.opaque_types import BOOLEAN, Vector
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

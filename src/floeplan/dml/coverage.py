"""Whether Arrow can evaluate expressions as Spark would, found out on one row of nulls.

An expression outside the known set says so whatever the row holds. Everything else, a wrong type or a value that does
not fit, is for the rows themselves to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
from pyiceberg.schema import Schema

from floeplan.dml.assign import Assignments
from floeplan.errors import FloeplanError, UnsupportedError
from floeplan.predicate.arrow_columns import typed_columns_of
from floeplan.predicate.ir import IrExpr
from floeplan.predicate.rows import evaluate_rows
from floeplan.scan.projection import arrow_schema


def arrow_evaluates(schema: Schema, conditions: Iterable[IrExpr], assigned: Iterable[Assignments] = ()) -> bool:
    """Whether these can be evaluated on Arrow rows of a schema."""
    row = pa.table([pa.nulls(1, field.type) for field in arrow_schema(schema)], names=[f.name for f in schema.fields])
    resolve = typed_columns_of(row, schema)
    asked = [_Question(evaluate_rows, condition, row, schema) for condition in conditions]
    asked += [_Question(item.value.evaluate, 1, resolve) for group in assigned for item in group.items]
    return all(question() for question in asked)


class _Question:
    """A call that either is supported or is not."""

    def __init__(self, call: Callable[..., object], *args: object) -> None:
        self._call, self._args = call, args

    def __call__(self) -> bool:
        try:
            self._call(*self._args)
        except UnsupportedError:
            return False
        except FloeplanError:
            return True
        return True

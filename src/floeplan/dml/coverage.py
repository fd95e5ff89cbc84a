"""Whether Arrow can evaluate expressions as Spark would, found out on one row of nulls.

An expression outside the known set says so whatever the row holds. Everything else, a wrong type or a value that does
not fit, is for the rows themselves to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from floeplan.dml.assign import Assignments
from floeplan.errors import FloeplanError, UnsupportedError
from floeplan.predicate.ir import IrExpr
from floeplan.predicate.rows import evaluate_rows


def arrow_evaluates(
    schemas: Sequence[Schema], conditions: Iterable[IrExpr], assigned: Iterable[Assignments | None] = ()
) -> bool:
    """Whether these can be evaluated on Arrow rows with the columns of some schemas."""
    row = pa.table({"row": pa.nulls(1)})

    def nulls(field_id: int) -> pa.ChunkedArray:
        schema = next(schema for schema in schemas if field_id in schema._lazy_id_to_field)
        return pa.chunked_array([pa.nulls(1, schema_to_pyarrow(schema.find_type(field_id)))])

    asked = [_Question(evaluate_rows, condition, row, nulls) for condition in conditions]
    groups = [group for group in assigned if group is not None]
    asked += [_Question(item.value.evaluate, 1, nulls) for group in groups for item in group.items]
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

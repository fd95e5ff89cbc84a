"""Orders of rows: what to sort by, and the rows in that order.

Values compare as Spark compares them: NaN equals itself and is larger than every number, -0.0 equals 0.0, strings and
bytes by their bytes. Nulls stand first or last as the order says, whatever its direction. Rows that are equal in the
order stay as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import IdentityTransform

from floeplan.errors import InvalidOptionError, UnsupportedError
from floeplan.predicate.ir import Column
from floeplan.predicate.names import Names
from floeplan.rewrite.options import RewriteOptions
from floeplan.rewrite.order_bytes import comparable


@dataclass(frozen=True, slots=True)
class SortKey:
    """One column of an order."""

    column: Column
    descending: bool = False
    nulls_first: bool = True


def rewrite_order(options: RewriteOptions, table: Table) -> tuple[SortKey, ...]:
    """The columns a rewrite sorts or clusters by: those it was told, else the table's order; none when it does not."""
    if options.by:
        return parse_order(options.by, table.schema(), case_sensitive=options.case_sensitive)
    return table_order(table) if options.strategy == "sort" else ()


def parse_order(terms: Sequence[str], schema: Schema, *, case_sensitive: bool = True) -> tuple[SortKey, ...]:
    """The order that texts such as ``ts desc nulls last`` ask for; nulls are first unless descending, as in Spark."""
    names = Names(schema, case_sensitive)
    return tuple(_parse_term(term, names) for term in terms)


def _parse_term(term: str, names: Names) -> SortKey:
    words = term.split()
    lowered = [word.lower() for word in words]
    descending = lowered[1:2] == ["desc"]
    rest = lowered[2:] if lowered[1:2] in (["asc"], ["desc"]) else lowered[1:]
    nulls = {(): not descending, ("nulls", "first"): True, ("nulls", "last"): False}
    if not words or tuple(rest) not in nulls:
        raise InvalidOptionError(
            f"cannot sort by {term!r}; write it as column [asc|desc] [nulls first|nulls last]", context={"by": term}
        )
    return SortKey(names.find_dotted(words[0]), descending, nulls[tuple(rest)])


def table_order(table: Table) -> tuple[SortKey, ...]:
    """The sort order of a table; without one, or with one that sorts by transforms of columns, there is none to use."""
    order = table.sort_order()
    if order.is_unsorted:
        raise InvalidOptionError("the table has no sort order; say by which columns to sort")
    for field in order.fields:
        if not isinstance(field.transform, IdentityTransform):
            raise UnsupportedError(f"the table's sort order uses {field.transform}; say by which columns to sort")
    names = Names(table.schema())
    return tuple(
        SortKey(
            names.find_id(field.source_id, str(field.source_id)),
            field.direction is SortDirection.DESC,
            field.null_order is NullOrder.NULLS_FIRST,
        )
        for field in order.fields
    )


def sorted_rows(columns: Sequence[pa.ChunkedArray], keys: Sequence[SortKey]) -> pa.Array:
    """The numbers of the rows in order; rows that are equal in it stay as they were.

    Args:
        columns: The columns of the keys.
        keys: How each of them is ordered.
    """
    made: dict[str, pa.Array] = {}
    order = []
    for number, (column, key) in enumerate(zip(columns, keys, strict=True)):
        if column.null_count:
            made[f"null{number}"] = pc.is_null(column)
            order.append((f"null{number}", "descending" if key.nulls_first else "ascending"))
        made[f"value{number}"] = comparable(column.combine_chunks())
        order.append((f"value{number}", "descending" if key.descending else "ascending"))
    made["row"] = pa.array(np.arange(len(columns[0])))
    order.append(("row", "ascending"))
    return pc.sort_indices(pa.table(made), sort_keys=order)

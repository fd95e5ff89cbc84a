"""What a rewrite sorts or clusters by, as one of Iceberg's sort orders."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform

from floeplan.errors import InvalidOptionError
from floeplan.predicate.names import Names
from floeplan.rewrite.plan.options import RewriteOptions

NOT_OF_THE_TABLE = -1
"""The id of an order that the table does not have: files sorted by it do not state their order."""


def rewrite_order(options: RewriteOptions, table: Table) -> SortOrder:
    """The columns a rewrite was told, else the table's own order if it sorts; unsorted when it does neither."""
    if options.by:
        return parse_order(options.by, table.schema(), case_sensitive=options.case_sensitive)
    if options.strategy != "sort":
        return UNSORTED_SORT_ORDER
    if table.metadata.sort_order().is_unsorted:
        raise InvalidOptionError("the table has no sort order; say by which columns to sort")
    return table.metadata.sort_order()


def parse_order(terms: Sequence[str], schema: Schema, *, case_sensitive: bool = True) -> SortOrder:
    """The order that texts such as ``ts desc nulls last`` ask for; nulls are first unless descending, as in Spark."""
    names = Names(schema, case_sensitive)
    return SortOrder(*(_parse_term(term, names) for term in terms), order_id=NOT_OF_THE_TABLE)


def _parse_term(term: str, names: Names) -> SortField:
    words = term.split()
    lowered = [word.lower() for word in words]
    descending = lowered[1:2] == ["desc"]
    rest = lowered[2:] if lowered[1:2] in (["asc"], ["desc"]) else lowered[1:]
    nulls_first = {(): not descending, ("nulls", "first"): True, ("nulls", "last"): False}
    if not words or tuple(rest) not in nulls_first:
        raise InvalidOptionError(
            f"cannot sort by {term!r}; write it as column [asc|desc] [nulls first|nulls last]", context={"by": term}
        )
    return SortField(
        names.find_dotted(words[0]).field_id,
        IdentityTransform(),
        SortDirection.DESC if descending else SortDirection.ASC,
        NullOrder.NULLS_FIRST if nulls_first[tuple(rest)] else NullOrder.NULLS_LAST,
    )

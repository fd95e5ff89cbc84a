"""``sort``: rows of a group sorted by the given columns, or by the table's own sort order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.sorting import SortOrder

from floeplan.errors import InvalidOptionError
from floeplan.rewrite.strategies.base import ByColumns, Strategy, parse_order


@dataclass(frozen=True, slots=True)
class SortStrategy(Strategy):
    """Sorts rows; files sorted by the table's own order state its ``sort_order_id``."""

    def sort_order(self, by: Sequence[str], table: Table, *, case_sensitive: bool = True) -> SortOrder:
        if by:
            return parse_order(by, table.schema(), case_sensitive=case_sensitive)
        if table.metadata.sort_order().is_unsorted:
            raise InvalidOptionError("the table has no sort order; pass the columns to sort by")
        return table.metadata.sort_order()


SORT = SortStrategy("sort", by=ByColumns.OPTIONAL)

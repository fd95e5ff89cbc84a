"""Adapters from Parquet's statistics to the one table the evaluator reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from floeplan.parquet.footer import ParquetFooter
from floeplan.parquet.page_index import PageIndex
from floeplan.parquet.schema import LeafColumn
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import BloomProbe, ColumnStats, StatsTable


def row_group_stats(
    footer: ParquetFooter,
    wanted: Iterable[Column],
    leaves: Mapping[int, LeafColumn] | None = None,
    bloom: BloomProbe | None = None,
) -> StatsTable:
    """Statistics of all row groups, by the field ids of the wanted columns.

    A column that is not in the file is null in every row; callers whose schema gives it another initial default
    replace that entry.

    Args:
        footer: The file's footer.
        wanted: Columns with the type the predicate asks for.
        leaves: The file's leaf for each field id; the footer's own mapping when not given.
        bloom: Passed on into the table.
    """
    raise NotImplementedError


def page_column_stats(index: PageIndex, wanted: Column, footer: ParquetFooter) -> ColumnStats:
    """What each page of one column may hold, in the order of the page index."""
    raise NotImplementedError

"""Adapters from Parquet statistics to the ``StatsTable`` of the evaluator, for row groups and for pages.

Fail-safe: what a file does not state is unknown and keeps the rows: a missing null count, NaN in floating-point columns
(Parquet does not count them), a column of a type that cannot be read as the predicate's. Contradicting counts make the
row group or page unknown. A column that is not in the file is null in every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from pyiceberg.types import PrimitiveType

from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.page_index import PageIndex
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.values import Family, RawValues, Side, comparable, decode_bound, family, usable_statistics
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import BloomProbe, ColumnStats, StatsTable
from floeplan.vectors import Ints


def row_group_stats(
    footer: ParquetFooter,
    wanted: Iterable[Column],
    leaves: Mapping[int, LeafColumn] | None = None,
    bloom: BloomProbe | None = None,
) -> StatsTable:
    """Statistics of all row groups, by field id.

    A column that is not in the file is null in every row; callers whose schema gives it an initial default replace that
    entry.

    Args:
        footer: The file's footer.
        wanted: The columns, with the types of the predicate.
        leaves: The file's leaf for each field id; the footer's own mapping by default.
        bloom: Added to the table.
    """
    rows = footer.row_group_rows
    found: dict[int, ColumnStats] = {}
    for column in wanted:
        leaf = (footer.leaf_by_id if leaves is None else leaves).get(column.field_id)
        if leaf is not None:
            if comparable(leaf, column.type):
                usable = usable_statistics(footer, footer.chunks(leaf))
                found[column.field_id] = _column_stats(
                    leaf, column.type, rows, usable.null_count, usable.lower, usable.upper
                )
        elif leaves is not None or column.field_id not in footer.field_ids:
            found[column.field_id] = ColumnStats.all_null(rows > 0)
    return StatsTable(len(rows), found, rows > 0, bloom)


def page_column_stats(index: PageIndex, wanted: Column) -> ColumnStats | None:
    """Statistics of the pages of one column, in the order of the page index; ``None`` when nothing is known."""
    if not comparable(index.leaf, wanted.type):
        return None
    return _column_stats(index.leaf, wanted.type, index.row_count, index.null_count, index.lower, index.upper)


def _column_stats(
    leaf: LeafColumn, wanted: PrimitiveType, rows: Ints, nulls: Ints, lower: RawValues, upper: RawValues
) -> ColumnStats:
    nans = np.full_like(rows, -1 if family(wanted) is Family.FLOAT else 0)  # Parquet does not count NaN
    return ColumnStats.from_counts(
        rows,
        np.zeros_like(rows) if leaf.max_def == 0 else nulls,
        nans,
        decode_bound(leaf, wanted, lower, Side.LOWER),
        decode_bound(leaf, wanted, upper, Side.UPPER),
    )

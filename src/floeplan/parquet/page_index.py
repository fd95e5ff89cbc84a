"""Pages of a column: where they are, which rows they hold and what is known of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from floeplan.parquet.footer import Numbers, ParquetFooter
from floeplan.parquet.schema import LeafColumn
from floeplan.parquet.source import ByteSource
from floeplan.predicate.tristate import Mask


@dataclass(frozen=True, slots=True)
class PageIndex:
    """The pages of one column over some row groups, in file order.

    A row group whose offset index is absent or cannot be trusted counts as one page that holds all its rows, with
    ``offset`` and ``size`` -1 and nothing known of its values.
    """

    leaf: LeafColumn
    row_groups: Numbers
    located: Mask
    """Per row group: whether its pages can be read one by one."""
    page_starts: Numbers
    """Per row group, and once more at the end: its pages are ``page_starts[i]:page_starts[i + 1]``."""
    row_group: Numbers
    """Per page: its row group."""
    first_row: Numbers
    """Per page: its first row, counted from the start of its row group."""
    row_count: Numbers
    offset: Numbers
    size: Numbers
    """Per page: bytes in the file, page header included."""
    described: Mask
    """Per page: whether the column index says anything of its values."""
    null_page: Mask
    null_count: Numbers
    min_value: tuple[bytes | None, ...]
    max_value: tuple[bytes | None, ...]


def read_page_indexes(
    source: ByteSource,
    footer: ParquetFooter,
    leaves: Sequence[LeafColumn],
    row_groups: Sequence[int] | Numbers,
    *,
    described: Sequence[LeafColumn] | None = None,
) -> Mapping[int, PageIndex]:
    """The page indexes of the leaves over the row groups, by leaf index, fetched in one round trip.

    Args:
        source: The file.
        footer: Its footer.
        leaves: Columns whose pages are wanted.
        row_groups: Row groups, ascending.
        described: The leaves whose statistics are wanted too; all when not given. The others' column indexes are not
            fetched.
    """
    raise NotImplementedError

"""A whole column of numbers read straight from its pages, for small files of which there are many.

Fail-safe: a column that is not stored in plain 64-bit numbers, one for each row, is left to the decoder (``None``), and
so is one with anything wrong about it.
"""

from __future__ import annotations

import numpy as np

from floeplan.parquet.data_pages import PLAIN, UNUSUAL, kernel, read_pages
from floeplan.parquet.footer import Numbers, ParquetFooter
from floeplan.parquet.page_codec import PageCodec
from floeplan.parquet.schema import LeafColumn, Physical
from floeplan.parquet.source import ByteSource

_STORED = np.dtype("<i8")


def plain_numbers(source: ByteSource, footer: ParquetFooter, leaf: LeafColumn) -> Numbers | None:
    """All values of a column, if they can be had so."""
    places = [footer.place(leaf, group) for group in range(footer.num_row_groups)]
    simple = leaf.physical is Physical.INT64 and not leaf.max_rep and leaf.max_def <= 1 and kernel is not None
    if not simple or not all(PageCodec.knows(place.codec) for place in places):
        return None
    read = source.read_ranges([(place.start, place.size) for place in places])
    parts = []
    try:
        for place, data, rows in zip(places, read, footer.row_group_rows.tolist(), strict=True):
            for page in read_pages(data, PageCodec(place.codec), leaf.max_def, place.uncompressed_size, rows):
                if (
                    page.encoding != PLAIN
                    or page.present is not None
                    or len(page.values) != page.rows * _STORED.itemsize
                ):
                    return None
                parts.append(page.values.view(_STORED))
    except UNUSUAL:
        return None
    numbers = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    return numbers if len(numbers) == footer.num_rows else None

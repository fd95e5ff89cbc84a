"""The pages of Parquet files, to measure decompression alone: a floor of reading their columns."""

from __future__ import annotations

from collections.abc import Iterator

from floeplan.parquet.footer.footer import read_footer
from floeplan.parquet.footer.thrift import integer
from floeplan.parquet.pages.data_pages import page_header
from floeplan.parquet.source import open_source


def compressed_pages(path: str) -> Iterator[tuple[str, memoryview, int]]:
    """The column of each page of a file, its compressed bytes without the header, and its uncompressed size."""
    source = open_source(path)
    footer = read_footer(source)
    for leaf in footer.leaves:
        for group in range(footer.num_row_groups):
            place = footer.chunk_location(leaf, group)
            chunk, at = source.read_ranges([(place.start, place.size)])[0], 0
            while at < len(chunk):
                header, start = page_header(chunk, at)
                at = start + integer(header, 3)
                yield leaf.path[0], chunk[start:at], integer(header, 2)

"""Reading row groups of which nearly every row is wanted: fetched and decoded whole, unwanted rows taken out after.

Single pages (``pages``) pay where some of them can be left out. Where rows are wanted all over a row group, which is
what reading a file to rewrite it looks like, asking for pages would skip none and cost a decoder for every column.
From a store the columns are fetched at once; a file of this machine is left to the decoder to read.

Fail-safe: what decodes to another number of rows than the footer promises is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floeplan.errors import UnknownFileError
from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.logical_types import Physical
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.thrift import corrupt
from floeplan.parquet.pages.codec import PageCodec
from floeplan.parquet.pages.data_pages import PLAIN, UNSUPPORTED_PAGE, kernel, read_pages
from floeplan.parquet.prune.selection import RowSelection, distinct
from floeplan.parquet.source import ByteSource, LocalSource, Range
from floeplan.vectors import Ints

LONGEST_GAP = 1024
"""Unwanted rows in a row: with more of them a page may have no wanted row."""
WAVE_BYTES = 128 * 1024 * 1024
_FEW_RUNS = 32
_WORTH_THREADS = 4 * 1024 * 1024


def selects_every_page(footer: ParquetFooter, selection: RowSelection) -> bool:
    """Whether no page could be left out of the row groups that hold the selected rows."""
    if not selection or selection.row_count == footer.num_rows:
        return bool(selection)
    gaps = _rows_of(footer, _touched(footer, selection)).difference(selection)
    return int(gaps.counts.max(initial=0)) <= LONGEST_GAP


def read_row_groups(
    source: ByteSource, footer: ParquetFooter, columns: Sequence[str | int], selection: RowSelection
) -> pa.Table:
    """The selected rows of some columns, which the file must have; fields stand in the order of the file."""
    leaves = sorted({leaf for column in columns for leaf in footer.leaves_of_column(column)})
    everything = selection.row_count == footer.num_rows
    tables = []
    for groups in _waves(footer, leaves, _touched(footer, selection)):
        if everything:
            tables.append(_decoded(source, footer, leaves, groups))
            continue
        rows = _rows_of(footer, groups)
        wanted = selection.intersect(rows)
        table = _decoded(source, footer, leaves, groups)
        inside = wanted.relative_to(footer.first_rows[groups], footer.row_group_rows[groups])
        tables.append(_taken(table, inside))
    return pa.concat_tables(tables)


def _touched(footer: ParquetFooter, selection: RowSelection) -> Ints:
    return np.flatnonzero(selection.overlaps(footer.first_rows, footer.row_group_rows))


def _rows_of(footer: ParquetFooter, groups: Ints) -> RowSelection:
    return RowSelection.from_runs(footer.first_rows[groups], footer.row_group_rows[groups])


def _waves(footer: ParquetFooter, leaves: Sequence[int], groups: Ints) -> Iterator[Ints]:
    """Row groups in parts that stay within the bound."""
    if footer.file_size <= WAVE_BYTES:
        return iter([groups])
    sizes = sum((footer.chunks(leaf).total_compressed_size[groups] for leaf in leaves), np.zeros(len(groups)))
    wave = (np.cumsum(sizes) // WAVE_BYTES).astype(np.int64)
    return (groups[wave == number] for number in distinct(wave))


def _decoded(source: ByteSource, footer: ParquetFooter, leaves: Sequence[int], groups: Ints) -> pa.Table:
    threads = footer.file_size >= _WORTH_THREADS and _bytes(footer, leaves, groups) >= _WORTH_THREADS
    try:
        file = pq.ParquetFile(
            _readable(source, footer, leaves, groups),
            coerce_int96_timestamp_unit="us",
            binary_type=pa.large_binary(),
            pre_buffer=False,
        )
        table = file.reader.read_row_groups(groups.tolist(), column_indices=list(leaves), use_threads=threads)
    except FileNotFoundError:
        raise UnknownFileError(f"{footer.file}: no such file", context={"file": footer.file}) from None
    except (OSError, pa.ArrowException) as error:
        raise corrupt(footer.file, f"its row groups cannot be decoded: {error}") from None
    expected = int(footer.row_group_rows[groups].sum())
    if table.num_rows != expected:
        raise corrupt(footer.file, f"row groups hold {table.num_rows} rows instead of {expected}")
    return table


def _readable(source: ByteSource, footer: ParquetFooter, leaves: Sequence[int], groups: Ints) -> pa.NativeFile:
    if isinstance(source, LocalSource):
        return pa.OSFile(source.name)
    chunks = [footer.chunks(leaf) for leaf in leaves]
    ranges = [(int(chunk.start[at]), int(chunk.total_compressed_size[at])) for at in groups for chunk in chunks]
    return pa.PythonFile(_Pieces(source, ranges), mode="r")


def _bytes(footer: ParquetFooter, leaves: Sequence[int], groups: Ints) -> int:
    return sum(int(footer.chunks(leaf).total_compressed_size[groups].sum()) for leaf in leaves)


def _taken(table: pa.Table, rows: RowSelection) -> pa.Table:
    if rows.row_count == table.num_rows:
        return table
    if len(rows) > _FEW_RUNS:
        return table.filter(pa.array(rows.to_mask(table.num_rows)))
    return pa.concat_tables([table.slice(start, count) for start, count in rows.to_pairs()])


class _Pieces:
    """A file for pyarrow, of which some pieces were fetched at once; whatever else is asked for is fetched then."""

    closed = False

    def __init__(self, source: ByteSource, ranges: Sequence[Range]) -> None:
        self._source, self._at = source, 0
        self._pieces = dict(zip(ranges, source.read_ranges(ranges), strict=True))

    def read(self, length: int = -1) -> memoryview:
        """The bytes that follow; a piece is given away when it is read."""
        left = self._source.size - self._at
        span = (self._at, left if length < 0 else min(length, left))
        self._at += span[1]
        found = self._pieces.pop(span, None)
        return self._source.read_ranges([span])[0] if found is None else found

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        self._at = offset + (0, self._at, self._source.size)[whence]
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def seekable(self) -> bool:
        """Always."""
        return True

    def readable(self) -> bool:
        """Always."""
        return True

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """The source belongs to another."""


# A whole column of numbers read straight from its pages, for small files of which there are many.
#
# Fail-safe: a column that is not stored in plain 64-bit numbers, one for each row, is left to the decoder
# (``None``), and
# so is one with anything wrong about it.


_STORED = np.dtype("<i8")


def read_plain_int64(source: ByteSource, footer: ParquetFooter, leaf: LeafColumn) -> Ints | None:
    """All values of a column, if they can be had so."""
    places = [footer.chunk_location(leaf, group) for group in range(footer.num_row_groups)]
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
    except UNSUPPORTED_PAGE:
        return None
    numbers = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    return numbers if len(numbers) == footer.num_rows else None

"""Reads whole row groups and drops unselected rows after decoding.

Reading single pages (``pages``) pays when some can be skipped. When the selected rows are spread over all pages, as
when a file is rewritten, it would skip none and create one decoder per column. From an object store the columns are
fetched in one round trip; a local file is read by the decoder itself.

Fail-safe: row groups that decode to another number of rows than the footer states are an error.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floeplan.errors import UnknownFileError
from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.logical_types import Physical
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.pages.data_pages import PLAIN, UNSUPPORTED_PAGE, PageCodec, kernel, read_pages
from floeplan.parquet.prune.selection import RowSelection, distinct
from floeplan.parquet.read.pages import WORTH_THREADS, take_rows
from floeplan.parquet.source import ByteSource, LocalSource, Range, corrupt
from floeplan.vectors import Ints

LONGEST_GAP = 1024
"""Consecutive unselected rows: a longer gap may cover a whole page."""
WAVE_BYTES = 128 * 1024 * 1024
"""Compressed bytes to hold in memory at once."""


def selects_every_page(footer: ParquetFooter, selection: RowSelection) -> bool:
    """Whether no page of the row groups with selected rows could be skipped."""
    if not selection or selection.row_count == footer.num_rows:
        return bool(selection)
    gaps = _rows_of(footer, _touched(footer, selection)).difference(selection)
    return int(gaps.counts.max(initial=0)) <= LONGEST_GAP


def read_row_groups(
    source: ByteSource, footer: ParquetFooter, columns: Sequence[str | int], selection: RowSelection
) -> pa.Table:
    """The selected rows of columns that the file has; fields are in the order of the file."""
    leaves = sorted({leaf for column in columns for leaf in footer.leaves_of_column(column)})
    everything = selection.row_count == footer.num_rows
    tables = []
    for groups in _waves(footer, leaves, _touched(footer, selection)):
        table = _decode(source, footer, leaves, groups)
        if not everything:
            wanted = selection.intersect(_rows_of(footer, groups))
            table = take_rows(table, wanted.relative_to(footer.first_rows[groups], footer.row_group_rows[groups]))
        tables.append(table)
    return pa.concat_tables(tables)


def _touched(footer: ParquetFooter, selection: RowSelection) -> Ints:
    return np.flatnonzero(selection.overlaps(footer.first_rows, footer.row_group_rows))


def _rows_of(footer: ParquetFooter, groups: Ints) -> RowSelection:
    return RowSelection.from_runs(footer.first_rows[groups], footer.row_group_rows[groups])


def _waves(footer: ParquetFooter, leaves: Sequence[int], groups: Ints) -> Iterator[Ints]:
    """Split row groups into parts of at most ``WAVE_BYTES``."""
    if footer.file_size <= WAVE_BYTES:
        return iter([groups])
    sizes = sum((footer.chunks(leaf).total_compressed_size[groups] for leaf in leaves), np.zeros(len(groups)))
    wave = (np.cumsum(sizes) // WAVE_BYTES).astype(np.int64)
    return (groups[wave == number] for number in distinct(wave))


def _decode(source: ByteSource, footer: ParquetFooter, leaves: Sequence[int], groups: Ints) -> pa.Table:
    chunks = [footer.chunks(leaf) for leaf in leaves] if footer.file_size >= WORTH_THREADS else []
    threads = sum(int(chunk.total_compressed_size[groups].sum()) for chunk in chunks) >= WORTH_THREADS
    try:
        if isinstance(source, LocalSource):
            opened: pa.NativeFile = pa.OSFile(source.name)
        else:
            columns = [footer.chunks(leaf) for leaf in leaves]
            ranges = [(int(one.start[at]), int(one.total_compressed_size[at])) for at in groups for one in columns]
            opened = pa.PythonFile(_PrefetchedFile(source, ranges), mode="r")
        file = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us", binary_type=pa.large_binary(), pre_buffer=False)
        table = file.reader.read_row_groups(groups.tolist(), column_indices=list(leaves), use_threads=threads)
    except FileNotFoundError:
        raise UnknownFileError(f"{footer.file}: no such file", context={"file": footer.file}) from None
    except (OSError, pa.ArrowException) as error:
        raise corrupt(footer.file, f"its row groups cannot be decoded: {error}") from None
    expected = int(footer.row_group_rows[groups].sum())
    if table.num_rows != expected:
        raise corrupt(footer.file, f"row groups hold {table.num_rows} rows instead of {expected}")
    return table


class _PrefetchedFile(io.RawIOBase):
    """A seekable file for pyarrow that serves prefetched ranges, and fetches all other reads on demand."""

    def __init__(self, source: ByteSource, ranges: Sequence[Range]) -> None:
        self._source, self._at = source, 0
        self._pieces = dict(zip(ranges, source.read_ranges(ranges), strict=True))

    def read(self, length: int = -1) -> Any:
        """Read from the current position; a prefetched range is released when it is read."""
        left = self._source.size - self._at
        span = (self._at, left if length < 0 else min(length, left))
        self._at += span[1]
        found = self._pieces.pop(span, None)
        return self._source.read_ranges([span])[0] if found is None else found

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        self._at = offset + (0, self._at, self._source.size)[whence]
        return self._at

    def seekable(self) -> bool:
        """Always true."""
        return True

    def readable(self) -> bool:
        """Always true."""
        return True


_INT64 = np.dtype("<i8")


def read_plain_int64(source: ByteSource, footer: ParquetFooter, leaf: LeafColumn) -> Ints | None:
    """Read a whole INT64 column without a decoder, which saves most of the time on many small files.

    ``None``, for the decoder to read it, unless all pages are plain and supported and no row is null.
    """
    locations = [footer.chunk_location(leaf, group) for group in range(footer.num_row_groups)]
    simple = leaf.physical is Physical.INT64 and not leaf.max_rep and leaf.max_def <= 1 and kernel is not None
    if not simple or not all(PageCodec.knows(chunk.codec) for chunk in locations):
        return None
    read = source.read_ranges([(chunk.start, chunk.size) for chunk in locations])
    parts = []
    try:
        for chunk, data, rows in zip(locations, read, footer.row_group_rows.tolist(), strict=True):
            for page in read_pages(data, PageCodec(chunk.codec), leaf.max_def, chunk.uncompressed_size, rows):
                size = page.rows * _INT64.itemsize
                if page.encoding != PLAIN or page.present is not None or len(page.values) != size:
                    return None
                parts.append(page.values.view(_INT64))
    except UNSUPPORTED_PAGE:
        return None
    numbers = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    return numbers if len(numbers) == footer.num_rows else None

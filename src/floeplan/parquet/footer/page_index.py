"""Parquet's page index: the OffsetIndex (PageLocations) and the ColumnIndex (page statistics) of column chunks.

A column chunk has both, only the first, or neither. What a column index lacks is taken from the statistics of the
chunk, which hold for each of its pages.

Fail-safe: an offset index whose rows or offsets are out of order or outside the chunk, and a column index that does not
cover exactly the pages of the offset index, count as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from floeplan.errors import CorruptFileError
from floeplan.parquet.footer.footer import ColumnChunks, ParquetFooter
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.statistics import (
    RawStatistics,
    column_stats,
    comparable,
    has_known_order,
    reliable_null_counts,
    usable_statistics,
)
from floeplan.parquet.footer.thrift import (
    I32,
    I64,
    LIST,
    SCALAR,
    STRUCT,
    Each,
    Edit,
    Struct,
    encode_list_header,
    read_struct,
    splice,
)
from floeplan.parquet.source import ByteSource, Range, byte_ranges
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import ColumnStats
from floeplan.vectors import Ints, Mask

# By their ids in parquet.thrift. OffsetIndex: 1 page_locations (1 offset, 2 compressed_page_size, 3 first_row_index).
# ColumnIndex: 1 null_pages, 2 min_values, 3 max_values, 5 null_counts.
_OFFSET_SHAPE = {1: dict.fromkeys((1, 2, 3), SCALAR)}
_COLUMN_SHAPE = {1: None, 2: None, 3: None, 5: None}


@dataclass(frozen=True, slots=True)
class PageIndex(RawStatistics):
    """The pages of one column over some row groups, in file order, with the statistics of each page.

    A row group without a usable offset index counts as one page with all its rows, and ``offset`` and ``size`` -1.
    """

    leaf: LeafColumn
    row_groups: Ints
    has_offset_index: Mask
    """Per row group: whether its pages can be read one by one."""
    page_starts: Ints
    """Per row group, and once more at the end: its pages are ``page_starts[i]:page_starts[i + 1]``."""
    row_group: Ints
    """Per page: its row group."""
    first_row: Ints
    """Per page: its first row, counted from the start of its row group."""
    row_count: Ints
    offset: Ints
    size: Ints
    """Per page: bytes in the file, page header included."""
    has_column_index: Mask
    """Per row group: whether it has a usable column index."""


def read_page_indexes(
    source: ByteSource,
    footer: ParquetFooter,
    leaves: Iterable[LeafColumn],
    row_groups: Sequence[int] | Ints,
    *,
    with_statistics: Iterable[LeafColumn] | None = None,
) -> Mapping[int, PageIndex]:
    """The page indexes of the leaves over the row groups, by leaf index, fetched in one round trip.

    Args:
        source: The file.
        footer: Its footer.
        leaves: The columns.
        row_groups: Row groups, ascending.
        with_statistics: The leaves whose column index is fetched too; all of them by default.
    """
    leaves = tuple(leaves)
    groups = np.asarray(row_groups, dtype=np.int64)
    with_column_index = {leaf.index for leaf in (leaves if with_statistics is None else with_statistics)}
    data = iter(source.read_ranges(index_ranges(footer, leaves, groups, with_column_index)))
    indexes = {}
    for leaf in leaves:
        offset_indexes = [bytes(next(data)) for _ in groups]
        column_indexes = [bytes(next(data)) if leaf.index in with_column_index else b"" for _ in groups]
        indexes[leaf.index] = _assemble(footer, footer.chunks(leaf), groups, offset_indexes, column_indexes)
    return indexes


def index_ranges(
    footer: ParquetFooter, leaves: Iterable[LeafColumn], groups: Ints, with_column_index: Set[int]
) -> list[Range]:
    """The byte ranges of offset indexes and then column indexes, leaf by leaf; an absent index is an empty range."""
    ranges: list[Range] = []
    for leaf in leaves:
        chunks = footer.chunks(leaf)
        columns = [(chunks.offset_index_offset[groups], chunks.offset_index_length[groups])]
        if leaf.index in with_column_index:
            columns.append((chunks.column_index_offset[groups], chunks.column_index_length[groups]))
        for offsets, lengths in columns:
            absent = offsets < 0
            ranges += byte_ranges(np.where(absent, 0, offsets), np.where(absent, 0, lengths))
    return ranges


def _assemble(
    footer: ParquetFooter, chunks: ColumnChunks, groups: Ints, offset_indexes: list[bytes], column_indexes: list[bytes]
) -> PageIndex:
    located, counts, locations = _locate(footer, chunks, groups, offset_indexes)
    first_row, offset, size = locations
    page_starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    row_count = _until_next(first_row, page_starts, footer.row_group_rows[groups]) - first_row
    # Statistics of all pages, from the column index or else from the statistics of the chunk. A column index needs an
    # offset index, which gives the number of its pages.
    leaf, created_by = chunks.leaf, footer.created_by
    of_chunk, ordered = usable_statistics(footer, chunks), has_known_order(leaf, created_by)
    only_nulls, nulls = [np.zeros(0, dtype=np.bool_)], [np.zeros(0, dtype=np.int64)]
    has_column_index: list[bool] = []
    lower: list[bytes | None] = []
    upper: list[bytes | None] = []
    for group, encoded, count, is_located in zip(groups, column_indexes, counts.tolist(), located, strict=True):
        index = _decode_column_index(encoded, count) if is_located else None
        has_column_index.append(index is not None)
        if index is None:
            # Only "no nulls" and "nothing but nulls" of a chunk carry over to its pages.
            chunk_nulls = int(of_chunk.null_count[group])
            only_nulls.append(np.full(count, chunk_nulls == footer.row_group_rows[group]))
            nulls.append(np.full(count, 0 if chunk_nulls == 0 else -1))
        else:
            only_nulls.append(index[0])
            nulls.append(index[1].null_count)
        lower += [of_chunk.lower[group]] * count if index is None or not ordered else index[1].lower
        upper += [of_chunk.upper[group]] * count if index is None or not ordered else index[1].upper
    full, known = np.concatenate(only_nulls), np.concatenate(nulls)
    contradiction = full & (known >= 0) & (known != row_count)
    counted = np.where(contradiction, -1, np.where(full, row_count, known))
    return PageIndex(
        leaf=leaf,
        row_groups=groups,
        has_offset_index=located,
        page_starts=page_starts,
        row_group=np.repeat(groups, counts),
        first_row=first_row,
        row_count=row_count,
        offset=offset,
        size=size,
        has_column_index=np.array(has_column_index, dtype=np.bool_),
        null_count=reliable_null_counts(leaf, created_by, counted, row_count),
        lower=lower,
        upper=upper,
    )


def page_column_stats(index: PageIndex, wanted: Column) -> ColumnStats | None:
    """Statistics of the pages of one column, in the order of the page index; ``None`` when nothing is known."""
    if not comparable(index.leaf, wanted.type):
        return None
    return column_stats(index.leaf, wanted.type, index.row_count, index)


def _until_next(values: Ints, page_starts: Ints, ends: Ints) -> Ints:
    """For each page the value of the next page, or the end of its chunk."""
    following = np.append(values[1:], 0)
    following[page_starts[1:] - 1] = ends
    return following


def _locate(footer: ParquetFooter, chunks: ColumnChunks, groups: Ints, encoded: list[bytes]) -> tuple[Mask, Ints, Ints]:
    """Which chunks have a usable offset index, pages per chunk, and (first rows, offsets, sizes) of all pages.

    In a usable one the first page has row 0, rows ascend, and pages follow each other inside the chunk without overlap.
    A chunk without one is a single page.
    """
    tables = [_decode_offset_index(data) for data in encoded]
    rows, limit = footer.row_group_rows[groups], footer.footer_start
    start, end = chunks.start[groups], (chunks.start + chunks.total_compressed_size)[groups]
    while True:
        counts = np.array([len(table) for table in tables], dtype=np.int64)
        locations = np.ascontiguousarray(np.concatenate([_NO_PAGES, *tables]).T)
        first_row, offset, size = locations
        page_starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        located = np.array([table is not _ONE_PAGE for table in tables], dtype=np.bool_)
        fits = (offset >= 0) & (offset <= limit) & (size > 0) & (size <= limit)
        fits &= offset + size <= _until_next(offset, page_starts, np.minimum(end, limit))
        fits &= first_row <= _until_next(first_row, page_starts, rows)
        fits[page_starts[:-1]] &= (first_row[page_starts[:-1]] == 0) & (offset[page_starts[:-1]] >= start)
        bad = located & ~np.logical_and.reduceat(np.append(fits, True), page_starts[:-1])
        if not bad.any():
            return located, counts, locations
        # Replace the invalid ones and check again: the tables of all chunks are concatenated.
        tables = [_ONE_PAGE if is_bad else table for table, is_bad in zip(tables, bad.tolist(), strict=True)]


_NO_PAGES = np.zeros((0, 3), dtype=np.int64)
_ONE_PAGE = np.array([[0, -1, -1]], dtype=np.int64)


def _decode_offset_index(encoded: bytes) -> Ints:
    """First row, offset and size of each page; ``_ONE_PAGE`` when the index is unreadable."""
    locations: Any = _decode(encoded, _OFFSET_SHAPE).get(1)
    if not isinstance(locations, list) or set(map(type, locations)) != {dict}:
        return _ONE_PAGE
    try:
        table = np.array(list(map(itemgetter(3, 1, 2), locations)), dtype=np.int64)
    except (TypeError, KeyError, ValueError, OverflowError):
        return _ONE_PAGE
    return table if table.ndim == 2 else _ONE_PAGE


def _decode_column_index(encoded: bytes, pages: int) -> tuple[Mask, RawStatistics] | None:
    """The null pages and the statistics of all pages; ``None`` unless every required list has one element per page."""
    fields = _decode(encoded, _COLUMN_SHAPE)

    def values_of(field: int, kind: type) -> list[Any] | None:
        values: Any = fields.get(field)
        fits = isinstance(values, list) and len(values) == pages and set(map(type, values)) == {kind}
        return values if fits else None

    null_pages, lower, upper = values_of(1, bool), values_of(2, bytes), values_of(3, bytes)
    if null_pages is None or lower is None or upper is None:
        return None
    counts = values_of(5, int)  # null_counts is optional
    nulls = np.full(pages, -1, dtype=np.int64) if counts is None else np.array(counts, dtype=np.int64)
    if True in null_pages:
        # Readers must ignore the bounds of null pages, which are placeholders.
        lower = [None if empty else value for value, empty in zip(lower, null_pages, strict=True)]
        upper = [None if empty else value for value, empty in zip(upper, null_pages, strict=True)]
    return np.array(null_pages), RawStatistics(nulls, lower, upper)


def _decode(encoded: bytes, shape: Any) -> Struct:
    """Decode an index; empty when it is absent or invalid."""
    try:
        return read_struct(encoded, 0, shape, "page index", "")[0] if encoded else {}
    except CorruptFileError:
        return {}


# Writing offset indexes, vectorized: rewriting a file encodes one PageLocation per page of every column.

_SHIFTS = 7 * np.arange(10, dtype=np.uint64)
_PAGE_LOCATION_FIELDS = {1, 2, 3}
_LIST_FIRST = 1 << 4 | LIST
"""The first byte of an offset index: the header of field 1, a list."""


def encode_page_locations(offsets: Ints, sizes: Ints, first_rows: Ints) -> bytes:
    """Encode the list of PageLocations of an offset index."""
    count = len(offsets)
    columns = []
    for kind, values in ((I64, offsets), (I32, sizes), (I64, first_rows)):
        field = np.full((count, 1), 1 << 4 | kind, dtype=np.uint8)
        columns += [(field, np.ones((count, 1), dtype=np.bool_)), _varints(values)]
    columns.append((np.zeros((count, 1), dtype=np.uint8), np.ones((count, 1), dtype=np.bool_)))
    encoded, there = (np.concatenate(parts, axis=1) for parts in zip(*columns, strict=True))
    pages: bytes = encoded[there].tobytes()
    return encode_list_header(STRUCT, count) + pages


def encode_offset_index(offsets: Ints, sizes: Ints, first_rows: Ints) -> bytes:
    """Encode an offset index with only PageLocations."""
    return bytes([_LIST_FIRST]) + encode_page_locations(offsets, sizes, first_rows) + b"\0"


def shift_offset_index(encoded: bytes, distance: int, file: str) -> bytes:
    """Add ``distance`` to the page offsets of an offset index and keep everything else; an offset of 0 means none."""
    pages: Any = read_struct(encoded, 0, {1: None}, "offset index", file)[0].get(1)
    usual = encoded[0] == _LIST_FIRST and isinstance(pages, list)
    usual = usual and all(isinstance(page, dict) and page.keys() == _PAGE_LOCATION_FIELDS for page in pages)
    try:
        columns = np.array(list(map(itemgetter(1, 2, 3), pages)), dtype=np.int64) if usual else None
    except (TypeError, ValueError, OverflowError):
        columns = None
    if columns is None:  # other fields than those of PageLocation, or in another order: change only the offsets
        each: Edit = Each(lambda _: {1: lambda offset: offset + distance if offset > 0 else offset})
        return splice(encoded, {1: each}, "offset index", file)
    offsets, sizes, first_rows = columns.reshape(-1, 3).T
    behind = read_struct(encoded, 0, {1: ...}, "offset index", file)[0][1][-1]
    moved = np.where(offsets > 0, offsets + distance, offsets)
    return encoded[:1] + encode_page_locations(moved, sizes, first_rows) + encoded[behind:]


def _varints(values: Ints) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Zigzag varints: ten bytes per integer, and which of them are used."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)[:, None]
    left = zigzag >> _SHIFTS
    more = np.zeros(left.shape, dtype=np.bool_)
    more[:, :-1] = left[:, 1:] > 0
    there = np.ones(left.shape, dtype=np.bool_)
    there[:, 1:] = left[:, 1:] > 0
    return ((left & np.uint64(127)) | (more.astype(np.uint64) << np.uint64(7))).astype(np.uint8), there

"""Pages of a column: where they are, which rows they hold and what is known of their values.

A row group has an offset index (places and first rows) and a column index (statistics) for each column, or only the
first, or neither. Both are checked before they are used: an offset index whose rows or places are out of order or
outside the chunk, or a column index that does not speak of exactly the pages there are, counts as absent. What the
column index does not tell is taken from the statistics of the whole chunk, which hold for each of its pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from floeplan.errors import CorruptFileError
from floeplan.parquet.footer.footer import ColumnChunks, ParquetFooter
from floeplan.parquet.footer.schema import LeafColumn
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
from floeplan.parquet.footer.values import RawValues, has_known_order, reliable_null_counts, usable_statistics
from floeplan.parquet.source import ByteSource
from floeplan.vectors import Ints, Mask

_OFFSET_SHAPE = {1: dict.fromkeys((1, 2, 3), SCALAR)}
_COLUMN_SHAPE = {1: None, 2: None, 3: None, 5: None}


@dataclass(frozen=True, slots=True)
class PageIndex:
    """The pages of one column over some row groups, in file order.

    A row group whose offset index is absent or cannot be trusted counts as one page that holds all its rows, with
    ``offset`` and ``size`` -1.
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
    """Per row group: whether the column index tells its pages apart."""
    null_count: Ints
    """Per page; -1 when unknown."""
    lower: RawValues
    """Per page: raw lower bound, ``None`` where there is none whose order is known."""
    upper: RawValues


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
        leaves: Columns whose pages are wanted.
        row_groups: Row groups, ascending.
        with_statistics: The leaves whose column index is fetched too; all of them by default.
    """
    leaves = tuple(leaves)
    groups = np.asarray(row_groups, dtype=np.int64)
    stated = {leaf.index for leaf in (leaves if with_statistics is None else with_statistics)}
    places: list[tuple[int, int]] = []
    for leaf in leaves:
        chunks = footer.chunks(leaf)
        places += _places(chunks.offset_index_offset[groups], chunks.offset_index_length[groups])
        if leaf.index in stated:
            places += _places(chunks.column_index_offset[groups], chunks.column_index_length[groups])
    data = iter(source.read_ranges(places))
    indexes = {}
    for leaf in leaves:
        chunks = footer.chunks(leaf)
        offset_indexes = [bytes(next(data)) for _ in groups]
        column_indexes = [bytes(next(data)) for _ in groups] if leaf.index in stated else [b""] * len(groups)
        indexes[leaf.index] = _assemble(footer, chunks, groups, offset_indexes, column_indexes)
    return indexes


def _places(offsets: Ints, lengths: Ints) -> list[tuple[int, int]]:
    """Ranges to fetch; an absent index is an empty one."""
    absent = offsets < 0
    return list(zip(np.where(absent, 0, offsets).tolist(), np.where(absent, 0, lengths).tolist(), strict=True))


def _assemble(
    footer: ParquetFooter,
    chunks: ColumnChunks,
    groups: Ints,
    offset_indexes: list[bytes],
    column_indexes: list[bytes],
) -> PageIndex:
    rows = footer.row_group_rows[groups]
    located, counts, places = _locate(footer, chunks, groups, offset_indexes)
    first_row, offset, size = places
    page_starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    row_count = _until_next(first_row, page_starts, rows) - first_row
    told = [
        decode_column_index(encoded, count) if is_located else None
        for encoded, count, is_located in zip(column_indexes, counts.tolist(), located.tolist(), strict=True)
    ]
    nulls, lower, upper = _describe(footer, chunks, groups, told, counts, row_count)
    return PageIndex(
        leaf=chunks.leaf,
        row_groups=groups,
        has_offset_index=located,
        page_starts=page_starts,
        row_group=np.repeat(groups, counts),
        first_row=first_row,
        row_count=row_count,
        offset=offset,
        size=size,
        has_column_index=np.array([one is not None for one in told], dtype=np.bool_),
        null_count=nulls,
        lower=lower,
        upper=upper,
    )


def _until_next(values: Ints, page_starts: Ints, ends: Ints) -> Ints:
    """For each page the value of the page behind it, or the end of its chunk."""
    following = np.append(values[1:], 0)
    following[page_starts[1:] - 1] = ends
    return following


def _locate(footer: ParquetFooter, chunks: ColumnChunks, groups: Ints, encoded: list[bytes]) -> tuple[Mask, Ints, Ints]:
    """Which chunks have a usable offset index, pages per chunk, and (first rows, offsets, sizes) of all pages.

    Usable is one whose pages begin with row 0, go on in order, and lie one behind the other inside the chunk. A chunk
    without one is a single page.
    """
    tables = [decode_offset_index(one) for one in encoded]
    rows, limit = footer.row_group_rows[groups], footer.footer_start
    start, end = chunks.start[groups], (chunks.start + chunks.total_compressed_size)[groups]
    while True:
        counts = np.array([len(table) for table in tables], dtype=np.int64)
        places = np.ascontiguousarray(np.concatenate([_NO_PAGES, *tables]).T)
        first_row, offset, size = places
        page_starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        located = np.array([table is not _ONE_PAGE for table in tables], dtype=np.bool_)
        fits = (offset >= 0) & (offset <= limit) & (size > 0) & (size <= limit)
        fits &= offset + size <= _until_next(offset, page_starts, np.minimum(end, limit))
        fits &= first_row <= _until_next(first_row, page_starts, rows)
        fits[page_starts[:-1]] &= (first_row[page_starts[:-1]] == 0) & (offset[page_starts[:-1]] >= start)
        bad = located & ~np.logical_and.reduceat(np.append(fits, True), page_starts[:-1])
        if not bad.any():
            return located, counts, places
        tables = [_ONE_PAGE if is_bad else table for table, is_bad in zip(tables, bad.tolist(), strict=True)]


_NO_PAGES = np.zeros((0, 3), dtype=np.int64)
_ONE_PAGE = np.array([[0, -1, -1]], dtype=np.int64)


def decode_offset_index(encoded: bytes) -> Ints:
    """First row, offset and size of each page; the one page of a chunk that is not told apart when it is unreadable."""
    locations: Any = _decode(encoded, _OFFSET_SHAPE).get(1)
    if not isinstance(locations, list) or set(map(type, locations)) != {dict}:
        return _ONE_PAGE
    try:
        table = np.array(list(map(itemgetter(3, 1, 2), locations)), dtype=np.int64)
    except (TypeError, KeyError, ValueError, OverflowError):
        return _ONE_PAGE
    return table if table.ndim == 2 else _ONE_PAGE


Told: TypeAlias = tuple[Ints, Ints, RawValues, RawValues]


def _describe(
    footer: ParquetFooter,
    chunks: ColumnChunks,
    groups: Ints,
    told: list[Told | None],
    counts: Ints,
    row_count: Ints,
) -> tuple[Ints, RawValues, RawValues]:
    """Null counts and raw bounds of all pages, from the column index or else from the statistics of the chunk."""
    leaf, created_by = chunks.leaf, footer.created_by
    claims = usable_statistics(footer, chunks)
    ordered = has_known_order(leaf, created_by)
    only_nulls, nulls = [_NO_NUMBERS], [_NO_NUMBERS]
    lower: list[bytes | None] = []
    upper: list[bytes | None] = []
    for group, one, count in zip(groups.tolist(), told, counts.tolist(), strict=True):
        inherited = int(claims.null_count[group])
        only_nulls.append(np.full(count, inherited == footer.row_group_rows[group]) if one is None else one[0])
        nulls.append(np.full(count, inherited if inherited == 0 else -1) if one is None else one[1])
        lower += [claims.lower[group]] * count if one is None or not ordered else one[2]
        upper += [claims.upper[group]] * count if one is None or not ordered else one[3]
    full, known = np.concatenate(only_nulls).astype(np.bool_), np.concatenate(nulls)
    contradiction = full & (known >= 0) & (known != row_count)
    counted = np.where(contradiction, -1, np.where(full, row_count, known))
    return reliable_null_counts(leaf, created_by, counted, row_count), lower, upper


_NO_NUMBERS = np.zeros(0, dtype=np.int64)


def decode_column_index(encoded: bytes, pages: int) -> Told | None:
    """Which pages hold only nulls, null counts (-1 unknown), raw lower and raw upper bounds.

    ``None`` unless every list speaks of as many pages as there are.
    """
    fields = _decode(encoded, _COLUMN_SHAPE)
    null_pages, lower, upper = (_list_of(fields.get(number), kind, pages) for number, kind in _LISTS)
    if null_pages is None or lower is None or upper is None:
        return None
    counts = _list_of(fields.get(5), int, pages)
    nulls = np.full(pages, -1, dtype=np.int64) if counts is None else np.array(counts, dtype=np.int64)
    if True in null_pages:
        lower = [None if empty else value for value, empty in zip(lower, null_pages, strict=True)]
        upper = [None if empty else value for value, empty in zip(upper, null_pages, strict=True)]
    return np.array(null_pages), nulls, lower, upper


_LISTS: tuple[tuple[int, type], ...] = ((1, bool), (2, bytes), (3, bytes))


def _list_of(values: Any, kind: type, size: int) -> list[Any] | None:
    fits = isinstance(values, list) and len(values) == size and set(map(type, values)) == {kind}
    return values if fits else None


def _decode(encoded: bytes, shape: Any) -> Struct:
    """An index, or nothing where there is none that can be decoded."""
    try:
        return read_struct(encoded, 0, shape, "page index", "")[0] if encoded else {}
    except CorruptFileError:
        return {}


# The places of a column's pages in a file (an offset index): written from columns, and moved with the pages.
#
# Moving keeps all else that an index says. One whose pages are described in any other way than offset, size and first
# row is edited value by value instead.


_SHIFTS = 7 * np.arange(10, dtype=np.uint64)
_PAGE = {1, 2, 3}
_LIST_FIRST = 1 << 4 | LIST


def encode_page_locations(offsets: Ints, sizes: Ints, first_rows: Ints) -> bytes:
    """The list of pages as it stands in an offset index."""
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
    """An offset index that says this of the pages and nothing else."""
    return bytes([_LIST_FIRST]) + encode_page_locations(offsets, sizes, first_rows) + b"\0"


def shift_offset_index(encoded: bytes, distance: int, file: str) -> bytes:
    """An offset index whose pages lie ``distance`` further on; a page at 0 is nowhere and stays there."""
    places = _page_columns(encoded, file)
    if places is None:
        each: Edit = Each(lambda _: {1: lambda place: place + distance if place > 0 else place})
        return splice(encoded, {1: each}, "offset index", file)
    offsets, sizes, first_rows = places
    behind = read_struct(encoded, 0, {1: ...}, "offset index", file)[0][1][-1]
    moved = np.where(offsets > 0, offsets + distance, offsets)
    return encoded[:1] + encode_page_locations(moved, sizes, first_rows) + encoded[behind:]


def _page_columns(encoded: bytes, file: str) -> Ints | None:
    """Offsets, sizes and first rows of all pages, if the index begins with them and says no more of them."""
    pages: Any = read_struct(encoded, 0, {1: None}, "offset index", file)[0].get(1)
    if encoded[0] != _LIST_FIRST or not isinstance(pages, list):
        return None
    if not all(isinstance(page, dict) and page.keys() == _PAGE for page in pages):
        return None
    try:
        return np.array(list(map(itemgetter(1, 2, 3), pages)), dtype=np.int64).reshape(-1, 3).T
    except (TypeError, ValueError, OverflowError):
        return None


def _varints(values: Ints) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Integers in zigzag order, seven bits a byte, lowest first: ten bytes for each, and which of them are there."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)[:, None]
    left = zigzag >> _SHIFTS
    more = np.zeros(left.shape, dtype=np.bool_)
    more[:, :-1] = left[:, 1:] > 0
    there = np.ones(left.shape, dtype=np.bool_)
    there[:, 1:] = left[:, 1:] > 0
    return ((left & np.uint64(127)) | (more.astype(np.uint64) << np.uint64(7))).astype(np.uint8), there

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
from typing import Any

import numpy as np

from floeplan.errors import CorruptFileError
from floeplan.parquet.footer import ColumnChunks, Numbers, ParquetFooter
from floeplan.parquet.schema import LeafColumn
from floeplan.parquet.source import ByteSource
from floeplan.parquet.thrift import Struct, read_struct
from floeplan.parquet.values import ChunkClaims, RawValues, believed_nulls, has_known_order, usable_claims
from floeplan.predicate.tristate import Mask

_OFFSET_SHAPE = {1: {1: None, 2: None, 3: None}}
_COLUMN_SHAPE = {1: None, 2: None, 3: None, 5: None}


@dataclass(frozen=True, slots=True)
class PageIndex:
    """The pages of one column over some row groups, in file order.

    A row group whose offset index is absent or cannot be trusted counts as one page that holds all its rows, with
    ``offset`` and ``size`` -1.
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
    """Per row group: whether the column index tells its pages apart."""
    null_count: Numbers
    """Per page; -1 when unknown."""
    lower: RawValues
    """Per page: raw lower bound, ``None`` where there is none whose order is known."""
    upper: RawValues


@dataclass(frozen=True, slots=True)
class _Pages:
    """The pages of one chunk."""

    located: bool
    described: bool
    first_row: Numbers
    row_count: Numbers
    offset: Numbers
    size: Numbers
    null_count: Numbers
    lower: RawValues
    upper: RawValues


def read_page_indexes(
    source: ByteSource,
    footer: ParquetFooter,
    leaves: Iterable[LeafColumn],
    row_groups: Sequence[int] | Numbers,
    *,
    described: Iterable[LeafColumn] | None = None,
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
    leaves = tuple(leaves)
    groups = np.asarray(row_groups, dtype=np.int64)
    stated = {leaf.index for leaf in (leaves if described is None else described)}
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


def _places(offsets: Numbers, lengths: Numbers) -> list[tuple[int, int]]:
    """Ranges to fetch; an absent index is an empty one."""
    absent = offsets < 0
    return list(zip(np.where(absent, 0, offsets).tolist(), np.where(absent, 0, lengths).tolist(), strict=True))


def _assemble(
    footer: ParquetFooter,
    chunks: ColumnChunks,
    groups: Numbers,
    offset_indexes: list[bytes],
    column_indexes: list[bytes],
) -> PageIndex:
    claims = usable_claims(footer, chunks)
    pages = [
        _pages_of_chunk(footer, chunks, claims, group, offsets, columns)
        for group, offsets, columns in zip(groups.tolist(), offset_indexes, column_indexes, strict=True)
    ]
    counts = np.array([len(page.first_row) for page in pages], dtype=np.int64)
    return PageIndex(
        leaf=chunks.leaf,
        row_groups=groups,
        located=np.array([page.located for page in pages], dtype=np.bool_),
        page_starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        row_group=np.repeat(groups, counts),
        first_row=_joined([page.first_row for page in pages]),
        row_count=_joined([page.row_count for page in pages]),
        offset=_joined([page.offset for page in pages]),
        size=_joined([page.size for page in pages]),
        described=np.array([page.described for page in pages], dtype=np.bool_),
        null_count=_joined([page.null_count for page in pages]),
        lower=[value for page in pages for value in page.lower],
        upper=[value for page in pages for value in page.upper],
    )


def _joined(parts: list[Numbers]) -> Numbers:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _pages_of_chunk(
    footer: ParquetFooter,
    chunks: ColumnChunks,
    claims: ChunkClaims,
    group: int,
    offset_index: bytes,
    column_index: bytes,
) -> _Pages:
    rows = int(footer.row_group_rows[group])
    start = int(chunks.start[group])
    places = decode_offset_index(offset_index, rows, start, start + int(chunks.total_compressed_size[group]))
    told = None
    if places is None:
        missing = np.full(1, -1, dtype=np.int64)
        first_row, offset, size = np.zeros(1, dtype=np.int64), missing, missing
        row_count = np.full(1, rows, dtype=np.int64)
    else:
        first_row, offset, size = places
        row_count = np.diff(first_row, append=rows)
        told = decode_column_index(column_index, row_count)
    nulls = _nulls_of_pages(int(claims.null_count[group]), rows, row_count)
    if told is not None:
        nulls = believed_nulls(chunks.leaf, footer.created_by, told[0], row_count)
    lower: RawValues = [claims.lower[group]] * len(row_count)
    upper: RawValues = [claims.upper[group]] * len(row_count)
    if told is not None and has_known_order(chunks.leaf, footer.created_by):
        lower, upper = told[1], told[2]
    return _Pages(places is not None, told is not None, first_row, row_count, offset, size, nulls, lower, upper)


def _nulls_of_pages(null_count: int, rows: int, row_count: Numbers) -> Numbers:
    """Null counts of pages from the null count of their chunk: none in all is none in each, and so is only nulls."""
    if null_count == 0:
        return np.zeros_like(row_count)
    return row_count if null_count == rows else np.full_like(row_count, -1)


def decode_offset_index(encoded: bytes, rows: int, start: int, end: int) -> tuple[Numbers, Numbers, Numbers] | None:
    """First rows, offsets and sizes of the pages of a chunk of so many rows that lies between two places.

    ``None`` unless the pages begin with row 0, go on in order, and lie one behind the other inside the chunk.
    """
    locations: Any = _decode(encoded, _OFFSET_SHAPE).get(1)
    try:
        table = np.array(list(map(itemgetter(3, 1, 2), locations)), dtype=np.int64).reshape(-1, 3)
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    first_row, offset, size = np.ascontiguousarray(table.T)
    if len(table) == 0 or first_row[0] != 0 or (np.diff(first_row, append=rows) < 0).any():
        return None
    if (size <= 0).any() or offset[0] < start or (size > np.diff(offset, append=end)).any():
        return None
    return first_row, offset, size


def decode_column_index(encoded: bytes, row_count: Numbers) -> tuple[Numbers, RawValues, RawValues] | None:
    """Null counts (-1 unknown), raw lower and raw upper bounds of the pages.

    ``None`` unless every list speaks of as many pages as there are. A page said to hold only nulls whose null count
    says otherwise is a contradiction, and nothing is believed of it.
    """
    fields = _decode(encoded, _COLUMN_SHAPE)
    null_pages, lower, upper = (_list_of(fields.get(number), kind, len(row_count)) for number, kind in _LISTS)
    if null_pages is None or lower is None or upper is None:
        return None
    counts = _list_of(fields.get(5), int, len(row_count))
    nulls = np.full_like(row_count, -1) if counts is None else np.array(counts, dtype=np.int64)
    only_nulls = np.array(null_pages, dtype=np.bool_)
    contradiction = only_nulls & (nulls >= 0) & (nulls != row_count)
    nulls = np.where(contradiction, -1, np.where(only_nulls, row_count, nulls))
    if only_nulls.any():
        lower = [None if empty else value for value, empty in zip(lower, null_pages, strict=True)]
        upper = [None if empty else value for value, empty in zip(upper, null_pages, strict=True)]
    return nulls, lower, upper


_LISTS: tuple[tuple[int, type], ...] = ((1, bool), (2, bytes), (3, bytes))


def _list_of(values: Any, kind: type, size: int) -> list[Any] | None:
    fits = isinstance(values, list) and len(values) == size and all(type(value) is kind for value in values)
    return values if fits else None


def _decode(encoded: bytes, shape: Any) -> Struct:
    """An index, or nothing where there is none that can be decoded."""
    try:
        return read_struct(encoded, 0, shape, "page index", "")[0] if encoded else {}
    except CorruptFileError:
        return {}

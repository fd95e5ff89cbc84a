"""The places of a column's pages in a file (an offset index): written from columns, and moved with the pages.

Moving keeps all else that an index says. One whose pages are described in any other way than offset, size and first
row is edited value by value instead.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from floeplan.parquet.splice import Each, Edit, splice
from floeplan.parquet.thrift import I32, I64, LIST, STRUCT, encode_list_header, read_struct

Numbers = npt.NDArray[np.int64]

_SHIFTS = 7 * np.arange(10, dtype=np.uint64)
_PAGE = {1, 2, 3}
_LIST_FIRST = 1 << 4 | LIST


def encode_places(offsets: Numbers, sizes: Numbers, first_rows: Numbers) -> bytes:
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


def offset_index(offsets: Numbers, sizes: Numbers, first_rows: Numbers) -> bytes:
    """An offset index that says this of the pages and nothing else."""
    return bytes([_LIST_FIRST]) + encode_places(offsets, sizes, first_rows) + b"\0"


def move_places(encoded: bytes, distance: int, file: str) -> bytes:
    """An offset index whose pages lie ``distance`` further on; a page at 0 is nowhere and stays there."""
    places = _places(encoded, file)
    if places is None:
        each: Edit = Each(lambda _: {1: lambda place: place + distance if place > 0 else place})
        return splice(encoded, {1: each}, "offset index", file)
    offsets, sizes, first_rows = places
    behind = read_struct(encoded, 0, {1: ...}, "offset index", file)[0][1][-1]
    moved = np.where(offsets > 0, offsets + distance, offsets)
    return encoded[:1] + encode_places(moved, sizes, first_rows) + encoded[behind:]


def _places(encoded: bytes, file: str) -> Numbers | None:
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


def _varints(values: Numbers) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Integers in zigzag order, seven bits a byte, lowest first: ten bytes for each, and which of them are there."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)[:, None]
    left = zigzag >> _SHIFTS
    more = np.zeros(left.shape, dtype=np.bool_)
    more[:, :-1] = left[:, 1:] > 0
    there = np.ones(left.shape, dtype=np.bool_)
    there[:, 1:] = left[:, 1:] > 0
    return ((left & np.uint64(127)) | (more.astype(np.uint64) << np.uint64(7))).astype(np.uint8), there

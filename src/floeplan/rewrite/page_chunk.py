"""A column of a row group put together of single pages: kept ones, and ones made anew without rows that are gone.

Pages stand one behind the other, behind the dictionary if they have one. Statistics of pages are those of their parts,
those of the column are taken from the smallest and the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.parquet.data_pages import DATA_PAGE, DICTIONARY_PAGE, PLAIN, RLE, RLE_DICTIONARY, MadePage
from floeplan.parquet.footer import Numbers
from floeplan.parquet.page_places import offset_index
from floeplan.parquet.schema import LeafColumn
from floeplan.parquet.thrift import BINARY, BOOL, I32, I64, LIST, STRUCT, encode_struct
from floeplan.parquet.values import Side, decode_bound
from floeplan.rewrite.joined_file import Piece

_UNORDERED = 0


@dataclass(frozen=True, slots=True)
class PagePart:
    """Some pages, one behind the other."""

    size: int
    rows: int
    nulls: int
    uncompressed_size: int
    encodings: frozenset[int]
    lower: bytes | None
    upper: bytes | None
    exact: tuple[bool, bool]
    page_sizes: Numbers
    page_rows: Numbers
    page_nulls: Numbers
    page_lower: Sequence[bytes | None]
    page_upper: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class NewPage:
    """A page that was made, and what is known of it."""

    page: MadePage
    rows: int
    nulls: int
    lower: bytes | None
    upper: bytes | None


def part_of(leaf: LeafColumn, encoding: int, pages: Sequence[NewPage]) -> PagePart:
    """Pages that were made, as a part; bounds that cannot be compared are a ``ValueError``."""
    sizes = np.array([one.page.size for one in pages])
    rows, nulls = np.array([one.rows for one in pages]), np.array([one.nulls for one in pages])
    lower, upper = [one.lower for one in pages], [one.upper for one in pages]
    low, high = ([one for one in some if one is not None] for some in (lower, upper))
    lowest, highest = (_extreme(leaf, low, Side.LOWER), _extreme(leaf, high, Side.UPPER)) if low else (None, None)
    if low and (lowest is None or highest is None):
        raise ValueError("bounds that cannot be compared")
    return PagePart(
        size=int(sizes.sum()),
        rows=int(rows.sum()),
        nulls=int(nulls.sum()),
        uncompressed_size=sum(one.page.uncompressed_size for one in pages),
        encodings=frozenset({encoding, RLE}),
        lower=None if lowest is None else low[lowest],
        upper=None if highest is None else high[highest],
        exact=(True, True),
        page_sizes=sizes,
        page_rows=rows,
        page_nulls=nulls,
        page_lower=lower,
        page_upper=upper,
    )


@dataclass(frozen=True, slots=True)
class PageChunk:
    """A column of a row group: the pages of all parts."""

    leaf: LeafColumn
    codec: int
    parts: Sequence[PagePart]
    pages: Sequence[Piece]
    dictionary: MadePage | None = None

    @property
    def pieces(self) -> Sequence[Piece]:
        return self.pages if self.dictionary is None else [self.dictionary.header, self.dictionary.body, *self.pages]

    @property
    def nulls(self) -> int:
        """Rows that are null."""
        return sum(part.nulls for part in self.parts)

    @property
    def uncompressed_size(self) -> int:
        own = 0 if self.dictionary is None else self.dictionary.uncompressed_size
        return own + sum(part.uncompressed_size for part in self.parts)

    @property
    def column_index(self) -> bytes:
        nulls = _over_pages(self.parts, "page_nulls")
        empty = (_over_pages(self.parts, "page_rows") == nulls).tolist()
        lower = [b"" if low is None else low for part in self.parts for low in part.page_lower]
        upper = [b"" if high is None else high for part in self.parts for high in part.page_upper]
        return encode_struct(
            [
                (1, LIST, (BOOL, empty)),
                (2, LIST, (BINARY, lower)),
                (3, LIST, (BINARY, upper)),
                (4, I32, _UNORDERED),
                (5, LIST, (I64, nulls.tolist())),
            ]
        )

    def offset_index(self, start: int) -> bytes:
        sizes, rows = _over_pages(self.parts, "page_sizes"), _over_pages(self.parts, "page_rows")
        offsets, firsts = start + self._before_data + np.cumsum(sizes) - sizes, np.cumsum(rows) - rows
        return offset_index(offsets, sizes, firsts)

    def metadata(self, start: int) -> bytes:
        encodings = frozenset().union(*(part.encodings for part in self.parts))
        fields: list[tuple[int, int, object]] = [
            (1, I32, int(self.leaf.physical)),
            (2, LIST, (I32, sorted(encodings if self.dictionary is None else encodings | {PLAIN}))),
            (3, LIST, (BINARY, [name.encode() for name in self.leaf.path])),
            (4, I32, self.codec),
            (5, I64, sum(part.rows for part in self.parts)),
            (6, I64, self.uncompressed_size),
            (7, I64, self._before_data + sum(part.size for part in self.parts)),
            (9, I64, start + self._before_data),
        ]
        if self.dictionary is not None:
            fields.append((11, I64, start))
        fields.append((12, STRUCT, statistics(self.leaf, self.parts)))
        if self.dictionary is not None:
            fields.append((13, LIST, (STRUCT, self._pages_by_encoding())))
        inner = encode_struct(fields)
        return encode_struct([(2, I64, 0), (3, STRUCT, inner), (4, I64, 0), (5, I32, 0), (6, I64, 0), (7, I32, 0)])

    @property
    def _before_data(self) -> int:
        return 0 if self.dictionary is None else self.dictionary.size

    def _pages_by_encoding(self) -> list[bytes]:
        """Readers that look up a value in the dictionary want to be sure that all pages refer to it."""
        pages = len(_over_pages(self.parts, "page_rows"))
        counted = [(DICTIONARY_PAGE, PLAIN, 1), (DATA_PAGE, RLE_DICTIONARY, pages)]
        return [encode_struct([(1, I32, kind), (2, I32, encoding), (3, I32, n)]) for kind, encoding, n in counted]


def statistics(leaf: LeafColumn, parts: Sequence[PagePart]) -> bytes | None:
    """The statistics of all parts together; nothing when their bounds cannot be compared."""
    fields: list[tuple[int, int, object]] = [(3, I64, sum(part.nulls for part in parts))]
    filled = [part for part in parts if part.nulls < part.rows]
    if filled:
        lowest = _extreme(leaf, [part.lower for part in filled], Side.LOWER)
        highest = _extreme(leaf, [part.upper for part in filled], Side.UPPER)
        if lowest is None or highest is None:
            return None
        low, high = filled[lowest], filled[highest]
        fields += [(5, BINARY, high.upper), (6, BINARY, low.lower), (7, BOOL, high.exact[1]), (8, BOOL, low.exact[0])]
    return encode_struct(fields)


def _extreme(leaf: LeafColumn, raw: Sequence[bytes | None], side: Side) -> int | None:
    """Which of some bounds is the smallest lower or the largest upper one, if all of them can be read."""
    assert leaf.type is not None
    bound = decode_bound(leaf, leaf.type, raw, side)
    values = bound.values if isinstance(bound.values, pa.Array) else pa.array(bound.values, from_pandas=True)
    if values.null_count or not bound.valid.all():
        return None
    order = "ascending" if side is Side.LOWER else "descending"
    return int(pc.sort_indices(values, sort_keys=[("", order)])[0].as_py())


def _over_pages(parts: Sequence[PagePart], name: str) -> Numbers:
    return np.concatenate([getattr(part, name) for part in parts])

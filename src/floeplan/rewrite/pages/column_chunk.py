"""A column of a row group put together of single pages: kept ones, and ones made anew without rows that are gone.

Pages stand one behind the other, behind the dictionary if they have one. Statistics of pages are those of their parts,
those of the column are taken from the smallest and the largest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.page_index import PageIndex, encode_offset_index, read_page_indexes
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.thrift import BINARY, BOOL, I32, I64, LIST, STRUCT, encode_struct
from floeplan.parquet.footer.values import ChunkStatistics, Family, Side, decode_bound, family, usable_statistics
from floeplan.parquet.pages.data_pages import DATA_PAGE, DICTIONARY_PAGE, PLAIN, RLE, RLE_DICTIONARY, EncodedPage
from floeplan.rewrite.pages.joined_file import Piece
from floeplan.scan.file_rows import OpenFile
from floeplan.vectors import Ints
from floeplan.write.options import WriteOptions

_UNORDERED = 0


@dataclass(frozen=True, slots=True)
class PageRun:
    """Some pages, one behind the other."""

    size: int
    rows: int
    nulls: int
    uncompressed_size: int
    encodings: frozenset[int]
    lower: bytes | None
    upper: bytes | None
    exact: tuple[bool, bool]
    page_sizes: Ints
    page_rows: Ints
    page_nulls: Ints
    page_lower: Sequence[bytes | None]
    page_upper: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class DescribedPage:
    """A page that was made, and what is known of it."""

    page: EncodedPage
    rows: int
    nulls: int
    lower: bytes | None
    upper: bytes | None


def page_run(leaf: LeafColumn, encoding: int, pages: Sequence[DescribedPage]) -> PageRun:
    """Pages that were made, as a part; bounds that cannot be compared are a ``ValueError``."""
    sizes = np.array([one.page.size for one in pages])
    rows, nulls = np.array([one.rows for one in pages]), np.array([one.nulls for one in pages])
    lower, upper = [one.lower for one in pages], [one.upper for one in pages]
    low, high = ([one for one in some if one is not None] for some in (lower, upper))
    lowest, highest = (_extreme(leaf, low, Side.LOWER), _extreme(leaf, high, Side.UPPER)) if low else (None, None)
    if low and (lowest is None or highest is None):
        raise ValueError("bounds that cannot be compared")
    return PageRun(
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
    parts: Sequence[PageRun]
    pages: Sequence[Piece]
    dictionary: EncodedPage | None = None

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
        return encode_offset_index(offsets, sizes, firsts)

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


def statistics(leaf: LeafColumn, parts: Sequence[PageRun]) -> bytes | None:
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


def _over_pages(parts: Sequence[PageRun], name: str) -> Ints:
    return np.concatenate([getattr(part, name) for part in parts])


# Columns of row groups whose pages can stay as they are when the row groups are joined.
#
# A page without a dictionary stands for itself: with the pages of other row groups one behind the other it makes a
# column of a larger row group, byte for byte. Statistics of pages are copied, those of columns taken from the smallest
# and the largest.
#
# Rule: pages are kept where nothing could be better by encoding the column anew: the codec is the table's, the column
# has no dictionary (one that many rows share may be worth having), and pages have a good size.
#
# Fail-safe: what is not stated in full about a column is a reason to encode it: its places must account for every byte,
# each page and each chunk with values must have bounds of a known order, nulls and NaN must be counted.


CODECS = {"NONE": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6, "LZ4": 7}
"""What footers call the codecs of tables."""
_DICTIONARIES = {2, 8}
_GOOD_SHARE = 4
"""A page is good from this part on of the rows or bytes that the table wants of one."""


@dataclass(frozen=True, slots=True)
class CopyablePages:
    """Says of columns of a file whether their pages can be kept."""

    options: WriteOptions
    leaves: Mapping[int, LeafColumn]
    """The columns of the new file that may be, by field id: those outside of structs, lists and maps."""

    @staticmethod
    def of(options: WriteOptions, blank: ParquetFooter, without: Iterable[int]) -> CopyablePages:
        """For new files with these columns, of which some are always encoded."""
        never = set(without)
        plain = (leaf for leaf in blank.leaves if len(leaf.path) == 1 and leaf.max_rep == 0)
        return CopyablePages(options, {leaf.field_id: leaf for leaf in plain if leaf.field_id not in never})

    def found(self, opened: OpenFile, nan_counts: Mapping[int, int]) -> list[dict[int, PageRun]]:
        """For each row group of a file the columns that can be kept, by field id."""
        footer = opened.footer
        groups = np.arange(footer.num_row_groups)
        leaves = [leaf for leaf in self.fitting(footer) if self._stands_alone(footer, leaf, nan_counts)]
        indexes = read_page_indexes(opened.source, footer, leaves, groups) if leaves else {}
        kept: list[dict[int, PageRun]] = [{} for _ in groups]
        for leaf in leaves:
            claims = usable_statistics(footer, footer.chunks(leaf))
            for group in groups.tolist():
                part = _part(footer, indexes[leaf.index], claims, group)
                if part is not None and self._good(part):
                    kept[group][leaf.field_id] = part
        return kept

    def fitting(self, footer: ParquetFooter) -> list[LeafColumn]:
        """The columns of a file that are stored as the new file will store them."""
        if not footer.has_field_ids:
            return []
        wanted = ((leaf, self.leaves.get(leaf.field_id)) for leaf in footer.leaves)
        return [
            leaf for leaf, new in wanted if new is not None and new.type is not None and _stored(leaf) == _stored(new)
        ]

    def _stands_alone(self, footer: ParquetFooter, leaf: LeafColumn, nan_counts: Mapping[int, int]) -> bool:
        """Whether the pages of a column have the right codec, no dictionary, and no NaN."""
        assert leaf.type is not None
        if family(leaf.type) is Family.FLOAT and nan_counts.get(leaf.field_id) != 0:
            return False
        chunks = footer.chunks(leaf)
        return bool((chunks.codec == CODECS[self.options.codec]).all() and (chunks.dictionary_page_offset <= 0).all())

    def _good(self, part: PageRun) -> bool:
        rows, size = part.page_rows.mean(), part.page_sizes.mean()
        return bool(rows * _GOOD_SHARE >= self.options.page_rows or size * _GOOD_SHARE >= self.options.page_size)


def _stored(leaf: LeafColumn) -> tuple[object, ...]:
    return leaf.physical, leaf.type_length, leaf.type, leaf.annotation.unit, leaf.max_def, leaf.max_rep, len(leaf.path)


def _part(footer: ParquetFooter, index: PageIndex, claims: ChunkStatistics, group: int) -> PageRun | None:
    """What is known of a column of one row group; nothing unless all is."""
    chunks = footer.chunks(index.leaf)
    pages = slice(int(index.page_starts[group]), int(index.page_starts[group + 1]))
    place = int(chunks.start[group]), int(chunks.total_compressed_size[group])
    sizes, rows, nulls = index.size[pages], index.row_count[pages], index.null_count[pages]
    if not (index.has_offset_index[group] and index.has_column_index[group]):
        return None
    if index.offset[pages][0] != place[0] or sizes.sum() != place[1]:
        return None
    if index.leaf.max_def == 0:
        nulls = np.zeros_like(nulls)
    total = int(footer.row_group_rows[group])
    missing = 0 if index.leaf.max_def == 0 else int(claims.null_count[group])
    encodings = footer.chunk_location(index.leaf, group).encodings
    if missing != nulls.sum() or (nulls < 0).any() or chunks.num_values[group] != total:
        return None
    if encodings is None or encodings & _DICTIONARIES:
        return None
    lower, upper = index.lower[pages], index.upper[pages]
    bounded = [low is not None and high is not None for low, high in zip(lower, upper, strict=True)]
    whole = claims.lower[group] is not None and claims.upper[group] is not None
    if not (np.array(bounded) | (nulls == rows)).all() or not (whole or missing == total):
        return None
    return PageRun(
        size=place[1],
        rows=total,
        nulls=missing,
        uncompressed_size=int(chunks.total_uncompressed_size[group]),
        encodings=encodings,
        lower=claims.lower[group],
        upper=claims.upper[group],
        exact=(bool(chunks.min_exact[group]), bool(chunks.max_exact[group])),
        page_sizes=sizes,
        page_rows=rows,
        page_nulls=nulls,
        page_lower=lower,
        page_upper=upper,
    )

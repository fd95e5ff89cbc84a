"""A column chunk of a new row group, assembled from copied pages and from pages encoded without deleted rows.

Pages without a dictionary are independent: pages of several row groups, concatenated, are a column chunk of a larger
row group, byte for byte. Page statistics are copied; the statistics of the chunk are their minimum and maximum.

Rule: ``CopyablePages`` copies pages only where re-encoding could not improve the column: the codec is the table's, the
column has no dictionary (one over more rows may be worth having), and pages are at least a quarter of the table's page
size.

Fail-safe: a column is copied only with complete metadata: page locations account for every byte, each page and chunk
with values has bounds of a known order, and nulls and NaN are counted. Otherwise it is encoded.
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
from floeplan.parquet.footer.statistics import Family, RawStatistics, Side, decode_bound, family, usable_statistics
from floeplan.parquet.footer.thrift import BINARY, BOOL, I32, I64, LIST, STRUCT, encode_struct
from floeplan.parquet.pages.data_pages import DATA_PAGE, DICTIONARY_PAGE, PLAIN, RLE, RLE_DICTIONARY, EncodedPage
from floeplan.rewrite.pages.new_file import Piece
from floeplan.scan.file_rows import OpenFile
from floeplan.vectors import Ints
from floeplan.write.target import WriteOptions

CODECS = {"NONE": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6, "LZ4": 7}
"""Parquet's codec numbers by the names of ``WriteOptions.codec``."""
_DICTIONARY_ENCODINGS = {2, 8}
_MIN_PAGE_FRACTION = 4
"""Pages are copied from 1/4 of the table's page rows or page size on."""
_UNORDERED = 0


@dataclass(frozen=True, slots=True)
class PageRun:
    """Consecutive pages with their statistics."""

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
    """A new page and its statistics."""

    page: EncodedPage
    rows: int
    nulls: int
    lower: bytes | None
    upper: bytes | None


def page_run(leaf: LeafColumn, encoding: int, pages: Sequence[DescribedPage]) -> PageRun:
    """Combine new pages into a run; bounds that cannot be compared are a ``ValueError``."""
    sizes = np.array([one.page.size for one in pages])
    rows, nulls = np.array([one.rows for one in pages]), np.array([one.nulls for one in pages])
    lower, upper = [one.lower for one in pages], [one.upper for one in pages]
    low, high = ([one for one in some if one is not None] for some in (lower, upper))
    lowest, highest = (_extreme(leaf, low, Side.LOWER), _extreme(leaf, high, Side.UPPER)) if low else (None, None)
    if low and (lowest is None or highest is None):
        raise ValueError("bounds cannot be compared")
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
    """A column chunk: an optional dictionary page, then the pages of all runs."""

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
        """Number of nulls."""
        return sum(part.nulls for part in self.parts)

    @property
    def uncompressed_size(self) -> int:
        own = 0 if self.dictionary is None else self.dictionary.uncompressed_size
        return own + sum(part.uncompressed_size for part in self.parts)

    @property
    def column_index(self) -> bytes:
        nulls = self._over_pages("page_nulls")
        empty = (self._over_pages("page_rows") == nulls).tolist()
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
        sizes, rows = self._over_pages("page_sizes"), self._over_pages("page_rows")
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
            # The ``encoding_stats``: readers that prune by dictionary need to know that all pages use it.
            counted = [(DICTIONARY_PAGE, PLAIN, 1), (DATA_PAGE, RLE_DICTIONARY, len(self._over_pages("page_rows")))]
            stats = [encode_struct([(1, I32, kind), (2, I32, encoding), (3, I32, n)]) for kind, encoding, n in counted]
            fields.append((13, LIST, (STRUCT, stats)))
        inner = encode_struct(fields)
        return encode_struct([(2, I64, 0), (3, STRUCT, inner), (4, I64, 0), (5, I32, 0), (6, I64, 0), (7, I32, 0)])

    @property
    def _before_data(self) -> int:
        return 0 if self.dictionary is None else self.dictionary.size

    def _over_pages(self, name: str) -> Ints:
        return np.concatenate([getattr(part, name) for part in self.parts])


def statistics(leaf: LeafColumn, parts: Sequence[PageRun]) -> bytes | None:
    """The encoded statistics of all runs; ``None`` when their bounds cannot be compared."""
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
    """Position of the smallest lower or the largest upper bound; ``None`` unless all of them can be decoded."""
    assert leaf.type is not None
    bound = decode_bound(leaf, leaf.type, raw, side)
    values = bound.values if isinstance(bound.values, pa.Array) else pa.array(bound.values, from_pandas=True)
    if values.null_count or not bound.valid.all():
        return None
    order = "ascending" if side is Side.LOWER else "descending"
    return int(pc.sort_indices(values, sort_keys=[("", order)])[0].as_py())


@dataclass(frozen=True, slots=True)
class CopyablePages:
    """Decides which columns of a file can be copied page by page."""

    options: WriteOptions
    leaves: Mapping[int, LeafColumn]
    """The columns of the new file that may be copied, by field id: those outside of structs, lists and maps."""

    @staticmethod
    def of(options: WriteOptions, blank: ParquetFooter, without: Iterable[int]) -> CopyablePages:
        """For new files with the schema of ``blank``; the columns ``without`` are always encoded."""
        never = set(without)
        flat = (leaf for leaf in blank.leaves if len(leaf.path) == 1 and leaf.max_rep == 0)
        return CopyablePages(options, {leaf.field_id: leaf for leaf in flat if leaf.field_id not in never})

    def found(self, opened: OpenFile, nan_counts: Mapping[int, int]) -> list[dict[int, PageRun]]:
        """For each row group of a file the columns that can be copied, by field id."""
        footer = opened.footer
        groups = np.arange(footer.num_row_groups)
        leaves = [leaf for leaf in self.fitting(footer) if self._is_independent(footer, leaf, nan_counts)]
        indexes = read_page_indexes(opened.source, footer, leaves, groups) if leaves else {}
        copyable: list[dict[int, PageRun]] = [{} for _ in groups]
        for leaf in leaves:
            statistics_of_chunks = usable_statistics(footer, footer.chunks(leaf))
            for group in groups.tolist():
                run = _copied_run(footer, indexes[leaf.index], statistics_of_chunks, group)
                if run is None:
                    continue
                rows, size = run.page_rows.mean() * _MIN_PAGE_FRACTION, run.page_sizes.mean() * _MIN_PAGE_FRACTION
                if rows >= self.options.page_rows or size >= self.options.page_size:
                    copyable[group][leaf.field_id] = run
        return copyable

    def fitting(self, footer: ParquetFooter) -> list[LeafColumn]:
        """The columns of a file whose type and levels are the new file's."""
        if not footer.has_field_ids:
            return []
        wanted = ((leaf, self.leaves.get(leaf.field_id)) for leaf in footer.leaves)
        return [
            leaf for leaf, new in wanted if new is not None and new.type is not None and _layout(leaf) == _layout(new)
        ]

    def _is_independent(self, footer: ParquetFooter, leaf: LeafColumn, nan_counts: Mapping[int, int]) -> bool:
        """Whether the pages of a column have the table's codec, no dictionary, and no NaN."""
        assert leaf.type is not None
        # A footer does not count NaN; the new manifest entry needs the count, so only a known 0 will do.
        if family(leaf.type) is Family.FLOAT and nan_counts.get(leaf.field_id) != 0:
            return False
        chunks = footer.chunks(leaf)
        return bool((chunks.codec == CODECS[self.options.codec]).all() and (chunks.dictionary_page_offset <= 0).all())


def _layout(leaf: LeafColumn) -> tuple[object, ...]:
    return leaf.physical, leaf.type_length, leaf.type, leaf.annotation.unit, leaf.max_def, leaf.max_rep, len(leaf.path)


def _copied_run(footer: ParquetFooter, index: PageIndex, usable: RawStatistics, group: int) -> PageRun | None:
    """The pages of a column chunk with their statistics; ``None`` unless the metadata is complete."""
    chunks = footer.chunks(index.leaf)
    pages = slice(int(index.page_starts[group]), int(index.page_starts[group + 1]))
    start, size = int(chunks.start[group]), int(chunks.total_compressed_size[group])
    sizes, rows, nulls = index.size[pages], index.row_count[pages], index.null_count[pages]
    if not (index.has_offset_index[group] and index.has_column_index[group]):
        return None
    # The page locations must account for every byte of the chunk.
    if index.offset[pages][0] != start or sizes.sum() != size:
        return None
    if index.leaf.max_def == 0:
        nulls = np.zeros_like(nulls)
    total = int(footer.row_group_rows[group])
    null_count = 0 if index.leaf.max_def == 0 else int(usable.null_count[group])
    if null_count != nulls.sum() or (nulls < 0).any() or chunks.num_values[group] != total:
        return None
    encodings = footer.chunk_location(index.leaf, group).encodings
    if encodings is None or encodings & _DICTIONARY_ENCODINGS:
        return None
    # Every page and the chunk have bounds, unless they hold only nulls.
    lower, upper = index.lower[pages], index.upper[pages]
    bounded = [low is not None and high is not None for low, high in zip(lower, upper, strict=True)]
    chunk_bounded = usable.lower[group] is not None and usable.upper[group] is not None
    if not (np.array(bounded) | (nulls == rows)).all() or not (chunk_bounded or null_count == total):
        return None
    return PageRun(
        size=size,
        rows=total,
        nulls=null_count,
        uncompressed_size=int(chunks.total_uncompressed_size[group]),
        encodings=encodings,
        lower=usable.lower[group],
        upper=usable.upper[group],
        exact=(bool(chunks.min_exact[group]), bool(chunks.max_exact[group])),
        page_sizes=sizes,
        page_rows=rows,
        page_nulls=nulls,
        page_lower=lower,
        page_upper=upper,
    )

"""Columns of row groups whose pages can stay as they are when the row groups are joined.

A page without a dictionary stands for itself: with the pages of other row groups one behind the other it makes a
column of a larger row group, byte for byte. Statistics of pages are copied, those of columns taken from the smallest
and the largest.

Rule: pages are kept where nothing could be better by encoding the column anew: the codec is the table's, the column
has no dictionary (one that many rows share may be worth having), and pages have a good size.

Fail-safe: what is not stated in full about a column is a reason to encode it: its places must account for every byte,
each page and each chunk with values must have bounds of a known order, nulls and NaN must be counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from floeplan.parquet.footer import ParquetFooter
from floeplan.parquet.page_index import PageIndex, read_page_indexes
from floeplan.parquet.schema import LeafColumn
from floeplan.parquet.values import ChunkClaims, Family, family, usable_claims
from floeplan.rewrite.page_chunk import PagePart
from floeplan.scan.file_rows import OpenFile
from floeplan.write.options import WriteOptions

CODECS = {"NONE": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6, "LZ4": 7}
"""What footers call the codecs of tables."""
_DICTIONARIES = {2, 8}
_GOOD_SHARE = 4
"""A page is good from this part on of the rows or bytes that the table wants of one."""


@dataclass(frozen=True, slots=True)
class KeptPages:
    """Says of columns of a file whether their pages can be kept."""

    options: WriteOptions
    leaves: Mapping[int, LeafColumn]
    """The columns of the new file that may be, by field id: those outside of structs, lists and maps."""

    @staticmethod
    def of(options: WriteOptions, blank: ParquetFooter, without: Iterable[int]) -> KeptPages:
        """For new files with these columns, of which some are always encoded."""
        never = set(without)
        plain = (leaf for leaf in blank.leaves if len(leaf.path) == 1 and leaf.max_rep == 0)
        return KeptPages(options, {leaf.field_id: leaf for leaf in plain if leaf.field_id not in never})

    def found(self, opened: OpenFile, nan_counts: Mapping[int, int]) -> list[dict[int, PagePart]]:
        """For each row group of a file the columns that can be kept, by field id."""
        footer = opened.footer
        groups = np.arange(footer.num_row_groups)
        leaves = [leaf for leaf in self.fitting(footer) if self._stands_alone(footer, leaf, nan_counts)]
        indexes = read_page_indexes(opened.source, footer, leaves, groups) if leaves else {}
        kept: list[dict[int, PagePart]] = [{} for _ in groups]
        for leaf in leaves:
            claims = usable_claims(footer, footer.chunks(leaf))
            for group in groups.tolist():
                part = _part(footer, indexes[leaf.index], claims, group)
                if part is not None and self._good(part):
                    kept[group][leaf.field_id] = part
        return kept

    def fitting(self, footer: ParquetFooter) -> list[LeafColumn]:
        """The columns of a file that are stored as the new file will store them."""
        if not footer.has_own_ids:
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

    def _good(self, part: PagePart) -> bool:
        rows, size = part.page_rows.mean(), part.page_sizes.mean()
        return bool(rows * _GOOD_SHARE >= self.options.page_rows or size * _GOOD_SHARE >= self.options.page_size)


def _stored(leaf: LeafColumn) -> tuple[object, ...]:
    return leaf.physical, leaf.type_length, leaf.type, leaf.annotation.unit, leaf.max_def, leaf.max_rep, len(leaf.path)


def _part(footer: ParquetFooter, index: PageIndex, claims: ChunkClaims, group: int) -> PagePart | None:
    """What is known of a column of one row group; nothing unless all is."""
    chunks = footer.chunks(index.leaf)
    pages = slice(int(index.page_starts[group]), int(index.page_starts[group + 1]))
    place = int(chunks.start[group]), int(chunks.total_compressed_size[group])
    sizes, rows, nulls = index.size[pages], index.row_count[pages], index.null_count[pages]
    if not (index.located[group] and index.described[group]):
        return None
    if index.offset[pages][0] != place[0] or sizes.sum() != place[1]:
        return None
    if index.leaf.max_def == 0:
        nulls = np.zeros_like(nulls)
    total = int(footer.row_group_rows[group])
    missing = 0 if index.leaf.max_def == 0 else int(claims.null_count[group])
    encodings = footer.place(index.leaf, group).encodings
    if missing != nulls.sum() or (nulls < 0).any() or chunks.num_values[group] != total:
        return None
    if encodings is None or encodings & _DICTIONARIES:
        return None
    lower, upper = index.lower[pages], index.upper[pages]
    bounded = [low is not None and high is not None for low, high in zip(lower, upper, strict=True)]
    whole = claims.lower[group] is not None and claims.upper[group] is not None
    if not (np.array(bounded) | (nulls == rows)).all() or not (whole or missing == total):
        return None
    return PagePart(
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

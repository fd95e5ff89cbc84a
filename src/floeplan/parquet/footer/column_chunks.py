"""The column chunks of one leaf over all row groups, decoded into columns of numbers.

Offsets and counts are checked before they are used: a chunk of another type is an error, and an index or Bloom filter
whose byte range lies outside the file counts as absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from floeplan.errors import UnsupportedError
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.thrift import SCALAR, Struct, integer
from floeplan.vectors import Ints, Mask

_DATA_PAGE_TYPES = (0, 3)
_DICTIONARY_ENCODINGS = (2, 8)
_STATISTICS_SHAPE: Final[Any] = dict.fromkeys((1, 2, 3, 5, 6, 7, 8), SCALAR)
_METADATA_SHAPE: Final[Any] = {
    **dict.fromkeys((1, 4, 5, 6, 7, 9, 11, 14, 15), SCALAR),
    12: _STATISTICS_SHAPE,
    13: dict.fromkeys((1, 2, 3), SCALAR),
}
CHUNK_SHAPE: Final[Any] = {**dict.fromkeys((1, 4, 5, 6, 7, 8), SCALAR), 3: _METADATA_SHAPE}
"""The fields of Parquet's ColumnChunk that are decoded."""
LOCATION_SHAPE: Final[Any] = {1: SCALAR, 8: SCALAR, 3: {2: None, **dict.fromkeys((1, 4, 6, 7, 9, 11), SCALAR)}}
"""Those of them that ``ChunkLocation`` needs."""


@dataclass(frozen=True, slots=True)
class ColumnChunks:
    """One leaf over all row groups; -1 means absent or unknown in every column of numbers.

    ``min_value`` and ``max_value`` are raw statistics bytes or ``None``. ``old_min`` and ``old_max`` come from the
    deprecated ``min`` and ``max`` fields, whose order is only known for some types. ``dictionary_pages`` is the number
    of data pages encoded with the dictionary.
    """

    leaf: LeafColumn
    codec: Ints
    num_values: Ints
    total_uncompressed_size: Ints
    total_compressed_size: Ints
    data_page_offset: Ints
    dictionary_page_offset: Ints
    dictionary_pages: Ints
    null_count: Ints
    min_value: tuple[bytes | None, ...]
    max_value: tuple[bytes | None, ...]
    min_exact: Mask
    max_exact: Mask
    old_min: tuple[bytes | None, ...]
    old_max: tuple[bytes | None, ...]
    offset_index_offset: Ints
    offset_index_length: Ints
    column_index_offset: Ints
    column_index_length: Ints
    bloom_offset: Ints
    bloom_length: Ints

    @property
    def start(self) -> Ints:
        """Offset of the first page of each chunk: its dictionary page if it has one, else its first data page."""
        # Some writers set dictionary_page_offset to 0 without a dictionary.
        has_dictionary = (self.dictionary_page_offset > 0) & (self.dictionary_page_offset < self.data_page_offset)
        return np.where(has_dictionary, self.dictionary_page_offset, self.data_page_offset)


@dataclass(frozen=True, slots=True)
class ChunkLocation:
    """The byte range, codec and encodings of one column chunk; ``encodings`` is ``None`` when the footer has none."""

    start: int
    size: int
    uncompressed_size: int
    codec: int
    encodings: frozenset[int] | None


def decode_chunks(file: str, leaf: LeafColumn, structs: list[Struct], footer_start: int) -> ColumnChunks:
    """Decode the ColumnChunk structs of one leaf, one per row group."""
    metas: list[Any] = [struct.get(3) for struct in structs]
    if any(8 in struct for struct in structs):
        raise encrypted_error(file, f"its column {leaf} is encrypted")
    if any(1 in struct for struct in structs):
        raise UnsupportedError(f"{file}: column {leaf} is stored in another file", context={"file": file})
    if not all(isinstance(meta, dict) for meta in metas):
        raise ValueError("a chunk has no metadata")
    if any(meta.get(1) != leaf.physical for meta in metas):
        raise ValueError("a chunk is stored as another type")
    stats = [meta.get(12, {}) for meta in metas]
    if not all(isinstance(stat, dict) for stat in stats):
        raise ValueError("statistics are no struct")
    offset_index = _inside(_numbers(structs, 4, -1), _numbers(structs, 5, -1), footer_start)
    column_index = _inside(_numbers(structs, 6, -1), _numbers(structs, 7, -1), footer_start)
    bloom_length = _numbers(metas, 15, -1)
    bloom = _inside(_numbers(metas, 14, -1), np.maximum(bloom_length, 1), footer_start)
    return ColumnChunks(
        leaf=leaf,
        codec=_numbers(metas, 4),
        num_values=_numbers(metas, 5),
        total_uncompressed_size=_numbers(metas, 6),
        total_compressed_size=_numbers(metas, 7),
        data_page_offset=_numbers(metas, 9),
        dictionary_page_offset=_numbers(metas, 11, -1),
        dictionary_pages=np.array([_dictionary_pages(meta.get(13)) for meta in metas], dtype=np.int64),
        null_count=_numbers(stats, 3, -1),
        min_value=_raw(stats, 6),
        max_value=_raw(stats, 5),
        min_exact=np.array([stat.get(8) is True for stat in stats], dtype=np.bool_),
        max_exact=np.array([stat.get(7) is True for stat in stats], dtype=np.bool_),
        old_min=_raw(stats, 2),
        old_max=_raw(stats, 1),
        offset_index_offset=offset_index[0],
        offset_index_length=offset_index[1],
        column_index_offset=column_index[0],
        column_index_length=column_index[1],
        bloom_offset=bloom[0],
        bloom_length=np.where(bloom[0] >= 0, bloom_length, -1),
    )


def _dictionary_pages(encodings: Any) -> int:
    """Number of dictionary-encoded data pages by ``encoding_stats``; -1 when the writer left them out."""
    if not encodings or not isinstance(encodings, list) or not all(isinstance(one, dict) for one in encodings):
        return -1
    try:
        used = [integer(one, 3) for one in encodings if one[1] in _DATA_PAGE_TYPES and one[2] in _DICTIONARY_ENCODINGS]
    except (KeyError, ValueError):
        return -1
    return sum(used) if all(0 <= pages < 2**31 for pages in used) else -1


def _numbers(structs: list[Any], number: int, default: int | None = None) -> Ints:
    try:
        return np.fromiter((struct.get(number, default) for struct in structs), dtype=np.int64, count=len(structs))
    except (TypeError, OverflowError):
        raise ValueError(f"field {number} is no integer") from None


def _raw(stats: list[Struct], number: int) -> tuple[bytes | None, ...]:
    values = [stat.get(number) for stat in stats]
    return tuple(value if isinstance(value, bytes) else None for value in values)


def _inside(offsets: Ints, lengths: Ints, footer_start: int) -> tuple[Ints, Ints]:
    """Byte ranges between the magic number and the footer; all others become absent (-1)."""
    inside = (offsets >= 4) & (lengths > 0) & (lengths <= footer_start) & (offsets <= footer_start - lengths)
    return np.where(inside, offsets, -1), np.where(inside, lengths, -1)


def encrypted_error(file: str, how: str) -> UnsupportedError:
    """The error for an encrypted file."""
    return UnsupportedError(f"{file} cannot be read: {how}; decrypt it first", context={"file": file})

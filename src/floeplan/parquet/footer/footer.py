"""The footer of a Parquet file, read with one suffix request.

The schema and the row counts are decoded at once, the column chunks of a leaf on first use: a file with thousands of
columns costs only what the predicate and the projection need.

Fail-safe: offsets and counts are checked before use. A row group that lacks a column, a negative count or a chunk of
another type is a ``CorruptFileError``; an index or Bloom filter outside the file counts as absent.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from cachetools import LRUCache, cached
from pyiceberg.schema import Schema

from floeplan.errors import UnsupportedError
from floeplan.parquet.footer.schema import ELEMENT_SHAPE, MAX_ELEMENTS, FileColumns, LeafColumn, build_tree
from floeplan.parquet.footer.thrift import SCALAR, Struct, integer, read_struct
from floeplan.parquet.source import ByteSource, LocalSource, corrupt
from floeplan.vectors import Ints, Mask

DEFAULT_TAIL = 128 * 1024
"""Bytes of the first request, at most. Files of pyarrow have 130 to 190 footer bytes per column chunk and 40 bytes of
page index per page, so this holds the footer of about 700 chunks, or that of a smaller file with its page indexes; a
longer tail would be a noticeable fraction of all bytes that a point lookup fetches."""
LEAST_TAIL = 12
"""The magic number at both ends, and the length of the footer."""
KEPT_TAIL = 16 * 1024
"""Bytes before a footer, at most, that are kept with it: a plan fetches them, and its reader needs them again."""
MAX_FOOTER = 1 << 29
MAX_KNOWN_SCHEMAS = 64
FOOTER_CACHE_FILES = 4096

_KNOWN_SCHEMAS: dict[tuple[bytes | None, ...], FileColumns] = {}
MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
_UNCOUNTED = 100
"""Bytes of a dictionary page's header, at most, which old versions of parquet-mr do not count."""
# PageType DATA_PAGE and DATA_PAGE_V2; Encoding PLAIN_DICTIONARY and RLE_DICTIONARY.
_DATA_PAGE_TYPES = (0, 3)
_DICTIONARY_ENCODINGS = (2, 8)
# The fields that are decoded, by their ids in parquet.thrift (``thrift.read_struct`` explains shapes).
# FileMetaData: 2 schema, 3 num_rows, 4 row_groups, 5 key_value_metadata, 6 created_by, 7 column_orders,
# 8 encryption_algorithm. KeyValue: 1 key, 2 value. ColumnOrder is a union. RowGroup: 1 columns, 3 num_rows.
_FILE_SHAPE: Final[Any] = {2: ..., 3: SCALAR, 4: ..., 5: ..., 6: SCALAR, 7: ..., 8: SCALAR}
_PAIR_SHAPE: Final[Any] = {1: SCALAR, 2: SCALAR}
_ORDER_SHAPE: Final[Any] = {number: {1: SCALAR} for number in range(1, 9)}
_ROW_GROUP_SHAPE: Final[Any] = {1: ..., 3: SCALAR}
# Statistics: 1 max, 2 min (both deprecated), 3 null_count, 5 max_value, 6 min_value, 7 is_max_value_exact,
# 8 is_min_value_exact.
_STATISTICS_SHAPE: Final[Any] = dict.fromkeys((1, 2, 3, 5, 6, 7, 8), SCALAR)
# ColumnMetaData: 1 type, 2 encodings, 4 codec, 5 num_values, 6 total_uncompressed_size, 7 total_compressed_size,
# 9 data_page_offset, 11 dictionary_page_offset, 12 statistics, 13 encoding_stats (1 page_type, 2 encoding, 3 count),
# 14 bloom_filter_offset, 15 bloom_filter_length.
_METADATA_SHAPE: Final[Any] = {
    **dict.fromkeys((1, 4, 5, 6, 7, 9, 11, 14, 15), SCALAR),
    12: _STATISTICS_SHAPE,
    13: dict.fromkeys((1, 2, 3), SCALAR),
}
# ColumnChunk: 1 file_path, 3 meta_data, 4 offset_index_offset, 5 offset_index_length, 6 column_index_offset,
# 7 column_index_length, 8 crypto_metadata.
CHUNK_SHAPE: Final[Any] = {**dict.fromkeys((1, 4, 5, 6, 7, 8), SCALAR), 3: _METADATA_SHAPE}
"""The fields of Parquet's ColumnChunk that are decoded."""
LOCATION_SHAPE: Final[Any] = {1: SCALAR, 8: SCALAR, 3: {2: None, **dict.fromkeys((1, 4, 6, 7, 9, 11), SCALAR)}}
"""Those of them that ``ChunkLocation`` needs."""


class ColumnChunks(NamedTuple):
    """One leaf over all row groups; -1 means absent or unknown in every column of numbers.

    ``min_value`` and ``max_value`` are raw statistics bytes or ``None``. ``old_min`` and ``old_max`` come from the
    deprecated ``min`` and ``max`` fields, whose order is only known for some types. ``dictionary_pages`` and
    ``other_pages`` count the data pages encoded with the dictionary and without it, -1 where the writer left it out.
    """

    leaf: LeafColumn
    codec: Ints
    num_values: Ints
    total_uncompressed_size: Ints
    total_compressed_size: Ints
    data_page_offset: Ints
    dictionary_page_offset: Ints
    dictionary_pages: Ints
    other_pages: Ints
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


class ChunkLocation(NamedTuple):
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
        raise ValueError("statistics are not a struct")
    # All numbers in one array: with an array for each, a file of one row group would cost three times as much.
    found = [_chunk_numbers(*chunk, footer_start) for chunk in zip(structs, metas, stats, strict=True)]
    try:
        numbers = np.ascontiguousarray(np.array(found, dtype=np.int64).reshape(-1, len(_NUMBERS)).T)
    except OverflowError:
        raise ValueError("a number has more than 64 bits") from None
    return ColumnChunks(
        leaf=leaf,
        **dict(zip(_NUMBERS, numbers, strict=True)),
        min_value=_raw(stats, 6),
        max_value=_raw(stats, 5),
        min_exact=np.array([stat.get(8) is True for stat in stats], dtype=np.bool_),
        max_exact=np.array([stat.get(7) is True for stat in stats], dtype=np.bool_),
        old_min=_raw(stats, 2),
        old_max=_raw(stats, 1),
    )


_NUMBERS = (
    "codec",
    "num_values",
    "total_uncompressed_size",
    "total_compressed_size",
    "data_page_offset",
    "dictionary_page_offset",
    "null_count",
    "offset_index_offset",
    "offset_index_length",
    "column_index_offset",
    "column_index_length",
    "bloom_offset",
    "bloom_length",
    "dictionary_pages",
    "other_pages",
)
"""The columns of ``ColumnChunks`` that ``_chunk_numbers`` returns."""


def _chunk_numbers(chunk: Struct, meta: Struct, statistics: Struct, footer_start: int) -> tuple[int, ...]:
    required: list[Any] = [meta.get(number) for number in (4, 5, 6, 7, 9)]
    if not all(isinstance(value, int) for value in required):
        raise ValueError("a size, a count or an offset is not an integer")
    bloom_offset, bloom_length = _optional(meta, 14), _optional(meta, 15)
    bloom = _inside(bloom_offset, max(bloom_length, 1), footer_start)[0]
    return (
        *required,
        _optional(meta, 11),
        _optional(statistics, 3),
        *_inside(_optional(chunk, 4), _optional(chunk, 5), footer_start),
        *_inside(_optional(chunk, 6), _optional(chunk, 7), footer_start),
        bloom,
        bloom_length if bloom >= 0 else -1,
        *_data_pages(meta.get(13)),
    )


def _data_pages(encodings: Any) -> tuple[int, int]:
    """Data pages with and without dictionary encoding by ``encoding_stats``; -1 when the writer left them out."""
    if not encodings or not isinstance(encodings, list) or not all(isinstance(one, dict) for one in encodings):
        return -1, -1
    try:
        used = [(one[2] in _DICTIONARY_ENCODINGS, integer(one, 3)) for one in encodings if one[1] in _DATA_PAGE_TYPES]
    except (KeyError, ValueError, TypeError):
        return -1, -1
    if not all(0 <= pages < 2**31 for _, pages in used):
        return -1, -1
    with_dictionary = sum(pages for encoded, pages in used if encoded)
    return with_dictionary, sum(pages for _, pages in used) - with_dictionary


def _optional(struct: Struct, number: int) -> int:
    """An optional integer field; -1 when it is absent or not an integer."""
    # Some writers used the numbers of later optional fields for something else.
    value = struct.get(number, -1)
    return value if isinstance(value, int) and abs(value) < 2**63 else -1


def _raw(stats: list[Struct], number: int) -> tuple[bytes | None, ...]:
    values = [stat.get(number) for stat in stats]
    return tuple(value if isinstance(value, bytes) else None for value in values)


def _inside(offset: int, length: int, footer_start: int) -> tuple[int, int]:
    """A byte range between the magic number and the footer; any other is absent (-1)."""
    return (offset, length) if offset >= 4 and 0 < length <= footer_start - offset else (-1, -1)


def encrypted_error(file: str, how: str) -> UnsupportedError:
    """The error for an encrypted file."""
    return UnsupportedError(f"{file} cannot be read: {how}; decrypt it first", context={"file": file})


@dataclass(frozen=True, eq=False)
class ParquetFooter:
    """The decoded metadata of a file."""

    file: str
    file_size: int
    footer_start: int
    num_rows: int
    created_by: str
    columns: FileColumns
    row_group_rows: Ints
    first_rows: Ints
    key_values: Mapping[bytes, bytes]
    _encoded: bytes = field(repr=False)
    _chunk_starts: Ints = field(repr=False)
    _chunks: dict[int, ColumnChunks] = field(default_factory=dict, repr=False)
    _before: bytes = field(default=b"", repr=False)
    statistics: dict[tuple[int, Any], Any] = field(default_factory=dict, repr=False)
    """Decoded statistics of row groups by leaf and type (``statistics.row_group_stats``): cached footers keep them."""

    @property
    def num_row_groups(self) -> int:
        """Number of row groups."""
        return len(self.row_group_rows)

    @property
    def leaves(self) -> tuple[LeafColumn, ...]:
        """The leaf columns, in file order."""
        return self.columns.leaves

    @property
    def has_field_ids(self) -> bool:
        """Whether the field ids are the file's own rather than assigned by position."""
        return self.columns.has_field_ids

    @cached_property
    def schema(self) -> Schema:
        """The Iceberg schema of the file read on its own; column names must be distinct."""
        try:
            return self.columns.iceberg_schema()
        except ValueError as error:
            message = f"{self.file} has columns with the same name ({error}); pass a schema with field ids"
            raise UnsupportedError(message, context={"file": self.file}) from error

    @property
    def leaf_by_id(self) -> Mapping[int, LeafColumn]:
        """Leaves by field id."""
        return self.columns.leaf_by_id

    def leaves_of_column(self, column: str | int) -> list[int]:
        """Leaf indexes of a column given by name, path or field id; empty unless the file has exactly one such."""
        matches = self.columns.find(column, case_sensitive=True)
        return matches[0].node.leaf_indexes if len(matches) == 1 else []

    def chunks(self, leaf: LeafColumn | int) -> ColumnChunks:
        """The chunks of a leaf over all row groups, decoded on first use."""
        index = leaf if isinstance(leaf, int) else leaf.index
        if index not in self._chunks:
            column = self.leaves[index]
            structs = [
                read_struct(self._encoded, start, CHUNK_SHAPE, "footer", self.file)[0]
                for start in self._chunk_starts[:, index].tolist()
            ]
            try:
                self._chunks[index] = decode_chunks(self.file, column, structs, self.footer_start)
            except ValueError as error:
                raise corrupt(self.file, f"the footer entry of column {column}: {error}") from None
        return self._chunks[index]

    @cached_property
    def compressed_sizes(self) -> Ints:
        """The compressed bytes of each leaf, a row for each, in each row group."""
        sizes = [self.chunks(leaf).total_compressed_size for leaf in self.leaves]
        return np.array(sizes, dtype=np.int64).reshape(len(sizes), self.num_row_groups)

    @property
    def tail(self) -> bytes:
        """The end of the file that a store sent for this footer, if it has page indexes or data before the footer."""
        return self._before + self.as_file()[len(MAGIC) :] if self._before else b""

    def as_file(self) -> bytes:
        """A Parquet file of this footer alone, for decoders that take their metadata from a file."""
        return b"".join((MAGIC, self._encoded, len(self._encoded).to_bytes(4, "little"), MAGIC))

    def chunk_sizes(self, chunks: ColumnChunks) -> Ints:
        """The bytes to fetch of each chunk; more than recorded where the writer did not count all of them."""
        # parquet-mr before 1.2.9 did not count the header of the dictionary page (PARQUET-816): decoders stop by
        # themselves after the last value.
        writer = re.match(r"parquet-mr(?: version (\d+)\.(\d+)\.(\d+))?", self.created_by)
        if writer is None or tuple(int(part or 0) for part in writer.groups()) >= (1, 2, 9):
            return chunks.total_compressed_size
        return np.minimum(chunks.total_compressed_size + _UNCOUNTED, np.maximum(self.footer_start - chunks.start, 0))

    def chunk_location(self, leaf: LeafColumn, row_group: int) -> ChunkLocation:
        """The byte range of one column chunk, without decoding its statistics and indexes."""
        at = int(self._chunk_starts[row_group, leaf.index])
        chunk, _ = read_struct(self._encoded, at, LOCATION_SHAPE, "column chunk", self.file)
        if 1 in chunk or 8 in chunk:
            self.chunks(leaf)  # in another file or encrypted: raises the error
        try:
            if integer(chunk[3], 1) != leaf.physical:
                raise ValueError("a chunk is stored as another type")
            data, dictionary = integer(chunk[3], 9), integer(chunk[3], 11, -1)
            named = chunk[3].get(2)
            return ChunkLocation(
                start=dictionary if 0 < dictionary < data else data,
                size=integer(chunk[3], 7),
                uncompressed_size=integer(chunk[3], 6),
                codec=integer(chunk[3], 4),
                encodings=frozenset(named) if isinstance(named, list) else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise corrupt(self.file, f"the footer entry of column {leaf}: {error}") from None


def likely_tail(file_size: int, columns: int) -> int:
    """Bytes that hold the footer and the page indexes of most files of this size with one row group or two.

    A longer footer takes a second request. Reading 128 KiB of each file of a megabyte would add a tenth to its bytes.
    """
    return min(DEFAULT_TAIL, 3 * 1024 + 384 * columns + file_size // 512)


def read_footer(source: ByteSource, *, tail: int = DEFAULT_TAIL) -> ParquetFooter:
    """Read and decode the footer with one request, or two when the footer is longer than the tail."""
    name = source.name
    end = bytes(source.read_suffix(max(tail, LEAST_TAIL)))
    if len(end) < LEAST_TAIL or end[-4:] not in (MAGIC, _ENCRYPTED_MAGIC):
        raise corrupt(name, "it does not end with the magic number PAR1")
    if end[-4:] == _ENCRYPTED_MAGIC:
        raise encrypted_error(name, "its footer is encrypted")
    length = int.from_bytes(end[-8:-4], "little")
    if length > source.size - LEAST_TAIL:
        raise corrupt(name, f"its footer length is {length} bytes in a file of {source.size}", source.size - 8)
    if length > MAX_FOOTER:
        message = f"{name}: a footer of {length} bytes exceeds the limit of {MAX_FOOTER}"
        raise UnsupportedError(message, context={"file": name})
    missing = length + 8 - len(end)
    if missing > 0:
        end = bytes(source.read_ranges([(source.size - length - 8, missing)])[0]) + end
    start = len(end) - 8 - length
    footer = decode_footer(end[start : len(end) - 8], name, source.size)
    keep = 0 < start <= KEPT_TAIL and not isinstance(source, LocalSource)
    return replace(footer, _before=end[:start]) if keep else footer


_footers_lock = threading.Lock()


@cached(LRUCache(FOOTER_CACHE_FILES), key=lambda path, size, source, tail=0: (path, size), lock=_footers_lock)
def cached_footer(path: str, size: int, source: ByteSource, tail: int = DEFAULT_TAIL) -> ParquetFooter:
    """The footer of a file, from an LRU cache by path and size: data files never change."""
    return read_footer(source, tail=tail)


def known_footer(path: str, size: int) -> ParquetFooter | None:
    """The footer of a file if the cache has it. Reading adds none: the footers of a large scan would take memory."""
    with _footers_lock:
        return cached_footer.cache.get((path, size))


def decode_footer(encoded: bytes, file: str, file_size: int) -> ParquetFooter:
    """Decode the footer's bytes, without the length and the magic number after them."""
    fields, _ = read_struct(encoded, 0, _FILE_SHAPE, "footer", file)
    if 8 in fields:
        raise encrypted_error(file, "it is encrypted with a plain footer")
    try:
        columns = _decode_schema(encoded, fields, file)
        groups = _offsets(fields.get(4), "row groups", len(encoded))
        rows, starts = _row_groups(encoded, groups, len(columns.leaves), file)
        total = integer(fields, 3)
        # Some writers leave the total at 0; the row groups are what is read.
        if total not in (0, rows.sum()):
            raise ValueError(f"{total} rows in total, but {rows.sum()} in its row groups")
    except ValueError as error:
        raise corrupt(file, f"the footer is invalid: {error}") from None
    key_values = {}
    for offset in fields[5][:-1] if isinstance(fields.get(5), array) else ():
        pair, _ = read_struct(encoded, offset, _PAIR_SHAPE, "footer", file)
        if isinstance(pair.get(1), bytes) and isinstance(pair.get(2), bytes):
            key_values[pair[1]] = pair[2]
    created_by = fields.get(6, b"")
    return ParquetFooter(
        file=file,
        file_size=file_size,
        footer_start=file_size - 8 - len(encoded),
        num_rows=int(rows.sum()),
        created_by=created_by.decode("utf-8", errors="replace") if isinstance(created_by, bytes) else "",
        columns=columns,
        row_group_rows=rows,
        first_rows=np.cumsum(rows) - rows,
        key_values=key_values,
        _encoded=encoded,
        _chunk_starts=starts,
    )


def join_footers(footers: Sequence[ParquetFooter]) -> ParquetFooter:
    """The row groups of several files of one writer and schema as those of one file, to decode their chunks at once.

    Offsets stay those of each file, so nothing can be read with this footer.
    """
    first = footers[0]
    assert all(one.columns is first.columns and one.created_by == first.created_by for one in footers)
    rows = np.concatenate([one.row_group_rows for one in footers])
    before = np.cumsum([0, *(len(one._encoded) for one in footers)])
    return replace(
        first,
        footer_start=max(one.footer_start for one in footers),
        num_rows=int(rows.sum()),
        row_group_rows=rows,
        first_rows=np.cumsum(rows) - rows,
        _encoded=b"".join(one._encoded for one in footers),
        _chunk_starts=np.concatenate([one._chunk_starts + at for one, at in zip(footers, before[:-1], strict=True)]),
        _chunks={},
        statistics={},
    )


def _decode_schema(encoded: bytes, fields: Struct, file: str) -> FileColumns:
    """Decode the schema; files of one table mostly share it, so recent ones are cached by their encoded bytes."""
    elements, orders = _offsets(fields.get(2), "schema", MAX_ELEMENTS), fields.get(7)
    key = tuple(encoded[at[0] : at[-1]] if isinstance(at, array) else None for at in (elements, orders))
    found = _KNOWN_SCHEMAS.get(key)
    if found is not None:
        return found

    def element(index: int) -> tuple[Struct, bytes]:
        start, end = elements[index], elements[index + 1]
        return read_struct(encoded, start, ELEMENT_SHAPE, "schema", file)[0], encoded[start:end]

    root = build_tree(len(elements) - 1, element)
    # Field 1 of the ColumnOrder union is TypeDefinedOrder; any other order of a later version is not comparable.
    leaf_count = len(root.leaf_indexes)
    ordered: list[bool | None] = [None if orders is None else False] * leaf_count
    if isinstance(orders, array) and len(orders) == leaf_count + 1:
        ordered = [read_struct(encoded, at, _ORDER_SHAPE, "footer", file)[0] == {1: {}} for at in orders[:-1]]
    if len(_KNOWN_SCHEMAS) >= MAX_KNOWN_SCHEMAS:
        _KNOWN_SCHEMAS.clear()
    _KNOWN_SCHEMAS[key] = found = FileColumns(root, ordered)
    return found


def _offsets(offsets: Any, what: str, limit: int) -> array[int]:
    """Check the offsets of a list's elements (and of its end) that ``read_struct`` returned."""
    if not isinstance(offsets, array) or len(offsets) > limit + 1:
        raise ValueError(f"the list of {what} is missing or too long")
    return offsets


def _row_groups(encoded: bytes, offsets: array[int], leaf_count: int, file: str) -> tuple[Ints, Ints]:
    """Rows per row group, and the offset of each ColumnChunk struct in the footer."""
    count = len(offsets) - 1
    if count * leaf_count > len(encoded):
        raise ValueError(f"{count} row groups with {leaf_count} columns do not fit into {len(encoded)} bytes")
    rows = np.zeros(count, dtype=np.int64)
    starts = np.zeros((count, leaf_count), dtype=np.int64)
    for number, offset in enumerate(offsets[:-1]):
        group, _ = read_struct(encoded, offset, _ROW_GROUP_SHAPE, "footer", file)
        chunks = _offsets(group.get(1), "column chunks", leaf_count)
        if len(chunks) != leaf_count + 1:
            raise ValueError(f"row group {number} has {len(chunks) - 1} columns instead of {leaf_count}")
        rows[number] = integer(group, 3)
        starts[number] = chunks[:-1]
    if (rows < 0).any() or rows.sum(dtype=np.float64) > 2**62:
        raise ValueError("a row group has an invalid number of rows")
    return rows, starts

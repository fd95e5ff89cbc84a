"""The footer of a Parquet file: one suffix request, then columns of numbers per leaf.

The schema and the row counts are decoded at once; the chunks of a column only when it is asked for, so a file of
thousands of columns costs what the predicate and the projection need. ``ColumnChunks`` holds one entry per row group.

What the footer says of places and counts is checked before it is used: a row group that lacks a column, a negative
count or a chunk of another type is a ``CorruptFileError``. A place that is not in the file makes the part it points
to (page index, bloom filter) absent.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from floeplan.errors import UnsupportedError
from floeplan.parquet.footer.field_index import FieldIndex, FileColumns
from floeplan.parquet.footer.schema import (
    ELEMENT_SHAPE,
    MAX_ELEMENTS,
    LeafColumn,
    SchemaNode,
    build_tree,
    iceberg_schema,
    leaf_columns,
)
from floeplan.parquet.footer.thrift import SCALAR, Struct, corrupt, integer, read_struct
from floeplan.parquet.source import ByteSource
from floeplan.vectors import Ints

DEFAULT_TAIL = 128 * 1024
"""Bytes asked for first. Measured on pyarrow's files: 130 to 190 bytes of footer per column chunk and 40 bytes of page
index per page. This holds the footer of some 700 chunks, or that of a smaller file together with its page indexes; more
would be a noticeable share of what a point lookup fetches in all."""
MAX_FOOTER = 1 << 29
MAX_KNOWN_SCHEMAS = 64

_KNOWN_SCHEMAS: dict[tuple[bytes | None, ...], FileColumns] = {}
_MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
_DATA_PAGES = (0, 3)
_DICTIONARY_ENCODINGS = (2, 8)
_FILE_SHAPE: Final[Any] = {2: ..., 3: SCALAR, 4: ..., 5: ..., 6: SCALAR, 7: ..., 8: SCALAR}
_PAIR_SHAPE: Final[Any] = {1: SCALAR, 2: SCALAR}
_ORDER_SHAPE: Final[Any] = {number: {1: SCALAR} for number in range(1, 9)}
_ROW_GROUP_SHAPE: Final[Any] = {1: ..., 3: SCALAR}
_STATISTICS_SHAPE: Final[Any] = dict.fromkeys((1, 2, 3, 5, 6, 7, 8), SCALAR)
_METADATA_SHAPE: Final[Any] = {
    **dict.fromkeys((1, 4, 5, 6, 7, 9, 11, 14, 15), SCALAR),
    12: _STATISTICS_SHAPE,
    13: dict.fromkeys((1, 2, 3), SCALAR),
}
_PLACE_SHAPE: Final[Any] = {1: SCALAR, 8: SCALAR, 3: {2: None, **dict.fromkeys((1, 4, 6, 7, 9, 11), SCALAR)}}
_CHUNK_SHAPE: Final[Any] = {**dict.fromkeys((1, 4, 5, 6, 7, 8), SCALAR), 3: _METADATA_SHAPE}


@dataclass(frozen=True, slots=True)
class ColumnChunks:
    """One leaf over all row groups; -1 stands for absent or unknown in every column of numbers.

    ``min_value`` and ``max_value`` are raw statistics bytes, ``None`` where there are none that may be used in
    principle; ``old_min`` and ``old_max`` come from the deprecated fields, whose order is only known for some types.
    ``dictionary_pages`` is how many data pages of the chunk refer to its dictionary.
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
    min_exact: npt.NDArray[np.bool_]
    max_exact: npt.NDArray[np.bool_]
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
        """Where the pages of each chunk begin: its dictionary page when it has one, else its first data page."""
        has_dictionary = (self.dictionary_page_offset > 0) & (self.dictionary_page_offset < self.data_page_offset)
        return np.where(has_dictionary, self.dictionary_page_offset, self.data_page_offset)


@dataclass(frozen=True, slots=True)
class ChunkLocation:
    """Where the pages of one column of one row group are, and how they are stored.

    ``encodings`` is ``None`` when it names none.
    """

    start: int
    size: int
    uncompressed_size: int
    codec: int
    encodings: frozenset[int] | None


@dataclass(frozen=True, eq=False)
class ParquetFooter:
    """What a file says about itself."""

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

    @property
    def num_row_groups(self) -> int:
        """Number of row groups."""
        return len(self.row_group_rows)

    @property
    def root(self) -> SchemaNode:
        """The tree of the schema."""
        return self.columns.root

    @property
    def leaves(self) -> tuple[LeafColumn, ...]:
        """The columns that hold values."""
        return self.columns.leaves

    @property
    def has_field_ids(self) -> bool:
        """Whether the field ids are the file's own, and not assigned by position."""
        return self.columns.has_field_ids

    @cached_property
    def schema(self) -> Schema:
        """The Iceberg schema of the file read on its own, which must name every column differently."""
        try:
            return iceberg_schema(self.root)
        except ValueError as error:
            message = f"{self.file} has columns that no name tells apart ({error}); ask by a schema with field ids"
            raise UnsupportedError(message, context={"file": self.file}) from error

    @property
    def ids_of_nodes(self) -> Mapping[int, int]:
        """Field ids by the identity of their node."""
        return self.columns.ids_of_nodes

    @property
    def fields(self) -> FieldIndex:
        """Fields by name, path and id."""
        return self.columns.fields

    @property
    def field_ids(self) -> frozenset[int]:
        """Ids of all fields, groups included."""
        return self.columns.field_ids

    @property
    def leaf_by_id(self) -> Mapping[int, LeafColumn]:
        """Leaves by field id."""
        return self.columns.leaf_by_id

    def leaves_of_column(self, column: str | int) -> list[int]:
        """Leaf indexes of a column given by name, path or field id; empty unless the file has exactly one such."""
        matches = self.fields.find(column, case_sensitive=True)
        return matches[0].node.leaf_indexes if len(matches) == 1 else []

    def chunks(self, leaf: LeafColumn | int) -> ColumnChunks:
        """The chunks of a column, decoded when first asked for."""
        index = leaf if isinstance(leaf, int) else leaf.index
        if index not in self._chunks:
            self._chunks[index] = self._decode_chunks(self.leaves[index])
        return self._chunks[index]

    def chunk_location(self, leaf: LeafColumn, row_group: int) -> ChunkLocation:
        """Where a column of one row group is, without decoding what else is known of it."""
        at = int(self._chunk_starts[row_group, leaf.index])
        chunk, _ = read_struct(self._encoded, at, _PLACE_SHAPE, "column chunk", self.file)
        if 1 in chunk or 8 in chunk:
            self.chunks(leaf)  # which says that it cannot be read
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

    def _decode_chunks(self, leaf: LeafColumn) -> ColumnChunks:
        structs = [
            read_struct(self._encoded, start, _CHUNK_SHAPE, "footer", self.file)[0]
            for start in self._chunk_starts[:, leaf.index].tolist()
        ]
        try:
            return _columnar(self.file, leaf, structs, self.footer_start)
        except ValueError as error:
            raise corrupt(self.file, f"the footer entry of column {leaf}: {error}") from None


def read_footer(source: ByteSource, *, tail: int = DEFAULT_TAIL) -> ParquetFooter:
    """Read and decode the footer: one request, two when the footer is longer than the tail asked for."""
    name = source.name
    end = bytes(source.read_suffix(max(tail, 12)))
    if len(end) < 12 or end[-4:] not in (_MAGIC, _ENCRYPTED_MAGIC):
        raise corrupt(name, "it does not end as one")
    if end[-4:] == _ENCRYPTED_MAGIC:
        raise _encrypted(name, "its footer is encrypted")
    length = int.from_bytes(end[-8:-4], "little")
    if length > source.size - 12:
        raise corrupt(name, f"its footer claims {length} bytes of {source.size}", source.size - 8)
    if length > MAX_FOOTER:
        raise UnsupportedError(f"{name}: a footer of {length} bytes is more than {MAX_FOOTER}", context={"file": name})
    missing = length + 8 - len(end)
    if missing > 0:
        end = bytes(source.read_ranges([(source.size - length - 8, missing)])[0]) + end
    return decode_footer(end[len(end) - 8 - length : len(end) - 8], name, source.size)


def decode_footer(encoded: bytes, file: str, file_size: int) -> ParquetFooter:
    """Decode the footer's bytes, without the length and the magic behind them."""
    fields, _ = read_struct(encoded, 0, _FILE_SHAPE, "footer", file)
    if 8 in fields:
        raise _encrypted(file, "it is encrypted with a plain footer")
    try:
        return _build(encoded, fields, file, file_size)
    except ValueError as error:
        raise corrupt(file, f"the footer says something impossible: {error}") from None


def _build(encoded: bytes, fields: Struct, file: str, file_size: int) -> ParquetFooter:
    columns = _columns(encoded, fields, file)
    rows, starts = _row_groups(encoded, _places(fields.get(4), "row groups", len(encoded)), len(columns.leaves), file)
    total = integer(fields, 3)
    if total != rows.sum():
        raise ValueError(f"{total} rows in all, but {rows.sum()} in its row groups")
    created_by = fields.get(6, b"")
    return ParquetFooter(
        file=file,
        file_size=file_size,
        footer_start=file_size - 8 - len(encoded),
        num_rows=total,
        created_by=created_by.decode("utf-8", errors="replace") if isinstance(created_by, bytes) else "",
        columns=columns,
        row_group_rows=rows,
        first_rows=np.cumsum(rows) - rows,
        key_values=_key_values(encoded, fields.get(5), file),
        _encoded=encoded,
        _chunk_starts=starts,
    )


def _columns(encoded: bytes, fields: Struct, file: str) -> FileColumns:
    """The schema; files of one table mostly share it, so some are kept by the bytes they are made of."""
    elements, orders = _places(fields.get(2), "schema", MAX_ELEMENTS), fields.get(7)
    key = tuple(encoded[p[0] : p[-1]] if isinstance(p, array) else None for p in (elements, orders))
    found = _KNOWN_SCHEMAS.get(key)
    if found is None:
        root = build_tree(_Elements(encoded, elements, file))
        leaf_count = sum(node.leaf is not None for node in root.walk())
        found = FileColumns(root, leaf_columns(root, _orders(encoded, orders, leaf_count, file)))
        if len(_KNOWN_SCHEMAS) >= MAX_KNOWN_SCHEMAS:
            _KNOWN_SCHEMAS.clear()
        _KNOWN_SCHEMAS[key] = found
    return found


def _key_values(encoded: bytes, places: Any, file: str) -> dict[bytes, bytes]:
    """What the writer noted down; pairs that are none are left out."""
    found = {}
    for place in places[:-1] if isinstance(places, array) else ():
        pair, _ = read_struct(encoded, place, _PAIR_SHAPE, "footer", file)
        if isinstance(pair.get(1), bytes) and isinstance(pair.get(2), bytes):
            found[pair[1]] = pair[2]
    return found


class _Elements(Sequence[tuple[Struct, bytes]]):
    """The schema elements, each decoded when the tree gets to it, so that a bad one ends the work."""

    def __init__(self, encoded: bytes, places: array[int], file: str) -> None:
        self._encoded, self._places, self._file = encoded, places, file

    def __len__(self) -> int:
        return len(self._places) - 1

    def __getitem__(self, index: Any) -> Any:
        start, end = self._places[index], self._places[index + 1]
        return read_struct(self._encoded, start, ELEMENT_SHAPE, "schema", self._file)[0], self._encoded[start:end]


def _places(places: Any, what: str, most: int) -> array[int]:
    """The places of a list's elements and its end; anything else in its stead is an error."""
    if not isinstance(places, array) or len(places) > most + 1:
        raise ValueError(f"there is no list of {what}, or one too long")
    return places


def _orders(encoded: bytes, places: Any, leaf_count: int, file: str) -> list[bool | None]:
    """Which leaves have the order their type defines; ``None`` where the file does not speak of orders at all."""
    if places is None:
        return [None] * leaf_count
    if not isinstance(places, array) or len(places) != leaf_count + 1:
        return [False] * leaf_count
    return [read_struct(encoded, place, _ORDER_SHAPE, "footer", file)[0] == {1: {}} for place in places[:-1]]


def _row_groups(encoded: bytes, places: array[int], leaf_count: int, file: str) -> tuple[Ints, Ints]:
    """Rows per row group, and where each of its chunks starts in the footer."""
    count = len(places) - 1
    if count * leaf_count > len(encoded):
        raise ValueError(f"{count} row groups of {leaf_count} columns do not fit into it")
    rows = np.zeros(count, dtype=np.int64)
    starts = np.zeros((count, leaf_count), dtype=np.int64)
    for number, place in enumerate(places[:-1]):
        group, _ = read_struct(encoded, place, _ROW_GROUP_SHAPE, "footer", file)
        chunks = _places(group.get(1), "column chunks", leaf_count)
        if len(chunks) != leaf_count + 1:
            raise ValueError(f"row group {number} has {len(chunks) - 1} columns instead of {leaf_count}")
        rows[number] = integer(group, 3)
        starts[number] = chunks[:-1]
    if (rows < 0).any() or rows.sum(dtype=np.float64) > 2**62:
        raise ValueError("a row group with an impossible number of rows")
    return rows, starts


def _columnar(file: str, leaf: LeafColumn, structs: list[Struct], footer_start: int) -> ColumnChunks:
    metas: list[Any] = [struct.get(3) for struct in structs]
    if any(8 in struct for struct in structs):
        raise _encrypted(file, f"its column {leaf} is encrypted")
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
    """How many data pages use the dictionary by the writer's own count of encodings; -1 when it kept none."""
    if not encodings or not isinstance(encodings, list) or not all(isinstance(one, dict) for one in encodings):
        return -1
    try:
        used = [integer(one, 3) for one in encodings if one[1] in _DATA_PAGES and one[2] in _DICTIONARY_ENCODINGS]
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
    """Places that lie between the magic and the footer; all others count as absent."""
    inside = (offsets >= 4) & (lengths > 0) & (lengths <= footer_start) & (offsets <= footer_start - lengths)
    return np.where(inside, offsets, -1), np.where(inside, lengths, -1)


def _encrypted(file: str, how: str) -> UnsupportedError:
    return UnsupportedError(f"{file} cannot be read: {how}; decrypt it first", context={"file": file})

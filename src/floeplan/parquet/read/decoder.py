"""Decodes whole row groups: the one place that chooses the Parquet decoder for bulk reads.

Rule: a decoder gets row groups, leaf columns and the rows to keep, and evaluates nothing. Predicates, deletes, defaults
and casts are Iceberg's and Spark's, and no decoder has the same semantics for NaN, -0.0, decimals or time zones.

There are two decoders. The compiled one (``pages._flat_columns``) decompresses pages to where their values belong and
skips rows that are filtered out. It decodes top-level columns of numbers, decimals and text without repetition, in
pages that are stored with Zstandard or without compression, if pyarrow would return the values in the same layout.
pyarrow decodes everything else. The suite ``local`` measures pyarrow's and Polars' decoders beside it, and
decompression alone, which is most of the time.

From an object store the columns are fetched in one round trip. The footer is not read again.

Text whose pages are all encoded with a dictionary can stay so, for predicates that are evaluated on the dictionary.

Fail-safe: a page that is not as expected leaves its column to pyarrow. Row groups that decode to another number of rows
than the footer states are an error.
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache, cached_property, lru_cache, partial
from io import RawIOBase
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floeplan import arrow_compute as pc
from floeplan.kernels import load_kernel
from floeplan.parquet.footer.footer import MAX_KNOWN_SCHEMAS, ParquetFooter
from floeplan.parquet.footer.logical_types import Kind, Physical
from floeplan.parquet.footer.schema import FileColumns, SchemaNode
from floeplan.parquet.pages import zstd
from floeplan.parquet.pages.data_pages import NOT_COMPRESSED, UNSUPPORTED_PAGE, ZSTD, PageCodec, split_dictionary
from floeplan.parquet.read.buffers import Room, pool
from floeplan.parquet.read.pages import WORTH_THREADS, FieldLayout, read_arrow_field
from floeplan.parquet.source import ByteSource, LocalSource, Range, corrupt, missing_file
from floeplan.vectors import Bytes, Ints, Mask, arrow, validity_bitmap

INDEXED_TEXT = pa.dictionary(pa.int32(), pa.string())
"""The type of text that stays encoded with a dictionary."""
_ARROW_SCHEMA = b"ARROW:schema"
_MOST_ROWS, _MOST_COMPRESSED, _SMALL = 1 << 27, 256, 1 << 20
"""Limits on what a footer may claim before memory is allocated: rows of a row group, and the compression ratio of what
is not small anyway."""
_MOST_TEXT = 1 << 28
"""Most bytes to allocate for text before its length is known."""
_POOL = pa.system_memory_pool()
"""Not Arrow's default: it requests huge pages, and the kernel takes 2 to 4 times as long to clear these."""
_WORTH_KEEPING = 2 / 3
"""A text buffer that is filled less than this is copied to a smaller one."""
_MOST_REUSED = 1 << 23
"""Bytes that a thread keeps to read the next column chunk into."""
_WORTH_POOLING = 1 << 16
"""Bytes from which a buffer is taken from the pool."""
_SPARE = 16
"""The kernel copies short values in blocks of this many bytes, where both buffers have that many left."""
_Column: TypeAlias = tuple[pa.Field, pa.ChunkedArray]

_kernel = load_kernel("floeplan.parquet.pages._flat_columns")
_thread = threading.local()


def decode_alone() -> None:
    """Decode in this thread alone from now on: as many other threads as there are cores decode other files."""
    _thread.decodes_alone = True


@cache
def decoders() -> ThreadPoolExecutor:
    """As many threads as there are cores, for files that many more threads fetch.

    Arrow's allocator keeps memory for each thread that used it, and clearing that takes longer than decoding.
    """
    return ThreadPoolExecutor(os.cpu_count(), "floeplan-decode", decode_alone)


os.register_at_fork(after_in_child=decoders.cache_clear)  # threads do not survive a fork


def decode_row_groups(
    source: ByteSource,
    footer: ParquetFooter,
    leaves: Sequence[int],
    groups: Ints,
    *,
    keep_dictionaries: bool = False,
    kept: Mask | None = None,
) -> pa.Table:
    """Rows of row groups, in the top-level fields of some leaves; fields are in the order of the file.

    ``kept`` has one flag for each row of the row groups; all rows by default.
    """
    chunks = [footer.chunks(leaf) for leaf in leaves]
    size = sum(int(chunk.total_compressed_size[groups].sum()) for chunk in chunks)
    threads = size >= WORTH_THREADS and not getattr(_thread, "decodes_alone", False)
    pieces: dict[Range, memoryview] = {}
    if not isinstance(source, LocalSource):
        ranges = [(int(one.start[at]), int(one.total_compressed_size[at])) for at in groups for one in chunks]
        pieces = dict(zip(ranges, source.read_ranges(ranges), strict=True))
    flat = FlatColumns(source, footer, groups, pieces, kept)
    decode = partial(flat.decode, keep_dictionaries=keep_dictionaries)
    if threads and len(leaves) > 1:
        sizes = [-int(chunk.total_uncompressed_size[groups].sum()) for chunk in chunks]
        # The largest first: one that begins last would end alone.
        ordered = [leaf for _, leaf in sorted(zip(sizes, leaves, strict=True))]
        decoded = _side_by_side(decode, ordered)
    else:
        decoded = {leaf: decode(leaf) for leaf in leaves}
    fields = {leaf: at for at, node in enumerate(footer.columns.root.children) for leaf in node.leaf_indexes}
    columns = {fields[leaf]: column for leaf, column in decoded.items() if column is not None}
    others = [leaf for leaf in leaves if fields[leaf] not in columns]
    if others:
        tables = _decode_with_pyarrow(source, footer, others, groups, pieces, threads=threads)
        for table, table_leaves in tables:
            rows = table if kept is None else table.filter(arrow(kept))
            if not keep_dictionaries:
                rows = _expanded(rows)
            names = sorted({fields[leaf] for leaf in table_leaves})
            columns |= dict(zip(names, zip(rows.schema, rows.columns, strict=True), strict=True))
    if not columns:
        expected = int(footer.row_group_rows[groups].sum()) if kept is None else int(np.count_nonzero(kept))
        return pa.table({"rows": pa.nulls(expected)}).select([])
    found = [columns[at] for at in sorted(columns)]
    return pa.Table.from_arrays([array for _, array in found], schema=pa.schema([field for field, _ in found]))


def _side_by_side(decode: Callable[[int], _Column | None], leaves: Sequence[int]) -> dict[int, _Column | None]:
    """Decode leaves in this thread and in those that exist already: starting threads and ending them takes time.

    It waits only for threads that have begun, because other files may keep all of them busy.
    """
    left, found = iter(leaves), dict[int, _Column | None]()

    def work() -> None:
        for leaf in left:  # all threads share the iterator
            found[leaf] = decode(leaf)

    others = [decoders().submit(work) for _ in range((os.cpu_count() or 1) - 1)]
    try:
        work()
    finally:
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        other.result()
    return found


def _decode_with_pyarrow(
    source: ByteSource,
    footer: ParquetFooter,
    leaves: Sequence[int],
    groups: Ints,
    pieces: Mapping[Range, memoryview],
    *,
    threads: bool,
) -> list[tuple[pa.Table, list[int]]]:
    """All rows of row groups, and which leaves a table holds; one of them has the text that keeps its dictionary."""
    encoded = [leaf for leaf in leaves if is_dictionary_text(footer, leaf, groups)]
    others = [leaf for leaf in leaves if leaf not in encoded]
    # ``read_dictionary`` and large text exclude each other, so that there are two readers of one file.
    names = [footer.leaves[leaf].path[0] for leaf in encoded]
    readers: list[tuple[list[int], dict[str, Any]]] = [
        (others, {"binary_type": pa.large_binary()}),
        (encoded, {"read_dictionary": names}),
    ]
    found = []
    try:
        if isinstance(source, LocalSource):
            opened: pa.NativeFile = pa.OSFile(source.name)
        else:
            opened = pa.PythonFile(_PrefetchedFile(source, pieces), mode="r")
        known = pq.read_metadata(pa.BufferReader(footer.as_file()))
        for some, options in readers:
            if some:
                file = pq.ParquetFile(
                    opened, metadata=known, coerce_int96_timestamp_unit="us", pre_buffer=False, **options
                )
                table = file.reader.read_row_groups(groups.tolist(), column_indices=some, use_threads=threads)
                found.append((table, some))
    except FileNotFoundError:
        raise missing_file(source) from None
    except (OSError, pa.ArrowException) as error:
        raise corrupt(footer.file, f"its row groups cannot be decoded: {error}") from None
    expected = int(footer.row_group_rows[groups].sum())
    for table, _ in found:
        if table.num_rows != expected:
            raise corrupt(footer.file, f"row groups hold {table.num_rows} rows instead of {expected}")
        # pyarrow returns an index beyond the dictionary as it is stored.
        for chunk in chain.from_iterable(one.chunks for one in table.columns if pa.types.is_dictionary(one.type)):
            if (pc.max(chunk.indices).as_py() or 0) >= max(len(chunk.dictionary), 1):
                raise corrupt(footer.file, "an index is beyond the dictionary of its column")
    return found


def _expanded(table: pa.Table) -> pa.Table:
    """Text by its indexes; ``take`` is faster than a cast of the dictionary array."""
    for at, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        if pa.types.is_dictionary(field.type):
            chunks = [chunk.dictionary.cast(pa.large_string()).take(chunk.indices) for chunk in column.chunks]
            text = pa.chunked_array(chunks, type=pa.large_string())
            table = table.set_column(at, field.with_type(pa.large_string()), text)
    return table


class _PrefetchedFile(RawIOBase):
    """A seekable file for pyarrow that serves prefetched ranges, and fetches all other reads on demand."""

    def __init__(self, source: ByteSource, pieces: Mapping[Range, memoryview]) -> None:
        self._source, self._pieces, self._at = source, pieces, 0

    def read(self, length: int = -1) -> Any:
        """Read from the current position."""
        left = self._source.size - self._at
        span = (self._at, left if length < 0 else min(length, left))
        self._at += span[1]
        found = self._pieces.get(span)
        return self._source.read_ranges([span])[0] if found is None else found

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        self._at = offset + (0, self._at, self._source.size)[whence]
        return self._at

    def seekable(self) -> bool:
        """Always true."""
        return True

    def readable(self) -> bool:
        """Always true."""
        return True


def thread_codec(number: int) -> PageCodec:
    """A codec for this thread; making one takes as long as decompressing a small page."""
    codecs: dict[int, PageCodec] = _thread.__dict__.setdefault("codecs", {})
    if number not in codecs:
        codecs[number] = PageCodec(number)
    return codecs[number]


def _thread_memory(length: int) -> memoryview:
    """The reusable read buffer of this thread."""
    kept: memoryview | None = getattr(_thread, "memory", None)
    if kept is None or len(kept) < length:
        kept = _thread.memory = memoryview(bytearray(min(length + length // 4, _MOST_REUSED)))
    return kept[:length]


def _allocated(size: int) -> Room | _Buffer:
    """Memory for a buffer; of the pool, where that saves more time than it takes."""
    room = pool().room(size) if size >= _WORTH_POOLING else None
    return room or _Buffer(pa.allocate_buffer(size, memory_pool=_POOL))


class _Buffer:
    """Memory from Arrow, as ``Room``."""

    def __init__(self, memory: pa.Buffer) -> None:
        self._memory = memory
        self.bytes: Bytes = np.frombuffer(memory, dtype=np.uint8)

    def buffer(self, start: int, size: int) -> pa.Buffer:
        """A part of it."""
        return self._memory.slice(start, size)


class ValueCounts(NamedTuple):
    """Values of a column of text, the last one null, and the number of rows that have each."""

    values: pa.Array
    counts: Ints


class FlatColumns:
    """The kept rows of flat columns of some row groups; thread-safe."""

    def __init__(
        self,
        source: ByteSource,
        footer: ParquetFooter,
        groups: Ints,
        pieces: Mapping[Range, memoryview],
        kept: Mask | None,
    ) -> None:
        self._source, self._footer, self._groups, self._pieces = source, footer, groups, pieces
        rows = footer.row_group_rows[groups]
        self._rows: list[int] = rows.tolist()
        self._kept: list[Any] = [None] * len(groups)
        if kept is not None and _kernel is not None and rows.max(initial=0) <= _MOST_ROWS:
            masks = np.split(np.ascontiguousarray(kept).view(np.uint8), np.cumsum(rows)[:-1])
            self._kept = [_kernel.Kept(mask) for mask in masks]

    def decode(self, leaf: int, *, keep_dictionaries: bool = False) -> _Column | None:
        """One column, if it can be decoded here."""
        footer, groups = self._footer, self._groups
        field, kind = _layouts(footer.columns, footer.key_values.get(_ARROW_SCHEMA), footer.created_by)[leaf]
        chunks = footer.chunks(leaf)
        if kind is None:
            return None
        # A chunk whose size the footer contradicts is left to pyarrow, too.
        if not (footer.chunk_sizes(chunks) == chunks.total_compressed_size).all():
            return None
        if kind == _kernel.TEXT and keep_dictionaries and is_dictionary_text(footer, leaf, groups):
            field, kind = field.with_type(INDEXED_TEXT), _kernel.INDEXES
        try:
            arrays = [chunk.array(field.type, kind) for chunk in self._chunks(leaf)]
        except (*UNSUPPORTED_PAGE, IndexError):
            return None
        return field, pa.chunked_array(arrays, type=field.type)

    def value_counts(self, leaf: int) -> list[ValueCounts] | None:
        """How often each value of a column of text occurs, in each row group, if all of them have a dictionary."""
        footer, chunks = self._footer, self._footer.chunks(leaf)
        _, kind = _layouts(footer.columns, footer.key_values.get(_ARROW_SCHEMA), footer.created_by)[leaf]
        whole = (footer.chunk_sizes(chunks) == chunks.total_compressed_size).all()
        if kind is None or kind != _kernel.TEXT or not whole or not is_dictionary_text(footer, leaf, self._groups):
            return None
        try:
            return [ValueCounts(*chunk.counts()) for chunk in self._chunks(leaf)]
        except (*UNSUPPORTED_PAGE, IndexError):
            return None

    def _chunks(self, leaf: int) -> Iterator[_Chunk]:
        """The chunks of a column; raises ``ValueError`` for one that is left to pyarrow."""
        chunks, max_def = self._footer.chunks(leaf), self._footer.leaves[leaf].max_def
        for group, rows, kept in zip(self._groups.tolist(), self._rows, self._kept, strict=True):
            span = int(chunks.start[group]), int(chunks.total_compressed_size[group])
            data = self._pieces[span] if self._pieces else self._read(*span)
            size, codec = int(chunks.total_uncompressed_size[group]), int(chunks.codec[group])
            if size > _MOST_COMPRESSED * len(data) + _SMALL or codec not in (NOT_COMPRESSED, ZSTD) or rows > _MOST_ROWS:
                raise ValueError("a chunk that another decoder reads")
            yield _Chunk(data, codec, max_def, size, rows, kept)

    def _read(self, offset: int, length: int) -> memoryview:
        """One chunk, of a local file in memory of this thread until it reads the next one.

        What is decoded is a copy. Memory of its own for each chunk would lie between the decoded columns, which leaves
        gaps when it is freed, and the kernel would have to clear more of it.
        """
        source = self._source
        inside = 0 <= offset <= source.size - length and 0 <= length <= _MOST_REUSED
        if not inside or not isinstance(source, LocalSource):
            return source.read_ranges([(offset, length)])[0]
        memory = _thread_memory(length)
        source.read_into(memory, offset)
        return memory


class _Chunk:
    """One column chunk; not thread-safe."""

    def __init__(self, data: memoryview, codec: int, max_def: int, size: int, rows: int, kept: Any) -> None:
        self._max_def, self._size, self._rows, self._kept = max_def, size, rows, kept
        self._count = rows if kept is None else len(kept)
        self._codec = thread_codec(codec)
        dictionary, self._pages = split_dictionary(data, self._codec, size)
        self._entries, self._dictionary = (0, _NOTHING) if dictionary is None else (dictionary.rows, dictionary.values)

    def array(self, type_: pa.DataType, kind: int) -> pa.Array:
        """The kept rows as an array."""
        if kind == _kernel.TEXT:
            return self._text(type_)
        width = 4 if kind == _kernel.INDEXES else type_.bit_width // 8
        out = _allocated(_kernel.HEADROOM + width * self._count)
        values = out.buffer(_kernel.HEADROOM, width * self._count)
        if kind == _kernel.INDEXES:
            bitmap, nulls, _ = self._decode(kind, out.bytes, self._dictionary, self._entry_ends[0])
            found = pa.Array.from_buffers(pa.int32(), self._count, [bitmap, values], nulls)
            return pa.DictionaryArray.from_arrays(found, self._entry_text, safe=False)
        bitmap, nulls, _ = self._decode(kind, out.bytes, self._dictionary, _NO_ENTRIES)
        return pa.Array.from_buffers(type_, self._count, [bitmap, values], nulls)

    def counts(self) -> tuple[pa.Array, Ints]:
        """The entries of the dictionary, then null, and how many rows have each."""
        ends, entries = self._entry_ends
        found = np.zeros(_kernel.HEADROOM // 8 + len(ends), dtype=np.int64)
        self._decode(_kernel.COUNTS, found.view(np.uint8), entries, ends)
        return pa.concat_arrays([self._entry_text, pa.nulls(1, pa.string())]), found[_kernel.HEADROOM // 8 :]

    def _text(self, type_: pa.DataType) -> pa.Array:
        ends, entries = self._entry_ends
        longest = int(np.diff(ends).max(initial=0))
        most = self._size + longest * self._count
        if most > max(_MOST_TEXT, 2 * self._size):
            raise ValueError("text that may be much longer than it is stored")
        offsets, text = _allocated(_kernel.HEADROOM + 8 * (self._count + 1)), _allocated(most + _SPARE)
        bitmap, nulls, written = self._decode(_kernel.TEXT, offsets.bytes, entries, ends, text.bytes)
        if written < _WORTH_KEEPING * most:
            smaller = _allocated(written)
            smaller.bytes[:written] = text.bytes[:written]
            text = smaller
        buffers = [bitmap, offsets.buffer(_kernel.HEADROOM, 8 * (self._count + 1)), text.buffer(0, written)]
        return pa.Array.from_buffers(type_, self._count, buffers, nulls)

    @cached_property
    def _entry_ends(self) -> tuple[Ints, Bytes]:
        """Where the entries of a dictionary of text begin and the last one ends, and their bytes."""
        ends, text = np.zeros(self._entries + 1, dtype=np.int64), np.zeros(len(self._dictionary) + _SPARE, np.uint8)
        _kernel.decode_text(self._dictionary, ends, text)
        return ends, text

    @property
    def _entry_text(self) -> pa.Array:
        ends, text = self._entry_ends
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), self._entries, buffers, 0)

    def _decode(
        self, kind: int, out: Bytes, dictionary: Bytes, ends: Ints, text: Bytes | None = None
    ) -> tuple[pa.Buffer | None, int, int]:
        """Fill the buffers; returns the validity bitmap, the number of nulls, and the bytes of text."""
        valid = np.empty(self._count, dtype=np.bool_)
        written, nulls = _kernel.decode_column(
            self._pages,
            *self._codec.address,
            kind,
            self._max_def,
            self._size,
            self._rows,
            self._kept,
            dictionary,
            ends,
            out,
            _NOTHING if text is None else text,
            valid.view(np.uint8),
        )
        bitmap, count = validity_bitmap(valid) if nulls else (None, 0)
        return bitmap, count, written


_NOTHING, _NO_ENTRIES = np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64)


def skips_pages(footer: ParquetFooter, leaves: Iterable[int]) -> bool:
    """Whether the compiled decoder reads these columns, which does not decompress pages without kept rows."""
    layouts = _layouts(footer.columns, footer.key_values.get(_ARROW_SCHEMA), footer.created_by)
    known = {NOT_COMPRESSED, ZSTD}
    return all(layouts[leaf][1] is not None and known.issuperset(footer.chunks(leaf).codec.tolist()) for leaf in leaves)


def is_dictionary_text(footer: ParquetFooter, leaf: int, groups: Ints) -> bool:
    """Whether all pages of a top-level text column are encoded with a dictionary.

    For a plain page, a reader of dictionaries would build one, which takes far longer than decoding the text.
    """
    column = footer.leaves[leaf]
    is_text = column.physical is Physical.BYTE_ARRAY and column.annotation.kind is Kind.STRING
    if not is_text or len(column.path) > 1 or column.max_rep or "." in column.path[0]:
        return False
    if len(footer.columns.find(column.path[0], case_sensitive=True)) > 1:
        return False
    chunks = footer.chunks(leaf)
    return bool(((chunks.dictionary_pages[groups] > 0) & (chunks.other_pages[groups] == 0)).all())


def stored_arrow_schema(footer: ParquetFooter) -> pa.Schema | None:
    """The Arrow schema that the writer stored in the footer; it restores types that Parquet does not have."""
    encoded = footer.key_values.get(_ARROW_SCHEMA)
    return None if encoded is None else _stored_schema(footer.columns, encoded)


def _stored_schema(columns: FileColumns, encoded: bytes) -> pa.Schema | None:
    written = _decoded(encoded)
    return written if written is not None and len(written) == len(columns.root.children) else None


@lru_cache(MAX_KNOWN_SCHEMAS)
def _decoded(encoded: bytes) -> pa.Schema | None:
    with suppress(OSError, ValueError, pa.ArrowException):
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))
    return None


def field_layout(columns: FileColumns, node: SchemaNode, arrow_field: pa.Field | None, created_by: str) -> FieldLayout:
    """What pyarrow needs to know of a top-level field."""
    leaves = tuple(columns.leaves[leaf] for leaf in node.leaf_indexes)
    return FieldLayout(tuple(part.encoded for part in node.walk()), leaves, created_by.encode(), arrow_field)


@lru_cache(MAX_KNOWN_SCHEMAS)
def _layouts(columns: FileColumns, encoded: bytes | None, created_by: str) -> list[tuple[pa.Field, int | None]]:
    """The field of each leaf as pyarrow returns it, and how the kernel decodes it, if it does.

    Files of one table mostly share them.
    """
    found: list[tuple[pa.Field, int | None]] = [(None, None)] * len(columns.leaves)
    written = None if encoded is None else _stored_schema(columns, encoded)
    if _kernel is None or not zstd.available or (written is None and encoded is not None):
        return found
    for at, node in enumerate(columns.root.children):
        if node.leaf is not None and not columns.leaves[node.leaf].max_rep:
            arrow_field = None if written is None else written.field(at)
            field = read_arrow_field(field_layout(columns, node, arrow_field, created_by))
            found[node.leaf] = _kernel_layout(field, columns.leaves[node.leaf].physical)
    return found


def _kernel_layout(field: pa.Field, physical: Physical) -> tuple[pa.Field, int | None]:
    """Only types for which pyarrow copies the stored values, or widens integers to decimals."""
    type_ = field.type
    if physical is Physical.BYTE_ARRAY:
        large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(type_, type_)
        kind = _kernel.TEXT if large in (pa.large_string(), pa.large_binary()) else None
        return field.with_type(large), kind
    is_decimal = isinstance(type_, pa.Decimal128Type)
    if physical is Physical.INT32:
        return field, _kernel.DECIMALS_4 if is_decimal else _kernel.NUMBERS_4 if type_ in _NUMBERS_4 else None
    if physical is Physical.INT64:
        is_number = type_ == pa.int64() or (pa.types.is_timestamp(type_) and type_.unit == "us")
        return field, _kernel.DECIMALS_8 if is_decimal else _kernel.NUMBERS_8 if is_number else None
    floating = {Physical.FLOAT: (pa.float32(), _kernel.NUMBERS_4), Physical.DOUBLE: (pa.float64(), _kernel.NUMBERS_8)}
    expected, kind = floating.get(physical, (None, None))
    return field, kind if type_ == expected else None


_NUMBERS_4 = (pa.int32(), pa.date32())

"""Decodes whole row groups: the one place that chooses the Parquet decoder for bulk reads.

Rule: a decoder gets row groups, leaf columns and the rows to keep, and evaluates nothing. Predicates, deletes, defaults
and casts are Iceberg's and Spark's, and no decoder has the same semantics for NaN, -0.0, decimals or time zones.

There are two decoders. Top-level text whose pages are all encoded with a dictionary is decoded page by page to its
indexes, without the rows that are not kept; it either stays so, for predicates that are evaluated on the dictionary, or
is expanded at once. pyarrow decodes everything else: numbers and plain text cost the same either way, because most of
their time goes to decompression.

Polars' reader is not used: with its text converted to Arrow's, file by file, it takes 0.9 of pyarrow's CPU for all six
columns of the ``local`` benchmark, but 1.2 to 1.4 for single columns of numbers or long text.

From an object store the columns are fetched in one round trip. The footer is not read again.

Fail-safe: a page that is not as expected leaves its column to pyarrow. Row groups that decode to another number of rows
than the footer states are an error.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, lru_cache, partial
from io import RawIOBase
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from floeplan.parquet.footer.footer import MAX_KNOWN_SCHEMAS, ParquetFooter
from floeplan.parquet.footer.logical_types import Kind, Physical
from floeplan.parquet.pages.data_pages import (
    DATA_PAGE,
    DICTIONARY_PAGE,
    PLAIN,
    PLAIN_DICTIONARY,
    RLE_DICTIONARY,
    UNSUPPORTED_PAGE,
    Page,
    PageCodec,
    kernel,
    read_pages,
    unpack_hybrid,
)
from floeplan.parquet.read.pages import WORTH_THREADS
from floeplan.parquet.source import ByteSource, LocalSource, Range, corrupt, missing_file
from floeplan.schemas import FIELD_ID
from floeplan.vectors import Ints, Mask

INDEXED_TEXT = pa.dictionary(pa.int32(), pa.string())
"""The type of text that stays encoded with a dictionary."""
_ARROW_SCHEMA = b"ARROW:schema"
_DICTIONARY_ENCODINGS = (PLAIN_DICTIONARY, RLE_DICTIONARY)
_MOST_ROWS, _MOST_COMPRESSED, _SMALL = 1 << 27, 256, 1 << 20
"""Limits on what a footer may claim before memory is allocated: rows of a row group, and by how much it is compressed
beyond a size that does not matter."""
_LONGEST_COPY = 16
"""``copy_byte_arrays`` copies short values by this many bytes, if there is room."""
_Column: TypeAlias = tuple[pa.Field, pa.ChunkedArray]


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
    threads = sum(int(chunk.total_compressed_size[groups].sum()) for chunk in chunks) >= WORTH_THREADS
    pieces: dict[Range, memoryview] = {}
    if not isinstance(source, LocalSource):
        ranges = [(int(one.start[at]), int(one.total_compressed_size[at])) for at in groups for one in chunks]
        pieces = dict(zip(ranges, source.read_ranges(ranges), strict=True))
    columns = _decode_flat(source, footer, leaves, groups, pieces, kept, threads=threads)
    fields = {leaf: at for at, node in enumerate(footer.columns.root.children) for leaf in node.leaf_indexes}
    others = [leaf for leaf in leaves if fields[leaf] not in columns]
    if others:
        decoded = _decode_with_pyarrow(source, footer, others, groups, pieces, threads=threads)
        for table, table_leaves in decoded:
            rows = table if kept is None else table.filter(pa.array(kept))
            names = sorted({fields[leaf] for leaf in table_leaves})
            columns |= dict(zip(names, zip(rows.schema, rows.columns, strict=True), strict=True))
    if not columns:
        expected = int(footer.row_group_rows[groups].sum()) if kept is None else int(np.count_nonzero(kept))
        return pa.table({"rows": pa.nulls(expected)}).select([])
    found = [columns[at] for at in sorted(columns)]
    if not keep_dictionaries:
        found = [_expanded(*column) if pa.types.is_dictionary(column[0].type) else column for column in found]
    return pa.Table.from_arrays([array for _, array in found], schema=pa.schema([field for field, _ in found]))


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
    encoded = [leaf for leaf in leaves if _is_dictionary_text(footer, leaf, groups)]
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
    return found


def _is_dictionary_text(footer: ParquetFooter, leaf: int, groups: Ints) -> bool:
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


def _expanded(field: pa.Field, column: pa.ChunkedArray) -> _Column:
    """Text by its indexes; ``take`` is faster than a cast of the dictionary array."""
    chunks = [chunk.dictionary.cast(pa.large_string()).take(chunk.indices) for chunk in column.chunks]
    return field.with_type(pa.large_string()), pa.chunked_array(chunks, type=pa.large_string())


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


def _decode_flat(
    source: ByteSource,
    footer: ParquetFooter,
    leaves: Sequence[int],
    groups: Ints,
    pieces: Mapping[Range, memoryview],
    kept: Mask | None,
    *,
    threads: bool,
) -> dict[int, _Column]:
    """The kept rows of flat columns, by the position of their field; columns that pyarrow must decode are left out."""
    written = stored_arrow_schema(footer)
    if kernel is None or (written is None and _ARROW_SCHEMA in footer.key_values):
        return {}
    nodes = {node.leaf: (at, node) for at, node in enumerate(footer.columns.root.children) if node.leaf is not None}
    rows = footer.row_group_rows[groups]
    masks = [None] * len(groups) if kept is None else np.split(kept, np.cumsum(rows)[:-1])

    def decode(leaf: int) -> _Column | None:
        if leaf not in nodes or not _is_flat_text(footer, leaf, groups):
            return None
        if written is not None and written.field(nodes[leaf][0]).type not in (pa.string(), pa.large_string()):
            return None
        column, chunks, codecs = footer.leaves[leaf], footer.chunks(leaf), cache(partial(PageCodec, context=False))
        arrays = []
        try:
            for group, count, mask in zip(groups.tolist(), rows.tolist(), masks, strict=True):
                span = int(chunks.start[group]), int(chunks.total_compressed_size[group])
                data = pieces[span] if pieces else source.read_ranges([span])[0]
                size = int(chunks.total_uncompressed_size[group])
                if size > _MOST_COMPRESSED * len(data) + _SMALL:
                    return None
                pages = read_pages(data, codecs(int(chunks.codec[group])), column.max_def, size, count)
                arrays.append(_indexed_text(_KeptPages(pages, count, mask)))
        except (*UNSUPPORTED_PAGE, IndexError):
            return None
        node = nodes[leaf][1]
        metadata = None if node.field_id is None else {FIELD_ID: str(node.field_id)}
        return pa.field(node.name, INDEXED_TEXT, column.max_def > 0, metadata), pa.chunked_array(
            arrays, type=INDEXED_TEXT
        )

    if threads and len(leaves) > 1:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = list(pool.map(decode, leaves))
    else:
        found = list(map(decode, leaves))
    return {nodes[leaf][0]: column for leaf, column in zip(leaves, found, strict=True) if column is not None}


def stored_arrow_schema(footer: ParquetFooter) -> pa.Schema | None:
    """The Arrow schema that the writer stored in the footer; it restores types that Parquet does not have."""
    encoded = footer.key_values.get(_ARROW_SCHEMA)
    written = None if encoded is None else _decoded(encoded)
    return written if written is not None and len(written) == len(footer.columns.root.children) else None


@lru_cache(MAX_KNOWN_SCHEMAS)
def _decoded(encoded: bytes) -> pa.Schema | None:
    with suppress(OSError, ValueError, pa.ArrowException):
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))
    return None


def _is_flat_text(footer: ParquetFooter, leaf: int, groups: Ints) -> bool:
    """Whether a column is text in pages with a dictionary that can be read one by one."""
    column, chunks, rows = footer.leaves[leaf], footer.chunks(leaf), footer.row_group_rows[groups]
    if not _is_dictionary_text(footer, leaf, groups) or column.max_def > 1 or rows.max(initial=0) > _MOST_ROWS:
        return False
    # A writer that forgot some bytes is left to pyarrow, too.
    whole = (footer.chunk_sizes(chunks) == chunks.total_compressed_size).all()
    return bool(whole) and all(map(PageCodec.knows, chunks.codec[groups].tolist()))


class _KeptPages:
    """The data pages of one column chunk; its dictionary page is known once a data page is.

    Values of kept rows are copied without gaps, and ``spread`` makes room for nulls where a page has some.
    """

    def __init__(self, pages: Iterable[Page], rows: int, kept: Mask | None) -> None:
        self._pages, self.rows, self._kept = pages, rows, kept
        self.count = rows if kept is None else int(np.count_nonzero(kept))
        self.entries, self.dictionary = 0, np.zeros(0, dtype=np.uint8)
        self._present: list[tuple[int, Mask | None]] = []

    def __iter__(self) -> Iterator[tuple[Page, Mask | None, int]]:
        """Pages with values to keep, which of their values these are (``None`` for all), and their number."""
        done = 0
        for page in self._pages:
            if page.kind == DICTIONARY_PAGE:
                if page.encoding not in (PLAIN, PLAIN_DICTIONARY) or page.rows < 0:
                    raise ValueError("a dictionary that is not plain")
                self.entries, self.dictionary = page.rows, page.values
                continue
            mask = None if self._kept is None else self._kept[done : done + page.rows]
            done += page.rows
            rows = page.rows if mask is None else int(np.count_nonzero(mask))
            if page.present is None:
                self._present.append((rows, None))
            elif mask is None:
                self._present.append((rows, page.present))
            else:
                self._present.append((rows, page.present[mask]))
                mask = mask[page.present]
            count = page.count if mask is None else int(np.count_nonzero(mask))
            if count:
                yield page, None if count == page.count else mask, count
        if done != self.rows:
            raise ValueError(f"{done} rows instead of {self.rows}")

    def validity(self) -> Mask | None:
        """Which of the kept rows are not null, after all pages; ``None`` for all of them."""
        if all(present is None for _, present in self._present):
            return None
        return np.concatenate([np.ones(rows, np.bool_) if one is None else one for rows, one in self._present])

    @staticmethod
    def indexes(page: Page, mask: Mask | None) -> npt.NDArray[np.int32]:
        """The dictionary indexes of the kept values of a page; none of them is negative."""
        if page.encoding not in _DICTIONARY_ENCODINGS or not len(page.values):
            raise ValueError("a page without dictionary indexes")
        found = unpack_hybrid(page.values[1:], int(page.values[0]), page.count)
        return found if mask is None else found[mask]


def _with_nulls(pages: _KeptPages, type_: pa.DataType, room: pa.Buffer, item: np.dtype[Any]) -> pa.Array:
    """An array of the values in a buffer; they move apart where rows between them are null."""
    validity = pages.validity()
    if validity is None:
        return pa.Array.from_buffers(type_, pages.count, [None, room], 0)
    spread = np.zeros(pages.count, dtype=item)
    spread[validity] = np.frombuffer(room, dtype=item)[: np.count_nonzero(validity)]
    return pa.Array.from_buffers(type_, pages.count, [_bitmap(validity), pa.py_buffer(spread)])


def _bitmap(flags: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _byte_arrays(pages: _KeptPages, type_: pa.DataType, most: int) -> pa.Array:
    """Values of at most this many bytes altogether."""
    room = pa.allocate_buffer(max(most, 0) + _LONGEST_COPY, resizable=True)
    offsets = pa.allocate_buffer(8 * (pages.count + 1))
    out, ends, at, written = np.frombuffer(room, dtype=np.uint8), np.frombuffer(offsets, dtype=np.int64), 0, 0
    ends[0] = 0
    for page, mask, count in pages:
        if page.encoding != PLAIN:
            raise ValueError("a page of byte arrays that is not plain")
        flags = None if mask is None else mask.view(np.uint8)
        written = kernel.copy_byte_arrays(page.values, page.count, flags, ends[1 + at : 1 + at + count], out, written)
        at += count
    del out
    room.resize(written, shrink_to_fit=True)
    validity = pages.validity()
    if validity is None:
        return pa.Array.from_buffers(type_, pages.count, [None, offsets, room], 0)
    # A null ends where the value before it does.
    spread = ends[np.concatenate(([0], np.cumsum(validity)))]
    return pa.Array.from_buffers(type_, pages.count, [_bitmap(validity), pa.py_buffer(spread), room])


def _indexed_text(pages: _KeptPages) -> pa.Array:
    room, at = pa.allocate_buffer(4 * pages.count), 0
    out = np.frombuffer(room, dtype=np.int32)
    for page, mask, count in pages:
        out[at : at + count] = pages.indexes(page, mask)
        at += count
    if int(out[:at].max(initial=-1)) >= pages.entries:
        raise ValueError("an index that the dictionary does not have")
    entries = Page(DATA_PAGE, pages.entries, PLAIN, None, pages.dictionary)
    text = _byte_arrays(_KeptPages([entries], pages.entries, None), pa.large_string(), len(pages.dictionary))
    indexes = _with_nulls(pages, pa.int32(), room, np.dtype("V4"))
    return pa.DictionaryArray.from_arrays(indexes, text.cast(pa.string()), safe=False)

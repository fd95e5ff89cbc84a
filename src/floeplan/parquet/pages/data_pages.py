"""Splits, decompresses, compresses and builds the data pages of flat columns without decoding their values.

A page of a flat column holds definition levels (which rows are null) and the values of the other rows. Data pages v1
and v2 are read; v1 is written, because every reader supports it.

Compression: for Zstandard at its default level, ``PageCodec.tune`` looks for faster settings that compress a sample of
the column no worse: values that resemble the previous one need no match search (``zstd.NeighbourCompressor``), other
numbers no search for long matches, and evenly distributed bytes no entropy coding. The output is standard Zstandard.

Fail-safe: a page with anything unexpected raises one of ``UNSUPPORTED_PAGE``, and the caller reads the column with the
full decoder instead. Sizes and row counts in a header are checked against the footer before memory is allocated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zstandard

from floeplan.errors import CorruptFileError
from floeplan.kernels import load_kernel
from floeplan.parquet.footer.thrift import I32, SCALAR, STRUCT, encode_struct, encode_varint, integer, read_struct
from floeplan.parquet.pages import zstd as zstd_library
from floeplan.vectors import Bytes, Mask

kernel = load_kernel("floeplan.parquet.pages._page_values")

DATA_PAGE: Final = 0
DICTIONARY_PAGE: Final = 2
DATA_PAGE_V2: Final = 3
PLAIN: Final = 0
PLAIN_DICTIONARY: Final = 2
RLE: Final = 3
RLE_DICTIONARY: Final = 8
UNSUPPORTED_PAGE: Final = (ValueError, OSError, CorruptFileError, pa.ArrowException)
"""The errors by which this package reports a page that it cannot process."""

_HEADER_SHAPE: Any = {
    **dict.fromkeys((1, 2, 3), SCALAR),
    5: dict.fromkeys((1, 2, 3), SCALAR),
    7: dict.fromkeys((1, 2), SCALAR),
    8: dict.fromkeys((1, 2, 3, 4, 5, 6, 7), SCALAR),
}
_TYPE_HEADERS = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}
"""The field of PageHeader with the header of each page type."""
_HEADER_BYTES = 512
"""Nearly all headers fit into this size."""
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
NOT_COMPRESSED, ZSTD = 0, 6
_FASTER: Final[tuple[dict[str, int], ...]] = (
    {"min_match": 6, "target_length": 3, "hash_log": 11},
    {"min_match": 6, "target_length": 0, "hash_log": 10},
)
"""Faster variants of Zstandard's level 1, fastest first: large steps with uncompressed literals; a hash table that fits
into a CPU cache."""
_DEFAULT_LEVEL = 1
_SMALLEST_WINDOW = 1 << 18
_SAMPLE = 1 << 16
"""Bytes on which settings are compared."""


@dataclass(frozen=True, slots=True)
class PageContent:
    """The uncompressed content of a page.

    Attributes:
        data: Definition levels, if the column has them, and values.
        start: Offset of the values.
        width: Bytes of a number, 4 or 8; 0 for length-prefixed byte arrays; ``None`` for anything else.
    """

    data: memoryview
    start: int = 0
    width: int | None = None


class PageCodec:
    """One codec; a ``level`` of ``None`` is the default one. Not thread-safe."""

    def __init__(self, number: int, level: int | None = None) -> None:
        if not self.knows(number):
            raise ValueError(f"codec {number}")
        self.number, self._level = number, level
        self._codec = None if number == NOT_COMPRESSED else pa.Codec(_CODECS[number], compression_level=level)
        self._faster: Any = None
        self._neighbours: zstd_library.NeighbourCompressor | None = None
        own = number == ZSTD and zstd_library.available
        self._decompressor = zstd_library.Decompressor() if own else None

    @staticmethod
    def knows(number: int) -> bool:
        """Whether this codec number is supported."""
        return number == NOT_COMPRESSED or number in _CODECS

    @property
    def address(self) -> tuple[int, int]:
        """Function and context of Zstandard for a kernel; zeros for pages that are not compressed."""
        return (0, 0) if self._decompressor is None else self._decompressor.addresses()

    def tune(self, sample: PageContent) -> None:
        """Choose the fastest settings that compress the sample no worse than the default; an explicit level wins."""
        if self.number != ZSTD or self._level is not None:
            return
        self._faster = self._neighbours = None
        some = sample.data[:_SAMPLE]
        usual = len(self.compress(PageContent(some)))
        if zstd_library.available and sample.width is not None and sample.start < len(some):
            for coded in (False, True):
                like = zstd_library.NeighbourCompressor(coded=coded)
                if len(like.compress(some, sample.start, sample.width)) <= usual:
                    self._neighbours = like
                    return
        size = max(sample.data.nbytes, _SMALLEST_WINDOW)
        for settings in _FASTER:
            parameters = zstandard.ZstdCompressionParameters.from_level(_DEFAULT_LEVEL, source_size=size, **settings)
            found = zstandard.ZstdCompressor(compression_params=parameters)
            if len(found.compress(some)) <= usual:
                self._faster = found
                return

    def compress(self, content: PageContent) -> bytes | memoryview:
        """Compress the content of a page."""
        if self._codec is None:
            return content.data
        if self._neighbours is not None and content.width is not None:
            return self._neighbours.compress(content.data, content.start, content.width)
        if self._faster is not None:
            return bytes(self._faster.compress(content.data))
        return bytes(self._codec.compress(content.data, asbytes=True))

    def decompress(self, data: memoryview, size: int) -> Bytes:
        """Decompress a page to exactly ``size`` bytes."""
        if not size:
            return np.zeros(0, dtype=np.uint8)
        if self._decompressor is not None:
            return self._decompressor.decompress(data, size)
        found = data if self._codec is None else self._codec.decompress(data, decompressed_size=size)
        plain = np.frombuffer(found, dtype=np.uint8)
        if len(plain) != size:
            raise ValueError(f"{len(plain)} bytes instead of {size}")
        return plain


@dataclass(frozen=True, slots=True)
class Page:
    """An uncompressed page; ``present`` is ``None`` when no row is null."""

    kind: int
    rows: int
    encoding: int
    present: Mask | None
    values: Bytes

    @property
    def count(self) -> int:
        """Number of values that are not null."""
        return self.rows if self.present is None else int(np.count_nonzero(self.present))


def first_page_type(chunk: memoryview) -> int:
    """The type of the first page of a column chunk."""
    return integer(page_header(chunk, 0)[0], 1)


def split_dictionary(chunk: memoryview, codec: PageCodec, max_bytes: int) -> tuple[Page | None, memoryview]:
    """The dictionary page of a column chunk, if it has one, and all pages after it."""
    header, start = page_header(chunk, 0)
    kind, size, stored = integer(header, 1), integer(header, 2), integer(header, 3)
    if kind != DICTIONARY_PAGE:
        return None, chunk
    entries, encoding = integer(header[7], 1), integer(header[7], 2)
    if not (0 <= size <= max_bytes and 0 <= stored <= len(chunk) - start and 0 <= entries <= size):
        raise ValueError("a page is larger than its column chunk")
    if encoding not in (PLAIN, PLAIN_DICTIONARY):
        raise ValueError("a dictionary that is not plain")
    end = start + stored
    return Page(kind, entries, encoding, None, codec.decompress(chunk[start:end], size)), chunk[end:]


def read_pages(chunk: memoryview, codec: PageCodec, max_def: int, max_bytes: int, rows: int) -> Iterator[Page]:
    """Read the pages of a column chunk.

    Args:
        chunk: Its bytes.
        codec: Its compression codec.
        max_def: The maximum definition level.
        max_bytes: The uncompressed size of the chunk.
        rows: Rows of the row group; the pages may have fewer.
    """
    at = 0
    while at < len(chunk):
        header, start = page_header(chunk, at)
        kind, size, stored = integer(header, 1), integer(header, 2), integer(header, 3)
        if not (0 <= size <= max_bytes and 0 <= stored <= len(chunk) - start):
            raise ValueError("a page is larger than its column chunk")
        at = start + stored
        body = chunk[start:at]
        if kind == DICTIONARY_PAGE:
            entries, encoding = integer(header[7], 1), integer(header[7], 2)
            yield Page(kind, entries, encoding, None, codec.decompress(body, size))
            continue
        details = header[_TYPE_HEADERS[kind]]
        count, present = integer(details, 1), None
        if not 0 <= count <= rows:
            raise ValueError("a page has more rows than its column chunk")
        if kind == DATA_PAGE:
            encoding, values = integer(details, 2), codec.decompress(body, size)
            if max_def:
                if integer(details, 3) != RLE or len(values) < 4:
                    raise ValueError("definition levels are not RLE-encoded")
                end = 4 + int.from_bytes(values[:4].tobytes(), "little")
                if end > len(values):
                    raise ValueError("definition levels are longer than their page")
                present, values = _present(values[4:end], count), values[end:]
        else:
            # In v2 the levels are never compressed, and the values only if the header says so.
            encoding, levels, repeated = (integer(details, number) for number in (4, 5, 6))
            fits = 0 <= levels <= min(size, stored) and integer(details, 3) == count and (max_def or not levels)
            if repeated or not fits:
                raise ValueError("levels do not fit their page")
            if max_def:
                present = _present(np.frombuffer(body[:levels], dtype=np.uint8), count)
            compressed, body = details.get(7, True), body[levels:]
            values = codec.decompress(body, size - levels) if compressed else np.frombuffer(body, np.uint8)
        rows -= count
        yield Page(kind, count, encoding, present, values)


def page_header(chunk: memoryview, at: int) -> tuple[dict[int, Any], int]:
    """The header of the page at ``at``, and the offset of its end."""
    try:
        header, end = read_struct(bytes(chunk[at : at + _HEADER_BYTES]), 0, _HEADER_SHAPE, "page header", "")
    except CorruptFileError:
        header, end = read_struct(bytes(chunk[at:]), 0, _HEADER_SHAPE, "page header", "")
    needed = _TYPE_HEADERS.get(header.get(1, -1))
    if needed is None or not isinstance(header.get(needed), dict):
        raise ValueError("a page header without a known page type")
    return header, at + end


def _present(levels: Bytes, rows: int) -> Mask | None:
    if levels.tobytes() == _all_present(rows):
        return None
    found = unpack_hybrid(levels, 1, rows) == 1
    return None if found.all() else found


def _all_present(rows: int) -> bytes:
    """The encoded definition levels of rows without nulls: one RLE run of 1."""
    return encode_varint(rows << 1) + b"\1"


def unpack_hybrid(data: Bytes, width: int, count: int) -> npt.NDArray[np.int32]:
    """Decode ``count`` integers of ``width`` bits from Parquet's hybrid of RLE and bit packing."""
    if not 0 <= count < 1 << 31:
        raise ValueError(f"invalid number of values: {count}")
    numbers = np.empty(count, dtype=np.int32)
    kernel.unpack(data, width, numbers)
    return numbers


def page_content(
    values: bytes | Bytes, rows: int, present: Mask | None, max_def: int, width: int | None = None
) -> PageContent:
    """Build the content of a v1 data page: definition levels, if the column has them, and values."""
    if not max_def:
        return PageContent(memoryview(values), 0, width)  # type: ignore[arg-type]
    levels = _all_present(rows) if present is None else kernel.pack(present.astype(np.int32), 1)
    data = b"".join((len(levels).to_bytes(4, "little"), levels, values))  # type: ignore[arg-type]
    return PageContent(memoryview(data), 4 + len(levels), width)


@dataclass(frozen=True, slots=True)
class EncodedPage:
    """An encoded page, and its uncompressed size including the header."""

    header: bytes
    body: bytes | memoryview
    uncompressed_size: int

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return len(self.header) + len(self.body)


def data_page(content: PageContent, encoding: int, rows: int, codec: PageCodec) -> EncodedPage:
    """Compress a v1 data page."""
    body = codec.compress(content)
    header = kernel.data_page_header(content.data.nbytes, len(body), rows, encoding, RLE)
    return EncodedPage(header, body, len(header) + content.data.nbytes)


def dictionary_page(values: bytes, count: int, codec: PageCodec) -> EncodedPage:
    """Compress a dictionary page of ``count`` plain entries."""
    body = codec.compress(PageContent(memoryview(values)))
    inner = encode_struct([(1, I32, count), (2, I32, PLAIN)])
    header = encode_struct([(1, I32, DICTIONARY_PAGE), (2, I32, len(values)), (3, I32, len(body)), (7, STRUCT, inner)])
    return EncodedPage(header, body, len(header) + len(values))

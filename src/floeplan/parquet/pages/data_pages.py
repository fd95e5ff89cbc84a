"""Splits and builds the data pages of flat columns without decoding their values.

A page of a flat column holds definition levels (which rows are null) and the values of the other rows. Data pages v1
and v2 are read; v1 is written, because every reader supports it.

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

from floeplan.errors import CorruptFileError
from floeplan.kernels import load_kernel
from floeplan.parquet.footer.thrift import I32, SCALAR, STRUCT, encode_struct, integer, read_struct
from floeplan.parquet.pages.codec import PageCodec, PageContent
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
    return integer(_header(chunk, 0)[0], 1)


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
        header, start = _header(chunk, at)
        kind, size, stored = integer(header, 1), integer(header, 2), integer(header, 3)
        if not (0 <= size <= max_bytes and 0 <= stored <= len(chunk) - start):
            raise ValueError("a page is larger than its column chunk")
        at = start + stored
        body = chunk[start:at]
        if kind == DICTIONARY_PAGE:
            entries, encoding = integer(header[7], 1), integer(header[7], 2)
            yield Page(kind, entries, encoding, None, codec.decompress(body, size))
            continue
        if not 0 <= integer(header[_TYPE_HEADERS[kind]], 1) <= rows:
            raise ValueError("a page has more rows than its column chunk")
        if kind == DATA_PAGE:
            page = _page_v1(header[5], codec.decompress(body, size), max_def)
        else:
            page = _page_v2(header[8], body, codec, size, max_def)
        rows -= page.rows
        yield page


def _header(chunk: memoryview, at: int) -> tuple[dict[int, Any], int]:
    """The header of the page at ``at``, and the offset of its end."""
    try:
        header, end = read_struct(bytes(chunk[at : at + _HEADER_BYTES]), 0, _HEADER_SHAPE, "page header", "")
    except CorruptFileError:
        header, end = read_struct(bytes(chunk[at:]), 0, _HEADER_SHAPE, "page header", "")
    needed = _TYPE_HEADERS.get(header.get(1, -1))
    if needed is None or not isinstance(header.get(needed), dict):
        raise ValueError("a page header without a known page type")
    return header, at + end


def _page_v1(header: dict[int, Any], body: Bytes, max_def: int) -> Page:
    rows, encoding = integer(header, 1), integer(header, 2)
    if not max_def:
        return Page(DATA_PAGE, rows, encoding, None, body)
    if integer(header, 3) != RLE or len(body) < 4:
        raise ValueError("definition levels are not RLE-encoded")
    size = int.from_bytes(body[:4].tobytes(), "little")
    if size > len(body) - 4:
        raise ValueError("definition levels are longer than their page")
    return Page(DATA_PAGE, rows, encoding, _present(body[4 : 4 + size], rows), body[4 + size :])


def _page_v2(header: dict[int, Any], body: memoryview, codec: PageCodec, size: int, max_def: int) -> Page:
    rows, encoding, levels, repeated = (integer(header, number) for number in (1, 4, 5, 6))
    if repeated or not 0 <= levels <= min(size, len(body)) or integer(header, 3) != rows or (levels and not max_def):
        raise ValueError("levels do not fit their page")
    # In v2 the levels are never compressed, and the values only if the header says so.
    present = _present(np.frombuffer(body[:levels], dtype=np.uint8), rows) if max_def else None
    compressed = header.get(7, True)
    plain = codec.decompress(body[levels:], size - levels) if compressed else np.frombuffer(body[levels:], np.uint8)
    return Page(DATA_PAGE_V2, rows, encoding, present, plain)


def _present(levels: Bytes, rows: int) -> Mask | None:
    if levels.tobytes() == _all_present(rows):
        return None
    found = unpack_hybrid(levels, 1, rows) == 1
    return None if found.all() else found


def _all_present(rows: int) -> bytes:
    """The encoded definition levels of rows without nulls: one RLE run of 1."""
    header, out = rows << 1, bytearray()
    while header > 127:
        out.append(header & 127 | 128)
        header >>= 7
    return bytes((*out, header, 1))


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
    header = kernel.data_page_header(content.nbytes, len(body), rows, encoding, RLE)
    return EncodedPage(header, body, len(header) + content.nbytes)


def dictionary_page(values: bytes, count: int, codec: PageCodec) -> EncodedPage:
    """Compress a dictionary page of ``count`` plain entries."""
    body = codec.compress(PageContent(memoryview(values)))
    inner = encode_struct([(1, I32, count), (2, I32, PLAIN)])
    header = encode_struct([(1, I32, DICTIONARY_PAGE), (2, I32, len(values)), (3, I32, len(body)), (7, STRUCT, inner)])
    return EncodedPage(header, body, len(header) + len(values))

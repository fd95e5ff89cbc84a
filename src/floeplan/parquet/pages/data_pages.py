"""Single pages of flat columns taken apart and put together again, without building their values.

A page of a column that is not inside of a list is: definition levels, which say where it is null, and the values that
are there. Both generations of pages are read, the first one is written: every reader knows it.

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

_HEADER_SHAPE: Any = {
    **dict.fromkeys((1, 2, 3), SCALAR),
    5: dict.fromkeys((1, 2, 3), SCALAR),
    7: dict.fromkeys((1, 2), SCALAR),
    8: dict.fromkeys((1, 2, 3, 4, 5, 6, 7), SCALAR),
}
_SAYS = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}
"""Where the header of a page of each kind says more."""
_HEADER_ROOM = 512
"""Bytes that nearly all headers fit into."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page taken apart; ``present`` is ``None`` where no row is null."""

    kind: int
    rows: int
    encoding: int
    present: Mask | None
    values: Bytes

    @property
    def count(self) -> int:
        """How many values there are."""
        return self.rows if self.present is None else int(np.count_nonzero(self.present))


def first_page_type(chunk: memoryview) -> int:
    """The kind of the first page of a column of one row group."""
    return integer(_header(chunk, 0)[0], 1)


def read_pages(chunk: memoryview, codec: PageCodec, max_def: int, most: int, rows: int) -> Iterator[Page]:
    """The pages of a column of one row group.

    Args:
        chunk: Its bytes.
        codec: How they are compressed.
        max_def: The definition level of a value that is there.
        most: What all of them take when they are not compressed.
        rows: How many rows the row group has; pages may come to fewer.
    """
    at = 0
    while at < len(chunk):
        header, start = _header(chunk, at)
        kind, size, stored = integer(header, 1), integer(header, 2), integer(header, 3)
        if not (0 <= size <= most and 0 <= stored <= len(chunk) - start):
            raise ValueError("a page that is larger than its column")
        at = start + stored
        body = chunk[start:at]
        if kind == DICTIONARY_PAGE:
            entries, encoding = integer(header[7], 1), integer(header[7], 2)
            yield Page(kind, entries, encoding, None, codec.decompress(body, size))
            continue
        if not 0 <= integer(header[_SAYS[kind]], 1) <= rows:
            raise ValueError("a page with more rows than its column")
        if kind == DATA_PAGE:
            page = _first_generation(header[5], codec.decompress(body, size), max_def)
        else:
            page = _second_generation(header[8], body, codec, size, max_def)
        rows -= page.rows
        yield page


def _header(chunk: memoryview, at: int) -> tuple[dict[int, Any], int]:
    """What a page says of itself, and where it ends saying so."""
    try:
        header, end = read_struct(bytes(chunk[at : at + _HEADER_ROOM]), 0, _HEADER_SHAPE, "page header", "")
    except CorruptFileError:
        header, end = read_struct(bytes(chunk[at:]), 0, _HEADER_SHAPE, "page header", "")
    needed = _SAYS.get(header.get(1, -1))
    if needed is None or not isinstance(header.get(needed), dict):
        raise ValueError("a page that does not say what it is")
    return header, at + end


def _first_generation(header: dict[int, Any], body: Bytes, max_def: int) -> Page:
    rows, encoding = integer(header, 1), integer(header, 2)
    if not max_def:
        return Page(DATA_PAGE, rows, encoding, None, body)
    if integer(header, 3) != RLE or len(body) < 4:
        raise ValueError("definition levels of an old encoding")
    size = int.from_bytes(body[:4].tobytes(), "little")
    if size > len(body) - 4:
        raise ValueError("definition levels that are longer than their page")
    return Page(DATA_PAGE, rows, encoding, _present(body[4 : 4 + size], rows), body[4 + size :])


def _second_generation(header: dict[int, Any], body: memoryview, codec: PageCodec, size: int, max_def: int) -> Page:
    rows, encoding, levels, repeated = (integer(header, number) for number in (1, 4, 5, 6))
    if repeated or not 0 <= levels <= min(size, len(body)) or integer(header, 3) != rows or (levels and not max_def):
        raise ValueError("levels that do not fit their page")
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
    """Levels of rows of which none is null: one run."""
    header, out = rows << 1, bytearray()
    while header > 127:
        out.append(header & 127 | 128)
        header >>= 7
    return bytes((*out, header, 1))


def unpack_hybrid(data: Bytes, width: int, count: int) -> npt.NDArray[np.int32]:
    """Ints of so many bits that were written as runs and packed groups."""
    if not 0 <= count < 1 << 31:
        raise ValueError(f"{count} numbers")
    numbers = np.empty(count, dtype=np.int32)
    kernel.unpack(data, width, numbers)
    return numbers


def page_content(
    values: bytes | Bytes, rows: int, present: Mask | None, max_def: int, width: int | None = None
) -> PageContent:
    """What a data page holds: levels, if the column has some, and values."""
    if not max_def:
        return PageContent(memoryview(values), 0, width)  # type: ignore[arg-type]
    levels = _all_present(rows) if present is None else kernel.pack(present.astype(np.int32), 1)
    data = b"".join((len(levels).to_bytes(4, "little"), levels, values))  # type: ignore[arg-type]
    return PageContent(memoryview(data), 4 + len(levels), width)


@dataclass(frozen=True, slots=True)
class EncodedPage:
    """A page as it will stand in a file, and what it takes when it is not compressed."""

    header: bytes
    body: bytes | memoryview
    uncompressed_size: int

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return len(self.header) + len(self.body)


def data_page(content: PageContent, encoding: int, rows: int, codec: PageCodec) -> EncodedPage:
    """A page of so many rows."""
    body = codec.compress(content)
    header = kernel.data_page_header(content.nbytes, len(body), rows, encoding, RLE)
    return EncodedPage(header, body, len(header) + content.nbytes)


def dictionary_page(values: bytes, count: int, codec: PageCodec) -> EncodedPage:
    """A dictionary of so many entries."""
    body = codec.compress(PageContent(memoryview(values)))
    inner = encode_struct([(1, I32, count), (2, I32, PLAIN)])
    header = encode_struct([(1, I32, DICTIONARY_PAGE), (2, I32, len(values)), (3, I32, len(body)), (7, STRUCT, inner)])
    return EncodedPage(header, body, len(header) + len(values))

"""A Parquet file put together column by column: pages of other files as they are, or columns that were encoded anew.

::

    PAR1 │ row group 1: column 1 │ column 2 … │ row group 2 … │ column indexes │ offset indexes │ footer │ length │ PAR1

The columns of a row group stand in the order of the schema: readers that share out a file by bytes tell a row group by
its first column. The schema comes from a file without rows (``blank``) that the encoder wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pyiceberg.io import OutputStream

from floeplan.parquet.footer.footer import ParquetFooter, decode_footer
from floeplan.parquet.footer.page_index import shift_offset_index
from floeplan.parquet.footer.thrift import (
    I16,
    I64,
    LIST,
    STRUCT,
    Edit,
    encode_struct,
    encode_value,
    read_struct,
    splice,
)

MAGIC = b"PAR1"
Piece = bytes | memoryview
Place = tuple[int, int]
"""Where something begins, and its length."""


class Chunk(Protocol):
    """One column of a row group that is yet to be placed."""

    @property
    def pieces(self) -> Sequence[Piece]:
        """Its pages."""

    @property
    def uncompressed_size(self) -> int:
        """Bytes of its pages when they are not compressed."""

    @property
    def column_index(self) -> bytes:
        """Statistics of its pages; they do not depend on its place."""

    def offset_index(self, start: int) -> bytes:
        """Places of its pages."""

    def metadata(self, start: int) -> bytes:
        """What the footer says of it; where its indexes will be is anything as yet."""


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """A column of a file of one row group that was encoded in memory."""

    file: memoryview
    footer: ParquetFooter
    encoded_metadata: bytes
    leaf: int

    @property
    def _start(self) -> int:
        return int(self.footer.chunks(self.leaf).start[0])

    @property
    def pieces(self) -> Sequence[Piece]:
        size = int(self.footer.chunks(self.leaf).total_compressed_size[0])
        return [self.file[self._start : self._start + size]]

    @property
    def uncompressed_size(self) -> int:
        return int(self.footer.chunks(self.leaf).total_uncompressed_size[0])

    @property
    def column_index(self) -> bytes:
        chunks = self.footer.chunks(self.leaf)
        return self._part(int(chunks.column_index_offset[0]), int(chunks.column_index_length[0]))

    def offset_index(self, start: int) -> bytes:
        chunks = self.footer.chunks(self.leaf)
        encoded = self._part(int(chunks.offset_index_offset[0]), int(chunks.offset_index_length[0]))
        return shift_offset_index(encoded, start - self._start, self.footer.file)

    def metadata(self, start: int) -> bytes:
        shift = partial(_shifted, start - self._start)
        edits: dict[int, Edit] = {2: shift, 3: {9: shift, 10: shift, 11: shift}}
        return splice(self.encoded_metadata, edits, "column chunk", self.footer.file)

    def _part(self, start: int, length: int) -> bytes:
        return bytes(self.file[start : start + length]) if start >= 0 else b""


def encoded_chunks(file: memoryview) -> dict[tuple[str, ...], EncodedChunk]:
    """The columns of a file of one row group, by their path."""
    encoded = encoded_footer(file)
    footer = decode_footer(encoded, "the rows", len(file))
    group = read_struct(encoded, 0, {4: ...}, "footer", footer.file)[0][4][0]
    chunks = read_struct(encoded, group, {1: ...}, "row group", footer.file)[0][1]
    return {
        leaf.path: EncodedChunk(file, footer, encoded[chunks[leaf.index] : chunks[leaf.index + 1]], leaf.index)
        for leaf in footer.leaves
    }


def encoded_footer(file: memoryview) -> bytes:
    """The footer of a file as it stands there."""
    end = len(file) - 8
    return bytes(file[end - int.from_bytes(file[end : end + 4], "little") : end])


@dataclass(frozen=True, slots=True)
class _Placed:
    """A column that was written."""

    start: int
    uncompressed_size: int
    metadata: bytes
    column_index: bytes
    offset_index: bytes


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """A row group that was written."""

    rows: int
    end: int
    columns: Sequence[_Placed]


class JoinedFile:
    """A file being written, one row group at a time; of what was written only metadata stay in memory."""

    def __init__(self, out: OutputStream, path: str, blank: bytes) -> None:
        self._out, self._path, self._blank = out, path, blank
        self._end = 0
        self._groups: list[_RowGroup] = []
        self._write(MAGIC)

    def add(self, rows: int, chunks: Sequence[Chunk]) -> None:
        """Write a row group."""
        placed = []
        for chunk in chunks:
            start = self._end
            for piece in chunk.pieces:
                self._write(piece)
            indexes = chunk.column_index, chunk.offset_index(start)
            placed.append(_Placed(start, chunk.uncompressed_size, chunk.metadata(start), *indexes))
        self._groups.append(_RowGroup(rows, self._end, placed))

    def finish(self) -> tuple[int, ParquetFooter]:
        """Write the page indexes and the footer; the size of the file, and its footer."""
        by_value = [[self._place(column.column_index) for column in group.columns] for group in self._groups]
        by_place = [[self._place(column.offset_index) for column in group.columns] for group in self._groups]
        groups = [_row_group(n, *one) for n, one in enumerate(zip(self._groups, by_value, by_place, strict=True))]
        total = encode_value(I64, sum(group.rows for group in self._groups))
        footer = splice(self._blank, {3: total, 4: encode_value(LIST, (STRUCT, groups))}, "footer", self._path)
        for part in (footer, len(footer).to_bytes(4, "little"), MAGIC):
            self._write(part)
        return self._end, decode_footer(footer, self._path, self._end)

    def _place(self, part: bytes) -> Place:
        place = self._end, len(part)
        self._write(part)
        return place

    def _write(self, piece: Piece) -> None:
        self._out.write(piece)  # type: ignore[arg-type]
        self._end += len(piece)


def _row_group(number: int, group: _RowGroup, by_value: Sequence[Place], by_place: Sequence[Place]) -> bytes:
    columns = []
    for column, value_index, place_index in zip(group.columns, by_value, by_place, strict=True):
        places = zip((4, 5, 6, 7), (*place_index, *value_index), strict=True)
        edits: dict[int, Edit] = {field: partial(_replaced, value) for field, value in places}
        columns.append(splice(column.metadata, edits, "column chunk", ""))
    start = group.columns[0].start
    return encode_struct(
        [
            (1, LIST, (STRUCT, columns)),
            (2, I64, sum(column.uncompressed_size for column in group.columns)),
            (3, I64, group.rows),
            (5, I64, start),
            (6, I64, group.end - start),
            (7, I16, number),
        ]
    )


def _shifted(distance: int, place: int) -> int:
    """A place that moved; 0 is none."""
    return place + distance if place > 0 else place


def _replaced(value: int, _: int) -> int:
    return value

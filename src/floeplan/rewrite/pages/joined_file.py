"""Writes a Parquet file column chunk by column chunk: chunks of copied or filtered pages, and newly encoded chunks.

::

    PAR1 │ row group 1: column 1 │ column 2 … │ row group 2 … │ column indexes │ offset indexes │ footer │ length │ PAR1

The columns of a row group are in schema order: readers that split a file by bytes locate a row group by its first
column. The schema comes from an empty file (``blank``) that pyarrow encoded.
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
from floeplan.parquet.source import Range

MAGIC = b"PAR1"
Piece = bytes | memoryview


class Chunk(Protocol):
    """A column chunk whose offset in the new file is not known yet."""

    @property
    def pieces(self) -> Sequence[Piece]:
        """Its pages."""

    @property
    def uncompressed_size(self) -> int:
        """Uncompressed bytes of its pages."""

    @property
    def column_index(self) -> bytes:
        """The encoded ColumnIndex, which does not depend on the offset."""

    def offset_index(self, start: int) -> bytes:
        """The encoded OffsetIndex for a chunk that starts at ``start``."""

    def metadata(self, start: int) -> bytes:
        """The encoded ColumnChunk; the offsets of its indexes are placeholders."""


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """A column chunk of an in-memory file with one row group."""

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
        shift = partial(shifted, start - self._start)
        edits: dict[int, Edit] = {2: shift, 3: {9: shift, 10: shift, 11: shift}}
        return splice(self.encoded_metadata, edits, "column chunk", self.footer.file)

    def _part(self, start: int, length: int) -> bytes:
        return bytes(self.file[start : start + length]) if start >= 0 else b""


def encoded_chunks(file: memoryview) -> dict[tuple[str, ...], EncodedChunk]:
    """The column chunks of an in-memory file with one row group, by column path."""
    encoded = encoded_footer(file)
    footer = decode_footer(encoded, "the rows", len(file))
    group = read_struct(encoded, 0, {4: ...}, "footer", footer.file)[0][4][0]
    chunks = read_struct(encoded, group, {1: ...}, "row group", footer.file)[0][1]
    return {
        leaf.path: EncodedChunk(file, footer, encoded[chunks[leaf.index] : chunks[leaf.index + 1]], leaf.index)
        for leaf in footer.leaves
    }


def encoded_footer(file: memoryview) -> bytes:
    """The encoded footer of an in-memory file."""
    end = len(file) - 8
    return bytes(file[end - int.from_bytes(file[end : end + 4], "little") : end])


@dataclass(frozen=True, slots=True)
class _Placed:
    """A written column chunk."""

    start: int
    uncompressed_size: int
    metadata: bytes
    column_index: bytes
    offset_index: bytes


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """A written row group."""

    rows: int
    end: int
    columns: Sequence[_Placed]


class JoinedFile:
    """Writes a file one row group at a time, and keeps only metadata in memory."""

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
        """Write the page indexes and the footer; return the file size and the footer."""
        column_indexes = [[self._append(column.column_index) for column in group.columns] for group in self._groups]
        offset_indexes = [[self._append(column.offset_index) for column in group.columns] for group in self._groups]
        written = zip(self._groups, column_indexes, offset_indexes, strict=True)
        groups = [_row_group(number, *one) for number, one in enumerate(written)]
        total = encode_value(I64, sum(group.rows for group in self._groups))
        footer = splice(self._blank, {3: total, 4: encode_value(LIST, (STRUCT, groups))}, "footer", self._path)
        for part in (footer, len(footer).to_bytes(4, "little"), MAGIC):
            self._write(part)
        return self._end, decode_footer(footer, self._path, self._end)

    def _append(self, part: bytes) -> Range:
        span = self._end, len(part)
        self._write(part)
        return span

    def _write(self, piece: Piece) -> None:
        self._out.write(piece)  # type: ignore[arg-type]
        self._end += len(piece)


def _row_group(
    number: int, group: _RowGroup, column_indexes: Sequence[Range], offset_indexes: Sequence[Range]
) -> bytes:
    columns = []
    for column, column_index, offset_index in zip(group.columns, column_indexes, offset_indexes, strict=True):
        fields = zip((4, 5, 6, 7), (*offset_index, *column_index), strict=True)
        edits: dict[int, Edit] = {field: partial(replaced, value) for field, value in fields}
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


def shifted(distance: int, offset: int) -> int:
    """An offset plus a distance; 0 means that there is none. An edit for ``splice``."""
    return offset + distance if offset > 0 else offset


def replaced(value: int, _: int) -> int:
    """A new value for any old one. An edit for ``splice``."""
    return value

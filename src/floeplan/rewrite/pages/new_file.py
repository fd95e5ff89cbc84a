"""New Parquet files from parts of old ones: joined from column chunks, or stitched from whole row groups.

*Joining* (``JoinedFile``) writes a file column chunk by column chunk: chunks of copied or filtered pages, and newly
encoded ones::

    PAR1 │ row group 1: column 1 │ column 2 … │ row group 2 … │ column indexes │ offset indexes │ footer │ length │ PAR1

The columns of a row group are in schema order: readers that split a file by bytes locate a row group by its first
column. The schema comes from an empty file (``blank``) that pyarrow encoded.

*Stitching* (``stitch``) copies the row groups of several files into one, byte for byte, without decoding::

    PAR1 │ file 1 up to its offset indexes │ the same of file 2 │ … │ offset indexes │ footer │ length │ PAR1

Pages, dictionaries, Bloom filters and column indexes of a file keep their offsets relative to each other. So only one
distance per file is added to the offsets in the footer and in the offset indexes; everything else is copied.

Rule: files can be stitched when their encoded schemas are identical, field ids included, and ``created_by`` is the same
(readers work around writer bugs by it); codecs and encodings may differ. ``stitch_obstacle`` gives the reason when not.

Fail-safe: the caller stitches only files without deletes, and in format 3 only without row ids inherited from
``first_row_id``, since both would require rows to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from pyiceberg.io import FileIO, OutputStream
from pyiceberg.schema import Schema

from floeplan.metadata.files import writing
from floeplan.parquet.footer.footer import ParquetFooter, decode_footer
from floeplan.parquet.footer.page_index import shift_offset_index
from floeplan.parquet.footer.thrift import (
    BINARY,
    I16,
    I64,
    LIST,
    SCALAR,
    STRUCT,
    Each,
    Edit,
    encode_struct,
    encode_value,
    read_struct,
    splice,
)
from floeplan.scan.file_rows import OpenFile
from floeplan.schemas import fields_by_id
from floeplan.write.parquet_file import WrittenFile

MAGIC = b"PAR1"
MIN_ROW_GROUP_BYTES = 8 * 1024 * 1024
"""Files with smaller row groups on average are joined instead of stitched, which enlarges row groups."""
Piece = bytes | memoryview

_BLOCK = 8 * 1024 * 1024
_FOOTER_SHAPE: Any = {2: ..., 4: ..., 6: SCALAR, 7: ...}


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
        shift = partial(_shifted, start - self._start)
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


class JoinedFile:
    """Writes a file one row group at a time, and keeps only metadata in memory."""

    def __init__(self, out: OutputStream, path: str, blank: bytes) -> None:
        self._out, self._path, self._blank = out, path, blank
        self._end = 0
        self._groups: list[tuple[int, int, Sequence[_Placed]]] = []  # rows, end, columns
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
        self._groups.append((rows, self._end, placed))

    def finish(self) -> tuple[int, ParquetFooter]:
        """Write the page indexes and the footer; return the file size and the footer."""
        columns = [column for _, _, placed in self._groups for column in placed]
        column_indexes = [self._write(column.column_index) for column in columns]
        offset_indexes = [self._write(column.offset_index) for column in columns]
        encoded = list[bytes]()
        for column, column_index, offset_index in zip(columns, column_indexes, offset_indexes, strict=True):
            fields = zip((4, 5, 6, 7), (*offset_index, *column_index), strict=True)
            edits: dict[int, Edit] = {field: partial(_replaced, value) for field, value in fields}
            encoded.append(splice(column.metadata, edits, "column chunk", ""))
        groups = list[bytes]()
        for number, (rows, end, placed) in enumerate(self._groups):
            start = placed[0].start
            fields_of_group: list[tuple[int, int, object]] = [
                (1, LIST, (STRUCT, encoded[number * len(placed) : (number + 1) * len(placed)])),
                (2, I64, sum(column.uncompressed_size for column in placed)),
                (3, I64, rows),
                (5, I64, start),
                (6, I64, end - start),
                (7, I16, number),
            ]
            groups.append(encode_struct(fields_of_group))
        total = encode_value(I64, sum(rows for rows, _, _ in self._groups))
        footer = splice(self._blank, {3: total, 4: encode_value(LIST, (STRUCT, groups))}, "footer", self._path)
        for part in (footer, len(footer).to_bytes(4, "little"), MAGIC):
            self._write(part)
        return self._end, decode_footer(footer, self._path, self._end)

    def _write(self, piece: Piece) -> tuple[int, int]:
        """Append bytes, and return their offset and length."""
        offset = self._end
        self._out.write(piece)  # type: ignore[arg-type]
        self._end += len(piece)
        return offset, len(piece)


def stitch_obstacle(files: Iterable[OpenFile], schema: Schema, min_row_group: int = MIN_ROW_GROUP_BYTES) -> str:
    """Why files cannot or should not be stitched; empty when they can.

    Args:
        files: The files, opened one by one.
        schema: The schema of the table.
        min_row_group: The mean row-group size below which files are joined instead.
    """
    wanted, identities = _types(schema), set()
    groups = size = 0
    for opened in files:
        if not opened.footer.has_field_ids or _types(opened.footer.schema) != wanted:
            return f"the columns of {opened.file.path} are not those of the table"
        # The encoded schema, its column orders, and ``created_by`` must be identical in all files.
        data = _encoded(opened)
        fields, _ = read_struct(data, 0, _FOOTER_SHAPE, "footer", opened.footer.file)
        spans = [data[fields[i][0] : fields[i][-1]] if i in fields else b"" for i in (2, 7)]
        identities.add((*spans, fields.get(6, b"")))
        if len(identities) > 1:
            return "the files have different schemas or writers"
        groups += opened.footer.num_row_groups
        size += opened.file.file_size
    return small_row_groups_reason(size, groups, min_row_group)


def small_row_groups_reason(size: int, groups: int, min_row_group: int) -> str:
    """The reason against stitching if row groups are too small on average, else empty."""
    mean = size // max(1, groups)
    return f"row groups of {mean} bytes on average are too small to copy" if mean < min_row_group else ""


def stitch(files: Sequence[OpenFile], io: FileIO, path: str) -> WrittenFile:
    """Write the row groups of all files, in their order, into one file."""
    with writing(path), io.new_output(path).create() as out:
        out.write(MAGIC)
        end, distances = len(MAGIC), list[int]()
        for opened in files:
            # Copy everything before the offset indexes.
            distances.append(end - len(MAGIC))
            copied = _end_of_data(opened.footer)
            for at in range(len(MAGIC), copied, _BLOCK):
                out.write(opened.source.read_ranges([(at, min(_BLOCK, copied - at))])[0])  # type: ignore[arg-type]
            end += copied - len(MAGIC)
        groups, indexes = list[bytes](), list[bytes]()
        for opened, distance in zip(files, distances, strict=True):
            groups += _moved_row_groups(opened, distance, len(groups), indexes, end)
        # The footer of the first file with all row groups; key-value metadata that differ between files are dropped.
        notes = [set(opened.footer.key_values.items()) for opened in files]
        common = [pair for pair in files[0].footer.key_values.items() if all(pair in note for note in notes)]
        pairs = [encode_struct([(1, BINARY, key), (2, BINARY, value)]) for key, value in common]
        edits: dict[int, Edit] = {
            3: encode_value(I64, sum(opened.footer.num_rows for opened in files)),
            4: encode_value(LIST, (STRUCT, groups)),
            5: encode_value(LIST, (STRUCT, pairs)),
        }
        footer = splice(_encoded(files[0]), edits, "footer", files[0].footer.file)
        for part in (*indexes, footer, len(footer).to_bytes(4, "little"), MAGIC):
            out.write(part)
    size = end + sum(map(len, indexes)) + len(footer) + 8
    return WrittenFile(path, size, decode_footer(footer, path, size), ())


def _end_of_data(footer: ParquetFooter) -> int:
    """The end of everything but the offset indexes and the footer."""
    ends = [len(MAGIC)]
    filled = footer.row_group_rows > 0
    for leaf in footer.leaves:
        chunks = footer.chunks(leaf)
        if ((chunks.bloom_offset >= 0) & (chunks.bloom_length < 0)).any():
            return footer.footer_start  # the length of a Bloom filter is optional: copy all up to the footer
        ends += (chunks.start + chunks.total_compressed_size)[filled].tolist()
        ends += (chunks.column_index_offset + chunks.column_index_length).tolist()
        ends += (chunks.bloom_offset + chunks.bloom_length).tolist()
    return max(ends)


def _moved_row_groups(opened: OpenFile, distance: int, ordinal: int, indexes: list[bytes], end: int) -> list[bytes]:
    """The encoded row groups of one file for the new footer; a row group without rows is left out.

    Their shifted offset indexes are appended to ``indexes``, which are written from ``end`` on.
    """
    footer, data, shift = opened.footer, _encoded(opened), partial(_shifted, distance)
    listed = read_struct(data, 0, {4: ...}, "footer", footer.file)[0][4]
    end += sum(map(len, indexes))
    moved: list[bytes] = []
    for group in np.flatnonzero(footer.row_group_rows).tolist():
        all_chunks = [footer.chunks(leaf) for leaf in footer.leaves]
        ranges = [(int(c.offset_index_offset[group]), int(c.offset_index_length[group])) for c in all_chunks]
        read = iter(opened.source.read_ranges([span for span in ranges if span[0] >= 0]))
        columns = list[dict[int, Edit]]()
        for at, _ in ranges:
            offset = length = 0  # of the offset index; a column may have none
            if at >= 0:
                indexes.append(shift_offset_index(bytes(next(read)), distance, footer.file))
                offset, length = end, len(indexes[-1])
                end += length
            columns.append(
                {
                    2: shift,
                    3: {9: shift, 10: shift, 11: shift, 14: shift},
                    4: partial(_replaced, offset),
                    5: partial(_replaced, length),
                    6: shift,
                }
            )
        edits: dict[int, Edit] = {1: Each(columns.__getitem__), 5: shift, 7: partial(_replaced, ordinal + len(moved))}
        moved.append(splice(data, edits, "row group", footer.file, listed[group]))
    return moved


def _types(schema: Schema) -> dict[int, str]:
    """Types by field id; nested types by their class, since their fields are listed too. Names may differ."""
    fields = fields_by_id(schema).items()
    return {i: str(f.field_type) if f.field_type.is_primitive else type(f.field_type).__name__ for i, f in fields}


def _encoded(opened: OpenFile) -> bytes:
    """The encoded footer."""
    start = opened.footer.footer_start
    return bytes(opened.source.read_ranges([(start, opened.footer.file_size - 8 - start)])[0])


def _shifted(distance: int, offset: int) -> int:
    """An offset plus a distance; 0 means that there is none. An edit for ``splice``."""
    return offset + distance if offset > 0 else offset


def _replaced(value: int, _: int) -> int:
    """A new value for any old one. An edit for ``splice``."""
    return value

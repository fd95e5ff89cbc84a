"""Stitching: copies the row groups of several Parquet files into one, byte for byte, without decoding.

::

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
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from pyiceberg.io import FileIO, OutputStream
from pyiceberg.schema import Schema

from floeplan.metadata.files import writing
from floeplan.parquet.footer.footer import ParquetFooter, decode_footer
from floeplan.parquet.footer.page_index import shift_offset_index
from floeplan.parquet.footer.thrift import (
    BINARY,
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
from floeplan.rewrite.pages.joined_file import replaced, shifted
from floeplan.scan.file_rows import OpenFile
from floeplan.schemas import fields_by_id
from floeplan.write.parquet_file import WrittenFile

MIN_ROW_GROUP_BYTES = 8 * 1024 * 1024
"""Files with smaller row groups on average are joined instead, which enlarges row groups."""

_BLOCK = 8 * 1024 * 1024
_MAGIC = b"PAR1"
_FOOTER_SHAPE: Any = {2: ..., 4: ..., 6: SCALAR, 7: ...}


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
        identities.add(_identity(opened))
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
        out.write(_MAGIC)
        indexes = _OffsetIndexes(len(_MAGIC))
        distances = []
        for opened in files:
            distances.append(indexes.end - len(_MAGIC))
            indexes.end += _copy(opened, out)
        groups: list[bytes] = []
        for opened, distance in zip(files, distances, strict=True):
            groups += _row_groups(opened, distance, len(groups), indexes)
        footer = _footer(files, groups)
        for part in (*indexes.encoded, footer, len(footer).to_bytes(4, "little"), _MAGIC):
            out.write(part)
    size = indexes.end + len(footer) + 8
    return WrittenFile(path, size, decode_footer(footer, path, size), ())


def _types(schema: Schema) -> dict[int, str]:
    """Types by field id; nested types by their class, since their fields are listed too. Names may differ."""
    fields = fields_by_id(schema).items()
    return {i: str(f.field_type) if f.field_type.is_primitive else type(f.field_type).__name__ for i, f in fields}


def _encoded(opened: OpenFile) -> bytes:
    """The encoded footer."""
    start = opened.footer.footer_start
    return bytes(opened.source.read_ranges([(start, opened.footer.file_size - 8 - start)])[0])


def _identity(opened: OpenFile) -> tuple[bytes, ...]:
    """What must be identical in all files: the encoded schema, its column orders, and ``created_by``."""
    data = _encoded(opened)
    fields, _ = read_struct(data, 0, _FOOTER_SHAPE, "footer", opened.footer.file)
    spans = [data[fields[i][0] : fields[i][-1]] if i in fields else b"" for i in (2, 7)]
    return (*spans, fields.get(6, b""))


def _end(footer: ParquetFooter) -> int:
    """The end of everything but the offset indexes and the footer."""
    ends = [len(_MAGIC)]
    filled = footer.row_group_rows > 0
    for leaf in footer.leaves:
        chunks = footer.chunks(leaf)
        if ((chunks.bloom_offset >= 0) & (chunks.bloom_length < 0)).any():
            return footer.footer_start  # the length of a Bloom filter is optional: copy all up to the footer
        ends += (chunks.start + chunks.total_compressed_size)[filled].tolist()
        ends += (chunks.column_index_offset + chunks.column_index_length).tolist()
        ends += (chunks.bloom_offset + chunks.bloom_length).tolist()
    return max(ends)


def _copy(opened: OpenFile, out: OutputStream) -> int:
    """Copy everything before the offset indexes, and return the number of bytes."""
    first, end = len(_MAGIC), _end(opened.footer)
    for at in range(first, end, _BLOCK):
        out.write(opened.source.read_ranges([(at, min(_BLOCK, end - at))])[0])  # type: ignore[arg-type]
    return end - first


@dataclass(slots=True)
class _OffsetIndexes:
    """Offset indexes to write after the data, and the offset of the next one."""

    end: int
    encoded: list[bytes] = field(default_factory=list)

    def add(self, index: bytes) -> tuple[int, int]:
        """Append an index, and return its offset and length."""
        offset = self.end
        self.encoded.append(index)
        self.end += len(index)
        return offset, len(index)


def _row_groups(opened: OpenFile, distance: int, ordinal: int, indexes: _OffsetIndexes) -> list[bytes]:
    """The encoded row groups of one file for the new footer; their offset indexes are appended to ``indexes``.

    A row group without rows is left out.
    """
    footer, data = opened.footer, _encoded(opened)
    listed = read_struct(data, 0, {4: ...}, "footer", footer.file)[0][4]
    moved: list[bytes] = []
    for group in np.flatnonzero(footer.row_group_rows).tolist():
        shifted_indexes = _shifted_indexes(opened, group, distance, indexes)
        chunks = [_chunk_edits(index, distance) for index in shifted_indexes]
        edits: dict[int, Edit] = {
            1: Each(chunks.__getitem__),
            5: partial(shifted, distance),
            7: partial(replaced, ordinal + len(moved)),
        }
        moved.append(splice(data, edits, "row group", footer.file, listed[group]))
    return moved


def _shifted_indexes(opened: OpenFile, group: int, distance: int, indexes: _OffsetIndexes) -> list[tuple[int, int]]:
    """Offsets and lengths of the new offset indexes of one row group, zeros for a column without one."""
    footer = opened.footer
    chunks = [footer.chunks(leaf) for leaf in footer.leaves]
    ranges = [(int(c.offset_index_offset[group]), int(c.offset_index_length[group])) for c in chunks]
    present = [span for span in ranges if span[0] >= 0]
    read = iter(opened.source.read_ranges(present))
    return [
        indexes.add(shift_offset_index(bytes(next(read)), distance, footer.file)) if at >= 0 else (0, 0)
        for at, _ in ranges
    ]


def _chunk_edits(offset_index: tuple[int, int], distance: int) -> dict[int, Edit]:
    """The edits of a ColumnChunk: all file offsets, and the length of its offset index."""
    shift = partial(shifted, distance)
    offset, length = offset_index
    return {
        2: shift,
        3: {9: shift, 10: shift, 11: shift, 14: shift},
        4: partial(replaced, offset),
        5: partial(replaced, length),
        6: shift,
    }


def _footer(files: Sequence[OpenFile], groups: Sequence[bytes]) -> bytes:
    """The footer of the first file with all row groups; key-value metadata that differ between files are dropped."""
    notes = [set(opened.footer.key_values.items()) for opened in files]
    common = [pair for pair in files[0].footer.key_values.items() if all(pair in note for note in notes)]
    pairs = [encode_struct([(1, BINARY, key), (2, BINARY, value)]) for key, value in common]
    edits: dict[int, Edit] = {
        3: encode_value(I64, sum(opened.footer.num_rows for opened in files)),
        4: encode_value(LIST, (STRUCT, groups)),
        5: encode_value(LIST, (STRUCT, pairs)),
    }
    return splice(_encoded(files[0]), edits, "footer", files[0].footer.file)

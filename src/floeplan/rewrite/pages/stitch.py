"""Several Parquet files into one without decoding a value: row groups are copied byte for byte.

::

    PAR1 │ everything of file 1 up to its page places │ the same of file 2 │ … │ page places │ footer │ length │ PAR1

Pages, dictionaries, Bloom filters and column indexes of a file keep their places relative to each other, so all that
changes is by how much they moved: the places in the footer and in the offset indexes are raised by it, everything else
in both is copied as it stands.

Files fit together when their schemas are the same to the byte, field ids included, and the same program wrote them
(readers work around faults of writers by its name); codecs and encodings may differ. ``stitch_obstacle`` gives the
reason when they do not.
Whoever stitches sees to it that no row would have to change on the way: no deletes, no ids counted from the start of a
file.
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
from floeplan.scan.file_rows import OpenFile
from floeplan.schemas import fields_by_id
from floeplan.write.parquet_file import WrittenFile

MIN_ROW_GROUP_BYTES = 8 * 1024 * 1024
"""Row groups that are smaller on average are better put together."""

_BLOCK = 8 * 1024 * 1024
_MAGIC = b"PAR1"
_PLACES: Any = {2: ..., 4: ..., 6: SCALAR, 7: ...}


def stitch_obstacle(files: Iterable[OpenFile], schema: Schema, min_row_group: int = MIN_ROW_GROUP_BYTES) -> str:
    """Why files cannot, or should not, be stitched; empty when they can. Files are looked at one by one.

    Args:
        files: The files.
        schema: The schema of the table.
        min_row_group: The mean size of row groups below which they are better put together.
    """
    wanted, likeness = _types(schema), set()
    groups = size = 0
    for opened in files:
        if not opened.footer.has_field_ids or _types(opened.footer.schema) != wanted:
            return f"the columns of {opened.file.path} are not those of the table"
        likeness.add(_likeness(opened))
        if len(likeness) > 1:
            return "the files have different schemas or writers"
        groups += opened.footer.num_row_groups
        size += opened.file.file_size
    return small_row_groups_reason(size, groups, min_row_group)


def small_row_groups_reason(size: int, groups: int, min_row_group: int) -> str:
    """Whether row groups are better put together, which takes decoding them: the reason, or nothing."""
    mean = size // max(1, groups)
    return f"row groups of {mean} bytes are better put together" if mean < min_row_group else ""


def stitch(files: Sequence[OpenFile], io: FileIO, path: str) -> WrittenFile:
    """Write the row groups of all files, in their order, into one file."""
    with writing(path), io.new_output(path).create() as out:
        out.write(_MAGIC)
        places = _PagePlaces(len(_MAGIC))
        moved = []
        for opened in files:
            moved.append(places.end - len(_MAGIC))
            places.end += _copy(opened, out)
        groups: list[bytes] = []
        for opened, distance in zip(files, moved, strict=True):
            groups += _row_groups(opened, distance, len(groups), places)
        footer = _footer(files, groups)
        for part in (*places.written, footer, len(footer).to_bytes(4, "little"), _MAGIC):
            out.write(part)
    size = places.end + len(footer) + 8
    return WrittenFile(path, size, decode_footer(footer, path, size), ())


def _types(schema: Schema) -> dict[int, str]:
    """Fields by id with their types; those of structs, lists and maps are their fields. Names do not matter."""
    fields = fields_by_id(schema).items()
    return {i: str(f.field_type) if f.field_type.is_primitive else type(f.field_type).__name__ for i, f in fields}


def _encoded(opened: OpenFile) -> bytes:
    """The footer as it stands in the file."""
    start = opened.footer.footer_start
    return bytes(opened.source.read_ranges([(start, opened.footer.file_size - 8 - start)])[0])


def _likeness(opened: OpenFile) -> tuple[bytes, ...]:
    """What must be the same of two files: the schema, the orders of its columns, and the program that wrote them."""
    data = _encoded(opened)
    fields, _ = read_struct(data, 0, _PLACES, "footer", opened.footer.file)
    spans = [data[fields[i][0] : fields[i][-1]] if i in fields else b"" for i in (2, 7)]
    return (*spans, fields.get(6, b""))


def _end(footer: ParquetFooter) -> int:
    """Where everything but the page places and the footer ends; a Bloom filter may not say how long it is."""
    ends = [len(_MAGIC)]
    filled = footer.row_group_rows > 0
    for leaf in footer.leaves:
        chunks = footer.chunks(leaf)
        if ((chunks.bloom_offset >= 0) & (chunks.bloom_length < 0)).any():
            return footer.footer_start
        ends += (chunks.start + chunks.total_compressed_size)[filled].tolist()
        ends += (chunks.column_index_offset + chunks.column_index_length).tolist()
        ends += (chunks.bloom_offset + chunks.bloom_length).tolist()
    return max(ends)


def _copy(opened: OpenFile, out: OutputStream) -> int:
    """Copy all that comes before the page places; the number of bytes."""
    first, end = len(_MAGIC), _end(opened.footer)
    for at in range(first, end, _BLOCK):
        out.write(opened.source.read_ranges([(at, min(_BLOCK, end - at))])[0])  # type: ignore[arg-type]
    return end - first


@dataclass(slots=True)
class _PagePlaces:
    """Offset indexes that will stand behind the data, and where the next one would begin."""

    end: int
    written: list[bytes] = field(default_factory=list)

    def add(self, index: bytes) -> tuple[int, int]:
        """Where this one begins, and its length."""
        place = self.end
        self.written.append(index)
        self.end += len(index)
        return place, len(index)


def _row_groups(opened: OpenFile, distance: int, ordinal: int, places: _PagePlaces) -> list[bytes]:
    """The row groups of one file as the footer of the new one has them; their page places are added to the others.

    A row group without rows is left behind.
    """
    footer, data = opened.footer, _encoded(opened)
    listed = read_struct(data, 0, {4: ...}, "footer", footer.file)[0][4]
    moved: list[bytes] = []
    for group in np.flatnonzero(footer.row_group_rows).tolist():
        chunks = [_chunk(place, distance) for place in _moved_places(opened, group, distance, places)]
        edits: dict[int, Edit] = {
            1: Each(chunks.__getitem__),
            5: partial(_shift, distance),
            7: partial(_become, ordinal + len(moved)),
        }
        moved.append(splice(data, edits, "row group", footer.file, listed[group]))
    return moved


def _moved_places(opened: OpenFile, group: int, distance: int, places: _PagePlaces) -> list[tuple[int, int]]:
    """Places and lengths of the new offset indexes of one row group, zeros for a column without one."""
    footer = opened.footer
    chunks = [footer.chunks(leaf) for leaf in footer.leaves]
    ranges = [(int(c.offset_index_offset[group]), int(c.offset_index_length[group])) for c in chunks]
    there = [place for place in ranges if place[0] >= 0]
    read = iter(opened.source.read_ranges(there))
    return [
        places.add(shift_offset_index(bytes(next(read)), distance, footer.file)) if at >= 0 else (0, 0)
        for at, _ in ranges
    ]


def _chunk(offset_index: tuple[int, int], distance: int) -> dict[int, Edit]:
    """What changes of a column chunk: every place in the file, and how long its offset index is."""
    shift = partial(_shift, distance)
    place, length = offset_index
    return {
        2: shift,
        3: {9: shift, 10: shift, 11: shift, 14: shift},
        4: partial(_become, place),
        5: partial(_become, length),
        6: shift,
    }


def _shift(distance: int, place: int) -> int:
    """A place that moved; 0 is none."""
    return place + distance if place > 0 else place


def _become(value: int, _: int) -> int:
    return value


def _footer(files: Sequence[OpenFile], groups: Sequence[bytes]) -> bytes:
    """The footer of the first file with all row groups; notes of the writers that differ are left out."""
    notes = [set(opened.footer.key_values.items()) for opened in files]
    common = [pair for pair in files[0].footer.key_values.items() if all(pair in note for note in notes)]
    pairs = [encode_struct([(1, BINARY, key), (2, BINARY, value)]) for key, value in common]
    edits: dict[int, Edit] = {
        3: encode_value(I64, sum(opened.footer.num_rows for opened in files)),
        4: encode_value(LIST, (STRUCT, groups)),
        5: encode_value(LIST, (STRUCT, pairs)),
    }
    return splice(_encoded(files[0]), edits, "footer", files[0].footer.file)

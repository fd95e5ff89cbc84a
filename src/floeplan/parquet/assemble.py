"""Small Parquet files made in memory out of pages that were fetched, so that pyarrow decodes them.

Rule: the file holds one top-level field of the original with one column chunk (a leaf) filled in per row group: its
dictionary page, where it is needed, and some of its data pages, byte for byte. The schema elements are the original's,
so types, nesting and field ids come out as pyarrow would read them; the writer's name is kept too, because decoders
work around bugs by it. The other leaves of the field are named in the footer and never read.

Fail-safe: the number of values comes from the page headers, not from the offset index (which does not know it for
nested columns), and the decoded rows are counted by the caller.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from floeplan.parquet.thrift import BINARY, I32, I64, LIST, STRUCT, encode_struct

Bytes: TypeAlias = bytes | memoryview

_MAGIC = b"PAR1"
_ANY_ENCODINGS = (LIST, (I32, (0, 3, 8)))
_REQUIRED = 0


@dataclass(frozen=True, slots=True)
class LeafLayout:
    """What the footer of the small file says of one leaf."""

    physical_type: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """One top-level field: its schema elements as they stand in the original footer, and its leaves in order.

    ``arrow_field`` is the field as its Arrow writer knew it, if one wrote it and said so.
    """

    elements: tuple[bytes, ...]
    first_leaf: int
    leaves: tuple[LeafLayout, ...]
    created_by: bytes
    arrow_field: pa.Field | None


@dataclass(frozen=True, slots=True)
class LeafPages:
    """The fetched pages of one leaf in one row group, the dictionary page first if there is one."""

    num_rows: int
    num_values: int
    codec: int
    pages: Sequence[Bytes]


def decode_leaf(field: FieldLayout, leaf_index: int, groups: Sequence[LeafPages]) -> pa.ChunkedArray:
    """Decode the pages of one leaf; a field of several leaves comes back with this one alone inside."""
    leaf = leaf_index - field.first_leaf
    file = pq.ParquetFile(pa.py_buffer(_file(field, leaf, groups)), coerce_int96_timestamp_unit="us")
    return file.reader.read_all(column_indices=[leaf], use_threads=False).column(0)


def arrow_field(field: FieldLayout) -> pa.Field:
    """The field as pyarrow reads it."""
    return pq.read_schema(pa.py_buffer(_file(field, 0, ()))).field(0)


def _file(field: FieldLayout, leaf: int, groups: Sequence[LeafPages]) -> bytes:
    parts: list[Bytes] = [_MAGIC]
    row_groups, offset = [], len(_MAGIC)
    for pages in groups:
        size = sum(map(len, pages.pages))
        row_groups.append(_row_group(field, leaf, pages, offset, size))
        parts += pages.pages
        offset += size
    footer = _footer(field, row_groups, sum(pages.num_rows for pages in groups))
    return b"".join([*parts, footer, len(footer).to_bytes(4, "little"), _MAGIC])


def _row_group(field: FieldLayout, leaf: int, pages: LeafPages, offset: int, size: int) -> bytes:
    chunks = [
        _column_chunk(layout, pages, offset, size if index == leaf else 0) for index, layout in enumerate(field.leaves)
    ]
    return encode_struct([(1, LIST, (STRUCT, chunks)), (2, I64, size), (3, I64, pages.num_rows)])


def _column_chunk(layout: LeafLayout, pages: LeafPages, offset: int, size: int) -> bytes:
    fields = [
        (1, I32, layout.physical_type),
        (2, *_ANY_ENCODINGS),
        (3, LIST, (BINARY, [part.encode() for part in layout.path])),
        (4, I32, pages.codec),
        (5, I64, pages.num_values),
        (6, I64, size),
        (7, I64, size),
        (9, I64, offset),
    ]
    return encode_struct([(2, I64, offset), (3, STRUCT, encode_struct(fields))])


def _footer(field: FieldLayout, row_groups: Sequence[bytes], num_rows: int) -> bytes:
    root = encode_struct([(3, I32, _REQUIRED), (4, BINARY, b"schema"), (5, I32, 1)])
    fields = [
        (1, I32, 2),
        (2, LIST, (STRUCT, [root, *field.elements])),
        (3, I64, num_rows),
        (4, LIST, (STRUCT, row_groups)),
    ]
    if field.arrow_field is not None:
        schema = base64.b64encode(pa.schema([field.arrow_field]).serialize())
        fields.append((5, LIST, (STRUCT, [encode_struct([(1, BINARY, b"ARROW:schema"), (2, BINARY, schema)])])))
    return encode_struct([*fields, (6, BINARY, field.created_by)])

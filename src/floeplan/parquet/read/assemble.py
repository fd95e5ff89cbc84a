"""Assembles small Parquet files in memory from fetched pages, so that pyarrow decodes them; merges decoded leaves.

Rule: such a file holds one top-level field of the original with the column chunk of one leaf per row group: its
dictionary page, if needed, and some of its data pages, byte for byte. The schema elements are the original's, so types,
nesting and field ids are as pyarrow reads them; ``created_by`` is kept, because decoders work around writer bugs by it.
The other leaves of the field are listed in the footer and never read. Nested fields are decoded by leaf and merged.

Fail-safe: the number of values comes from the page headers, not from the offset index (which lacks it for nested
columns), and the caller counts the decoded rows.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floeplan.parquet.footer.thrift import BINARY, I32, I64, LIST, STRUCT, encode_struct
from floeplan.vectors import Ints

_MAGIC = b"PAR1"
_ANY_ENCODINGS = (LIST, (I32, (0, 3, 8)))
_REQUIRED = 0


@dataclass(frozen=True, slots=True)
class LeafLayout:
    """The physical type and path of one leaf, for the footer of the assembled file."""

    physical_type: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """One top-level field: its encoded schema elements from the original footer, and its leaves in order.

    ``arrow_field`` is the field in the Arrow schema that the writer stored, if any.
    """

    elements: tuple[bytes, ...]
    first_leaf: int
    leaves: tuple[LeafLayout, ...]
    created_by: bytes
    arrow_field: pa.Field | None


@dataclass(frozen=True, slots=True)
class LeafPages:
    """The fetched pages of one leaf in one row group, the dictionary page first if present."""

    num_rows: int
    num_values: int
    codec: int
    pages: Sequence[bytes | memoryview]


def decode_leaf(field: FieldLayout, leaf_index: int, groups: Sequence[LeafPages]) -> pa.ChunkedArray:
    """Decode the pages of one leaf; a nested field is returned with only this leaf inside."""
    leaf = leaf_index - field.first_leaf
    file = pq.ParquetFile(pa.py_buffer(_file(field, leaf, groups)), coerce_int96_timestamp_unit="us")
    return file.reader.read_all(column_indices=[leaf], use_threads=False).column(0)


def arrow_field(field: FieldLayout) -> pa.Field:
    """The field as pyarrow reads it."""
    return pq.read_schema(pa.py_buffer(_file(field, 0, ()))).field(0)


def _file(field: FieldLayout, leaf: int, groups: Sequence[LeafPages]) -> bytes:
    parts: list[bytes | memoryview] = [_MAGIC]
    row_groups, offset = [], len(_MAGIC)
    for pages in groups:
        size = sum(map(len, pages.pages))
        chunks = [
            _column_chunk(layout, pages, offset, size if index == leaf else 0)
            for index, layout in enumerate(field.leaves)
        ]
        group = encode_struct([(1, LIST, (STRUCT, chunks)), (2, I64, size), (3, I64, pages.num_rows)])
        row_groups.append(group)
        parts += pages.pages
        offset += size
    footer = _footer(field, row_groups, sum(pages.num_rows for pages in groups))
    return b"".join([*parts, footer, len(footer).to_bytes(4, "little"), _MAGIC])


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


# Merging a nested column from its leaves: ``struct<a>`` and ``struct<b>`` make ``struct<a, b>``. All parts come from
# the same rows, so they agree on nulls and list lengths, which are taken from the first part.


def merge(target: pa.DataType, parts: Sequence[pa.Array]) -> pa.Array:
    """Merge arrays that each hold some leaves of the target type; fields that no part has are left out."""
    if len(parts) == 1 and not pa.types.is_nested(parts[0].type):
        return parts[0]
    if isinstance(target, pa.BaseExtensionType):
        stored = [part.storage if isinstance(part, pa.ExtensionArray) else part for part in parts]
        storage = merge(target.storage_type, stored)
        return pa.ExtensionArray.from_storage(target, storage) if storage.type == target.storage_type else storage
    if pa.types.is_struct(target):
        return _merge_structs(target, parts)
    if pa.types.is_map(target):
        return _merge_maps(target, parts)
    return _merge_lists(target, parts)


def _merge_structs(target: pa.StructType, parts: Sequence[pa.Array]) -> pa.Array:
    fields, children = [], []
    for field in target:
        having = [part.field(field.name) for part in parts if part.type.get_field_index(field.name) >= 0]
        if having:
            children.append(merge(field.type, having))
            fields.append(field.with_type(children[-1].type))
    return pa.StructArray.from_arrays(children, fields=fields, mask=pc.is_null(parts[0]))


def _merge_lists(target: pa.DataType, parts: Sequence[pa.Array]) -> pa.Array:
    values = merge(target.value_type, [part.flatten() for part in parts])
    element = target.value_field.with_type(values.type)
    merged = pa.LargeListArray.from_arrays(
        pa.array(_offsets(parts[0]), pa.int64()), values, type=pa.large_list(element), mask=pc.is_null(parts[0])
    )
    if pa.types.is_fixed_size_list(target):
        return merged.cast(pa.list_(element, target.list_size))
    return merged if pa.types.is_large_list(target) else merged.cast(pa.list_(element))


def _merge_maps(target: pa.MapType, parts: Sequence[pa.Array]) -> pa.Array:
    """Merge keys and values; a map read without one of them stays a list of structs."""
    if len(parts) == 1 and pa.types.is_map(parts[0].type):
        return parts[0]
    sides = list(dict.fromkeys(part.type.value_type.field(0).name for part in parts))
    offsets, absent = pa.array(_offsets(parts[0]), pa.int32()), pc.is_null(parts[0])
    children = [
        merge(field.type, [part.flatten().field(side) for part in parts if part.type.value_type.field(0).name == side])
        for side, field in zip(sides, (target.key_field, target.item_field), strict=False)
    ]
    if len(children) == 1:
        return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(children, names=sides), mask=absent)
    keys, items = children
    if keys.type == target.key_type and items.type == target.item_type:
        return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=absent)
    pruned = pa.map_(target.key_field.with_type(keys.type), target.item_field.with_type(items.type))
    return pa.MapArray.from_arrays(offsets, keys, items, type=pruned, mask=absent)


def _offsets(part: pa.Array) -> Ints:
    lengths = pc.fill_null(pc.list_value_length(part), 0).to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.cumsum(lengths)))

"""Projection: which leaf columns to read, and how they are returned as Arrow fields.

A projection selects top-level fields or paths into structs (``a.b``), by name or by field id. Leaves are fetched and
decoded; a top-level field with some or all of its leaves is returned. Nested fields are decoded by leaf and merged:
``struct<a>`` and ``struct<b>`` make ``struct<a, b>``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.errors import UnknownColumnError
from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.read.decoder import field_layout, stored_arrow_schema
from floeplan.parquet.read.pages import FieldLayout, read_arrow_field
from floeplan.vectors import Ints


@dataclass(frozen=True, slots=True)
class ProjectedField:
    """One top-level field and its projected leaves."""

    layout: FieldLayout
    leaves: tuple[LeafColumn, ...]

    def assemble(self, columns: Mapping[int, pa.ChunkedArray]) -> tuple[pa.Field, pa.ChunkedArray]:
        """The Arrow field and its data, from decoded leaves by index."""
        field = read_arrow_field(self.layout)
        parts = [columns[leaf.index] for leaf in self.leaves]
        if len(parts) == 1:
            return field.with_type(parts[0].type), parts[0]
        # Cut the parts, which have equal length, so that each piece lies within one chunk of every part.
        ends = {end for part in parts for end in accumulate(map(len, part.chunks))}
        cuts = sorted(ends | {0, len(parts[0])})
        merged = []
        for start, end in zip(cuts, cuts[1:] or cuts, strict=False):
            merged.append(_merge(field.type, [part.slice(start, end - start).combine_chunks() for part in parts]))
        column = pa.chunked_array(merged, type=merged[0].type)
        return field.with_type(column.type), column


def project(
    footer: ParquetFooter, columns: Sequence[str | int] | None = None, *, case_sensitive: bool = True
) -> tuple[ProjectedField, ...]:
    """The projected fields in the given order; all fields of the file by default."""
    tops = footer.columns.root.children
    if columns is None:
        return _fields(footer, {position: top.leaf_indexes for position, top in enumerate(tops)})
    wanted: dict[int, set[int]] = {}
    for column in columns:
        matches = footer.columns.find(column, case_sensitive=case_sensitive)
        if len(matches) > 1:
            hint = f"it matches {', '.join('.'.join(match.path) for match in matches)}; use the exact name"
            message = f"column {column} of {footer.file} is ambiguous: {hint}"
            raise UnknownColumnError(message, context={"column": column})
        if not matches:
            names = [top.name for top in tops]
            close = difflib.get_close_matches(str(column), names)
            hint = f"did you mean {' or '.join(close)}?" if close else f"its columns are {', '.join(names[:20])}"
            raise UnknownColumnError(f"{footer.file} has no column {column}; {hint}", context={"column": column})
        wanted.setdefault(matches[0].position, set()).update(matches[0].node.leaf_indexes)
    return _fields(footer, wanted)


def project_leaves(footer: ParquetFooter, leaves: Iterable[int]) -> tuple[ProjectedField, ...]:
    """The fields with only the given leaves inside."""
    chosen = set(leaves)
    held = {position: chosen & set(node.leaf_indexes) for position, node in enumerate(footer.columns.root.children)}
    return _fields(footer, {position: inside for position, inside in held.items() if inside})


def without_field_ids(table: pa.Table) -> pa.Table:
    """Remove field ids from the table, for files whose field ids are incomplete and so not usable."""
    bare = [_bare(field) for field in table.schema]
    columns = [column.cast(field.type) for column, field in zip(table.columns, bare, strict=True)]
    return pa.Table.from_arrays(
        [*columns, pa.nulls(table.num_rows)], schema=pa.schema([*bare, pa.field("", pa.null())])
    )


def _bare(field: pa.Field) -> pa.Field:
    if not pa.types.is_struct(field.type):
        return field.remove_metadata()
    return pa.field(field.name, pa.struct([_bare(child) for child in field.type]), field.nullable)


def _fields(footer: ParquetFooter, wanted: Mapping[int, Iterable[int]]) -> tuple[ProjectedField, ...]:
    """Top-level fields by position, with the projected leaves of each."""
    written = stored_arrow_schema(footer)
    fields = []
    for position, leaves in wanted.items():
        node = footer.columns.root.children[position]
        arrow_field = None if written is None else written.field(position)
        layout = field_layout(footer.columns, node, arrow_field, footer.created_by)
        fields.append(ProjectedField(layout, tuple(footer.leaves[leaf] for leaf in sorted(leaves))))
    return tuple(fields)


def _merge(target: pa.DataType, parts: Sequence[pa.Array]) -> pa.Array:
    """Merge arrays that each hold some leaves of the target type; fields that no part has are left out.

    All parts come from the same rows, so they agree on nulls and list lengths, which are taken from the first part.
    """
    if len(parts) == 1 and not pa.types.is_nested(parts[0].type):
        return parts[0]
    if isinstance(target, pa.BaseExtensionType):
        stored = [part.storage if isinstance(part, pa.ExtensionArray) else part for part in parts]
        storage = _merge(target.storage_type, stored)
        return pa.ExtensionArray.from_storage(target, storage) if storage.type == target.storage_type else storage
    if pa.types.is_struct(target):
        fields, children = [], []
        for field in target:
            having = [part.field(field.name) for part in parts if part.type.get_field_index(field.name) >= 0]
            if having:
                children.append(_merge(field.type, having))
                fields.append(field.with_type(children[-1].type))
        return pa.StructArray.from_arrays(children, fields=fields, mask=pc.is_null(parts[0]))
    if pa.types.is_map(target):
        return _merge_maps(target, parts)
    values = _merge(target.value_type, [part.flatten() for part in parts])
    element = target.value_field.with_type(values.type)
    offsets, absent = pa.array(_offsets(parts[0]), pa.int64()), pc.is_null(parts[0])
    merged = pa.LargeListArray.from_arrays(offsets, values, type=pa.large_list(element), mask=absent)
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
        _merge(field.type, [part.flatten().field(side) for part in parts if part.type.value_type.field(0).name == side])
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

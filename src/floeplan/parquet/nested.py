"""Putting a nested column together again from its leaves, which were decoded one at a time.

Each part is the whole column with one leaf inside: ``struct<a>`` and ``struct<b>`` make ``struct<a, b>``. All parts
come from the same rows, so they agree on which structs and lists are null and on how long the lists are; the first one
is believed. The result has the fields in the order of the target type, and only those that some part has.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def merge(target: pa.DataType, parts: Sequence[pa.Array]) -> pa.Array:
    """One array out of parts that each hold some leaves of the target type."""
    if len(parts) == 1 and not pa.types.is_nested(parts[0].type):
        return parts[0]
    if isinstance(target, pa.BaseExtensionType):
        storage = merge(target.storage_type, [_storage(part) for part in parts])
        return pa.ExtensionArray.from_storage(target, storage) if storage.type == target.storage_type else storage
    if pa.types.is_struct(target):
        return _merge_structs(target, parts)
    if pa.types.is_map(target):
        return _merge_maps(target, parts)
    return _merge_lists(target, parts)


def _storage(part: pa.Array) -> pa.Array:
    return part.storage if isinstance(part, pa.ExtensionArray) else part


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
    return merged.cast(_list_of(target, element))


def _list_of(target: pa.DataType, element: pa.Field) -> pa.DataType:
    if pa.types.is_fixed_size_list(target):
        return pa.list_(element, target.list_size)
    return pa.large_list(element) if pa.types.is_large_list(target) else pa.list_(element)


def _merge_maps(target: pa.MapType, parts: Sequence[pa.Array]) -> pa.Array:
    """Entries are structs of key and value, keys first; a map read without one of them stays a list of structs."""
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


def _offsets(part: pa.Array) -> npt.NDArray[np.int64]:
    lengths = pc.fill_null(pc.list_value_length(part), 0).to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.cumsum(lengths)))

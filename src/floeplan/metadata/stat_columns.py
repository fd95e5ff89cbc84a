"""The statistics of entries, turned over: from a map per entry to a column per field id, and back.

Both directions keep every key and value. An entry that has no map and one that has an empty map look alike as columns,
so ``empty_maps`` remembers which of the two it was. Of a key that is there twice the last value counts, as for readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.metadata.assemble import map_type
from floeplan.metadata.bounds import valid_mask
from floeplan.metadata.decoder import Ints, Mask, validity_bitmap
from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.entry_columns import STAT_MAPS


def unpack_map(pairs: pa.Array) -> dict[int, pa.Array]:
    """A column for each key of the maps, null where a map does not have it."""
    items = pairs.flatten()
    keys = pc.struct_field(items, "key").to_numpy(zero_copy_only=False)
    values = pc.struct_field(items, "value")
    rows = np.repeat(np.arange(len(pairs)), _counts(pairs))
    order = np.argsort(keys, kind="stable")
    found, starts = np.unique(keys[order], return_index=True)
    columns = {}
    for key, (start, end) in zip(found.tolist(), pairwise([*starts, len(order)]), strict=True):
        at = order[start:end]
        columns[key] = _scatter(values, at, rows[at], len(pairs))
    return columns


def pack_map(name: str, columns: Mapping[int, pa.Array], empty: Mask) -> pa.Array:
    """The maps of columns by key, in the order of the keys; ``empty`` marks entries whose map is there without keys."""
    ids, length = np.array(sorted(columns), dtype=np.int32), len(empty)
    held = [valid_mask(columns[int(key)]) for key in ids]
    there = np.stack(held, axis=1) if held else np.zeros((length, 0), dtype=np.bool_)
    row, at = np.nonzero(there)
    counts = there.sum(axis=1)
    type_ = map_type(name)
    whole = [columns[int(key)] for key in ids]
    values = (
        pa.concat_arrays(whole).take(pa.array(at * length + row)) if whole else pa.array([], type_.value_type[1].type)
    )
    offsets = np.zeros(length + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    bitmap, nulls = validity_bitmap((counts > 0) | empty)
    items = pa.StructArray.from_arrays([pa.array(ids[at]), values], type=type_.value_type)
    return pa.Array.from_buffers(type_, length, [bitmap, pa.py_buffer(offsets)], nulls, children=[items])


def empty_maps(entries: EntriesTable) -> npt.NDArray[np.int8]:
    """A bit for each of ``STAT_MAPS``: the entry has the map, and there is nothing in it."""
    bits = np.zeros(len(entries), dtype=np.int8)
    for bit, name in enumerate(STAT_MAPS):
        pairs = entries.array(name)
        bits |= ((valid_mask(pairs) & (_counts(pairs) == 0)).astype(np.int8) << bit).astype(np.int8)
    return bits


def is_empty(bits: npt.NDArray[np.int8], name: str) -> Mask:
    """What ``empty_maps`` says of one map."""
    return np.asarray((bits >> STAT_MAPS.index(name)) & 1, dtype=np.bool_)


def _counts(pairs: pa.Array) -> Ints:
    return np.asarray(pc.list_value_length(pairs).fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)


def _scatter(values: pa.Array, at: npt.NDArray[np.intp], rows: Ints, length: int) -> pa.Array:
    places = np.full(length, -1, dtype=np.int64)
    places[rows] = at
    return values.take(pa.array(places, mask=places < 0))

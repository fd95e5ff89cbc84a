"""The columns of a root manifest: a whole snapshot, data and delete files of all specs, as one Parquet file.

=====================================  ============================================================================
``status`` … ``content_size_in_bytes``  the fields of an entry, named as in manifests; the file has live entries only
``spec_id``, ``manifest_path``          the entry's spec, and the manifest it was found in
``partition.<field>``                   the union partition tuple: null where the entry's spec does not have the field
``partition_ranges.<field>``            ``lower`` and ``upper`` of the partition function's output, for every field
``stats.<column>``                      ``lower`` and ``upper`` in the type of the column, the same as the bytes they
                                        were written in, ``value_count``, ``null_count``, ``nan_count``, ``column_size``
``empty_maps``                          which maps of statistics are there and empty
=====================================  ============================================================================

Rows are sorted by content, spec and partition, and a row group never mixes data with deletes or two specs: it is what
a manifest is. The footer carries the manifest list of the row groups, so a plan begins as it does with manifests.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import LongType, PrimitiveType, StringType

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.manifests.assemble import map_type
from floeplan.metadata.manifests.entries import ALL_COLUMNS, POSITION_DELETE_PATH, STAT_MAPS, EntriesTable
from floeplan.metadata.manifests.typed_values import parse_type
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.schemas import fields_by_id
from floeplan.vectors import Ints, Mask, valid_mask, validity_bitmap

HEADER_KEY = b"floeplan.root"
VERSION = 1

PLAIN = ("spec_id", *sorted(ALL_COLUMNS))
"""Columns that are stored as entries have them."""

LEAF_OF_MAP = {
    "column_sizes": "column_size",
    "value_counts": "value_count",
    "null_value_counts": "null_count",
    "nan_value_counts": "nan_count",
    "lower_bounds": "lower_bytes",
    "upper_bounds": "upper_bytes",
}
"""Where each map of statistics went, per column."""

_RESERVED: Mapping[int, tuple[str, PrimitiveType]] = {
    POSITION_DELETE_PATH: ("file_path", StringType()),
    POSITION_DELETE_PATH - 1: ("pos", LongType()),
}
"""The columns of position delete files, which no schema has."""


@dataclass(frozen=True, slots=True)
class StatColumn:
    """A column of the table in ``stats``; no type when no schema knows it."""

    field_id: int
    name: str
    type: PrimitiveType | None


@dataclass(frozen=True, slots=True)
class RootHeader:
    """What the footer says of the file.

    Attributes:
        table_uuid: The table.
        snapshot_id: The snapshot; none for a table without data.
        partition: Name and type of each field of the union tuple by its id.
        columns: Field ids of the columns in ``stats`` by name.
        manifest_list: The manifest list of the row groups, as Avro.
    """

    table_uuid: str
    snapshot_id: int | None
    partition: Mapping[int, tuple[str, PrimitiveType]]
    columns: Mapping[str, int]
    manifest_list: bytes

    def to_json(self) -> str:
        """As it stands in the footer."""
        return json.dumps(
            {
                "version": VERSION,
                "table-uuid": self.table_uuid,
                "snapshot-id": self.snapshot_id,
                "partition": [{"id": key, "name": n, "type": str(t)} for key, (n, t) in self.partition.items()],
                "columns": self.columns,
                "manifest-list": base64.b64encode(self.manifest_list).decode(),
            }
        )

    @classmethod
    def parse(cls, metadata: Mapping[bytes, bytes] | None, location: str) -> RootHeader:
        """Out of the footer's key-value pairs."""
        text = (metadata or {}).get(HEADER_KEY)
        if text is None:
            raise CorruptMetadataError(f"{location} is not a root manifest", context={"file": location})
        try:
            return cls._of(json.loads(text), location)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CorruptMetadataError(
                f"the header of the root manifest {location} is damaged: {error}", context={"file": location}
            ) from error

    @classmethod
    def _of(cls, found: Mapping[str, Any], location: str) -> RootHeader:
        if found["version"] != VERSION:
            raise CorruptMetadataError(
                f"{location} is a root manifest of version {found['version']}, known is {VERSION}: write it again",
                context={"file": location},
            )
        return cls(
            table_uuid=found["table-uuid"],
            snapshot_id=found["snapshot-id"],
            partition={field["id"]: (field["name"], parse_type(field["type"])) for field in found["partition"]},
            columns=found["columns"],
            manifest_list=base64.b64decode(found["manifest-list"]),
        )


def stat_columns(field_ids: Iterable[int], metadata: TableMetadata) -> tuple[StatColumn, ...]:
    """Names and types of the columns with these ids: the newest ones; the id is added to names that are taken."""
    types = source_types(metadata.schema(), metadata.schemas)
    newest_last = sorted(metadata.schemas, key=lambda s: (s.schema_id == metadata.current_schema_id, s.schema_id))
    names: dict[int, str] = {key: name for key, (name, _) in _RESERVED.items()}
    for schema in newest_last:
        names |= {field_id: schema.find_column_name(field_id) or "" for field_id in fields_by_id(schema)}
    columns: dict[str, StatColumn] = {}
    for field_id in sorted(field_ids):
        name = names.get(field_id) or f"field_{field_id}"
        name = f"{name}_{field_id}" if name in columns else name
        known = types.get(field_id) or ((_RESERVED[field_id][1],) if field_id in _RESERVED else (None,))
        columns[name] = StatColumn(field_id, name, known[0])
    return tuple(columns.values())


def partition_fields(
    union: UnionPartitionType, types: Mapping[int, PrimitiveType]
) -> dict[int, tuple[str, PrimitiveType]]:
    """Name and type of each field of the union tuple."""
    return {field.id: (field.name, types.get(field.id, field.bound.column.type)) for field in union.fields}


# The statistics of entries, turned over: from a map per entry to a column per field id, and back.
#
# Both directions keep every key and value. An entry that has no map and one that has an empty map look alike as
# columns,
# so ``empty_maps`` remembers which of the two it was. Of a key that is there twice the last value counts, as for
# readers.


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

"""Manifest entries of many manifests as one columnar table: read, made from columns, or with another status.

``EntriesTable`` wraps an Arrow table: one row per entry, in the order of the manifests and of the entries within them.
Columns (see ``entry_columns`` for all names) are plain vectors without Python objects per entry:

==================================================  =======================================================
``manifest``, ``ordinal``                           row of the manifest list, number among the manifest's live entries
``spec_id``, ``status``, ``content``                small integers; the spec is the manifest list's
``sequence_number``, ``file_sequence_number``,      int64, inherited as the specification says
``snapshot_id``, ``first_row_id``
``file_path``, ``file_format``                      large_string; formats in capitals
``record_count``, ``file_size_in_bytes``            int64
``split_offsets``, ``equality_ids``                 large_list<int64>
``key_metadata``                                    large_binary
``partition.<id>``                                  int64, float64, large_string, large_binary, decimal128
``lower.<id>``, ``upper.<id>``                      large_binary: Iceberg's single-value form
``null_count.<id>`` and other counts                int64
``lower_bounds`` and other whole maps               large_list<struct<key: int32, value>>
==================================================  =======================================================

Partition values are in the physical domain of ``floeplan.predicate.stats.Vector``. The ordinal of a DELETED entry is
-1, so that live entries have the same ordinal whether DELETED ones were read or not.

Entries that are made rather than read (``new_entries``, ``concat_entries``) have every column that a manifest can hold;
null sequence numbers, snapshot ids and first row ids are inherited.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.types import PrimitiveType, UnknownType

from floeplan import arrow_compute as pc
from floeplan.metadata.avro.program import Fields, Items, Keyed, Scalar, Want
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.metadata.manifests.values import number_array, partition_arrow_type
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import IrExpr
from floeplan.predicate.stats import POOL, ColumnStats, Tri
from floeplan.vectors import Ints, Mask, arrow, integers, valid_mask, without_nulls

_FEW = 1024
REQUIRED = frozenset({"status", "file_path", "record_count", "file_size_in_bytes"})
"""Columns every manifest must have."""

DATA_FILE, PARTITION = 2, 102
"""Field ids of the records within an entry."""

_INT64, _INTS = pa.int64(), pa.large_list(pa.int64())
_ENTRY: Mapping[str, tuple[int, pa.DataType]] = {
    "status": (0, pa.int8()),
    "snapshot_id": (1, _INT64),
    "sequence_number": (3, _INT64),
    "file_sequence_number": (4, _INT64),
}
_DATA_FILE: Mapping[str, tuple[int, pa.DataType]] = {
    "content": (134, pa.int8()),
    "file_path": (100, pa.large_string()),
    "file_format": (101, pa.large_string()),
    "record_count": (103, _INT64),
    "file_size_in_bytes": (104, _INT64),
    "key_metadata": (131, pa.large_binary()),
    "split_offsets": (132, _INTS),
    "equality_ids": (135, _INTS),
    "sort_order_id": (140, _INT64),
    "first_row_id": (142, _INT64),
    "referenced_data_file": (143, pa.large_string()),
    "content_offset": (144, _INT64),
    "content_size_in_bytes": (145, _INT64),
}
"""Field id of the specification and Arrow type of each column."""

_MAPS = {
    "column_sizes": (108, 117, 118),
    "value_counts": (109, 119, 120),
    "null_value_counts": (110, 121, 122),
    "nan_value_counts": (137, 138, 139),
    "lower_bounds": (125, 126, 127),
    "upper_bounds": (128, 129, 130),
}
"""Field ids of each map of statistics, its keys and its values."""

_BOUNDS = ("lower_bounds", "upper_bounds")

STATS = {
    "value_count": "value_counts",
    "null_count": "null_value_counts",
    "nan_count": "nan_value_counts",
    "lower": "lower_bounds",
    "upper": "upper_bounds",
}
"""Columns of statistics by field id, and the map each comes from."""

NAN_COUNT = "nan_count"


ALL_COLUMNS = frozenset({*_ENTRY, *_DATA_FILE})
"""Everything but statistics."""

FIELD_IDS = {name: found[0] for name, found in {**_ENTRY, **_DATA_FILE}.items()} | {"spec_id": 141}
"""The field ids of the specification."""

ENTRY_TYPES: Mapping[str, pa.DataType] = {
    "spec_id": pa.int32(),
    **{name: found[1] for name, found in {**_ENTRY, **_DATA_FILE}.items()},
    **dict.fromkeys(_MAPS, pa.large_list(pa.struct([("key", pa.int32()), ("value", _INT64)]))),
    **dict.fromkeys(_BOUNDS, pa.large_list(pa.struct([("key", pa.int32()), ("value", pa.large_binary())]))),
}
"""Arrow types of the columns of whole entries, the partition tuple apart; a map is a list of (field id, value)."""

STAT_MAPS = tuple(_MAPS)
"""The statistics as whole maps from field id to value."""

WHOLE = ALL_COLUMNS | frozenset(_MAPS)
"""Every column: what writing an entry again takes."""

NEEDED = frozenset({"status", "sequence_number", "content", "file_path", "file_format", "record_count"}) | REQUIRED
"""Columns that are always read: no entry can be evaluated without them."""


def partition_column(field_id: int | str) -> str:
    """The column of a field of the union partition tuple."""
    return f"partition.{field_id}"


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """Which columns of manifest entries to read.

    Planning reads the statistics of few fields as vectors (``stats``, ``sizes``); writing entries again needs the maps
    of all fields (by their names). A map is read in one of the two ways.

    Attributes:
        names: Column names out of ``WHOLE``; those in ``NEEDED`` are always read.
        stats: Field ids whose bounds and counts are read.
        sizes: Field ids whose column sizes are read.
        nan_counts: Field ids whose NaN counts are read, also without their other statistics.
        partition: Whether the partition tuple is read.
    """

    names: frozenset[str] = ALL_COLUMNS
    stats: frozenset[int] = frozenset()
    sizes: frozenset[int] = frozenset()
    partition: bool = True
    nan_counts: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        by_key = self.stats or self.sizes or self.nan_counts
        assert not (self.maps and by_key), "maps are read whole or by key, not both"

    @property
    def maps(self) -> tuple[str, ...]:
        """The maps that are read whole."""
        return tuple(name for name in _MAPS if name in self.names)

    def want(self, partition: Mapping[int, str]) -> Fields:
        """What to decode of a manifest; ``partition`` names the column of each partition field id of its spec."""
        names = self.names | NEEDED
        entry: list[tuple[int, Want]] = [(i, Scalar(name)) for name, (i, _) in _ENTRY.items() if name in names]
        data_file: list[tuple[int, Want]] = []
        for name, (field_id, type_) in _DATA_FILE.items():
            if name in names:
                is_list = pa.types.is_large_list(type_)
                data_file.append((field_id, Items(name, Scalar(f"{name}[]")) if is_list else Scalar(name)))
        for name in self.maps:
            field_id, key_id, value_id = _MAPS[name]
            pair = Fields(((key_id, Scalar(f"{name}.key")), (value_id, Scalar(f"{name}.value"))))
            data_file.append((field_id, Items(name, pair)))
        if self.partition and partition:
            columns = tuple((field_id, Scalar(name)) for field_id, name in sorted(partition.items()))
            data_file.append((PARTITION, Fields(columns)))
        for prefix, source in STATS.items():
            keys = self.stats | self.nan_counts if prefix == NAN_COUNT else self.stats
            if keys:
                data_file.append((_MAPS[source][0], Keyed(f"{prefix}.", tuple(sorted(keys)))))
        if self.sizes:
            data_file.append((_MAPS["column_sizes"][0], Keyed("column_size.", tuple(sorted(self.sizes)))))
        return Fields((*entry, (DATA_FILE, Fields(tuple(data_file)))))

    def column_names(self, partition: Iterable[int]) -> list[str]:
        """The names of the columns, without ``manifest``, ``ordinal`` and ``spec_id``."""
        names = [name for name in (*_ENTRY, *_DATA_FILE, *_MAPS) if name in self.names | NEEDED]
        if self.partition:
            names += [partition_column(field_id) for field_id in partition]
        names += [f"{prefix}.{field_id}" for field_id in sorted(self.stats) for prefix in STATS]
        names += [f"{NAN_COUNT}.{field_id}" for field_id in sorted(self.nan_counts - self.stats)]
        return names + [f"column_size.{field_id}" for field_id in sorted(self.sizes)]

    def only(self, names: Iterable[str]) -> EntryColumns:
        """The fewest columns that include these."""
        few = frozenset(names)
        return EntryColumns(
            names=self.names & few,
            stats=frozenset(i for i in self.stats if any(f"{prefix}.{i}" in few for prefix in STATS)),
            sizes=frozenset(i for i in self.sizes if f"column_size.{i}" in few),
            partition=self.partition and any(name.startswith(partition_column("")) for name in few),
            nan_counts=frozenset(i for i in self.nan_counts if f"{NAN_COUNT}.{i}" in few),
        )


POSITION_DELETE_PATH = 2147483546
"""Field id of ``file_path`` in position delete files: equal bounds mean that it deletes from a single data file."""


class Status(IntEnum):
    """The status of a manifest entry."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


class Content(IntEnum):
    """The content type of a file."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


@dataclass(frozen=True, slots=True)
class Origin:
    """Where each entry comes from: its row of the manifest list, and the row of the first entry of that manifest."""

    manifests: ManifestListTable
    manifest: Ints
    first_entry: Ints

    @classmethod
    def of(cls, manifests: ManifestListTable, rows: Ints, counts: Ints) -> Origin:
        """From the manifests that were read and the number of entries of each."""
        return cls(manifests, np.repeat(rows, counts), np.repeat(np.cumsum(counts) - counts, counts))

    def __len__(self) -> int:
        return len(self.manifest)

    def columns(self, status: npt.NDArray[np.integer]) -> dict[str, pa.Array]:
        """The columns ``manifest``, ``ordinal`` and ``spec_id`` of entries with this status."""
        live = status != Status.DELETED
        if live.all():
            ordinal = np.arange(len(self)) - self.first_entry
        else:
            before = np.cumsum(live, dtype=np.int32) - live
            ordinal = np.where(live, before - before[self.first_entry], -1)
        found = {"manifest": self.manifest, "ordinal": ordinal, "spec_id": self.manifests.spec_id[self.manifest]}
        return {name: number_array(values.astype(np.int32)) for name, values in found.items()}


class Slice(NamedTuple):
    """The table that entries are consecutive rows of, and what is known of it.

    Attributes:
        whole: The table.
        start: Where the entries begin.
        decoded: Its statistics, as far as they are decoded.
        remember: The answers to a leaf for the whole table, computed once it is repeated; ``None`` before.
    """

    whole: EntriesTable
    start: int
    decoded: dict[Hashable, ColumnStats]
    remember: Callable[[IrExpr, Callable[[], tuple[Tri, Tri]]], tuple[Tri, Tri] | None]


@dataclass(frozen=True, slots=True)
class EntriesTable:
    """Entries with the types of their partition columns by union field id.

    ``slice_of`` is a table in memory that these are rows of: decoding its statistics once serves all its slices.
    """

    table: pa.Table
    partition_types: Mapping[int, PrimitiveType]
    slice_of: Slice | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        count: int = self.table.num_rows
        return count

    def __contains__(self, name: str) -> bool:
        return bool(self.table.schema.get_field_index(name) >= 0)

    def array(self, name: str | int) -> pa.Array:
        """A column, by name or index, as one Arrow array."""
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def ints(self, name: str, missing: int = -1) -> Ints:
        """An integer column; nulls and a missing column read as ``missing``."""
        at = self.table.schema.get_field_index(name)
        if at < 0:
            return np.full(len(self), missing, dtype=np.int64)
        return integers(without_nulls(self.array(at), missing))

    def valid(self, name: str) -> Mask:
        """Where a column has a value."""
        return valid_mask(self.array(name)) if name in self else np.zeros(len(self), dtype=np.bool_)

    @property
    def spec_id(self) -> Ints:
        """Partition spec of every entry."""
        return self.ints("spec_id")

    @property
    def status(self) -> Ints:
        """Values of ``Status``."""
        return self.ints("status")

    @property
    def content(self) -> Ints:
        """Values of ``Content``."""
        return self.ints("content")

    @property
    def sequence_number(self) -> Ints:
        """Data sequence number."""
        return self.ints("sequence_number")

    @property
    def record_count(self) -> Ints:
        """Rows in the file; negative when unknown."""
        return self.ints("record_count")

    @property
    def path(self) -> pa.Array:
        """Location of the file."""
        return self.array("file_path")

    def partition_columns(self) -> dict[int, pa.Array]:
        """The columns of the union partition tuple by union field id."""
        return {field_id: self.array(partition_column(field_id)) for field_id in self.partition_types}

    def delete_targets(self) -> pa.Array:
        """The single data file of a position delete: its reference, or equal bounds of its path column; else null."""
        referenced = self.array("referenced_data_file")
        lower, upper = (f"{side}.{POSITION_DELETE_PATH}" for side in ("lower", "upper"))
        if lower not in self:
            return referenced
        is_position = arrow(self.content == Content.POSITION_DELETES)
        one_path = pc.and_(pc.fill_null(pc.equal(self.array(lower), self.array(upper)), False), is_position)
        path = pc.if_else(one_path, self.array(lower), pc.scalar(None, pa.large_binary()))
        return pc.coalesce(referenced, path.cast(pa.large_string()))

    def live(self) -> EntriesTable:
        """Without DELETED entries."""
        alive = self.status != Status.DELETED
        return self if alive.all() else self.filter(alive)

    def filter(self, keep: Mask) -> EntriesTable:
        """The rows where the mask is true."""
        rows = keep.nonzero()[0]
        batches = self.table.to_batches() if len(rows) <= _FEW else []
        if len(batches) == 1:  # taking few rows of a batch takes half the time of filtering a table
            kept = pa.Table.from_batches([pc.take(batches[0], arrow(rows), POOL)])
            return EntriesTable(kept, self.partition_types)
        kept = pc.filter(self.table, arrow(keep), POOL)
        if kept.num_columns and kept.column(0).num_chunks > 1:
            kept = kept.combine_chunks(memory_pool=POOL)
        return EntriesTable(kept, self.partition_types)

    def take(self, rows: npt.NDArray[np.integer]) -> EntriesTable:
        """These rows, in this order."""
        return EntriesTable(pc.take(self.table, arrow(rows)).combine_chunks(), self.partition_types)


def new_entries(
    columns: Mapping[str, pa.Array],
    union: UnionPartitionType,
    partition_types: Mapping[int, PrimitiveType] | None = None,
) -> EntriesTable:
    """Entries of these columns; arrays are cast to the types entries have, columns that are not given are null.

    Args:
        columns: By the names of ``ENTRY_TYPES`` and ``partition.<union id>``.
        union: The partition fields of the table's specs.
        partition_types: Types of partition columns that no schema of the table knows any more.
    """
    rows = len(columns["file_path"])
    types = _union_types(union) | dict(partition_types or {})
    made = {}
    for name, type_ in {**ENTRY_TYPES, **_partition_arrow_types(types)}.items():
        given = columns.get(name)
        made[name] = pa.nulls(rows, type_) if given is None else given if given.type == type_ else given.cast(type_)
    return EntriesTable(pa.table(made), types)


_WHOLE = EntryColumns(WHOLE)


def no_entries(union: UnionPartitionType, columns: EntryColumns = _WHOLE) -> EntriesTable:
    """The empty table that reading these columns from no manifest returns; statistics by field are not supported."""
    types = _union_types(union)
    return EntriesTable(_empty_table(columns, tuple(types.items())), types)


@lru_cache(maxsize=64)
def _empty_table(columns: EntryColumns, partition: tuple[tuple[int, PrimitiveType], ...]) -> pa.Table:
    """Cached, because every plan of a table without deletes needs it."""
    fixed = {name: ENTRY_TYPES[name] for name in ("spec_id", *columns.column_names(()))}
    named = fixed | _partition_arrow_types(dict(partition))
    # One empty array per type: making them costs more than the rest of an empty plan.
    nothing = {type_: pa.nulls(0, type_) for type_ in set(named.values())}
    arrays = [nothing[type_] for type_ in named.values()]
    return pa.Table.from_arrays(arrays, names=list(named))


def concat_entries(tables: Sequence[EntriesTable], union: UnionPartitionType) -> EntriesTable:
    """Concatenate whole entries under the partition columns of the union; ``manifest`` and ``ordinal`` are dropped.

    A partition column whose type one table does not know (it is null there) takes the type of the others.
    """
    filled = [table for table in tables if len(table)]
    if not filled:
        return no_entries(union)
    types = _union_types(union)
    for table in filled:
        types |= {key: type_ for key, type_ in table.partition_types.items() if not isinstance(type_, UnknownType)}
    names = ["spec_id", *sorted(WHOLE), *(partition_column(key) for key in types)]
    made = {
        name: concat_columns([table.array(name) if name in table else pa.nulls(len(table)) for table in filled])
        for name in names
    }
    return EntriesTable(pa.table(made), types)


def concat_columns(pieces: Sequence[pa.Array]) -> pa.Array:
    """Concatenate pieces of a column; a piece of unknown type is null and takes the type of the others.

    Raises:
        pa.ArrowInvalid: Two pieces have different types.
    """
    if len(pieces) == 1:
        return pieces[0]
    type_ = next((piece.type for piece in pieces if not pa.types.is_null(piece.type)), pa.null())
    return pa.concat_arrays([pa.nulls(len(p), type_) if pa.types.is_null(p.type) else p for p in pieces])


def with_status(entries: EntriesTable, status: Ints, snapshot_id: Ints) -> EntriesTable:
    """The same files with another status and snapshot id; -1 leaves the snapshot id to be inherited."""
    table = entries.table
    for name, values, missing in (("status", status, None), ("snapshot_id", snapshot_id, snapshot_id < 0)):
        column = pa.array(values, ENTRY_TYPES[name], mask=missing)
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return EntriesTable(table, entries.partition_types)


def carried_over(entries: EntriesTable, removed: Mask, snapshot_id: int) -> EntriesTable:
    """Entries as a snapshot rewrites them: removed ones DELETED, others EXISTING, already deleted ones dropped.

    Files that the snapshot itself added stay ADDED, and those it removed before stay DELETED.
    """
    own = entries.ints("snapshot_id") == snapshot_id
    status = np.where(own, entries.status, Status.EXISTING)
    status = np.where(removed, Status.DELETED, status)
    written_by = np.where(removed, snapshot_id, entries.ints("snapshot_id"))
    keep = own | (entries.status != Status.DELETED)
    return with_status(entries, status, written_by).filter(keep)


def _union_types(union: UnionPartitionType) -> dict[int, PrimitiveType]:
    return {field.id: field.bound.column.type for field in union.fields}


def _partition_arrow_types(types: Mapping[int, PrimitiveType]) -> dict[str, pa.DataType]:
    return {partition_column(key): partition_arrow_type(type_) for key, type_ in types.items()}

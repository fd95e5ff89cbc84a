"""Manifest entries of many manifests as one columnar table.

``EntriesTable`` wraps an Arrow table: one row per entry, in the order of the manifests and of the entries within them.
Columns (see ``entry_columns`` for all names) are plain vectors without Python objects per entry:

==================================================  =======================================================
``manifest``, ``ordinal``                           row of the manifest list, position within the manifest
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

Partition values are in the physical domain of ``floeplan.predicate.stats.Vector``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import PrimitiveType

from floeplan.metadata.avro.program import Fields, Items, Keyed, Scalar, Want
from floeplan.predicate.stats import POOL
from floeplan.vectors import Ints, Mask, valid_mask

# Field ids of the Iceberg specification, by column name.

STATUS, SNAPSHOT_ID, DATA_FILE, SEQUENCE_NUMBER, FILE_SEQUENCE_NUMBER = 0, 1, 2, 3, 4
PARTITION = 102

REQUIRED = frozenset({"status", "file_path", "record_count", "file_size_in_bytes"})
"""Columns every manifest must have."""


def _map(name: str, key_id: int, value_id: int) -> Items:
    return Items(name, Fields(((key_id, Scalar(f"{name}.key")), (value_id, Scalar(f"{name}.value")))))


_ENTRY: Mapping[str, tuple[int, Want]] = {
    "status": (STATUS, Scalar("status")),
    "snapshot_id": (SNAPSHOT_ID, Scalar("snapshot_id")),
    "sequence_number": (SEQUENCE_NUMBER, Scalar("sequence_number")),
    "file_sequence_number": (FILE_SEQUENCE_NUMBER, Scalar("file_sequence_number")),
}
_DATA_FILE: Mapping[str, tuple[int, Want]] = {
    "content": (134, Scalar("content")),
    "file_path": (100, Scalar("file_path")),
    "file_format": (101, Scalar("file_format")),
    "record_count": (103, Scalar("record_count")),
    "file_size_in_bytes": (104, Scalar("file_size_in_bytes")),
    "key_metadata": (131, Scalar("key_metadata")),
    "split_offsets": (132, Items("split_offsets", Scalar("split_offsets[]"))),
    "equality_ids": (135, Items("equality_ids", Scalar("equality_ids[]"))),
    "sort_order_id": (140, Scalar("sort_order_id")),
    "first_row_id": (142, Scalar("first_row_id")),
    "referenced_data_file": (143, Scalar("referenced_data_file")),
    "content_offset": (144, Scalar("content_offset")),
    "content_size_in_bytes": (145, Scalar("content_size_in_bytes")),
}
_MAPS: Mapping[str, tuple[int, Want]] = {
    "column_sizes": (108, _map("column_sizes", 117, 118)),
    "value_counts": (109, _map("value_counts", 119, 120)),
    "null_value_counts": (110, _map("null_value_counts", 121, 122)),
    "nan_value_counts": (137, _map("nan_value_counts", 138, 139)),
    "lower_bounds": (125, _map("lower_bounds", 126, 127)),
    "upper_bounds": (128, _map("upper_bounds", 129, 130)),
}
_STATS = {
    "value_count.": 109,
    "null_count.": 110,
    "nan_count.": 137,
    "lower.": 125,
    "upper.": 128,
}
_COLUMN_SIZES = 108

ALL_COLUMNS = frozenset({*_ENTRY, *_DATA_FILE})
"""Everything but statistics."""

FIELD_IDS = {name: found[0] for name, found in {**_ENTRY, **_DATA_FILE}.items()} | {"spec_id": 141}
"""The field ids of the specification."""

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
        partition: Whether the partition tuple is read.
    """

    names: frozenset[str] = ALL_COLUMNS
    stats: frozenset[int] = frozenset()
    sizes: frozenset[int] = frozenset()
    partition: bool = True

    def __post_init__(self) -> None:
        assert not (self.maps and (self.stats or self.sizes)), "maps are read whole or by key, not both"

    @property
    def maps(self) -> tuple[str, ...]:
        """The maps that are read whole."""
        return tuple(name for name in _MAPS if name in self.names)

    def want(self, partition: Mapping[int, str]) -> Fields:
        """What to decode of a manifest; ``partition`` names the column of each partition field id of its spec."""
        names = self.names | NEEDED
        of_file = {**_DATA_FILE, **_MAPS}
        data_file: list[tuple[int, Want]] = [want for name, want in of_file.items() if name in names]
        if self.partition and partition:
            columns = tuple((field_id, Scalar(name)) for field_id, name in sorted(partition.items()))
            data_file.append((PARTITION, Fields(columns)))
        if self.stats:
            keys = tuple(sorted(self.stats))
            data_file += [(field_id, Keyed(prefix, keys)) for prefix, field_id in _STATS.items()]
        if self.sizes:
            data_file.append((_COLUMN_SIZES, Keyed("column_size.", tuple(sorted(self.sizes)))))
        entry = [want for name, want in _ENTRY.items() if name in names]
        return Fields((*entry, (DATA_FILE, Fields(tuple(data_file)))))

    def column_names(self, partition: Iterable[int]) -> list[str]:
        """The names of the columns, without ``manifest``, ``ordinal`` and ``spec_id``."""
        names = [name for name in (*_ENTRY, *_DATA_FILE, *_MAPS) if name in self.names | NEEDED]
        if self.partition:
            names += [partition_column(field_id) for field_id in partition]
        names += [f"{prefix}{field_id}" for field_id in sorted(self.stats) for prefix in _STATS]
        return names + [f"column_size.{field_id}" for field_id in sorted(self.sizes)]

    def only(self, names: Iterable[str]) -> EntryColumns:
        """The fewest columns that include these."""
        few = frozenset(names)
        return EntryColumns(
            names=self.names & few,
            stats=frozenset(
                field_id for field_id in self.stats if any(f"{prefix}{field_id}" in few for prefix in _STATS)
            ),
            sizes=frozenset(field_id for field_id in self.sizes if f"column_size.{field_id}" in few),
            partition=self.partition and any(name.startswith(partition_column("")) for name in few),
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
class EntriesTable:
    """Entries with the types of their partition columns by union field id."""

    table: pa.Table
    partition_types: Mapping[int, PrimitiveType]

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
        """An integer column; nulls, and a column that is not there, read as ``missing``."""
        at = self.table.schema.get_field_index(name)
        if at < 0:
            return np.full(len(self), missing, dtype=np.int64)
        array = self.array(at)
        if array.null_count:
            array = array.fill_null(missing)
        return np.asarray(array.to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)

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
        is_position = pa.array(self.content == Content.POSITION_DELETES)
        one_path = pc.and_(pc.fill_null(pc.equal(self.array(lower), self.array(upper)), False), is_position)
        path = pc.if_else(one_path, self.array(lower), pa.scalar(None, pa.large_binary()))
        return pc.coalesce(referenced, path.cast(pa.large_string()))

    def live(self) -> EntriesTable:
        """Without DELETED entries."""
        alive = self.status != Status.DELETED
        return self if alive.all() else self.filter(alive)

    def filter(self, keep: Mask) -> EntriesTable:
        """The rows where the mask is true."""
        mask = pa.array(keep, memory_pool=POOL)
        kept = pc.call_function("filter", [self.table, mask], pc.FilterOptions(), memory_pool=POOL)
        if kept.num_columns and kept.column(0).num_chunks > 1:
            kept = kept.combine_chunks(memory_pool=POOL)
        return EntriesTable(kept, self.partition_types)

    def take(self, rows: npt.NDArray[np.integer]) -> EntriesTable:
        """These rows, in this order."""
        return EntriesTable(self.table.take(pa.array(rows)).combine_chunks(), self.partition_types)

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

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import PrimitiveType

from floeplan.metadata.bounds import valid_mask
from floeplan.metadata.decoder import Ints, Mask
from floeplan.metadata.entry_columns import partition_column
from floeplan.predicate.stats import POOL

POSITION_DELETE_PATH = 2147483546
"""Field id of ``file_path`` in position delete files: its bounds tell whether one data file is meant."""


class Status(IntEnum):
    """What a manifest says of a file."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


class Content(IntEnum):
    """What a file holds."""

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
        """A column, by its name or its place, as one Arrow array."""
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
        """The one data file that a delete names: as its reference, or as both bounds of its path column; else null."""
        referenced = self.array("referenced_data_file")
        lower, upper = (f"{side}.{POSITION_DELETE_PATH}" for side in ("lower", "upper"))
        if lower not in self:
            return referenced
        is_position = pa.array(self.content == Content.POSITION_DELETES)
        one_path = pc.and_(pc.fill_null(pc.equal(self.array(lower), self.array(upper)), False), is_position)
        path = pc.if_else(one_path, self.array(lower), pa.scalar(None, pa.large_binary()))
        return pc.coalesce(referenced, path.cast(pa.large_string()))

    def live(self) -> EntriesTable:
        """Without the entries of deleted files."""
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
        """The rows with these numbers, in their order."""
        return EntriesTable(self.table.take(pa.array(rows)).combine_chunks(), self.partition_types)

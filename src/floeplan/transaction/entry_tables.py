"""Entries from several places put together: what a change adds, what was read, what is about to be written.

Rule: whole entries in, whole entries out, in the order given; where an entry came from is forgotten. A partition column
whose type one side does not know (it is null there) takes the type of the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyiceberg.types import UnknownType

from floeplan.metadata.decoder import Ints, Mask
from floeplan.metadata.entries import EntriesTable, Status
from floeplan.metadata.entry_columns import WHOLE, partition_column
from floeplan.metadata.new_entries import ENTRY_TYPES, no_entries
from floeplan.partition.union import UnionPartitionType


def concat_entries(tables: Sequence[EntriesTable], union: UnionPartitionType) -> EntriesTable:
    """Whole entries of several tables, one after the other, under the partition columns of the union."""
    filled = [table for table in tables if len(table)]
    if not filled:
        return no_entries(union)
    types = {field.id: field.bound.column.type for field in union.fields}
    for table in filled:
        types |= {key: type_ for key, type_ in table.partition_types.items() if not isinstance(type_, UnknownType)}
    names = ["spec_id", *sorted(WHOLE), *(partition_column(key) for key in types)]
    return EntriesTable(pa.table({name: _stacked(filled, name) for name in names}), types)


def with_status(entries: EntriesTable, status: Ints, snapshot_id: Ints) -> EntriesTable:
    """The same files with another status, and the snapshot that gave it to them; -1 leaves the snapshot's id open."""
    table = entries.table
    for name, values, missing in (("status", status, None), ("snapshot_id", snapshot_id, snapshot_id < 0)):
        column = pa.array(values, ENTRY_TYPES[name], mask=missing)
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return EntriesTable(table, entries.partition_types)


def carried_over(entries: EntriesTable, removed: Mask, snapshot_id: int) -> EntriesTable:
    """Entries as a snapshot writes them again: the removed ones DELETED, others EXISTING, deleted ones gone.

    Files that the snapshot itself added stay ADDED, and those it removed before stay DELETED.
    """
    own = entries.ints("snapshot_id") == snapshot_id
    status = np.where(own, entries.status, Status.EXISTING)
    status = np.where(removed, Status.DELETED, status)
    written_by = np.where(removed, snapshot_id, entries.ints("snapshot_id"))
    keep = own | (entries.status != Status.DELETED)
    return with_status(entries, status, written_by).filter(keep)


def _stacked(tables: Sequence[EntriesTable], name: str) -> pa.Array:
    known = [table.array(name) if name in table else pa.nulls(len(table)) for table in tables]
    if len(known) == 1:
        return known[0]
    type_ = next((array.type for array in known if not pa.types.is_null(array.type)), pa.null())
    return pa.concat_arrays([array if array.type == type_ else array.cast(type_) for array in known])

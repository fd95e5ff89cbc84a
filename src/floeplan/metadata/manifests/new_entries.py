"""Entries made from columns, concatenated, or with another status.

Rule: every column that a manifest can hold is present. Columns that the caller does not give are null; null sequence
numbers, snapshot ids and first row ids are inherited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyiceberg.types import PrimitiveType, UnknownType

from floeplan.metadata.manifests.assemble import map_type, partition_arrow_type
from floeplan.metadata.manifests.entries import STAT_MAPS, WHOLE, EntriesTable, EntryColumns, Status, partition_column
from floeplan.partition.union import UnionPartitionType
from floeplan.vectors import Ints, Mask

ENTRY_TYPES: Mapping[str, pa.DataType] = {
    "spec_id": pa.int32(),
    "status": pa.int8(),
    "snapshot_id": pa.int64(),
    "sequence_number": pa.int64(),
    "file_sequence_number": pa.int64(),
    "first_row_id": pa.int64(),
    "content": pa.int8(),
    "file_path": pa.large_string(),
    "file_format": pa.large_string(),
    "record_count": pa.int64(),
    "file_size_in_bytes": pa.int64(),
    "key_metadata": pa.large_binary(),
    "split_offsets": pa.large_list(pa.int64()),
    "equality_ids": pa.large_list(pa.int64()),
    "sort_order_id": pa.int64(),
    "referenced_data_file": pa.large_string(),
    "content_offset": pa.int64(),
    "content_size_in_bytes": pa.int64(),
    **{name: map_type(name) for name in STAT_MAPS},
}
"""Arrow types of the columns of whole entries, the partition tuple apart."""

_WHOLE = EntryColumns(WHOLE)


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
    types = {field.id: field.bound.column.type for field in union.fields} | dict(partition_types or {})
    wanted = dict(ENTRY_TYPES) | {partition_column(key): partition_arrow_type(type_) for key, type_ in types.items()}
    made = {name: _column(columns.get(name), type_, rows) for name, type_ in wanted.items()}
    return EntriesTable(pa.table(made), types)


def no_entries(union: UnionPartitionType, columns: EntryColumns = _WHOLE) -> EntriesTable:
    """The empty table that reading these columns from no manifest returns; statistics by field are not supported."""
    types = {field.id: field.bound.column.type for field in union.fields}
    named = {name: ENTRY_TYPES[name] for name in ("spec_id", *columns.column_names(()))}
    named |= {partition_column(key): partition_arrow_type(type_) for key, type_ in types.items()}
    nothing = {type_: pa.nulls(0, type_) for type_ in set(named.values())}
    arrays = [nothing[type_] for type_ in named.values()]
    return EntriesTable(pa.Table.from_arrays(arrays, names=list(named)), types)


def _column(array: pa.Array | None, type_: pa.DataType, rows: int) -> pa.Array:
    if array is None:
        return pa.nulls(rows, type_)
    return array if array.type == type_ else array.cast(type_)


def concat_entries(tables: Sequence[EntriesTable], union: UnionPartitionType) -> EntriesTable:
    """Concatenate whole entries under the partition columns of the union; ``manifest`` and ``ordinal`` are dropped.

    A partition column whose type one table does not know (it is null there) takes the type of the others.
    """
    filled = [table for table in tables if len(table)]
    if not filled:
        return no_entries(union)
    types = {field.id: field.bound.column.type for field in union.fields}
    for table in filled:
        types |= {key: type_ for key, type_ in table.partition_types.items() if not isinstance(type_, UnknownType)}
    names = ["spec_id", *sorted(WHOLE), *(partition_column(key) for key in types)]
    return EntriesTable(pa.table({name: _stacked(filled, name) for name in names}), types)


def with_status(entries: EntriesTable, status: Ints, snapshot_id: Ints) -> EntriesTable:
    """The same files with another status and snapshot id; -1 leaves the snapshot id to be inherited."""
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

"""Metadata tables: snapshots, history, refs, manifests, entries, files and partitions.

Columns are named as in Iceberg's own metadata tables. The partition of a file is one struct over the fields of all
specs, beside its spec id, so that partitions of different specs stay apart. Everything is columnar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from floeplan.catalog import load_table
from floeplan.errors import UnknownOptionError
from floeplan.metadata.manifests.entries import STAT_MAPS, WHOLE, Content, EntriesTable, EntryColumns, partition_column
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.metadata.manifests.values import to_logical
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.snapshot.reader import ScanTarget, SnapshotReader, resolve_target
from floeplan.vectors import Ints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TIME = pa.timestamp("us", "UTC")
_SUMMARY = pa.map_(pa.string(), pa.string())
_FILE_COLUMNS = (
    *("content", "file_path", "file_format", "spec_id", "record_count", "file_size_in_bytes", "key_metadata"),
    *("split_offsets", "equality_ids", "sort_order_id", "first_row_id"),
    *("referenced_data_file", "content_offset", "content_size_in_bytes"),
)
_ENTRY_COLUMNS = ("status", "snapshot_id", "sequence_number", "file_sequence_number")
_COUNTED = ("added", "existing", "deleted")


def metadata_table(
    spark: SparkSession,
    table: Table | str,
    name: str,
    *,
    snapshot_id: int | None = None,
    ref: str | None = None,
    catalog: str | Catalog | None = None,
) -> DataFrame:
    """One of the table's metadata tables as a DataFrame.

    Args:
        spark: A session, classic or Connect.
        table: A PyIceberg table, ``namespace.name``, or the path of a ``*.metadata.json``.
        name: ``snapshots``, ``history``, ``refs``, ``manifests``, ``entries``, ``files`` or ``partitions``.
        snapshot_id: The snapshot; by default the current one.
        ref: A branch or tag.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.
    """
    return spark.createDataFrame(metadata_rows(load_table(table, catalog), name, snapshot_id=snapshot_id, ref=ref))


def metadata_rows(table: Table | str, name: str, *, snapshot_id: int | None = None, ref: str | None = None) -> pa.Table:
    """The same as an Arrow table."""
    if name not in _TABLES:
        raise UnknownOptionError(
            f"unknown metadata table {name!r}; must be one of {', '.join(_TABLES)}", context={"name": name}
        )
    target = resolve_target(load_table(table), snapshot_id=snapshot_id, ref=ref)
    return _TABLES[name](target)


def _snapshots(target: ScanTarget) -> pa.Table:
    snapshots = target.metadata.snapshots
    summaries = [s.summary for s in snapshots]
    return pa.table(
        {
            "committed_at": _millis([s.timestamp_ms for s in snapshots]),
            "snapshot_id": pa.array([s.snapshot_id for s in snapshots], pa.int64()),
            "parent_id": pa.array([s.parent_snapshot_id for s in snapshots], pa.int64()),
            "operation": pa.array([None if s is None else s.operation.value for s in summaries], pa.string()),
            "manifest_list": pa.array([s.manifest_list for s in snapshots], pa.string()),
            "summary": pa.array(
                [None if s is None else list(s.additional_properties.items()) for s in summaries], _SUMMARY
            ),
        }
    )


def _history(target: ScanTarget) -> pa.Table:
    log = target.metadata.snapshot_log
    parents = {s.snapshot_id: s.parent_snapshot_id for s in target.metadata.snapshots}
    ancestors = set()
    current = target.metadata.current_snapshot_id
    while current is not None and current not in ancestors:
        ancestors.add(current)
        current = parents.get(current)
    return pa.table(
        {
            "made_current_at": _millis([entry.timestamp_ms for entry in log]),
            "snapshot_id": pa.array([entry.snapshot_id for entry in log], pa.int64()),
            "parent_id": pa.array([parents.get(entry.snapshot_id) for entry in log], pa.int64()),
            "is_current_ancestor": pa.array([entry.snapshot_id in ancestors for entry in log], pa.bool_()),
        }
    )


def _refs(target: ScanTarget) -> pa.Table:
    refs = target.metadata.refs
    return pa.table(
        {
            "name": pa.array(list(refs), pa.string()),
            "type": pa.array([ref.snapshot_ref_type.value.upper() for ref in refs.values()], pa.string()),
            "snapshot_id": pa.array([ref.snapshot_id for ref in refs.values()], pa.int64()),
            "max_reference_age_in_ms": pa.array([ref.max_ref_age_ms for ref in refs.values()], pa.int64()),
            "min_snapshots_to_keep": pa.array([ref.min_snapshots_to_keep for ref in refs.values()], pa.int32()),
            "max_snapshot_age_in_ms": pa.array([ref.max_snapshot_age_ms for ref in refs.values()], pa.int64()),
        }
    )


def _manifests(target: ScanTarget) -> pa.Table:
    listed = SnapshotReader.open(target.table, target.snapshot).manifests
    is_data = listed.content == DATA
    columns = {
        "content": pa.array(listed.content, pa.int32()),
        "path": listed.path.cast(pa.string()),
        "length": pa.array(listed.length),
        "partition_spec_id": pa.array(listed.spec_id, pa.int32()),
        "added_snapshot_id": _known(listed.added_snapshot_id),
        "sequence_number": pa.array(listed.sequence_number),
    }
    for kind, mask in (("data", is_data), ("delete", ~is_data)):
        for what in _COUNTED:
            counts = np.where(mask, getattr(listed, f"{what}_files"), 0)
            columns[f"{what}_{kind}_files_count"] = _known(counts).cast(pa.int32())
    return pa.table(columns)


def _entries(target: ScanTarget) -> pa.Table:
    entries, union = read_whole_entries(target)
    columns = {name: _plain(entries.array(name)) for name in _ENTRY_COLUMNS}
    columns["status"] = columns["status"].cast(pa.int32())
    return pa.table(columns | _file_columns(entries, union))


def _files(target: ScanTarget) -> pa.Table:
    entries, union = read_whole_entries(target)
    return pa.table(_file_columns(entries.live(), union))


def _file_columns(entries: EntriesTable, union: UnionPartitionType) -> dict[str, pa.Array]:
    columns = {name: _plain(entries.array(name)) for name in _FILE_COLUMNS}
    for name in ("content", "spec_id", "sort_order_id"):
        columns[name] = columns[name].cast(pa.int32())
    columns["equality_ids"] = columns["equality_ids"].cast(pa.list_(pa.int32()))
    if union.fields:
        columns["partition"] = partition_struct(entries, union)
    return columns | {name: _map(entries.array(name)) for name in STAT_MAPS}


def _partitions(target: ScanTarget) -> pa.Table:
    """One row per spec id and partition, with the totals of its data and delete files."""
    entries, union = read_whole_entries(target)
    entries = entries.live()
    codes = partition_codes(union, entries.spec_id, entries.partition_columns())
    _, first, group = np.unique(codes, return_index=True, return_inverse=True)
    content, rows = entries.content, np.maximum(entries.record_count, 0)

    def total(kind: Content, weights: Ints | None) -> pa.Array:
        mask = content == kind
        values = np.ones(len(entries), dtype=np.int64) if weights is None else weights
        sums = np.zeros(len(first), dtype=np.int64)
        np.add.at(sums, group[mask], values[mask])
        return pa.array(sums)

    columns: dict[str, pa.Array] = {}
    if union.fields:
        columns["partition"] = partition_struct(entries.take(first), union)
    columns |= {
        "spec_id": pa.array(entries.spec_id[first], pa.int32()),
        "record_count": total(Content.DATA, rows),
        "file_count": total(Content.DATA, None).cast(pa.int32()),
        "total_data_file_size_in_bytes": total(Content.DATA, entries.ints("file_size_in_bytes")),
        "position_delete_record_count": total(Content.POSITION_DELETES, rows),
        "position_delete_file_count": total(Content.POSITION_DELETES, None).cast(pa.int32()),
        "equality_delete_record_count": total(Content.EQUALITY_DELETES, rows),
        "equality_delete_file_count": total(Content.EQUALITY_DELETES, None).cast(pa.int32()),
    }
    # The time and snapshot in which a file of the partition was last added; null once that snapshot has expired.
    times = {s.snapshot_id: s.timestamp_ms for s in target.metadata.snapshots}
    added_by = entries.ints("snapshot_id")
    ids, codes = np.unique(added_by, return_inverse=True)
    added_at = np.array([times.get(snapshot_id, -1) for snapshot_id in ids.tolist()], dtype=np.int64)[codes]
    latest, latest_by = np.full(len(first), -1, dtype=np.int64), np.full(len(first), -1, dtype=np.int64)
    np.maximum.at(latest, group, added_at)
    newest = added_at == latest[group]
    latest_by[group[newest]] = added_by[newest]
    columns["last_updated_at"] = pa.array(latest * 1000, mask=latest < 0).cast(_TIME)
    columns["last_updated_snapshot_id"] = pa.array(latest_by, mask=latest < 0)
    return pa.table(columns)


def read_whole_entries(target: ScanTarget) -> tuple[EntriesTable, UnionPartitionType]:
    """All entries of the snapshot with all columns."""
    reader = SnapshotReader.open(target.table, target.snapshot, cache=True)
    entries = reader.entries(None, EntryColumns(WHOLE), live=False)
    return entries, reader.union


def partition_struct(entries: EntriesTable, union: UnionPartitionType) -> pa.Array:
    """Partition values as a struct over the fields of all specs."""
    values = [to_logical(entries.partition_types[f.id], entries.array(partition_column(f.id))) for f in union.fields]
    return pa.StructArray.from_arrays([_plain(value) for value in values], names=[f.name for f in union.fields])


def _plain(array: pa.Array) -> pa.Array:
    """With 32-bit offsets: Spark rejects Arrow's large types in places."""
    type_ = array.type
    if pa.types.is_large_string(type_):
        return array.cast(pa.string())
    if pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return array.cast(pa.binary())
    if pa.types.is_large_list(type_):
        return array.cast(pa.list_(type_.value_type))
    return array


def _map(array: pa.Array) -> pa.Array:
    """A list of keys and values as a map."""
    whole = pa.concat_arrays([array.slice(0, 0), array])
    keys, values = whole.values.field(0), _plain(whole.values.field(1))
    offsets = pc.if_else(pc.is_null(whole), None, whole.offsets[:-1].cast(pa.int32()))
    offsets = pa.concat_arrays([offsets.cast(pa.int32()), whole.offsets[-1:].cast(pa.int32())])
    return pa.MapArray.from_arrays(offsets, keys, values)


def _millis(values: list[int]) -> pa.Array:
    return pa.array(values, pa.timestamp("ms", "UTC")).cast(_TIME)


def _known(values: Ints) -> pa.Array:
    """Integers with null for missing values, which the reader marks with -1."""
    return pa.array(values, mask=values < 0)


_TABLES: Mapping[str, Callable[[ScanTarget], pa.Table]] = {
    "snapshots": _snapshots,
    "history": _history,
    "refs": _refs,
    "manifests": _manifests,
    "entries": _entries,
    "files": _files,
    "partitions": _partitions,
}

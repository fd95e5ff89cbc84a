"""Metadata tables: snapshots, history, refs, manifests, entries, files, partitions, position deletes, and ``all_*``.

Columns are named as in Iceberg's own metadata tables. The partition of a file is one struct over the fields of all
specs whose source column exists, beside its spec id, so that partitions of different specs stay apart. Everything is
columnar. Tables called ``all_…`` have what any snapshot refers to, each manifest once, so that a file may be listed
more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from floeplan.catalog import load_table
from floeplan.errors import UnknownOptionError
from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import STAT_MAPS, WHOLE, Content, EntriesTable, EntryColumns, partition_column
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable, concat_manifest_lists
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.values import to_logical
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType, partition_type
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.ir import TRUE
from floeplan.scan.delete_files import DeleteFileReader
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_target
from floeplan.snapshot.reader import ScanTarget, SnapshotReader, read_manifest_lists, resolve_target
from floeplan.vectors import Ints, Mask

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
_POSITIONAL = (DeleteKind.POSITION_FILE, DeleteKind.POSITION_PARTITION, DeleteKind.VECTOR)

_Kept: TypeAlias = "Callable[[npt.NDArray[np.integer]], Mask]"


def _any(content: npt.NDArray[np.integer]) -> Mask:
    return np.ones(len(content), dtype=np.bool_)


def _data(content: npt.NDArray[np.integer]) -> Mask:
    return np.asarray(content == Content.DATA)


def _delete(content: npt.NDArray[np.integer]) -> Mask:
    return np.asarray(content != Content.DATA)


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
        name: ``snapshots``, ``history``, ``refs``, ``metadata_log_entries``, ``manifests``, ``entries``, ``files``,
            ``data_files``, ``delete_files``, ``partitions``, ``position_deletes`` (those that apply to a data file), or
            ``all_manifests``, ``all_entries``, ``all_files``, ``all_data_files`` or ``all_delete_files``.
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


def _metadata_log_entries(target: ScanTarget) -> pa.Table:
    """The metadata files of the table with what was current in each; null once that snapshot has expired."""
    metadata = target.metadata
    files = [(entry.timestamp_ms, entry.metadata_file) for entry in metadata.metadata_log]
    files.append((metadata.last_updated_ms, target.table.metadata_location))
    log = metadata.snapshot_log
    current = [
        next((entry.snapshot_id for entry in reversed(log) if entry.timestamp_ms <= time), None) for time, _ in files
    ]
    known = [None if at is None else metadata.snapshot_by_id(at) for at in current]
    return pa.table(
        {
            "timestamp": _millis([time for time, _ in files]),
            "file": pa.array([file for _, file in files], pa.string()),
            "latest_snapshot_id": pa.array(current, pa.int64()),
            "latest_schema_id": pa.array([None if one is None else one.schema_id for one in known], pa.int32()),
            "latest_sequence_number": pa.array(
                [None if one is None else one.sequence_number for one in known], pa.int64()
            ),
        }
    )


def _manifests(target: ScanTarget) -> pa.Table:
    return _manifest_columns(SnapshotReader.open(target.table, target.snapshot).manifests)


def _all_manifests(target: ScanTarget) -> pa.Table:
    """The manifests of every snapshot, with the id of the snapshot."""
    snapshots = target.metadata.snapshots
    lists = read_manifest_lists(snapshots, target.table.io, table_location=target.metadata.location)
    listed = concat_manifest_lists(lists) if lists else ManifestListTable.empty()
    ids = [one.snapshot_id for one, manifests in zip(snapshots, lists, strict=True) for _ in range(len(manifests))]
    return _manifest_columns(listed).append_column("reference_snapshot_id", pa.array(ids, pa.int64()))


def _manifest_columns(listed: ManifestListTable) -> pa.Table:
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
    entries = read_whole_entries(target)
    return pa.table(_entry_columns(entries) | _file_columns(entries, target))


def _entry_columns(entries: EntriesTable) -> dict[str, pa.Array]:
    columns = {name: _plain(entries.array(name)) for name in _ENTRY_COLUMNS}
    return columns | {"status": columns["status"].cast(pa.int32())}


def _files(target: ScanTarget, kept: _Kept = _any) -> pa.Table:
    entries = read_whole_entries(target)
    live = entries.live()
    return pa.table(_file_columns(live.take(np.flatnonzero(kept(live.content))), target))


def _all_entries(target: ScanTarget) -> pa.Table:
    entries = _entries_of_all_snapshots(target)
    return pa.table(_entry_columns(entries) | _file_columns(entries, target))


def _all_files(target: ScanTarget, kept: _Kept = _any) -> pa.Table:
    entries = _entries_of_all_snapshots(target)
    live = entries.live()
    return pa.table(_file_columns(live.take(np.flatnonzero(kept(live.content))), target))


def _entries_of_all_snapshots(target: ScanTarget) -> EntriesTable:
    """The entries of every manifest that any snapshot lists, each manifest once."""
    table, union = target.table, UnionPartitionType.of_table(target.metadata)
    lists = read_manifest_lists(target.metadata.snapshots, table.io, table_location=target.metadata.location)
    listed = concat_manifest_lists(lists) if lists else ManifestListTable.empty()
    first = np.unique(listed.path.dictionary_encode().indices.to_numpy(), return_index=True)[1]
    manifests = listed.take(np.sort(first))
    return read_entries(manifests, union, EntryColumns(WHOLE), io=table.io, live=False)


def _position_deletes(target: ScanTarget) -> pa.Table:
    """The deleted positions of each data file, with the delete file that has them."""
    compiled = compile_predicate(TRUE, target.schema)
    planned = plan_target(target, compiled, ScanOptions(footers=False, report=False)).files
    with_deletes = np.flatnonzero(planned.matches.counts > 0)
    reader = DeleteFileReader(target.table.io)
    rows: list[int] = []
    positions: list[pa.Array] = []
    paths: list[str] = []
    for row in with_deletes.tolist():
        file = planned[row]
        for delete in file.deletes:
            if delete.kind not in _POSITIONAL:
                continue
            found = np.asarray(reader.positions(delete, file.path), dtype=np.int64)
            positions.append(pa.array(found))
            rows += [row] * len(found)
            paths += [delete.path] * len(found)
    entries = planned.entries.take(np.array(rows, dtype=np.int64))
    columns = {
        "file_path": _plain(entries.path),
        "pos": pa.concat_arrays([pa.array([], pa.int64()), *positions]),
    }
    columns |= partition_struct(entries, target) | {
        "spec_id": pa.array(entries.spec_id, pa.int32()),
        "delete_file_path": pa.array(paths, pa.string()),
    }
    return pa.table(columns)


def _file_columns(entries: EntriesTable, target: ScanTarget) -> dict[str, pa.Array]:
    columns = {name: _plain(entries.array(name)) for name in _FILE_COLUMNS}
    for name in ("content", "spec_id", "sort_order_id"):
        columns[name] = columns[name].cast(pa.int32())
    columns["equality_ids"] = columns["equality_ids"].cast(pa.list_(pa.int32()))
    columns |= partition_struct(entries, target)
    return columns | {name: _map(entries.array(name)) for name in STAT_MAPS}


def _partitions(target: ScanTarget) -> pa.Table:
    """One row per spec id and partition, with the totals of its data and delete files."""
    entries = read_whole_entries(target).live()
    union = UnionPartitionType.of_table(target.metadata)
    codes = partition_codes(union, entries.spec_id, entries.partition_columns())
    _, first, group = np.unique(codes, return_index=True, return_inverse=True)
    content, rows = entries.content, np.maximum(entries.record_count, 0)

    def total(kind: Content, weights: Ints | None) -> pa.Array:
        mask = content == kind
        values = np.ones(len(entries), dtype=np.int64) if weights is None else weights
        sums = np.zeros(len(first), dtype=np.int64)
        np.add.at(sums, group[mask], values[mask])
        return pa.array(sums)

    columns = partition_struct(entries.take(first), target) | {
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


def read_whole_entries(target: ScanTarget) -> EntriesTable:
    """All entries of the snapshot with all columns."""
    reader = SnapshotReader.open(target.table, target.snapshot, cache=True)
    return reader.entries(None, EntryColumns(WHOLE), live=False)


def partition_struct(entries: EntriesTable, target: ScanTarget) -> dict[str, pa.Array]:
    """The column ``partition`` by its name: a struct over the fields of all specs; no column without fields."""
    fields, types = partition_type(target.metadata).fields, entries.partition_types
    if not fields:
        return {}
    values = [
        to_logical(types[f.field_id], entries.array(partition_column(f.field_id)))
        if f.field_id in types
        else pa.nulls(len(entries), schema_to_pyarrow(f.field_type))
        for f in fields
    ]
    return {"partition": pa.StructArray.from_arrays([_plain(value) for value in values], [f.name for f in fields])}


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
    "metadata_log_entries": _metadata_log_entries,
    "manifests": _manifests,
    "entries": _entries,
    "files": _files,
    "data_files": partial(_files, kept=_data),
    "delete_files": partial(_files, kept=_delete),
    "partitions": _partitions,
    "position_deletes": _position_deletes,
    "all_manifests": _all_manifests,
    "all_entries": _all_entries,
    "all_files": _all_files,
    "all_data_files": partial(_all_files, kept=_data),
    "all_delete_files": partial(_all_files, kept=_delete),
}

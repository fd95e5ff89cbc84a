"""Writing the root manifest of a snapshot, and manifests out of a root manifest.

Rule: the file holds all that the manifests hold of live files, of every spec; ``write_manifests_from_root``
gives back manifests whose entries are the same. Partition values are kept as they are, never recovered from bounds, so
files without statistics and bucket fields come back too. See ``floeplan.metadata.root.layout`` for the columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform

from floeplan.metadata.files import local_path
from floeplan.metadata.manifests.assemble import number_array, partition_arrow_type
from floeplan.metadata.manifests.bounds import decode_bounds, decode_values
from floeplan.metadata.manifests.entries import (
    FIELD_IDS,
    PARTITION,
    STAT_MAPS,
    WHOLE,
    Content,
    EntriesTable,
    EntryColumns,
    Status,
    partition_column,
)
from floeplan.metadata.manifests.list_writer import ListedSnapshot, encode_manifest_list
from floeplan.metadata.manifests.manifest_list import (
    DATA,
    DELETES,
    ManifestListTable,
    concat_manifest_lists,
    read_manifest_list,
)
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.typed_values import fitting, to_logical
from floeplan.metadata.manifests.writer import manifest_row, write_manifest
from floeplan.metadata.root.layout import (
    HEADER_KEY,
    LEAF_OF_MAP,
    PLAIN,
    RootHeader,
    StatColumn,
    empty_maps,
    partition_fields,
    stat_columns,
    unpack_map,
)
from floeplan.metadata.root.reader import RootManifest
from floeplan.partition.fields import BoundField
from floeplan.partition.transforms import apply_vector, integer_limits
from floeplan.partition.union import UnionField, UnionPartitionType
from floeplan.predicate.stats import Bound, Vector, take, trusted
from floeplan.vectors import Mask

# The range of every partition function's output over a file, for all fields of the union tuple.
#
# Rule: for a field of the file's own spec both ends are the partition value itself, for every function (bucket too)
# and with any statistics. For a field of another spec the ends are the function of the file's bounds, if it
# keeps the order: bounds need not be tight, the range is only wider then. Fail-safe: everything else is null, unknown.
# A range is about ordinary values; nulls and NaN are outside of it.


Bounds = Mapping[int, pa.Array]
"""Single-value bytes by field id of the column they bound."""


def partition_range(
    field: UnionField, entries: EntriesTable, values: pa.Array, lower: Bounds, upper: Bounds
) -> tuple[pa.Array, pa.Array]:
    """Both ends for every entry, in the physical domain; ``values`` is the field's column of the union tuple."""
    own = pa.array(np.isin(entries.spec_id, list(field.positions)))
    type_ = values.type
    ends = _from_bounds(field.bound, lower.get(field.bound.source_id), upper.get(field.bound.source_id))
    if ends is None:
        nothing = pa.nulls(len(values), type_)
        ends = nothing, nothing
    return pc.if_else(own, values, ends[0].cast(type_)), pc.if_else(own, values, ends[1].cast(type_))


def _from_bounds(field: BoundField, lower: pa.Array | None, upper: pa.Array | None) -> tuple[pa.Array, pa.Array] | None:
    if lower is None or upper is None or field.obstacle or not field.transform.preserves_order:
        return None
    low, high = trusted(*decode_bounds(field.source_type, lower, upper))
    if low is None or high is None:
        return None
    return _transformed(field, low), _transformed(field, high)


def _transformed(field: BoundField, bound: Bound) -> pa.Array:
    rows = np.flatnonzero(bound.valid)
    source = take(bound.values, rows)
    labels = apply_vector(field.transform, field.source_type, source)
    fitting = _fits(field, source, labels)
    places = np.full(len(bound.valid), -1, dtype=np.int64)
    places[rows[fitting]] = np.flatnonzero(fitting)
    values = pa.array(labels) if isinstance(labels, np.ndarray) else labels
    return values.cast(partition_arrow_type(field.column.type)).take(pa.array(places, mask=places < 0))


def _fits(field: BoundField, source: Vector, labels: Vector) -> Mask:
    """Whether a label is within its type; one above its source has wrapped around the smallest integer."""
    limits = integer_limits(field.column.type)
    if not isinstance(labels, np.ndarray) or limits is None:
        return np.ones(len(labels), dtype=np.bool_)
    fits = np.asarray((labels >= limits[0]) & (labels <= limits[1]))
    steps = field.column.type == field.source_type and not isinstance(field.transform, IdentityTransform)
    return fits & np.asarray(labels <= source) if steps else fits


# Writing the root manifest.

ROW_GROUP_ENTRIES = 10_000
"""Entries in a row group: enough to compress well, few enough that a selective plan reads few."""


@dataclass(frozen=True, slots=True)
class RootSummary:
    """What was written."""

    location: str
    snapshot_id: int | None
    entries: int
    data_files: int
    delete_files: int
    specs: tuple[int, ...]
    partition_fields: tuple[str, ...]
    row_groups: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the command."""
        return {
            "file": self.location,
            "snapshot_id": self.snapshot_id,
            "entries": self.entries,
            "data_files": self.data_files,
            "delete_files": self.delete_files,
            "specs": list(self.specs),
            "partition_fields": list(self.partition_fields),
            "row_groups": self.row_groups,
            "bytes": self.bytes,
        }


def write_root(
    table: Table,
    location: str,
    snapshot: Snapshot | None,
    *,
    io: FileIO | None = None,
    row_group_entries: int = ROW_GROUP_ENTRIES,
) -> RootSummary:
    """Write the root manifest of a snapshot, over a file that may be there; the table is only read.

    Args:
        table: The table.
        location: Path or URI of the Parquet file.
        snapshot: A snapshot of the table, or none for a table without data.
        io: Where the file goes; local files need none.
        row_group_entries: Entries in a row group at most.
    """
    metadata = table.metadata
    union = UnionPartitionType.of_table(metadata)
    manifests = ManifestListTable.empty() if snapshot is None else read_manifest_list(snapshot.manifest_list, table.io)
    entries = _sorted(read_entries(manifests, union, EntryColumns(WHOLE), io=table.io).live())
    groups = list(_row_groups(entries, row_group_entries))
    maps = {name: unpack_map(entries.array(name)) for name in STAT_MAPS}
    columns = stat_columns({key for found in maps.values() for key in found}, metadata)
    body = _body(entries, manifests, union, maps, columns)
    header = RootHeader(
        table_uuid=str(metadata.table_uuid),
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        partition=partition_fields(union, entries.partition_types),
        columns={column.name: column.field_id for column in columns},
        manifest_list=_list_of_groups(location, entries, groups, union, snapshot),
    )
    body = body.replace_schema_metadata({HEADER_KEY: header.to_json().encode()})
    size = _write(location, body, groups, io)
    is_data = entries.content == Content.DATA
    return RootSummary(
        location=location,
        snapshot_id=header.snapshot_id,
        entries=len(entries),
        data_files=int(is_data.sum()),
        delete_files=int((~is_data).sum()),
        specs=tuple(np.unique(entries.spec_id).tolist()),
        partition_fields=tuple(field.name for field in union.fields),
        row_groups=len(groups),
        bytes=size,
    )


def write_manifests_from_root(
    root: RootManifest,
    metadata: TableMetadata,
    folder: str,
    *,
    snapshot_id: int,
    format_version: int | None = None,
    io: FileIO | None = None,
    codec: str = "deflate",
) -> ManifestListTable:
    """Write the entries of a root manifest as manifests, one per row group and so of one spec each.

    Files that ``snapshot_id`` added stay added, all others become existing ones with the snapshot and the sequence
    numbers they have. The rows returned are for ``write_manifest_list``.
    """
    union = UnionPartitionType.of_table(metadata)
    specs = {spec.spec_id: spec for spec in metadata.partition_specs}
    groups, name, written = root.manifests, uuid4(), []
    for group in range(len(groups)):
        entries = _settled(root.read_entries(groups, union, EntryColumns(WHOLE), rows=np.array([group])), snapshot_id)
        written.append(
            write_manifest(
                f"{folder.rstrip('/')}/{name}-m{group}.avro",
                entries,
                specs[int(groups.spec_id[group])],
                metadata.schema(),
                union=union,
                format_version=format_version or metadata.format_version,
                content=int(groups.content[group]),
                snapshot_id=snapshot_id,
                io=io,
                codec=codec,
            )
        )
    return concat_manifest_lists(written) if written else ManifestListTable.empty()


def _settled(entries: EntriesTable, snapshot_id: int) -> EntriesTable:
    added = (entries.status == Status.ADDED) & (entries.ints("snapshot_id") == snapshot_id)
    status = number_array(np.where(added, Status.ADDED, Status.EXISTING).astype(np.int8), None)
    at = entries.table.schema.get_field_index("status")
    return replace(entries, table=entries.table.set_column(at, "status", status))


def _sorted(entries: EntriesTable) -> EntriesTable:
    """Data before deletes, then by spec, then by the union tuple; where all that is equal, as the manifests have it."""
    columns = {"deletes": pa.array(entries.content != Content.DATA), "spec_id": entries.array("spec_id")}
    for field_id, values in entries.partition_columns().items():
        if not pa.types.is_null(values.type):
            columns[str(field_id)] = values
    order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    return entries.take(order.to_numpy())


def _row_groups(entries: EntriesTable, most: int) -> Iterator[slice]:
    """Runs of rows of one content and spec, limited in length."""
    kind = entries.spec_id * 2 + (entries.content != Content.DATA)
    breaks = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), len(entries)]
    for start, end in pairwise(breaks):
        yield from (slice(at, min(at + most, end)) for at in range(start, end, most))


def _list_of_groups(
    location: str, entries: EntriesTable, groups: list[slice], union: UnionPartitionType, snapshot: Snapshot | None
) -> bytes:
    if snapshot is None or not groups:
        return b""
    rows = []
    for number, group in enumerate(groups):
        part = EntriesTable(entries.table[group], entries.partition_types)
        content = DATA if part.content[0] == Content.DATA else DELETES
        name, spec_id = f"{os.path.basename(location)}#{number}", int(part.spec_id[0])
        rows.append(manifest_row(name, 0, union.spec(spec_id), content, snapshot.snapshot_id, part))
    return encode_manifest_list(
        concat_manifest_lists(rows),
        ListedSnapshot(2, snapshot.snapshot_id, snapshot.parent_snapshot_id, snapshot.sequence_number or 0),
    ).data


def _body(
    entries: EntriesTable,
    manifests: ManifestListTable,
    union: UnionPartitionType,
    maps: Mapping[str, Mapping[int, pa.Array]],
    columns: tuple[StatColumn, ...],
) -> pa.Table:
    made = {name: entries.array(name) for name in PLAIN}
    made["manifest_path"] = manifests.path.take(entries.array("manifest")).dictionary_encode()
    made["empty_maps"] = pa.array(empty_maps(entries))
    tuples, ranges = {}, {}
    for field in union.fields:
        values, type_ = entries.array(partition_column(field.id)), entries.partition_types[field.id]
        ends = partition_range(field, entries, values, maps["lower_bounds"], maps["upper_bounds"])
        tuples[field.name] = to_logical(type_, values)
        ranges[field.name] = _struct(dict(zip(("lower", "upper"), (to_logical(type_, e) for e in ends), strict=True)))
    stats = {column.name: _struct(_stats(column, maps, len(entries))) for column in columns}
    for name, fields in {"partition": tuples, "partition_ranges": ranges, "stats": stats}.items():
        if fields:
            made[name] = _struct(fields)
    ids = {field.name: field.id for field in union.fields}
    schema = [_with_field_ids(pa.field(name, array.type), ids) for name, array in made.items()]
    return pa.table(list(made.values()), schema=pa.schema(schema))


def _stats(column: StatColumn, maps: Mapping[str, Mapping[int, pa.Array]], rows: int) -> dict[str, pa.Array]:
    leaves = {}
    for name, leaf in LEAF_OF_MAP.items():
        empty = pa.nulls(rows, pa.large_binary() if leaf.endswith("_bytes") else pa.int64())
        leaves[leaf] = maps[name].get(column.field_id, empty)
    for side in ("lower", "upper"):
        bound = None if column.type is None else decode_values(column.type, leaves[f"{side}_bytes"])
        if bound is not None and column.type is not None:
            leaves[side] = to_logical(column.type, fitting(column.type, bound))
    return leaves


def _with_field_ids(field: pa.Field, partition_ids: Mapping[str, int]) -> pa.Field:
    """The field with its id in manifests, and the fields of the union tuple with theirs."""
    if field.name == "partition":
        inner = [_with_id(field.type.field(at), partition_ids) for at in range(field.type.num_fields)]
        field = pa.field(field.name, pa.struct(inner))
    return _with_id(field, {**FIELD_IDS, "partition": PARTITION})


def _with_id(field: pa.Field, ids: Mapping[str, int]) -> pa.Field:
    return field.with_metadata({"PARQUET:field_id": str(ids[field.name])}) if field.name in ids else field


def _struct(fields: Mapping[str, pa.Array]) -> pa.Array:
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))


def _write(location: str, body: pa.Table, groups: list[slice], io: FileIO | None) -> int:
    """Write the file; on a disk beside the target, which is replaced in the end."""
    path = local_path(location)
    if path is None:
        store = io or load_file_io(location=location)
        with store.new_output(location).create(overwrite=True) as remote:
            _write_groups(remote, body, groups)
        return len(store.new_input(location))
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    beside = f"{path}.{uuid4().hex}"
    try:
        _write_groups(beside, body, groups)
        os.replace(beside, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.remove(beside)
        raise
    return os.path.getsize(path)


def _write_groups(target: Any, body: pa.Table, groups: list[slice]) -> None:
    with pq.ParquetWriter(target, body.schema, compression="zstd", write_page_checksum=True) as writer:
        for group in groups:
            writer.write_table(body[group], row_group_size=group.stop - group.start)

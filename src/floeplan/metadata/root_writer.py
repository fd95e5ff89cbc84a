"""Writing the root manifest of a snapshot.

Rule: the file holds all that the manifests hold of live files, of every spec. Partition values are kept as they are,
never recovered from bounds, so files without statistics and bucket fields are complete too. See
``floeplan.metadata.root`` for the columns.

Partition ranges: for a field of the file's own spec both ends are the partition value itself, for every function
(bucket too) and with any statistics. For a field of another spec the ends are the function of the file's bounds, if it
keeps the order: bounds need not be tight, the range is only wider then. A range is about ordinary values; nulls and NaN
are outside of it. Fail-safe: everything else is null, unknown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
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
from pyiceberg.types import LongType, PrimitiveType, StringType

from floeplan.metadata.files import local_path
from floeplan.metadata.manifests.entries import (
    FIELD_IDS,
    PARTITION,
    POSITION_DELETE_PATH,
    STAT_MAPS,
    WHOLE,
    Content,
    EntriesTable,
    EntryColumns,
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
from floeplan.metadata.manifests.values import decode_bounds, decode_values, fitting, partition_arrow_type, to_logical
from floeplan.metadata.manifests.writer import manifest_row
from floeplan.metadata.root import HEADER_KEY, LEAF_OF_MAP, PLAIN, RootHeader
from floeplan.metadata.v4.convert import runs, sorted_by_partition
from floeplan.metadata.v4.stats import unpack_map
from floeplan.partition.fields import BoundField, source_types
from floeplan.partition.transforms import apply_vector, integer_limits
from floeplan.partition.union import UnionField, UnionPartitionType
from floeplan.predicate.stats import Bound, take, to_mask, trusted
from floeplan.schemas import fields_by_id

ROW_GROUP_ENTRIES = 10_000
"""Entries in a row group: enough to compress well, few enough that a selective plan reads few."""

_RESERVED: Mapping[int, tuple[str, PrimitiveType]] = {
    POSITION_DELETE_PATH: ("file_path", StringType()),
    POSITION_DELETE_PATH - 1: ("pos", LongType()),
}
"""The columns of position delete files, which no schema has."""

Maps = Mapping[str, Mapping[int, pa.Array]]
"""The maps of statistics by name, each as columns by field id."""


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
        found = asdict(self)
        lists = {"specs": list(self.specs), "partition_fields": list(self.partition_fields)}
        return {"file": found.pop("location")} | found | lists


def write_root(
    table: Table,
    location: str,
    snapshot: Snapshot | None,
    *,
    io: FileIO | None = None,
    row_group_entries: int = ROW_GROUP_ENTRIES,
) -> RootSummary:
    """Write the root manifest of a snapshot, replacing an existing file; the table is only read.

    Args:
        table: The table.
        location: Path or URI of the Parquet file.
        snapshot: A snapshot of the table, or none for a table without data.
        io: Where the file goes; local files need none.
        row_group_entries: Entries in a row group at most.
    """
    metadata = table.metadata
    union = UnionPartitionType.of_table(metadata)
    manifests = ManifestListTable.empty()
    if snapshot is not None:
        manifests = read_manifest_list(snapshot.manifest_list, table.io, table_location=metadata.location)
    found = read_entries(manifests, union, EntryColumns(WHOLE), io=table.io, live=True)
    entries = sorted_by_partition(found, found.content != Content.DATA)
    groups = list(runs(entries.spec_id * 2 + (entries.content != Content.DATA), row_group_entries))
    maps = {name: unpack_map(entries.array(name)) for name in STAT_MAPS}
    columns = _stat_columns({key for found in maps.values() for key in found}, metadata)
    types = entries.partition_types
    header = RootHeader(
        table_uuid=str(metadata.table_uuid),
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        partition={f.id: (f.name, types.get(f.id, f.bound.column.type)) for f in union.fields},
        columns={name: field_id for name, (field_id, _) in columns.items()},
        manifest_list=_list_of_groups(location, entries, groups, union, snapshot),
    )
    body = _body(entries, manifests, union, maps, columns)
    size = _write(location, body.replace_schema_metadata({HEADER_KEY: header.to_json().encode()}), groups, io)
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


def _stat_columns(field_ids: set[int], metadata: TableMetadata) -> dict[str, tuple[int, PrimitiveType | None]]:
    """Field ids and types of the columns of ``stats`` by name.

    Names and types are the newest ones, the id is added to names that are taken; there is no type when no schema knows
    the column.
    """
    types = source_types(metadata.schema(), metadata.schemas)
    newest_last = sorted(metadata.schemas, key=lambda s: (s.schema_id == metadata.current_schema_id, s.schema_id))
    names: dict[int, str] = {key: name for key, (name, _) in _RESERVED.items()}
    for schema in newest_last:
        names |= {field_id: schema.find_column_name(field_id) or "" for field_id in fields_by_id(schema)}
    columns: dict[str, tuple[int, PrimitiveType | None]] = {}
    for field_id in sorted(field_ids):
        name = names.get(field_id) or f"field_{field_id}"
        name = f"{name}_{field_id}" if name in columns else name
        known = types.get(field_id) or ((_RESERVED[field_id][1],) if field_id in _RESERVED else (None,))
        columns[name] = (field_id, known[0])
    return columns


def _list_of_groups(
    location: str, entries: EntriesTable, groups: list[slice], union: UnionPartitionType, snapshot: Snapshot | None
) -> bytes:
    """The manifest list whose manifests are the row groups, as Avro."""
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
    maps: Maps,
    columns: Mapping[str, tuple[int, PrimitiveType | None]],
) -> pa.Table:
    """The rows of the file."""
    made = {name: entries.array(name) for name in PLAIN}
    made["manifest_path"] = manifests.path.take(entries.array("manifest")).dictionary_encode()
    # A bit for each map of statistics: the entry has the map, and there is nothing in it.
    empty_maps = np.zeros(len(entries), dtype=np.int8)
    for bit, name in enumerate(STAT_MAPS):
        is_empty = pc.equal(pc.list_value_length(entries.array(name)), 0).fill_null(False)
        empty_maps |= to_mask(is_empty).astype(np.int8) << np.int8(bit)
    made["empty_maps"] = pa.array(empty_maps)
    tuples, ranges = {}, {}
    for field in union.fields:
        values, type_ = entries.array(partition_column(field.id)), entries.partition_types[field.id]
        lower, upper = _partition_range(field, entries, values, maps)
        tuples[field.name] = to_logical(type_, values)
        ranges[field.name] = _struct({"lower": to_logical(type_, lower), "upper": to_logical(type_, upper)})
    stats = {name: _stats(field_id, type_, maps, len(entries)) for name, (field_id, type_) in columns.items()}
    for name, fields in {"partition": tuples, "partition_ranges": ranges, "stats": stats}.items():
        if fields:
            made[name] = _struct(fields)
    # Fields have the ids they have in manifests, those of the union tuple their own.
    ids, union_ids = {**FIELD_IDS, "partition": PARTITION}, {field.name: field.id for field in union.fields}
    schema = []
    for name, array in made.items():
        type_ = array.type
        if name == "partition":
            type_ = pa.struct([_with_id(type_.field(at), union_ids) for at in range(type_.num_fields)])
        schema.append(_with_id(pa.field(name, type_), ids))
    return pa.table(list(made.values()), schema=pa.schema(schema))


def _with_id(field: pa.Field, ids: Mapping[str, int]) -> pa.Field:
    return field.with_metadata({"PARQUET:field_id": str(ids[field.name])}) if field.name in ids else field


def _struct(fields: Mapping[str, pa.Array]) -> pa.Array:
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))


def _stats(field_id: int, type_: PrimitiveType | None, maps: Maps, rows: int) -> pa.Array:
    """The statistics of one column; bounds as they were written and, if the type is known, in it."""
    leaves = {}
    for name, leaf in LEAF_OF_MAP.items():
        empty = pa.nulls(rows, pa.large_binary() if leaf.endswith("_bytes") else pa.int64())
        leaves[leaf] = maps[name].get(field_id, empty)
    for side in ("lower", "upper"):
        bound = None if type_ is None else decode_values(type_, leaves[f"{side}_bytes"])
        if bound is not None and type_ is not None:
            leaves[side] = to_logical(type_, fitting(type_, bound))
    return _struct(leaves)


def _partition_range(
    field: UnionField, entries: EntriesTable, values: pa.Array, maps: Maps
) -> tuple[pa.Array, pa.Array]:
    """Both ends for every entry, in the physical domain; ``values`` is the field's column of the union tuple."""
    bound = field.bound
    lower, upper = (maps[name].get(bound.source_id) for name in ("lower_bounds", "upper_bounds"))
    low = high = None
    if lower is not None and upper is not None and not bound.obstacle and bound.transform.preserves_order:
        low, high = trusted(*decode_bounds(bound.source_type, lower, upper))
    if low is None or high is None:
        first = last = pa.nulls(len(values), values.type)
    else:
        first, last = (_transformed(bound, end).cast(values.type) for end in (low, high))
    own = pa.array(np.isin(entries.spec_id, list(field.positions)))
    return pc.if_else(own, values, first), pc.if_else(own, values, last)


def _transformed(field: BoundField, bound: Bound) -> pa.Array:
    """The partition function of bounds; null where a bound is invalid or the result is outside its type."""
    rows = np.flatnonzero(bound.valid)
    source = take(bound.values, rows)
    labels = apply_vector(field.transform, field.source_type, source)
    fits = np.ones(len(rows), dtype=np.bool_)
    limits = integer_limits(field.column.type)
    if isinstance(labels, np.ndarray) and limits is not None:
        fits = np.asarray((labels >= limits[0]) & (labels <= limits[1]))
        # Truncation rounds down: a result above its source has wrapped around the smallest integer.
        if field.column.type == field.source_type and not isinstance(field.transform, IdentityTransform):
            fits &= np.asarray(labels <= source)
    places = np.full(len(bound.valid), -1, dtype=np.int64)
    places[rows[fits]] = np.flatnonzero(fits)
    values = pa.array(labels) if isinstance(labels, np.ndarray) else labels
    return values.cast(partition_arrow_type(field.column.type)).take(pa.array(places, mask=places < 0))


def _write(location: str, body: pa.Table, groups: list[slice], io: FileIO | None) -> int:
    """Write the file and return its size; on a disk beside the target, which is replaced in the end."""
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

"""Writes manifests: the entries of one spec, as columns, into one Avro file, or from format 4 on one Parquet file.

Rule: nothing that an entry holds is lost. Entries carry every column (``EntryColumns(WHOLE)`` reads them so,
``new_entries`` makes them so) and are written as they are: a sequence number that is null is inherited from the
manifest list, an existing one is kept. A null snapshot id is the writing snapshot's.

Fail-safe, before a byte is written: entries of another spec or kind, a column that was not read, a value the format
version has no place for, and a file that was not added by this snapshot yet has no sequence number are errors.

Partition summaries have bounds in the order in which Iceberg Java compares partition values: text by code points, bytes
unsigned, UUIDs as two signed numbers, -0.0 before 0.0. Readers take a field without bounds for all null, so values of a
type that has no bounds are an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, FixedType, NestedField, PrimitiveType, StructType, UnknownType, UUIDType
from pyiceberg.utils.decimal import decimal_required_bytes

from floeplan.errors import CorruptMetadataError, UnsupportedError
from floeplan.format4 import FORMAT, first_relative
from floeplan.metadata.avro.encoder import ENCODER, Encoder, avro_file, compile_encoder
from floeplan.metadata.files import write_file
from floeplan.metadata.manifests.entries import STAT_MAPS, WHOLE, Content, EntriesTable, Status, partition_column
from floeplan.metadata.manifests.manifest_list import DATA, DELETES, UNKNOWN, ManifestListTable, Summaries
from floeplan.metadata.manifests.parquet_writer import parquet_file
from floeplan.metadata.manifests.schemas import entry_layout
from floeplan.metadata.manifests.values import fixed_width, lengths, list_array, number_array, to_logical
from floeplan.partition.fields import BoundField
from floeplan.partition.transforms import from_physical
from floeplan.partition.union import SpecProjection, UnionPartitionType
from floeplan.vectors import Ints, valid_mask

_BLOCK_SIZE_IN_BYTES = 64 * 1024 * 1024
"""Format 1 requires a block size, which readers must ignore."""

_SINCE = {
    2: ("equality_ids", "referenced_data_file"),
    3: ("first_row_id", "content_offset", "content_size_in_bytes"),
}
"""Columns that earlier format versions do not have, by the version that added them."""


def write_manifest(
    location: str,
    entries: EntriesTable,
    spec: PartitionSpec,
    schema: Schema,
    *,
    union: UnionPartitionType,
    format_version: int,
    content: int,
    snapshot_id: int,
    io: FileIO | None = None,
    codec: str = "deflate",
    encoder: type[Encoder] = ENCODER,
) -> ManifestListTable:
    """Write one manifest; the file must not exist yet.

    Args:
        location: Where to write.
        entries: Whole entries, all of this spec; their order is kept.
        spec: The partition spec of all entries.
        schema: A schema that has the source columns of the spec, for the header.
        union: The partition fields of the table's specs, by whose ids the entries carry partition values.
        format_version: 1 to 4.
        content: ``DATA`` or ``DELETES`` of ``floeplan.metadata.manifests.manifest_list``.
        snapshot_id: The snapshot that adds the manifest.
        io: Where the file goes; local files need none.
        codec: Of the Avro blocks: deflate, zstandard, snappy or null.
        encoder: The Avro encoder to use.

    Returns:
        The row of the manifest list, with sequence numbers and first row id left to ``write_manifest_list``.
    """
    _check(entries, spec, format_version, content, snapshot_id)
    fields = union.spec(spec.spec_id).fields
    types = [_partition_type(field, entries) for field in fields]
    partition = StructType(
        *(NestedField(f.field_id, f.name, t, required=False) for f, t in zip(spec.fields, types, strict=True))
    )
    layout = entry_layout(format_version, partition)
    renamed = tuple((f.field_id, _column_name(bound)) for f, bound in zip(spec.fields, fields, strict=True))
    header = {
        "schema": schema.model_dump_json(),
        "partition-spec": json.dumps([json.loads(field.model_dump_json()) for field in spec.fields]),
        "partition-spec-id": str(spec.spec_id),
        "format-version": str(format_version),
        "iceberg.schema": layout.iceberg,
    }
    if format_version > 1:
        header["content"] = "data" if content == DATA else "deletes"
    if format_version >= FORMAT:
        columns = _columns(entries, fields, types, snapshot_id, to_logical)
        data = parquet_file(layout.schema, columns, dict(renamed), len(entries), header)
    else:
        columns = _columns(entries, fields, types, snapshot_id, _avro_values)
        program = compile_encoder(layout.avro, renamed)
        data = avro_file(layout.avro, program, columns, len(entries), header, codec, encoder)
    write_file(location, data, io)
    return manifest_row(location, len(data), union.spec(spec.spec_id), content, snapshot_id, entries)


def _check(entries: EntriesTable, spec: PartitionSpec, version: int, content: int, snapshot_id: int) -> None:
    context = {"spec_id": spec.spec_id}
    missing = sorted(name for name in WHOLE if name not in entries)
    if missing:
        raise CorruptMetadataError(
            f"cannot write entries without {', '.join(missing)}: read all columns of them", context=context
        )
    if (entries.spec_id != spec.spec_id).any():
        raise CorruptMetadataError(
            f"a manifest of spec {spec.spec_id} cannot contain entries of another spec", context=context
        )
    if content not in (DATA, DELETES) or ((entries.content == Content.DATA) != (content == DATA)).any():
        raise CorruptMetadataError("a manifest contains either data files or delete files", context=context)
    if version == 1 and content == DELETES:
        raise UnsupportedError("format 1 has no delete files: upgrade the table to format 2", context=context)
    lost = [name for since, names in _SINCE.items() if version < since for name in names if entries.valid(name).any()]
    if lost:
        raise UnsupportedError(
            f"format {version} does not have {', '.join(lost)}: upgrade the table",
            context=context | {"fields": lost},
        )
    for name in ("file_path", "referenced_data_file") if version == FORMAT else ():
        path = first_relative(entries.array(name))
        if path is not None:
            raise UnsupportedError(
                f"format {version} would take {path!r} for a relative path, because it has no URI scheme",
                context=context | {"file": path},
            )
    # Only files that this snapshot adds may inherit its sequence number.
    own = ~entries.valid("snapshot_id") | (entries.ints("snapshot_id") == snapshot_id)
    orphans = ~entries.valid("sequence_number") & ((entries.status != Status.ADDED) | ~own)
    if version > 1 and orphans.any():
        path = entries.path[int(np.argmax(orphans))].as_py()
        raise CorruptMetadataError(
            f"{path} was not added by this snapshot and has no sequence number", context={"file": path}
        )


def _columns(
    entries: EntriesTable,
    fields: tuple[BoundField, ...],
    types: list[PrimitiveType],
    snapshot_id: int,
    stored: Callable[[PrimitiveType, pa.Array], pa.Array],
) -> dict[str, pa.Array]:
    """The columns of entries; ``stored`` converts partition values to what the file stores."""
    columns = {name: entries.array(name) for name in sorted(WHOLE)}
    columns["snapshot_id"] = columns["snapshot_id"].fill_null(snapshot_id)
    columns["block_size_in_bytes"] = number_array(np.full(len(entries), _BLOCK_SIZE_IN_BYTES, dtype=np.int64))
    for name in STAT_MAPS:
        columns[name] = _without_null_values(columns[name])
    for field, type_ in zip(fields, types, strict=True):
        if field.is_void:
            continue
        name = _column_name(field)
        values = entries.array(name)
        columns[name] = stored(type_, values)
        if isinstance(type_, FixedType) and (valid_mask(values) & (lengths(values) != len(type_))).any():
            raise CorruptMetadataError(f"a partition value of type {type_} does not have {len(type_)} bytes")
    return columns


def _column_name(field: BoundField) -> str:
    """The column of a field of the spec; a void field has none and is null everywhere."""
    return f"void.{field.column.field_id}" if field.is_void else partition_column(field.column.field_id)


def _partition_type(field: BoundField, entries: EntriesTable) -> PrimitiveType:
    """As the entries have it; a void field has the type of its source, as before it became void."""
    if field.is_void:
        return field.column.type
    type_ = entries.partition_types.get(field.column.field_id, field.column.type)
    values = entries.array(partition_column(field.column.field_id))
    if isinstance(type_, UnknownType) and values.null_count < len(values):
        raise CorruptMetadataError(
            f"the type of partition field {field.column} is not known, yet it has values",
            context={"partition_field": str(field.column)},
        )
    return type_


def _without_null_values(pairs: pa.Array) -> pa.Array:
    """Drop keys with a null value: maps in manifests have none."""
    items = pairs.flatten()
    present = pc.is_valid(pc.struct_field(items, "value"))
    if pc.all(present, min_count=0).as_py():
        return pairs
    left = np.bincount(pc.list_parent_indices(pairs).filter(present).to_numpy(), minlength=len(pairs))
    return list_array(pairs.type, left, valid_mask(pairs), items.filter(present))


def _avro_values(type_: PrimitiveType, values: pa.Array) -> pa.Array:
    """Partition values as they are, decimals as big-endian fixed bytes."""
    if not isinstance(type_, DecimalType):
        return values
    size = decimal_required_bytes(type_.precision)
    width = 16 if pa.types.is_decimal(values.type) else 8
    whole = np.frombuffer(values.buffers()[1] or b"", dtype=np.uint8)[: (values.offset + len(values)) * width]
    matrix = whole.reshape(-1, width)[values.offset :, ::-1]
    if size > width:
        sign = np.where(matrix[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
        matrix = np.hstack([np.repeat(sign, size - width, axis=1), matrix])
    return fixed_width(matrix[:, -size:], valid_mask(values))


def manifest_row(
    location: str, length: int, spec: SpecProjection, content: int, snapshot_id: int, entries: EntriesTable
) -> ManifestListTable:
    """The row of the manifest list of ``snapshot_id`` for a manifest with these entries."""
    summaries = [_summary(field, entries) for field in spec.fields]
    status, rows = entries.status, entries.record_count
    live = (status != Status.DELETED) & entries.valid("sequence_number")
    oldest = int(entries.sequence_number[live].min()) if live.any() else UNKNOWN

    def one(number: int) -> Ints:
        return np.array([number], dtype=np.int64)

    counts: dict[str, Ints] = {}
    for name in ("added", "existing", "deleted"):
        mask = status == Status[name.upper()]
        counts |= {f"{name}_files": one(int(mask.sum())), f"{name}_rows": one(int(rows[mask].sum()))}
    return ManifestListTable(
        path=pa.array([location], pa.large_string()),
        length=one(length),
        spec_id=one(spec.spec_id),
        content=one(content),
        sequence_number=one(UNKNOWN),
        min_sequence_number=one(oldest),
        added_snapshot_id=one(snapshot_id),
        first_row_id=one(UNKNOWN),
        has_key_metadata=np.zeros(1, dtype=np.bool_),
        summaries=Summaries(
            np.array([0, len(summaries)], dtype=np.int64),
            np.array([null for null, _, _, _ in summaries], dtype=np.bool_),
            np.array([nan for _, nan, _, _ in summaries], dtype=np.int8),
            pa.array([lower for _, _, lower, _ in summaries], pa.large_binary()),
            pa.array([upper for _, _, _, upper in summaries], pa.large_binary()),
        ),
        table_location="",
        **counts,
    )


def _summary(field: BoundField, entries: EntriesTable) -> tuple[bool, bool, bytes | None, bytes | None]:
    """Whether a partition column has nulls and NaN, and the bounds of its other values."""
    type_ = _partition_type(field, entries)
    if field.is_void or isinstance(type_, UnknownType):
        return len(entries) > 0, False, None, None
    column = entries.array(_column_name(field))
    values = column.drop_null()
    contains_null = len(values) < len(column)
    contains_nan = False
    if pa.types.is_floating(values.type):
        is_nan = pc.is_nan(values)
        contains_nan = bool(pc.any(is_nan).as_py())
        values = values.filter(pc.invert(is_nan))
    ends: list[Any] = []
    if not len(values):
        pass
    elif isinstance(type_, UUIDType):
        halves = np.frombuffer(b"".join(pc.unique(values).to_pylist()), dtype=">i8").reshape(-1, 2)
        order = np.lexsort((halves[:, 1], halves[:, 0]))
        ends = [halves[order[0]].tobytes(), halves[order[-1]].tobytes()]
    elif pa.types.is_floating(values.type):
        numbers = values.to_numpy(zero_copy_only=False)
        order = np.lexsort((~np.signbit(numbers), numbers))
        ends = [float(numbers[order[0]]), float(numbers[order[-1]])]
    else:
        ends = list(pc.min_max(values).as_py().values())
    lower, upper = [to_bytes(type_, from_physical(type_, end)) for end in ends] or (None, None)
    return contains_null, contains_nan, lower, upper

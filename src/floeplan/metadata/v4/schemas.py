"""The schema of v4 manifests: tracked files, the union partition tuple and content statistics.

Rule: fields, ids, types and optionality are those that Iceberg Java 1.12.0 derives from the same table. Root and leaves
have one schema. A struct without fields is of type unknown, and a column of unknown type is not stored.

The union tuple has the partition fields of all specs by ascending id, all optional. The newest spec names a field. A
void field, which stands for a dropped one, has the type it had before.

Fail-safe: a field id that two specs use for different fields, or a transform that is not known, is an error: the tuple
of one of them would be read as the other's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    UnknownType,
)

from floeplan.errors import UnsupportedError
from floeplan.metadata.v4 import fields as ids
from floeplan.opaque_types import is_opaque
from floeplan.partition.fields import SourceTypes, source_types, transform_name
from floeplan.partition.transforms import result_type
from floeplan.schemas import fields_by_id

MOST_INFERRED = 100
"""The default of ``write.metadata.metrics.max-inferred-column-defaults``: columns that have statistics."""


def tracked_file_schema(partition: StructType, stats: StructType) -> Schema:
    """The schema of root and leaves."""
    return Schema(
        _required(ids.TRACKING, "tracking", _TRACKING),
        _required(ids.CONTENT_TYPE, "content_type", IntegerType()),
        _required(ids.FILE_FORMAT_VERSION, "format_version", IntegerType()),
        _required(ids.LOCATION, "location", StringType()),
        _required(ids.FILE_FORMAT, "file_format", StringType()),
        _required(ids.RECORD_COUNT, "record_count", LongType()),
        _required(ids.FILE_SIZE, "file_size_in_bytes", LongType()),
        _optional(ids.SPEC_ID, "spec_id", IntegerType()),
        _optional(ids.PARTITION, "partition", partition if partition.fields else UnknownType()),
        _optional(ids.CONTENT_STATS, "content_stats", stats if stats.fields else UnknownType()),
        _optional(ids.SORT_ORDER_ID, "sort_order_id", IntegerType()),
        _optional(ids.DELETION_VECTOR, "deletion_vector", _DELETION_VECTOR),
        _optional(ids.MANIFEST_INFO, "manifest_info", _MANIFEST_INFO),
        _optional(ids.KEY_METADATA, "key_metadata", BinaryType()),
        _optional(ids.SPLIT_OFFSETS, "split_offsets", ListType(ids.SPLIT_OFFSET, LongType(), element_required=True)),
        _optional(ids.EQUALITY_IDS, "equality_ids", ListType(ids.EQUALITY_ID, IntegerType(), element_required=True)),
    )


def _required(field_id: int, name: str, type_: IcebergType) -> NestedField:
    return NestedField(field_id, name, type_, required=True)


def _optional(field_id: int, name: str, type_: IcebergType) -> NestedField:
    return NestedField(field_id, name, type_, required=False)


_TRACKING = StructType(
    _required(ids.STATUS, "status", IntegerType()),
    _optional(ids.SNAPSHOT_ID, "snapshot_id", LongType()),
    _optional(ids.SEQUENCE_NUMBER, "sequence_number", LongType()),
    _optional(ids.FILE_SEQUENCE_NUMBER, "file_sequence_number", LongType()),
    _optional(ids.DV_SNAPSHOT_ID, "dv_snapshot_id", LongType()),
    _optional(ids.FIRST_ROW_ID, "first_row_id", LongType()),
    _optional(ids.DELETED_POSITIONS, "deleted_positions", BinaryType()),
    _optional(ids.REPLACED_POSITIONS, "replaced_positions", BinaryType()),
)
_DELETION_VECTOR = StructType(
    _required(ids.DV_LOCATION, "location", StringType()),
    _required(ids.DV_OFFSET, "offset", LongType()),
    _required(ids.DV_SIZE, "size_in_bytes", LongType()),
    _required(ids.DV_CARDINALITY, "cardinality", LongType()),
    _optional(ids.DV_KEY_METADATA, "key_metadata", BinaryType()),
)
_MANIFEST_INFO = StructType(
    *(_required(field_id, f"{name}_files_count", IntegerType()) for name, field_id in ids.FILE_COUNTS.items()),
    *(_required(field_id, f"{name}_rows_count", LongType()) for name, field_id in ids.ROW_COUNTS.items()),
    _required(ids.MIN_SEQUENCE_NUMBER, "min_sequence_number", LongType()),
    _optional(ids.MANIFEST_DV, "dv", BinaryType()),
)


# --- the union partition tuple


def union_tuple_type(metadata: TableMetadata, *, stored: bool = False) -> StructType:
    """The union of the partition fields of all specs.

    The type of a field whose source column was dropped is unknown if it depends on the source. With ``stored`` it is
    taken from an older schema, so that values of the field are not lost: readers go by id and ignore what they do not
    know. Fields of different specs may have one name; the newest keeps it, and others are stored with their id.
    """
    sources = source_types(metadata.schema(), metadata.schemas if stored else ())
    newest: dict[int, PartitionField] = {}
    known: dict[int, tuple[PartitionField, IcebergType]] = {}
    for spec in sorted(metadata.partition_specs, key=lambda one: -one.spec_id):
        for field in spec.fields:
            if isinstance(field.transform, UnknownTransform):
                raise UnsupportedError(
                    f"partition field {field.name!r} has the unknown transform {transform_name(field.transform)}: "
                    "the type of its values is not known",
                    context={"partition_field": field.name},
                )
            newest.setdefault(field.field_id, field)
            other = known.get(field.field_id, (field, None))[0]
            if not _same_field(field, other):
                raise UnsupportedError(
                    f"partition fields {other.name!r} and {field.name!r} of different specs have the same id "
                    f"{field.field_id}: one union tuple cannot hold both",
                    context={"partition_field_id": field.field_id},
                )
            if field.field_id not in known or (_is_void(other) and not _is_void(field)):
                known[field.field_id] = field, _result_type(field, sources)
    names = {key: newest[key].name for key in sorted(known)}
    if stored:
        owners = {name: key for key, name in names.items()}  # the last one, of the highest id
        names = {key: name if owners[name] == key else f"{name}_{key}" for key, name in names.items()}
    return StructType(*(_optional(key, name, known[key][1]) for key, name in names.items()))


def _is_void(field: PartitionField) -> bool:
    return isinstance(field.transform, VoidTransform)


def _same_field(one: PartitionField, other: PartitionField) -> bool:
    return one.source_id == other.source_id and (
        repr(one.transform) == repr(other.transform) or _is_void(one) or _is_void(other)
    )


def _result_type(field: PartitionField, sources: SourceTypes) -> IcebergType:
    source = sources.get(field.source_id, (UnknownType(),))[0]
    return source if _is_void(field) else result_type(field.transform, source)


# --- content statistics


def content_stats_type(schema: Schema, columns: Iterable[int] | None = None) -> StructType:
    """The statistics of these columns, of those that Java infers by default; by ascending field id."""
    chosen = inferred_columns(schema) if columns is None else frozenset(columns)
    found = {}
    for field, name in scalar_columns(schema):
        base = ids.stats_id(field.field_id)
        if field.field_id in chosen and base is not None:
            found[base] = _optional(base, name, column_stats_type(field.field_type, base))
    return StructType(*(found[base] for base in sorted(found)))


def scalar_columns(schema: Schema) -> Iterator[tuple[NestedField, str]]:
    """The columns that have one value per row, each with its name in statistics; not those in lists and maps."""

    def walk(struct: StructType, prefix: str) -> Iterator[tuple[NestedField, str]]:
        for field in struct.fields:
            if isinstance(field.field_type, StructType):
                yield from walk(field.field_type, f"{prefix}{field.name}_")
            elif isinstance(field.field_type, PrimitiveType):
                yield field, f"{prefix}{field.name}"

    yield from walk(schema.as_struct(), "")


def inferred_columns(schema: Schema) -> frozenset[int]:
    """The columns that have statistics by default: all if there are few, otherwise the first, outer ones first."""
    if len(fields_by_id(schema)) <= MOST_INFERRED:
        return frozenset(fields_by_id(schema))
    found: list[int] = []

    def visit(nested: Iterable[NestedField]) -> None:
        fields = list(nested)
        found.extend(field.field_id for field in fields if isinstance(field.field_type, PrimitiveType))
        for field in fields:
            if len(found) >= MOST_INFERRED:
                return
            match field.field_type:
                case StructType(fields=inner):
                    visit(inner)
                case ListType(element_field=element):
                    visit((element,))
                case MapType(key_field=key, value_field=value):
                    visit((key, value))

    visit(schema.fields)
    return frozenset(found[:MOST_INFERRED])


def column_stats_type(type_: IcebergType, base: int) -> StructType:
    """The metrics of a column of this type."""
    is_variant = is_opaque(type_) and str(type_).startswith("variant")
    is_geo = is_opaque(type_) and not is_variant
    lower, upper = (_box(base + ids.GEO_LOWER), _box(base + ids.GEO_UPPER)) if is_geo else (type_, type_)
    fields = [
        _optional(base + ids.LOWER, "lower_bound", lower),
        _optional(base + ids.UPPER, "upper_bound", upper),
    ]
    if not is_opaque(type_):
        fields.append(_optional(base + ids.TIGHT, "tight_bounds", BooleanType()))
    fields += [
        _optional(base + ids.VALUES, "value_count", LongType()),
        _optional(base + ids.NULLS, "null_value_count", LongType()),
    ]
    if isinstance(type_, FloatType | DoubleType):
        fields.append(_optional(base + ids.NANS, "nan_value_count", LongType()))
    if isinstance(type_, StringType | BinaryType) or is_opaque(type_):
        fields.append(_optional(base + ids.AVERAGE_SIZE, "avg_value_size_in_bytes", IntegerType()))
    return StructType(*fields)


def _box(first: int) -> StructType:
    """A corner of a bounding box."""
    names = (("x", True), ("y", True), ("z", False), ("m", False))
    corners = (NestedField(first + at, name, DoubleType(), required=must) for at, (name, must) in enumerate(names))
    return StructType(*corners)


def stored_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of a manifest, with field ids; without columns that Parquet or Arrow cannot store."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # late: slow, and plans from manifests do not need it

    kept = _storable(schema.as_struct())
    return schema_to_pyarrow(Schema(*kept.fields))


def _storable(struct: StructType) -> StructType:
    fields = []
    for field in struct.fields:
        type_ = _storable(field.field_type) if isinstance(field.field_type, StructType) else field.field_type
        is_empty = isinstance(type_, StructType) and not type_.fields
        if not (is_empty or isinstance(type_, UnknownType) or is_opaque(type_)):
            fields.append(NestedField(field.field_id, field.name, type_, required=field.required))
    return StructType(*fields)

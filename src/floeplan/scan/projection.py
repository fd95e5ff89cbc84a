"""Projects the rows of a data file onto a table schema: columns are found by field id, never by name.

Iceberg's rule for a column that a file does not have, in order: the value of an identity partition field on it, the
field's initial default, null. Promoted types are cast; nested structs, lists and maps are projected the same way.

Fail-safe: a cast that would change a value is an error naming the column, never a silently altered row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyiceberg import types
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform, YearTransform
from pyiceberg.types import ListType, MapType, NestedField, PrimitiveType, StringType, StructType

from floeplan import arrow_compute as pc
from floeplan.errors import CorruptFileError
from floeplan.metadata.manifests.entries import partition_column
from floeplan.opaque_types import as_stored_field, is_opaque, is_variant
from floeplan.partition.fields import BoundField
from floeplan.partition.transforms import from_physical
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.literals import Value, value_json
from floeplan.predicate.variants import VariantError
from floeplan.scan.variants import in_layout, unshredded
from floeplan.schemas import FIELD_ID, fields_by_id

MAX_KNOWN_SCHEMAS = 64

_KNOWN_SCHEMAS: dict[int, tuple[Schema, pa.Schema]] = {}


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema in which rows of an Iceberg schema are handed out, field ids in the metadata.

    Rows of many files are projected onto one schema, so results are cached by object identity: comparing two schemas
    takes as long as converting one.
    """
    kept, made = _KNOWN_SCHEMAS.get(id(schema), (None, None))
    if kept is schema:
        return made
    if any(is_opaque(field.field_type) for field in fields_by_id(schema).values()):
        binary = _converted(Schema(*map(as_stored_field, schema.fields)))
        made = pa.schema([_with_variants(one, field) for one, field in zip(schema.fields, binary, strict=True)])
    else:
        made = _converted(schema)
    if len(_KNOWN_SCHEMAS) >= MAX_KNOWN_SCHEMAS:
        _KNOWN_SCHEMAS.clear()
    _KNOWN_SCHEMAS[id(schema)] = schema, made
    return made


_ARROW_TYPES: dict[type, pa.DataType] = {
    types.BooleanType: pa.bool_(),
    types.IntegerType: pa.int32(),
    types.LongType: pa.int64(),
    types.FloatType: pa.float32(),
    types.DoubleType: pa.float64(),
    types.DateType: pa.date32(),
    types.TimeType: pa.time64("us"),
    types.TimestampType: pa.timestamp("us"),
    types.TimestamptzType: pa.timestamp("us", "UTC"),
    types.TimestampNanoType: pa.timestamp("ns"),
    types.TimestamptzNanoType: pa.timestamp("ns", "UTC"),
    types.StringType: pa.large_string(),
    types.BinaryType: pa.large_binary(),
    types.UUIDType: pa.uuid(),
    types.UnknownType: pa.null(),
}


def _converted(schema: Schema) -> pa.Schema:
    """As PyIceberg's ``schema_to_pyarrow``, whose import takes as long as a first plan; it converts other types."""
    try:
        return pa.schema([_arrow_field(field) for field in schema.fields])
    except KeyError:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return schema_to_pyarrow(schema)


def _arrow_field(field: NestedField) -> pa.Field:
    match field.field_type:
        case StructType(fields=fields):
            type_ = pa.struct([_arrow_field(child) for child in fields])
        case ListType(element_field=element):
            type_ = pa.large_list(_arrow_field(element))
        case MapType(key_field=key, value_field=value):
            type_ = pa.map_(_arrow_field(key), _arrow_field(value))
        case types.DecimalType(precision=precision, scale=scale):
            type_ = pa.decimal128(precision, scale)
        case types.FixedType() as fixed:
            type_ = pa.binary(len(fixed))
        case other:
            type_ = _ARROW_TYPES[type(other)]
    doc = {"doc": field.doc} if field.doc else {}
    return pa.field(field.name, type_, field.optional, doc | {FIELD_ID.decode(): str(field.field_id)})


Layouts: TypeAlias = Mapping[int, pa.DataType]
"""The types of shredded variants that are top-level columns, by field id; all other variants have type ``VARIANT``."""
NO_LAYOUTS: Layouts = MappingProxyType({})
VARIANT = pa.struct([pa.field("metadata", pa.large_binary(), False), pa.field("value", pa.large_binary(), False)])
"""The two encoded parts of a variant."""


def _with_variants(wanted: NestedField, field: pa.Field) -> pa.Field:
    """An Arrow field with binary in place of variants, and here with their parts."""
    type_ = field.type
    match wanted.field_type:
        case StructType(fields=fields):
            type_ = pa.struct([_with_variants(child, made) for child, made in zip(fields, type_, strict=True)])
        case ListType(element_field=element):
            type_ = pa.large_list(_with_variants(element, type_.value_field))
        case MapType(key_field=key, value_field=value):
            type_ = pa.map_(_with_variants(key, type_.key_field), _with_variants(value, type_.item_field))
        case one if is_variant(one):
            type_ = VARIANT
    return field.with_type(type_)


def with_layouts(schema: Schema, layouts: Layouts) -> pa.Schema:
    """The Arrow schema of rows whose shredded variants have these layouts."""
    made = arrow_schema(schema)
    for position, field in enumerate(schema.fields) if layouts else ():
        if field.field_id in layouts:
            made = made.set(position, made.field(position).with_type(layouts[field.field_id]))
    return made


def project(
    table: pa.Table,
    schema: Schema,
    constants: Mapping[int, object],
    path: str,
    rows: int | None = None,
    *,
    keep_dictionaries: bool = False,
    layouts: Layouts = NO_LAYOUTS,
) -> pa.Table:
    """Project a file's rows onto ``schema``.

    ``constants`` holds the values of columns the file may lack, by field id: its identity partition values. ``rows``
    is how many rows there are, for a file of which no column was read. With ``keep_dictionaries``, text that is encoded
    with a dictionary stays so. Variants with one of the ``layouts`` stay shredded.
    """
    target = with_layouts(schema, layouts)
    length = table.num_rows if rows is None else rows
    if not schema.fields:
        return without_columns(length)
    by_id = {field_id(field): position for position, field in enumerate(table.schema)}
    columns = []
    for wanted, field in zip(schema.fields, target, strict=True):
        position = by_id.get(wanted.field_id)
        if position is None:
            columns.append(_absent(wanted, field.type, length, constants))
            continue
        stored = table.column(position)
        if keep_dictionaries and pa.types.is_dictionary(stored.type) and isinstance(wanted.field_type, StringType):
            columns.append(stored)
            target = target.set(len(columns) - 1, field.with_type(stored.type))
            continue
        chunks = [_project(chunk, wanted, field.type, path) for chunk in stored.chunks]
        columns.append(pa.chunked_array(chunks, type=field.type))
    return pa.Table.from_arrays(columns, schema=target)


def expand_dictionaries(table: pa.Table, schema: Schema) -> pa.Table:
    """Columns that ``project`` kept encoded with a dictionary, in the types of the schema."""
    for position, (field, column) in enumerate(zip(arrow_schema(schema), table.columns, strict=True)):
        if column.type != field.type:
            chunks = [_taken(chunk, field.type) for chunk in column.chunks]
            table = table.set_column(position, field, pa.chunked_array(chunks, type=field.type))
    return table


def _taken(array: pa.DictionaryArray, type_: pa.DataType) -> pa.Array:
    """Values by their indexes, which is faster than a cast of the dictionary array."""
    return array.dictionary.cast(type_).take(array.indices)


def without_columns(rows: int) -> pa.Table:
    """A table of this many rows and no columns."""
    return pa.table({"none": pa.nulls(rows)}).select([])


def field_id(field: pa.Field) -> int | None:
    """The field id an Arrow field carries."""
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def _absent(wanted: NestedField, type_: pa.DataType, rows: int, constants: Mapping[int, object]) -> pa.Array:
    value = constants.get(wanted.field_id, wanted.initial_default)
    if value is None:
        return pa.nulls(rows, type_)
    return pa.repeat(pa.scalar(value, type_), rows)


def _project(array: pa.Array, wanted: NestedField, type_: pa.DataType, path: str) -> pa.Array:
    """One array in the type of the schema, nested fields matched by id."""
    match wanted.field_type:
        case StructType(fields=fields):
            by_id = {field_id(array.type.field(i)): i for i in range(array.type.num_fields)}
            children = []
            for child, child_field in zip(fields, type_, strict=True):
                found = by_id.get(child.field_id)
                if found is None:
                    children.append(_absent(child, child_field.type, len(array), {}))
                else:
                    children.append(_project(pc.struct_field(array, [found]), child, child_field.type, path))
            return pa.StructArray.from_arrays(children, fields=list(type_), mask=_nulls(array))
        case ListType(element_field=element):
            array = _rebased(array)
            values = _project(array.values, element, type_.value_type, path)
            offsets = array.offsets.cast(pa.int64())
            return pa.LargeListArray.from_arrays(offsets, values, type=type_, mask=_nulls(array))
        case MapType(key_field=key, value_field=value):
            array = _rebased(array)
            keys = _project(array.keys, key, type_.key_type, path)
            items = _project(array.items, value, type_.item_type, path)
            return pa.MapArray.from_arrays(array.offsets, keys, items, type=type_, mask=_nulls(array))
    if is_variant(wanted.field_type):
        return _variant(array, wanted, path) if type_ == VARIANT else in_layout(array, type_)
    if array.type == type_:
        return array
    if is_opaque(wanted.field_type) and isinstance(array, pa.ExtensionArray):  # where GeoArrow is installed
        array = array.storage
    try:
        return _taken(array, type_) if isinstance(array, pa.DictionaryArray) else array.cast(type_)
    except pa.ArrowInvalid as error:
        raise CorruptFileError(
            f"column {wanted.name} of {path} cannot be read as {wanted.field_type}: {error}",
            context={"file": path, "column": wanted.name, "field_id": wanted.field_id},
        ) from error


def _variant(array: pa.Array, wanted: NestedField, path: str) -> pa.Array:
    """The two encoded parts of a variant; one that is shredded is put together."""
    stored = array.storage if isinstance(array, pa.ExtensionArray) else array
    names = {field.name for field in stored.type} if pa.types.is_struct(stored.type) else set()
    if names == {"metadata", "value"}:
        value = pc.struct_field(stored, ["value"]).cast(pa.large_binary())
    elif {"metadata", "typed_value"} <= names <= {"metadata", "value", "typed_value"}:
        try:
            value = pa.array(unshredded(stored), pa.large_binary())
        except (VariantError, IndexError, UnicodeDecodeError) as error:
            raise CorruptFileError(
                f"column {wanted.name} of {path} is a shredded variant that cannot be read: {error}",
                context={"file": path, "column": wanted.name},
            ) from error
    else:
        raise CorruptFileError(
            f"column {wanted.name} of {path} is not a variant: it has the fields {', '.join(sorted(names)) or 'none'}",
            context={"file": path, "column": wanted.name},
        )
    parts = [pc.struct_field(stored, ["metadata"]).cast(pa.large_binary()), value]
    parts = [pc.fill_null(part, b"") for part in parts]  # required, even where the variant is null
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=_nulls(stored))


def _rebased(array: pa.Array) -> pa.Array:
    """The same list or map array with offset zero, so that offsets, values and validity line up."""
    return array if array.offset == 0 else pa.concat_arrays([array.slice(0, 0), array]) if len(array) else array


def _nulls(array: pa.Array) -> pa.Array | None:
    return pc.is_null(array) if array.null_count else None


_TIME = (YearTransform, MonthTransform, DayTransform, HourTransform)


def readable_value(field: BoundField, type_: PrimitiveType, value: Value) -> object:
    """A partition value for display: times as text, other values as in JSON."""
    if not isinstance(field.transform, _TIME):
        return value_json(type_, value)
    try:
        return field.transform.to_human_string(field.source_type, value)
    except (OverflowError, ValueError):  # Python's calendar does not reach it
        return value


class PartitionNames(NamedTuple):
    """Partition values of single files, for display and as constants for columns that a file lacks.

    Entries hold partition values in the physical domain of their type; here they become canonical values again.
    """

    union: UnionPartitionType
    types: Mapping[int, PrimitiveType]

    def readable(self, spec_id: int, entry: Mapping[str, Any]) -> dict[str, object]:
        """The partition tuple of one entry by field name: times as text, other values as in JSON."""
        values: dict[str, object] = {}
        for field in self.union.spec(spec_id).fields:
            value = None if field.is_void else self._canonical(field.column.field_id, entry)
            shown = None if value is None else readable_value(field, self.types[field.column.field_id], value)
            values[field.column.path[0]] = shown
        return values

    def identities(self, spec_id: int, entry: Mapping[str, Any]) -> dict[int, object]:
        """Values of the source columns of identity fields, by field id; a null takes precedence over a default."""
        found: dict[int, object] = {}
        for field in self.union.spec(spec_id).fields:
            if isinstance(field.transform, IdentityTransform):
                found[field.source_id] = self._canonical(field.column.field_id, entry)
        return found

    def values(self, spec_id: int, entry: Mapping[str, Any]) -> dict[str, object]:
        """The partition tuple of one entry by the names of the union, without fields that the spec does not have."""
        names = {field.id: field.name for field in self.union.fields}
        fields = [field for field in self.union.spec(spec_id).fields if not field.is_void]
        return {names[f.column.field_id]: self._canonical(f.column.field_id, entry) for f in fields}

    def _canonical(self, key: int, entry: Mapping[str, Any]) -> Value | None:
        raw = entry.get(partition_column(key))
        return None if raw is None else from_physical(self.types[key], raw)

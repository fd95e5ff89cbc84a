"""Converts input rows to the table's schema, or raises an error that names the column.

Columns are matched by field id if they have one, else by name, in any order. A missing column gets its write default,
or null. Casts never change a value: integers, floats and decimals widen, strings and binaries change their Arrow
layout, timestamps their unit; a value that does not fit is an error, as is a string for a number. A variant is a struct
of its encoded parts, geometry and geography are WKB in binary; a shredded variant keeps its layout. The row lineage
columns of format 3 are kept if the rows have them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, MapType, NestedField, StructType

from floeplan.errors import BadInputError, TypeMismatchError, UnknownColumnError
from floeplan.opaque_types import is_variant
from floeplan.predicate.rows.arrow_columns import decoded
from floeplan.scan.projection import arrow_schema, field_id
from floeplan.scan.variants import blank, blank_nulls, in_layout, shredded_layout
from floeplan.schemas import FIELD_ID

Rows: TypeAlias = "pa.RecordBatch | pa.Table"

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)

LINEAGE = pa.schema(
    [
        pa.field("_row_id", pa.int64(), metadata={FIELD_ID: "2147483540"}),
        pa.field("_last_updated_sequence_number", pa.int64(), metadata={FIELD_ID: "2147483539"}),
    ]
)
"""The row lineage columns of format 3, which keep the identity of rows when files are rewritten."""


def conform(rows: Rows, schema: Schema, *, lineage: bool = False) -> pa.Table:
    """Return the rows with the columns of ``schema``, in its order, then the row lineage columns if requested.

    Raises:
        UnknownColumnError: The rows have a column that the schema does not have.
        TypeMismatchError: A column's type cannot be widened to the schema's, or a value does not fit.
        BadInputError: A required column is missing, or has nulls.
    """
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    target = arrow_schema(schema)
    lineage_fields = [field for field in LINEAGE if lineage and field.name in table.schema.names]
    complete = pa.schema([*target, *lineage_fields])
    # Rows in the table's own schema are checked only for nulls where it allows none.
    may_have_nulls = any(
        pt.is_nested(field.type) or (not field.nullable and table.column(at).null_count)
        for at, field in enumerate(table.schema)
    )
    if table.schema.equals(complete, check_metadata=True) and not may_have_nulls:
        return table
    found = _matched(list(table.schema), schema.fields, "", {field.name for field in lineage_fields})
    columns = []
    for position, (wanted, field) in enumerate(zip(schema.fields, target, strict=True)):
        type_ = field.type
        if wanted.field_id in found:
            given = decoded(table.column(found[wanted.field_id]))
            if is_variant(wanted.field_type):
                type_ = shredded_layout(given.type) or type_
                complete = complete.set(position, field.with_type(type_))
            chunks = [_conformed(chunk, wanted, type_, wanted.name) for chunk in given.chunks]
        else:
            chunks = [_default(wanted, type_, table.num_rows, wanted.name)]
        columns.append(pa.chunked_array(chunks, type_))
    columns += [table.column(field.name).cast(field.type) for field in lineage_fields]
    return pa.Table.from_arrays(columns, schema=complete)


def _matched(
    given: Sequence[pa.Field], wanted: Sequence[NestedField], prefix: str, ignored: Set[str] = frozenset()
) -> dict[int, int]:
    """Positions of the given fields by field id; an unknown or duplicate field is an error."""
    by_name = {field.name: field.field_id for field in wanted}
    known = set(by_name.values())
    found: dict[int, int] = {}
    for position, field in enumerate(given):
        if field.name in ignored:
            continue
        own = field_id(field)
        column = own if own is not None and own in known else by_name.get(field.name)
        name = prefix + field.name
        if column is None:
            raise UnknownColumnError(
                f"the rows have a column {name} that the table does not have; its columns are "
                + ", ".join(prefix + other for other in by_name),
                context={"column": name},
            )
        if column in found:
            raise BadInputError(f"the rows have column {name} twice", context={"column": name})
        found[column] = position
    return found


def _default(wanted: NestedField, type_: pa.DataType, rows: int, name: str) -> pa.Array:
    if wanted.write_default is not None:
        return pa.repeat(pa.scalar(wanted.write_default, type_), rows)
    if wanted.required and rows:
        raise BadInputError(
            f"column {name} is required, and the {rows} rows to be written do not have it", context={"column": name}
        )
    return blank_nulls(rows, type_)


def _conformed(array: pa.Array, wanted: NestedField, type_: pa.DataType, name: str) -> pa.Array:
    """Convert one array to the table's type; ``name`` is the path of the column, for errors."""
    if wanted.required and array.null_count:
        raise BadInputError(
            f"column {name} is required, and {array.null_count} of the rows to be written have null there",
            context={"column": name, "nulls": array.null_count},
        )
    if isinstance(array, pa.ExtensionArray) and array.type != type_:
        array = array.storage
    given = array.type
    match wanted.field_type:
        case StructType() | ListType() | MapType() if pt.is_null(given):
            return blank_nulls(len(array), type_)
        case StructType(fields=fields) if pt.is_struct(given):
            return _struct(array, fields, type_, name)
        case ListType(element_field=element) if isinstance(given, _LISTS):
            if pt.is_fixed_size_list(given):
                array = array.cast(pa.list_(given.value_field))
            values = _conformed(array.flatten(), element, type_.value_type, f"{name}.{element.name}")
            offsets, mask = _packed_offsets(array).cast(pa.int64()), array.is_null() if array.null_count else None
            return pa.LargeListArray.from_arrays(offsets, values, type=type_, mask=mask)
        case MapType(key_field=key, value_field=value) if pt.is_map(given):
            as_list = array.cast(pa.list_(pa.struct([given.key_field, given.item_field])))
            entries = as_list.flatten()
            keys = _conformed(pc.struct_field(entries, [0]), key, type_.key_type, f"{name}.{key.name}")
            items = _conformed(pc.struct_field(entries, [1]), value, type_.item_type, f"{name}.{value.name}")
            mask = array.is_null() if array.null_count else None
            return pa.MapArray.from_arrays(_packed_offsets(as_list), keys, items, type=type_, mask=mask)
        case StructType() | ListType() | MapType():
            raise _mismatch(name, type_, given)
        case variant if is_variant(variant):
            return _variant(array, wanted, type_, name)
    return array if given == type_ else _cast(array, wanted, type_, name)


def _struct(array: pa.Array, fields: Sequence[NestedField], type_: pa.DataType, name: str) -> pa.Array:
    found = _matched(list(array.type), fields, f"{name}.")
    present = array.is_valid() if array.null_count else None
    children = []
    for at, wanted in enumerate(fields):
        inner, child_type = f"{name}.{wanted.name}", type_.field(at).type
        if wanted.field_id not in found:
            children.append(_default(wanted, child_type, len(array), inner))
            continue
        child = pc.struct_field(array, [found[wanted.field_id]])
        if present is None or not wanted.required:
            children.append(_conformed(child, wanted, child_type, inner))
            continue
        # Required inside of an optional struct: nulls are an error only where the struct itself is not null.
        _conformed(child.filter(present), wanted, child_type, inner)
        child = _conformed(child, wanted.model_copy(update={"required": False}), child_type, inner)
        if child.null_count:
            # pyarrow refuses to write a null in a required field, even where the enclosing struct is null.
            numbers = pc.if_else(child.is_valid(), pa.array(np.arange(len(child))), len(child))
            child = pa.concat_arrays([child, blank(child.type)]).take(numbers)
        children.append(child)
    return pa.StructArray.from_arrays(children, fields=list(type_), mask=pc.invert(present) if present else None)


def _variant(array: pa.Array, wanted: NestedField, type_: pa.DataType, name: str) -> pa.Array:
    """A variant in a layout: its two encoded parts, or a shredded one as it is."""
    given = array.type
    if pt.is_null(given):
        return blank_nulls(len(array), type_)
    if not pt.is_struct(given) or {part.name for part in given} != {part.name for part in type_}:
        raise _mismatch(name, f"{wanted.field_type} (a struct of metadata and value)", given)
    present = array.filter(array.is_valid())
    for part in type_:
        if not part.nullable and pc.struct_field(present, [part.name]).null_count:
            raise BadInputError(f"column {name} is a variant whose {part.name} is null", context={"column": name})
    return in_layout(array, type_)


def _packed_offsets(array: pa.Array) -> pa.Array:
    """Offsets into the flattened values, where null lists are empty."""
    lengths = pc.list_value_length(array).fill_null(0)
    total = pc.cumulative_sum(lengths)
    return pa.concat_arrays([pa.array([0], total.type), total])


def _cast(array: pa.Array, wanted: NestedField, type_: pa.DataType, name: str) -> pa.Array:
    source = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, _cast(array, wanted, type_.storage_type, name))
    if not (pt.is_null(source) or _widens(source, type_)):
        raise _mismatch(name, wanted.field_type, source)
    try:
        return array.cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TypeMismatchError(
            f"column {name} is {wanted.field_type}, and a value does not fit: {error}",
            context={"column": name, "type": str(wanted.field_type), "found": str(source)},
        ) from error


def _widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether one type widens to the other; the cast checks that each value fits."""
    for is_kind in (pt.is_integer, pt.is_date, pt.is_time):
        if is_kind(target):
            return bool(is_kind(source))
    if pt.is_floating(target):
        return bool(pt.is_floating(source) and source.bit_width <= target.bit_width)
    if pt.is_decimal(target):
        return bool(pt.is_decimal(source) and source.scale <= target.scale) or bool(pt.is_integer(source))
    if pt.is_timestamp(target):
        return bool(pt.is_timestamp(source)) and (source.tz is None) == (target.tz is None)
    if pt.is_large_string(target):
        return bool(pt.is_string(source) or pt.is_string_view(source))
    binaries = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
    return all(any(is_kind(type_) for is_kind in binaries) for type_ in (source, target))


def _mismatch(name: str, wanted: object, found: pa.DataType) -> TypeMismatchError:
    return TypeMismatchError(
        f"column {name} is {wanted}, but the rows have {found}; cast them first",
        context={"column": name, "type": str(wanted), "found": str(found)},
    )

"""Columns of Arrow data by field id, in a form that compares exactly with canonical literals.

A field that carries a field id (``PARQUET:field_id`` in its metadata) is known by it alone; a field without one is
known by its name path in the schema. Inside a null struct every field is null. A column that the data does not have
is its initial default where the schema names one, and null otherwise.

Data may come narrower, in other units, zones and encodings than its Iceberg type says. Nothing is rounded to fit:
integers and instants are compared in the finer of the two units, as decimals where 64 bits do not hold them, and
data that cannot be read as the type is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.errors import TypeMismatchError, UnknownColumnError
from floeplan.predicate.ir import Column
from floeplan.predicate.literals import Value

Resolver: TypeAlias = Callable[[int], "pa.ChunkedArray | pa.Array"]
"""The data of a column by field id, as long as the table."""

_FIELD_ID = b"PARQUET:field_id"
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_MOST_FLAGS = 1 << 24
_WIDE = pa.decimal128(38, 0)
_DAY = 86_400 * 10**9
_NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_COLUMN_NANOS = {
    DateType: _DAY,
    TimeType: 10**3,
    TimestampType: 10**3,
    TimestamptzType: 10**3,
    TimestampNanoType: 1,
    TimestamptzNanoType: 1,
}


def columns_of(table: pa.Table, schema: Schema) -> Resolver:
    """A resolver for the fields of the schema in the table."""

    def resolve(field_id: int) -> pa.ChunkedArray:
        path = _path(schema.fields, field_id)
        if not path:
            raise UnknownColumnError(
                f"the predicate reads field id {field_id}, which schema {schema.schema_id} does not have outside of "
                "lists and maps; compile the predicate with the schema of the data",
                context={"field-id": field_id, "schema-id": schema.schema_id},
            )
        return _walk(table, path)

    return resolve


def typed_columns_of(table: pa.Table, schema: Schema) -> Resolver:
    """Like ``columns_of``, each primitive column cast to the Arrow type of its Iceberg type."""
    resolve = columns_of(table, schema)

    def resolve_typed(field_id: int) -> pa.ChunkedArray:
        data, field = decoded(resolve(field_id)), schema.find_field(field_id)
        if not isinstance(field.field_type, PrimitiveType):
            return data
        try:
            return data.cast(_arrow_type(field.field_type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _mismatch(field.name, str(field.field_type), data.type) from error

    return resolve_typed


def _arrow_type(type_: IcebergType) -> pa.DataType:
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # takes long to import, and most predicates do without it

    return schema_to_pyarrow(type_)


def _path(fields: tuple[NestedField, ...], field_id: int) -> tuple[NestedField, ...]:
    for field in fields:
        if field.field_id == field_id:
            return (field,)
        if isinstance(field.field_type, StructType) and (below := _path(field.field_type.fields, field_id)):
            return (field, *below)
    return ()


def _walk(table: pa.Table, path: tuple[NestedField, ...]) -> pa.ChunkedArray:
    """Follow the path through the table's structs; a step that is not there ends in defaults or nulls."""
    data: pa.ChunkedArray | None = None
    for field in path:
        siblings = list(table.schema) if data is None else list(data.type.fields)
        position = _position(siblings, field)
        if position is None:
            return _absent(table.num_rows, data, field, path[-1])
        data = table.column(position) if data is None else pc.struct_field(data, [position])
    return data


def _position(siblings: list[pa.Field], wanted: NestedField) -> int | None:
    unnamed = None
    for position, field in enumerate(siblings):
        field_id = (field.metadata or {}).get(_FIELD_ID)
        if field_id is not None and int(field_id) == wanted.field_id:
            return position
        if field_id is None and field.name == wanted.name and unnamed is None:
            unnamed = position
    return unnamed


def _absent(rows: int, parent: pa.ChunkedArray | None, missing: NestedField, leaf: NestedField) -> pa.ChunkedArray:
    wanted = _arrow_type(leaf.field_type)
    if missing is not leaf or leaf.initial_default is None:
        return pa.chunked_array([pa.nulls(rows, wanted)])
    default = pa.chunked_array([pa.repeat(pa.scalar(leaf.initial_default, type=wanted), rows)])
    return default if parent is None else pc.if_else(pc.is_valid(parent), default, pa.scalar(None, type=wanted))


def decoded(data: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    """The data without dictionary, run-end and extension wrappings."""
    chunked = data if isinstance(data, pa.ChunkedArray) else pa.chunked_array([data])
    while True:
        if pt.is_dictionary(chunked.type):
            chunked = chunked.cast(chunked.type.value_type)
        elif pt.is_run_end_encoded(chunked.type):
            chunked = pc.run_end_decode(chunked)
        elif isinstance(chunked.type, pa.BaseExtensionType):
            chunked = chunked.cast(chunked.type.storage_type)
        else:
            return chunked


@dataclass(frozen=True, slots=True)
class Comparable:
    """A column as Arrow values that compare like its rows do, and the way of its literals into their domain.

    The domains: bool, int32 and int64, float64, decimal, and bytes for strings, binary, fixed and UUID.
    ``literal_scale`` is how many units of the data one unit of an integer literal is.
    """

    values: pa.ChunkedArray
    literal_scale: int = 1

    @property
    def is_float(self) -> bool:
        """Whether NaN and two zeros have to be thought of."""
        return bool(pt.is_float64(self.values.type))

    def meet(self, value: Value) -> tuple[pa.ChunkedArray, pa.Scalar]:
        """Values and one literal in a common type: the values' own, or a wider one that the literal fits."""
        wanted, values = _physical(value, self.literal_scale), self.values
        if pt.is_int32(values.type) and wanted not in _INT32:
            values = values.cast(pa.int64())
        if pt.is_int64(values.type) and wanted not in _INT64:
            values = values.cast(_WIDE)
        return values, pa.scalar(wanted, type=values.type)

    def among(self, literals: tuple[Value, ...]) -> pa.ChunkedArray:
        """Which values equal any of the literals; what is answered for NULL means nothing."""
        whole = pt.is_int32(self.values.type) or pt.is_int64(self.values.type)
        flags = _flags(literals, self.literal_scale) if whole else None
        if flags is not None:
            return pa.chunked_array([_looked_up(chunk, *flags) for chunk in self.values.chunks], type=pa.bool_())
        values = self.values.cast(pa.int64()) if whole else self.values
        known, has_nan = _value_set(literals, values.type, self.literal_scale)
        if not self.is_float:
            return pc.is_in(values, value_set=known)
        answer = pc.is_in(pc.add(values, 0.0), value_set=known)
        return pc.or_(answer, pc.is_nan(values)) if has_nan else answer


def _physical(value: Value, scale: int) -> Value:
    """A canonical literal in the domain of the values; an integer may leave the 64 bits."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int) and not isinstance(value, bool):
        return value * scale
    return value


@lru_cache(maxsize=64)
def _value_set(values: tuple[Value, ...], type_: pa.DataType, scale: int) -> tuple[pa.Array, bool]:
    """Literals as one array, and whether NaN is among them; made once for all files that are asked.

    NaN and what no value of the type can equal are left out, and -0.0 is 0.0.
    """
    if pt.is_float64(type_):
        numbers = np.array(values, dtype=np.float64) + 0.0
        return pa.array(numbers[~np.isnan(numbers)]), bool(np.isnan(numbers).any())
    wanted = [_physical(value, scale) for value in values]
    if pt.is_int64(type_):
        wanted = [value for value in wanted if value in _INT64]
    return pa.array(wanted, type=type_), False


@lru_cache(maxsize=4)
def _flags(literals: tuple[Value, ...], scale: int) -> tuple[int, npt.NDArray[np.bool_]] | None:
    """Some integers as flags, the first of which stands for a given number and the others for those that follow it.

    The first and the last are not set: they stand for all numbers beyond. ``None`` when the integers are too far apart.
    Looking values up takes an eighth of the time of hashing them.
    """
    known = np.asarray(_value_set(literals, pa.int64(), scale)[0])
    if not len(known) or int(known.max()) - int(known.min()) >= _MOST_FLAGS or int(known.min()) == _INT64.start:
        return None
    base = int(known.min()) - 1
    flags = np.zeros(int(known.max()) - base + 2, dtype=np.bool_)
    flags[known - base] = True
    return base, flags


def _looked_up(chunk: pa.Array, base: int, flags: npt.NDArray[np.bool_]) -> pa.Array:
    """Numbers beyond the flags, and those so far from them that they wrap around, are taken for the nearer end."""
    numbers = np.asarray(chunk.fill_null(0) if chunk.null_count else chunk)
    return pa.array(np.take(flags, np.subtract(numbers, base, dtype=np.int64), mode="clip"))


def comparable(column: Column, data: pa.ChunkedArray | pa.Array) -> Comparable:
    """Bring a column's data into its comparison domain, exactly or not at all."""
    plain = decoded(data)
    try:
        ready = _comparable(column.type, plain)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _mismatch(str(column), str(column.type), plain.type) from error
    if ready is None:
        raise _mismatch(str(column), str(column.type), plain.type)
    return ready


def _comparable(type_: PrimitiveType, data: pa.ChunkedArray) -> Comparable | None:
    """The comparison form, or ``None`` when data of this kind is never data of the type."""
    arrow, absent = data.type, pt.is_null(data.type)
    match type_:
        case BooleanType() if absent or pt.is_boolean(arrow):
            return Comparable(data.cast(pa.bool_()))
        case IntegerType() | LongType() if absent or pt.is_integer(arrow):
            return Comparable(_integers(data))
        case FloatType() | DoubleType() if absent or pt.is_floating(arrow):
            return Comparable(data.cast(pa.float64()))
        case DecimalType(scale=0) if pt.is_integer(arrow):
            return Comparable(data.cast(_WIDE))
        case DecimalType() if absent or pt.is_decimal(arrow):
            return Comparable(data.cast(_common_decimal(type_, arrow)))
        case DateType() if absent or pt.is_date(arrow) or pt.is_integer(arrow):
            return _instants(type_, data)
        case TimeType() if absent or pt.is_time(arrow) or pt.is_integer(arrow):
            return _instants(type_, data)
        case TimestampType() | TimestamptzType() | TimestampNanoType() | TimestamptzNanoType() if (
            absent or pt.is_timestamp(arrow) or pt.is_date(arrow) or pt.is_integer(arrow)
        ):
            return _instants(type_, data)
        case StringType() | BinaryType() | FixedType() | UUIDType() if absent or _is_bytes(arrow):
            wide = pt.is_large_string(arrow) or pt.is_large_binary(arrow) or _is_view(arrow)
            return Comparable(data.cast(pa.large_binary() if wide else pa.binary()))
    return None


def _is_bytes(arrow: pa.DataType) -> bool:
    plain = pt.is_string(arrow) or pt.is_binary(arrow) or pt.is_fixed_size_binary(arrow)
    return plain or pt.is_large_string(arrow) or pt.is_large_binary(arrow) or _is_view(arrow)


def _is_view(arrow: pa.DataType) -> bool:
    return bool(pt.is_string_view(arrow) or pt.is_binary_view(arrow))


def _integers(data: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers, dates, times and instants as counts of their own unit: of 32 or 64 bits, as decimals beyond those."""
    if pt.is_date32(data.type) or pt.is_time32(data.type):
        data = data.cast(pa.int32())
    if pt.is_int32(data.type):
        return data
    try:
        return data.cast(pa.int64())
    except pa.ArrowInvalid:
        return data.cast(_WIDE)


def _instants(type_: PrimitiveType, data: pa.ChunkedArray) -> Comparable:
    """Dates, times and timestamps in the finer of the data's and the column's unit."""
    of_column = _COLUMN_NANOS[type(type_)]
    of_data = _nanos_of(data.type, of_column)
    counts = _integers(data)
    if of_data <= of_column:
        return Comparable(counts, of_column // of_data)
    return Comparable(_multiplied(counts, of_data // of_column))


def _nanos_of(arrow: pa.DataType, of_integers: int) -> int:
    if pt.is_date32(arrow):
        return _DAY
    if pt.is_date64(arrow):
        return _NANOS["ms"]
    return _NANOS[arrow.unit] if pt.is_temporal(arrow) else of_integers


def _multiplied(counts: pa.ChunkedArray, factor: int) -> pa.ChunkedArray:
    try:
        return pc.multiply_checked(counts.cast(pa.int64()), pa.scalar(factor, type=pa.int64()))
    except pa.ArrowInvalid:
        return pc.multiply(counts.cast(pa.decimal128(19, 0)), pa.scalar(factor, type=pa.decimal128(18, 0)))


def _common_decimal(type_: DecimalType, arrow: pa.DataType) -> pa.DataType:
    """A decimal type that holds the data and the column's literals alike."""
    if pt.is_null(arrow):
        return pa.decimal128(type_.precision, type_.scale)
    scale = max(arrow.scale, type_.scale)
    precision = max(arrow.precision - arrow.scale, type_.precision - type_.scale) + scale
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _mismatch(column: str, wanted: str, found: pa.DataType) -> TypeMismatchError:
    return TypeMismatchError(
        f"column {column} is {wanted}, but its data is {found} and cannot be read as that exactly; "
        "check the schema the data was read with",
        context={"column": column, "type": wanted, "found": str(found)},
    )

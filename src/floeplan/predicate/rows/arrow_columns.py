"""Columns of Arrow data by field id, in a form that compares exactly with canonical literals.

A field with a field id (``PARQUET:field_id`` in its metadata) is resolved by that id only; a field without one, by its
name path in the schema. Inside a null struct every field is null. A column missing from the data has its initial
default if the schema defines one, and is null otherwise (Iceberg spec, "Column Projection").

Data may be narrower or have other units, zones and encodings than its Iceberg type. Nothing is rounded: integers and
instants are compared in the finer of the two units, as decimals where 64 bits do not hold them. Fail-safe: data that
cannot be read as the column's type is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg import types
from pyiceberg.schema import Schema

from floeplan.arrow_compute import scalar
from floeplan.errors import TypeMismatchError, UnknownColumnError
from floeplan.opaque_types import is_opaque
from floeplan.predicate.casts import NANOS_PER_DAY, TEMPORAL_UNIT
from floeplan.predicate.ir import Column
from floeplan.predicate.literals import Value
from floeplan.predicate.rows.types import LONG, Vector, normalize, wider_decimal
from floeplan.vectors import Mask, arrow, arrow_values, integers, signed, without_nulls

Resolver: TypeAlias = Callable[[int], "pa.ChunkedArray | pa.Array"]
"""The data of a column by field id, as long as the table."""

_FIELD_ID = b"PARQUET:field_id"
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_MAX_FLAGS = 1 << 24
_WIDE = pa.decimal128(38, 0)
_NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows an expression is evaluated on."""

    count: int
    resolve: Resolver

    def column(self, field_id: int) -> pa.Array:
        """The data of a column, in one chunk and in the evaluator's type."""
        data = self.resolve(field_id)
        return normalize(data.combine_chunks() if isinstance(data, pa.ChunkedArray) else data)

    def filter(self, mask: pa.Array) -> Rows:
        """The rows a mask selects."""
        return Rows(pc.sum(mask.cast(LONG)).as_py() or 0, lambda field_id: self.resolve(field_id).filter(mask))

    def spread(self, values: Vector) -> pa.Array:
        """A constant as a column."""
        return pa.repeat(values, self.count) if isinstance(values, pa.Scalar) else values


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
        if not isinstance(field.field_type, types.PrimitiveType) or is_opaque(field.field_type):
            return data
        try:
            return data.cast(_arrow_type(field.field_type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _mismatch(field.name, str(field.field_type), data.type) from error

    return resolve_typed


def _arrow_type(type_: types.IcebergType) -> pa.DataType:
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # imported late: slow, and most predicates do not need it

    if is_opaque(type_):
        return pa.null()
    return schema_to_pyarrow(type_)


def _path(fields: tuple[types.NestedField, ...], field_id: int) -> tuple[types.NestedField, ...]:
    for field in fields:
        if field.field_id == field_id:
            return (field,)
        if isinstance(field.field_type, types.StructType) and (below := _path(field.field_type.fields, field_id)):
            return (field, *below)
    return ()


def _walk(table: pa.Table, path: tuple[types.NestedField, ...]) -> pa.ChunkedArray:
    """Follow the path through the table's structs; a missing field yields its default or nulls."""
    data: pa.ChunkedArray | None = None
    for field in path:
        siblings = list(table.schema) if data is None else list(data.type.fields)
        position = _position(siblings, field)
        if position is not None:
            data = table.column(position) if data is None else pc.struct_field(data, [position])
            continue
        leaf = path[-1]
        type_ = _arrow_type(leaf.field_type)
        if field is not leaf or leaf.initial_default is None:
            return pa.chunked_array([pa.nulls(table.num_rows, type_)])
        default = pa.chunked_array([pa.repeat(pa.scalar(leaf.initial_default, type=type_), table.num_rows)])
        return default if data is None else pc.if_else(pc.is_valid(data), default, pa.scalar(None, type=type_))
    return data


def _position(siblings: list[pa.Field], target: types.NestedField) -> int | None:
    """The position of a field: by its id, or by its name among the fields without an id."""
    unnamed = None
    for position, field in enumerate(siblings):
        field_id = (field.metadata or {}).get(_FIELD_ID)
        if field_id is not None and int(field_id) == target.field_id:
            return position
        if field_id is None and field.name == target.name and unnamed is None:
            unnamed = position
    return unnamed


def decoded(data: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    """The data without dictionary encoding, run-end encoding and extension types."""
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
    """A column as Arrow values that compare as Spark compares its rows.

    The values are bool, int32, int64, float64, decimal, or bytes for strings, binary, fixed and UUID. An integer
    literal is multiplied by ``literal_scale`` to be in the unit of the values.
    """

    values: pa.ChunkedArray
    literal_scale: int = 1

    @property
    def is_float(self) -> bool:
        """Whether the values may be NaN or -0.0."""
        return bool(pt.is_float64(self.values.type))

    def align(self, value: Value) -> tuple[pa.ChunkedArray, pa.Scalar]:
        """Values and one literal in a common type: the values' own, or a wider one that holds the literal."""
        literal, values = _physical(value, self.literal_scale), self.values
        if pt.is_int32(values.type) and literal not in _INT32:
            values = values.cast(pa.int64())
        if pt.is_int64(values.type) and literal not in _INT64:
            values = values.cast(_WIDE)
        return values, scalar(literal, values.type)

    def is_in(self, literals: tuple[Value, ...]) -> pa.ChunkedArray:
        """Which values equal any of the literals; the result for NULL is undefined."""
        whole = pt.is_int32(self.values.type) or pt.is_int64(self.values.type)
        flags = _flags(literals, self.literal_scale) if whole else None
        if flags is not None:
            base, table = flags
            chunks = []
            for chunk in self.values.chunks:
                numbers = signed(without_nulls(chunk, 0))
                # Differences outside the table, and those that wrap around 64 bits, are clipped to its unset ends.
                chunks.append(arrow(np.take(table, np.subtract(numbers, base, dtype=np.int64), mode="clip")))
            return pa.chunked_array(chunks, type=pa.bool_())
        values = self.values.cast(pa.int64()) if whole else self.values
        known, has_nan = _value_set(literals, values.type, self.literal_scale)
        if not self.is_float:
            return pc.is_in(values, value_set=known)
        answer = pc.is_in(pc.add(values, scalar(0.0, values.type)), value_set=known)
        return pc.or_(answer, pc.is_nan(values)) if has_nan else answer


def _physical(value: Value, scale: int) -> Value:
    """A canonical literal in the domain of the values; an integer may exceed 64 bits."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int) and not isinstance(value, bool):
        return value * scale
    return value


@lru_cache(maxsize=64)
def _value_set(values: tuple[Value, ...], type_: pa.DataType, scale: int) -> tuple[pa.Array, bool]:
    """Literals as one array, and whether NaN is among them; cached, because every file needs the same.

    NaN and literals that no value of the type can equal are left out; -0.0 becomes 0.0.
    """
    if pt.is_float64(type_):
        numbers = np.array(values, dtype=np.float64) + 0.0
        return arrow(numbers[~np.isnan(numbers)]), bool(np.isnan(numbers).any())
    literals = [_physical(value, scale) for value in values]
    if pt.is_int64(type_):
        literals = [value for value in literals if value in _INT64]
    return arrow_values(literals, type_), False


@lru_cache(maxsize=4)
def _flags(literals: tuple[Value, ...], scale: int) -> tuple[int, Mask] | None:
    """Integer literals as a lookup table: its base, and one flag per integer from there on.

    The first and the last flag are unset and stand for all integers outside the table. ``None`` when the literals span
    more than ``_MAX_FLAGS``. A lookup takes an eighth of the time of Arrow's hashing ``is_in``.
    """
    known = integers(_value_set(literals, pa.int64(), scale)[0])
    if not len(known) or int(known.max()) - int(known.min()) >= _MAX_FLAGS or int(known.min()) == _INT64.start:
        return None
    base = int(known.min()) - 1
    flags = np.zeros(int(known.max()) - base + 2, dtype=np.bool_)
    flags[known - base] = True
    return base, flags


def comparable(column: Column, data: pa.ChunkedArray | pa.Array) -> Comparable:
    """Convert a column's data to values that compare exactly; raise if that is impossible."""
    plain = decoded(data)
    try:
        ready = _comparable(column.type, plain)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _mismatch(str(column), str(column.type), plain.type) from error
    if ready is None:
        raise _mismatch(str(column), str(column.type), plain.type)
    return ready


def _comparable(type_: types.PrimitiveType, data: pa.ChunkedArray) -> Comparable | None:
    """The comparable values, or ``None`` if data of this Arrow type cannot be data of the column's type."""
    arrow, absent = data.type, pt.is_null(data.type)
    match type_:
        case types.BooleanType() if absent or pt.is_boolean(arrow):
            return Comparable(data.cast(pa.bool_()))
        case types.IntegerType() | types.LongType() if absent or pt.is_integer(arrow):
            return Comparable(_integers(data))
        case types.FloatType() | types.DoubleType() if absent or pt.is_floating(arrow):
            return Comparable(data.cast(pa.float64()))
        case types.DecimalType(scale=0) if pt.is_integer(arrow):
            return Comparable(data.cast(_WIDE))
        case types.DecimalType() if absent or pt.is_decimal(arrow):
            own = pa.decimal128(type_.precision, type_.scale)
            return Comparable(data.cast(own if absent else wider_decimal(arrow, own)))
        case types.StringType() | types.BinaryType() | types.FixedType() | types.UUIDType():
            narrow = absent or pt.is_string(arrow) or pt.is_binary(arrow) or pt.is_fixed_size_binary(arrow)
            view = pt.is_string_view(arrow) or pt.is_binary_view(arrow)
            if narrow or view or pt.is_large_string(arrow) or pt.is_large_binary(arrow):
                return Comparable(data.cast(pa.binary() if narrow else pa.large_binary()))
        case _ if type(type_) in TEMPORAL_UNIT:
            is_date, is_time = isinstance(type_, types.DateType), isinstance(type_, types.TimeType)
            readable = pt.is_time(arrow) if is_time else pt.is_date(arrow) or (pt.is_timestamp(arrow) and not is_date)
            if absent or readable or pt.is_integer(arrow):
                return _instants(type_, data)
        case _ if is_opaque(type_) or (absent and isinstance(type_, types.UnknownType)):
            return Comparable(data)  # for IS NULL, the only condition on such a column
    return None


def _integers(data: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers, dates, times and timestamps as counts of their unit: int32 or int64, decimals beyond those."""
    if pt.is_date32(data.type) or pt.is_time32(data.type):
        data = data.cast(pa.int32())
    if pt.is_int32(data.type):
        return data
    try:
        return data.cast(pa.int64())
    except pa.ArrowInvalid:
        return data.cast(_WIDE)


def _instants(type_: types.PrimitiveType, data: pa.ChunkedArray) -> Comparable:
    """Dates, times and timestamps in the finer of the data's and the column's unit."""
    arrow, of_column = data.type, TEMPORAL_UNIT[type(type_)]
    if pt.is_date(arrow):
        of_data = NANOS_PER_DAY if pt.is_date32(arrow) else _NANOS["ms"]
    else:
        of_data = _NANOS[arrow.unit] if pt.is_temporal(arrow) else of_column
    counts = _integers(data)
    if of_data <= of_column:
        return Comparable(counts, of_column // of_data)
    factor = of_data // of_column
    try:
        return Comparable(pc.multiply_checked(counts.cast(pa.int64()), pa.scalar(factor, type=pa.int64())))
    except pa.ArrowInvalid:
        wide = counts.cast(pa.decimal128(19, 0))
        return Comparable(pc.multiply(wide, pa.scalar(factor, type=pa.decimal128(18, 0))))


def _mismatch(column: str, expected: str, found: pa.DataType) -> TypeMismatchError:
    return TypeMismatchError(
        f"column {column} is {expected}, but its data is {found} and cannot be read as that exactly; "
        "check the schema the data was read with",
        context={"column": column, "type": expected, "found": str(found)},
    )

"""Iceberg types as Spark shows them.

The rule is that of Iceberg's own Spark reader: UUIDs are text, fixed bytes are binary, timestamps without a zone are
``timestamp_ntz``. Spark counts microseconds, so nanoseconds are cut off when a row is shown (never before it is
filtered). A type Spark has no equal for is an error that names the column.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyspark.sql import types as spark

from floeplan.errors import UnsupportedError
from floeplan.spark.filters import quoted

NANOSECONDS = (iceberg.TimestampNanoType, iceberg.TimestamptzNanoType)

_PLAIN: dict[type[iceberg.IcebergType], spark.DataType] = {
    iceberg.BooleanType: spark.BooleanType(),
    iceberg.IntegerType: spark.IntegerType(),
    iceberg.LongType: spark.LongType(),
    iceberg.FloatType: spark.FloatType(),
    iceberg.DoubleType: spark.DoubleType(),
    iceberg.DateType: spark.DateType(),
    iceberg.TimestampType: spark.TimestampNTZType(),
    iceberg.TimestamptzType: spark.TimestampType(),
    iceberg.TimestampNanoType: spark.TimestampNTZType(),
    iceberg.TimestamptzNanoType: spark.TimestampType(),
    iceberg.StringType: spark.StringType(),
    iceberg.UUIDType: spark.StringType(),
    iceberg.BinaryType: spark.BinaryType(),
    iceberg.FixedType: spark.BinaryType(),
    iceberg.UnknownType: spark.NullType(),
}


def spark_type(type_: iceberg.IcebergType, name: str) -> spark.DataType:
    """The Spark type of a column; ``name`` is for the error."""
    match type_:
        case iceberg.DecimalType(precision=precision, scale=scale):
            return spark.DecimalType(precision, scale)
        case iceberg.StructType(fields=fields):
            return spark.StructType(
                [spark.StructField(f.name, spark_type(f.field_type, f"{name}.{f.name}")) for f in fields]
            )
        case iceberg.ListType(element_type=element):
            return spark.ArrayType(spark_type(element, f"{name}.element"))
        case iceberg.MapType(key_type=key, value_type=value):
            return spark.MapType(spark_type(key, f"{name}.key"), spark_type(value, f"{name}.value"))
    if type(type_) not in _PLAIN:
        raise UnsupportedError(
            f"Spark has no type for column {name} of type {type_}; read other columns with columns=[…]",
            context={"column": name, "type": str(type_)},
        )
    return _PLAIN[type(type_)]


def spark_schema(schema: Schema) -> spark.StructType:
    """The schema of the DataFrame that shows these columns."""
    return spark.StructType(
        [spark.StructField(field.name, spark_type(field.field_type, field.name)) for field in schema.fields]
    )


def sql_type(type_: spark.DataType) -> str:
    """A type as Spark SQL writes it, whatever its fields are called."""
    match type_:
        case spark.StructType(fields=fields):
            return f"STRUCT<{', '.join(f'{quoted(field.name)}: {sql_type(field.dataType)}' for field in fields)}>"
        case spark.ArrayType(elementType=element):
            return f"ARRAY<{sql_type(element)}>"
        case spark.MapType(keyType=key, valueType=value):
            return f"MAP<{sql_type(key)}, {sql_type(value)}>"
    return type_.simpleString()


def to_spark_arrow(rows: pa.Table, shape: pa.Schema) -> pa.Table:
    """Rows as Arrow has them for Spark: UUIDs as text, nanoseconds cut to microseconds, everything else as it is."""
    columns = [_shown(column, field.type) for column, field in zip(rows.columns, shape, strict=True)]
    return pa.Table.from_arrays(columns, schema=shape)


def _shown(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    chunks = [_shown_array(chunk, type_) for chunk in column.chunks]
    return pa.chunked_array(chunks, type=type_)


def _shown_array(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if array.type == type_:
        return array
    if isinstance(array, pa.ExtensionArray):
        return _shown_array(_uuid_text(array) if array.type.extension_name == "arrow.uuid" else array.storage, type_)
    if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
        return pc.floor_temporal(array, unit="microsecond").cast(type_)
    if pa.types.is_struct(array.type):
        children = [_shown_array(pc.struct_field(array, [i]), type_.field(i).type) for i in range(type_.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=pc.is_null(array))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        whole = pa.concat_arrays([array.slice(0, 0), array])
        values = _shown_array(whole.values, type_.value_type)
        mask = pc.is_null(whole) if whole.null_count else None
        return pa.ListArray.from_arrays(whole.offsets.cast(pa.int32()), values, type=type_, mask=mask)
    if pa.types.is_map(array.type):
        whole = pa.concat_arrays([array.slice(0, 0), array])
        keys, items = _shown_array(whole.keys, type_.key_type), _shown_array(whole.items, type_.item_type)
        mask = pc.is_null(whole) if whole.null_count else None
        return pa.MapArray.from_arrays(whole.offsets, keys, items, type=type_, mask=mask)
    return array.cast(type_)


def _uuid_text(array: pa.ExtensionArray) -> pa.Array:
    return pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.string())

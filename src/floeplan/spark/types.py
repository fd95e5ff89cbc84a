"""Iceberg types and predicates in Spark's terms.

Rule: as in Iceberg's own Spark reader, UUIDs are strings, fixed is binary, timestamps without a zone are
``timestamp_ntz``. Spark has microseconds, so nanoseconds are truncated when a row is returned, never before it is
filtered. A type without an equivalent is an error that names the column.

Columns of a query are stored by Spark's ANSI store assignment (``spark.sql.storeAssignmentPolicy=ANSI``): numbers to
numbers, any atomic type but binary to string, dates and timestamps to each other, everything else only to its own type.
A column that cannot be assigned is an error before a row is read; a value out of range fails the job, so nothing is
committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyspark.sql import DataFrame, functions
from pyspark.sql import types as spark

from floeplan.errors import TypeMismatchError, UnsupportedError
from floeplan.opaque_types import is_variant
from floeplan.predicate import ir
from floeplan.predicate.ir import CmpOp, Column, IrExpr
from floeplan.predicate.literals import Value, sql_literal

# The predicate IR as Spark SQL, for rows that Spark's own reader reads.
#
# The IR has Spark's row semantics, so every node has an exact text. Literals are written with their type and do not
# depend on the session's time zone. Opaque nodes keep their source text, whose value may depend on the time zone;
# that is why ``spark.read.reader_choice`` gives them to Spark only in a session in UTC, in which Floeplan evaluates
# them, too.


def spark_sql(expr: IrExpr) -> str:
    """The predicate as a Spark SQL expression over the table's current column names."""
    match expr:
        case ir.TrueExpr():
            return "TRUE"
        case ir.FalseExpr():
            return "FALSE"
        case ir.NullExpr():
            return "CAST(NULL AS BOOLEAN)"
        case ir.And(operands=operands):
            return "(" + " AND ".join(map(spark_sql, operands)) + ")"
        case ir.Or(operands=operands):
            return "(" + " OR ".join(map(spark_sql, operands)) + ")"
        case ir.Not(operand=operand):
            return f"(NOT {spark_sql(operand)})"
        case ir.Opaque(text=text):
            return f"({text})"
        case ir.Bounded(piece=piece, negated=negated):
            return f"({'NOT ' if negated else ''}({piece.text}))"
    return _leaf(expr)


def _leaf(expr: IrExpr) -> str:
    negation = "NOT " if getattr(expr, "negated", False) else ""
    match expr:
        case ir.Cmp(column=column, op=op, value=value):
            return f"({_name(column)} {'<>' if op is CmpOp.NE else op} {_literal(column.type, value)})"
        case ir.BloomEq(column=column, value=value):
            return f"({_name(column)} = {_literal(column.type, value)})"
        case ir.Between(column=column, low=low, high=high, inclusive=inclusive):
            above, below = (">=", "<=") if inclusive else (">", "<")
            name, least, most = _name(column), _literal(column.type, low), _literal(column.type, high)
            return f"({name} {above} {least} AND {name} {below} {most})"
        case ir.InList(column=column, values=()) | ir.BloomInList(column=column, values=()):
            return f"({negation}nullif({_name(column)} IS NULL, TRUE))"
        case ir.InList(column=column, values=values) | ir.BloomInList(column=column, values=values):
            listed = ", ".join(_literal(column.type, value) for value in values)
            return f"({_name(column)} {negation}IN ({listed}))"
        case ir.StartsWith(column=column, prefix=prefix):
            return f"({negation}startswith({_name(column)}, {_literal(column.type, prefix)}))"
        case ir.IsNull(column=column):
            return f"({_name(column)} IS {negation}NULL)"
        case ir.IsNaN(column=column):
            return f"({negation}isnan({_name(column)}))"
    raise AssertionError(f"no Spark SQL for {type(expr).__name__}")


def _name(column: Column) -> str:
    return quoted(*column.path)


def quoted(*path: str) -> str:
    """A column path with every name in backticks."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in path)


def unused_name(names: Iterable[str], wanted: str) -> str:
    """``wanted``, with underscores appended until no name begins with it, case-insensitively: for temporary columns."""
    taken = [name.lower() for name in names]
    while any(name.startswith(wanted) for name in taken):
        wanted += "_"
    return wanted


def _literal(type_: iceberg.PrimitiveType, value: Value) -> str:
    match type_:
        case iceberg.IntegerType() | iceberg.LongType():
            fits = isinstance(type_, iceberg.IntegerType) and -(2**31) <= int(value) < 2**31
            return f"{'INT' if fits else 'BIGINT'}('{int(value)}')"
        case iceberg.FloatType() | iceberg.DoubleType():
            return f"DOUBLE('{value!r}')"
        case iceberg.DecimalType(precision=precision, scale=scale) if isinstance(value, Decimal):
            digits = max(precision, len(value.as_tuple().digits))
            return f"CAST('{value:f}' AS DECIMAL({digits}, {scale}))"
        case iceberg.UUIDType() if isinstance(value, bytes):
            return f"'{UUID(bytes=value)}'"
    return sql_literal(type_, value)


# Iceberg types as Spark types.

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
    """The Spark type of a column; ``name`` is for errors."""
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
    if is_variant(type_):
        return spark.VariantType()
    if type(type_) not in _PLAIN:
        raise UnsupportedError(
            f"Spark has no type for column {name} of type {type_}; read other columns with columns=[…]",
            context={"column": name, "type": str(type_)},
        )
    return _PLAIN[type(type_)]


def spark_schema(schema: Schema) -> spark.StructType:
    """The Spark schema of an Iceberg schema."""
    return spark.StructType(
        [spark.StructField(field.name, spark_type(field.field_type, field.name)) for field in schema.fields]
    )


def sql_type(type_: spark.DataType) -> str:
    """A type in Spark SQL, with quoted field names (``simpleString`` does not quote them)."""
    match type_:
        case spark.StructType(fields=fields):
            return f"STRUCT<{', '.join(f'{quoted(field.name)}: {sql_type(field.dataType)}' for field in fields)}>"
        case spark.ArrayType(elementType=element):
            return f"ARRAY<{sql_type(element)}>"
        case spark.MapType(keyType=key, valueType=value):
            return f"MAP<{sql_type(key)}, {sql_type(value)}>"
    return type_.simpleString()


_DEFAULT_SIZES = {"boolean": 1, "integer": 4, "date": 4, "float": 4, "string": 20, "binary": 100, "void": 1}


def default_size(type_: spark.DataType) -> int:
    """The size of a value in bytes by which Spark estimates rows (``DataType.defaultSize`` in the JVM)."""
    match type_:
        case spark.StructType(fields=fields):
            return sum(default_size(field.dataType) for field in fields)
        case spark.ArrayType(elementType=element):
            return default_size(element)
        case spark.MapType(keyType=key, valueType=value):
            return default_size(key) + default_size(value)
        case spark.DecimalType(precision=precision):
            return 8 if precision <= 18 else 16
    return _DEFAULT_SIZES.get(type_.typeName(), 8)


def to_spark_arrow(rows: pa.Table, shape: pa.Schema) -> pa.Table:
    """Rows in the Arrow types of Spark: UUIDs as strings, nanoseconds truncated to microseconds."""
    columns = [
        pa.chunked_array([_to_spark(chunk, field.type) for chunk in column.chunks], type=field.type)
        for column, field in zip(rows.columns, shape, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=shape)


def _to_spark(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if array.type == type_:
        return array
    if isinstance(array, pa.ExtensionArray):
        if array.type.extension_name != "arrow.uuid":
            return _to_spark(array.storage, type_)
        texts = [None if value is None else str(value) for value in array.to_pylist()]
        return _to_spark(pa.array(texts, pa.string()), type_)
    if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
        return pc.floor_temporal(array, unit="microsecond").cast(type_)
    if pa.types.is_struct(array.type):
        names = [field.name for field in type_]
        swapped = (
            names == ["value", "metadata"] and array.type.field(0).name == "metadata"
        )  # Spark's order in a variant
        order = (1, 0) if swapped else range(len(names))
        children = [_to_spark(pc.struct_field(array, [at]), type_.field(i).type) for i, at in enumerate(order)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=pc.is_null(array))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        whole = pa.concat_arrays([array.slice(0, 0), array])  # a copy without offset, so that offsets start at 0
        values = _to_spark(whole.values, type_.value_type)
        mask = pc.is_null(whole) if whole.null_count else None
        return pa.ListArray.from_arrays(whole.offsets.cast(pa.int32()), values, type=type_, mask=mask)
    if pa.types.is_map(array.type):
        whole = pa.concat_arrays([array.slice(0, 0), array])
        keys, items = _to_spark(whole.keys, type_.key_type), _to_spark(whole.items, type_.item_type)
        mask = pc.is_null(whole) if whole.null_count else None
        return pa.MapArray.from_arrays(whole.offsets, keys, items, type=type_, mask=mask)
    return array.cast(type_)


# Store assignment.


def assign_columns(frame: DataFrame, names: Sequence[str], constants: Mapping[str, str], schema: Schema) -> DataFrame:
    """The columns of a query, by position, with these names and the table's types; constants are SQL text."""
    by_position = frame.toDF(*(f"_{position}" for position in range(len(names))))
    types = [field.dataType for field in by_position.schema.fields]
    targets = [spark_type(schema.find_type(name), name) for name in names]
    for name, type_, target in zip(names, types, targets, strict=True):
        if not assignable(type_, target):
            raise TypeMismatchError(
                f"column {name} is {target.simpleString()}, but the query returns {type_.simpleString()}; add a cast",
                context={"column": name, "type": target.simpleString(), "found": type_.simpleString()},
            )
    columns = [functions.col(f"_{at}").cast(target).alias(names[at]) for at, target in enumerate(targets)]
    fixed = [
        functions.expr(text).cast(spark_type(schema.find_type(name), name)).alias(name)
        for name, text in constants.items()
    ]
    return by_position.select(*columns, *fixed)


def assignable(source: spark.DataType, target: spark.DataType) -> bool:
    """Whether values of one type may be stored in a column of another."""
    datetimes = (spark.DateType, spark.TimestampType, spark.TimestampNTZType)
    if source == target or isinstance(source, spark.NullType):
        return True
    match source, target:
        case spark.NumericType(), spark.NumericType():
            return True
        case spark.StructType(), spark.StructType():
            pairs = zip(source.fields, target.fields, strict=False)
            return len(source) == len(target) and all(assignable(a.dataType, b.dataType) for a, b in pairs)
        case spark.ArrayType(), spark.ArrayType():
            return assignable(source.elementType, target.elementType)
        case spark.MapType(), spark.MapType():
            return assignable(source.keyType, target.keyType) and assignable(source.valueType, target.valueType)
        case spark.AtomicType(), spark.StringType():
            return not isinstance(source, spark.BinaryType)
    return isinstance(source, datetimes) and isinstance(target, datetimes)

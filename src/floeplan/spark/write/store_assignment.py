"""Store assignment: the columns of a query cast to the types of the table's columns.

Rule: Spark's ANSI store assignment (``spark.sql.storeAssignmentPolicy=ANSI``): numbers to numbers, any atomic type but
binary to string, dates and timestamps to each other, everything else only to its own type. A value out of range fails
the job, so nothing is committed.

Fail-safe: a column that cannot be assigned is an error that names it, before a row is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema

from floeplan.errors import TypeMismatchError
from floeplan.spark.types import spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType


def assign_columns(frame: DataFrame, names: Sequence[str], constants: Mapping[str, str], schema: Schema) -> DataFrame:
    """The columns of a query, by position, with these names and the table's types; constants are SQL text."""
    from pyspark.sql import functions

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


def assignable(source: DataType, target: DataType) -> bool:
    """Whether values of one type may be stored in a column of another."""
    from pyspark.sql import types

    datetimes = (types.DateType, types.TimestampType, types.TimestampNTZType)
    if source == target or isinstance(source, types.NullType):
        return True
    match source, target:
        case types.NumericType(), types.NumericType():
            return True
        case types.StructType(), types.StructType():
            pairs = zip(source.fields, target.fields, strict=False)
            return len(source) == len(target) and all(assignable(a.dataType, b.dataType) for a, b in pairs)
        case types.ArrayType(), types.ArrayType():
            return assignable(source.elementType, target.elementType)
        case types.MapType(), types.MapType():
            return assignable(source.keyType, target.keyType) and assignable(source.valueType, target.valueType)
        case types.AtomicType(), types.StringType():
            return not isinstance(source, types.BinaryType)
    return isinstance(source, datetimes) and isinstance(target, datetimes)

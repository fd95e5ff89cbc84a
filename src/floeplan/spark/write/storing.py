"""Rows of a query in the columns of a table, stored as Spark stores them.

Rule: Spark's ANSI store assignment: numbers into numbers, anything of a single value into text, dates and timestamps
into each other, everything else only into its own type; a value that does not fit fails the job, so nothing of it is
committed. Fail-safe: what may not be assigned is an error that names the column, before a row is read.
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


def stored_frame(frame: DataFrame, names: Sequence[str], constants: Mapping[str, str], schema: Schema) -> DataFrame:
    """The columns of a query, by their order, under these names and in the table's types; constants are SQL text."""
    from pyspark.sql import functions

    given = frame.toDF(*(f"_{position}" for position in range(len(names))))
    types = [field.dataType for field in given.schema.fields]
    wanted = [spark_type(schema.find_type(name), name) for name in names]
    for name, type_, target in zip(names, types, wanted, strict=True):
        if not assignable(type_, target):
            raise TypeMismatchError(
                f"column {name} is {target.simpleString()}, and the query has {type_.simpleString()} there; cast it",
                context={"column": name, "type": target.simpleString(), "found": type_.simpleString()},
            )
    columns = [functions.col(f"_{at}").cast(target).alias(names[at]) for at, target in enumerate(wanted)]
    fixed = [
        functions.expr(text).cast(spark_type(schema.find_type(name), name)).alias(name)
        for name, text in constants.items()
    ]
    return given.select(*columns, *fixed)


def assignable(source: DataType, target: DataType) -> bool:
    from pyspark.sql import types

    days = (types.DateType, types.TimestampType, types.TimestampNTZType)
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
    return isinstance(source, days) and isinstance(target, days)

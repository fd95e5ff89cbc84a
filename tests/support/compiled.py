"""A schema with a column of every type, and predicates compiled for it."""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.ir import IrExpr

SCHEMA = Schema(
    NestedField(1, "i", IntegerType()),
    NestedField(2, "l", LongType()),
    NestedField(3, "d", DecimalType(9, 2)),
    NestedField(4, "f", FloatType()),
    NestedField(5, "db", DoubleType()),
    NestedField(6, "s", StringType()),
    NestedField(7, "b", BooleanType()),
    NestedField(8, "dt", DateType()),
    NestedField(9, "ts", TimestamptzType()),
    NestedField(10, "nt", TimestampType()),
    NestedField(11, "ns", TimestampNanoType()),
    NestedField(12, "tm", TimeType()),
    NestedField(13, "u", UUIDType()),
    NestedField(14, "fx", FixedType(4)),
    NestedField(15, "bin", BinaryType()),
    NestedField(16, "big", DecimalType(38, 10)),
    NestedField(17, "a.b", IntegerType()),
    NestedField(18, "st", StructType(NestedField(100, "x", IntegerType()), NestedField(101, "y z", StringType()))),
    NestedField(19, "arr", ListType(102, IntegerType())),
    NestedField(20, "m", MapType(103, StringType(), 104, IntegerType())),
    NestedField(21, "date", DateType()),
    NestedField(22, "comment", StringType()),
)


def compiled(sql: str) -> IrExpr:
    result = compile_predicate(sql, SCHEMA)
    assert result.errors == ()
    assert result.prunable == result.residual == result.predicate
    return result.predicate

"""What the stored values of a leaf column mean: physical types, type annotations and the Iceberg type.

Parquet has two generations of type annotations, converted types and logical types; both become one ``Annotation``.

Types outside Iceberg map to a wider type that holds all their values: small and unsigned integers to int or long,
unsigned 64-bit to decimal(20, 0), half floats to float, INT96 to timestamptz, times to microseconds. A leaf that no
Iceberg type fits has none and cannot be used in predicates.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple

from pyiceberg import types as iceberg

from floeplan.parquet.footer.thrift import Struct, integer


class Physical(IntEnum):
    """Parquet's physical types."""

    BOOLEAN = 0
    INT32 = 1
    INT64 = 2
    INT96 = 3
    FLOAT = 4
    DOUBLE = 5
    BYTE_ARRAY = 6
    FIXED_LEN_BYTE_ARRAY = 7


class Repetition(IntEnum):
    """How often a node occurs in its parent."""

    REQUIRED = 0
    OPTIONAL = 1
    REPEATED = 2


class Kind(StrEnum):
    """The kind of a logical or converted type."""

    NONE = "none"
    STRING = "string"
    ENUM = "enum"
    JSON = "json"
    BSON = "bson"
    DECIMAL = "decimal"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    INTEGER = "integer"
    UUID = "uuid"
    FLOAT16 = "float16"
    ALWAYS_NULL = "always null"
    LIST = "list"
    MAP = "map"
    UNKNOWN = "unknown"


class Annotation(NamedTuple):
    """A logical or converted type; ``unit`` is the nanoseconds of one tick of a time or timestamp."""

    kind: Kind = Kind.NONE
    unit: int = 0
    utc: bool = False
    bits: int = 0
    signed: bool = True
    precision: int = 0
    scale: int = 0


_UNITS = {1: 1_000_000, 2: 1_000, 3: 1}
"""Nanoseconds of the members of Parquet's TimeUnit."""
_LOGICAL = {
    1: Kind.STRING,
    2: Kind.MAP,
    3: Kind.LIST,
    4: Kind.ENUM,
    6: Kind.DATE,
    11: Kind.ALWAYS_NULL,
    12: Kind.JSON,
    13: Kind.BSON,
    14: Kind.UUID,
    15: Kind.FLOAT16,
}
_CONVERTED = {
    0: Annotation(Kind.STRING),
    1: Annotation(Kind.MAP),
    2: Annotation(Kind.MAP),
    3: Annotation(Kind.LIST),
    4: Annotation(Kind.ENUM),
    6: Annotation(Kind.DATE),
    7: Annotation(Kind.TIME, unit=1_000_000, utc=True),
    8: Annotation(Kind.TIME, unit=1_000, utc=True),
    9: Annotation(Kind.TIMESTAMP, unit=1_000_000, utc=True),
    10: Annotation(Kind.TIMESTAMP, unit=1_000, utc=True),
    **{11 + i: Annotation(Kind.INTEGER, bits=8 << i, signed=False) for i in range(4)},
    **{15 + i: Annotation(Kind.INTEGER, bits=8 << i) for i in range(4)},
    19: Annotation(Kind.JSON),
    20: Annotation(Kind.BSON),
}


def annotation_of(element: Struct) -> Annotation:
    """The annotation of a schema element: its logical type if known, else its converted type."""
    logical = element.get(10)
    if isinstance(logical, dict) and len(logical) == 1:
        ((field, details),) = logical.items()
        if not isinstance(details, dict):
            return Annotation(Kind.UNKNOWN)
        if field == 5:
            return Annotation(Kind.DECIMAL, precision=integer(details, 2, 0), scale=integer(details, 1, 0))
        if field in (7, 8):
            unit = details.get(2)
            ticks = _UNITS.get(next(iter(unit), 0), 0) if isinstance(unit, dict) else 0
            kind = Kind.TIME if field == 7 else Kind.TIMESTAMP
            return Annotation(kind, unit=ticks, utc=details.get(1) is True) if ticks else Annotation(Kind.UNKNOWN)
        if field == 10:
            return Annotation(Kind.INTEGER, bits=integer(details, 1, 0), signed=details.get(2) is True)
        return Annotation(_LOGICAL.get(field, Kind.UNKNOWN))
    # A logical type of a later Parquet version without a converted type: the meaning of the values is unknown.
    if 6 not in element:
        return Annotation(Kind.UNKNOWN if 10 in element else Kind.NONE)
    converted = integer(element, 6)
    if converted == 5:
        return Annotation(Kind.DECIMAL, precision=integer(element, 8, 0), scale=integer(element, 7, 0))
    return _CONVERTED.get(converted, Annotation(Kind.UNKNOWN))


_UNANNOTATED = {
    Physical.BOOLEAN: iceberg.BooleanType(),
    Physical.INT96: iceberg.TimestamptzType(),  # Impala, Hive and older Spark versions store an instant in UTC
    Physical.FLOAT: iceberg.FloatType(),
    Physical.DOUBLE: iceberg.DoubleType(),
}
"""The types of values whose meaning does not depend on the annotation."""


def iceberg_type(physical: Physical, annotation: Annotation, type_length: int) -> iceberg.PrimitiveType | None:
    """The Iceberg type that holds every value of a leaf, or ``None``."""
    kind = annotation.kind
    if physical in _UNANNOTATED:
        return _UNANNOTATED[physical]
    if kind is Kind.DECIMAL:
        precision, scale = annotation.precision, annotation.scale
        return iceberg.DecimalType(precision, scale) if 0 < precision <= 38 and 0 <= scale <= precision else None
    if physical is Physical.BYTE_ARRAY:
        if kind in (Kind.STRING, Kind.ENUM, Kind.JSON):
            return iceberg.StringType()
        return iceberg.BinaryType() if kind in (Kind.NONE, Kind.BSON) else None
    if physical is Physical.FIXED_LEN_BYTE_ARRAY:
        if kind is Kind.UUID and type_length == 16:
            return iceberg.UUIDType()
        if kind is Kind.FLOAT16 and type_length == 2:
            return iceberg.FloatType()
        return iceberg.FixedType(type_length) if kind is Kind.NONE and type_length > 0 else None
    wide = physical is Physical.INT64
    match kind:
        case Kind.INTEGER if annotation.bits == 64 and not annotation.signed:
            return iceberg.DecimalType(20, 0) if wide else None
        case Kind.INTEGER if annotation.bits == 32 and not annotation.signed:
            return iceberg.LongType()
        case Kind.INTEGER | Kind.NONE | Kind.ALWAYS_NULL:
            return iceberg.LongType() if wide else iceberg.IntegerType()
        case Kind.DATE:
            return None if wide else iceberg.DateType()
        case Kind.TIME:
            return iceberg.TimeType()
        case Kind.TIMESTAMP if wide and annotation.unit == 1:
            return iceberg.TimestamptzNanoType() if annotation.utc else iceberg.TimestampNanoType()
        case Kind.TIMESTAMP if wide:
            return iceberg.TimestamptzType() if annotation.utc else iceberg.TimestampType()
    return None

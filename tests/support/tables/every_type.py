"""A schema with a column of every type, including nested types, and rows with edge cases."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, VoidTransform
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
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.scan.projection import arrow_schema
from tests.support.tables.layouts import Layout

_POINT = StructType(NestedField(31, "x", DoubleType(), required=True), NestedField(32, "note", StringType()))
FIELDS = (
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "flag", BooleanType()),
    NestedField(3, "number", IntegerType()),
    NestedField(4, "real", FloatType()),
    NestedField(5, "double", DoubleType()),
    NestedField(6, "small_price", DecimalType(9, 2)),
    NestedField(7, "price", DecimalType(18, 4)),
    NestedField(8, "wide", DecimalType(38, 6)),
    NestedField(9, "day", DateType()),
    NestedField(11, "at", TimestampType()),
    NestedField(12, "instant", TimestamptzType()),
    NestedField(13, "text", StringType()),
    NestedField(14, "bytes", BinaryType()),
    NestedField(20, "tags", ListType(21, StringType(), False)),
    NestedField(22, "scores", MapType(23, StringType(), 24, DoubleType(), False)),
    NestedField(30, "point", _POINT),
    NestedField(40, "path", ListType(41, _POINT.model_copy(), False)),
)
BEYOND_SPARK = (
    NestedField(50, "time", TimeType()),
    NestedField(51, "key", UUIDType()),
    NestedField(52, "code", FixedType(3)),
    NestedField(53, "ns", TimestampNanoType()),
    NestedField(54, "instant_ns", TimestamptzNanoType()),
)


def _renumbered(fields: tuple[NestedField, ...]) -> tuple[NestedField, ...]:
    """Assign new field ids, for the struct inside the list."""
    inner = StructType(NestedField(42, "x", DoubleType(), required=True), NestedField(43, "note", StringType()))
    return tuple(
        NestedField(40, "path", ListType(41, inner, False)) if field.field_id == 40 else field for field in fields
    )


SPARK_SCHEMA = Schema(*_renumbered(FIELDS))
SCHEMA = Schema(*_renumbered(FIELDS), *BEYOND_SPARK)

_FULL: dict[str, Any] = {
    "id": 1,
    "flag": True,
    "number": -(2**31),
    "real": -0.0,
    "double": math.nan,
    "small_price": Decimal("-1234567.89"),
    "price": Decimal("99999999999999.9999"),
    "wide": Decimal("-99999999999999999999999999999999.999999"),
    "day": date(1969, 12, 31),
    "time": time(23, 59, 59, 999999),
    "at": datetime(1969, 12, 31, 23, 59, 59, 999999),
    "instant": datetime(2262, 4, 12, tzinfo=UTC),
    "text": "é😀" * 20,
    "bytes": b"\xff" * 20,
    "tags": ["a", None, ""],
    "scores": [("a", math.nan), ("b", None), ("c", -0.0)],
    "point": {"x": 1.5, "note": "n" * 5000},
    "path": [{"x": math.inf, "note": None}, None, {"x": -1.0, "note": "q"}],
    "key": uuid.UUID(bytes=b"\xff" * 16).bytes,
    "code": b"abc",
    "ns": 1,
    "instant_ns": -1,
}
_OTHER = _FULL | {
    "id": 2,
    "flag": False,
    "number": 2**31 - 1,
    "real": 3.5,
    "double": -1e300,
    "text": "",
    "bytes": b"",
    "tags": [],
    "scores": [],
    "point": {"x": math.nan, "note": None},
    "path": [],
    "key": bytes(16),
    "ns": -(2**62),
}
_NULLS: dict[str, Any] = dict.fromkeys(_FULL) | {"id": 3}


def rows(schema: Schema = SCHEMA) -> pa.Table:
    """A full row, another one, and one of nulls."""
    layout = arrow_schema(schema)
    columns = [
        pa.array([row[field.name] for row in (_FULL, _OTHER, _NULLS)], storage(field.type)).cast(field.type)
        for field in layout
    ]
    return pa.Table.from_arrays(columns, schema=layout)


def storage(type_: pa.DataType) -> pa.DataType:
    """The Arrow type for the Python values."""
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


# --- a spec with a field of every type a partition value can have, and a value of each
# Type, the value in the columns of entries, and as PyIceberg reads it.
VALUES: dict[str, tuple[Any, Any, Any]] = {
    "a flag": (BooleanType(), 1, True),
    "1st": (IntegerType(), -(2**31), -(2**31)),
    "big": (LongType(), 2**63 - 1, 2**63 - 1),
    "price": (DecimalType(9, 2), -12345, Decimal("-123.45")),
    "price2": (DecimalType(9, 2), 1, Decimal("0.01")),
    "wide": (DecimalType(38, 6), Decimal("-1.000001"), Decimal("-1.000001")),
    "digits": (DecimalType(18, 0), -(10**18) + 1, Decimal(-(10**18) + 1)),
    "single": (FloatType(), 1.5, 1.5),
    "double": (DoubleType(), -0.0, -0.0),
    "text": (StringType(), "é😀", "é😀"),
    "bytes": (BinaryType(), b"\x00\xff", b"\x00\xff"),
    "code": (FixedType(3), b"abc", b"abc"),
    "key": (UUIDType(), bytes(range(16)), uuid.UUID(bytes=bytes(range(16)))),
    "key2": (UUIDType(), b"\xff" * 16, uuid.UUID(bytes=b"\xff" * 16)),
    "day": (DateType(), -1, -1),
    "time": (TimeType(), 1, 1),
    "ts": (TimestampType(), -1, -1),
    "tstz": (TimestamptzType(), 7, 7),
    "ns": (TimestampNanoType(), 7, 7),
}
COLUMNS = [NestedField(at + 1, name, type_) for at, (name, (type_, _, _)) in enumerate(VALUES.items())]
EVERY_TYPE = PartitionSpec(
    *(PartitionField(column.field_id, 999 + column.field_id, IdentityTransform(), column.name) for column in COLUMNS),
    PartitionField(2, 1100, VoidTransform(), "gone"),
    spec_id=3,
)
TYPES = Layout(Schema(*COLUMNS), (PartitionSpec(spec_id=0), EVERY_TYPE), version=3)


def typed_row(**more: Any) -> dict[str, Any]:
    return {"spec_id": 3} | {f"partition.{1000 + at}": value for at, (_, value, _) in enumerate(VALUES.values())} | more

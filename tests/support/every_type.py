"""A spec with a field of every type a partition value can have, and a value of each."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

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
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tests.support.written_tables import Layout

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

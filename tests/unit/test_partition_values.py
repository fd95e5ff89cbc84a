"""Partition values of single files: human-readable, and as constants for missing columns."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyiceberg import transforms as pt
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    UUIDType,
)

from floeplan.partition.union import UnionPartitionType
from floeplan.scan.projection import PartitionNames

pytestmark = pytest.mark.unit


def names(transform: Any, type_: PrimitiveType) -> PartitionNames:
    spec = PartitionSpec(PartitionField(1, 1000, transform, "p"), spec_id=0)
    union = UnionPartitionType.of([spec], {1: (type_,)})
    return PartitionNames(union, {1000: union.spec(0).fields[0].column.type})


@pytest.mark.parametrize(
    ("transform", "type_", "stored", "shown"),
    [
        (pt.IdentityTransform(), StringType(), "eu", "eu"),
        (pt.IdentityTransform(), LongType(), 7, 7),
        (pt.IdentityTransform(), BooleanType(), 1, True),
        (pt.IdentityTransform(), DoubleType(), float("nan"), "NaN"),
        (pt.IdentityTransform(), DecimalType(9, 2), 1420, "14.20"),
        (pt.IdentityTransform(), DateType(), 19783, "2024-03-01"),
        (pt.IdentityTransform(), DateType(), 2**31 - 1, 2**31 - 1),
        (pt.IdentityTransform(), BinaryType(), b"\x00\xff", "00FF"),
        (pt.IdentityTransform(), UUIDType(), bytes(15) + b"\x07", "00000000-0000-0000-0000-000000000007"),
        (pt.DayTransform(), TimestampType(), 19783, "2024-03-01"),
        (pt.HourTransform(), TimestampType(), 24 * 19783 + 5, "2024-03-01-05"),
        (pt.MonthTransform(), TimestampType(), 650, "2024-03"),
        (pt.YearTransform(), TimestampType(), 54, "2024"),
        (pt.DayTransform(), TimestampType(), 2**31 - 1, 2**31 - 1),
        (pt.HourTransform(), TimestampType(), -(2**31), -(2**31)),
        (pt.BucketTransform(4), LongType(), 3, 3),
        (pt.VoidTransform(), LongType(), 3, None),
        (pt.IdentityTransform(), StringType(), None, None),
    ],
)
def test_human_readable_values(transform: Any, type_: PrimitiveType, stored: Any, shown: Any) -> None:
    assert names(transform, type_).readable(0, {"partition.1000": stored}) == {"p": shown}


def test_only_identity_gives_back_the_column() -> None:
    assert names(pt.IdentityTransform(), DecimalType(9, 2)).identities(0, {"partition.1000": 1420}) == {
        1: Decimal("14.20")
    }
    assert names(pt.IdentityTransform(), StringType()).identities(0, {"partition.1000": None}) == {1: None}
    assert names(pt.BucketTransform(4), StringType()).identities(0, {"partition.1000": 3}) == {}

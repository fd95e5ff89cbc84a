"""Partition values recovered from bounds: proven, or refused with a reason."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from pyiceberg import transforms as pt
from pyiceberg.partitioning import PartitionField
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    UnknownType,
    UUIDType,
)

from floeplan.partition.fields import BoundField, bind_field
from floeplan.partition.recover import Obstacle, Recovered, recover, recover_tuples
from floeplan.partition.transforms import from_physical
from floeplan.predicate.stats import ColumnStats, StatsTable
from tests.support.oracles.statistics import Summary, column_stats
from tests.support.oracles.values import decimal

pytestmark = pytest.mark.unit

DAY = 86_400_000_000


def field(transform: Any, *types: PrimitiveType) -> BoundField:
    return bind_field(PartitionField(source_id=1, field_id=1000, transform=transform, name="p"), {1: types})


def recovered(transform: Any, type_: PrimitiveType, *summaries: Summary) -> Recovered:
    return recover(field(transform, type_), column_stats(type_, list(summaries)), len(summaries))


def value(result: Recovered, type_: PrimitiveType, row: int = 0) -> Any:
    assert result.recovered[row]
    if result.is_null[row]:
        return None
    found = result.values[row]
    return from_physical(type_, found.item() if isinstance(found, np.generic) else found.as_py())


def spanning(lower: Any, upper: Any, nulls: int = 0, nans: int = 0) -> Summary:
    return Summary(10, nulls, nans, lower, upper)


@pytest.mark.parametrize(
    ("transform", "type_", "lower", "upper", "expected"),
    [
        (pt.DayTransform(), TimestampType(), 5 * DAY, 6 * DAY - 1, 5),
        (pt.DayTransform(), TimestampType(), -DAY, -1, -1),
        (pt.DayTransform(), DateType(), 7, 7, 7),
        (pt.HourTransform(), TimestampNanoType(), -1, -1, -1),
        (pt.MonthTransform(), DateType(), -31, -1, -1),
        (pt.YearTransform(), DateType(), 0, 364, 0),
        (pt.TruncateTransform(10), IntegerType(), -10, -1, -10),
        (pt.TruncateTransform(50), DecimalType(9, 2), Decimal("-0.50"), Decimal("-0.01"), Decimal("-0.50")),
        (pt.TruncateTransform(50), DecimalType(38, 2), decimal(10**30, 2), decimal(10**30 + 49, 2), decimal(10**30, 2)),
        (pt.IdentityTransform(), StringType(), "eu", "eu", "eu"),
        (pt.IdentityTransform(), DoubleType(), 1.5, 1.5, 1.5),
        (pt.TruncateTransform(2), StringType(), "😀xa", "😀xb", "😀x"),
        (pt.TruncateTransform(2), BinaryType(), b"\xff\x00", b"\xff\x00\x05", b"\xff\x00"),
        (pt.TruncateTransform(5), StringType(), "eu", "eu", "eu"),
    ],
    ids=str,
)
def test_a_value_is_recovered_when_both_bounds_have_it(
    transform: Any, type_: PrimitiveType, lower: Any, upper: Any, expected: Any
) -> None:
    result = recovered(transform, type_, spanning(lower, upper))
    assert value(result, transform.result_type(type_)) == expected


def test_truncated_string_bounds_still_prove_a_shorter_prefix() -> None:
    """Bounds truncated to 16 characters: all values between them start with the same four."""
    result = recovered(pt.TruncateTransform(4), StringType(), spanning("eu-west-customer", "eu-west-customes"))
    assert value(result, StringType()) == "eu-w"


@pytest.mark.parametrize(
    ("transform", "type_", "summary", "obstacle"),
    [
        (pt.DayTransform(), TimestampType(), spanning(5 * DAY, 6 * DAY), Obstacle.SPANS),
        (pt.IdentityTransform(), LongType(), spanning(1, 2), Obstacle.SPANS),
        (pt.DayTransform(), TimestampType(), spanning(0, 0, nulls=1), Obstacle.NULLS),
        (pt.DayTransform(), TimestampType(), spanning(0, 0, nulls=-1), Obstacle.NULLS),
        (pt.IdentityTransform(), DoubleType(), spanning(1.0, 1.0, nans=1), Obstacle.NAN),
        (pt.IdentityTransform(), DoubleType(), spanning(1.0, 1.0, nans=-1), Obstacle.NAN),
        (pt.IdentityTransform(), DoubleType(), spanning(-0.0, 0.0), Obstacle.SPANS),
        (pt.IdentityTransform(), DoubleType(), spanning(0.0, 0.0), Obstacle.SPANS),
        (pt.DayTransform(), TimestampType(), spanning(0, None), Obstacle.MISSING_STATS),
        (pt.DayTransform(), TimestampType(), spanning(None, 0), Obstacle.MISSING_STATS),
        (pt.DayTransform(), TimestampType(), spanning(1, 0), Obstacle.MISSING_STATS),
        (pt.BucketTransform(4), LongType(), spanning(1, 2), Obstacle.BUCKET),
        (pt.IdentityTransform(), StringType(), spanning("eu-west-customer", "eu-west-customes"), Obstacle.TRUNCATED),
        (pt.TruncateTransform(20), StringType(), spanning("eu-west-customer", "eu-west-customes"), Obstacle.TRUNCATED),
        (pt.TruncateTransform(20), BinaryType(), spanning(b"\x01\x02", b"\x01\x03"), Obstacle.TRUNCATED),
        (pt.IdentityTransform(), StringType(), spanning("stra\u00df", "stra\u00e0"), Obstacle.TRUNCATED),
        (pt.IdentityTransform(), StringType(), spanning("stra\u00bf", "stra\u00c0"), Obstacle.TRUNCATED),
        (pt.IdentityTransform(), StringType(), spanning("region-1", "region-7"), Obstacle.SPANS),
        (pt.IdentityTransform(), BinaryType(), spanning(b"\x01\xbf", b"\x01\xf0"), Obstacle.SPANS),
        (pt.IdentityTransform(), StringType(), spanning("eu", "us"), Obstacle.SPANS),
        (pt.TruncateTransform(3), StringType(), spanning("eu", "eus"), Obstacle.SPANS),
        (pt.TruncateTransform(10), IntegerType(), spanning(-(2**31), -(2**31)), Obstacle.OUT_OF_RANGE),
        (pt.TruncateTransform(10), LongType(), spanning(-(2**63), -(2**63)), Obstacle.OUT_OF_RANGE),
        (
            pt.TruncateTransform(50),
            DecimalType(38, 0),
            spanning(decimal(1 - 10**38, 0), decimal(1 - 10**38, 0)),
            Obstacle.OUT_OF_RANGE,
        ),
        (pt.HourTransform(), TimestampType(), spanning(2**63 - 1, 2**63 - 1), Obstacle.OUT_OF_RANGE),
        (pt.UnknownTransform("zorder"), LongType(), spanning(1, 1), Obstacle.UNKNOWN_TRANSFORM),
        (pt.IdentityTransform(), UnknownType(), spanning(1, 1), Obstacle.UNKNOWN_TRANSFORM),
        (pt.HourTransform(), DateType(), spanning(1, 1), Obstacle.UNKNOWN_TRANSFORM),
    ],
    ids=str,
)
def test_unproven_values_are_refused_with_a_reason(
    transform: Any, type_: PrimitiveType, summary: Summary, obstacle: Obstacle
) -> None:
    result = recovered(transform, type_, summary)
    assert Obstacle(result.obstacle[0]) is obstacle
    assert not result.recovered[0]


def test_a_single_point_proves_a_bucket() -> None:
    """For example, files of an identity spec that move to a bucket on the same column."""
    bucket = pt.BucketTransform(16)
    result = recovered(bucket, LongType(), spanning(34, 34), spanning(34, 35), spanning(35, 35))
    assert result.recovered.tolist() == [True, False, True]
    assert [value(result, IntegerType(), row) for row in (0, 2)] == [3, 5]
    names = recovered(bucket, StringType(), spanning("iceberg", "iceberg"), spanning(None, None))
    assert value(names, IntegerType()) == 1210000089 % 16
    assert Obstacle(names.obstacle[1]) is Obstacle.MISSING_STATS
    ids = recovered(bucket, UUIDType(), spanning(bytes(16), bytes(16)))
    assert value(ids, IntegerType()) == bucket.transform(UUIDType())(bytes(16))


def test_a_column_of_nulls_has_the_null_partition() -> None:
    result = recovered(pt.BucketTransform(4), LongType(), Summary(3, 3, 0), Summary(3, 2, 0, 1, 1))
    assert value(result, IntegerType()) is None
    assert result.recovered.tolist() == [True, False]
    assert result.is_null.tolist() == [True, False]


def test_void_is_null_for_every_file() -> None:
    result = recover(field(pt.VoidTransform(), LongType()), None, 2)
    assert result.recovered.all()
    assert result.is_null.all()


def test_no_statistics_recover_nothing() -> None:
    result = recover(field(pt.DayTransform(), TimestampType()), None, 2)
    assert result.obstacle.tolist() == [Obstacle.MISSING_STATS] * 2
    everything = np.ones(2, dtype=np.bool_)
    unbounded = ColumnStats(~everything, ~everything, everything)
    assert not recover(field(pt.DayTransform(), TimestampType()), unbounded, 2).recovered.any()


def test_a_file_without_rows_is_not_recovered() -> None:
    assert not recovered(pt.DayTransform(), TimestampType(), Summary(0, 0, 0)).recovered.any()


def test_tuples_are_recovered_field_by_field() -> None:
    fields = [field(pt.DayTransform(), TimestampType())]
    other = PartitionField(source_id=2, field_id=1001, transform=pt.IdentityTransform(), name="r")
    fields.append(bind_field(other, {2: (StringType(),)}))
    stats = StatsTable(1, {1: column_stats(TimestampType(), [spanning(0, 5)])})
    result = recover_tuples(fields, stats)
    assert {key: part.recovered.tolist() for key, part in result.items()} == {1000: [True], 1001: [False]}


def test_a_recovered_day_is_the_true_one_where_java_stores_another() -> None:
    """1969-12-31T00:00:00.999999: Iceberg Java writes day -2, the specification says -1."""
    micros = -86_399_000_001
    assert value(recovered(pt.DayTransform(), TimestampType(), spanning(micros, micros)), DateType()) == -1

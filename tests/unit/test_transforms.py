"""Partition transforms against PyIceberg, the specification's vectors, and values that other writers get wrong."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg import transforms as pt
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from floeplan.errors import UnsupportedError
from floeplan.partition.transforms import apply, apply_vector, can_apply, result_type
from tests.support.oracles.statistics import bound
from tests.support.oracles.values import (
    CASES,
    awkward_values,
    decimal,
    edges,
    iceberg_java,
    specified,
    toward_zero,
    unscaled_of,
)

pytestmark = pytest.mark.unit

SPECIFIED_HASHES = [
    (IntegerType(), 34, 2017239379),
    (LongType(), 34, 2017239379),
    (DecimalType(9, 2), Decimal("14.20"), -500754589),
    (DateType(), 17486, -653330422),
    (TimeType(), 81068000000, -662762989),
    (TimestampType(), 1510871468000000, -2047944441),
    (TimestamptzType(), 1510871468000000, -2047944441),
    (TimestampNanoType(), 1510871468000001001, -1207196810),
    (StringType(), "iceberg", 1210000089),
    (UUIDType(), UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, 1488055340),
    (FixedType(4), b"\x00\x01\x02\x03", -188683207),
    (BinaryType(), b"\x00\x01\x02\x03", -188683207),
]


@pytest.mark.parametrize(("type_", "value", "hash_"), SPECIFIED_HASHES, ids=str)
def test_buckets_are_the_specifications_hashes(type_: PrimitiveType, value: Any, hash_: int) -> None:
    for count in (1, 7, 16, 2**31 - 1):
        assert apply(pt.BucketTransform(count), type_, value) == (hash_ & 0x7FFFFFFF) % count


def test_buckets_do_not_change_when_a_source_is_promoted() -> None:
    bucket = pt.BucketTransform(1000)
    assert apply(bucket, IntegerType(), -5) == apply(bucket, LongType(), -5)
    assert apply(bucket, DecimalType(4, 2), Decimal("1.10")) == apply(bucket, DecimalType(38, 2), Decimal("1.10"))


def test_nanoseconds_fall_into_the_bucket_of_their_microsecond() -> None:
    bucket = pt.BucketTransform(1000)
    for micros in (-1, 0, 1510871468000001):
        assert apply(bucket, TimestampNanoType(), micros * 1000 + 999) == apply(bucket, TimestampType(), micros)


@pytest.mark.parametrize(("transform", "type_"), CASES, ids=str)
def test_single_values_and_vectors_agree_with_the_reference(transform: Any, type_: PrimitiveType) -> None:
    values = [*edges(type_), *awkward_values(transform, type_)]
    labels = [specified(transform, type_, value) for value in values]
    assert list(map(repr, (apply(transform, type_, value) for value in values))) == list(map(repr, labels))
    fitting = [(value, label) for value, label in zip(values, labels, strict=True) if fits(type_, label)]
    vector = apply_vector(transform, type_, bound(type_, [value for value, _ in fitting]).values)
    assert listed(vector) == listed(bound(result_type(transform, type_), [label for _, label in fitting]).values)


def fits(type_: PrimitiveType, label: Any) -> bool:
    """Whether a vector can hold a label."""
    if isinstance(type_, DecimalType) and isinstance(label, Decimal):
        return abs(unscaled_of(label, type_.scale)) < 10**type_.precision
    return not isinstance(type_, LongType) or label >= -(2**63)


def listed(vector: Any) -> list[str]:
    return list(map(repr, vector.tolist()))


@pytest.mark.parametrize("transform", [pt.YearTransform(), pt.MonthTransform(), pt.DayTransform(), pt.HourTransform()])
@pytest.mark.parametrize("type_", [TimestampType(), TimestampNanoType()], ids=str)
def test_time_transforms_are_pyicebergs_within_its_calendar(transform: Any, type_: PrimitiveType) -> None:
    for value in awkward_values(transform, type_):
        assert apply(transform, type_, value) == transform.transform(type_)(value)


def test_time_before_1970_rounds_down() -> None:
    assert apply(pt.DayTransform(), TimestampType(), -1) == -1
    assert apply(pt.HourTransform(), TimestampNanoType(), -1) == -1
    assert apply(pt.MonthTransform(), DateType(), -31) == -1
    assert apply(pt.MonthTransform(), DateType(), -32) == -2
    assert apply(pt.YearTransform(), DateType(), -365) == -1
    assert apply(pt.YearTransform(), DateType(), -366) == -2


def test_the_reference_contains_the_faults_of_java_writers() -> None:
    """1969-12-31T00:00:00.999999 is in day -1 and hour -24; Java 1.12 writes -2 and -25, 0.10 wrote 0 and -23."""
    micros = -86_399_000_001
    assert apply(pt.DayTransform(), TimestampType(), micros) == -1
    assert iceberg_java(pt.DayTransform(), TimestampType(), micros) == -2
    assert toward_zero(pt.DayTransform(), TimestampType(), micros) == 0
    assert apply(pt.HourTransform(), TimestampType(), micros) == -24
    assert iceberg_java(pt.HourTransform(), TimestampType(), micros) == -25
    assert iceberg_java(pt.DayTransform(), TimestampType(), micros + 1) == -1
    assert iceberg_java(pt.DayTransform(), TimestampType(), micros - 1) == -1


def test_truncation_counts_code_points_not_bytes_or_utf16_units() -> None:
    truncate = pt.TruncateTransform(2)
    assert apply(truncate, StringType(), "😀xé") == "😀x"
    assert apply_vector(truncate, StringType(), pa.array(["😀xé", "é", ""])).to_pylist() == ["😀x", "é", ""]


def test_truncation_rounds_down_and_does_not_wrap() -> None:
    assert apply(pt.TruncateTransform(10), IntegerType(), -1) == -10
    assert apply(pt.TruncateTransform(10), IntegerType(), -(2**31)) == -2147483650
    assert apply(pt.TruncateTransform(50), DecimalType(9, 2), Decimal("10.65")) == Decimal("10.50")
    assert apply(pt.TruncateTransform(50), DecimalType(9, 2), Decimal("-10.65")) == Decimal("-11.00")


def test_wide_decimals_truncate_in_vectors_and_are_null_where_they_leave_their_type() -> None:
    type_ = DecimalType(38, 2)
    values = [decimal(n, 2) for n in (-7, 7, 10**30 + 7, 1 - 10**38)] + [None]
    result = apply_vector(pt.TruncateTransform(5), type_, pa.array(values, pa.decimal128(38, 2)))
    assert result.to_pylist() == [decimal(n, 2) for n in (-10, 5, 10**30 + 5)] + [None, None]


def test_null_maps_to_null_and_void_maps_everything_to_null() -> None:
    assert apply(pt.BucketTransform(3), IntegerType(), None) is None
    assert apply(pt.VoidTransform(), IntegerType(), 5) is None


def test_result_types() -> None:
    assert result_type(pt.DayTransform(), TimestampType()) == DateType()
    assert result_type(pt.HourTransform(), TimestampType()) == IntegerType()
    assert result_type(pt.BucketTransform(3), UnknownType()) == IntegerType()
    assert result_type(pt.TruncateTransform(3), UnknownType()) == UnknownType()
    assert result_type(pt.IdentityTransform(), UnknownType()) == UnknownType()


@pytest.mark.parametrize(
    ("transform", "type_"),
    [
        (pt.UnknownTransform("zorder"), IntegerType()),
        (pt.HourTransform(), DateType()),
        (pt.BucketTransform(4), BooleanType()),
        (pt.BucketTransform(0), IntegerType()),
        (pt.TruncateTransform(0), IntegerType()),
        (pt.IdentityTransform(), UnknownType()),
    ],
    ids=str,
)
def test_a_transform_that_cannot_be_applied_is_an_error(transform: Any, type_: PrimitiveType) -> None:
    assert not can_apply(transform, type_)
    with pytest.raises(UnsupportedError, match="cannot apply transform"):
        apply(transform, type_, 1)

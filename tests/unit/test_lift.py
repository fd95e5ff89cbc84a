"""Every pair of transform and operator: the lifted predicate, its exactness, and reasons."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from pyiceberg import transforms as pt
from pyiceberg.partitioning import PartitionField
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    UnknownType,
)

from floeplan.partition.fields import BoundField, bind_field
from floeplan.partition.lift import Exactness, Lifted, lift
from floeplan.predicate.build import negate
from floeplan.predicate.ir import (
    Between,
    BloomEq,
    BloomInList,
    Cmp,
    CmpOp,
    Column,
    InList,
    IrExpr,
    IsNaN,
    IsNull,
    Not,
    Opaque,
    StartsWith,
)

pytestmark = pytest.mark.unit

EXACT, CONSERVATIVE, CANNOT = Exactness.EXACT, Exactness.CONSERVATIVE, Exactness.CANNOT
DAY, HOUR = 86_400_000_000, 3_600_000_000
OPERATORS = {"=": CmpOp.EQ, "!=": CmpOp.NE, "<": CmpOp.LT, "<=": CmpOp.LE, ">": CmpOp.GT, ">=": CmpOp.GE}


def field(transform: Any, *types: PrimitiveType) -> BoundField:
    return bind_field(PartitionField(source_id=1, field_id=1000, transform=transform, name="p"), {1: types})


def leaf(type_: PrimitiveType, op: str, *values: Any) -> IrExpr:
    x = Column(1, type_, ("x",))
    match op:
        case "in" | "not in":
            return InList(x, values, op == "not in")
        case "between":
            return Between(x, *values)
        case "like" | "not like":
            return StartsWith(x, values[0], op == "not like")
        case "is null" | "is not null":
            return IsNull(x, op == "is not null")
        case "<=>":
            return Cmp(x, CmpOp.NULL_SAFE_EQ, values[0])
        case "not <=>":
            return Not(Cmp(x, CmpOp.NULL_SAFE_EQ, values[0]))
    return Cmp(x, OPERATORS[op], values[0])


def lifted(transform: Any, type_: PrimitiveType, op: str, *values: Any) -> Lifted:
    return lift(leaf(type_, op, *values), field(transform, type_))


def check(transform: Any, type_: PrimitiveType, leaf_args: tuple[Any, ...], text: str, exactness: Exactness) -> None:
    result = lifted(transform, type_, *leaf_args)
    assert (str(result.expr), result.exactness) == (text, exactness)


@pytest.mark.parametrize(
    "expr",
    [
        *(leaf(DoubleType(), op, 1.5) for op in (*OPERATORS, "<=>")),
        leaf(DoubleType(), "=", math.nan),
        leaf(DoubleType(), "between", -1.0, 2.0),
        leaf(DoubleType(), "in", 1.0, math.nan),
        leaf(DoubleType(), "not in", 1.0),
        IsNull(Column(1, DoubleType(), ("x",))),
        IsNaN(Column(1, DoubleType(), ("x",))),
        IsNaN(Column(1, DoubleType(), ("x",)), negated=True),
    ],
    ids=str,
)
def test_identity_lifts_everything_unchanged(expr: IrExpr) -> None:
    result = lift(expr, field(pt.IdentityTransform(), DoubleType()))
    assert str(result.expr) == str(expr).replace("x", "p").replace("<=>", "=")
    assert result.exactness is EXACT


@pytest.mark.parametrize(
    ("leaf_args", "text", "exactness"),
    [
        (("=", 10), "p = 10", CONSERVATIVE),
        (("=", 15), "p = 10", CONSERVATIVE),
        (("=", -5), "p = -10", CONSERVATIVE),
        (("<=>", 15), "p = 10", CONSERVATIVE),
        (("<", 16), "p <= 0", EXACT),
        (("<", 17), "p <= 16", CONSERVATIVE),
        (("<=", 15), "p <= 0", EXACT),
        (("<=", 16), "p <= 16", CONSERVATIVE),
        ((">", 15), "p >= 16", EXACT),
        ((">", 14), "p >= 0", CONSERVATIVE),
        ((">=", 16), "p >= 16", EXACT),
        ((">=", 15), "p >= 0", CONSERVATIVE),
        (("between", 16, 31), "p = 16", EXACT),
        (("between", 15, 33), "p BETWEEN 0 AND 32", CONSERVATIVE),
        (("between", 33, 15), "false", EXACT),
        (("in", 1, 2, 17), "p BETWEEN 0 AND 16", CONSERVATIVE),
        (("in", 1, 2, 33), "p IN (0, 32)", CONSERVATIVE),
        (("in",), "false", EXACT),
        (("!=", 5), "p IS NOT NULL", CANNOT),
        (("not in", 5, 6), "p IS NOT NULL", CANNOT),
        (("is null",), "p IS NULL", EXACT),
        (("is not null",), "p IS NOT NULL", EXACT),
        (("not <=>", 5), "p IS NULL OR p IS NOT NULL", CANNOT),
    ],
    ids=str,
)
def test_truncate_of_integers(leaf_args: tuple[Any, ...], text: str, exactness: Exactness) -> None:
    width = 10 if leaf_args in (("=", 10), ("=", 15), ("=", -5), ("<=>", 15)) else 16
    check(pt.TruncateTransform(width), IntegerType(), leaf_args, text, exactness)
    check(pt.TruncateTransform(width), LongType(), leaf_args, text, exactness)


def test_truncate_keeps_the_partition_that_wraps_around_at_the_smallest_integer() -> None:
    ten = pt.TruncateTransform(10)
    check(ten, IntegerType(), ("<", 20), "p <= 10 OR p >= 2147483646", EXACT)
    check(ten, IntegerType(), (">=", 20), "p BETWEEN 20 AND 2147483640", EXACT)
    check(ten, IntegerType(), ("=", -(2**31)), "p <= -2147483648 OR p = 2147483646", CONSERVATIVE)
    check(ten, LongType(), ("<", 20), "p <= 10 OR p >= 9223372036854775806", EXACT)


def test_truncate_of_a_promoted_integer_keeps_both_partitions_that_wrap_around() -> None:
    result = lift(leaf(LongType(), "=", -(2**31)), field(pt.TruncateTransform(10), LongType(), IntegerType()))
    assert str(result.expr) == "p IN (-2147483650, 2147483646)"


def test_literals_beyond_the_type_match_nothing_or_everything() -> None:
    check(pt.TruncateTransform(16), IntegerType(), ("<", -(2**31)), "false", EXACT)
    check(pt.TruncateTransform(16), IntegerType(), (">", 2**31 - 1), "false", EXACT)
    check(pt.TruncateTransform(16), IntegerType(), ("<=", 2**31 - 1), "p IS NOT NULL", EXACT)
    check(pt.TruncateTransform(16), IntegerType(), ("!=", 2**40), "p IS NOT NULL", EXACT)


@pytest.mark.parametrize(
    ("leaf_args", "text", "exactness"),
    [
        (("=", "10.65"), "p = 10.50", CONSERVATIVE),
        (("<", "10.50"), "p <= 10.00", EXACT),
        (("<", "10.51"), "p <= 10.50", CONSERVATIVE),
        ((">", "-0.01"), "p >= 0.00", EXACT),
        ((">=", "-0.01"), "p >= -0.50", CONSERVATIVE),
        (("in", "1.00", "1.49", "2.50"), "p IN (1.00, 2.50)", CONSERVATIVE),
        (("=", "-9999999.99"), "p <= -9999999.99", CONSERVATIVE),
        (("!=", "1.00"), "p IS NOT NULL", CANNOT),
    ],
    ids=str,
)
def test_truncate_of_decimals(leaf_args: tuple[Any, ...], text: str, exactness: Exactness) -> None:
    check(pt.TruncateTransform(50), DecimalType(9, 2), (leaf_args[0], *map(Decimal, leaf_args[1:])), text, exactness)


@pytest.mark.parametrize(
    ("leaf_args", "text", "exactness"),
    [
        (("=", "ab"), "p = 'ab'", EXACT),
        (("=", "abc"), "p = 'abc'", CONSERVATIVE),
        (("=", "abcd"), "p = 'abc'", CONSERVATIVE),
        (("!=", "ab"), "p != 'ab'", EXACT),
        (("!=", "abc"), "p IS NOT NULL", CANNOT),
        (("<", "abc"), "p < 'abc'", EXACT),
        (("<", "abcd"), "p <= 'abc'", CONSERVATIVE),
        (("<=", "ab"), "p <= 'ab'", EXACT),
        (("<=", "abc"), "p <= 'abc'", CONSERVATIVE),
        ((">", "ab"), "p > 'ab'", EXACT),
        ((">", "abc"), "p >= 'abc'", CONSERVATIVE),
        ((">=", "abc"), "p >= 'abc'", EXACT),
        ((">=", "abcd"), "p >= 'abc'", CONSERVATIVE),
        (("between", "ab", "b"), "p >= 'ab' AND p <= 'b'", EXACT),
        (("between", "abcd", "b"), "p >= 'abc' AND p <= 'b'", CONSERVATIVE),
        (("in", "ab", "b"), "p IN ('ab', 'b')", EXACT),
        (("in", "abcd", "abce"), "p = 'abc'", CONSERVATIVE),
        (("in",), "false", EXACT),
        (("not in", "ab", "b"), "p NOT IN ('ab', 'b')", EXACT),
        (("not in", "ab", "abc"), "p NOT IN ('ab')", CONSERVATIVE),
        (("not in", "abc"), "p IS NOT NULL", CANNOT),
        (("like", "ab"), "p LIKE 'ab%'", EXACT),
        (("like", "abc"), "p = 'abc'", EXACT),
        (("like", "abcd"), "p = 'abc'", CONSERVATIVE),
        (("not like", "ab"), "p NOT LIKE 'ab%'", EXACT),
        (("not like", "abc"), "p != 'abc'", EXACT),
        (("not like", "abcd"), "p IS NOT NULL", CANNOT),
        (("is null",), "p IS NULL", EXACT),
    ],
    ids=str,
)
def test_truncate_of_strings(leaf_args: tuple[Any, ...], text: str, exactness: Exactness) -> None:
    check(pt.TruncateTransform(3), StringType(), leaf_args, text, exactness)


@pytest.mark.parametrize(
    ("leaf_args", "text", "exactness"),
    [
        (("=", b"\x01\x02"), "p = X'0102'", EXACT),
        (("=", b"\x01\x02\x03\x04"), "p = X'010203'", CONSERVATIVE),
        (("<", b"\x01\x02\x03"), "p < X'010203'", EXACT),
        ((">", b"\x01\x02\x03"), "p >= X'010203'", CONSERVATIVE),
        (("not in", b"\xff"), "p NOT IN (X'FF')", EXACT),
    ],
    ids=str,
)
def test_truncate_of_bytes(leaf_args: tuple[Any, ...], text: str, exactness: Exactness) -> None:
    check(pt.TruncateTransform(3), BinaryType(), leaf_args, text, exactness)


def test_prefixes_are_measured_in_code_points() -> None:
    """Counting UTF-16 units, '😀' would be as long as the width and lift to equality: the row '😀x' would be lost."""
    check(pt.TruncateTransform(2), StringType(), ("like", "😀"), "p LIKE '😀%'", EXACT)
    check(pt.TruncateTransform(2), StringType(), ("not like", "😀"), "p NOT LIKE '😀%'", EXACT)
    check(pt.TruncateTransform(2), StringType(), ("=", "é"), "p = 'é'", EXACT)


@pytest.mark.parametrize(
    ("leaf_args", "text", "exactness"),
    [
        (("=", 34), "p = 3", CONSERVATIVE),
        (("<=>", 34), "p = 3", CONSERVATIVE),
        (("in", 34, 35), "p IN (3, 5)", CONSERVATIVE),
        (("in", 34), "p = 3", CONSERVATIVE),
        (("in",), "false", EXACT),
        (("!=", 34), "p IS NOT NULL", CANNOT),
        (("not in", 34), "p IS NOT NULL", CANNOT),
        (("<", 34), "p IS NOT NULL", CANNOT),
        (("between", 1, 2), "p IS NOT NULL", CANNOT),
        (("is null",), "p IS NULL", EXACT),
        (("is not null",), "p IS NOT NULL", EXACT),
    ],
    ids=str,
)
def test_bucket(leaf_args: tuple[Any, ...], text: str, exactness: Exactness) -> None:
    check(pt.BucketTransform(16), LongType(), leaf_args, text, exactness)


def test_a_failed_lift_has_a_reason() -> None:
    bucket = pt.BucketTransform(16)
    assert lifted(bucket, LongType(), "<", 1).reason == "range over bucket"
    assert lifted(bucket, LongType(), "between", 1, 2).reason == "range over bucket"
    assert lifted(bucket, LongType(), "!=", 1).reason == "!= over bucket"
    assert lifted(bucket, StringType(), "like", "a").reason == "LIKE over bucket"
    assert lifted(pt.DayTransform(), TimestampType(), "!=", 1).reason == "!= over day"
    assert lifted(pt.TruncateTransform(2), StringType(), "not like", "abc").reason == "NOT LIKE over truncate"
    assert lifted(pt.VoidTransform(), LongType(), "=", 1).reason == "void"
    assert lifted(pt.UnknownTransform("zorder"), LongType(), "=", 1).reason == "unknown transform"
    assert lifted(pt.HourTransform(), DateType(), "=", 1).reason == "hour does not take date"
    assert lifted(pt.DayTransform(), TimestampType(), "=", 1).reason == "the partition may contain other values"
    only_rows = Opaque("f(x)", (1,), None)
    assert lift(only_rows, field(pt.IdentityTransform(), LongType())).reason == "only rows can answer it"
    assert lift(Not(only_rows), field(pt.IdentityTransform(), LongType())).exactness is CANNOT


@pytest.mark.parametrize("transform", [pt.VoidTransform(), pt.UnknownTransform("zorder")], ids=repr)
@pytest.mark.parametrize("op", [*OPERATORS, "<=>", "in", "not in", "is null", "is not null"])
def test_void_and_unknown_transforms_lift_to_true(transform: Any, op: str) -> None:
    check(transform, LongType(), (op, 1), "true", CANNOT)


@pytest.mark.parametrize(
    ("leaf_args", "text", "exactness"),
    [
        (("=", 5 * DAY + 7), "p = DATE '1970-01-06'", CONSERVATIVE),
        (("<", 5 * DAY), "p <= DATE '1970-01-05'", EXACT),
        (("<", 5 * DAY + 1), "p <= DATE '1970-01-06'", CONSERVATIVE),
        (("<=", 5 * DAY), "p <= DATE '1970-01-06'", CONSERVATIVE),
        ((">", 5 * DAY - 1), "p >= DATE '1970-01-06'", EXACT),
        ((">=", 5 * DAY), "p >= DATE '1970-01-06'", EXACT),
        ((">=", 5 * DAY + 1), "p >= DATE '1970-01-06'", CONSERVATIVE),
        (("between", 5 * DAY, 6 * DAY - 1), "p = DATE '1970-01-06'", EXACT),
        (("in", 5 * DAY, 7 * DAY), "p IN (DATE '1970-01-06', DATE '1970-01-08')", CONSERVATIVE),
        (("!=", 5 * DAY), "p IS NOT NULL", CANNOT),
        (("not in", 5 * DAY), "p IS NOT NULL", CANNOT),
    ],
    ids=str,
)
def test_day_of_a_timestamp(leaf_args: tuple[Any, ...], text: str, exactness: Exactness) -> None:
    check(pt.DayTransform(), TimestampType(), leaf_args, text, exactness)
    nanos = (leaf_args[0], *(value * 1000 for value in leaf_args[1:]))
    if leaf_args not in (("between", 5 * DAY, 6 * DAY - 1), (">", 5 * DAY - 1)):
        check(pt.DayTransform(), TimestampNanoType(), nanos, text, exactness)


@pytest.mark.parametrize(
    ("leaf_args", "text"),
    [
        (("<", -4 * DAY), "p <= DATE '1969-12-28'"),  # true day -5, stored up to -4
        (("<=", -4 * DAY), "p <= DATE '1969-12-29'"),  # -4, up to -3
        (("<", 0), "p <= DATE '1970-01-01'"),  # -1, up to 0
        (("<", 1), "p <= DATE '1970-01-01'"),
        ((">", -4 * DAY), "p >= DATE '1969-12-27'"),  # -4, down to -5
        ((">=", -1), "p >= DATE '1969-12-30'"),  # -1, down to -2
        ((">=", 0), "p >= DATE '1970-01-01'"),
        (("=", -1), "p BETWEEN DATE '1969-12-30' AND DATE '1970-01-01'"),
        (("=", 0), "p = DATE '1970-01-01'"),
        (("in", -9 * DAY, 0), "p BETWEEN DATE '1969-12-22' AND DATE '1969-12-24' OR p = DATE '1970-01-01'"),
    ],
    ids=str,
)
def test_days_before_1970_are_widened_to_what_java_writers_stored(leaf_args: tuple[Any, ...], text: str) -> None:
    check(pt.DayTransform(), TimestampType(), leaf_args, text, CONSERVATIVE)


def test_dates_are_widened_only_where_java_writers_went_wrong() -> None:
    check(pt.DayTransform(), DateType(), ("<", -4), "p < DATE '1969-12-28'", EXACT)
    check(pt.DayTransform(), DateType(), ("!=", -4), "p != DATE '1969-12-28'", EXACT)
    check(pt.MonthTransform(), DateType(), ("<", -31), "p <= -1", CONSERVATIVE)
    check(pt.MonthTransform(), DateType(), (">=", -31), "p >= -1", CONSERVATIVE)
    check(pt.YearTransform(), DateType(), ("=", -1), "p BETWEEN -1 AND 0", CONSERVATIVE)
    check(pt.YearTransform(), DateType(), (">=", 365), "p >= 1", EXACT)


def test_hours_keep_the_partitions_that_wrap_around_in_the_year_245000() -> None:
    check(pt.HourTransform(), TimestampType(), (">=", 5 * HOUR), "p <= -1732919508 OR p >= 5", CONSERVATIVE)
    check(pt.HourTransform(), TimestampType(), ("<", 5 * HOUR), "p <= 4 OR p >= 1732919506", CONSERVATIVE)
    check(pt.HourTransform(), TimestampType(), ("=", 2**62), "p = 1281023894", CONSERVATIVE)
    check(pt.HourTransform(), TimestampType(), ("=", 2**63 - 1), "p >= 2147483647 OR p = -1732919508", CONSERVATIVE)
    check(pt.HourTransform(), TimestampNanoType(), (">=", 5 * HOUR * 1000), "p >= 5", EXACT)


def test_bloom_leaves_and_negated_leaves_lift_like_plain_leaves() -> None:
    x = Column(1, LongType(), ("x",))
    identity, bucket = field(pt.IdentityTransform(), LongType()), field(pt.BucketTransform(16), LongType())
    assert str(lift(BloomEq(x, 34), bucket).expr) == "p = 3"
    assert str(lift(BloomInList(x, (34, 35)), bucket).expr) == "p IN (3, 5)"
    assert str(lift(Not(BloomEq(x, 34)), identity).expr) == "p != 34"
    assert str(lift(Not(BloomInList(x, (1, 2))), identity).expr) == "p NOT IN (1, 2)"
    assert str(lift(Not(leaf(LongType(), "<=>", 5)), identity).expr) == "p IS NULL OR p != 5"
    assert str(lift(negate(leaf(LongType(), "between", 1, 2)), identity).expr) == "p < 1 OR p > 2"


def test_isnan_of_a_column_without_nan_is_known() -> None:
    x = Column(1, LongType(), ("x",))
    assert str(lift(IsNaN(x), field(pt.BucketTransform(16), LongType())).expr) == "false"
    assert str(lift(IsNaN(x, negated=True), field(pt.BucketTransform(16), LongType())).expr) == "true"


def test_promoted_sources_lift_while_their_values_stay_comparable() -> None:
    identity = pt.IdentityTransform()
    assert lift(leaf(LongType(), "<", 2**40), field(identity, LongType(), IntegerType())).exactness is EXACT
    assert lift(leaf(DoubleType(), "<", 0.1), field(identity, DoubleType(), FloatType())).exactness is EXACT
    wider, older = DecimalType(18, 2), DecimalType(9, 2)
    assert lift(leaf(wider, "<", Decimal("0.10")), field(identity, wider, older)).exactness is EXACT
    day = field(pt.DayTransform(), TimestampType(), DateType())
    assert str(lift(leaf(TimestampType(), ">=", 5 * DAY), day).expr) == "p >= DATE '1970-01-06'"
    assert str(lift(leaf(DateType(), ">=", 5), day).expr) == "p >= DATE '1970-01-06'"


@pytest.mark.parametrize("transform", [pt.IdentityTransform(), pt.BucketTransform(4)], ids=str)
def test_a_promotion_that_changes_partition_values_forbids_lifting(transform: Any) -> None:
    result = lift(leaf(TimestampType(), "=", 5 * DAY), field(transform, TimestampType(), DateType()))
    assert (str(result.expr), result.reason) == ("true", "source column changed its type")


def test_a_source_that_no_schema_knows_forbids_lifting() -> None:
    result = lift(leaf(LongType(), "=", 5), field(pt.IdentityTransform(), UnknownType()))
    assert (str(result.expr), result.reason) == ("true", "source column is in no schema")

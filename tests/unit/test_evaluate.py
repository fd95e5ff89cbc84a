"""Every leaf on every kind of bounds: what is proven, and what is not.

Results are written as the letters of what may occur: T for TRUE, F for FALSE, N for NULL.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    UUIDType,
)

from floeplan.predicate.evaluate import evaluate
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
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable, Tri
from tests.support.oracles.statistics import Probe, Summary, column_stats, pattern

pytestmark = pytest.mark.unit

EQ, NE, LT, LE, GT, GE, NULL_SAFE_EQ = CmpOp
LONG = Column(1, LongType(), ("a",))
DOUBLE = Column(1, DoubleType(), ("d",))
STRING = Column(1, StringType(), ("s",))
NAN, INF = math.nan, math.inf
UNKNOWN = -1
OPEN = Summary(10, 0, 0)


def letters(tri: Tri, container: int = 0) -> str:
    masks = {"T": tri.may_true, "F": tri.may_false, "N": tri.may_null}
    return "".join(letter for letter, mask in masks.items() if mask[container])


def evaluated(expr: IrExpr, *summaries: Summary, type_: PrimitiveType | None = None, bloom: Probe | None = None) -> str:
    """The result for the first container; the column id is always 1."""
    wanted = type_ or expr.column.type  # type: ignore[attr-defined]
    return letters(evaluate(expr, StatsTable(len(summaries), {1: column_stats(wanted, list(summaries))}, bloom=bloom)))


def between(lower: Any, upper: Any, nulls: int = 0, nans: int = 0) -> Summary:
    return Summary(10, nulls, nans, lower, upper)


# The columns of the table below, and their result for a null row.
LEAVES: list[tuple[IrExpr, str]] = [
    (Cmp(LONG, EQ, 15), "N"),
    (Cmp(LONG, NE, 15), "N"),
    (Cmp(LONG, LT, 15), "N"),
    (Cmp(LONG, LE, 15), "N"),
    (Cmp(LONG, GT, 15), "N"),
    (Cmp(LONG, GE, 15), "N"),
    (Cmp(LONG, NULL_SAFE_EQ, 15), "F"),
    (Between(LONG, 12, 15), "N"),
    (Between(LONG, 12, 15, inclusive=False), "N"),
    (InList(LONG, (12, 15)), "N"),
    (InList(LONG, (12, 15), negated=True), "N"),
    (InList(LONG, ()), "N"),
    (InList(LONG, (), negated=True), "N"),
    (IsNull(LONG), "T"),
    (IsNull(LONG, negated=True), "F"),
    (IsNaN(LONG), "F"),
    (IsNaN(LONG, negated=True), "T"),
]
#              =  != <  <= >  >= <=> btw (btw) in !in in() !in() null !null nan !nan
SITUATIONS = {
    (10, 20): "TF TF TF TF TF TF TF TF TF TF TF F T F T F T",
    (15, 15): "T  F  F  T  F  T  T  T  F  T  F  F T F T F T",
    (12, 12): "F  T  T  T  F  F  F  T  F  T  F  F T F T F T",
    (16, 20): "F  T  F  F  T  T  F  F  F  F  T  F T F T F T",
    (15, 20): "TF TF F  TF TF T  TF TF F  TF TF F T F T F T",
    (10, 14): "F  T  T  T  F  F  F  TF TF TF TF F T F T F T",
    (10, 15): "TF TF TF T  F  TF TF TF TF TF TF F T F T F T",
    (13, 14): "F  T  T  T  F  F  F  T  T  F  T  F T F T F T",
    (1, 11): "F  T  T  T  F  F  F  F  F  F  T  F T F T F T",
    (None, 14): "F  T  T  T  F  F  F  TF TF TF TF F T F T F T",
    (None, 11): "F  T  T  T  F  F  F  F  F  F  T  F T F T F T",
    (16, None): "F  T  F  F  T  T  F  F  F  F  T  F T F T F T",
    (13, None): "TF TF TF TF TF TF TF TF TF TF TF F T F T F T",
    (None, None): "TF TF TF TF TF TF TF TF TF TF TF F T F T F T",
}
CASES = [
    pytest.param(leaf, of_null, bounds, answer, id=f"{leaf} in {bounds}")
    for bounds, answers in SITUATIONS.items()
    for (leaf, of_null), answer in zip(LEAVES, answers.split(), strict=True)
]


def merged(*answers: str) -> str:
    return "".join(letter for letter in "TFN" if letter in "".join(answers))


@pytest.mark.parametrize(("leaf", "of_null", "bounds", "answer"), CASES)
def test_every_leaf_on_every_kind_of_bounds(leaf: IrExpr, of_null: str, bounds: tuple[Any, Any], answer: str) -> None:
    assert evaluated(leaf, between(*bounds)) == answer
    assert evaluated(leaf, between(*bounds, nulls=3)) == merged(answer, of_null)
    assert evaluated(leaf, between(*bounds, nulls=UNKNOWN)) == merged(answer, of_null)
    assert evaluated(leaf, Summary(10, 10, 0)) == of_null, "nothing but nulls"
    assert evaluated(leaf, Summary(0, 0, 0)) == "", "no rows at all"
    swapped = answer.translate(str.maketrans("TF", "FT"))
    assert evaluated(Not(leaf), between(*bounds), type_=LongType()) == merged(swapped)


@pytest.mark.parametrize(("leaf", "of_null"), LEAVES, ids=str)
def test_a_column_without_statistics_may_be_anything(leaf: IrExpr, of_null: str) -> None:
    stats = StatsTable(2, {}, np.array([True, False]))
    assert [letters(evaluate(leaf, stats), i) for i in (0, 1)] == ["TFN", ""]


def test_an_opaque_piece_may_be_anything() -> None:
    assert evaluated(Opaque("f(a)", (1,), None), between(15, 15), type_=LongType()) == "TFN"


def test_each_container_is_answered_for_itself() -> None:
    tri = evaluate(Cmp(LONG, GT, 15), stats_of(LongType(), between(10, 14), between(16, 17), between(10, 17), OPEN))
    assert [letters(tri, i) for i in range(4)] == ["F", "T", "TF", "TF"]
    tri = evaluate(
        InList(LONG, (16, 99)), stats_of(LongType(), between(10, 14), between(16, 16), between(10, 17), OPEN)
    )
    assert [letters(tri, i) for i in range(4)] == ["F", "T", "TF", "TF"]


def stats_of(type_: PrimitiveType, *summaries: Summary) -> StatsTable:
    return StatsTable(len(summaries), {1: column_stats(type_, list(summaries))})


# NaN: equal to itself, above everything, and absent from the statistics writers keep.


@pytest.mark.parametrize(
    ("leaf", "answer", "with_nan"),
    [
        (Cmp(DOUBLE, GT, 20.0), "F", "TF"),
        (Cmp(DOUBLE, GE, 20.0), "F", "TF"),
        (Cmp(DOUBLE, LT, 20.0), "T", "TF"),
        (Cmp(DOUBLE, LE, 20.0), "T", "TF"),
        (Cmp(DOUBLE, EQ, 20.0), "F", "F"),
        (Cmp(DOUBLE, NE, 20.0), "T", "T"),
        (Cmp(DOUBLE, EQ, NAN), "F", "TF"),
        (Cmp(DOUBLE, NE, NAN), "T", "TF"),
        (Cmp(DOUBLE, LT, NAN), "T", "TF"),
        (Cmp(DOUBLE, LE, NAN), "T", "T"),
        (Cmp(DOUBLE, GT, NAN), "F", "F"),
        (Cmp(DOUBLE, GE, NAN), "F", "TF"),
        (Cmp(DOUBLE, NULL_SAFE_EQ, NAN), "F", "TF"),
        (Cmp(DOUBLE, GT, INF), "F", "TF"),
        (Between(DOUBLE, 0.0, 20.0), "T", "TF"),
        (Between(DOUBLE, 0.0, NAN), "T", "T"),
        (InList(DOUBLE, (20.0, 30.0)), "F", "F"),
        (InList(DOUBLE, (20.0, NAN)), "F", "TF"),
        (InList(DOUBLE, (20.0,), negated=True), "T", "T"),
        (InList(DOUBLE, (NAN,), negated=True), "T", "TF"),
        (InList(DOUBLE, (), negated=True), "T", "T"),
        (IsNaN(DOUBLE), "F", "TF"),
        (IsNull(DOUBLE), "F", "F"),
    ],
    ids=str,
)
def test_nan_counts_and_what_they_do_not_say(leaf: IrExpr, answer: str, with_nan: str) -> None:
    assert evaluated(leaf, between(1.0, 10.0)) == answer
    assert evaluated(leaf, between(1.0, 10.0, nans=2)) == with_nan
    assert evaluated(leaf, between(1.0, 10.0, nans=UNKNOWN)) == with_nan, "a missing NaN count does not rule NaN out"


@pytest.mark.parametrize(
    ("leaf", "answer"),
    [
        (Cmp(DOUBLE, GT, 1.0), "T"),
        (Cmp(DOUBLE, LE, 1.0), "F"),
        (Cmp(DOUBLE, EQ, NAN), "T"),
        (Cmp(DOUBLE, NE, NAN), "F"),
        (Cmp(DOUBLE, LT, NAN), "F"),
        (InList(DOUBLE, (1.0, NAN)), "T"),
        (InList(DOUBLE, (1.0, 2.0)), "F"),
        (IsNaN(DOUBLE), "T"),
        (IsNull(DOUBLE), "F"),
    ],
    ids=str,
)
def test_nothing_but_nan(leaf: IrExpr, answer: str) -> None:
    assert evaluated(leaf, Summary(10, 0, 10)) == answer
    assert evaluated(leaf, Summary(10, 0, 10, NAN, NAN)) == answer
    assert evaluated(Not(IsNaN(DOUBLE)), Summary(10, 4, 6), type_=DoubleType()) == "TF", "isnan of a null is false"


@pytest.mark.parametrize("op", CmpOp)
def test_a_nan_upper_bound_beside_a_finite_lower_is_no_bound(op: CmpOp) -> None:
    """Spark's writer leaves max = NaN; ``v <= max`` would prune everything."""
    assert "T" in evaluated(Cmp(DOUBLE, op, 5.0), Summary(10, 0, UNKNOWN, 1.0, NAN))
    assert "T" in evaluated(InList(DOUBLE, (5.0,)), Summary(10, 0, UNKNOWN, 1.0, NAN))
    assert "T" in evaluated(Between(DOUBLE, 5.0, 6.0), Summary(10, 0, UNKNOWN, 1.0, NAN))


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("low", [0.0, -0.0])
@pytest.mark.parametrize("high", [0.0, -0.0])
def test_the_sign_of_a_zero_is_ignored(zero: float, low: float, high: float) -> None:
    only_zeros = between(low, high)
    assert evaluated(Cmp(DOUBLE, EQ, zero), only_zeros) == "T"
    assert evaluated(Cmp(DOUBLE, LT, zero), only_zeros) == "F"
    assert evaluated(Cmp(DOUBLE, GT, zero), only_zeros) == "F"
    assert evaluated(InList(DOUBLE, (zero,)), only_zeros) == "T"
    assert evaluated(InList(DOUBLE, (zero, 7.0)), between(low, 3.0)) == "TF"


def test_infinities_are_ordinary_values() -> None:
    assert evaluated(Cmp(DOUBLE, GT, 1e308), between(INF, INF)) == "T"
    assert evaluated(Cmp(DOUBLE, EQ, -INF), between(-1e308, INF)) == "F"


# Strings and bytes: unsigned bytes, truncated bounds.


@pytest.mark.parametrize(
    ("prefix", "bounds", "answer"),
    [
        ("ab", ("aba", "abz"), "T"),
        ("ab", ("ab", "ab"), "T"),
        ("ab", ("aa", "abz"), "TF"),
        ("ab", ("aba", "ac"), "TF"),
        ("ab", ("ac", "b"), "F"),
        ("ab", ("A", "aa"), "F"),
        ("ab", ("a", "b"), "TF"),
        ("ab", (None, "aa"), "F"),
        ("ab", ("ac", None), "F"),
        ("ab", ("abc", None), "TF"),
        ("ab", (None, "abc"), "TF"),
        ("ab", (None, None), "TF"),
        ("", ("a", "b"), "T"),
        ("\U0001f9ca", ("\uffff", "\uffff"), "F"),
        ("\uffff", ("\ue000", "\U00010000"), "TF"),
    ],
)
def test_starts_with(prefix: str, bounds: tuple[Any, Any], answer: str) -> None:
    assert evaluated(StartsWith(STRING, prefix), between(*bounds)) == answer
    swapped = merged(answer.translate(str.maketrans("TF", "FT")))
    assert evaluated(StartsWith(STRING, prefix, negated=True), between(*bounds)) == swapped
    assert evaluated(StartsWith(STRING, prefix), between(*bounds, nulls=1)) == merged(answer, "N")


def test_truncated_bounds_are_bounds_and_not_values() -> None:
    """A writer truncated 'abcdef' .. 'abzzzz' to 'abc' .. 'ac' without setting a flag."""
    cut = between("abc", "ac")
    assert evaluated(Cmp(STRING, EQ, "abcdef"), cut) == "TF"
    assert evaluated(Cmp(STRING, EQ, "abzzzz"), cut) == "TF"
    assert evaluated(Cmp(STRING, NE, "abc"), cut) == "TF"
    assert evaluated(InList(STRING, ("abcdef", "zz")), cut) == "TF"
    assert evaluated(Cmp(STRING, GE, "ad"), cut) == "F"
    assert evaluated(Cmp(STRING, GE, "abc"), cut) == "T"


def test_an_upper_bound_that_could_not_be_truncated_is_missing() -> None:
    """'\\U0010ffff' has no next character, so writers leave the upper bound out."""
    assert evaluated(Cmp(STRING, GT, "\U0010ffff"), between("\U0010ffff", None)) == "TF"
    assert evaluated(StartsWith(STRING, "\U0010ffff"), between("\U0010ffff", None)) == "TF"


def test_characters_are_ordered_by_their_bytes_and_not_by_utf_16() -> None:
    assert evaluated(Cmp(STRING, LT, "\U00010000"), between("\uffff", "\uffff")) == "T"
    assert evaluated(Cmp(STRING, GT, "\ud7ff"), between("\ue000", "\U0010ffff")) == "T"
    assert evaluated(InList(STRING, ("\U00010000", "")), between("\ue000", "\uffff")) == "F"


@pytest.mark.parametrize("type_", [BinaryType(), FixedType(1), UUIDType()])
def test_bytes_are_unsigned(type_: PrimitiveType) -> None:
    column = Column(1, type_, ("b",))
    size = 16 if isinstance(type_, UUIDType) else 1
    low, high = b"\x7f" * size, b"\x80" * size
    assert evaluated(Cmp(column, LT, high), between(low, low)) == "T"
    assert evaluated(Cmp(column, GT, high), between(low, high)) == "F"
    assert evaluated(InList(column, (b"\xff" * size,)), between(low, high)) == "F"


def test_a_literal_of_another_length_compares_with_fixed_bytes() -> None:
    column = Column(1, FixedType(2), ("b",))
    bound = Bound(pa.array([b"ab"], type=pa.binary(2)), np.array([True]))
    flags = np.array([False]), np.array([False]), np.array([True])
    stats = StatsTable(1, {1: ColumnStats(*flags, bound, bound)})
    assert letters(evaluate(Cmp(column, GT, b"a"), stats)) == "T"
    assert letters(evaluate(InList(column, (b"a", b"abc")), stats)) == "F"


# The other domains.


@pytest.mark.parametrize(
    ("type_", "low", "inside", "high"),
    [
        (DecimalType(9, 2), Decimal("-1.00"), Decimal("0.01"), Decimal("9999999.99")),
        (DecimalType(18, 18), Decimal("-1E-18"), Decimal("0E-18"), Decimal("1E-18")),
        (DecimalType(19, 0), Decimal(-(10**18)), Decimal(10**18), Decimal(10**19 - 1)),
        (DecimalType(38, 0), Decimal("1" + "0" * 36 + "1"), Decimal("1" + "0" * 36 + "2"), Decimal("9" * 38)),
        (DateType(), -719_162, 0, 2_932_896),
        (TimestampType(), -62_135_596_800_000_000, -1, 253_402_300_799_999_999),
        (LongType(), -(2**63), 0, 2**63 - 1),
        (BooleanType(), False, True, True),
    ],
    ids=str,
)
def test_ranges_of_every_domain(type_: PrimitiveType, low: Any, inside: Any, high: Any) -> None:
    column = Column(1, type_, ("c",))
    assert evaluated(Cmp(column, EQ, inside), between(low, high)) == "TF"
    assert evaluated(Cmp(column, EQ, inside), between(inside, inside)) == "T"
    assert evaluated(Cmp(column, LT, inside), between(low, low)) == "T"
    assert evaluated(Cmp(column, GE, inside), between(low, low)) == "F"
    assert evaluated(InList(column, (inside,)), between(low, low)) == "F"
    assert evaluated(InList(column, (low, inside)), between(low, low)) == "T"
    assert evaluated(InList(column, (low, inside), negated=True), between(low, low)) == "F"


def test_decimals_beyond_18_digits_keep_their_last_digit() -> None:
    column = Column(1, DecimalType(38, 0), ("c",))
    big = Decimal("12345678901234567890123456789012345678")
    assert evaluated(Cmp(column, GT, big), between(big, big)) == "F"
    assert evaluated(Cmp(column, LT, big), between(Decimal(int(big) - 1), Decimal(int(big) - 1))) == "T"


def test_bounds_that_contradict_each_other_are_no_bounds() -> None:
    assert evaluated(Cmp(LONG, EQ, 15), between(20, 10)) == "TF"
    assert evaluated(Cmp(STRING, EQ, "m"), between("z", "a")) == "TF"


# Bloom filters rule TRUE out, and nothing else.


def probe(*values: Any) -> Probe:
    return Probe({1: [{pattern(value) for value in values}]})


def test_a_bloom_filter_only_takes_true_away() -> None:
    assert evaluated(BloomEq(LONG, 15), between(10, 20), bloom=probe(11, 12)) == "F"
    assert evaluated(BloomEq(LONG, 15), between(10, 20, nulls=1), bloom=probe(11, 12)) == "FN"
    assert evaluated(BloomEq(LONG, 15), between(10, 20), bloom=probe(15)) == "TF"
    assert evaluated(BloomEq(LONG, 15), between(16, 20), bloom=probe(15)) == "F"
    assert evaluated(BloomInList(LONG, (15, 16)), between(10, 20), bloom=probe(16)) == "TF"
    assert evaluated(BloomInList(LONG, (15, 16)), between(10, 20), bloom=probe(17)) == "F"
    assert evaluated(Not(BloomEq(LONG, 15)), between(10, 20), type_=LongType(), bloom=probe(11)) == "T"


def test_without_a_filter_a_bloom_leaf_is_the_plain_leaf() -> None:
    assert evaluated(BloomEq(LONG, 15), between(10, 20)) == "TF"
    assert evaluated(BloomEq(LONG, 15), between(16, 20)) == "F"
    assert evaluated(BloomEq(LONG, 15), between(10, 20), bloom=Probe({})) == "TF"
    assert letters(evaluate(BloomEq(LONG, 15), StatsTable(1, {}, bloom=probe(11)))) == "FN"


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_filter_is_probed_for_both_zeros(zero: float) -> None:
    assert evaluated(BloomEq(DOUBLE, zero), between(-1.0, 1.0), bloom=probe(-zero)) == "TF"
    assert evaluated(BloomInList(DOUBLE, (0.5, zero)), between(-1.0, 1.0), bloom=probe(-zero)) == "TF"
    assert evaluated(BloomEq(DOUBLE, zero), between(-1.0, 1.0), bloom=probe(1.0)) == "F"


def test_a_filter_is_not_probed_for_nan() -> None:
    assert evaluated(BloomEq(DOUBLE, NAN), between(-1.0, 1.0, nans=UNKNOWN), bloom=probe(1.0)) == "TF"
    assert evaluated(BloomInList(DOUBLE, (0.5, NAN)), between(-1.0, 1.0, nans=UNKNOWN), bloom=probe(1.0)) == "TF"

"""Every leaf against every situation of bounds: what is proven, and what is not.

Answers are written as the letters of what may occur: T for TRUE, F for FALSE, N for NULL.
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


def ask(expr: IrExpr, *summaries: Summary, type_: PrimitiveType | None = None, bloom: Probe | None = None) -> str:
    """The answer of the first container; the column's id is 1 in all of these tests."""
    wanted = type_ or expr.column.type  # type: ignore[attr-defined]
    return letters(evaluate(expr, StatsTable(len(summaries), {1: column_stats(wanted, list(summaries))}, bloom=bloom)))


def between(lower: Any, upper: Any, nulls: int = 0, nans: int = 0) -> Summary:
    return Summary(10, nulls, nans, lower, upper)


# The columns of the table below, and what a null row answers to each.
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
def test_every_leaf_in_every_situation(leaf: IrExpr, of_null: str, bounds: tuple[Any, Any], answer: str) -> None:
    assert ask(leaf, between(*bounds)) == answer
    assert ask(leaf, between(*bounds, nulls=3)) == merged(answer, of_null)
    assert ask(leaf, between(*bounds, nulls=UNKNOWN)) == merged(answer, of_null)
    assert ask(leaf, Summary(10, 10, 0)) == of_null, "nothing but nulls"
    assert ask(leaf, Summary(0, 0, 0)) == "", "no rows at all"
    swapped = answer.translate(str.maketrans("TF", "FT"))
    assert ask(Not(leaf), between(*bounds), type_=LongType()) == merged(swapped)


@pytest.mark.parametrize(("leaf", "of_null"), LEAVES, ids=str)
def test_a_column_without_statistics_may_be_anything(leaf: IrExpr, of_null: str) -> None:
    stats = StatsTable(2, {}, np.array([True, False]))
    assert [letters(evaluate(leaf, stats), i) for i in (0, 1)] == ["TFN", ""]


def test_an_opaque_piece_may_be_anything() -> None:
    assert ask(Opaque("f(a)", (1,), None), between(15, 15), type_=LongType()) == "TFN"


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
    assert ask(leaf, between(1.0, 10.0)) == answer
    assert ask(leaf, between(1.0, 10.0, nans=2)) == with_nan
    assert ask(leaf, between(1.0, 10.0, nans=UNKNOWN)) == with_nan, (
        "a writer that says nothing of NaN has not denied it"
    )


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
    assert ask(leaf, Summary(10, 0, 10)) == answer
    assert ask(leaf, Summary(10, 0, 10, NAN, NAN)) == answer
    assert ask(Not(IsNaN(DOUBLE)), Summary(10, 4, 6), type_=DoubleType()) == "TF", "isnan of a null is false"


@pytest.mark.parametrize("op", CmpOp)
def test_a_nan_upper_bound_beside_a_finite_lower_is_no_bound(op: CmpOp) -> None:
    """Spark's writer leaves max = NaN; ``v <= max`` would prune everything."""
    assert "T" in ask(Cmp(DOUBLE, op, 5.0), Summary(10, 0, UNKNOWN, 1.0, NAN))
    assert "T" in ask(InList(DOUBLE, (5.0,)), Summary(10, 0, UNKNOWN, 1.0, NAN))
    assert "T" in ask(Between(DOUBLE, 5.0, 6.0), Summary(10, 0, UNKNOWN, 1.0, NAN))


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("low", [0.0, -0.0])
@pytest.mark.parametrize("high", [0.0, -0.0])
def test_the_sign_of_a_zero_says_nothing(zero: float, low: float, high: float) -> None:
    only_zeros = between(low, high)
    assert ask(Cmp(DOUBLE, EQ, zero), only_zeros) == "T"
    assert ask(Cmp(DOUBLE, LT, zero), only_zeros) == "F"
    assert ask(Cmp(DOUBLE, GT, zero), only_zeros) == "F"
    assert ask(InList(DOUBLE, (zero,)), only_zeros) == "T"
    assert ask(InList(DOUBLE, (zero, 7.0)), between(low, 3.0)) == "TF"


def test_infinities_are_ordinary_values() -> None:
    assert ask(Cmp(DOUBLE, GT, 1e308), between(INF, INF)) == "T"
    assert ask(Cmp(DOUBLE, EQ, -INF), between(-1e308, INF)) == "F"


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
    assert ask(StartsWith(STRING, prefix), between(*bounds)) == answer
    swapped = merged(answer.translate(str.maketrans("TF", "FT")))
    assert ask(StartsWith(STRING, prefix, negated=True), between(*bounds)) == swapped
    assert ask(StartsWith(STRING, prefix), between(*bounds, nulls=1)) == merged(answer, "N")


def test_truncated_bounds_are_bounds_and_not_values() -> None:
    """A writer cut 'abcdef' .. 'abzzzz' down to 'abc' .. 'ac' and set no flag that says so."""
    cut = between("abc", "ac")
    assert ask(Cmp(STRING, EQ, "abcdef"), cut) == "TF"
    assert ask(Cmp(STRING, EQ, "abzzzz"), cut) == "TF"
    assert ask(Cmp(STRING, NE, "abc"), cut) == "TF"
    assert ask(InList(STRING, ("abcdef", "zz")), cut) == "TF"
    assert ask(Cmp(STRING, GE, "ad"), cut) == "F"
    assert ask(Cmp(STRING, GE, "abc"), cut) == "T"


def test_an_upper_bound_that_could_not_be_truncated_is_missing() -> None:
    """'\\U0010ffff' has no next character, so writers leave the upper bound out."""
    assert ask(Cmp(STRING, GT, "\U0010ffff"), between("\U0010ffff", None)) == "TF"
    assert ask(StartsWith(STRING, "\U0010ffff"), between("\U0010ffff", None)) == "TF"


def test_characters_are_ordered_by_their_bytes_and_not_by_utf_16() -> None:
    assert ask(Cmp(STRING, LT, "\U00010000"), between("\uffff", "\uffff")) == "T"
    assert ask(Cmp(STRING, GT, "\ud7ff"), between("\ue000", "\U0010ffff")) == "T"
    assert ask(InList(STRING, ("\U00010000", "")), between("\ue000", "\uffff")) == "F"


@pytest.mark.parametrize("type_", [BinaryType(), FixedType(1), UUIDType()])
def test_bytes_are_unsigned(type_: PrimitiveType) -> None:
    column = Column(1, type_, ("b",))
    size = 16 if isinstance(type_, UUIDType) else 1
    low, high = b"\x7f" * size, b"\x80" * size
    assert ask(Cmp(column, LT, high), between(low, low)) == "T"
    assert ask(Cmp(column, GT, high), between(low, high)) == "F"
    assert ask(InList(column, (b"\xff" * size,)), between(low, high)) == "F"


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
    assert ask(Cmp(column, EQ, inside), between(low, high)) == "TF"
    assert ask(Cmp(column, EQ, inside), between(inside, inside)) == "T"
    assert ask(Cmp(column, LT, inside), between(low, low)) == "T"
    assert ask(Cmp(column, GE, inside), between(low, low)) == "F"
    assert ask(InList(column, (inside,)), between(low, low)) == "F"
    assert ask(InList(column, (low, inside)), between(low, low)) == "T"
    assert ask(InList(column, (low, inside), negated=True), between(low, low)) == "F"


def test_decimals_beyond_18_digits_keep_their_last_digit() -> None:
    column = Column(1, DecimalType(38, 0), ("c",))
    big = Decimal("12345678901234567890123456789012345678")
    assert ask(Cmp(column, GT, big), between(big, big)) == "F"
    assert ask(Cmp(column, LT, big), between(Decimal(int(big) - 1), Decimal(int(big) - 1))) == "T"


def test_bounds_that_contradict_each_other_are_no_bounds() -> None:
    assert ask(Cmp(LONG, EQ, 15), between(20, 10)) == "TF"
    assert ask(Cmp(STRING, EQ, "m"), between("z", "a")) == "TF"


# Bloom filters rule TRUE out, and nothing else.


def probe(*values: Any) -> Probe:
    return Probe({1: [{pattern(value) for value in values}]})


def test_a_bloom_filter_only_takes_true_away() -> None:
    assert ask(BloomEq(LONG, 15), between(10, 20), bloom=probe(11, 12)) == "F"
    assert ask(BloomEq(LONG, 15), between(10, 20, nulls=1), bloom=probe(11, 12)) == "FN"
    assert ask(BloomEq(LONG, 15), between(10, 20), bloom=probe(15)) == "TF"
    assert ask(BloomEq(LONG, 15), between(16, 20), bloom=probe(15)) == "F"
    assert ask(BloomInList(LONG, (15, 16)), between(10, 20), bloom=probe(16)) == "TF"
    assert ask(BloomInList(LONG, (15, 16)), between(10, 20), bloom=probe(17)) == "F"
    assert ask(Not(BloomEq(LONG, 15)), between(10, 20), type_=LongType(), bloom=probe(11)) == "T"


def test_without_a_filter_a_bloom_leaf_is_the_plain_leaf() -> None:
    assert ask(BloomEq(LONG, 15), between(10, 20)) == "TF"
    assert ask(BloomEq(LONG, 15), between(16, 20)) == "F"
    assert ask(BloomEq(LONG, 15), between(10, 20), bloom=Probe({})) == "TF"
    assert letters(evaluate(BloomEq(LONG, 15), StatsTable(1, {}, bloom=probe(11)))) == "FN"


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_filter_is_asked_for_both_zeros(zero: float) -> None:
    assert ask(BloomEq(DOUBLE, zero), between(-1.0, 1.0), bloom=probe(-zero)) == "TF"
    assert ask(BloomInList(DOUBLE, (0.5, zero)), between(-1.0, 1.0), bloom=probe(-zero)) == "TF"
    assert ask(BloomEq(DOUBLE, zero), between(-1.0, 1.0), bloom=probe(1.0)) == "F"


def test_a_filter_is_not_asked_for_nan() -> None:
    assert ask(BloomEq(DOUBLE, NAN), between(-1.0, 1.0, nans=UNKNOWN), bloom=probe(1.0)) == "TF"
    assert ask(BloomInList(DOUBLE, (0.5, NAN)), between(-1.0, 1.0, nans=UNKNOWN), bloom=probe(1.0)) == "TF"

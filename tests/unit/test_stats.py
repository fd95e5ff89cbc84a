"""Counts and bounds: which are used, and which are ignored."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from floeplan.predicate.stats import Bound, ColumnStats, StatsTable, to_mask, trusted

pytestmark = pytest.mark.unit
UNKNOWN = -1
HUGE = 2**63 - 1


@pytest.mark.parametrize(
    ("rows", "nulls", "nans", "may"),
    [
        (10, 0, 0, "value"),
        (10, 3, 0, "null value"),
        (10, 0, 3, "nan value"),
        (10, 10, 0, "null"),
        (10, 0, 10, "nan"),
        (10, 4, 6, "null nan"),
        (10, 4, 5, "null nan value"),
        (10, UNKNOWN, 0, "null value"),
        (10, 0, UNKNOWN, "nan value"),
        (10, UNKNOWN, UNKNOWN, "null nan value"),
        (10, 10, UNKNOWN, "null"),
        (10, UNKNOWN, 10, "null nan"),
        (UNKNOWN, 0, 0, "value"),
        (UNKNOWN, 5, 0, "null value"),
        (UNKNOWN, UNKNOWN, UNKNOWN, "null nan value"),
        (0, 0, 0, ""),
        (0, UNKNOWN, UNKNOWN, ""),
        (10, 11, 0, "null nan value"),
        (10, 0, 11, "null nan value"),
        (10, 6, 6, "null nan value"),
        (10, HUGE, HUGE, "null nan value"),
    ],
)
def test_counts_prove_absence_or_nothing(rows: int, nulls: int, nans: int, may: str) -> None:
    stats = ColumnStats.from_counts(*(np.array([count], dtype=np.int64) for count in (rows, nulls, nans)))
    flags = {"null": stats.may_null, "nan": stats.may_nan, "value": stats.may_value}
    assert [name for name, flag in flags.items() if flag[0]] == may.split()


def valid(bound: Bound | None) -> list[bool]:
    assert bound is not None
    return bound.valid.tolist()


def numbers(*values: float) -> Bound:
    return Bound(np.array(values, dtype=np.float64), np.ones(len(values), dtype=np.bool_))


def test_nan_on_either_side_takes_both_bounds_away() -> None:
    lower, upper = trusted(numbers(1.0, 1.0, math.nan), numbers(2.0, math.nan, 2.0))
    assert valid(lower) == valid(upper) == [True, False, False]


def test_nan_is_no_bound_where_the_other_one_is_missing() -> None:
    nan, missing = numbers(math.nan), Bound(np.array([0.0]), np.array([False]))
    assert [valid(bound) for bound in trusted(missing, nan)] == [[False], [False]]
    assert [valid(bound) for bound in trusted(nan, missing)] == [[False], [False]]


def test_nan_as_the_only_bound_is_none() -> None:
    lower, upper = trusted(numbers(1.0, math.nan), None)
    assert (valid(lower), upper) == ([True, False], None)
    lower, upper = trusted(None, numbers(math.nan, 1.0))
    assert (lower, valid(upper)) == (None, [False, True])


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (np.array([1, 3]), np.array([2, 2])),
        (np.array([1.0, 3.0]), np.array([2.0, 2.0])),
        (pa.array(["a", "c"]), pa.array(["b", "b"])),
        (pa.array([b"\x7f", b"\xff"]), pa.array([b"\x80", b"\x80"])),
    ],
)
def test_a_lower_bound_above_its_upper_takes_both_away(low: object, high: object) -> None:
    everywhere = np.array([True, True])
    lower, upper = trusted(Bound(low, everywhere), Bound(high, everywhere))
    assert valid(lower) == valid(upper) == [True, False]


def test_values_of_invalid_bounds_are_never_read() -> None:
    here = np.array([False, True])
    lower, upper = trusted(Bound(np.array([9, 1]), here), Bound(np.array([0, 2]), np.array([True, True])))
    assert (valid(lower), valid(upper)) == ([False, True], [True, True])


def test_column_statistics_check_their_bounds_however_they_are_made() -> None:
    flag = np.array([True])
    stats = ColumnStats(flag, flag, flag, numbers(math.nan), numbers(2.0))
    assert valid(stats.lower) == valid(stats.upper) == [False]


def test_zeros_of_either_sign_are_not_out_of_order() -> None:
    lower, upper = trusted(numbers(0.0), numbers(-0.0))
    assert valid(lower) == valid(upper) == [True]


def test_a_partition_value_is_both_bounds_and_nan_is_no_bound() -> None:
    stats = ColumnStats.exact(np.array([1.0, math.nan, 0.0]), np.array([False, False, True]))
    assert stats.may_value.tolist() == [True, False, False]
    assert stats.may_nan.tolist() == [False, True, False]
    assert stats.may_null.tolist() == [False, False, True]
    assert valid(stats.lower) == valid(stats.upper) == [True, False, False]


def test_an_absent_column_is_null_where_there_are_rows() -> None:
    stats = ColumnStats.all_null(np.array([True, False]))
    assert stats.may_null.tolist() == [True, False]
    assert not stats.may_value.any()
    assert not stats.may_nan.any()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.array([b"ab"], type=pa.binary(2)), pa.binary()),
        (pa.array([b"ab"], type=pa.binary_view()), pa.binary()),
        (pa.array(["ab"], type=pa.string_view()), pa.string()),
        (pa.array([b"x" * 16], type=pa.binary(16)).cast(pa.uuid()), pa.binary()),
        (pa.array(["ab"], type=pa.large_string()), pa.large_string()),
    ],
)
def test_bounds_of_bytes_are_kept_in_a_layout_that_compares_with_any_literal(
    given: pa.Array, kept: pa.DataType
) -> None:
    assert Bound(given, np.array([True])).values.type == kept


def test_containers_have_rows_by_default() -> None:
    assert StatsTable(3, {}).nonempty.tolist() == [True, True, True]
    assert StatsTable(2, {}, np.array([True, False])).nonempty.tolist() == [True, False]


def test_null_is_no_as_a_mask() -> None:
    assert to_mask(pa.array([True, None, False])).tolist() == [True, False, False]

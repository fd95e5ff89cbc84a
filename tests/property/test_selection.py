"""A selection behaves as a set of row numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from floeplan.errors import UnsupportedError
from floeplan.parquet.prune.selection import ROARING_ROW_LIMIT, RowSelection

pytestmark = pytest.mark.property

rows = st.sets(st.integers(0, 40), max_size=41)
runs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=8)


def of(numbers: set[int]) -> RowSelection:
    return RowSelection.from_mask(np.isin(np.arange(64), list(numbers)))


def as_set(selection: RowSelection) -> set[int]:
    assert (selection.counts > 0).all()
    assert (selection.starts[1:] > selection.ends[:-1]).all(), "runs touch or overlap"
    return set(selection.to_rows().tolist())


@given(runs)
def test_runs_in_any_order_become_the_rows_they_cover(pairs: list[tuple[int, int]]) -> None:
    selection = RowSelection.from_runs([a for a, _ in pairs], [n for _, n in pairs])
    assert as_set(selection) == {row for first, count in pairs for row in range(first, first + count)}
    assert selection.row_count == len(as_set(selection))
    assert selection == RowSelection.from_runs(selection.starts, selection.counts)


@given(st.lists(st.integers(0, 40)))
def test_row_numbers_may_repeat(numbers: list[int]) -> None:
    assert as_set(RowSelection.from_rows(np.sort(np.array(numbers, dtype=np.int64)))) == set(numbers)


@given(rows)
def test_a_selection_with_itself(a: set[int]) -> None:
    selection = of(a)
    assert as_set(selection.intersect(selection)) == a
    assert not selection.difference(selection)


@given(rows, rows)
def test_set_algebra(a: set[int], b: set[int]) -> None:
    left, right = of(a), of(b)
    assert as_set(left.intersect(right)) == a & b
    assert as_set(left.union(right)) == a | b
    assert as_set(left.difference(right)) == a - b
    assert as_set(left.invert(50)) == set(range(50)) - a
    assert (left == right) == (a == b)
    assert hash(left) != hash(right) or a == b


@given(rows, st.lists(st.integers(-2, 45)))
def test_membership(a: set[int], numbers: list[int]) -> None:
    assert of(a).contains(numbers).tolist() == [row in a for row in numbers]


@given(rows, st.lists(st.integers(-2, 45)))
def test_rank_counts_the_rows_before(a: set[int], numbers: list[int]) -> None:
    assert of(a).rank(numbers).tolist() == [sum(row < limit for row in a) for limit in numbers]


@given(rows)
def test_places_among_the_rows_find_them_again(a: set[int]) -> None:
    selection = of(a)
    assert selection.at(selection.rank(sorted(a))).tolist() == sorted(a)


@given(rows, runs)
def test_overlap_of_ranges(a: set[int], ranges: list[tuple[int, int]]) -> None:
    first, count = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    assert of(a).overlaps(first, count).tolist() == [bool(a & set(range(f, f + n))) for f, n in ranges]


@given(rows, st.integers(0, 45), st.none() | st.integers(0, 45))
def test_offset_and_limit_count_selected_rows(a: set[int], offset: int, limit: int | None) -> None:
    expected = sorted(a)[offset:][:limit]
    assert sorted(as_set(of(a).slice(offset, limit))) == expected


@given(rows, st.data())
def test_narrowing_by_one_flag_per_selected_row(a: set[int], data: st.DataObject) -> None:
    flags = data.draw(st.lists(st.booleans(), min_size=len(a), max_size=len(a)))
    kept = {row for row, flag in zip(sorted(a), flags, strict=True) if flag}
    assert as_set(of(a).narrow(np.array(flags, dtype=np.bool_))) == kept


@given(rows, st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_row_groups_renumber_and_back(a: set[int], sizes: list[int], data: st.DataObject) -> None:
    kept = sorted(data.draw(st.sets(st.integers(0, len(sizes) - 1))))
    first_rows = (np.cumsum(sizes) - sizes)[kept].astype(np.int64)
    counts = np.array(sizes, dtype=np.int64)[kept]
    laid_out = [row for first, n in zip(first_rows, counts, strict=True) for row in range(first, first + n)]
    relative = of(a).relative_to(first_rows, counts)
    assert as_set(relative) == {place for place, row in enumerate(laid_out) if row in a}
    assert as_set(relative.absolute_from(first_rows, counts)) == a & set(laid_out)


@given(rows)
def test_bitmap_both_ways(a: set[int]) -> None:
    assert of(a).to_bitmap() == BitMap(a)
    assert RowSelection.from_bitmap(BitMap(a)) == of(a)


def test_bitmap_reaches_the_last_32_bit_row_without_listing_rows() -> None:
    whole = RowSelection.all_rows(ROARING_ROW_LIMIT)
    assert len(whole.to_bitmap()) == ROARING_ROW_LIMIT
    assert RowSelection.from_bitmap(whole.to_bitmap()) == whole
    last = BitMap([3, 2**32 - 1])
    assert RowSelection.from_bitmap(last) == RowSelection.from_runs([3, 2**32 - 1], [1, 1])


def test_a_row_beyond_32_bits_has_no_bitmap() -> None:
    with pytest.raises(UnsupportedError, match="4294967295 does not fit"):
        RowSelection.from_runs([ROARING_ROW_LIMIT], [1]).to_bitmap()


def test_pages_are_kept_by_flag() -> None:
    first, count = np.array([0, 10, 20], dtype=np.int64), np.array([10, 10, 5], dtype=np.int64)
    kept = RowSelection.from_pages(first, count, np.array([False, True, True]))
    assert kept.to_pairs() == [[10, 15]]
    assert not RowSelection.none()
    assert RowSelection.none().to_pairs() == []

"""Sort orders against Python's own sorting, for values of every type; defining properties of curves."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floeplan.rewrite.strategies.curves import (
    SAMPLE_ROWS,
    Curve,
    bits_per_column,
    cell_bits,
    cell_codes,
    comparable,
    curve_rows,
    curve_words,
    interleave,
    order_words,
)
from floeplan.rewrite.strategies.hilbert import hilbert_position
from tests.support.oracles.datasets import to_arrow
from tests.support.oracles.values import TYPES, values

pytestmark = pytest.mark.property


@dataclass(frozen=True)
class SortKey:
    descending: bool = False
    nulls_first: bool = True


@st.composite
def columns(draw: st.DrawFn, rows: int) -> tuple[list[Any], pa.Array]:
    """Canonical values of some type with nulls, and the same values as Arrow."""
    type_ = draw(st.sampled_from(TYPES))
    listed = draw(st.lists(st.none() | values(type_), min_size=rows, max_size=rows))
    return listed, to_arrow(type_, listed)


def sort_key(value: Any) -> Any:
    """A key that Python sorts as Spark does."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    return value.encode() if isinstance(value, str) else value


def python_order(listed: list[list[Any]], keys: list[SortKey]) -> list[int]:
    """Stable sorts from the last key to the first."""
    rows = list(range(len(listed[0])))
    for column, key in reversed(list(zip(listed, keys, strict=True))):
        absent = [row for row in rows if column[row] is None]
        present = [row for row in rows if column[row] is not None]
        present.sort(key=lambda row: sort_key(column[row]), reverse=key.descending)
        rows = absent + present if key.nulls_first else present + absent
    return rows


both_curves = pytest.mark.parametrize("curve", [interleave, hilbert_position])


@given(st.data(), st.integers(1, 30), st.integers(1, 16))
def test_codes_of_a_curve_keep_the_order_of_every_column(data: st.DataObject, rows: int, bits: int) -> None:
    listed, array = data.draw(columns(rows))
    codes = cell_codes(order_words(array).words, bits).tolist()
    assert all(0 <= code < 1 << bits for code in codes)
    order = python_order([listed], [SortKey(nulls_first=False)])
    assert [codes[row] for row in order] == sorted(codes)
    distinct = len({repr(sort_key(value)) if value is not None else None for value in listed})
    if distinct <= 1 << bits:
        assert len(set(codes)) == distinct


@pytest.mark.parametrize(("axes", "bits"), [(1, 4), (2, 1), (2, 2), (2, 5), (3, 3), (4, 2), (5, 2)])
def test_the_hilbert_curve_visits_every_cell_once_and_never_jumps(axes: int, bits: int) -> None:
    cells = np.array(list(itertools.product(range(1 << bits), repeat=axes)), dtype=np.uint64)
    (place,) = hilbert_position([cells[:, axis] for axis in range(axes)], bits)
    path = cells[np.argsort(place)].astype(np.int64)
    assert len(np.unique(place)) == len(cells)
    assert (np.abs(np.diff(path, axis=0)).sum(axis=1) == 1).all()


@both_curves
def test_a_position_looked_up_by_cell_is_that_of_the_row(curve: Curve) -> None:
    rng = np.random.default_rng(4)
    codes = [rng.integers(0, 8, 5000).astype(np.uint64) for _ in range(3)]
    few = [code[:100] for code in codes]
    assert curve_words(codes, 3, curve)[0][:100].tolist() == curve_words(few, 3, curve)[0].tolist()


@given(st.data())
def test_codes_of_many_rows_keep_their_order(data: st.DataObject) -> None:
    """Codes keep the order of the values although they are computed from a sample."""
    type_, rng = (
        data.draw(st.sampled_from(["long", "float", "text"])),
        np.random.default_rng(data.draw(st.integers(0, 9))),
    )
    numbers = rng.integers(-500, 500, SAMPLE_ROWS + 500)
    made = {
        "long": lambda: pa.array(numbers, mask=rng.random(len(numbers)) < 0.1),
        "float": lambda: pa.array(np.where(numbers > 400, np.nan, numbers / 7)),
        "text": lambda: pa.array([f"begins alike {number + 1000:05d} {number}" for number in numbers.tolist()]),
    }[type_]()
    codes = cell_codes(order_words(made).words, 5)
    order = np.asarray(pc.sort_indices(comparable(made)))
    assert (np.diff(codes[order].astype(np.int64)) >= 0).all()
    assert len(np.unique(codes)) == 32


@given(st.lists(st.integers(0, 255), min_size=1, max_size=9))
def test_bits_are_interleaved_first_column_first(codes: list[int]) -> None:
    words = interleave([np.array([code], dtype=np.uint64) for code in codes], 8)
    text = "".join(f"{int(word[0]):064b}" for word in words)[: 8 * len(codes)]
    assert text == "".join(f"{code:08b}"[bit] for bit in range(8) for code in codes)


@pytest.mark.parametrize("columns_", [1, 2, 5, 33, 70])
@both_curves
def test_any_number_of_columns_makes_a_curve(columns_: int, curve: Curve) -> None:
    rng = np.random.default_rng(columns_)
    data = [pa.chunked_array([rng.integers(0, 9, 20)]) for _ in range(columns_)]
    assert sorted(curve_rows(data, curve).tolist()) == list(range(20))
    assert bits_per_column(columns_) >= 1


@both_curves
def test_rows_of_one_cell_are_sorted_by_the_first_column(curve: Curve) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.permutation(50_000), rng.permutation(50_000)
    rows = curve_rows([pa.chunked_array([pa.array(column)]) for column in (x, y)], curve)
    bits = cell_bits(2, 50_000)
    assert bits == 4, "cells with hundreds of rows"
    cells = (x[rows] * (1 << bits) // 50_000) * (1 << bits) + y[rows] * (1 << bits) // 50_000
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    assert len(starts) == 1 << 2 * bits, "every cell is a contiguous range of the curve"
    assert all(np.all(np.diff(part) > 0) for part in np.split(x[rows], starts[1:]))


@both_curves
def test_a_curve_brings_rows_together_that_are_close_in_both_columns(curve: Curve) -> None:
    """A filter on both columns reads far fewer files in curve order than in arrival order."""
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=64_000), rng.integers(0, 10**6, 64_000)
    text = pc.binary_join_element_wise(pa.scalar("key-with-a-long-prefix-"), pa.array(y).cast(pa.string()), "")
    rows = curve_rows([pa.chunked_array([pa.array(x)]), pa.chunked_array([text])], curve)
    texts = text.take(pa.array(rows)).to_numpy(zero_copy_only=False).reshape(400, -1)
    numbers = x[rows].reshape(400, -1)
    low, high = "key-with-a-long-prefix-30", "key-with-a-long-prefix-32"
    read = (numbers.min(1) <= 0.1) & (numbers.max(1) >= 0) & (texts.min(1) <= high) & (texts.max(1) >= low)
    assert np.count_nonzero(read) <= 400 // 10

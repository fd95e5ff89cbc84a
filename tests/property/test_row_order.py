"""Sorting by one number per row against Python's own sorting, for short and long common prefixes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floeplan.write.partitioning import SortKey, key_prefix, sort_by_prefixes, sorted_row_numbers

pytestmark = pytest.mark.property

EXTREMES = st.sampled_from([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1])
TEXTS = st.text("ab\x00é", max_size=3).map(lambda end: "the same beginning of all " + end)
WIDE = st.integers(-(10**37), 10**37).map(lambda unscaled: Decimal(unscaled).scaleb(-2))
NARROW = st.integers(-5, 5).map(lambda unscaled: Decimal(unscaled).scaleb(-2))
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), EXTREMES),
    (pa.int32(), st.integers(0, 3)),
    (pa.bool_(), st.booleans()),
    (pa.large_string(), TEXTS),
    (pa.string(), st.text(max_size=12)),
    (pa.large_binary(), st.binary(max_size=20)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal128(38, 2), WIDE | NARROW),
    (pa.decimal128(38, 2), NARROW),
]


def in_order(columns: list[list[Any]], keys: list[SortKey]) -> list[int]:
    rows = list(range(len(columns[0])))
    for values, key in reversed(list(zip(columns, keys, strict=True))):
        comparable = [value.encode() if isinstance(value, str) else value for value in values]
        absent = [row for row in rows if values[row] is None]
        present = [row for row in rows if values[row] is not None]
        present.sort(key=comparable.__getitem__, reverse=key.descending)
        rows = absent + present if key.nulls_first else present + absent
    return rows


@given(st.data(), st.integers(1, 3), st.integers(1, 40))
def test_rows_are_in_the_order_of_all_keys_and_equal_ones_keep_theirs(
    data: st.DataObject, width: int, rows: int
) -> None:
    columns, keys = [], []
    for _ in range(width):
        type_, values = data.draw(st.sampled_from(KINDS))
        columns.append(
            data.draw(
                st.lists(st.none() | values if data.draw(st.booleans()) else values, min_size=rows, max_size=rows)
            )
        )
        array = pa.concat_arrays([pa.array(columns[-1][:1], type_), pa.array(columns[-1], type_)]).slice(1)
        keys.append(SortKey(array, data.draw(st.booleans()), data.draw(st.booleans())))
    assert sorted_row_numbers(keys).tolist() == in_order(columns, keys)


@pytest.mark.parametrize("descending", [False, True])
def test_texts_that_repeat_are_as_good_as_numbers(descending: bool) -> None:
    """Sorting by prefixes is exact: the rank of the text and the number fit into one word."""
    rng = np.random.default_rng(2)
    texts = [f"a text that is long {n}" for n in rng.integers(0, 9, 20_000).tolist()]
    numbers = rng.integers(0, 10**6, 20_000)
    keys = [SortKey(pa.array(texts), descending), SortKey(pa.array(numbers))]
    assert sort_by_prefixes(map(key_prefix, keys), len(texts))[1]
    assert sorted_row_numbers(keys).tolist() == in_order([texts, numbers.tolist()], keys)

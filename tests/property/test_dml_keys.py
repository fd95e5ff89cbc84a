"""Merge keys: the index finds the same pairs as nested loops with Spark's equality."""

from __future__ import annotations

import math
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floeplan.dml.merge.compile import key_predicate
from floeplan.dml.merge.join import KeyIndex, common_key_type, key_values
from floeplan.predicate.ir import Column
from floeplan.predicate.rows.evaluate import matching_mask

pytestmark = pytest.mark.property

SOME = {
    pa.int32(): st.integers(-3, 3),
    pa.int64(): st.integers(-3, 3) | st.sampled_from([2**31, -(2**31) - 1, 2**40]),
    pa.float32(): st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, math.nan, -math.inf]),
    pa.string(): st.sampled_from(["", "a", "b", "é"]),
    pa.decimal128(9, 2): st.decimals(-3, 3, places=2),
    pa.date32(): st.sampled_from([date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)]),
    pa.timestamp("us"): st.sampled_from([datetime(1, 1, 1), datetime(2024, 2, 29, 1), datetime(9999, 12, 31)]),
    pa.bool_(): st.booleans(),
    pa.binary(2): st.sampled_from([b"ab", b"\0\0", b"\xff\xff"]),
    pa.binary(): st.sampled_from([b"", b"a", b"\0"]),
}
TOGETHER = [
    (pa.int32(), pa.int32()),
    (pa.int32(), pa.int64()),
    (pa.int64(), pa.int32()),
    (pa.float32(), pa.float64()),
    (pa.float64(), pa.float64()),
    (pa.string(), pa.string()),
    (pa.decimal128(9, 2), pa.decimal128(9, 2)),
    *((type_, type_) for type_ in (pa.date32(), pa.timestamp("us"), pa.bool_(), pa.binary(2), pa.binary())),
]


def values(type_: pa.DataType, rows: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | SOME[type_], min_size=rows, max_size=rows)


@st.composite
def sides(draw: st.DrawFn) -> tuple[list[pa.Array], list[pa.Array], list[bool]]:
    types = draw(st.lists(st.sampled_from(TOGETHER), min_size=0, max_size=3))
    left, right = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    target = [pa.array(draw(values(mine, left)), mine) for mine, _ in types]
    source = [pa.array(draw(values(other, right)), other) for _, other in types]
    if not types:
        return [pa.nulls(left)], [pa.nulls(right)], []
    return target, source, [draw(st.booleans()) for _ in types]


def equal(left: Any, right: Any, null_safe: bool) -> bool:
    if left is None or right is None:
        return null_safe and left is right
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)


@given(sides(), st.data())
def test_pairs_are_those_of_nested_loops(
    drawn: tuple[list[pa.Array], list[pa.Array], list[bool]], data: st.DataObject
) -> None:
    target, source, null_safe = drawn
    rows = len(target[0]), len(source[0])
    usable = [np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=np.bool_) for n in rows]
    keyed = list(zip(target, source, null_safe, strict=False)) if null_safe else []
    types = [common_key_type(left.type, right.type) for left, right, _ in keyed]
    index = KeyIndex.build(
        [key_values(right, type_) for (_, right, _), type_ in zip(keyed, types, strict=True)], null_safe, usable[1]
    )
    found = index.pairs([key_values(left, t) for (left, _, _), t in zip(keyed, types, strict=True)], usable[0])
    lists = [(left.to_pylist(), right.to_pylist(), safe) for left, right, safe in keyed]
    expected = [
        (i, j)
        for i in range(rows[0])
        for j in range(rows[1])
        if usable[0][i] and usable[1][j] and all(equal(left[i], right[j], safe) for left, right, safe in lists)
    ]
    assert sorted(zip(found[0].tolist(), found[1].tolist(), strict=True)) == expected


@pytest.mark.parametrize("listed", [0, 10_000])
@given(data=st.data())
def test_rows_that_match_a_key_satisfy_the_predicate_of_the_plan(listed: int, data: st.DataObject) -> None:
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids

    mine, other = data.draw(st.sampled_from(TOGETHER))
    target = pa.array(data.draw(values(mine, 6)), mine)
    source = pa.array(data.draw(values(other, 4)), other)
    schema = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(pa.schema([("k", mine)])))
    column = Column(1, schema.find_type(1), ("k",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("floeplan.dml.merge.compile.LISTED_KEYS", listed)
        predicate = key_predicate(column, key_values(source, common_key_type(mine, other)))
    kept = matching_mask(predicate, pa.table({"k": target}), schema)
    keys = source.to_pylist()
    for row, value in enumerate(target.to_pylist()):
        if any(equal(value, key, null_safe=False) for key in keys):
            assert kept[row]

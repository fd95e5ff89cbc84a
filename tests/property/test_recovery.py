"""A recovered partition is the partition of every row, for any valid statistics."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField

from floeplan.partition.fields import bind_field
from floeplan.partition.recover import recover
from floeplan.partition.transforms import from_physical
from tests.support.oracles.rows import order_key
from tests.support.oracles.statistics import Summary, column_stats, weakened
from tests.support.oracles.values import CASES, awkward_values, neighbours, specified, values

pytestmark = pytest.mark.property


@given(st.data())
def test_every_value_of_a_file_has_the_recovered_partition(data: st.DataObject) -> None:
    transform, type_ = data.draw(st.sampled_from(CASES))
    pool = awkward_values(transform, type_)
    start = data.draw(st.sampled_from(pool) | values(type_) if pool else values(type_))
    close = [start, *neighbours(type_, start)]
    files = data.draw(st.lists(st.lists(st.sampled_from([*close, None]), max_size=4), min_size=1, max_size=4))
    summaries = [data.draw(weakened(type_, Summary.of(rows)).filter(lambda s: s.rows >= 0)) for rows in files]
    field = PartitionField(source_id=1, field_id=1000, transform=transform, name="p")
    result = recover(bind_field(field, {1: (type_,)}), column_stats(type_, summaries), len(summaries))
    for at, rows in enumerate(files):
        if result.recovered[at]:
            listed = result.values.tolist()[at]
            found = None if result.is_null[at] else from_physical(transform.result_type(type_), listed)
            for row in rows:
                assert _same(specified(transform, type_, row), found), f"{row} is not in partition {found}"


def _same(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return bool(order_key(left) == order_key(right)) and not (isinstance(left, float) and math.isnan(left))

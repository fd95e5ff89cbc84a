"""Packing whole columns of files equals packing them one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floeplan.rewrite.plan.groups import next_fit
from tests.support.spark.iceberg_java import pack

pytestmark = pytest.mark.property


@given(
    st.lists(st.lists(st.integers(0, 120), min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(1, 200),
    st.integers(1, 5) | st.just(2**63 - 1),
)
def test_packing_all_partitions_at_once_packs_each_as_java_does(
    partitions: list[list[int]], limit: int, most: int
) -> None:
    weights = np.array([w for partition in partitions for w in partition], dtype=np.int64)
    starts = np.cumsum([0, *map(len, partitions)])[:-1]
    cuts = next_fit(weights, starts, limit, most)
    found = [part.tolist() for part in np.split(weights, cuts[1:])]
    assert found == [group for partition in partitions for group in pack(partition, limit, max_items=most)]

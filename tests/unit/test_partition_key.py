"""Partition keys group files and join deletes with data: Iceberg's equality, per spec, in a stable order."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg import transforms as pt
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, DecimalType, DoubleType, LongType, NestedField, StringType

from floeplan.errors import UnknownSpecError
from floeplan.partition.fields import source_types
from floeplan.partition.key import PartitionKey, group_codes
from floeplan.partition.union import UnionPartitionType

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "s", StringType(), required=False),
    NestedField(2, "f", DoubleType(), required=False),
    NestedField(3, "d", DecimalType(9, 2), required=False),
    NestedField(4, "b", BooleanType(), required=False),
    NestedField(5, "n", LongType(), required=False),
)


def spec(spec_id: int, *fields: tuple[int, int, Any]) -> PartitionSpec:
    return PartitionSpec(*(PartitionField(s, i, t, f"p{i}") for i, s, t in fields), spec_id=spec_id)


IDENTITY, VOID = pt.IdentityTransform(), pt.VoidTransform()
UNION = UnionPartitionType.of(
    [
        spec(0),
        spec(1, (1000, 1, IDENTITY), (1001, 2, IDENTITY)),
        spec(2, (1000, 1, VOID), (1002, 3, IDENTITY), (1003, 4, IDENTITY)),
        spec(5, (1000, 1, VOID)),
    ],
    source_types(SCHEMA),
)


def test_nan_is_one_partition_and_zeros_of_different_sign_are_two() -> None:
    assert PartitionKey(1, (float("nan"),)) == PartitionKey(1, (-math.nan,))
    assert hash(PartitionKey(1, (float("nan"),))) == hash(PartitionKey(1, (math.nan,)))
    assert PartitionKey(1, (0.0,)) != PartitionKey(1, (-0.0,))
    assert PartitionKey(1, (None,)) != PartitionKey(1, (0.0,))


def test_specs_never_share_a_key() -> None:
    assert PartitionKey(1, ("a",)) != PartitionKey(2, ("a",))
    assert PartitionKey(1, None) != PartitionKey(2, None)
    assert len({PartitionKey(1, ("a",)), PartitionKey(1, ("a",)), PartitionKey(1, ("b",))}) == 2


@pytest.mark.parametrize(
    ("spec_id", "values", "partition"), [(0, [], None), (5, [None], None), (1, ["a", None], ("a", None))]
)
def test_a_file_has_no_partition_exactly_when_its_own_spec_is_unpartitioned(
    spec_id: int, values: list[Any], partition: Any
) -> None:
    assert PartitionKey.from_tuple(UNION.spec(spec_id), values).partition == partition


def test_the_order_is_total_and_stable() -> None:
    ordered = [
        PartitionKey(1, (None, 1.0)),
        PartitionKey(1, ("a", None)),
        PartitionKey(1, ("a", -math.inf)),
        PartitionKey(1, ("a", -0.0)),
        PartitionKey(1, ("a", 0.0)),
        PartitionKey(1, ("a", math.nan)),
        PartitionKey(1, ("b", -1.0)),
        PartitionKey(2, (None, Decimal("1.00"), True)),
        PartitionKey(5, None),
    ]
    shuffled = random.Random(7).sample(ordered, len(ordered))
    assert sorted(shuffled, key=PartitionKey.sort_key) == ordered


def test_files_are_grouped_by_their_own_spec_and_tuple() -> None:
    spec_ids = np.array([1, 0, 1, 2, 2, 1, 5, 1, 2, 0, 1], dtype=np.int32)
    columns = {
        1000: pa.array(["a", "x", "a", "a", "b", "a", None, None, "c", None, "a"], pa.large_string()),
        1001: pa.array([0.0, 1.0, math.nan, None, None, -0.0, None, 0.0, None, None, -math.nan]),
        1002: pa.array([7, 1, 8, 150, 150, 9, 3, None, None, None, 1], pa.int64()),
        1003: pa.array([0, 0, 1, 1, 1, 0, 0, 1, 1, None, 1], pa.int64()),
    }
    codes, keys = group_codes(UNION, spec_ids, columns)
    assert codes.tolist() == [0, 1, 2, 3, 3, 4, 5, 6, 7, 1, 2]
    assert keys == [
        PartitionKey(1, ("a", 0.0)),
        PartitionKey(0, None),
        PartitionKey(1, ("a", math.nan)),
        PartitionKey(2, (None, Decimal("1.50"), True)),
        PartitionKey(1, ("a", -0.0)),
        PartitionKey(5, None),
        PartitionKey(1, (None, 0.0)),
        PartitionKey(2, (None, None, True)),
    ]
    assert keys[3].partition == (None, Decimal("1.50"), True)


def test_codes_are_shared_when_data_and_deletes_are_numbered_together() -> None:
    """As the delete index requires: equal tuples get equal codes."""
    spec_ids = np.array([1, 1, 1])
    columns = {1000: pa.array(["a", "b", "a"]), 1001: pa.array([1.5, 1.5, 1.5])}
    codes, _ = group_codes(UNION, spec_ids, columns)
    assert codes[0] == codes[2] != codes[1]


def test_no_files_and_no_columns() -> None:
    codes, keys = group_codes(UNION, np.array([], dtype=np.int32), {1000: pa.array([], pa.string())})
    assert (codes.tolist(), keys) == ([], [])
    codes, keys = group_codes(UNION, np.array([1, 0, 1]), {})
    assert (codes.tolist(), keys) == ([0, 1, 0], [PartitionKey(1, (None, None)), PartitionKey(0, None)])


def test_a_file_of_an_unknown_spec_is_an_error() -> None:
    with pytest.raises(UnknownSpecError, match="no partition spec 9"):
        group_codes(UNION, np.array([1, 9]), {})

"""Equality deletes: matching rows by key."""

from __future__ import annotations

import math
from decimal import Decimal

import pyarrow as pa
import pytest

from floeplan.scan.delete_files import matches_any

pytestmark = pytest.mark.unit


def test_all_key_columns_must_be_equal() -> None:
    rows = pa.table({"a": [1, 1, 2, 2], "b": ["x", "y", "x", "y"]})
    assert matches_any(rows, pa.table({"a": [1, 2], "b": ["y", "x"]})).tolist() == [False, True, True, False]


def test_null_equals_null_in_any_key_column() -> None:
    rows = pa.table({"a": pa.array([None, None, 1]), "b": ["x", "y", "x"]})
    assert matches_any(rows, pa.table({"a": pa.array([None], pa.int64()), "b": ["x"]})).tolist() == [True, False, False]


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()])
def test_nan_equals_nan_and_zeros_have_a_sign(type_: pa.DataType) -> None:
    rows = pa.table({"f": pa.array([0.0, -0.0, math.nan, None, 1.5], type_)})
    found = matches_any(rows, pa.table({"f": pa.array([-0.0, math.nan], type_)}))
    assert found.tolist() == [False, True, True, False, False]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([True, False]),
        pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(30, 2)),
        pa.array([b"a", b"b"]),
        pa.array([b"a" * 16, b"b" * 16], pa.binary(16)),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16, b"b" * 16], pa.binary(16))),
        pa.array([1, 2], pa.timestamp("us", "UTC")),
    ],
    ids=lambda array: str(array.type),
)
def test_every_key_type(values: pa.Array) -> None:
    rows = pa.table({"k": values})
    assert matches_any(rows, rows.slice(1)).tolist() == [False, True]


def test_no_deletes_match_nothing() -> None:
    rows = pa.table({"a": [1, 2]})
    assert matches_any(rows, rows.slice(0, 0)).tolist() == [False, False]

"""Buckets of whole columns equal PyIceberg's buckets of single values."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import BinaryType, DateType, LongType, PrimitiveType, StringType, TimestampType, UUIDType

from floeplan.partition.transforms import apply_vector

pytestmark = pytest.mark.property

BUCKETS = st.integers(1, 2**31 - 1)


def one_by_one(transform: BucketTransform[Any], type_: PrimitiveType, values: list[Any]) -> list[int]:
    return [transform.transform(type_)(value) for value in values]  # type: ignore[misc]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), BUCKETS, st.sampled_from([LongType(), TimestampType()]))
def test_integers(values: list[int], count: int, type_: PrimitiveType) -> None:
    transform: BucketTransform[Any] = BucketTransform(count)
    found = apply_vector(transform, type_, np.array(values, dtype=np.int64))
    assert list(found) == one_by_one(transform, type_, values)


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), BUCKETS)
def test_days(values: list[int], count: int) -> None:
    transform: BucketTransform[Any] = BucketTransform(count)
    found = apply_vector(transform, DateType(), np.array(values, dtype=np.int64))
    assert list(found) == one_by_one(transform, DateType(), values)


@given(st.lists(st.text(st.characters(codec="utf-8"))), BUCKETS, st.integers(0, 3))
def test_text(values: list[str], count: int, skipped: int) -> None:
    transform: BucketTransform[Any] = BucketTransform(count)
    found = apply_vector(transform, StringType(), pa.array(values, pa.large_string()).slice(skipped))
    assert list(found) == one_by_one(transform, StringType(), values[skipped:])


@given(st.lists(st.binary()), BUCKETS)
def test_bytes(values: list[bytes], count: int) -> None:
    transform: BucketTransform[Any] = BucketTransform(count)
    found = apply_vector(transform, BinaryType(), pa.array(values, pa.large_binary()))
    assert list(found) == one_by_one(transform, BinaryType(), values)


@given(st.lists(st.uuids()), BUCKETS)
def test_uuids(values: list[uuid.UUID], count: int) -> None:
    transform: BucketTransform[Any] = BucketTransform(count)
    found = apply_vector(transform, UUIDType(), pa.array([value.bytes for value in values], pa.large_binary()))
    assert list(found) == one_by_one(transform, UUIDType(), values)

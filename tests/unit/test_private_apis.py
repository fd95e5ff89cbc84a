"""Private APIs that one module each depends on: these tests fail when a new release changes them."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

from floeplan.schemas import fields_by_id

pytestmark = pytest.mark.unit


def test_the_cached_field_index_of_a_schema_equals_the_public_one() -> None:
    inner = StructType(NestedField(4, "x", IntegerType()))
    schema = Schema(NestedField(1, "a", IntegerType()), NestedField(2, "b", ListType(3, inner)))
    assert fields_by_id(schema) == index_by_id(schema)
    assert fields_by_id(schema) is fields_by_id(schema)

"""Private APIs that one module each depends on: these tests fail when a new release changes them."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

from floeplan.parquet.pages import zstd
from floeplan.schemas import fields_by_id

pytestmark = pytest.mark.unit


def test_the_cached_field_index_of_a_schema_equals_the_public_one() -> None:
    inner = StructType(NestedField(4, "x", IntegerType()))
    schema = Schema(NestedField(1, "a", IntegerType()), NestedField(2, "b", ListType(3, inner)))
    assert fields_by_id(schema) == index_by_id(schema)
    assert fields_by_id(schema) is fields_by_id(schema)


def test_the_cffi_binding_of_zstandard_compresses_external_matches() -> None:
    assert zstd.available, "zstandard._cffi has changed: see floeplan/parquet/pages/zstd.py"
    numbers = np.arange(100_000, dtype="<i8").tobytes()
    compressed = zstd.NeighbourCompressor().compress(memoryview(numbers), 0, 8)
    assert len(compressed) < len(numbers)
    assert zstandard.ZstdDecompressor().decompress(compressed, max_output_size=len(numbers)) == numbers
    packed = zstandard.ZstdCompressor().compress(numbers)
    assert zstd.Decompressor().decompress(memoryview(packed), len(numbers)).tobytes() == numbers

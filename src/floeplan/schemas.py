"""Fields of a PyIceberg schema by id, nested fields included.

PyIceberg's public ``index_by_id`` walks the schema on every call (0.14 ms for 100 columns); a schema caches the same
index in a private property. This module is the only user of that property; ``tests/unit/test_private_apis.py`` fails
when it changes.
"""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField


def fields_by_id(schema: Schema) -> dict[int, NestedField]:
    """Every field of a schema by its id; do not modify the result."""
    return schema._lazy_id_to_field

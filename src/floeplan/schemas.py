"""Fields of a PyIceberg schema by id, and of a name mapping by name, nested fields included.

PyIceberg's public ``index_by_id`` walks the schema on every call (0.14 ms for 100 columns); a schema caches the same
index in a private property. A name mapping has its fields by name in a private property only. This module is the only
user of both; ``tests/unit/test_private_apis.py`` fails when they change.
"""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import NestedField

from floeplan.errors import UnsupportedError

FIELD_ID = b"PARQUET:field_id"
"""Key of an Arrow field's metadata under which pyarrow and PyIceberg keep its field id."""


def fields_by_id(schema: Schema) -> dict[int, NestedField]:
    """Every field of a schema by its id; do not modify the result."""
    return schema._lazy_id_to_field


def mapped_field_ids(mapping: NameMapping | None, file: str) -> dict[str, int]:
    """Field ids by column name for a file without field ids; a table without a name mapping is an error.

    Columns are never guessed by name or position.
    """
    if mapping is None:
        raise UnsupportedError(
            f"the columns of {file} carry no field ids and the table has no name mapping; "
            "set the table property schema.name-mapping.default",
            context={"file": file},
        )
    return {name: field.field_id for name, field in mapping._field_by_name.items() if field.field_id is not None}

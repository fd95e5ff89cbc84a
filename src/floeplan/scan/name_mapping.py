"""Field ids for files that carry none, by the table's name mapping.

Fail-safe: a column the mapping does not name gets no id and is not read; a table without a mapping cannot say what the
columns of such a file are, which is an error and not a guess by name or position.
"""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.table.name_mapping import NameMapping

from floeplan.errors import UnsupportedError
from floeplan.scan.projection import FIELD_ID


def with_mapped_ids(table: pa.Table, mapping: NameMapping | None, path: str) -> pa.Table:
    """The same rows with the field ids that the mapping gives to their columns."""
    if mapping is None:
        raise UnsupportedError(
            f"the columns of {path} carry no field ids and the table has no name mapping; "
            "set the table property schema.name-mapping.default",
            context={"file": path},
        )
    names = mapping._field_by_name
    ids = {name: field.field_id for name, field in names.items() if field.field_id is not None}
    fields = [_mapped(field, field.name, ids) for field in table.schema]
    columns = [column.cast(field.type) for column, field in zip(table.columns, fields, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _mapped(field: pa.Field, path: str, ids: dict[str, int]) -> pa.Field:
    type_ = _mapped_type(field.type, path, ids)
    metadata = {FIELD_ID: str(ids[path])} if path in ids else None
    return pa.field(field.name, type_, field.nullable, metadata)


def _mapped_type(type_: pa.DataType, path: str, ids: dict[str, int]) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([_mapped(child, f"{path}.{child.name}", ids) for child in type_])
    if pa.types.is_list(type_):
        return pa.list_(_mapped(type_.value_field, f"{path}.element", ids))
    if pa.types.is_large_list(type_):
        return pa.large_list(_mapped(type_.value_field, f"{path}.element", ids))
    if pa.types.is_map(type_):
        key = _mapped(type_.key_field, f"{path}.key", ids)
        return pa.map_(key, _mapped(type_.item_field, f"{path}.value", ids))
    return type_

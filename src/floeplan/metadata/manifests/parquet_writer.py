"""Writes manifest entries as a Parquet file, as Iceberg 1.12.0 does in tables of format 4.

Rule: fields, ids and optionality are those of the schema; the footer has the same properties as an Avro header, and
gzip compresses, as Iceberg does by default.
Fail-safe: a null in a required field is an error, and so is a value that does not fit its type.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from floeplan.errors import CorruptMetadataError
from floeplan.vectors import offsets_of, valid_mask


def parquet_file(
    schema: Schema, columns: Mapping[str, pa.Array], renamed: Mapping[int, str], rows: int, properties: dict[str, str]
) -> bytes:
    """The bytes of a Parquet file.

    Args:
        schema: The fields of an entry.
        columns: The columns of entries by field name; a field without one is null everywhere.
        renamed: The columns of some fields by field id.
        rows: The number of entries.
        properties: For the footer.
    """
    import pyarrow.parquet as pq  # late: only tables of format 4 need it
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    stored = schema_to_pyarrow(schema)
    try:
        arrays = [_array(field, columns, renamed, rows) for field in stored]
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, stored, compression="gzip", store_schema=False) as writer:
            writer.write_table(pa.Table.from_arrays(arrays, schema=stored))
            writer.add_key_value_metadata(properties)
    except pa.ArrowException as error:
        raise CorruptMetadataError(f"entries cannot be written as Parquet: {error}") from error
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _array(field: pa.Field, columns: Mapping[str, pa.Array], renamed: Mapping[int, str], rows: int) -> pa.Array:
    type_ = field.type
    if pa.types.is_struct(type_):
        inner = [_array(one, columns, renamed, rows) for one in type_]
        return pa.StructArray.from_arrays(inner, fields=list(type_))
    name = renamed.get(int(field.metadata[b"PARQUET:field_id"]), field.name)
    values = columns.get(name)
    if values is None:
        return pa.nulls(rows, type_)
    if pa.types.is_map(type_):  # entries have maps as lists of key and value
        pairs, counts = values.flatten(), pc.list_value_length(values).fill_null(0)
        offsets = pa.array(offsets_of(np.asarray(counts)), pa.int32())
        keys, items = (pairs.field(at).cast(part) for at, part in enumerate((type_.key_type, type_.item_type)))
        return pa.MapArray.from_arrays(offsets, keys, items, type_, mask=pa.array(~valid_mask(values)))
    if isinstance(type_, pa.BaseExtensionType):  # UUIDs
        return pa.ExtensionArray.from_storage(type_, values.cast(type_.storage_type))
    return values.cast(type_)

"""Writes Arrow tables as Parquet, ORC and Avro files with Iceberg's field ids, as engines write them.

ORC is written by pyarrow and Avro by fastavro; field ids come from the metadata of the Arrow fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq

FIELD_ID = b"PARQUET:field_id"
SECOND = 1_000_000_000


def write_rows(table: pa.Table, path: Path, *, group: int | None = None, ids: bool = True, **options: Any) -> None:
    """Write a file in the format of its suffix; ``group`` is about the rows of a row group, stripe or block."""
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path, row_group_size=group, **options)
        case ".orc":
            fields = [_orc_field(field, ids) for field in table.schema]
            columns = [column.cast(field.type) for column, field in zip(table.columns, fields, strict=True)]
            made = pa.Table.from_arrays(columns, schema=pa.schema(fields))
            batch = {} if group is None else {"batch_size": group, "stripe_size": 1}
            orc.write_table(made, str(path), **batch, **options)
        case ".avro":
            names = (f"t{n}" for n in count())
            schema = {"type": "record", "name": "table", "fields": [_avro_field(f, names, ids) for f in table.schema]}
            rows = [
                {f.name: _avro_value(v, f.type) for f, v in zip(table.schema, row, strict=True)} for row in _rows(table)
            ]
            interval = {} if group is None else {"sync_interval": 8 * group}
            with path.open("wb") as file:
                fastavro.writer(file, fastavro.parse_schema(schema), rows, **interval, **options)


def can_be_orc(table: pa.Table) -> bool:
    """Whether ORC stores every value: no times beyond nanoseconds, or within the second before 1970."""
    for column in table.columns:
        if pa.types.is_timestamp(column.type):
            ticks = column.cast(pa.int64()).drop_null()
            second = SECOND if column.type.unit == "ns" else SECOND // 1000
            near = pc.and_(pc.greater(ticks, -second), pc.less(ticks, 0))
            far = pc.greater(pc.abs_checked(pc.max_element_wise(ticks, -(2**62))), 9 * 10**9 * second)
            if pc.any(near).as_py() or pc.any(far).as_py():
                return False
    return True


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    columns = [_plain(column) for column in table.columns]
    return zip(*columns, strict=True)


def _plain(column: pa.ChunkedArray) -> list[Any]:
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_timestamp(column.type) or pa.types.is_time64(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return column.to_pylist()


def _avro_value(value: Any, type_: pa.DataType) -> Any:
    """Maps as Avro has them: text keys as a map, others as a list of pairs."""
    if value is None:
        return None
    if pa.types.is_map(type_):
        pairs = [(_avro_value(k, type_.key_type), _avro_value(v, type_.item_type)) for k, v in value]
        return dict(pairs) if _is_text(type_.key_type) else [{"key": k, "value": v} for k, v in pairs]
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return [_avro_value(item, type_.value_type) for item in value]
    if pa.types.is_struct(type_):
        return {field.name: _avro_value(value[field.name], field.type) for field in type_}
    return value


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _id(field: pa.Field) -> int:
    return int(field.metadata[FIELD_ID])


def _avro_field(field: pa.Field, names: Iterator[str], ids: bool) -> dict[str, Any]:
    made = {"name": field.name, "type": _avro(field, names, ids)}
    return made | ({"default": None} if field.nullable else {}) | ({"field-id": _id(field)} if ids else {})


def _avro(field: pa.Field, names: Iterator[str], ids: bool) -> Any:
    type_ = _avro_type(field.type, names, ids)
    return ["null", type_] if field.nullable else type_


def _avro_type(type_: pa.DataType, names: Iterator[str], ids: bool) -> Any:
    if isinstance(type_, pa.BaseExtensionType):
        return {"type": "fixed", "name": next(names), "size": 16}
    if pa.types.is_struct(type_):
        return {"type": "record", "name": next(names), "fields": [_avro_field(f, names, ids) for f in type_]}
    if pa.types.is_map(type_):
        key, value = type_.key_field, type_.item_field
        if _is_text(key.type):
            given = {"key-id": _id(key), "value-id": _id(value)} if ids else {}
            return {"type": "map", "values": _avro(value, names, ids)} | given
        pair = {"type": "record", "name": next(names), "fields": []}
        pair["fields"] = [
            _avro_field(key, names, ids) | {"name": "key"},
            _avro_field(value, names, ids) | {"name": "value"},
        ]
        return {"type": "array", "logicalType": "map", "items": pair}
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        given = {"element-id": _id(type_.value_field)} if ids else {}
        return {"type": "array", "items": _avro(type_.value_field, names, ids)} | given
    if pa.types.is_decimal(type_):
        size = 1 + int(type_.precision * 3.3219281 + 1) // 8
        sized = {"type": "fixed", "name": next(names), "size": min(16, size)}
        return sized | {"logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    if pa.types.is_fixed_size_binary(type_):
        return {"type": "fixed", "name": next(names), "size": type_.byte_width}
    if pa.types.is_timestamp(type_):
        unit = "nanos" if type_.unit == "ns" else "micros"
        # fastavro would convert logical types of its own; Iceberg's readers take them from these properties.
        return {"type": "long", "logicalType": f"timestamp-{unit}", "adjust-to-utc": type_.tz is not None}
    plain = {
        pa.bool_(): "boolean",
        pa.int32(): "int",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.string(): "string",
        pa.large_string(): "string",
        pa.binary(): "bytes",
        pa.large_binary(): "bytes",
        pa.date32(): {"type": "int", "logicalType": "date"},
        pa.time64("us"): {"type": "long", "logicalType": "time-micros"},
    }
    return plain[type_]


def _orc_field(field: pa.Field, ids: bool) -> pa.Field:
    type_, notes = field.type, {b"iceberg.required": str(not field.nullable).lower().encode()}
    if isinstance(type_, pa.BaseExtensionType):
        type_, notes = pa.binary(), notes | {b"iceberg.binary-type": b"UUID"}
    elif pa.types.is_struct(type_):
        type_ = pa.struct([_orc_field(child, ids) for child in type_])
    elif pa.types.is_map(type_):
        type_ = pa.map_(_orc_field(type_.key_field, ids).with_nullable(False), _orc_field(type_.item_field, ids))
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        type_ = pa.list_(_orc_field(type_.value_field, ids))
    elif pa.types.is_fixed_size_binary(type_):
        notes |= {b"iceberg.binary-type": b"FIXED", b"iceberg.length": str(type_.byte_width).encode()}
        type_ = pa.binary()
    elif pa.types.is_time64(type_):
        type_, notes = pa.int64(), notes | {b"iceberg.long-type": b"TIME"}
    elif _is_text(type_):
        type_ = pa.string()
    elif pa.types.is_large_binary(type_):
        type_ = pa.binary()
    return pa.field(field.name, type_, True, notes | {b"iceberg.id": field.metadata[FIELD_ID]} if ids else None)

"""Partition values of fixed length, as they were written.

Iceberg Java puts a length before them although the schema in the file says ``fixed``; other writers follow the schema.
Rule: a manifest whose every such value has its length before it was written the first way, any other the second.
Fail-safe: what fits neither is refused by the decoder, which names the file; nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.avro_file import Block
from floeplan.metadata.bounds import lengths
from floeplan.metadata.decoder import ColumnReader, Decoder, RawColumn
from floeplan.metadata.program import Fields, compile_program


def written_schema(schema: str, want: Fields, blocks: Iterable[Block], decoder: type[Decoder]) -> tuple[str, bool]:
    """The schema that the blocks follow, and whether there were values to tell by."""
    with_lengths = _with_lengths(schema)
    if with_lengths == schema:
        return schema, True
    reader = ColumnReader(decoder)
    try:
        program = compile_program(with_lengths, want)
        for block in blocks:
            reader.read(program, block, "")
    except CorruptMetadataError:
        return schema, True
    columns = reader.finish().values()
    sized = [(column, size) for column in columns if (size := _size(column)) is not None]
    if not all((~column.valid | (lengths(column.to_arrow()) == size)).all() for column, size in sized):
        return schema, True
    return with_lengths, any(column.valid.any() for column, _ in sized)


def _size(column: RawColumn) -> int | None:
    """The length that all values must have, of a column that ``_with_lengths`` has changed."""
    match column.avro_type:
        case {"type": "bytes", "size": int(size)}:
            return size
    return None


def _with_lengths(schema: str) -> str:
    """The schema with bytes in place of fixed values that have no logical type."""
    if '"fixed"' not in schema:
        return schema
    try:
        parsed = json.loads(schema)
        changed = _changed(parsed, {})
    except (ValueError, RecursionError, KeyError, TypeError):
        return schema
    return schema if changed == parsed else json.dumps(changed)


def _changed(avro: Any, sizes: dict[str, int]) -> Any:
    """One type; ``sizes`` has the names of the fixed types so far, which later fields may refer to."""
    match avro:
        case list():
            return [_changed(branch, sizes) for branch in avro]
        case str():
            return {"type": "bytes", "size": sizes[avro]} if avro in sizes else avro
        case {"type": "fixed", "name": name, "size": size} if "logicalType" not in avro:
            sizes[name] = size
            return {"type": "bytes", "size": size}
        case {"type": "record"}:
            return avro | {"fields": [item | {"type": _changed(item["type"], sizes)} for item in avro["fields"]]}
        case {"type": "array"}:
            return avro | {"items": _changed(avro["items"], sizes)}
        case {"type": dict() | list()}:
            return avro | {"type": _changed(avro["type"], sizes)}
    return avro

"""Avro data and delete files: blocks are decoded into columns, nested ones included.

The schema in the header is compiled into a decode program (``metadata.avro``) that takes the requested top-level
columns with everything inside them and skips the others. The columns then become Arrow arrays: nested values from
their presence or number of items, and scalars by Avro's logical types as Iceberg writes them.

Avro files have no index: to know its rows a file is read whole. Consecutive blocks form groups of about
``GROUP_BYTES``, and only blocks with selected rows are inflated and decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.errors import CorruptFileError, CorruptMetadataError, FloeplanError, UnsupportedError
from floeplan.formats.stored import StoredFile, columns_with, ids_within
from floeplan.metadata.avro.decoder import DECODER, AvroReader, ColumnReader, Header, RawColumn, stored_blocks
from floeplan.metadata.avro.program import Fields, Whole, compile_program
from floeplan.parquet.prune.selection import RowSelection
from floeplan.parquet.read.pages import take_rows
from floeplan.parquet.source import ByteSource
from floeplan.schemas import FIELD_ID
from floeplan.vectors import Ints

GROUP_BYTES = 8 * 1024 * 1024
"""Compressed bytes of the blocks that are read together."""
_DECIMAL_BYTES = 16
_TICKS = {"millis": "ms", "micros": "us", "nanos": "ns"}


class AvroFile(StoredFile):
    """An Avro container file; its groups of rows are runs of blocks."""

    def __init__(self, source: ByteSource) -> None:
        self.path = source.name
        self._data = bytes(source.read_suffix(source.size))
        self._reader = AvroReader()
        try:
            self._header: Header = self._reader.header(self._data, self.path)
            blocks = list(stored_blocks(self._data, self._header, self.path))
            self._schema = _columns(self._header.schema)
        except (CorruptMetadataError, UnsupportedError) as error:
            raise _named(self.path, error) from None
        self._block_rows = np.array([block.records for block in blocks], dtype=np.int64)
        self._block_starts = np.cumsum(self._block_rows) - self._block_rows
        self.num_rows = int(self._block_rows.sum())
        sizes = np.array([block.size for block in blocks], dtype=np.int64)
        group = (np.cumsum(sizes) - sizes) // GROUP_BYTES
        opens = np.flatnonzero(np.diff(group, prepend=-1))
        self._group_bytes = np.add.reduceat(sizes, opens) if len(sizes) else sizes
        self.row_group_rows = np.add.reduceat(self._block_rows, opens) if len(sizes) else sizes
        self.first_rows = np.cumsum(self.row_group_rows) - self.row_group_rows

    @property
    def field_ids(self) -> frozenset[int] | None:
        """The ids of all fields, nested ones included; ``None`` if the columns carry none."""
        return frozenset().union(*map(ids_within, self._schema.arrow)) or None

    def read(
        self, field_ids: Sequence[int] | None, selection: RowSelection, *, keep_dictionaries: bool = False
    ) -> pa.Table:
        """The selected rows, from the blocks that hold some of them."""
        chosen = columns_with(self._schema.arrow, field_ids)
        touched = selection.overlaps(self._block_starts, self._block_rows)
        schema = pa.schema([self._schema.arrow.field(at) for at in chosen])
        if not chosen:
            return pa.table({"none": pa.nulls(selection.row_count)}).select([])
        if not touched.any():
            return schema.empty_table()
        rows = int(self._block_rows[touched].sum())
        within = selection.relative_to(self._block_starts[touched], self._block_rows[touched])
        try:
            decoded = self._decoded(chosen, touched.tolist(), rows)
            arrays = [_array(self._schema.nodes[at], f"{at}", decoded, rows) for at in chosen]
        except (CorruptMetadataError, UnsupportedError, pa.ArrowException) as error:
            raise _named(self.path, error) from None
        return take_rows(pa.Table.from_arrays(arrays, schema=schema), within)

    def group_bytes(self, field_ids: Iterable[int] | None) -> Ints:
        """The bytes of each group, by the fraction of the columns that are read."""
        part = len(columns_with(self._schema.arrow, field_ids)) / max(1, len(self._schema.arrow))
        return np.asarray((self._group_bytes * part).astype(np.int64))

    def _decoded(self, chosen: Sequence[int], touched: Sequence[bool], rows: int) -> Mapping[str, RawColumn]:
        program = compile_program(self._schema.numbered, Fields(tuple((at, Whole(f"{at}")) for at in chosen)))
        columns = ColumnReader(DECODER, expected=rows)
        blocks = self._reader.blocks(self._data, self._header, self.path, touched)
        for block in blocks:
            columns.read(program, block, self.path)
        return columns.finish()


@dataclass(frozen=True, slots=True)
class _Node:
    """An Avro type with references resolved: a scalar, a record, a list or a map."""

    kind: str
    type: pa.DataType
    children: tuple[_Node, ...] = ()
    logical: str = ""


@dataclass(frozen=True, slots=True)
class _AvroColumns:
    """The top-level columns of a file.

    Attributes:
        nodes: Their types.
        arrow: The same as Arrow fields, with field ids if the file has them.
        numbered: The schema as JSON with positions instead of field ids at the top level.
    """

    nodes: tuple[_Node, ...]
    arrow: pa.Schema
    numbered: str


def _columns(text: str) -> _AvroColumns:
    try:
        avro = json.loads(text)
        nodes, fields = [], []
        named: dict[str, Any] = {}
        for item in avro["fields"]:
            node, nullable = _node(item["type"], named)
            nodes.append(node)
            fields.append(_field(item["name"], node, nullable, item.get("field-id")))
        numbered = avro | {"fields": [item | {"field-id": at} for at, item in enumerate(avro["fields"])]}
        return _AvroColumns(tuple(nodes), pa.schema(fields), json.dumps(numbered))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise CorruptMetadataError(f"the Avro schema is malformed: {error!r}") from None


def _field(name: str, node: _Node, nullable: bool, field_id: int | None) -> pa.Field:
    return pa.field(name, node.type, nullable, None if field_id is None else {FIELD_ID: str(field_id)})


def _node(avro: Any, named: dict[str, Any]) -> tuple[_Node, bool]:
    """A type and whether it is optional."""
    if isinstance(avro, list):
        branches = [branch for branch in avro if branch not in ("null", {"type": "null"})]
        if not branches:
            return _Node("null", pa.null()), True
        if len(branches) > 1:
            raise UnsupportedError("an Avro union of several types is not read")
        return _node(branches[0], named)[0], len(branches) < len(avro)
    if isinstance(avro, str):
        avro = named.get(avro, {"type": avro})
    kind = avro["type"]
    if isinstance(kind, dict | list) or kind in named:
        return _node(kind, named)
    if "name" in avro:
        named[avro["name"]] = avro
        if avro.get("namespace"):
            named[f"{avro['namespace']}.{avro['name']}"] = avro
    logical = avro.get("logicalType", "")
    if kind == "record":
        children, fields = [], []
        for item in avro["fields"]:
            child, nullable = _node(item["type"], named)
            children.append(child)
            fields.append(_field(item["name"], child, nullable, item.get("field-id")))
        return _Node("record", pa.struct(fields), tuple(children)), False
    if kind == "array":
        item, nullable = _node(avro["items"], named)
        if logical == "map":  # Iceberg's maps with keys other than text: a list of records with key and value
            key, value = item.type.field(0), item.type.field(1)
            return _Node("pairs", pa.map_(key.with_nullable(False), value), item.children), False
        element = _field("element", item, nullable, avro.get("element-id"))
        return _Node("array", pa.large_list(element), (item,)), False
    if kind == "map":
        value, nullable = _node(avro["values"], named)
        key = _field("key", _Node("string", pa.large_string()), False, avro.get("key-id"))
        return _Node("map", pa.map_(key, _field("value", value, nullable, avro.get("value-id"))), (value,)), False
    return _Node(kind, _scalar_type(kind, logical, avro), (), logical), False


def _scalar_type(kind: str, logical: str, avro: Mapping[str, Any]) -> pa.DataType:
    if logical == "decimal":
        return pa.decimal128(avro["precision"], avro.get("scale", 0))
    if logical == "date":
        return pa.date32()
    if logical.startswith("time-"):
        unit = _TICKS[logical.removeprefix("time-")]
        return pa.time32(unit) if unit == "ms" else pa.time64(unit)
    if logical.startswith(("timestamp-", "local-timestamp-")):
        # Iceberg writes times without a zone as timestamp-micros that are not adjusted to UTC.
        local = logical.startswith("local-") or not avro.get("adjust-to-utc", True)
        return pa.timestamp(_TICKS[logical.rsplit("-", 1)[1]], None if local else "UTC")
    if kind == "fixed":
        return pa.binary(avro["size"])
    if kind not in _PLAIN:
        raise UnsupportedError(f"Avro type {kind} is not read")
    return _PLAIN[kind]


_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.large_string(),
    "bytes": pa.large_binary(),
}


def _array(node: _Node, name: str, decoded: Mapping[str, RawColumn], rows: int) -> pa.Array:
    """The Arrow array of a value; ``name`` is that of its columns in ``Whole``."""
    if node.kind == "null":
        return pa.nulls(rows)
    column = decoded[name]
    absent = None if column.valid.all() else pa.array(~column.valid)
    if node.kind == "record":
        children = [_array(child, f"{name}.{at}", decoded, rows) for at, child in enumerate(node.children)]
        if not children:
            return pa.array([{} if valid else None for valid in column.valid.tolist()], node.type)
        return pa.StructArray.from_arrays(children, fields=list(node.type), mask=absent)
    if node.kind in ("array", "map", "pairs"):
        counts = np.where(column.valid, column.values, 0)
        offsets = np.concatenate(([0], np.cumsum(counts)))
        items, inside = f"{name}[]", int(offsets[-1])
        if node.kind == "array":
            values = _array(node.children[0], items, decoded, inside)
            return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values, type=node.type, mask=absent)
        if node.kind == "map":
            keys = decoded[f"{name}{{}}"].to_arrow().cast(pa.large_string())
            values = _array(node.children[0], items, decoded, inside)
        else:
            keys, values = (_array(child, f"{items}.{at}", decoded, inside) for at, child in enumerate(node.children))
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, values, type=node.type, mask=absent)
    return _scalars(node, column.to_arrow())


def _scalars(node: _Node, stored: pa.Array) -> pa.Array:
    """Decoded numbers and bytes in the type of the column."""
    if pa.types.is_decimal(node.type):
        return _decimals(stored, node.type)
    if pa.types.is_date(node.type) or pa.types.is_time32(node.type):
        stored = stored.cast(pa.int32())
    if pa.types.is_fixed_size_binary(node.type):
        stored = stored.cast(pa.binary())
    return stored.cast(node.type)


def _decimals(stored: pa.Array, type_: pa.DataType) -> pa.Array:
    """Unscaled two's complement numbers, most significant byte first, of at most 16 bytes."""
    stored = stored.cast(pa.large_binary())
    lengths = pc.fill_null(pc.binary_length(stored), 0).to_numpy(zero_copy_only=False)
    found = np.zeros((len(stored), _DECIMAL_BYTES), dtype=np.uint8)
    for length in np.unique(lengths[lengths > 0]).tolist():
        if length > _DECIMAL_BYTES:
            raise UnsupportedError(f"a decimal of {length} bytes is not read")
        at = np.flatnonzero(lengths == length)
        joined = b"".join(stored.take(pa.array(at)).to_pylist())
        data = np.frombuffer(joined, dtype=np.uint8).reshape(-1, length)
        found[at] = np.where(data[:, :1] > 127, np.uint8(255), np.uint8(0))
        found[at, _DECIMAL_BYTES - length :] = data
    little_endian = np.ascontiguousarray(found[:, ::-1])
    whole = pa.Array.from_buffers(type_, len(stored), [None, pa.py_buffer(little_endian.tobytes())])
    return pc.if_else(stored.is_valid(), whole, pa.scalar(None, type_))


def _named(path: str, error: Exception) -> FloeplanError:
    """The error of a decoder with the file's name."""
    text, kind = str(error), UnsupportedError if isinstance(error, UnsupportedError) else CorruptFileError
    return kind(text if path in text else f"{path} cannot be read as Avro: {text}", context={"file": path})

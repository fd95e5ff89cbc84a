"""Avro container files from columns: a schema is compiled once, then its program runs over whole columns.

A column is an Arrow array named by the Avro field it fills (or renamed by field id), in any nested record. A list is a
``large_list`` array; the fields of its items are those of its struct. An optional field without a column is null in
every record. The same columns give the same bytes: the sync marker is a digest of the header.

Fail-safe: a null in a required field, a column of another length, or a fixed value of another size is an error naming
the field; nothing is filled in.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol, TypeAlias

import deflate
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from floeplan.errors import CorruptMetadataError, UnsupportedError
from floeplan.kernels import PURE_PYTHON, load_kernel
from floeplan.metadata.avro.decoder import MAGIC
from floeplan.metadata.avro.program import EncodeOp
from floeplan.vectors import Ints, valid_mask

_OPS = {
    "int": EncodeOp.VARINT,
    "long": EncodeOp.VARINT,
    "string": EncodeOp.BYTES,
    "bytes": EncodeOp.BYTES,
    "boolean": EncodeOp.BOOL,
    "float": EncodeOp.FLOAT,
    "double": EncodeOp.DOUBLE,
    "fixed": EncodeOp.FIXED,
    "array": EncodeOp.LIST,
}

BLOCK_SIZE = 64_000
"""Bytes of records in a block, before they are compressed: what other writers of manifests use."""

DEFLATE_LEVEL = 6
_SYNC_BYTES = 16

ColumnBuffers: TypeAlias = tuple[Ints, npt.NDArray[np.uint8] | None, npt.NDArray[np.uint8]]
_NO_DATA = np.zeros(0, dtype=np.uint8)


class Encoder(Protocol):
    """The interface of both encoders; ``_avro_fallback`` is the readable one."""

    def __init__(
        self, code: npt.NDArray[np.int32], columns: Sequence[ColumnBuffers], domains: int, records: int
    ) -> None: ...
    def encode(self, limit: int) -> tuple[bytes, int]: ...


def load_encoder(pure_python: bool = PURE_PYTHON) -> type[Encoder]:
    """The compiled encoder, or the pure-Python one when the kernel is disabled or missing."""
    kernel = load_kernel("floeplan.metadata.avro._avro_encode", pure_python=pure_python)
    encoder: type[Encoder] = (kernel or import_module("floeplan.metadata.avro._avro_fallback")).Encoder
    return encoder


ENCODER = load_encoder()


@dataclass(frozen=True, slots=True)
class Slot:
    """A column the program reads; ``within`` names the list whose items it belongs to, empty for the records.

    An unnamed column is the items themselves. ``size`` is that of fixed values.
    """

    within: str
    name: str
    op: EncodeOp
    required: bool
    size: int


@dataclass(frozen=True, slots=True)
class EncodeProgram:
    """Code whose column operands are positions in ``slots``."""

    code: npt.NDArray[np.int32]
    slots: tuple[Slot, ...]
    domains: int


@lru_cache(maxsize=512)
def compile_encoder(schema: str, renamed: tuple[tuple[int, str], ...] = ()) -> EncodeProgram:
    """Compile an Avro record schema; ``renamed`` gives the columns of some field ids."""
    compiler = _Compiler(dict(renamed))
    compiler.record(json.loads(schema), "")
    compiler.code.append(EncodeOp.END)
    return EncodeProgram(np.array(compiler.code, dtype=np.int32), tuple(compiler.slots), compiler.domains)


class _Compiler:
    """Appends instructions while walking the schema."""

    def __init__(self, renamed: Mapping[int, str]) -> None:
        self.renamed = renamed
        self.code: list[int] = []
        self.slots: list[Slot] = []
        self.domains = 1
        self.named: dict[str, Any] = {}

    def record(self, avro: Mapping[str, Any], within: str) -> None:
        for field in avro["fields"]:
            self.value(field["type"], within, self.renamed.get(field["field-id"], field["name"]))

    def value(self, avro: Any, within: str, name: str) -> None:
        required = not isinstance(avro, list)
        inner = avro if required else avro[1]
        if isinstance(inner, str):
            inner = self.named.get(inner, {"type": inner})
        elif inner["type"] == "fixed":
            self.named[inner["name"]] = inner
        if inner["type"] == "null":
            return
        if inner["type"] == "record":
            self.record(inner, within)
            return
        op = _OPS[inner["type"]]
        slot = len(self.slots)
        self.slots.append(Slot(within, name, op, required, inner.get("size", 0)))
        length_at = len(self.code) + 2
        if not required:
            self.code += [EncodeOp.OPTIONAL, slot, 0]
        self.code += [op, slot]
        if op is EncodeOp.LIST:
            self.code += [self.domains, 0]
            self.domains += 1
            items_at = len(self.code)
            self.value(inner["items"], name, "")
            self.code.append(EncodeOp.END)
            self.code[items_at - 1] = len(self.code) - items_at
        if not required:
            self.code[length_at] = len(self.code) - length_at - 1


def avro_file(
    schema: str,
    program: EncodeProgram,
    columns: Mapping[str, pa.Array],
    records: int,
    metadata: Mapping[str, str],
    codec: str = "deflate",
    encoder: type[Encoder] = ENCODER,
) -> bytes:
    """The bytes of a container file; ``program`` is compiled from ``schema``, ``metadata`` goes into the header."""
    if codec not in CODECS:
        raise UnsupportedError(
            f"cannot compress manifests with {codec!r}; choose one of {', '.join(CODECS)}", context={"codec": codec}
        )
    header = container_header(schema, codec, metadata)
    buffers = [column_buffers(slot, _column(slot, columns, records)) for slot in program.slots]
    running = encoder(program.code, buffers, program.domains, records)
    return b"".join([header, *container_blocks(running, records, header, CODECS[codec])])


def container_header(schema: str, codec: str, metadata: Mapping[str, str]) -> bytes:
    """The header of a container file; its last bytes are the sync marker."""
    properties = {**metadata, "avro.schema": schema, "avro.codec": codec}
    items = (_text(key) + _text(value) for key, value in properties.items())
    header = MAGIC + _varint(len(properties)) + b"".join(items) + _varint(0)
    return header + xxhash.xxh3_128_digest(header)


def container_blocks(
    running: Encoder, records: int, header: bytes, compress: Callable[[bytes], bytes]
) -> Iterator[bytes]:
    """The blocks that follow a header."""
    sync, written = header[-_SYNC_BYTES:], 0
    while written < records:
        block, count = running.encode(BLOCK_SIZE)
        payload = compress(block)
        yield b"".join([_varint(count), _varint(len(payload)), payload, sync])
        written += count


def _column(slot: Slot, columns: Mapping[str, pa.Array], records: int) -> pa.Array:
    """The array of a slot; for a list without a column, no items."""
    array = columns.get(slot.within or slot.name)
    if array is None:
        array = pa.nulls(0 if slot.within else records)
    elif len(array) != records:
        raise CorruptMetadataError(f"column {slot.name!r} has {len(array)} values for {records} records")
    elif slot.within:
        items = array.flatten()
        array = pc.struct_field(items, slot.name) if slot.name else items
    if slot.required and array.null_count:
        field = f"{slot.within}.{slot.name}".strip(".")
        raise CorruptMetadataError(f"{field!r} is missing in {array.null_count} records", context={"field": field})
    return array


def column_buffers(slot: Slot, array: pa.Array) -> ColumnBuffers:
    """What the encoder reads of a column: numbers or offsets, validity, and data."""
    valid = valid_mask(array).view(np.uint8) if array.null_count else None
    if slot.op in (EncodeOp.FLOAT, EncodeOp.DOUBLE):
        numbers = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(numbers).view(np.int64), valid, _NO_DATA
    if slot.op not in (EncodeOp.BYTES, EncodeOp.FIXED):
        is_list = slot.op is EncodeOp.LIST and not pa.types.is_null(array.type)
        whole = (pc.list_value_length(array) if is_list else array).cast(pa.int64()).fill_null(0)
        return np.ascontiguousarray(whole.to_numpy(zero_copy_only=False), dtype=np.int64), valid, _NO_DATA
    # Offsets and data as Arrow has them; a slice keeps the data of the whole.
    if not (pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)):
        array = array.cast(pa.large_binary())
    _, offset_buffer, data = array.buffers()
    if not len(array) or offset_buffer is None:
        return np.zeros(len(array) + 1, dtype=np.int64), valid, _NO_DATA
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    if slot.op is EncodeOp.FIXED:
        wrong = np.diff(offsets) != slot.size
        if (wrong if valid is None else wrong & valid.view(np.bool_)).any():
            raise CorruptMetadataError(f"{slot.name!r} has values that do not have {slot.size} bytes")
    return offsets, valid, np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else _NO_DATA


def _varint(value: int) -> bytes:
    bits, made = value << 1, bytearray()
    while bits > 0x7F:
        made.append(bits & 0x7F | 0x80)
        bits >>= 7
    return bytes([*made, bits])


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _varint(len(encoded)) + encoded


def _snappy(data: bytes) -> bytes:
    """Avro adds a checksum of the bytes before compression."""
    return bytes(pa.Codec("snappy").compress(data, asbytes=True)) + zlib.crc32(data).to_bytes(4, "big")


CODECS: Mapping[str, Callable[[bytes], bytes]] = {
    "deflate": lambda data: bytes(deflate.deflate_compress(data, DEFLATE_LEVEL)),
    "zstandard": lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True)),
    "snappy": _snappy,
    "null": bytes,
}

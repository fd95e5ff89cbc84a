"""Avro container files as named columns: header, codecs and blocks, and decode programs run over the blocks.

Rule: every block is inflated and handed on in file order, and the sync marker after it must be the header's. The
compiled decoder and the pure-Python one (``floeplan.kernels``) return the same columns for the same bytes.
Fail-safe: a file that ends within a block, an unknown codec, or a block that inflates beyond ``MAX_BLOCK`` is an
error naming the file and the byte offset; nothing of it is used.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import compress
from typing import NamedTuple, Protocol, TypeVar

import deflate
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floeplan.errors import CorruptMetadataError, UnsupportedError
from floeplan.kernels import PURE_PYTHON, load_kernel
from floeplan.metadata.avro.program import BadAvro, Kind, Program, SinkSpec
from floeplan.vectors import Floats, Ints, Mask, valid_mask, validity_bitmap

MAGIC = b"Obj\x01"
SYNC_SIZE = 16
MAX_BLOCK = 256 * 1024 * 1024
"""Largest inflated block; writers make blocks of 64 KB, the largest manifests are a few tens of MB."""

_PIECE = 1024 * 1024

Buffer = bytes | bytearray | memoryview
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Block:
    """The inflated records of one block; ``offset`` is where the block starts in the file."""

    data: Buffer
    count: int
    offset: int


class StoredBlock(NamedTuple):
    """A block as it lies in the file: where it starts, where its records do, their bytes and their number."""

    offset: int
    at: int
    size: int
    records: int


class Header(NamedTuple):
    """The header of the file. ``size`` counts the bytes before the sync marker."""

    schema: str
    codec: str
    metadata: Mapping[str, bytes]
    size: int


class AvroReader:
    """Opens container files, remembering headers: the manifests of one spec start with the same bytes."""

    def __init__(self) -> None:
        self._known: list[tuple[bytes, Header]] = []

    def header(self, data: bytes, path: str) -> Header:
        """Parse the header, or find it among those seen before."""
        for position, (prefix, header) in enumerate(self._known):
            if data.startswith(prefix):
                if position:
                    self._known.insert(0, self._known.pop(position))
                return header
        header = _parse_header(data, path)
        self._known = [(data[: header.size], header), *self._known[:15]]
        return header

    def blocks(self, data: bytes, header: Header, path: str, chosen: Sequence[bool] | None = None) -> Iterator[Block]:
        """The blocks of the file in order; with ``chosen``, only those that are flagged."""
        inflate = _CODECS.get(header.codec)
        if inflate is None:
            raise UnsupportedError(
                f"{path} is compressed with {header.codec!r}; supported codecs are {', '.join(sorted(_CODECS))}",
                context={"file": path, "codec": header.codec},
            )
        view = memoryview(data)
        stored_at = stored_blocks(data, header, path)
        for stored in stored_at if chosen is None else compress(stored_at, chosen):
            try:
                payload = inflate(view[stored.at : stored.at + stored.size])
            except _INFLATE_ERRORS as error:
                reason = f"the {header.codec} block cannot be inflated ({error})"
                raise corrupt(path, stored.offset, reason) from error
            yield Block(payload, stored.records, stored.offset)


def stored_blocks(data: bytes, header: Header, path: str) -> Iterator[StoredBlock]:
    """Where the blocks of a file are, in order."""
    at = header.size + SYNC_SIZE
    sync = data[header.size : at]
    if len(sync) < SYNC_SIZE:
        raise corrupt(path, header.size, "the file ends within its header")
    while at < len(data):
        start = at
        count, at = _varint(data, at, path)
        size, at = _varint(data, at, path)
        if count < 0 or size < 0 or size > len(data) - at - SYNC_SIZE:
            raise corrupt(path, start, "the file ends within a block")
        if data[at + size : at + size + SYNC_SIZE] != sync:
            raise corrupt(path, at + size, "the sync marker after the block is wrong")
        yield StoredBlock(start, at, size, count)
        at += size + SYNC_SIZE


def corrupt(path: str, offset: int, what: str) -> CorruptMetadataError:
    """The error for bytes of a metadata file that cannot be trusted."""
    return CorruptMetadataError(f"{path} is damaged at byte {offset}: {what}", context={"file": path, "offset": offset})


def _parse_header(data: bytes, path: str) -> Header:
    if not data.startswith(MAGIC):
        raise corrupt(path, 0, "not an Avro container file")
    metadata: dict[str, bytes] = {}
    at = len(MAGIC)
    while True:
        count, at = _varint(data, at, path)
        if count == 0:
            break
        if count < 0:
            count = -count
            _, at = _varint(data, at, path)
        if count > len(data) - at:
            raise corrupt(path, at, "the header counts more properties than it has bytes")
        for _ in range(count):
            key, at = _bytes(data, at, path)
            value, at = _bytes(data, at, path)
            metadata[key.decode("utf-8", "replace")] = value
    if "avro.schema" not in metadata:
        raise corrupt(path, 0, "the header has no avro.schema")
    try:
        schema = metadata["avro.schema"].decode()
    except UnicodeDecodeError as error:
        raise corrupt(path, 0, "the schema in the header is not UTF-8") from error
    codec = metadata.get("avro.codec", b"null").decode("utf-8", "replace")
    return Header(schema, codec or "null", metadata, at)


def _varint(data: bytes, at: int, path: str) -> tuple[int, int]:
    bits = shift = 0
    start = at
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (bits >> 1) ^ -(bits & 1), at
        shift += 7
    raise corrupt(path, start, "a number is cut off or too long")


def _bytes(data: bytes, at: int, path: str) -> tuple[bytes, int]:
    size, start = _varint(data, at, path)
    if size < 0 or size > len(data) - start:
        raise corrupt(path, at, "a length reaches beyond the file")
    return data[start : start + size], start + size


_INFLATE_ERRORS = (zlib.error, deflate.DeflateError, pa.ArrowException, OSError, ValueError, EOFError)


def _deflate(data: memoryview) -> Buffer:
    """Raw deflate. libdeflate needs the size in advance, so it gets a generous one; larger blocks go to zlib."""
    try:
        return deflate.deflate_decompress(data, min(8 * len(data) + 4096, MAX_BLOCK))
    except deflate.DeflateError:
        return _zlib(data, window_bits=-zlib.MAX_WBITS)


def _zlib(data: memoryview, window_bits: int) -> bytes:
    stream = zlib.decompressobj(window_bits)
    inflated = stream.decompress(data, MAX_BLOCK)
    if not stream.eof:
        if len(inflated) == MAX_BLOCK:
            raise ValueError(f"larger than {MAX_BLOCK} bytes")
        raise EOFError("the compressed data is truncated")
    return inflated


def _zstandard(data: memoryview) -> Buffer:
    inflated = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        while piece := stream.read(_PIECE):
            inflated += piece
            if len(inflated) > MAX_BLOCK:
                raise ValueError(f"larger than {MAX_BLOCK} bytes")
    return inflated


def _snappy(data: memoryview) -> Buffer:
    """Snappy's own format begins with the inflated size; Avro adds a checksum of the inflated bytes."""
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > MAX_BLOCK or len(data) < 4:
        raise ValueError(f"larger than {MAX_BLOCK} bytes")
    inflated: bytes = pa.Codec("snappy").decompress(pa.py_buffer(data[:-4]), size, asbytes=True)
    if zlib.crc32(inflated) != int.from_bytes(data[-4:], "big"):
        raise ValueError("the checksum is wrong")
    return inflated


_CODECS: Mapping[str, Callable[[memoryview], Buffer]] = {
    "null": lambda data: data,
    "deflate": _deflate,
    "gzip": partial(_zlib, window_bits=16 + zlib.MAX_WBITS),
    "snappy": _snappy,
    "zstandard": _zstandard,
    "zstd": _zstandard,
}


class Decoder(Protocol):
    """The interface of both decoders; ``_avro_fallback`` is the readable one."""

    def __init__(self, expected: int = 0) -> None: ...
    def add_domain(self) -> int: ...
    def add_sink(self, kind: int, domain: int) -> int: ...
    def row_count(self, domain: int) -> int: ...
    def decode(
        self, code: npt.NDArray[np.int32], data: Buffer, count: int, drop_sink: int = -1, drop_value: int = 0
    ) -> None: ...
    def finish(self) -> Sequence[tuple[Buffer, Buffer, Buffer]]: ...


def load_decoder(pure_python: bool = PURE_PYTHON) -> type[Decoder]:
    """The compiled decoder, or the pure-Python one when the kernel is disabled or missing."""
    kernel = load_kernel("floeplan.metadata.avro._avro_decode", pure_python=pure_python)
    decoder: type[Decoder] = (kernel or import_module("floeplan.metadata.avro._avro_fallback")).Decoder
    return decoder


DECODER = load_decoder()


@dataclass(frozen=True, slots=True)
class RawColumn:
    """A decoded column: numbers, or bytes as offsets into ``data``; values are undefined where ``valid`` is false.

    ``stored_type`` is the type that the file gives it: Avro's, or Arrow's for a Parquet file.
    """

    kind: Kind
    values: Ints | Floats
    valid: Mask
    data: Buffer
    stored_type: object

    @classmethod
    def of(cls, array: pa.Array, stored_type: object) -> RawColumn:
        """The inverse of ``to_arrow``."""
        kind = {pa.int64(): Kind.INT, pa.float64(): Kind.FLOAT}.get(array.type, Kind.BYTES)
        buffers = array.buffers()
        # Buffers of an empty array may have any size.
        numbers = buffers[1] if buffers[1] is not None and len(array) else bytes(8)
        values = _view(numbers, np.float64) if kind is Kind.FLOAT else _view(numbers, np.int64)
        ends = array.offset + len(array) + (kind is Kind.BYTES)
        data = buffers[2] if kind is Kind.BYTES and buffers[2] is not None else b""
        return cls(kind, values[array.offset : ends], valid_mask(array), data, stored_type)

    def __len__(self) -> int:
        return len(self.valid)

    def to_arrow(self) -> pa.Array:
        """As ``int64``, ``float64`` or ``large_binary``, without copying the values."""
        bitmap, nulls = validity_bitmap(self.valid)
        if self.kind is Kind.BYTES:
            buffers = [bitmap, pa.py_buffer(self.values), pa.py_buffer(self.data)]
            return pa.Array.from_buffers(pa.large_binary(), len(self), buffers, nulls)
        type_ = pa.float64() if self.kind is Kind.FLOAT else pa.int64()
        return pa.Array.from_buffers(type_, len(self), [bitmap, pa.py_buffer(self.values)], nulls)


class ColumnReader:
    """Decodes blocks of many files into one set of named columns.

    Programs of different schemas share columns by name; a column that a file does not have is null there. ``drop`` is a
    column and a value: records with it are left out. Memory is allocated for ``expected`` records.
    """

    def __init__(
        self, decoder: type[Decoder] = DECODER, drop: tuple[str, int] | None = None, expected: int = 0
    ) -> None:
        self._decoder = decoder(expected)
        self._drop_column, self._drop_value = drop or ("", 0)
        self._sinks: dict[str, int] = {}
        self._specs: list[SinkSpec] = []
        self._domains: dict[str, int] = {"": 0}
        self._bound: dict[int, tuple[Program, npt.NDArray[np.int32]]] = {}

    @property
    def records(self) -> int:
        """Records decoded so far and not dropped."""
        return self._decoder.row_count(0)

    def read(self, program: Program, block: Block, path: str) -> None:
        """Append the records of a block.

        Raises:
            CorruptMetadataError: The block does not follow the program's schema; the reader must be dropped.
        """
        code = self._code(program, path)
        drop_sink = self._sinks.get(self._drop_column, -1)
        try:
            self._decoder.decode(code, block.data, block.count, drop_sink, self._drop_value)
        except BadAvro as error:
            raise corrupt(path, block.offset, str(error)) from error

    def finish(self) -> dict[str, RawColumn]:
        """The columns by name; the reader is empty afterwards."""
        columns = {}
        for spec, (values, valid, data) in zip(self._specs, self._decoder.finish(), strict=True):
            numbers = _view(values, np.float64) if spec.kind is Kind.FLOAT else _view(values, np.int64)
            columns[spec.name] = RawColumn(spec.kind, numbers, _view(valid, np.bool_), data, spec.avro_type)
        return columns

    def _code(self, program: Program, path: str) -> npt.NDArray[np.int32]:
        """The program with its sinks and domains replaced by the decoder's."""
        known = self._bound.get(id(program))
        if known is not None:
            return known[1]
        domains = np.array([self._domain(name) for name in program.domains], dtype=np.int32)
        sinks = np.array([self._sink(spec, path) for spec in program.sinks], dtype=np.int32)
        code = program.code.copy()
        code[program.domain_operands] = domains[code[program.domain_operands]]
        if len(sinks):
            code[program.sink_operands] = sinks[code[program.sink_operands]]
        self._bound[id(program)] = (program, code)
        return code

    def _domain(self, name: str) -> int:
        if name not in self._domains:
            self._domains[name] = self._decoder.add_domain()
        return self._domains[name]

    def _sink(self, spec: SinkSpec, path: str) -> int:
        number = self._sinks.get(spec.name)
        if number is None:
            number = self._sinks[spec.name] = self._decoder.add_sink(spec.kind, self._domain(spec.domain))
            self._specs.append(spec)
        elif (self._specs[number].kind, self._specs[number].domain) != (spec.kind, spec.domain):
            raise CorruptMetadataError(
                f"{path} stores {spec.name!r} as {spec.kind.name.lower()}, other files of the table as "
                f"{self._specs[number].kind.name.lower()}",
                context={"file": path, "column": spec.name},
            )
        return number


def _view(buffer: Buffer, dtype: type[Number]) -> npt.NDArray[Number]:
    return np.frombuffer(buffer, dtype=dtype) if len(memoryview(buffer)) else np.zeros(0, dtype=dtype)

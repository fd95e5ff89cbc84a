"""Avro container files: header, codecs and blocks.

Rule: every block is inflated and handed on in file order, and the sync marker after it must be the header's. Fail-safe:
a file that ends within a block, an unknown codec, or a block that inflates beyond ``MAX_BLOCK`` is an error naming the
file and the byte offset; nothing of it is used.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import deflate
import pyarrow as pa

from floeplan.errors import CorruptMetadataError, UnsupportedError

MAGIC = b"Obj\x01"
SYNC_SIZE = 16
MAX_BLOCK = 256 * 1024 * 1024
"""Largest inflated block; writers make blocks of 64 KB, the largest manifests are a few tens of MB."""

_PIECE = 1024 * 1024

Buffer = bytes | bytearray | memoryview


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


@dataclass(frozen=True, slots=True)
class Header:
    """What the file says of itself. ``size`` counts the bytes before the sync marker."""

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

    def blocks(self, data: bytes, header: Header, path: str) -> Iterator[Block]:
        """The blocks of the file in order."""
        inflate = _codec(header.codec, path)
        view = memoryview(data)
        for stored in stored_blocks(data, header, path):
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


class _TooLarge(ValueError):  # noqa: N818 - becomes a CorruptMetadataError above
    def __init__(self) -> None:
        super().__init__(f"larger than {MAX_BLOCK} bytes")


_INFLATE_ERRORS = (zlib.error, deflate.DeflateError, pa.ArrowException, OSError, ValueError, EOFError)


def _codec(name: str, path: str) -> Callable[[memoryview], Buffer]:
    try:
        return _CODECS[name]
    except KeyError:
        raise UnsupportedError(
            f"{path} is compressed with {name!r}; readable are {', '.join(sorted(_CODECS))}",
            context={"file": path, "codec": name},
        ) from None


def _stored(data: memoryview) -> Buffer:
    return data


def _deflate(data: memoryview) -> Buffer:
    """Raw deflate. libdeflate needs the size in advance, so it gets a generous one; larger blocks go to zlib."""
    try:
        return deflate.deflate_decompress(data, min(8 * len(data) + 4096, MAX_BLOCK))
    except deflate.DeflateError:
        return _zlib(data, -zlib.MAX_WBITS)


def _gzip(data: memoryview) -> Buffer:
    return _zlib(data, 16 + zlib.MAX_WBITS)


def _zlib(data: memoryview, window_bits: int) -> bytes:
    stream = zlib.decompressobj(window_bits)
    inflated = stream.decompress(data, MAX_BLOCK)
    if not stream.eof:
        if len(inflated) == MAX_BLOCK:
            raise _TooLarge
        raise EOFError("the compressed data is cut off")
    return inflated


def _zstandard(data: memoryview) -> Buffer:
    inflated = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        while piece := stream.read(_PIECE):
            inflated += piece
            if len(inflated) > MAX_BLOCK:
                raise _TooLarge
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
        raise _TooLarge
    inflated: bytes = pa.Codec("snappy").decompress(pa.py_buffer(data[:-4]), size, asbytes=True)
    if zlib.crc32(inflated) != int.from_bytes(data[-4:], "big"):
        raise ValueError("the checksum is wrong")
    return inflated


_CODECS: Mapping[str, Callable[[memoryview], Buffer]] = {
    "null": _stored,
    "deflate": _deflate,
    "gzip": _gzip,
    "snappy": _snappy,
    "zstandard": _zstandard,
    "zstd": _zstandard,
}

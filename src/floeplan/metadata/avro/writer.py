"""Avro container files from columns: header, compressed blocks, sync markers.

The same columns give the same bytes: the sync marker is a digest of the header.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import deflate
import pyarrow as pa
import xxhash

from floeplan.errors import UnsupportedError
from floeplan.metadata.avro.container import MAGIC
from floeplan.metadata.avro.encoder import ENCODER, EncodeProgram, Encoder, encode_blocks

BLOCK_SIZE = 64_000
"""Bytes of records in a block, before they are compressed: what other writers of manifests use."""

DEFLATE_LEVEL = 6


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
    compress = _codec(codec)
    properties = {**metadata, "avro.schema": schema, "avro.codec": codec}
    items = (_text(key) + _text(value) for key, value in properties.items())
    header = MAGIC + _varint(len(properties)) + b"".join(items) + _varint(0)
    sync = xxhash.xxh3_128_digest(header)
    parts = [header, sync]
    for block, count in encode_blocks(program, columns, records, BLOCK_SIZE, encoder):
        payload = compress(block)
        parts += [_varint(count), _varint(len(payload)), payload, sync]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    bits, made = value << 1, bytearray()
    while bits > 0x7F:
        made.append(bits & 0x7F | 0x80)
        bits >>= 7
    return bytes([*made, bits])


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _varint(len(encoded)) + encoded


def _codec(name: str) -> Callable[[bytes], bytes]:
    try:
        return _CODECS[name]
    except KeyError:
        raise UnsupportedError(
            f"cannot compress manifests with {name!r}; choose one of {', '.join(_CODECS)}", context={"codec": name}
        ) from None


def _deflate(data: bytes) -> bytes:
    return bytes(deflate.deflate_compress(data, DEFLATE_LEVEL))


def _zstandard(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def _snappy(data: bytes) -> bytes:
    """Avro adds a checksum of the bytes before compression."""
    return bytes(pa.Codec("snappy").compress(data, asbytes=True)) + zlib.crc32(data).to_bytes(4, "big")


_CODECS: Mapping[str, Callable[[bytes], bytes]] = {
    "deflate": _deflate,
    "zstandard": _zstandard,
    "snappy": _snappy,
    "null": bytes,
}

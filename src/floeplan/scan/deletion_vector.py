"""Deletion vectors: the ``deletion-vector-v1`` blob of a Puffin file.

Layout: length of magic and bitmap (4 bytes, big-endian), magic ``D1 D3 39 64``, a 64-bit Roaring bitmap in the
portable format, CRC-32 of magic and bitmap (4 bytes, big-endian).

Fail-safe: anything that does not add up is ``CorruptFileError``; a vector is never applied in part.
"""

from __future__ import annotations

import struct
import zlib

from pyroaring import BitMap64

from floeplan.errors import CorruptFileError

_MAGIC = b"\xd1\xd3\x39\x64"


def decode_deletion_vector(blob: bytes, path: str) -> BitMap64:
    """The deleted row positions held in one blob."""
    if len(blob) < 12:
        raise _corrupt(path, f"{len(blob)} bytes are too few")
    (length,) = struct.unpack_from(">I", blob)
    if length + 8 != len(blob):
        raise _corrupt(path, f"it says {length} bytes and has {len(blob) - 8}")
    body = blob[4 : 4 + length]
    if body[:4] != _MAGIC:
        raise _corrupt(path, f"magic {body[:4].hex()} is not {_MAGIC.hex()}")
    (checksum,) = struct.unpack_from(">I", blob, 4 + length)
    if zlib.crc32(body) != checksum:
        raise _corrupt(path, "the checksum does not match")
    return _bitmap(body[4:], path)


def encode_deletion_vector(positions: BitMap64) -> bytes:
    """The blob for a set of row positions."""
    body = _MAGIC + positions.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def _bitmap(data: bytes, path: str) -> BitMap64:
    try:
        return BitMap64.deserialize(data)
    except Exception as error:
        raise _corrupt(path, f"the bitmap cannot be read: {error}") from error


def _corrupt(path: str, why: str) -> CorruptFileError:
    return CorruptFileError(f"deletion vector in {path} is damaged: {why}", context={"file": path})

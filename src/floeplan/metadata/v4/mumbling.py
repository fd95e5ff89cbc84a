"""Mumbling bitmaps, version 1: the positions of a leaf that its reference in the root removes.

============  ========================================================================================
header        the version, the number of positions (3 bytes), the number of containers (2 bytes), little-endian
descriptors   a byte per container of 256 positions: the number of positions if it has fewer than 32, else 0x20
containers    sorted offsets, a byte each; or from 32 positions on a bit set of 32 bytes, the first bit the highest
============  ========================================================================================

Descriptors are compressed in chunks of 256 as patched frames of reference: the difference to the smallest one in few
bits, and the upper bits of the exceptions that do not fit these, with their places.

Fail-safe: bytes that end early, a wrong number of positions, or positions out of order are a ``ValueError``; a bitmap
that is read as a smaller one would bring removed files back.
"""

from __future__ import annotations

import numpy as np

from floeplan.vectors import Bytes, Ints

MOST_POSITIONS = 8192 * 256
_VERSION, _HEADER, _CHUNK = 1, 6, 256
_DENSE, _DENSE_BYTES = 0x20, 32
_BYTE = 8


def encode_positions(positions: Ints) -> bytes:
    """The bitmap of these positions."""
    found = np.unique(positions)
    if len(found) and (found[0] < 0 or found[-1] >= MOST_POSITIONS):
        raise ValueError(f"positions must be between 0 and {MOST_POSITIONS - 1}")
    counts = np.bincount(found >> _BYTE) if len(found) else np.zeros(0, dtype=np.int64)
    descriptors = np.where(counts < _DENSE, counts, _DENSE).astype(np.uint8)
    body = bytearray()
    for inside in np.split((found & 0xFF).astype(np.uint8), np.cumsum(counts)[:-1]) if len(counts) else ():
        if len(inside) < _DENSE:
            body += inside.tobytes()
        else:
            bits = np.zeros(_CHUNK, dtype=np.uint8)
            bits[inside] = 1
            body += np.packbits(bits).tobytes()
    header = bytes([_VERSION]) + len(found).to_bytes(3, "little") + len(counts).to_bytes(2, "little")
    chunks = (descriptors[at : at + _CHUNK] for at in range(0, len(descriptors), _CHUNK))
    return header + b"".join(map(_packed_chunk, chunks)) + bytes(body)


def decode_positions(data: bytes) -> Ints:
    """The positions of a bitmap, ascending.

    Raises:
        ValueError: The bytes are not a complete bitmap.
    """
    if len(data) < _HEADER or data[0] != _VERSION:
        raise ValueError(f"not a bitmap of version {_VERSION}")
    cardinality, containers = int.from_bytes(data[1:4], "little"), int.from_bytes(data[4:6], "little")
    if containers * _CHUNK > MOST_POSITIONS:
        raise ValueError(f"{containers} containers")
    rest = memoryview(data)[_HEADER:]
    descriptors: list[int] = []
    while len(descriptors) < containers:
        chunk, taken = _unpacked_chunk(rest, min(_CHUNK, containers - len(descriptors)))
        descriptors += chunk.tolist()
        rest = rest[taken:]
    found = []
    for container, descriptor in enumerate(descriptors):
        size = _DENSE_BYTES if descriptor == _DENSE else descriptor
        if descriptor > _DENSE or size > len(rest):
            raise ValueError(f"container {container} is damaged or missing")
        inside = np.frombuffer(rest[:size], dtype=np.uint8)
        offsets = np.flatnonzero(np.unpackbits(inside)) if descriptor == _DENSE else inside.astype(np.int64)
        found.append((container << _BYTE) + offsets)
        rest = rest[size:]
    positions = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    if len(positions) != cardinality or (np.diff(positions) <= 0).any() or len(rest):
        raise ValueError(f"the header states {cardinality} positions, and the containers have others")
    return positions


def _packed_chunk(values: Bytes) -> bytes:
    """Descriptors with as many low bits as make the fewest bytes."""
    least = int(values.min())
    shifted = values - least
    widths = np.frompyfunc(int.bit_length, 1, 1)(shifted.astype(object)).astype(np.int64)
    most = int(widths.max())

    def size(low: int) -> int:
        exceptions = int((widths > low).sum())
        return -(-len(values) * low // _BYTE) + exceptions + -(-exceptions * (most - low) // _BYTE)

    # At most 255 exceptions fit their count, so all 256 descriptors of a chunk cannot be exceptions.
    low = min((bits for bits in range(most + 1) if (widths > bits).sum() < _CHUNK), key=size)
    places = np.flatnonzero(widths > low)
    high = most - low if len(places) else 0
    head = bytes([low | high << 4, len(places), least])
    return (
        head
        + _packed(shifted, low)
        + places.astype(np.uint8).tobytes()
        + _packed((shifted[places] >> low).astype(np.uint8), high)
    )


def _unpacked_chunk(data: memoryview, count: int) -> tuple[Bytes, int]:
    """N descriptors, and the number of bytes they take."""
    if len(data) < 3:
        raise ValueError("the descriptors end early")
    low, high, exceptions, least = data[0] & 0xF, data[0] >> 4, data[1], data[2]
    if low > _BYTE or high > _BYTE:
        raise ValueError("a descriptor has more than 8 bits")
    sizes = [-(-count * low // _BYTE), exceptions, -(-exceptions * high // _BYTE)]
    ends = (3 + np.cumsum(sizes)).tolist()
    if len(data) < ends[-1]:
        raise ValueError("the descriptors end early")
    values = _unpacked(data[3 : ends[0]], low, count).astype(np.int64)
    places = np.frombuffer(data[ends[0] : ends[1]], dtype=np.uint8)
    if (places >= count).any():
        raise ValueError("an exception lies behind the descriptors")
    np.bitwise_or.at(values, places, _unpacked(data[ends[1] : ends[2]], high, exceptions).astype(np.int64) << low)
    return ((values + least) & 0xFF).astype(np.uint8), ends[-1]


def _packed(values: Bytes, width: int) -> bytes:
    """The lower bits of each value, the highest first."""
    return np.packbits(np.unpackbits(values[:, None], axis=1)[:, _BYTE - width :]).tobytes() if width else b""


def _unpacked(data: memoryview, width: int, count: int) -> Bytes:
    if not width or not count:
        return np.zeros(count, dtype=np.uint8)
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=count * width).reshape(count, width)
    padded = np.zeros((count, _BYTE), dtype=np.uint8)
    padded[:, _BYTE - width :] = bits
    return np.packbits(padded, axis=1)[:, 0]

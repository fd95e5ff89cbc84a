"""Murmur3 (x86, 32 bits, seed 0) of whole columns: the hash behind bucket partitions.

Integers are hashed as eight bytes, little-endian; text and bytes as they are, all values of one length at a time.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes: TypeAlias = npt.NDArray[np.uint32]

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_BLOCK = 4


def hash_integers(values: npt.NDArray[np.int64]) -> Hashes:
    """The hash of each integer."""
    blocks = np.ascontiguousarray(values, dtype="<i8").view("<u4").reshape(-1, 2)
    return _finished(_mixed_in(_mixed_in(np.zeros(len(values), dtype=np.uint32), blocks[:, 0]), blocks[:, 1]), 8)


def hash_bytes(values: pa.Array) -> Hashes:
    """The hash of each text or byte string; there are no nulls."""
    if not len(values):
        return np.zeros(0, dtype=np.uint32)
    raw = values.cast(pa.large_binary())
    _, offsets_buffer, data_buffer = raw.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[raw.offset : raw.offset + len(raw) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, dtype=np.uint8)
    lengths = np.diff(offsets)
    hashes = np.zeros(len(raw), dtype=np.uint32)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        hashes[rows] = _hash_matrix(data[offsets[:-1][rows][:, None] + np.arange(length)])
    return hashes


def _hash_matrix(matrix: npt.NDArray[np.uint8]) -> Hashes:
    """The hash of each row of bytes."""
    rows, length = matrix.shape
    whole = length - length % _BLOCK
    blocks = np.ascontiguousarray(matrix[:, :whole]).view("<u4")
    hashes = np.zeros(rows, dtype=np.uint32)
    for at in range(blocks.shape[1]):
        hashes = _mixed_in(hashes, blocks[:, at])
    if whole < length:
        tail = np.zeros((rows, _BLOCK), dtype=np.uint8)
        tail[:, : length - whole] = matrix[:, whole:]
        hashes = hashes ^ _mixed(tail.view("<u4")[:, 0])
    return _finished(hashes, length)


def _mixed(block: Hashes) -> Hashes:
    return _rotated(block * _C1, 15) * _C2


def _mixed_in(hashes: Hashes, block: Hashes) -> Hashes:
    return _rotated(hashes ^ _mixed(block), 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _rotated(values: Hashes, bits: int) -> Hashes:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))


def _finished(hashes: Hashes, length: int) -> Hashes:
    hashes = hashes ^ np.uint32(length)
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))

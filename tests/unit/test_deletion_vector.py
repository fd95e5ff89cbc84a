"""Deletion vectors round trip, and damaged vectors are refused."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from floeplan.errors import CorruptFileError
from floeplan.scan.delete_files import decode_deletion_vector, encode_deletion_vector

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("positions", [[], [0], [1, 5, 1 << 40], list(range(10_000))])
def test_round_trip(positions: list[int]) -> None:
    blob = encode_deletion_vector(BitMap64(positions))
    assert list(decode_deletion_vector(blob, "dv.puffin")) == positions


def test_layout_is_length_magic_bitmap_checksum() -> None:
    blob = encode_deletion_vector(BitMap64([3]))
    assert int.from_bytes(blob[:4], "big") == len(blob) - 8
    assert blob[4:8] == bytes.fromhex("d1d33964")


def test_every_flipped_byte_is_noticed() -> None:
    blob = encode_deletion_vector(BitMap64([1, 2, 1000]))
    for position in range(len(blob)):
        damaged = bytearray(blob)
        damaged[position] ^= 0x40
        with pytest.raises(CorruptFileError, match=r"dv\.puffin"):
            decode_deletion_vector(bytes(damaged), "dv.puffin")


@pytest.mark.parametrize("length", [0, 3, 11, 12, 20])
def test_truncated_blob_is_refused(length: int) -> None:
    with pytest.raises(CorruptFileError):
        decode_deletion_vector(encode_deletion_vector(BitMap64([1, 2]))[:length], "dv.puffin")

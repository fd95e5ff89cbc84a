"""Compressing and decompressing single pages, by the numbers that footers give to codecs.

Zstandard has one way for all data at each level. Among a few others, which take less time, ``tune`` picks the first
that makes a sample no larger than the usual one would: a column of numbers needs no search for
long matches, and one whose bytes are evenly spread no code of its own for them. What comes out is the same format.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zstandard

Bytes: TypeAlias = npt.NDArray[np.uint8]

_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_NOT_COMPRESSED, _ZSTD = 0, 6
_CHEAPER: Final[tuple[dict[str, int], ...]] = (
    {"min_match": 6, "target_length": 3, "hash_log": 11},
    {"min_match": 6, "target_length": 0, "hash_log": 10},
)
"""Ways of Zstandard's first level, the cheapest first: large steps and bytes as they are, which takes a quarter less
time; a table that fits a cache."""
_USUAL_LEVEL = 1
_SMALLEST_WINDOW = 1 << 18
_SAMPLE = 1 << 16
"""Bytes that ways are compared on."""
_EMPTY = np.zeros(0, dtype=np.uint8)


class PageCodec:
    """One codec; ``level`` is ``None`` for the usual one. Not for several threads at once."""

    def __init__(self, number: int, level: int | None = None) -> None:
        if not self.knows(number):
            raise ValueError(f"codec {number}")
        self.number, self._level = number, level
        self._codec = None if number == _NOT_COMPRESSED else pa.Codec(_CODECS[number], compression_level=level)
        self._cheaper: Any = None

    @staticmethod
    def knows(number: int) -> bool:
        """Whether there is one of this number."""
        return number == _NOT_COMPRESSED or number in _CODECS

    def tune(self, sample: memoryview) -> None:
        """Compress what is like the sample in the cheapest way that does, unless a level is asked for."""
        if self.number != _ZSTD or self._level is not None:
            return
        size, some = max(sample.nbytes, _SMALLEST_WINDOW), sample.cast("B")[:_SAMPLE]
        self._cheaper = None
        usual = len(self.compress(some))
        for settings in _CHEAPER:
            ways = zstandard.ZstdCompressionParameters.from_level(_USUAL_LEVEL, source_size=size, **settings)
            found = zstandard.ZstdCompressor(compression_params=ways)
            if len(found.compress(some)) <= usual:
                self._cheaper = found
                return

    def compress(self, data: memoryview) -> bytes | memoryview:
        """The data as it will be stored."""
        if self._codec is None:
            return data
        found: bytes = self._cheaper.compress(data) if self._cheaper else self._codec.compress(data, asbytes=True)
        return found

    def decompress(self, data: memoryview, size: int) -> Bytes:
        """The data before it was stored, which must be of this size."""
        if not size:
            return _EMPTY
        found = data if self._codec is None else self._codec.decompress(data, decompressed_size=size)
        plain = np.frombuffer(found, dtype=np.uint8)
        if len(plain) != size:
            raise ValueError(f"{len(plain)} bytes instead of {size}")
        return plain

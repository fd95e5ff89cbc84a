"""Compressing and decompressing single pages, by the numbers that footers give to codecs.

Zstandard has one way for all data at each level. Among a few others, which take less time, ``tune`` picks the first
that makes a sample no larger than the usual one would: values that are like the one before them need no search for
matches, other numbers none for long ones, and bytes that are evenly spread no code of their own. What comes out is the
same format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import zstandard

from floeplan.parquet.pages import zstd as zstd_library
from floeplan.vectors import Bytes

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


@dataclass(frozen=True, slots=True)
class PageContent:
    """What a page holds before it is compressed.

    Attributes:
        data: Levels, if there are some, and values.
        start: Where the values begin.
        width: Bytes of a number, 4 or 8; 0 for byte arrays behind their lengths; ``None`` for anything else.
    """

    data: memoryview
    start: int = 0
    width: int | None = None

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


class PageCodec:
    """One codec; ``level`` is ``None`` for the usual one. Not for several threads at once."""

    def __init__(self, number: int, level: int | None = None) -> None:
        if not self.knows(number):
            raise ValueError(f"codec {number}")
        self.number, self._level = number, level
        self._codec = None if number == _NOT_COMPRESSED else pa.Codec(_CODECS[number], compression_level=level)
        self._cheaper: Any = None
        self._neighbours: zstd_library.NeighbourCompressor | None = None
        own = number == _ZSTD and zstd_library.available
        self._decompressor = zstd_library.Decompressor() if own else None

    @staticmethod
    def knows(number: int) -> bool:
        """Whether there is one of this number."""
        return number == _NOT_COMPRESSED or number in _CODECS

    def tune(self, sample: PageContent) -> None:
        """Compress what is like the sample in the cheapest way that does, unless a level is asked for."""
        if self.number != _ZSTD or self._level is not None:
            return
        self._cheaper = self._neighbours = None
        some = sample.data[:_SAMPLE]
        usual = len(self.compress(PageContent(some)))
        if zstd_library.available and sample.width is not None and sample.start < len(some):
            for coded in (False, True):
                like = zstd_library.NeighbourCompressor(coded=coded)
                if len(like.compress(some, sample.start, sample.width)) <= usual:
                    self._neighbours = like
                    return
        size = max(sample.nbytes, _SMALLEST_WINDOW)
        for settings in _CHEAPER:
            ways = zstandard.ZstdCompressionParameters.from_level(_USUAL_LEVEL, source_size=size, **settings)
            found = zstandard.ZstdCompressor(compression_params=ways)
            if len(found.compress(some)) <= usual:
                self._cheaper = found
                return

    def compress(self, content: PageContent) -> bytes | memoryview:
        """The content as it will be stored."""
        if self._codec is None:
            return content.data
        if self._neighbours is not None and content.width is not None:
            return self._neighbours.compress(content.data, content.start, content.width)
        if self._cheaper is not None:
            return bytes(self._cheaper.compress(content.data))
        return bytes(self._codec.compress(content.data, asbytes=True))

    def decompress(self, data: memoryview, size: int) -> Bytes:
        """The data before it was stored, which must be of this size."""
        if not size:
            return _EMPTY
        if self._decompressor is not None:
            return self._decompressor.decompress(data, size)
        found = data if self._codec is None else self._codec.decompress(data, decompressed_size=size)
        plain = np.frombuffer(found, dtype=np.uint8)
        if len(plain) != size:
            raise ValueError(f"{len(plain)} bytes instead of {size}")
        return plain

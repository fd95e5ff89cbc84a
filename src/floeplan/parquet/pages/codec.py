"""Compression of single pages, by Parquet's codec numbers.

For Zstandard at its default level, ``tune`` looks for faster settings that compress a sample of the column no worse:
values that resemble the previous one need no match search (``zstd.NeighbourCompressor``), other numbers no search for
long matches, and evenly distributed bytes no entropy coding. The output is standard Zstandard.
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
_FASTER: Final[tuple[dict[str, int], ...]] = (
    {"min_match": 6, "target_length": 3, "hash_log": 11},
    {"min_match": 6, "target_length": 0, "hash_log": 10},
)
"""Faster variants of Zstandard's level 1, fastest first: large steps with uncompressed literals; a hash table that fits
into a CPU cache."""
_DEFAULT_LEVEL = 1
_SMALLEST_WINDOW = 1 << 18
_SAMPLE = 1 << 16
"""Bytes on which settings are compared."""
_EMPTY = np.zeros(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class PageContent:
    """The uncompressed content of a page.

    Attributes:
        data: Definition levels, if the column has them, and values.
        start: Offset of the values.
        width: Bytes of a number, 4 or 8; 0 for length-prefixed byte arrays; ``None`` for anything else.
    """

    data: memoryview
    start: int = 0
    width: int | None = None

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


class PageCodec:
    """One codec; a ``level`` of ``None`` is the default one. Not thread-safe."""

    def __init__(self, number: int, level: int | None = None) -> None:
        if not self.knows(number):
            raise ValueError(f"codec {number}")
        self.number, self._level = number, level
        self._codec = None if number == _NOT_COMPRESSED else pa.Codec(_CODECS[number], compression_level=level)
        self._faster: Any = None
        self._neighbours: zstd_library.NeighbourCompressor | None = None
        own = number == _ZSTD and zstd_library.available
        self._decompressor = zstd_library.Decompressor() if own else None

    @staticmethod
    def knows(number: int) -> bool:
        """Whether this codec number is supported."""
        return number == _NOT_COMPRESSED or number in _CODECS

    def tune(self, sample: PageContent) -> None:
        """Choose the fastest settings that compress the sample no worse than the default; an explicit level wins."""
        if self.number != _ZSTD or self._level is not None:
            return
        self._faster = self._neighbours = None
        some = sample.data[:_SAMPLE]
        usual = len(self.compress(PageContent(some)))
        if zstd_library.available and sample.width is not None and sample.start < len(some):
            for coded in (False, True):
                like = zstd_library.NeighbourCompressor(coded=coded)
                if len(like.compress(some, sample.start, sample.width)) <= usual:
                    self._neighbours = like
                    return
        size = max(sample.nbytes, _SMALLEST_WINDOW)
        for settings in _FASTER:
            parameters = zstandard.ZstdCompressionParameters.from_level(_DEFAULT_LEVEL, source_size=size, **settings)
            found = zstandard.ZstdCompressor(compression_params=parameters)
            if len(found.compress(some)) <= usual:
                self._faster = found
                return

    def compress(self, content: PageContent) -> bytes | memoryview:
        """Compress the content of a page."""
        if self._codec is None:
            return content.data
        if self._neighbours is not None and content.width is not None:
            return self._neighbours.compress(content.data, content.start, content.width)
        if self._faster is not None:
            return bytes(self._faster.compress(content.data))
        return bytes(self._codec.compress(content.data, asbytes=True))

    def decompress(self, data: memoryview, size: int) -> Bytes:
        """Decompress a page to exactly ``size`` bytes."""
        if not size:
            return _EMPTY
        if self._decompressor is not None:
            return self._decompressor.decompress(data, size)
        found = data if self._codec is None else self._codec.decompress(data, decompressed_size=size)
        plain = np.frombuffer(found, dtype=np.uint8)
        if len(plain) != size:
            raise ValueError(f"{len(plain)} bytes instead of {size}")
        return plain

"""A source whose next round trip carries along what will be wanted after it.

Bloom filters and page indexes are asked one after the other, but where the indexes are small it is cheaper to fetch
them with the filters than to wait for the store twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from floeplan.parquet.source import Buffer, ByteSource, IoCounters, Range


class PiggybackSource:
    """A source over another one; ranges given to ``carry`` travel with the next ones that are read."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._waiting: list[Range] = []
        self._carried: dict[Range, memoryview] = {}

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self._source.name

    @property
    def size(self) -> int:
        """Length of the file."""
        return self._source.size

    @property
    def counters(self) -> IoCounters:
        """What the source underneath was asked so far."""
        return self._source.counters

    def read_suffix(self, length: int) -> Buffer:
        """The last bytes, from the source underneath."""
        return self._source.read_suffix(length)

    def carry(self, ranges: Iterable[Range]) -> None:
        """Fetch these ranges with the next ones, to have them when they are asked for."""
        self._waiting += ranges

    def read_ranges(self, ranges: Sequence[Range]) -> list[memoryview]:
        """The bytes of each range; what was carried along before costs nothing."""
        missing = [span for span in ranges if span not in self._carried]
        fetched = self._source.read_ranges([*missing, *self._waiting])
        fresh = dict(zip(missing, fetched, strict=False))
        self._carried |= zip(self._waiting, fetched[len(missing) :], strict=True)
        self._waiting = []
        return [self._carried[span] if span in self._carried else fresh[span] for span in ranges]

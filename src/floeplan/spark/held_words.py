"""Bits of deleted rows that are kept between reads.

Rule: what is held is named by all it was made of, files that never change among them. Fail-safe: whatever is not held
is made anew; nothing is held beyond a number of bytes, and the least recently used go first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int64]


class HeldWords:
    """The bits of files by what they are made of; safe under threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes = most_bytes, 0
        self._held: OrderedDict[Hashable, Words] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Words]) -> Words:
        """What is held, or else is made now."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        made = make()
        with self._lock:
            if key not in self._held:
                self._held[key] = made
                self._bytes += made.nbytes
            while self._bytes > self._most:
                self._bytes -= self._held.popitem(last=False)[1].nbytes
        return made

    def missing(self, key: Hashable) -> bool:
        """Whether it would have to be made."""
        return key not in self._held

    def clear(self) -> None:
        """Hold nothing."""
        with self._lock:
            self._held.clear()
            self._bytes = 0


held_words = HeldWords(64 * 2**20)
"""Of this process."""

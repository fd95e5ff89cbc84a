"""Bits of deleted rows that are kept between reads.

Rule: what is held is named by all it was made of, files that never change among them. Fail-safe: whatever is not held
is made anew; nothing is held beyond a number of bytes, and the least recently used go first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import attrgetter
from threading import Lock

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache, cached

Words = npt.NDArray[np.int64]

MOST_BYTES = 64 * 2**20
"""Of this process."""


@cached(LRUCache(MOST_BYTES, attrgetter("nbytes")), key=lambda name, make: name, lock=Lock())
def held_words(name: Hashable, make: Callable[[], Words]) -> Words:
    """The bits of a file that are held, or else are made now, other threads not waiting."""
    return make()

"""Bits of deleted rows that are kept between reads: of each file here, and of the files of a read in Spark.

Rule: what is held is named by all it was made of, files that never change among them. Fail-safe: whatever is not held
is made anew; nothing is held beyond a number of bytes, and the least recently used go first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache, cached

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

Words = npt.NDArray[np.int64]

MOST_BYTES = 64 * 2**20
"""Of this process, and as many of the one that plans queries."""


@dataclass(frozen=True, slots=True)
class RowTest:
    """An expression of Spark that rows are tested with, and the size of the bits in it."""

    column: Column
    nbytes: int


@cached(LRUCache(MOST_BYTES, attrgetter("nbytes")), key=lambda name, make: name, lock=Lock())
def held_words(name: Hashable, make: Callable[[], Words]) -> Words:
    """The bits of a file that are held, or else are made now, other threads not waiting."""
    return make()


@cached(LRUCache(MOST_BYTES, attrgetter("nbytes")), key=lambda spark, name, make: (spark, name), lock=Lock())
def held_row_test(spark: SparkSession, name: Hashable, make: Callable[[], RowTest]) -> RowTest:
    """The expression that a session holds: its bits have been sent there, and need not be sent again."""
    return make()

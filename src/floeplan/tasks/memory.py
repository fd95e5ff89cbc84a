"""What a task may take of the machine it runs on: memory to put rows in order, and cores.

On Spark the memory is what an executor has, shared out over its cores: ``spark.executor.pyspark.memory`` if it is set,
else as much as the JVM beside it, which on a local master is the driver's. In this process it is half of the machine's
memory, shared out likewise. Fail-safe: what cannot be told is taken to be one gibibyte, and one core.
"""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from floeplan.tasks.runner import parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MEMORY = 1024**3
"""Bytes that putting rows in order may take when nothing else is said."""

_UNITS = {"": 1024**2, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_LOCAL = re.compile(r"local(?:\[(\d+|\*).*\])?$")
_SIZE = re.compile(r"(\d+)\s*([bkmgt]?)b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores of one executor, and of all of them."""

    per_executor: int
    total: int


def task_memory(spark: SparkSession | None) -> int:
    """Bytes for one task, of which there is one on each core."""
    if spark is None:
        return max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // (os.cpu_count() or 1))
    of_python = _bytes(_setting(spark, "spark.executor.pyspark.memory"))
    of_jvm = _bytes(_setting(spark, "spark.driver.memory" if _local(spark) else "spark.executor.memory"))
    return (of_python or of_jvm or DEFAULT_MEMORY) // _executor_cores(spark)


def cores_of(spark: SparkSession | None) -> Cores:
    """The cores there are to share."""
    if spark is None:
        here = os.cpu_count() or 1
        return Cores(here, here)
    return Cores(_executor_cores(spark), parallelism(spark))


def _executor_cores(spark: SparkSession) -> int:
    local = _local(spark)
    cores = (local[1] or "1") if local else _setting(spark, "spark.executor.cores") or "1"
    return max(1, os.cpu_count() or 1 if cores == "*" else int(cores) if cores.isdecimal() else 1)


def _local(spark: SparkSession) -> re.Match[str] | None:
    return _LOCAL.match(_setting(spark, "spark.master"))


def _bytes(text: str) -> int:
    """A size as Spark writes it; without a unit it is in mebibytes."""
    found = _SIZE.fullmatch(text.strip())
    return int(found[1]) * _UNITS[found[2].lower()] if found else 0


def _setting(spark: SparkSession, name: str) -> str:
    return spark.conf.get(name, "") or ""


# Letting Python look for cycles of garbage less often while many small things are made that are in none.
#
# Every look goes through all that a process has loaded, which in a worker of Spark is much. Garbage without cycles,
# which
# is nearly all of it, goes away at once in any case.


_MADE = 100_000
"""Things that are made between two looks."""
_lock = threading.Lock()
_usual: list[tuple[int, int, int]] = []
"""What held before the first of those who are inside came in, one for each of them."""


@contextmanager
def raised_gc_threshold() -> Iterator[None]:
    """Look less often inside of the block; several threads may be inside, and the last to leave restores what held."""
    with _lock:
        _usual.append(_usual[0] if _usual else gc.get_threshold())
        if _usual[0][0]:  # 0 never looks
            gc.set_threshold(max(_MADE, _usual[0][0]), *_usual[0][1:])
    try:
        yield
    finally:
        with _lock:
            before = _usual.pop()
            if not _usual:
                gc.set_threshold(*before)

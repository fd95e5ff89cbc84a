"""Memory and cores of a task.

On Spark a task gets its executor's memory divided by its cores: ``spark.executor.pyspark.memory`` if set, else as much
as the executor's JVM has (the driver's on a local master). In this process it gets half of the machine's memory,
divided by the cores. Fail-safe: what cannot be determined counts as 1 GiB and one core.
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
"""Bytes for sorting when nothing else is configured."""

_UNITS = {"": 1024**2, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_LOCAL = re.compile(r"local(?:\[(\d+|\*).*\])?$")
_SIZE = re.compile(r"(\d+)\s*([bkmgt]?)b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores of one executor, and of all of them."""

    per_executor: int
    total: int


def task_memory(spark: SparkSession | None) -> int:
    """Bytes for one task, when every core runs one."""
    if spark is None:
        return max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // (os.cpu_count() or 1))
    of_python = _bytes(_setting(spark, "spark.executor.pyspark.memory"))
    of_jvm = _bytes(_setting(spark, "spark.driver.memory" if _local(spark) else "spark.executor.memory"))
    return (of_python or of_jvm or DEFAULT_MEMORY) // _executor_cores(spark)


def cores_of(spark: SparkSession | None) -> Cores:
    """The cores of an executor, and of all executors."""
    if spark is None:
        cores = os.cpu_count() or 1
        return Cores(cores, cores)
    return Cores(_executor_cores(spark), parallelism(spark))


def _executor_cores(spark: SparkSession) -> int:
    local = _local(spark)
    cores = (local[1] or "1") if local else _setting(spark, "spark.executor.cores") or "1"
    return max(1, os.cpu_count() or 1 if cores == "*" else int(cores) if cores.isdecimal() else 1)


def _local(spark: SparkSession) -> re.Match[str] | None:
    return _LOCAL.match(_setting(spark, "spark.master"))


def _bytes(text: str) -> int:
    """A size as Spark writes it; a number without a unit is in MiB."""
    found = _SIZE.fullmatch(text.strip())
    return int(found[1]) * _UNITS[found[2].lower()] if found else 0


def _setting(spark: SparkSession, name: str) -> str:
    return spark.conf.get(name, "") or ""


_GC_ALLOCATIONS = 100_000
"""Allocations between two garbage collections."""
_lock = threading.Lock()
_thresholds: list[tuple[int, int, int]] = []
"""The original thresholds, once for each thread inside the block."""


@contextmanager
def raised_gc_threshold() -> Iterator[None]:
    """Raise the garbage collector's threshold inside the block; the last of several threads restores it.

    A collection visits every object of the process, which is slow in a Spark worker with many modules. Objects that
    are in no cycle, nearly all of them here, are freed without it.
    """
    with _lock:
        _thresholds.append(_thresholds[0] if _thresholds else gc.get_threshold())
        if _thresholds[0][0]:  # 0 disables collection
            gc.set_threshold(max(_GC_ALLOCATIONS, _thresholds[0][0]), *_thresholds[0][1:])
    try:
        yield
    finally:
        with _lock:
            before = _thresholds.pop()
            if not _thresholds:
                gc.set_threshold(*before)

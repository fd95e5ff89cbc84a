"""How much memory a task may take to put rows in order, where nobody says it.

On Spark it is what an executor has, shared out over its cores: ``spark.executor.pyspark.memory`` if it is set, else as
much as the JVM beside it. In this process it is half of the machine's memory, shared out likewise. Fail-safe: what
cannot be told is taken to be one gibibyte.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from floeplan.rewrite.task import DEFAULT_MEMORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNITS = {"": 1024**2, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_SIZE = re.compile(r"(\d+)\s*([bkmgt]?)b?", re.IGNORECASE)


def task_memory(spark: SparkSession | None) -> int:
    """Bytes for one task."""
    if spark is None:
        return max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // (os.cpu_count() or 1))
    of_python = _bytes(_setting(spark, "spark.executor.pyspark.memory"))
    whole = of_python or _bytes(_setting(spark, "spark.executor.memory")) or DEFAULT_MEMORY
    cores = _setting(spark, "spark.executor.cores") or "1"
    return whole // max(1, int(cores) if cores.isdecimal() else 1)


def _bytes(text: str) -> int:
    """A size as Spark writes it; without a unit it is in mebibytes."""
    found = _SIZE.fullmatch(text.strip())
    return int(found[1]) * _UNITS[found[2].lower()] if found else 0


def _setting(spark: SparkSession, name: str) -> str:
    return spark.conf.get(name, "") or ""

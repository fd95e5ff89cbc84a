"""How much memory a task may take to put rows in order, where nobody says it.

On Spark it is what an executor has, shared out over its cores: ``spark.executor.pyspark.memory`` if it is set, else as
much as the JVM beside it, which on a local master is the driver's. In this process it is half of the machine's memory,
shared out likewise. Fail-safe: what cannot be told is taken to be one gibibyte.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from floeplan.rewrite.task import DEFAULT_MEMORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNITS = {"": 1024**2, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_LOCAL = re.compile(r"local(?:\[(\d+|\*).*\])?$")
_SIZE = re.compile(r"(\d+)\s*([bkmgt]?)b?", re.IGNORECASE)


def task_memory(spark: SparkSession | None) -> int:
    """Bytes for one task."""
    if spark is None:
        return max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // (os.cpu_count() or 1))
    local = _LOCAL.match(_setting(spark, "spark.master"))
    of_python = _bytes(_setting(spark, "spark.executor.pyspark.memory"))
    of_jvm = _bytes(_setting(spark, "spark.driver.memory" if local else "spark.executor.memory"))
    cores = (local[1] or "1") if local else _setting(spark, "spark.executor.cores") or "1"
    shares = os.cpu_count() or 1 if cores == "*" else int(cores) if cores.isdecimal() else 1
    return (of_python or of_jvm or DEFAULT_MEMORY) // max(1, shares)


def _bytes(text: str) -> int:
    """A size as Spark writes it; without a unit it is in mebibytes."""
    found = _SIZE.fullmatch(text.strip())
    return int(found[1]) * _UNITS[found[2].lower()] if found else 0


def _setting(spark: SparkSession, name: str) -> str:
    return spark.conf.get(name, "") or ""

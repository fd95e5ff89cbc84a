"""Files that the tasks of a job have written, known to the driver although the job ended with an error.

Rule: a task tells of its files by a Spark accumulator, which arrives when the task is done, whatever becomes of others.
When the job fails its answers never arrive, so nobody can have committed those files, and they are removed.

Fail-safe: files of tasks that were still running stay as orphans, and so do all with Spark Connect, which has no
accumulators.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.accumulators import Accumulator, AccumulatorParam

from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.table_files import TableFiles
from floeplan.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Goes along with a task."""

    paths: Accumulator[list[str]] | None

    def told(self, entries: EntriesTable) -> EntriesTable:
        """Tell of files."""
        if self.paths is not None:
            self.paths.add(entries.path.to_pylist())
        return entries


@contextmanager
def removed_on_failure(spark: SparkSession, files: TableFiles) -> Iterator[WrittenFiles]:
    """When a job in here ends with an error, the files that its tasks told of are removed."""
    paths = _accumulator(spark)
    try:
        yield WrittenFiles(paths)
    except BaseException:
        files.remove([] if paths is None else paths.value)
        raise
    finally:
        if paths is not None:
            paths.value = []  # PySpark holds accumulators as long as the process lives


class _Lists(AccumulatorParam[list[str]]):
    def zero(self, value: list[str]) -> list[str]:
        return []

    def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:  # noqa: N802
        return value1 + value2


def _accumulator(spark: SparkSession) -> Accumulator[list[str]] | None:
    return None if is_connect(spark) else spark.sparkContext.accumulator([], _Lists())

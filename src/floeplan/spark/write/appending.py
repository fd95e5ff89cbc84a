"""Writing the rows of a DataFrame as files of a table, inside the tasks that compute them.

Before that the rows are distributed as the table wants (``floeplan.spark.write.distribution``), and on the way they
come in
batches that are cheap to make (``floeplan.spark.write.narrow_rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.accumulators import Accumulator, AccumulatorParam

from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.spark.write.distribution import distributed
from floeplan.spark.write.narrow_rows import WideRowError, in_batches_of_rows, is_free, marked, narrow
from floeplan.spark.write.small_frames import collected
from floeplan.tasks import runner
from floeplan.tasks.runner import RESULT_SCHEMA, load_results, new_attempt, result_batch
from floeplan.tasks.shipping import ensure_package, is_connect
from floeplan.tasks.worker import ArrowTask, reusable
from floeplan.write.conform import conform
from floeplan.write.data_files import coalesce_batches, write_data_files
from floeplan.write.file_entries import remove_written_files
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Files that the tasks of a job have written, known to the driver although the job ended with an error.
#
# Rule: a task tells of its files by a Spark accumulator, which arrives when the task is done, whatever becomes of
# others.
# When the job fails its answers never arrive, so nobody can have committed those files, and they are removed.
#
# Fail-safe: files of tasks that were still running stay as orphans, and so do all with Spark Connect, which has no
# accumulators.


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


# ---

_Batches: TypeAlias = Iterable[pa.RecordBatch]


def write_frame(frame: DataFrame, target: WriteTarget) -> list[EntriesTable]:
    """Write the rows of a DataFrame; the entries of the files of each task.

    A DataFrame that surely is small is written by this process, with all rows of a partition in one file.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    conform(to_arrow_schema(frame.schema).empty_table(), target.stored_schema)
    small = collected(frame, runner.LOCAL_BYTES // 2)
    if small is not None:
        written = write_data_files(
            target, coalesce_batches(small.to_batches()), file_name_token=new_attempt(), sort=True
        )
        return [written] if len(written) else []
    ensure_package(frame.sparkSession)
    marked_rows = marked(frame) if is_free(frame.sparkSession) else None
    if marked_rows is not None:
        with suppress(WideRowError):
            return _write_in_tasks(marked_rows, target, by_rows=True)
    return _write_in_tasks(frame, target, by_rows=False)


def _write_in_tasks(frame: DataFrame, target: WriteTarget, *, by_rows: bool) -> list[EntriesTable]:
    """Write rows where they are computed; marked ones come in batches that end at a number of rows."""
    with removed_on_failure(frame.sparkSession, target.files) as written:
        task = _writer(target, narrow if by_rows else iter, written)
        query = distributed(frame, target).mapInArrow(task, RESULT_SCHEMA)
        answers = (in_batches_of_rows(query) if by_rows else query).toArrow()
    found = load_results(answers, partial(remove_written_files, files=target.files))
    return [entries for entries in found if len(entries)]


def _writer(
    target: WriteTarget, received: Callable[[_Batches], Iterator[pa.RecordBatch]], written: WrittenFiles
) -> ArrowTask:
    def write(batches: _Batches) -> EntriesTable:
        rows = coalesce_batches(received(batches))
        return written.told(write_data_files(target, rows, file_name_token=new_attempt(), sort=True))

    @reusable
    def run(batches: _Batches) -> Iterator[pa.RecordBatch]:
        yield result_batch(0, partial(write, batches))

    return run

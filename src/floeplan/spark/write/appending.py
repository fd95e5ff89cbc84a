"""Write the rows of a DataFrame as data files of a table, in the tasks that compute them.

Rows are first distributed by ``write.distribution-mode`` (``distribution``) and reach the tasks in Arrow batches that
are cheap to build (``arrow_batches``). A DataFrame that is certain to be small is written by this process.

Fail-safe: a task reports the files it wrote through a Spark accumulator, which reaches the driver when the task ends,
even if the job fails later. The results of a failed job never arrive, so its files cannot be committed and are removed.
Files of tasks that were still running stay as orphans, as do all files of a failed job on Spark Connect, which has no
accumulators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.accumulators import Accumulator, AccumulatorParam

from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.spark.write.arrow_batches import (
    WideRowError,
    flag_wide_rows,
    has_default_batch_size,
    with_row_batches,
    without_flag,
)
from floeplan.spark.write.distribution import distributed
from floeplan.spark.write.small_frames import collect_if_small
from floeplan.tasks import runner
from floeplan.tasks.runner import RESULT_SCHEMA, load_results, new_attempt, result_batch
from floeplan.tasks.shipping import ensure_package, is_connect
from floeplan.tasks.worker import reusable
from floeplan.write.conform import conform
from floeplan.write.data_files import coalesce_batches, write_data_files
from floeplan.write.metrics import remove_written_files
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Batches: TypeAlias = Iterable[pa.RecordBatch]


def write_frame(frame: DataFrame, target: WriteTarget) -> list[EntriesTable]:
    """Write the rows of a DataFrame; returns the entries of the files of each task.

    A small DataFrame is written by this process, with all rows of a partition in one file.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    # Check the columns before a job starts.
    conform(to_arrow_schema(frame.schema).empty_table(), target.stored_schema)
    small = collect_if_small(frame, runner.LOCAL_BYTES // 2)
    if small is not None:
        rows = coalesce_batches(small.to_batches())
        written = write_data_files(target, rows, file_name_token=new_attempt(), sort=True)
        return [written] if len(written) else []
    ensure_package(frame.sparkSession)
    flagged = flag_wide_rows(frame) if has_default_batch_size(frame.sparkSession) else None
    if flagged is not None:
        with suppress(WideRowError):
            return _write_in_tasks(flagged, target, row_batches=True)
    return _write_in_tasks(frame, target, row_batches=False)


def _write_in_tasks(frame: DataFrame, target: WriteTarget, *, row_batches: bool) -> list[EntriesTable]:
    """Write rows in the tasks that compute them; with ``row_batches`` the last column flags wide rows."""
    with removed_on_failure(frame.sparkSession, target.files) as reported:

        def write(batches: _Batches) -> EntriesTable:
            rows = coalesce_batches(without_flag(batches) if row_batches else iter(batches))
            return reported.add(write_data_files(target, rows, file_name_token=new_attempt(), sort=True))

        @reusable
        def run(batches: _Batches) -> Iterator[pa.RecordBatch]:
            yield result_batch(0, partial(write, batches))

        query = distributed(frame, target).mapInArrow(run, RESULT_SCHEMA)
        results = (with_row_batches(query) if row_batches else query).toArrow()
    found = load_results(results, partial(remove_written_files, files=target.files))
    return [entries for entries in found if len(entries)]


@dataclass(frozen=True, slots=True)
class ReportedFiles:
    """The paths of files that tasks report to the driver; pickled with each task."""

    paths: Accumulator[list[str]] | None

    def add(self, entries: EntriesTable) -> EntriesTable:
        """Report files."""
        if self.paths is not None:
            self.paths.add(entries.path.to_pylist())
        return entries


@contextmanager
def removed_on_failure(spark: SparkSession, files: TableFiles) -> Iterator[ReportedFiles]:
    """Remove the files that tasks have reported when a job in this context fails."""
    paths = None if is_connect(spark) else spark.sparkContext.accumulator([], _ListAccumulator())
    try:
        yield ReportedFiles(paths)
    except BaseException:
        files.remove([] if paths is None else paths.value)
        raise
    finally:
        if paths is not None:
            paths.value = []  # PySpark keeps accumulators for the lifetime of the process


class _ListAccumulator(AccumulatorParam[list[str]]):
    def zero(self, value: list[str]) -> list[str]:
        return []

    def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:  # noqa: N802
        return value1 + value2

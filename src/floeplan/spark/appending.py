"""Writing the rows of a DataFrame as files of a table, inside the tasks that compute them.

Before that the rows are distributed as the table wants (``floeplan.spark.distribution``), and on the way they come in
batches that are cheap to make (``floeplan.spark.narrow_rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from floeplan.dml import runner
from floeplan.dml.outcome import discard_entries
from floeplan.dml.runner import RESULT_SCHEMA, answer_batch, new_attempt, unpickled
from floeplan.metadata.entries import EntriesTable
from floeplan.python_workers import ArrowTask, reusable
from floeplan.spark.distribution import distributed
from floeplan.spark.narrow_rows import WideRowError, in_batches_of_rows, is_free, marked, narrow
from floeplan.spark.shipping import ensure_package
from floeplan.spark.small_frames import collected
from floeplan.spark.written_files import WrittenFiles, removed_on_failure
from floeplan.write.conform import conform
from floeplan.write.data_files import write_data_files
from floeplan.write.gather import at_once
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Batches: TypeAlias = Iterable[pa.RecordBatch]


def write_frame(frame: DataFrame, target: WriteTarget) -> list[EntriesTable]:
    """Write the rows of a DataFrame; the entries of the files of each task.

    A DataFrame that surely is small is written by this process, with all rows of a partition in one file.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    conform(to_arrow_schema(frame.schema).empty_table(), target.stored_schema)
    small = collected(frame, runner.HERE_BYTES // 2)
    if small is not None:
        written = write_data_files(target, at_once(small.to_batches()), file_name_token=new_attempt(), sort=True)
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
    found = unpickled(answers, partial(discard_entries, files=target.files))
    return [entries for entries in found if len(entries)]


def _writer(
    target: WriteTarget, received: Callable[[_Batches], Iterator[pa.RecordBatch]], written: WrittenFiles
) -> ArrowTask:
    def write(batches: _Batches) -> EntriesTable:
        rows = at_once(received(batches))
        return written.told(write_data_files(target, rows, file_name_token=new_attempt(), sort=True))

    @reusable
    def run(batches: _Batches) -> Iterator[pa.RecordBatch]:
        yield answer_batch(0, partial(write, batches))

    return run

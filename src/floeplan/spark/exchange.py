"""Tasks that exchange rows: some read rows and divide them into partitions, others each receive one partition.

Spark's shuffle moves the rows, as compressed Arrow streams of up to ``PART_BYTES`` in one binary column: Spark handles
a few thousand values, never a row. So the exchange costs about as much as writing the rows to local disk and reading
them back, and Spark recovers lost parts as it does for any shuffle.

Rule: a reading task must divide the same descriptors in the same way each time, because Spark runs it again when its
output is lost. Results count as in ``runner``: only those that are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from floeplan.errors import FloeplanError
from floeplan.spark.jvm import with_settings
from floeplan.tasks.runner import RESULT_SCHEMA, Batches, job_description, load_results, new_attempt, result_batch
from floeplan.tasks.shipping import ensure_package
from floeplan.tasks.worker import for_each_number, report_errors, reraise_task_errors, reusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Descriptor = TypeVar("Descriptor")
Result = TypeVar("Result")
Part: TypeAlias = tuple[int, pa.Table]
"""Rows and the partition they are in."""
Divide: TypeAlias = Callable[[Sequence[Descriptor]], Iterable[Part]]
Receive: TypeAlias = Callable[[int, Iterator[pa.Table], str], Result]

PART_BYTES = 4 * 1024 * 1024
"""Most bytes of rows that are moved as one value."""
_SCHEMA = "partition int, rows binary"
_NAMES = ["partition", "rows"]
_SETTINGS = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2 * PART_BYTES)}
"""Values that a receiving worker gets at once; Spark's default is 256 MiB, too much for a small executor."""
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_DECOMPRESSED = pa.ipc.IpcReadOptions(use_threads=False)
"""Every core has a task, so threads within one would only take turns."""


def run_exchange(
    divide: Divide[Descriptor],
    batches: Batches[Descriptor],
    receive: Receive[Result],
    partitions: int,
    spark: SparkSession,
    *,
    description: str,
    discard: Callable[[Result], None],
) -> list[Result]:
    """Divide rows into partitions in one task per batch, and process each partition in a task; all results or an error.

    Args:
        divide: Called with the descriptors of a batch; yields rows with the number of their partition.
        batches: The descriptors of each reading task.
        receive: Called with the number of a partition, its rows in any order, and a token for file names.
        partitions: The number of partitions; one without rows has no task and no result.
        spark: The session.
        description: Shown in Spark's UI.
        discard: Called with the results of the other tasks when one failed.

    Returns:
        The results in the order of their partitions.
    """
    ensure_package(spark)

    def send(number: int) -> Iterator[pa.RecordBatch]:
        for partition, rows in divide(batches[number]):
            for part in slices(rows, PART_BYTES):
                yield pa.RecordBatch.from_arrays([pa.array([partition], pa.int32()), _encoded(part)], names=_NAMES)

    @reusable
    def take(received: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = _received(received)
        first = next(parts, None)
        if first is not None:
            number, tables = first[0], _of_partition(first[0], chain([first], parts))
            yield result_batch(number, partial(receive, number, tables, new_attempt()))

    numbers = spark.range(0, len(batches), 1, len(batches))
    sent = numbers.mapInArrow(report_errors(for_each_number(send)), _SCHEMA)
    moved = sent.repartitionById(partitions, sent["partition"])
    with job_description(spark, description), reraise_task_errors():
        results = with_settings(moved.mapInArrow(take, RESULT_SCHEMA), _SETTINGS).toArrow()
    return load_results(results.sort_by("batch"), discard)


def slices(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    """Consecutive rows of at most about this many bytes."""
    step = max(1, int(rows.num_rows * size / max(1, rows.nbytes)))
    return (rows.slice(first, step) for first in range(0, rows.num_rows, step))


def _encoded(rows: pa.Table) -> pa.Array:
    """Rows as one binary value, which is not copied."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as writer:
        writer.write_table(rows.combine_chunks())
    value = sink.getvalue()
    return pa.BinaryArray.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, value.size], np.int32)), value])


def _received(batches: Iterable[pa.RecordBatch]) -> Iterator[Part]:
    for batch in batches:
        numbers = np.asarray(batch.column(0)).tolist()
        for number, rows in zip(numbers, batch.column(1), strict=True):
            yield number, pa.ipc.open_stream(rows.as_buffer(), options=_DECOMPRESSED).read_all()


def _of_partition(partition: int, parts: Iterator[Part]) -> Iterator[pa.Table]:
    """The tables of a partition; each value names its own, so rows that went astray fail the task."""
    for number, rows in parts:
        if number != partition:
            raise FloeplanError(f"a task received rows of partitions {partition} and {number}")
        yield rows

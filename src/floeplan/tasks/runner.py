"""The task runner: one function over many descriptors, as one Spark job or in threads of this process.

Rule: a task gets a batch of descriptors and a token for its attempt, and returns a value that can be pickled. Files are
named with the token, so attempts never collide, and only returned results count: no snapshot refers to the files of a
failed or speculative attempt. There are at most as many batches as cores, of about equal weight, because starting a
Python task costs Spark as much as processing some megabytes. Results are in the order of the batches, and a batch keeps
the order of its descriptors.

Every task ends in an outcome, its result or its error. When one failed, the results of the others are discarded and the
first error is raised as the task raised it.

Only the DataFrame API is used, so that classic sessions, clusters and Spark Connect all work.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa

from floeplan.errors import FloeplanError
from floeplan.tasks.worker import ArrowTask, for_each_number
from floeplan.vectors import Floats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Descriptor = TypeVar("Descriptor")
Result = TypeVar("Result")
Task: TypeAlias = Callable[[Sequence[Descriptor], str], Result]

TASK_BYTES = 8 * 1024 * 1024
"""Less work than this is not worth a Spark task of its own."""
LOCAL_BYTES = 128 * 1024 * 1024
"""Up to this much work runs in this process even with a session: a Spark job would cost more than it saves.

``python -m bench.dml_thresholds``: on two cores a job adds 0.2 to 0.7 s of CPU time and 0.1 to 0.3 s of wall time. At
160 MiB of work both take equally long (1.03 s), at 270 MiB Spark is faster (3.3 s against 3.5 s); where Spark has more
cores than the driver it is faster sooner.
"""
RESULT_SCHEMA = "batch long, failed boolean, result binary"


@dataclass(frozen=True, slots=True)
class TaskOutcome(Generic[Result]):
    """How a task ended: with a result, or with an error."""

    result: Result | None = None
    error: BaseException | None = None


def run_tasks(
    task: Task[Descriptor, Result],
    descriptors: Sequence[Descriptor],
    spark: SparkSession | None = None,
    *,
    weights: Sequence[float] | None = None,
    description: str = "",
    discard: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Run a task over all descriptors.

    Args:
        task: Called with some descriptors and a token for file names; both must pickle when Spark is used.
        descriptors: What to work on.
        spark: A session; without one, and for little work, tasks run in this process.
        weights: Bytes of work of each descriptor, to balance batches; equal when not given.
        description: Shown in Spark's UI.
        discard: Called with the results of the other tasks when one failed.

    Returns:
        One result for each batch.
    """
    if not descriptors:
        return []
    sizes = np.ones(len(descriptors)) * TASK_BYTES if weights is None else np.asarray(weights, dtype=np.float64)
    if spark is None or sizes.sum() <= LOCAL_BYTES:
        outcomes = _run_locally(task, _batches(descriptors, sizes, os.cpu_count() or 1))
    else:
        outcomes = _run_on_spark(task, _batches(descriptors, sizes, parallelism(spark)), spark, description)
    return _results(outcomes, discard)


def new_attempt() -> str:
    """A unique token for the files of one attempt."""
    return uuid.uuid4().hex[:16]


def _run_locally(task: Task[Descriptor, Result], batches: list[list[Descriptor]]) -> list[TaskOutcome[Result]]:
    with ThreadPoolExecutor(len(batches), "floeplan-task") as pool:
        running = [pool.submit(task, batch, new_attempt()) for batch in batches]
        errors = [future.exception() for future in running]
    return [
        TaskOutcome(future.result()) if error is None else TaskOutcome(error=error)
        for error, future in zip(errors, running, strict=True)
    ]


def _run_on_spark(
    task: Task[Descriptor, Result], batches: list[list[Descriptor]], spark: SparkSession, description: str
) -> list[TaskOutcome[Result]]:
    from floeplan.tasks.shipping import ensure_package

    ensure_package(spark)
    _set_job_description(spark, description)
    try:
        frame = spark.range(0, len(batches), 1, len(batches)).mapInArrow(spark_task(task, batches), RESULT_SCHEMA)
        returned = frame.toArrow().sort_by("batch")
    finally:
        _set_job_description(spark, None)
    return _outcomes(returned)


def spark_task(task: Task[Descriptor, Result], batches: Sequence[Sequence[Descriptor]]) -> ArrowTask:
    """The function that a Spark task runs for the numbers of its batches."""
    return for_each_number(lambda number: [result_batch(number, partial(task, batches[number], new_attempt()))])


def result_batch(number: int, task: Callable[[], object]) -> pa.RecordBatch:
    """Run a task and pickle its result; a Floeplan error is pickled too, so that it arrives unchanged."""
    failed = False
    try:
        value = task()
    except FloeplanError as error:
        # Causes and the frames of the traceback need not pickle.
        error.__cause__ = error.__context__ = None
        failed, value = True, error.with_traceback(None)
    arrays = [
        pa.array([number], pa.int64()),
        pa.array([failed], pa.bool_()),
        pa.array([pickle.dumps(value)], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=["batch", "failed", "result"])


def load_results(returned: pa.Table, discard: Callable[[Result], None] | None) -> list[Result]:
    """The results in what ``result_batch`` made; the first error is raised once other results are discarded."""
    return _results(_outcomes(returned), discard)


def _outcomes(returned: pa.Table) -> list[TaskOutcome[Result]]:
    values = [pickle.loads(value.as_buffer()) for value in returned.column("result")]
    failed = returned.column("failed").to_pylist()
    return [TaskOutcome(error=value) if bad else TaskOutcome(value) for bad, value in zip(failed, values, strict=True)]


def _results(outcomes: Sequence[TaskOutcome[Result]], discard: Callable[[Result], None] | None) -> list[Result]:
    first = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
    if first is None:
        return [cast("Result", outcome.result) for outcome in outcomes]
    for outcome in outcomes:
        if outcome.error is None and discard is not None:
            discard(cast("Result", outcome.result))
    raise first


def _batches(descriptors: Sequence[Descriptor], sizes: Floats, limit: int) -> list[list[Descriptor]]:
    """At most ``limit`` batches of about equal weight, none below ``TASK_BYTES``; heavy descriptors are dealt first."""
    count = int(min(limit, len(descriptors), max(1, -(-sizes.sum() // TASK_BYTES))))
    load, members = np.zeros(count), [cast("list[int]", []) for _ in range(count)]
    for row in np.argsort(-sizes, kind="stable").tolist():
        lightest = int(load.argmin())
        load[lightest] += max(sizes[row], 1)
        members[lightest].append(row)
    return [[descriptors[row] for row in sorted(rows)] for rows in members]


def parallelism(spark: SparkSession) -> int:
    """The cores of a session; Spark Connect does not report them, so a default is used there."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:
        return max(1, int(cast(str, spark.conf.get("spark.default.parallelism", "16"))))


def _set_job_description(spark: SparkSession, description: str | None) -> None:
    """Name the job in Spark's UI; Spark Connect has no SparkContext to do that."""
    try:
        spark.sparkContext.setJobDescription(cast(str, description))
    except Exception:
        return


# Ordered parallel map over a thread pool, and prefetching of an iterator.


T = TypeVar("T")
R = TypeVar("R")

_END: Any = object()


def parallel_map(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Apply a function to items in several threads and yield the results in order.

    At most one result more than there are threads is computed or waits to be taken; the caller's thread iterates the
    items, one for each result it takes. With one thread nothing is computed before it is requested. An error is raised
    at the position of its result. A caller that stops early waits for the running calls.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(threads, "floeplan-map")
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def prefetch(items: Iterable[T]) -> Iterator[T]:
    """Yield the same items, each computed by another thread while the one before is used.

    Two items exist at the same time. An error is raised at the position of its item. A caller that stops early waits
    for the item being computed, and a generator is closed.
    """
    iterator = iter(items)
    pool = ThreadPoolExecutor(1, "floeplan-prefetch")
    try:
        following = pool.submit(next, iterator, _END)
        while (item := following.result()) is not _END:
            following = pool.submit(next, iterator, _END)
            yield item
    finally:
        pool.shutdown(wait=True)
        if isinstance(iterator, Generator):
            iterator.close()

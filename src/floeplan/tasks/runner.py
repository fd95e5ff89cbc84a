"""The task runner: one function over many descriptors, on threads of this process or on Spark.

Rule: a task gets a batch of descriptors and a token for its attempt, and returns a value that can be pickled. Files are
named with the token, so attempts never collide, and only returned results count: no snapshot refers to the files of a
failed or speculative attempt. There are at most as many batches as cores, of about equal weight, because starting a
Python task costs Spark as much as processing some megabytes.

Every task ends in a ``TaskOutcome``, its result or its error. What a caller gets is one of two things:

- ``run_tasks``: all results of one job. When a task failed, the results of the others are discarded and the first error
  is raised as the task raised it. Results are in the order of the batches, and a batch keeps the order of its
  descriptors.
- ``run_jobs``: the outcome of each descriptor, as the jobs they are in finish. A failed descriptor does not fail the
  others. When the caller stops early, running jobs are interrupted, and results that it did not get are discarded.

Only the DataFrame API is used, so that classic sessions, clusters and Spark Connect all work.
"""

from __future__ import annotations

import gc
import os
import pickle
import threading
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa

from floeplan.errors import FloeplanError
from floeplan.tasks.shipping import ensure_package
from floeplan.tasks.worker import ArrowTask, for_each_number
from floeplan.text import reason
from floeplan.transaction.catalog_commit import delay_interrupt
from floeplan.vectors import Floats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Descriptor = TypeVar("Descriptor")
Result = TypeVar("Result")
T = TypeVar("T")
R = TypeVar("R")
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
_GC_ALLOCATIONS = 100_000
"""Allocations between two garbage collections in ``raised_gc_threshold``."""
_thresholds_lock = threading.Lock()
_thresholds: list[tuple[int, int, int]] = []
"""The original thresholds, once for each thread inside ``raised_gc_threshold``."""
_END: Any = object()


@dataclass(frozen=True, slots=True)
class TaskOutcome(Generic[Result]):
    """How a task ended: with a result, or with an error."""

    result: Result | None = None
    error: BaseException | None = None


Batches: TypeAlias = list[list[Descriptor]]
Outcomes: TypeAlias = dict[int, TaskOutcome[Result]]
"""The outcomes of batches, by number."""
JobOutcomes: TypeAlias = list[tuple[Descriptor, TaskOutcome[Result]]]


class Executor(Protocol):
    """Where the tasks of a job run."""

    @property
    def cores(self) -> int:
        """How many tasks run at the same time."""

    def run(
        self, task: Task[Descriptor, Result], batches: Batches[Descriptor], description: str, outcomes: Outcomes[Result]
    ) -> None:
        """Run a task for each batch and enter its outcome; the caller has those entered when an interrupt is raised."""


class LocalThreads:
    """Runs tasks in threads of this process."""

    @property
    def cores(self) -> int:
        return os.cpu_count() or 1

    def run(
        self, task: Task[Descriptor, Result], batches: Batches[Descriptor], description: str, outcomes: Outcomes[Result]
    ) -> None:
        def run(number: int, batch: list[Descriptor]) -> None:
            try:
                outcomes[number] = TaskOutcome(task(batch, new_attempt()))
            except BaseException as error:
                outcomes[number] = TaskOutcome(error=error)

        # Threads cannot be interrupted, and a pool does not wait for a thread whose start is interrupted.
        with delay_interrupt(), ThreadPoolExecutor(len(batches), "floeplan-task") as pool:
            for number, batch in enumerate(batches):
                pool.submit(run, number, batch)


@dataclass(frozen=True, slots=True)
class SparkTasks:
    """Runs tasks as one Spark job."""

    spark: SparkSession

    @property
    def cores(self) -> int:
        return parallelism(self.spark)

    def run(
        self, task: Task[Descriptor, Result], batches: Batches[Descriptor], description: str, outcomes: Outcomes[Result]
    ) -> None:
        ensure_package(self.spark)
        numbers = self.spark.range(0, len(batches), 1, len(batches))
        with job_description(self.spark, description):
            returned = numbers.mapInArrow(spark_task(task, batches), RESULT_SCHEMA).toArrow()
            outcomes.update(_outcomes(returned.sort_by("batch")))


@contextmanager
def job_description(spark: SparkSession, description: str) -> Iterator[None]:
    """Name the jobs of the block in Spark's UI; Spark Connect has no SparkContext to do that."""
    with suppress(Exception):
        spark.sparkContext.setJobDescription(description)
    try:
        yield
    finally:
        with suppress(Exception):
            spark.sparkContext.setJobDescription(cast(str, None))


def run_tasks(
    task: Task[Descriptor, Result],
    descriptors: Sequence[Descriptor],
    spark: SparkSession | None = None,
    *,
    weights: Sequence[float] | None = None,
    description: str = "",
    discard: Callable[[Result], None] | None = None,
    keep: Callable[[Result], None] | None = None,
    one_each: bool = False,
) -> list[Result]:
    """Run a task over all descriptors, and return all results or raise.

    Args:
        task: Called with some descriptors and a token for file names; both must pickle when Spark is used.
        descriptors: What to work on.
        spark: A session; without one, and for little work, tasks run in this process.
        weights: Bytes of work of each descriptor, to balance batches; equal when not given.
        description: Shown in Spark's UI.
        discard: Called with the results of the other tasks when one failed or an interrupt came.
        keep: Called with each result when all tasks are done; until then, an interrupt discards it.
        one_each: Run a Spark task for each descriptor, however many there are and however little their work is.

    Returns:
        One result for each batch.
    """
    if not descriptors:
        return []
    if spark is not None and one_each:
        one_by_one = [[one] for one in descriptors]
        return _results(partial(SparkTasks(spark).run, task, one_by_one, description), discard, keep)
    sizes = np.ones(len(descriptors)) * TASK_BYTES if weights is None else np.asarray(weights, dtype=np.float64)
    executor: Executor = LocalThreads() if spark is None or sizes.sum() <= LOCAL_BYTES else SparkTasks(spark)
    batches = balanced_batches(descriptors, sizes, executor.cores)
    return _results(partial(executor.run, task, batches, description), discard, keep)


def run_jobs(
    task: Callable[[Descriptor, str], Result],
    jobs: Iterable[Sequence[Descriptor]],
    spark: SparkSession | None = None,
    *,
    weight: Callable[[Descriptor], int],
    describe: Callable[[Sequence[Descriptor]], str],
    concurrent_jobs: int,
    discard: Callable[[Result], None],
    error_kind: str,
    keep: Callable[[Result], None] = lambda _: None,
    stop: Callable[[], None] | None = None,
    own_job: Callable[[Descriptor], Callable[[], Result] | None] = lambda _: None,
) -> Generator[JobOutcomes[Descriptor, Result]]:
    """Run jobs, and yield each descriptor of a job with its outcome as jobs finish.

    Args:
        task: Called with one descriptor and a token for file names; both must pickle when Spark is used.
        jobs: The descriptors of each job.
        spark: A session, on which jobs run concurrently; without one they run one after the other in this process.
        weight: Bytes of work of a descriptor.
        describe: The description of a job in Spark's UI.
        concurrent_jobs: Maximum concurrent Spark jobs.
        discard: Called with the results that the caller did not get, when it stops early.
        error_kind: The kind of an error that is none of Floeplan's.
        keep: Called with each result before it is yielded; until then, an interrupt discards it.
        stop: Called when the caller stops early; may make tasks in this process fail soon.
        own_job: What processes the only descriptor of a job by Spark jobs of its own; ``None`` for one task.
    """
    tag = f"floeplan-{uuid.uuid4().hex[:12]}"  # by which Spark finds the jobs to interrupt

    def run(job: Sequence[Descriptor]) -> JobOutcomes[Descriptor, Result]:
        try:
            if spark is not None:
                spark.addTag(tag)
            own = own_job(job[0]) if len(job) == 1 else None
            if own is not None:
                return [(job[0], TaskOutcome(own()))]
            outcomes = run_tasks(
                partial(_run_isolated, task, error_kind),
                list(enumerate(job)),
                spark,
                weights=[weight(descriptor) for descriptor in job],
                description=describe(job),
            )
        except Exception as error:  # the job failed as a whole: Spark lost an executor, for example
            failed: TaskOutcome[Result] = TaskOutcome(error=_picklable(error, error_kind))
            return [(descriptor, failed) for descriptor in job]
        return [(job[number], outcome) for batch in outcomes for number, outcome in batch]

    with ThreadPoolExecutor(1 if spark is None else concurrent_jobs, "floeplan-job") as pool:
        running = list[Future[JobOutcomes[Descriptor, Result]]]()
        delivered = set[Future[JobOutcomes[Descriptor, Result]]]()
        try:
            with delay_interrupt():  # a job that has begun is known
                running += [pool.submit(run, job) for job in jobs]
            for future in as_completed(running):
                with delay_interrupt():
                    outcomes = future.result()
                    delivered.add(future)
                    for _, outcome in outcomes:
                        if outcome.error is None:
                            keep(cast("Result", outcome.result))
                yield outcomes
        except BaseException:
            # GeneratorExit when the caller stops, KeyboardInterrupt while waiting.
            if stop is not None:
                stop()
            for future in running:
                future.cancel()
            if spark is not None:
                with suppress(Exception):
                    spark.interruptTag(tag)
            for future in running:
                if not future.cancelled() and future not in delivered:
                    for _, outcome in future.result():
                        if outcome.error is None:
                            discard(cast("Result", outcome.result))
            raise


def _run_isolated(
    task: Callable[[Descriptor, str], Result], error_kind: str, batch: Sequence[tuple[int, Descriptor]], attempt: str
) -> JobOutcomes[int, Result]:
    """Run a task for one numbered descriptor after the other; one that fails ends in its error."""
    outcomes: JobOutcomes[int, Result] = []
    with raised_gc_threshold():
        for number, descriptor in batch:
            try:
                outcomes.append((number, TaskOutcome(task(descriptor, attempt))))
            except Exception as error:
                outcomes.append((number, TaskOutcome(error=_picklable(error, error_kind))))
    return outcomes


def _picklable(error: Exception, kind: str) -> FloeplanError:
    """The error as a ``FloeplanError`` without traceback and cause, which may not pickle."""
    if not isinstance(error, FloeplanError):
        error = FloeplanError(reason(error), kind=kind, safe_to_clean=True)
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def new_attempt() -> str:
    """A unique token for the files of one attempt."""
    return uuid.uuid4().hex[:16]


def spark_task(task: Task[Descriptor, Result], batches: Sequence[Sequence[Descriptor]]) -> ArrowTask:
    """The function that a Spark task runs for the numbers of its batches."""
    return for_each_number(lambda number: [result_batch(number, partial(task, batches[number], new_attempt()))])


def result_batch(number: int, task: Callable[[], object]) -> pa.RecordBatch:
    """Run a task and pickle its result; a Floeplan error is pickled too, so that it arrives unchanged."""
    failed = False
    try:
        value = task()
    except FloeplanError as error:
        failed, value = True, _picklable(error, error.kind)
    arrays = [
        pa.array([number], pa.int64()),
        pa.array([failed], pa.bool_()),
        pa.array([pickle.dumps(value)], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=["batch", "failed", "result"])


def load_results(
    returned: pa.Table, discard: Callable[[Result], None] | None, keep: Callable[[Result], None] | None = None
) -> list[Result]:
    """The results in what ``result_batch`` made; the first error is raised once other results are discarded."""
    return _results(lambda outcomes: outcomes.update(_outcomes(returned)), discard, keep)


def _outcomes(returned: pa.Table) -> Outcomes[Result]:
    values = [pickle.loads(value.as_buffer()) for value in returned.column("result")]
    failed = returned.column("failed").to_pylist()
    pairs = enumerate(zip(failed, values, strict=True))
    return {number: TaskOutcome(error=value) if bad else TaskOutcome(value) for number, (bad, value) in pairs}


def _results(
    run: Callable[[Outcomes[Result]], None],
    discard: Callable[[Result], None] | None,
    keep: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Run tasks, which enter their outcomes, and return all results; or discard them and raise the first error.

    An interrupt may come at any time: until the caller has kept a result, it is discarded here.
    """
    outcomes: Outcomes[Result] = {}
    try:
        run(outcomes)
        ordered = [outcomes[number] for number in sorted(outcomes)]
        for outcome in ordered:
            if outcome.error is not None:
                raise outcome.error
        results = [cast("Result", outcome.result) for outcome in ordered]
        if keep is not None:
            for result in results:
                keep(result)
        return results
    except BaseException:
        for outcome in outcomes.values():
            if discard is not None and outcome.error is None:
                discard(cast("Result", outcome.result))
        raise


def balanced_batches(descriptors: Sequence[Descriptor], sizes: Floats, limit: int) -> Batches[Descriptor]:
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


@contextmanager
def raised_gc_threshold() -> Iterator[None]:
    """Raise the garbage collector's threshold inside the block; the last of several threads restores it.

    A collection visits every object of the process, which is slow in a Spark worker with many modules. Objects that
    are in no cycle, nearly all of them here, are freed without it.
    """
    with _thresholds_lock:
        _thresholds.append(_thresholds[0] if _thresholds else gc.get_threshold())
        if _thresholds[0][0]:  # 0 disables collection
            gc.set_threshold(max(_GC_ALLOCATIONS, _thresholds[0][0]), *_thresholds[0][1:])
    try:
        yield
    finally:
        with _thresholds_lock:
            before = _thresholds.pop()
            if not _thresholds:
                gc.set_threshold(*before)

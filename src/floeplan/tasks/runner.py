"""Running the same task on many pieces of work: with a Spark session as one job, without one in this process.

Rule: a task gets a pack of descriptors and the token of its attempt, and returns a value that can be pickled. Outputs
are named with the token, so attempts never collide, and only what came back counts: what a failed or speculative
attempt wrote is referenced by nobody. Packs are balanced and no more than there are cores, because a Python task of
Spark costs as much as some megabytes of work; their results come back in the order of the packs, and a pack keeps the
order of its descriptors.

Only the DataFrame API is used, so classic sessions, clusters and Spark Connect all do. An error in a task is raised
here as what it was.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa

from floeplan.errors import FloeplanError
from floeplan.tasks.worker import ArrowTask, for_each_number

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Work = TypeVar("Work")
Result = TypeVar("Result")
Task: TypeAlias = Callable[[Sequence[Work], str], Result]

TASK_BYTES = 8 * 1024 * 1024
"""Work of fewer bytes does not pay for a Spark task of its own."""
LOCAL_BYTES = 128 * 1024 * 1024
"""Work of no more bytes in all is done in this process, session or not: a Spark job would cost more than it spreads.

``python -m bench.dml_thresholds``: on two cores a job adds 0.2 to 0.7 s of CPU and 0.1 to 0.3 s of time whatever it
does. At 160 MiB of work both ways take equally long (1.03 s), at 270 MiB tasks are ahead (3.3 s to 3.5 s); where tasks
have more cores than the driver they are ahead sooner.
"""
RESULT_SCHEMA = "pack long, failed boolean, answer binary"


def run_tasks(
    task: Task[Work, Result],
    descriptors: Sequence[Work],
    spark: SparkSession | None = None,
    *,
    weights: Sequence[float] | None = None,
    description: str = "",
    discard: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Run a task over all descriptors.

    Args:
        task: Given some descriptors and a token for names; it and they must pickle when Spark is used.
        descriptors: The pieces of work.
        spark: A session; without one, and for little work, everything runs in this process.
        weights: Bytes of work in each descriptor, by which packs are balanced; equal when not given.
        description: What a Spark user interface shows.
        discard: Called with what tasks returned when another one failed.

    Returns:
        One result for each pack.
    """
    if not descriptors:
        return []
    sizes = np.ones(len(descriptors)) * TASK_BYTES if weights is None else np.asarray(weights, dtype=np.float64)
    if spark is None or sizes.sum() <= LOCAL_BYTES:
        return _run_here(task, _packs(descriptors, sizes, os.cpu_count() or 1), discard)
    packs = _packs(descriptors, sizes, parallelism(spark))
    return _run_on_spark(task, packs, spark, description, discard)


def new_attempt() -> str:
    """A token no other attempt has."""
    return uuid.uuid4().hex[:16]


def _run_here(
    task: Task[Work, Result], packs: list[list[Work]], discard: Callable[[Result], None] | None
) -> list[Result]:
    with ThreadPoolExecutor(len(packs), "floeplan-task") as pool:
        running = [pool.submit(task, pack, new_attempt()) for pack in packs]
        errors = [future.exception() for future in running]
    results = [future.result() if error is None else None for error, future in zip(errors, running, strict=True)]
    return _all_good(errors, results, discard)


def _run_on_spark(
    task: Task[Work, Result],
    packs: list[list[Work]],
    spark: SparkSession,
    description: str,
    discard: Callable[[Result], None] | None,
) -> list[Result]:
    from floeplan.tasks.shipping import ensure_package

    ensure_package(spark)
    _describe(spark, description)
    try:
        frame = spark.range(0, len(packs), 1, len(packs)).mapInArrow(spark_task(task, packs), RESULT_SCHEMA)
        answers = frame.toArrow().sort_by("pack")
    finally:
        _describe(spark, None)
    return load_results(answers, discard)


def load_results(answers: pa.Table, discard: Callable[[Result], None] | None) -> list[Result]:
    """What tasks returned; the first error is raised."""
    values = [pickle.loads(answer.as_buffer()) for answer in answers.column("answer")]
    failed = answers.column("failed").to_pylist()
    errors = [value if bad else None for bad, value in zip(failed, values, strict=True)]
    return _all_good(errors, values, discard)


def _all_good(
    errors: Sequence[BaseException | None], values: Sequence[Result | None], discard: Callable[[Result], None] | None
) -> list[Result]:
    """The results, or the first error once the others' results are discarded."""
    first = next((error for error in errors if error is not None), None)
    if first is None:
        return cast("list[Result]", list(values))
    for error, value in zip(errors, values, strict=True):
        if error is None and discard is not None:
            discard(cast("Result", value))
    raise first


def spark_task(task: Task[Work, Result], packs: Sequence[Sequence[Work]]) -> ArrowTask:
    """What a Spark task runs for every pack number it is given."""
    return for_each_number(lambda number: [result_batch(number, partial(task, packs[number], new_attempt()))])


def result_batch(number: int, make: Callable[[], object]) -> pa.RecordBatch:
    """One pickled result; an error of Floeplan's is a result too, so that it arrives as what it is."""
    failed = False
    try:
        value = make()
    except FloeplanError as error:
        failed, value = True, _plain(error)
    arrays = [
        pa.array([number], pa.int64()),
        pa.array([failed], pa.bool_()),
        pa.array([pickle.dumps(value)], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=["pack", "failed", "answer"])


def _plain(error: FloeplanError) -> FloeplanError:
    """Without the traceback's frames and causes, which need not pickle."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _packs(descriptors: Sequence[Work], sizes: np.ndarray[Any, np.dtype[np.float64]], most: int) -> list[list[Work]]:
    """At most so many packs of about equal weight, none lighter than pays; heavy descriptors are dealt first."""
    count = int(min(most, len(descriptors), max(1, -(-sizes.sum() // TASK_BYTES))))
    load, members = np.zeros(count), [cast("list[int]", []) for _ in range(count)]
    for row in np.argsort(-sizes, kind="stable").tolist():
        lightest = int(load.argmin())
        load[lightest] += max(sizes[row], 1)
        members[lightest].append(row)
    return [[descriptors[row] for row in sorted(rows)] for rows in members]


def parallelism(spark: SparkSession) -> int:
    """Cores the session runs on, as far as it says; Spark Connect does not, and a cluster has at least some."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:
        return max(1, int(cast(str, spark.conf.get("spark.default.parallelism", "16"))))


def _describe(spark: SparkSession, description: str | None) -> None:
    """Name the job in the user interface of a classic session; others have none to name it in."""
    try:
        spark.sparkContext.setJobDescription(cast(str, description))
    except Exception:
        return

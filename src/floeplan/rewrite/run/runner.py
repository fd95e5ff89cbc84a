"""Running the groups of a plan: jobs of one large group or several small ones, some at a time, each group on its own.

Rule: a group that fails leaves the others alone; its failure is a result like any other. Results come as jobs end, so
that they can be committed while others run. With a Spark session a job is a Spark job; without one, jobs run in this
process one after the other, with a thread per core inside each.

Fail-safe: when the caller stops listening, whatever the reason, running jobs are stopped or waited for, and all files
of results that were not handed over are removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from floeplan.errors import FloeplanError
from floeplan.rewrite.result import GroupFailure
from floeplan.rewrite.run.task import RewriteTask
from floeplan.rewrite.run.work import GroupResult, GroupWork
from floeplan.tasks.memory import raised_gc_threshold
from floeplan.tasks.runner import run_tasks
from floeplan.text import reason
from floeplan.write.file_entries import remove_written_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GroupOutcome: TypeAlias = GroupResult | GroupFailure

JOB_BYTES = 256 * 1024 * 1024
"""Groups are put together into jobs of about this size."""


@dataclass(frozen=True, slots=True)
class EachGroup:
    """A task that answers for every group what became of it."""

    task: RewriteTask

    def __call__(self, works: Sequence[GroupWork], attempt: str) -> list[GroupOutcome]:
        """Rewrite some groups, one after the other."""
        with raised_gc_threshold():
            return [self._outcome(work, attempt) for work in works]

    def _outcome(self, work: GroupWork, attempt: str) -> GroupOutcome:
        try:
            (result,) = self.task([work], attempt)
        except Exception as error:
            return GroupFailure(work.group_id, _named(error), work.bytes)
        return result


@dataclass(frozen=True, slots=True)
class GroupRunner:
    """Runs groups.

    Attributes:
        task: What is done with a group.
        spark: A session; ``None`` runs in this process.
        at_a_time: Spark jobs under way at most.
        name: What the table is called in the user interface of Spark.
    """

    task: RewriteTask
    spark: SparkSession | None
    at_a_time: int
    name: str

    def run(self, works: Sequence[GroupWork]) -> Generator[list[GroupOutcome]]:
        """What became of the groups of each job, in the order in which jobs end; the caller owns what it was given."""
        tag = f"floeplan-rewrite-{uuid.uuid4().hex[:12]}"
        with ThreadPoolExecutor(1 if self.spark is None else self.at_a_time, "floeplan-rewrite") as pool:
            running = [pool.submit(self._run_job, job, tag) for job in _jobs(works)]
            taken: set[Future[list[GroupOutcome]]] = set()
            try:
                for future in as_completed(running):
                    taken.add(future)
                    yield future.result()
            except BaseException:
                self._stop(running, taken, tag)
                raise

    def _run_job(self, works: Sequence[GroupWork], tag: str) -> list[GroupOutcome]:
        groups = ", ".join(str(number) for number in sorted({work.group_id for work in works})[:5])
        try:
            if self.spark is not None:
                self.spark.addTag(tag)
            results = run_tasks(
                EachGroup(self.task),
                works,
                self.spark,
                weights=[work.bytes for work in works],
                description=f"floeplan rewrite {self.name}: groups {groups}",
            )
        except Exception as error:
            return [GroupFailure(work.group_id, _named(error), work.bytes) for work in works]
        return [outcome for pack in results for outcome in pack]

    def _stop(
        self, running: list[Future[list[GroupOutcome]]], taken: set[Future[list[GroupOutcome]]], tag: str
    ) -> None:
        for future in running:
            future.cancel()
        if self.spark is not None:
            with suppress(Exception):
                self.spark.interruptTag(tag)
        for future in running:
            if not future.cancelled() and future not in taken:
                discard_outcomes(future.result(), self.task)


def discard_outcomes(outcomes: Sequence[GroupOutcome], task: RewriteTask) -> None:
    """Remove the files of results that will not be committed."""
    for outcome in outcomes:
        if isinstance(outcome, GroupResult):
            remove_written_files(outcome.added, task.target.files)


def _jobs(works: Sequence[GroupWork]) -> Iterator[list[GroupWork]]:
    """Consecutive groups, so many that a job is worth its start."""
    job: list[GroupWork] = []
    for work in works:
        job.append(work)
        if sum(one.bytes for one in job) >= JOB_BYTES:
            yield job
            job = []
    if job:
        yield job


def _named(error: Exception) -> FloeplanError:
    """The error as one of Floeplan's, without frames and causes, which need not pickle."""
    if not isinstance(error, FloeplanError):
        error = FloeplanError(reason(error), kind="rewrite-failed", safe_to_clean=True)
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)

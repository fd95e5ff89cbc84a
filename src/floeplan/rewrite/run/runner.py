"""Running the groups of a plan in jobs of one large group or several small ones.

Rule: a group that fails does not fail the others; its failure is an outcome like any other. Outcomes are yielded as
jobs finish, so they can be committed while others run. With a Spark session a job is a Spark job, and several run
concurrently; without one, jobs run in this process one after the other, with a thread per core inside each.

Fail-safe: when the caller stops iterating, for whatever reason, running jobs are interrupted or awaited, and the files
of outcomes that were not handed over are removed.
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
from floeplan.rewrite.run.group_task import GroupResult, GroupTask
from floeplan.rewrite.run.rewriter import GroupRewriter
from floeplan.tasks.memory import raised_gc_threshold
from floeplan.tasks.runner import run_tasks
from floeplan.text import reason
from floeplan.write.file_entries import remove_written_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GroupOutcome: TypeAlias = GroupResult | GroupFailure

JOB_BYTES = 256 * 1024 * 1024
"""Small groups are combined into jobs of about this size."""


@dataclass(frozen=True, slots=True)
class _IsolatedRewriter:
    """Rewrites groups one after the other; a group that fails yields its failure."""

    rewriter: GroupRewriter

    def __call__(self, tasks: Sequence[GroupTask], attempt: str) -> list[GroupOutcome]:
        outcomes: list[GroupOutcome] = []
        with raised_gc_threshold():
            for task in tasks:
                try:
                    outcomes += self.rewriter([task], attempt)
                except Exception as error:
                    outcomes.append(GroupFailure(task.group_id, _picklable(error), task.bytes))
        return outcomes


@dataclass(frozen=True, slots=True)
class GroupRunner:
    """Runs group tasks.

    Attributes:
        rewriter: Rewrites a group.
        spark: A session; ``None`` runs in this process.
        max_jobs: Concurrent Spark jobs.
        name: The table's name in the Spark UI.
    """

    rewriter: GroupRewriter
    spark: SparkSession | None
    max_jobs: int
    name: str

    def run(self, tasks: Sequence[GroupTask]) -> Generator[list[GroupOutcome]]:
        """Yield the outcomes of each job as jobs finish; the caller owns the files of what it was given."""
        tag = f"floeplan-rewrite-{uuid.uuid4().hex[:12]}"
        with ThreadPoolExecutor(1 if self.spark is None else self.max_jobs, "floeplan-rewrite") as pool:
            running = [pool.submit(self._run_job, job, tag) for job in _jobs(tasks)]
            handed_over: set[Future[list[GroupOutcome]]] = set()
            try:
                for future in as_completed(running):
                    handed_over.add(future)
                    yield future.result()
            except BaseException:
                for future in running:
                    future.cancel()
                if self.spark is not None:
                    with suppress(Exception):
                        self.spark.interruptTag(tag)
                for future in running:
                    if not future.cancelled() and future not in handed_over:
                        discard_outcomes(future.result(), self.rewriter)
                raise

    def _run_job(self, tasks: Sequence[GroupTask], tag: str) -> list[GroupOutcome]:
        groups = ", ".join(str(number) for number in sorted({task.group_id for task in tasks})[:5])
        try:
            if self.spark is not None:
                self.spark.addTag(tag)
            results = run_tasks(
                _IsolatedRewriter(self.rewriter),
                tasks,
                self.spark,
                weights=[task.bytes for task in tasks],
                description=f"floeplan rewrite {self.name}: groups {groups}",
            )
        except Exception as error:
            return [GroupFailure(task.group_id, _picklable(error), task.bytes) for task in tasks]
        return [outcome for pack in results for outcome in pack]


def discard_outcomes(outcomes: Sequence[GroupOutcome], rewriter: GroupRewriter) -> None:
    """Remove the files of results that will not be committed."""
    for outcome in outcomes:
        if isinstance(outcome, GroupResult):
            remove_written_files(outcome.added, rewriter.target.files)


def _jobs(tasks: Sequence[GroupTask]) -> Iterator[list[GroupTask]]:
    """Combine consecutive groups until a job is worth its start-up."""
    job: list[GroupTask] = []
    for task in tasks:
        job.append(task)
        if sum(one.bytes for one in job) >= JOB_BYTES:
            yield job
            job = []
    if job:
        yield job


def _picklable(error: Exception) -> FloeplanError:
    """The error as a ``FloeplanError`` without traceback and cause, which may not pickle."""
    if not isinstance(error, FloeplanError):
        error = FloeplanError(reason(error), kind="rewrite-failed", safe_to_clean=True)
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)

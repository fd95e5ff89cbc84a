"""Running the groups of a plan in jobs of one large group or several small ones.

Rule: a group that fails does not fail the others; its failure is an outcome like any other. Outcomes are yielded as
jobs finish, so they can be committed while others run. With a Spark session a job is a Spark job, and several run
concurrently; without one, jobs run in this process one after the other, with a thread per core inside each.

Fail-safe: when the caller stops iterating for any reason, running jobs are interrupted or awaited, and the files
of outcomes that were not handed over are removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from pyiceberg.table.sorting import SortOrder

from floeplan.errors import FloeplanError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.rewrite.pages.column_chunk import CODECS
from floeplan.rewrite.pages.stitch import MIN_ROW_GROUP_BYTES, small_row_groups_reason, stitch, stitch_obstacle
from floeplan.rewrite.plan.model import GroupFailure, RewriteDataFilesPlan
from floeplan.rewrite.run.group_task import GroupAttempt, GroupResult, GroupTask, split_by_output
from floeplan.rewrite.run.join_group import GroupJoiner, join_layout
from floeplan.rewrite.run.position_map import PositionMapBuilder
from floeplan.rewrite.run.write_group import GroupWriter
from floeplan.rewrite.strategies.base import Strategy
from floeplan.rewrite.strategies.registry import find_strategy
from floeplan.scan.file_rows import FileRows, TableRows
from floeplan.tasks.memory import DEFAULT_MEMORY, raised_gc_threshold
from floeplan.tasks.runner import run_tasks
from floeplan.text import reason
from floeplan.write.data_files import data_entry
from floeplan.write.metrics import FileEntry, added_entries, remove_written_files
from floeplan.write.partitioning import FilePartition
from floeplan.write.position_deletes import file_scoped_deletes
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Rewriting one group of files: what a task does, on a Spark executor or in this process.
#
# The live rows of all files of a group are written to new files under the output spec, in the table's current schema,
# with all deletes applied and, in format 3, with their row lineage. The cheapest way that applies is taken:
#
# 1. *stitch*: copy row groups byte for byte (below);
# 2. *join*: build larger row groups from encoded pages, decoding only columns that need it (``join_group``);
# 3. *write*: decode all rows, sort them if the strategy says so, and write them (``write_group``).
#
# Fail-safe: file names contain the attempt, and a failed attempt removes the files it wrote. Only files named in a
# ``GroupResult`` are committed.


_FEW_DELETED = 0.1
_TARGET_SIZE = "write.target-file-size-bytes"


@dataclass(frozen=True, slots=True)
class GroupRewriter:
    """Rewrites groups of files; pickled and sent to where it runs.

    Attributes:
        table: The table as readers see it.
        target: The table as writers see it.
        strategy: The strategy.
        order: What rows are sorted or clustered by.
        memory: Bytes that sorting one group may take; ``None`` for ``core_memory`` per core of the group.
        core_memory: Bytes per core.
    """

    table: TableRows
    target: WriteTarget
    strategy: Strategy
    order: SortOrder
    memory: int | None = None
    core_memory: int = DEFAULT_MEMORY

    @classmethod
    def of(
        cls,
        plan: RewriteDataFilesPlan,
        operation_id: str | None = None,
        memory: int | None = None,
        core_memory: int = DEFAULT_MEMORY,
    ) -> GroupRewriter:
        """The rewriter for the groups of a plan."""
        table, schema = plan.target.table, plan.target.schema
        target = WriteTarget.of(table, schema=schema, operation_id=operation_id)
        strategy = find_strategy(plan.options.strategy)
        return cls(TableRows.of(table, schema), target, strategy, plan.order, memory, core_memory)

    def __call__(self, tasks: Sequence[GroupTask], attempt: str) -> list[GroupResult]:
        """Rewrite groups one after the other."""
        return [self._rewrite(task, attempt) for task in tasks]

    def _rewrite(self, task: GroupTask, attempt_id: str) -> GroupResult:
        properties = {**self.target.properties, _TARGET_SIZE: str(task.max_file_bytes)}
        files = [one.file for one in task.files]
        attempt = GroupAttempt(
            task=task,
            target=replace(self.target, spec_id=task.output_spec_id, properties=properties),
            strategy=self.strategy,
            order=self.order,
            token=f"{attempt_id}-{task.group_id:05d}",
            files=FileRows(self.table),
            position_map=PositionMapBuilder([file.path for file in files]),
            memory=self.memory or self.core_memory * task.cores,
            threads=task.cores,
        )
        decoded_because = reason_to_decode(attempt)
        with ExitStack() as written:
            return GroupResult(
                group_id=task.group_id,
                bytes=task.bytes,
                added=_write(attempt, written, stitched=not decoded_because),
                removed_data=tuple(file.path for file in files),
                removed_deletes=tuple(dict.fromkeys(d for file in files for d in file_scoped_deletes(file))),
                position_map=attempt.position_map.finish(),
                decoded_because=decoded_because,
            )

    def keeps_sizes(self, task: GroupTask) -> bool:
        """Whether new files will be about as large as the old ones, so that a group can be split by bytes.

        True when few rows are deleted and the codec stays the same, judging by the largest file.
        """
        if task.outputs == 1:
            return True
        deletes = {(d.path, d.content_offset): d.record_count for one in task.files for d in one.file.deletes}
        if sum(deletes.values()) > _FEW_DELETED * sum(one.file.record_count for one in task.files):
            return False
        try:
            footer = FileRows(self.table).open(max(task.files, key=lambda one: one.file.file_size).file).footer
        except FloeplanError:
            return True  # rewriting the group will report what is wrong with the file
        used = {code for leaf in footer.leaves for code in footer.chunks(leaf).codec.tolist()}
        return used <= {CODECS[self.target.options.codec]}


def _write(attempt: GroupAttempt, written: ExitStack, *, stitched: bool) -> EntriesTable:
    """Write the new files of a group in the cheapest way that applies; their entries."""
    if attempt.task.partition is not None:
        partition = FilePartition.of(attempt.target.union, attempt.task.partition)
        if stitched:
            return _stitch_group(attempt, partition, written)
        layout = join_layout(attempt)
        if layout is not None:
            return GroupJoiner(attempt, partition, layout).write(written)
    return GroupWriter(attempt).write(written)


def reason_to_decode(attempt: GroupAttempt) -> str:
    """Why row groups cannot be copied byte for byte; empty when they can.

    Files are opened only when nothing that is known without opening them forbids it.
    """
    task, strategy, files = attempt.task, attempt.strategy, [one.file for one in attempt.task.files]
    if not strategy.copies_bytes:
        return f"strategy {strategy.name} orders rows"
    if task.partition is None:
        return "partitions are computed from the rows"
    if any(one.first_row_id is not None for one in task.files):
        # Format 3: a row without a stored _row_id inherits first_row_id + its position, which copying would change.
        return "rows inherit their row ids from their position in a file"
    if any(file.file_size > task.max_file_bytes for file in files):
        return "a file is too large"
    if any(file.deletes for file in files):
        return f"{next(file.path for file in files if file.deletes)} has deletes"
    smallest = 0 if strategy.copies_small_row_groups else MIN_ROW_GROUP_BYTES
    opened = (attempt.files.open(file) for file in files)
    return small_row_groups_reason(task.bytes, len(files), smallest) or stitch_obstacle(
        opened, attempt.target.stored_schema, smallest
    )


def _stitch_group(attempt: GroupAttempt, partition: FilePartition, written: ExitStack) -> EntriesTable:
    """Copy the row groups of neighbouring files into the expected number of new files; their entries."""
    task, target, positions = attempt.task, attempt.target, attempt.position_map
    output = split_by_output([one.file.file_size for one in task.files], task.outputs)
    entries: list[FileEntry] = []
    for number in np.unique(output).tolist():
        sources = np.flatnonzero(output == number).tolist()
        opened = [attempt.files.open(task.files[source].file) for source in sources]
        path = attempt.new_file(written, partition, len(entries))
        made = stitch(opened, target.io, path)
        first, rows = positions.rows, made.footer.num_rows
        for source, file in zip(sources, opened, strict=True):
            positions.add_read(source, np.array([0]), np.array([file.footer.num_rows]))
        positions.add_written([path], [rows], [(np.array([first]), np.array([rows]))])
        entry = data_entry(target, made, partition)
        assert entry.metrics is not None
        # Parquet footers have no NaN counts: sum those of the old manifest entries, where all of them have one.
        counts = [task.nan_counts[source] for source in sources]
        for field_id in set.intersection(*map(set, counts)) & entry.metrics.value_counts.keys():
            entry.metrics.nan_value_counts[field_id] = sum(count[field_id] for count in counts)
        entries.append(entry)
    return added_entries(entries, target.union)


# Running jobs of groups.

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

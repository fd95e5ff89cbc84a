"""``rewrite_data_files``: plan, rewrite, commit.

Rule: groups are independent, so any subset that was rewritten can be committed: all at the end in one snapshot, or with
partial progress in several commits. An interrupted rewrite is continued by running it again: planning starts from what
was committed, and with ``rewrite-all`` skips the files that the same run has already made (``plan.model.RewriteRun``).

Fail-safe: a group that fails stays unchanged and is reported. When all fail, the first error is raised. However a run
ends, files that were written but not committed are removed, unless the commit state is unknown.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, cast

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floeplan.catalog import load_table, refreshed, require_writable
from floeplan.errors import FloeplanError
from floeplan.metadata.files import TableFiles
from floeplan.predicate.compile import PredicateSource
from floeplan.rewrite.commit_groups import CommitManager, CommittedGroups
from floeplan.rewrite.plan.model import (
    GroupFailure,
    RewriteDataFilesPlanningResult,
    RewriteInterruptedError,
    RewriteResult,
)
from floeplan.rewrite.plan.options import KEEP, RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.progress import NO_PROGRESS, Progress
from floeplan.rewrite.run.group import GroupResult, GroupTask
from floeplan.rewrite.run.rewrite_group import GroupRewriter, cores_of, prepare, range_task_bytes
from floeplan.snapshot.reader import SnapshotReader
from floeplan.tasks.runner import run_jobs
from floeplan.transaction.catalog_commit import CommitOptions, delay_interrupt
from floeplan.transaction.change import (
    Check,
    ConflictValidation,
    Operation,
    SnapshotChange,
    delete_file_id,
    entry_keys,
)
from floeplan.transaction.commit import commit_change
from floeplan.transaction.dangling import dangling_deletes, dangling_deletes_of_one_file
from floeplan.transaction.equality_writers import refuse_live_writers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OwnJob: TypeAlias = Callable[[GroupTask], Callable[[], GroupResult] | None]

JOB_BYTES = 256 * 1024 * 1024
"""Small groups are combined into jobs of about this size."""


def rewrite_data_files(
    table: Table | str | os.PathLike[str],
    *,
    where: PredicateSource | None = None,
    partition_filter: PredicateSource | None = None,
    strategy: str = "binpack",
    by: Sequence[str] = (),
    spec: str | int = KEEP,
    strict: bool = False,
    case_sensitive: bool = True,
    trust_lists: bool = False,
    allow_late_equality_deletes: bool = False,
    options: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    branch: str | None = None,
    progress: Progress | None = None,
    commit: CommitOptions | None = None,
    catalog: str | Catalog | None = None,
) -> RewriteResult:
    """Rewrite data files that are too small, too large, have many deletes, or an old partition spec.

    Args:
        table: A PyIceberg table or ``namespace.name``.
        where: Rewrite only files that may have a matching row.
        partition_filter: Rewrite only partitions that may have a matching row.
        strategy: ``binpack``, ``sort``, ``zorder``, ``hilbert`` or ``stitch``.
        by: Columns to sort or cluster by.
        spec: The spec of the new files: ``keep``, ``current`` or an id.
        strict: Raise when a filter cannot be evaluated for a candidate file.
        case_sensitive: Match column names case-sensitively.
        trust_lists: Rewrite even when the manifest list has fewer files than the snapshot summary counts.
        allow_late_equality_deletes: Move rows out of a spec even when a writer may go on adding equality deletes under
            it, which would not apply to the moved rows.
        options: Further options under Iceberg's names.
        spark: A Spark session to run on; by default rewrites in this process.
        branch: The branch to rewrite instead of ``main``.
        progress: Receives progress reports.
        commit: Commit and retry options.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.

    Raises:
        FloeplanError: No group could be rewritten, or planning failed.
    """
    chosen = RewriteOptions(
        partition_filter=partition_filter,
        where=where,
        case_sensitive=case_sensitive,
        strict=strict,
        trust_lists=trust_lists,
        allow_late_equality_deletes=allow_late_equality_deletes,
        strategy=strategy,
        by=tuple(by),
        spec=spec,
    ).with_options(options or {})
    return run_rewrite(load_table(table, catalog), chosen, spark=spark, branch=branch, progress=progress, commit=commit)


def run_rewrite(
    table: Table | str | os.PathLike[str],
    options: RewriteOptions,
    *,
    spark: SparkSession | None = None,
    branch: str | None = None,
    cache: bool = True,
    leave_specs: frozenset[int] = frozenset(),
    progress: Progress | None = None,
    commit: CommitOptions | None = None,
) -> RewriteResult:
    """As ``rewrite_data_files``, with ``RewriteOptions``; skips files of ``leave_specs``."""
    found = load_table(table)
    require_writable(found)
    options = replace(options, range_task_bytes=range_task_bytes(options, spark))
    planner = RewriteDataFilesPlanner(refreshed(found), options, ref=branch, cache=cache, leave_specs=leave_specs)
    planned = planner.plan_with_stats()
    if not options.allow_late_equality_deletes:
        refuse_live_writers(planned.warnings)
    commits = commit or CommitOptions()
    if planned.plan.groups:
        manager = CommitManager(planned.plan, branch or MAIN_BRANCH, commits)
        result = _Run(planned, manager, spark, progress or NO_PROGRESS).run()
    else:
        result = _remove_dangling_deletes(planned, branch or MAIN_BRANCH, commits)
    with suppress(FloeplanError):  # everything is committed: a catalog that is unavailable now is not a failure
        refreshed(found)
    return result


def _remove_dangling_deletes(
    planned: RewriteDataFilesPlanningResult, branch: str, options: CommitOptions
) -> RewriteResult:
    """Remove the delete files that apply to no data file when there is nothing to rewrite."""
    plan, target = planned.plan, planned.plan.target
    head = SnapshotReader.open(target.table, target.snapshot)
    if target.snapshot is None or not plan.options.remove_dangling_deletes or head.truncation() is not None:
        return RewriteResult(planned)
    gone = frozenset(map(delete_file_id, entry_keys(dangling_deletes_of_one_file(head)).to_pylist()))
    if not gone and not len(dangling_deletes(head, by_keys=True)):
        return RewriteResult(planned)
    # The commit looks again for those of several data files, on the head that it follows.
    summary = {"floeplan.operation": "remove-dangling-deletes"}
    change = SnapshotChange(Operation.REPLACE, removed_deletes=gone, drop_dangling_deletes=True, summary=summary)
    validation = ConflictValidation(target.snapshot.snapshot_id, frozenset({Check.REMOVED_FILES_EXIST}))
    done = commit_change(target.table, change, branch=branch, validation=validation, options=options)
    removed = int(done.summary.get("removed-delete-files", 0))
    return RewriteResult(planned, snapshot_ids=(done.snapshot_id,), delete_files_removed=removed)


@dataclass(slots=True)
class _Run:
    """One rewrite in progress."""

    planned: RewriteDataFilesPlanningResult
    manager: CommitManager
    spark: SparkSession | None
    progress: Progress
    committed: list[CommittedGroups] = field(default_factory=list)
    failures: list[GroupFailure] = field(default_factory=list)
    failed_commits: int = 0

    def run(self) -> RewriteResult:
        """Rewrite all groups and commit them."""
        plan, options = self.planned.plan, self.planned.plan.options
        rewriter, tasks = prepare(plan, self.spark)
        own_job = self._own_job(rewriter)
        stopping = threading.Event()

        def on_read(size: int) -> None:
            if stopping.is_set():
                raise FloeplanError("the rewrite was stopped", kind="interrupted", safe_to_clean=True)
            self.progress.read(size)

        if self.spark is None:  # a function of this process cannot be sent to executors
            rewriter = replace(rewriter, on_read=on_read)
        self.manager.results_expected = len(tasks)
        # Without partial progress everything is one commit.
        commits = options.partial_progress_max_commits if options.partial_progress_enabled else 1
        per_commit = -(-len(tasks) // commits)
        # A group is finished when all its parts are.
        parts_left, bytes_done, failed = Counter(task.group_id for task in tasks), 0, set[int]()
        groups = len(parts_left)
        self.progress.start(groups, sum(task.bytes for task in tasks))
        pending = list[GroupResult]()

        def keep(result: GroupResult) -> None:
            pending.append(result)

        def discard(result: GroupResult) -> None:
            result.discard(rewriter.target.files)

        def describe(job: Sequence[GroupTask]) -> str:
            ids = sorted({task.group_id for task in job})[:5]
            return f"floeplan rewrite {plan.target.name}: groups {', '.join(map(str, ids))}"

        running = run_jobs(
            rewriter,
            _jobs(tasks, lambda task: own_job(task) is not None),
            self.spark,
            weight=lambda task: task.bytes,
            describe=describe,
            concurrent_jobs=options.max_concurrent_file_group_rewrites,
            discard=discard,
            error_kind="rewrite-failed",
            keep=keep,
            stop=stopping.set,
            own_job=own_job,
        )
        try:
            with closing(running):
                for outcomes in running:
                    for task, outcome in outcomes:
                        if outcome.error is not None:
                            error = cast("FloeplanError", outcome.error)
                            self.failures.append(GroupFailure(task.group_id, error, task.bytes))
                            failed.add(task.group_id)
                    parts_left -= Counter(task.group_id for task, _ in outcomes)
                    bytes_done += sum(task.bytes for task, _ in outcomes)
                    self.progress.done(groups - len(parts_left), bytes_done, len(failed))
                    while len(pending) >= per_commit:
                        # The commit manager owns the files of what it is given, so it leaves the list first.
                        with delay_interrupt():
                            now, pending = pending[:per_commit], pending[per_commit:]
                            self._commit(now)
            with delay_interrupt():
                last, pending = pending, []
                self._commit(last)
        except KeyboardInterrupt as interrupt:
            raise RewriteInterruptedError(self._result()) from interrupt
        finally:
            for group in pending:
                discard(group)
            self.progress.stop()
        result = self._result()
        if self.failures and not result.snapshot_ids:
            raise self.failures[0].error
        return result

    def _own_job(self, rewriter: GroupRewriter) -> _OwnJob:
        """What rewrites a group in several Spark tasks, if it is sorted and larger than a task should hold."""
        if self.spark is not None:
            from floeplan.rewrite.run.ranges import RangeRewriter  # imports PySpark

            ranges = RangeRewriter.of(self.planned.plan, rewriter, self.spark, cores_of(self.spark))
            if ranges is not None:
                return ranges.job
        return lambda _: None

    def _commit(self, groups: Sequence[GroupResult]) -> None:
        """Commit some groups; a commit that fails fails these groups only, until too many commits have failed.

        The caller delays interrupts, so that the groups are either its own or committed.
        """
        if not groups:
            return
        options = self.planned.plan.options
        try:
            done = self.manager.commit(groups)
        except FloeplanError as error:
            self.failures += [GroupFailure(group.group_id, error, group.bytes) for group in groups]
            self.failed_commits += 1
            limit = options.partial_progress_max_failed_commits
            if self.failed_commits > (options.partial_progress_max_commits if limit is None else limit):
                error.committed |= bool(self.committed)
                raise
            return
        finally:
            # Committed or not, nothing is carried over after this.
            TableFiles.of(self.planned.plan.target.table).remove(path for group in groups for path in group.map_files)
        self.committed.append(done)
        self.failures += done.failures
        if done.snapshot_id is not None:
            self.progress.committed(done.snapshot_id, len(done.groups))

    def _result(self) -> RewriteResult:
        groups = [group for done in self.committed for group in done.groups]
        return RewriteResult(
            planning=self.planned,
            snapshot_ids=tuple(done.snapshot_id for done in self.committed if done.snapshot_id is not None),
            files_rewritten=sum(len(group.removed_data) for group in groups),
            files_added=sum(len(group.added) for group in groups),
            bytes_rewritten=sum(group.bytes for group in groups),
            bytes_added=sum(int(group.added.ints("file_size_in_bytes").sum()) for group in groups),
            delete_files_removed=sum(done.delete_files_removed for done in self.committed),
            deletes_carried=sum(done.deletes_carried for done in self.committed),
            groups_stitched=len({group.group_id for group in groups if not group.decoded_because}),
            failures=tuple(self.failures),
            ranges=tuple(group.ranges for group in groups if group.ranges is not None),
        )


def _jobs(tasks: Sequence[GroupTask], alone: Callable[[GroupTask], bool]) -> Iterator[list[GroupTask]]:
    """Combine consecutive groups until a job is worth its start-up; some are jobs of their own."""
    job: list[GroupTask] = []
    for task in tasks:
        if alone(task):
            yield [task]
            continue
        job.append(task)
        if sum(one.bytes for one in job) >= JOB_BYTES:
            yield job
            job = []
    if job:
        yield job

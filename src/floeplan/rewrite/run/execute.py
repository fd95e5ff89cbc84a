"""``rewrite_data_files``: plan, rewrite, commit.

Rule: groups are independent, so any subset that was rewritten is committed: all at the end in one snapshot, or with
partial progress some at a time, one commit after the other. A run that was cut short is taken up by running it again:
what was committed is planned on as it now is, and where everything is rewritten, left as it is (``resume``).

Fail-safe: a group that fails stays as it was and is reported. When all fail, the first error is raised. However a run
ends, files that were written and not committed are removed, unless a commit's outcome is unknown.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from pyiceberg.table import StaticTable, Table
from pyiceberg.table.refs import MAIN_BRANCH

from floeplan.catalog import load_table, refreshed
from floeplan.errors import BadInputError, FloeplanError
from floeplan.predicate.compile import PredicateSource
from floeplan.rewrite.commit.manager import CommitManager, CommittedGroups
from floeplan.rewrite.plan.model import RewriteDataFilesPlanningResult
from floeplan.rewrite.plan.options import KEEP, RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.result import GroupFailure, RewriteInterruptedError, RewriteResult
from floeplan.rewrite.run.group_task import GroupResult, GroupTask, assign_cores, group_tasks, split_task
from floeplan.rewrite.run.progress import NO_PROGRESS, Progress
from floeplan.rewrite.run.rewriter import GroupRewriter
from floeplan.rewrite.run.runner import GroupOutcome, GroupRunner, discard_outcomes
from floeplan.tasks.memory import cores_of, task_memory
from floeplan.transaction.catalog_commit import CommitOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    options: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    branch: str | None = None,
    progress: Progress | None = None,
    commit: CommitOptions | None = None,
) -> RewriteResult:
    """Rewrite small, large, deleted-from and old-spec data files.

    Args:
        table: A PyIceberg table or ``namespace.name``.
        where: Rewrite only files that may hold a matching row.
        partition_filter: Rewrite only partitions that may hold a matching row, whole.
        strategy: ``binpack``, ``sort``, ``zorder``, ``hilbert`` or ``stitch``.
        by: Columns to sort or cluster by.
        spec: The spec of the new files: ``keep``, ``current`` or an id.
        strict: Refuse when a filter cannot decide about a candidate.
        case_sensitive: Whether column names must match exactly.
        trust_lists: Rewrite even when the manifest list has fewer files than the snapshot summary counts.
        options: Further options under Iceberg's names.
        spark: A session that rewrites; without one this process does.
        branch: The branch to rewrite instead of ``main``.
        progress: Told what is done.
        commit: How commits are retried.

    Raises:
        FloeplanError: No group could be rewritten, or the plan was refused.
    """
    asked = RewriteOptions(
        partition_filter=partition_filter,
        where=where,
        case_sensitive=case_sensitive,
        strict=strict,
        trust_lists=trust_lists,
        strategy=strategy,
        by=tuple(by),
        spec=spec,
    ).with_options(options or {})
    return run_rewrite(table, asked, spark=spark, branch=branch, progress=progress, commit=commit)


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
    """The same with options as a value, and without the files of some specs."""
    found = load_table(table)
    if isinstance(found, StaticTable):
        raise BadInputError(
            "a table opened by its metadata file is read-only; name it as namespace.name in its catalog",
            context={"table": found.metadata_location},
        )
    planner = RewriteDataFilesPlanner(refreshed(found), options, ref=branch, cache=cache, leave_specs=leave_specs)
    planned = planner.plan_with_stats()
    if not planned.plan.groups:
        return RewriteResult(planned)
    manager = CommitManager(planned.plan, branch or MAIN_BRANCH, commit or CommitOptions())
    result = _Run(planned, manager, spark, progress or NO_PROGRESS).run()
    with suppress(FloeplanError):  # all is committed: a catalog that is silent by now is no failure
        refreshed(found)
    return result


@dataclass(slots=True)
class _Run:
    """One rewrite under way."""

    planned: RewriteDataFilesPlanningResult
    manager: CommitManager
    spark: SparkSession | None
    progress: Progress
    committed: list[CommittedGroups] = field(default_factory=list)
    failures: list[GroupFailure] = field(default_factory=list)
    failed_commits: int = 0

    def run(self) -> RewriteResult:
        """Rewrite all groups and commit them in portions."""
        plan, options = self.planned.plan, self.planned.plan.options
        task = GroupRewriter.of(plan, memory=options.task_memory_bytes, core_memory=task_memory(self.spark))
        works = [
            part
            for work in group_tasks(plan)
            for part in (split_task(work, plan.order) if task.keeps_sizes(work) else [work])
        ]
        works = assign_cores(works, cores_of(self.spark))
        self.manager.parts = len(works)
        runner = GroupRunner(task, self.spark, options.max_concurrent_file_group_rewrites, plan.target.name)
        commits = options.partial_progress_max_commits if options.partial_progress_enabled else 1
        together = -(-len(works) // commits)
        meter = _Meter(works, self.progress)
        waiting = list[GroupResult]()
        try:
            with closing(runner.run(works)) as running:
                for outcomes in running:
                    waiting += [outcome for outcome in outcomes if isinstance(outcome, GroupResult)]
                    self.failures += [outcome for outcome in outcomes if isinstance(outcome, GroupFailure)]
                    meter.count(outcomes)
                    while len(waiting) >= together:
                        now, waiting = waiting[:together], waiting[together:]
                        self._commit(now)
            last, waiting = waiting, []
            self._commit(last)
        except KeyboardInterrupt as interrupt:
            raise RewriteInterruptedError(self._result()) from interrupt
        finally:
            discard_outcomes(waiting, task)
            self.progress.stop()
        return self._result_or_error()

    def _commit(self, groups: Sequence[GroupResult]) -> None:
        """Commit some groups; a commit that fails fails these groups alone."""
        if groups:
            with uninterrupted():
                self._commit_now(groups)

    def _commit_now(self, groups: Sequence[GroupResult]) -> None:
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
        self.committed.append(done)
        self.failures += done.failures
        if done.snapshot_id is not None:
            self.progress.committed(done.snapshot_id, len(done.groups))

    def _result_or_error(self) -> RewriteResult:
        """What was done; when nothing was, why."""
        result = self._result()
        if self.failures and not result.snapshot_ids:
            raise self.failures[0].error
        return result

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
        )


class _Meter:
    """Counts groups and bytes as outcomes come; a group counts when all its parts are done."""

    def __init__(self, works: Sequence[GroupTask], progress: Progress) -> None:
        self._left = Counter(work.group_id for work in works)
        self._groups = len(self._left)
        self._progress = progress
        self._done, self._failed = 0, set[int]()
        progress.start(self._groups, sum(work.bytes for work in works))

    def count(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Tell that these are done."""
        self._left -= Counter(outcome.group_id for outcome in outcomes)
        self._done += sum(outcome.bytes for outcome in outcomes)
        self._failed |= {outcome.group_id for outcome in outcomes if isinstance(outcome, GroupFailure)}
        self._progress.done(self._groups - len(self._left), self._done, len(self._failed))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off the first Ctrl-C until the block is done, so that what became of a commit is known.

    Where Ctrl-C means nothing, in other threads and in background jobs that ignore it, nothing is put off.
    """
    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield
        return
    asked = list[int]()

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt

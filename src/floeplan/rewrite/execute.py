"""``rewrite_data_files``: plan, rewrite, commit.

Rule: groups are independent, so any subset that was rewritten can be committed: all at the end in one snapshot, or with
partial progress in several commits. An interrupted rewrite is continued by running it again: planning starts from what
was committed, and with ``rewrite-all`` skips the files that the same run has already made (``plan.resume``).

Fail-safe: a group that fails stays unchanged and is reported. When all fail, the first error is raised. However a run
ends, files that were written but not committed are removed, unless the commit state is unknown.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, TYPE_CHECKING

from pyiceberg.table import StaticTable, Table
from pyiceberg.table.refs import MAIN_BRANCH
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress
from rich.progress import Task as RichTask
from rich.text import Text

from floeplan.catalog import load_table, refreshed
from floeplan.errors import BadInputError, FloeplanError
from floeplan.predicate.compile import PredicateSource
from floeplan.rewrite.commit.manager import CommitManager, CommittedGroups
from floeplan.rewrite.plan.model import (
    GroupFailure,
    RewriteDataFilesPlanningResult,
    RewriteInterruptedError,
    RewriteResult,
)
from floeplan.rewrite.plan.options import KEEP, RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.run.group_task import GroupResult, GroupTask, assign_cores, group_tasks, split_task
from floeplan.rewrite.run.runner import GroupOutcome, GroupRewriter, GroupRunner, discard_outcomes
from floeplan.tasks.memory import cores_of, task_memory
from floeplan.transaction.catalog_commit import CommitOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Progress of a rewrite: a bar on a terminal, or lines of JSON.
#
# Rule: progress goes to stderr, never to stdout. Nothing depends on it.


class Progress:
    """Receives progress reports; this one ignores them."""

    def start(self, groups: int, size: int) -> None:
        """The rewrite starts with this many groups and bytes."""

    def done(self, groups: int, size: int, failed: int) -> None:
        """Groups and bytes finished so far, and how many of the groups failed."""

    def committed(self, snapshot_id: int, groups: int) -> None:
        """A snapshot was committed with this many groups."""

    def stop(self) -> None:
        """The rewrite has ended."""


NO_PROGRESS = Progress()


class JsonProgress(Progress):
    """One line of JSON per report."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stderr
        self._started = time.monotonic()
        self._groups = self._bytes = 0

    def start(self, groups: int, size: int) -> None:
        self._groups, self._bytes = groups, size
        self._write("start", groups=groups, bytes=size)

    def done(self, groups: int, size: int, failed: int) -> None:
        seconds = max(time.monotonic() - self._started, 1e-9)
        rate = size / seconds
        self._write(
            "progress",
            groups_done=groups,
            groups=self._groups,
            groups_failed=failed,
            bytes_done=size,
            bytes=self._bytes,
            bytes_per_second=round(rate),
            eta_seconds=round((self._bytes - size) / rate, 1) if rate else None,
        )

    def committed(self, snapshot_id: int, groups: int) -> None:
        self._write("committed", snapshot_id=snapshot_id, groups=groups)

    def _write(self, event: str, **fields: object) -> None:
        seconds = round(time.monotonic() - self._started, 3)
        self._stream.write(json.dumps({"event": event, "seconds": seconds, **fields}) + "\n")
        self._stream.flush()


class BarProgress(Progress):
    """A bar on a terminal: groups, bytes, rate and time left."""

    def __init__(self, console: Console | None = None) -> None:
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            _Groups(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("rewriting", total=None, groups=0, of=0, failed=0)

    def start(self, groups: int, size: int) -> None:
        self._bar.update(self._task, total=size, of=groups)
        self._bar.start()

    def done(self, groups: int, size: int, failed: int) -> None:
        self._bar.update(self._task, completed=size, groups=groups, failed=failed)

    def committed(self, snapshot_id: int, groups: int) -> None:
        self._bar.update(self._task, description=f"snapshot {snapshot_id}")

    def stop(self) -> None:
        self._bar.stop()


class _Groups(ProgressColumn):
    """Groups done, of all, and how many failed."""

    def render(self, task: RichTask) -> Text:
        failed = f", {task.fields['failed']} failed" if task.fields["failed"] else ""
        return Text(f"{task.fields['groups']}/{task.fields['of']} groups{failed}")


# ``rewrite_data_files``.


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
        options: Further options under Iceberg's names.
        spark: A Spark session to run on; by default rewrites in this process.
        branch: The branch to rewrite instead of ``main``.
        progress: Receives progress reports.
        commit: Commit and retry options.

    Raises:
        FloeplanError: No group could be rewritten, or planning failed.
    """
    chosen = RewriteOptions(
        partition_filter=partition_filter,
        where=where,
        case_sensitive=case_sensitive,
        strict=strict,
        trust_lists=trust_lists,
        strategy=strategy,
        by=tuple(by),
        spec=spec,
    ).with_options(options or {})
    return run_rewrite(table, chosen, spark=spark, branch=branch, progress=progress, commit=commit)


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
    with suppress(FloeplanError):  # everything is committed: a catalog that is unavailable now is no failure
        refreshed(found)
    return result


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
        rewriter = GroupRewriter.of(plan, memory=options.task_memory_bytes, core_memory=task_memory(self.spark))
        tasks = [
            part
            for task in group_tasks(plan)
            for part in (split_task(task, plan.order) if rewriter.keeps_sizes(task) else [task])
        ]
        tasks = assign_cores(tasks, cores_of(self.spark))
        self.manager.results_expected = len(tasks)
        runner = GroupRunner(rewriter, self.spark, options.max_concurrent_file_group_rewrites, plan.target.name)
        # Without partial progress everything is one commit.
        commits = options.partial_progress_max_commits if options.partial_progress_enabled else 1
        per_commit = -(-len(tasks) // commits)
        meter = _Meter(tasks, self.progress)
        pending = list[GroupResult]()
        try:
            with closing(runner.run(tasks)) as running:
                for outcomes in running:
                    pending += [outcome for outcome in outcomes if isinstance(outcome, GroupResult)]
                    self.failures += [outcome for outcome in outcomes if isinstance(outcome, GroupFailure)]
                    meter.count(outcomes)
                    while len(pending) >= per_commit:
                        # The commit manager owns the files of what it is given, so it leaves the list first.
                        now, pending = pending[:per_commit], pending[per_commit:]
                        self._commit(now)
            last, pending = pending, []
            self._commit(last)
        except KeyboardInterrupt as interrupt:
            raise RewriteInterruptedError(self._result()) from interrupt
        finally:
            discard_outcomes(pending, rewriter)
            self.progress.stop()
        result = self._result()
        if self.failures and not result.snapshot_ids:
            raise self.failures[0].error
        return result

    def _commit(self, groups: Sequence[GroupResult]) -> None:
        """Commit some groups; a commit that fails fails these groups only, until too many commits have failed."""
        if not groups:
            return
        options = self.planned.plan.options
        with delay_interrupt():
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
    """Counts finished groups and bytes; a group counts when all its parts are finished."""

    def __init__(self, tasks: Sequence[GroupTask], progress: Progress) -> None:
        self._left = Counter(task.group_id for task in tasks)
        self._groups = len(self._left)
        self._progress = progress
        self._bytes, self._failed = 0, set[int]()
        progress.start(self._groups, sum(task.bytes for task in tasks))

    def count(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Report these as finished."""
        self._left -= Counter(outcome.group_id for outcome in outcomes)
        self._bytes += sum(outcome.bytes for outcome in outcomes)
        self._failed |= {outcome.group_id for outcome in outcomes if isinstance(outcome, GroupFailure)}
        self._progress.done(self._groups - len(self._left), self._bytes, len(self._failed))


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Delay the first Ctrl-C until the block ends, so that the commit state is known; a second one interrupts at once.

    Does nothing in other threads and in background jobs that ignore SIGINT.
    """
    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield
        return
    received = list[int]()

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt

"""``fp.maintain``: look at every table, rank the work, and do it within the budget, most valuable first.

1. *Look* at the tables (``look``), in several threads. When time is limited, those come first that were not looked at
   for the longest time.
2. *Rank* all work by expected gain per byte (``ranking``); repairs come before everything else.
3. *Work*: take the lease of the table, plan the work again on the table as it is then, and run it. Work that the budget
   does not allow is left, and a compaction is shortened to what it allows. The next run finds what is left by planning.
4. *Record* the run in the table of runs.

Fail-safe: each piece of work is a commit of its own, or several: a run can be stopped or killed at any time, and the
next one continues. Work that fails is reported and does not stop the run.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog

from floeplan.audit.reports import check_reports, default_reports
from floeplan.catalog import existing_catalog, list_tables, load_table
from floeplan.errors import BadInputError, CommitConflictError, FloeplanError, InvalidOptionError, UnknownTableError
from floeplan.fleet.lease import Lease, LeaseHeldError, foreign_maintenance
from floeplan.fleet.look import look_at
from floeplan.fleet.planners import execute, outside_windows, predict
from floeplan.fleet.policy import Budget, Policy, matches_any
from floeplan.fleet.policy_file import read_policy
from floeplan.fleet.ranking import Queue, Spending
from floeplan.fleet.records import History, read_history, record
from floeplan.fleet.report import MaintainResult, Status, TableReport
from floeplan.fleet.work import YIELDING, Context, Work
from floeplan.rewrite.plan.model import RewriteInterruptedError
from floeplan.tasks.runner import parallel_map
from floeplan.text import reason
from floeplan.transaction.catalog_commit import CommitOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_THREADS = 4
"""Tables that are looked at concurrently; most of the time is spent waiting for the catalog and the store."""


@dataclass(frozen=True, slots=True)
class MaintainOptions:
    """Options of a run.

    Attributes:
        tables: Names or patterns of the tables; all tables of the catalogs if empty.
        policy: The policy, or the path of its file.
        budget_bytes: Bytes of data files that may be rewritten; overrides the policy.
        budget_minutes: Minutes after which no work starts; overrides the policy.
        budget_files: Data files that may be rewritten; overrides the policy.
        dry_run: Only report what would be done.
        reports: Scan reports; overrides the policy.
        commit: How to commit; ``on_step`` also receives the steps of the run.
        clock: The time in seconds since 1970.
    """

    tables: tuple[str, ...] = ()
    policy: Policy | str | Path | None = None
    budget_bytes: int | None = None
    budget_minutes: float | None = None
    budget_files: int | None = None
    dry_run: bool = False
    reports: str | None = None
    commit: CommitOptions = field(default_factory=CommitOptions)
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        for name in ("budget_bytes", "budget_minutes", "budget_files"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidOptionError(f"{name} is {value} but must not be negative", context={"option": name})

    def resolved(self) -> Policy:
        """The policy with the budget of the options."""
        found = self.policy or Policy()
        policy = found if isinstance(found, Policy) else read_policy(found)
        budget = Budget(
            policy.budget.bytes if self.budget_bytes is None else self.budget_bytes,
            policy.budget.minutes if self.budget_minutes is None else self.budget_minutes,
            policy.budget.files if self.budget_files is None else self.budget_files,
        )
        return replace(policy, budget=budget, reports=self.reports or policy.reports)


def maintain(
    tables: Sequence[str] | str = (),
    *,
    policy: Policy | str | Path | None = None,
    budget_bytes: int | None = None,
    budget_minutes: float | None = None,
    budget_files: int | None = None,
    dry_run: bool = False,
    reports: str | None = None,
    catalog: str | Catalog | None = None,
    spark: SparkSession | None = None,
) -> MaintainResult:
    """Maintain every table of a catalog, the most valuable work first, within a budget.

    Args:
        tables: Names or patterns of tables; all tables by default.
        policy: What may be done with which tables: a policy, or the path of a TOML file.
        budget_bytes: Bytes of data files that may be rewritten.
        budget_minutes: Minutes after which no work starts.
        budget_files: Data files that may be rewritten.
        dry_run: Only report what would be done.
        reports: Scan reports, which say what queries read: a folder or a table.
        catalog: The catalog, or its name; by default those of the policy.
        spark: A Spark session to rewrite on; by default rewrites in this process.

    Raises:
        BadInputError: An invalid policy, or a table that does not exist.
    """
    names = (tables,) if isinstance(tables, str) else tuple(tables)
    options = MaintainOptions(
        names, policy, budget_bytes, budget_minutes, budget_files, dry_run=dry_run, reports=reports
    )
    return run_maintenance(options, catalog=catalog, spark=spark)


def run_maintenance(
    options: MaintainOptions, *, catalog: str | Catalog | None = None, spark: SparkSession | None = None
) -> MaintainResult:
    """As ``maintain``, with ``MaintainOptions``."""
    policy = options.resolved()
    names: Sequence[str | None] = [catalog] if isinstance(catalog, str) else policy.catalogs or [None]
    catalogs = [catalog] if isinstance(catalog, Catalog) else [existing_catalog(name) for name in names]
    if options.reports is not None:
        check_reports(options.reports, catalogs[0])
    return _Run(options, policy, catalogs, spark).run()


@dataclass(slots=True)
class _Run:
    """One run: what it has found, done and spent."""

    options: MaintainOptions
    policy: Policy
    catalogs: Sequence[Catalog]
    spark: SparkSession | None
    run_id: str = field(init=False)
    spent: Spending = field(init=False)
    queue: Queue = field(default_factory=Queue)
    homes: dict[str, Catalog] = field(default_factory=dict)
    history: History = field(default_factory=History)
    lease: Lease | None = None
    listed: list[str] = field(default_factory=list)
    not_looked_at: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run_id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.spent = Spending(self.policy.budget)

    def run(self) -> MaintainResult:
        """Look, work, record."""
        names = self._names()
        self._check_order(names)
        for rule in self.policy.rules:
            unmatched = [] if any(map(rule.matches, self.homes)) else [", ".join(rule.match)]
            unmatched += [f"after = {one}" for one in rule.changes.get("after", ()) if not self._named(one)]
            if self.homes:
                self.notes += [f"{self.policy.place(rule.line)}no table matches {what}" for what in unmatched]
        if self.policy.reports is not None:
            try:
                check_reports(self.policy.reports, self.catalogs[0])
            except BadInputError as error:
                self.notes.append(f"{error.message}; tables count as read once")
        self._read_history()
        self._look(names)
        self.options.commit.step("looked")
        if self.options.dry_run:
            return self._result()
        self._hold_back()
        try:
            while (chosen := self._next()) is not None:
                self._do(*chosen)
        finally:
            self._release()
            result = self._result()
            self._record(result)
        return self._result()

    def _read_history(self) -> None:
        try:
            self.history = read_history(self.catalogs[0], self.policy.runs)
        except Exception as error:  # nothing but ranking needs it
            self.notes.append(f"earlier runs cannot be read from {self.policy.runs}: {reason(error)}")

    # --- looking

    def _names(self) -> list[str]:
        """The tables, and the catalog of each."""
        for catalog in self.catalogs:
            for name in list_tables(catalog)[1]:
                if name in self.homes:
                    raise InvalidOptionError(
                        f"{name} is in the catalogs {self.homes[name].name} and {catalog.name}; maintain them one "
                        "after the other with --catalog",
                        context={"table": name},
                    )
                self.homes[name] = catalog
        wanted = self.options.tables
        for pattern in wanted:
            if not self._named(pattern):
                places = ", ".join(catalog.name for catalog in self.catalogs)
                raise UnknownTableError(f"no table {pattern!r} in catalog {places}", context={"table": pattern})
        return [name for name in self.homes if not wanted or matches_any(name, wanted)]

    def _named(self, pattern: str) -> list[str]:
        """The tables of the catalogs that match a pattern."""
        return [name for name in self.homes if matches_any(name, [pattern])]

    def _check_order(self, names: Sequence[str]) -> None:
        """Refuse tables that wait for each other; of patterns that overlap, only the tables show it."""
        if (cycle := self.policy.cycle(names)) is not None:
            line, problem = cycle
            context = {"policy": self.policy.source, "line": line}
            raise InvalidOptionError(f"{self.policy.place(line)}{problem}", context=context)

    def _look(self, names: Sequence[str]) -> None:
        never = datetime.fromtimestamp(0, UTC)
        if self.policy.budget.minutes is not None:
            names = sorted(names, key=lambda name: (self.history.looked.get(name, never), name))
        waiting = iter(names)

        def in_time() -> Iterator[str]:
            for name in waiting:
                if self.spent.time_is_up():
                    self.not_looked_at += [name, *waiting]
                    return
                yield name

        for report in parallel_map(self._look_at, in_time(), min(_THREADS, len(names))):
            self.queue.reports[report.table] = report

    def _look_at(self, name: str) -> TableReport:
        settings, _ = self.policy.settings(name)
        now = datetime.fromtimestamp(self.options.clock(), UTC)
        listed = self.history.orphans.get(name)
        due = settings.remove_orphans and (listed is None or now - listed >= settings.orphans_every)
        if due:
            self.listed.append(name)
        return look_at(
            name,
            self.homes[name],
            self.policy,
            self.history,
            reports=self._reports(),
            now_s=now.timestamp(),
            orphans_due=due,
        )

    def _reports(self) -> str:
        return self.policy.reports or default_reports()

    # --- choosing

    def _hold_back(self) -> None:
        """Leave work outside its windows, and work that another engine does."""
        for name, report in self.queue.reports.items():
            if self._in_window(name) and report.foreign is not None:
                self.queue.mark_all(name, Status.YIELDED, report.foreign, YIELDING)

    def _in_window(self, name: str) -> bool:
        """Whether work on a table may run now; if not, it is left."""
        settings = self.queue.reports[name].settings
        if settings.in_window(datetime.fromtimestamp(self.options.clock(), UTC)):
            return True
        self.queue.mark_all(name, Status.LEFT, outside_windows(settings))
        return False

    def _next(self) -> tuple[str, int] | None:
        """The most valuable work that may run now."""
        if self.spent.time_is_up():
            for name in self.queue.reports:
                self.queue.mark_all(name, Status.LEFT, "the time of the run is spent")
        return self.queue.next()

    # --- working

    def _do(self, name: str, at: int) -> None:
        """Do one piece of work, or mark why it is not done."""
        if not self._in_window(name):
            return
        failed = [one for one in self.queue.first(name) if self.queue.has_failed(one)]
        if failed:
            self.queue.mark_all(name, Status.LEFT, f"work on {failed[0]} comes first, and failed")
            return
        limit = self.spent.limit(self.queue.reports[name].work[at].work)
        if limit == 0:
            self.queue.mark(name, at, status=Status.LEFT, why=self.spent.text())
            return
        began = time.monotonic()
        try:
            lease = self._take(name)
            self.options.commit.step("leased")
            self._work(name, at, lease, limit)
        except LeaseHeldError as held:
            self.queue.mark_all(name, Status.BUSY, held.message)
        except CommitConflictError as conflict:
            self.queue.mark(name, at, status=Status.CONFLICT, why=conflict.message)
        except RewriteInterruptedError:
            self.queue.mark(name, at, status=Status.LEFT, why="interrupted")
            raise
        except FloeplanError as error:
            self.queue.mark(name, at, status=Status.FAILED, why=error.message)
        except Exception as error:
            self.queue.mark(name, at, status=Status.FAILED, why=reason(error))
        self.queue.mark(name, at, seconds=time.monotonic() - began)

    def _work(self, name: str, at: int, lease: Lease, limit: int | None) -> None:
        planned = self.queue.reports[name].work[at]
        settings, now_s = self.queue.reports[name].settings, self.options.clock()
        # Other writers may have committed since the table was looked at.
        table = load_table(name, self.homes[name])
        context = Context(
            table,
            name,
            settings,
            self.homes[name].name,
            self._reports(),
            now_s,
            self.spark,
            max_files=limit,
            continued=name in self.history.partial,
            commit=self.options.commit,
        )
        foreign = foreign_maintenance(table.metadata, now_s, settings.yield_for)
        if foreign is not None and planned.work.kind in YIELDING:
            self.queue.mark_all(name, Status.YIELDED, foreign, YIELDING)
            return
        work, context = self._fitting(context, planned.work.kind)
        if work is None:
            status, why = (Status.NOT_NEEDED, "done since") if limit is None else (Status.LEFT, self.spent.text())
            self.queue.mark(name, at, status=status, why=why)
            return
        self.options.commit.step("planned")
        with lease.kept():
            achieved, why = execute(context, work)
        self.options.commit.step("worked")
        if not any(achieved.values()) and not why:
            self.queue.mark(name, at, work=work, status=Status.NOT_NEEDED, why="another writer has changed the files")
            return
        self.spent.add(achieved)
        status = Status.FAILED if why else Status.DONE if context.max_files is None else Status.PARTIAL
        why = why or (self.spent.text() if status is Status.PARTIAL else "")
        if lease.is_lost:  # what was committed is valid, but another run may have done the same work
            why = why or "the lease expired during the work"
        self.queue.mark(name, at, work=work, status=status, why=why, achieved=achieved)

    def _fitting(self, context: Context, kind: str) -> tuple[Work | None, Context]:
        """The work as it is planned now, within the budget: files are left out until it fits."""
        while True:
            work = predict(context, kind)
            if work is None or (limit := self.spent.limit(work)) is None:
                return work, context
            if limit == 0:
                return None, context
            context = replace(context, max_files=min(limit, work.files - 1))

    def _take(self, name: str) -> Lease:
        """The lease of a table; it is kept while the next work is on the same table."""
        if self.lease is not None and ".".join(self.lease.table.name()) == name and not self.lease.is_lost:
            return self.lease
        self._release()
        table = load_table(name, self.homes[name])
        lease = Lease(table, self.run_id, self.policy.lease, self.options.clock, self.options.commit)
        lease.take()
        self.lease = lease
        return lease

    def _release(self) -> None:
        if self.lease is not None:
            self.lease.release()
            self.lease = None

    # --- reporting

    def _record(self, result: MaintainResult) -> None:
        if self.policy.runs is None or not self.queue.reports:
            return
        for attempt in (1, 2):
            try:
                record(self.catalogs[0], self.policy.runs, result, datetime.now(UTC), self.listed)
                self.options.commit.step("recorded")
                return
            except Exception as error:  # the work is done; nothing but ranking needs the record
                if attempt == 2:  # the first may have failed because another run created the table
                    self.notes.append(f"the run is not recorded in {self.policy.runs}: {reason(error)}")

    def _result(self) -> MaintainResult:
        return MaintainResult(
            self.run_id,
            tuple(self.queue.reports[name] for name in sorted(self.queue.reports)),
            self.spent.bytes,
            self.spent.files,
            self.spent.seconds,
            tuple(self.not_looked_at),
            self.options.dry_run,
            self.policy.runs,
            tuple(self.notes),
        )

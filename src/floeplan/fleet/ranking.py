"""What is left to do: the work of every table, which of it comes next, and what the budget still allows.

Rule: repairs come first, then the highest expected gain per byte. Work of a table waits for work of its earlier stages
(``work.STAGE``), and a table for those that its policy names to come first. A run refuses tables that wait for each
other before it starts, so that some work is always ready.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from heapq import heappop, heappush

from floeplan.fleet.policy import Budget, matches_any
from floeplan.fleet.report import Status, TableReport, WorkReport
from floeplan.fleet.work import COMPACT, REPAIR_KIND, STAGE, Work
from floeplan.text import counted, human_bytes

_LEAST_FILES = 2


@dataclass(slots=True)
class Queue:
    """The work of a run; ``reports`` has the state of every table that was looked at."""

    reports: dict[str, TableReport] = field(default_factory=dict)

    def next(self) -> tuple[str, int] | None:
        """The most valuable work that may run now: its table and its number there."""
        waiting = ((name, at) for name in self.reports for at in self.planned(name))
        ready = [(name, at) for name, at in waiting if self._is_ready(name, at)]
        return min(ready, key=lambda one: _place(one[0], self.reports[one[0]].work[one[1]]), default=None)

    def _is_ready(self, name: str, at: int) -> bool:
        """Whether no earlier work of the table and no table that comes first is waiting."""
        report = self.reports[name]
        stage = STAGE[report.work[at].work.kind]
        if any(STAGE[report.work[other].work.kind] < stage for other in self.planned(name)):
            return False
        return not any(self.planned(other) for other in self.first(name))

    def planned(self, name: str) -> list[int]:
        """The numbers of the work of a table that waits."""
        return [at for at, one in enumerate(self.reports[name].work) if one.status is Status.PLANNED]

    def first(self, name: str) -> list[str]:
        """The tables whose work comes before that of a table."""
        after = self.reports[name].settings.after
        return [other for other in self.reports if other != name and matches_any(other, after)] if after else []

    def has_failed(self, name: str) -> bool:
        """Whether work on a table has failed."""
        return any(one.status in (Status.FAILED, Status.CONFLICT) for one in self.reports[name].work)

    def mark(self, name: str, at: int, **changes: object) -> None:
        """Change the report of one piece of work."""
        report = self.reports[name]
        self.reports[name] = report.with_work(at, replace(report.work[at], **changes))  # type: ignore[arg-type]

    def mark_all(self, name: str, status: Status, why: str, kinds: Sequence[str] | None = None) -> None:
        """Give all work of a table that waits, or that of some kinds, a status."""
        for at in self.planned(name):
            if kinds is None or self.reports[name].work[at].work.kind in kinds:
                self.mark(name, at, status=status, why=why)


@dataclass(slots=True)
class Spending:
    """The budget of a run, and what it has spent."""

    budget: Budget
    bytes: int = 0
    files: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """How long the run has taken."""
        return time.monotonic() - self.started

    def time_is_up(self) -> bool:
        """Whether no work may start any more."""
        return self.budget.minutes is not None and self.seconds >= self.budget.minutes * 60

    def limit(self, work: Work) -> int | None:
        """How many of its files the budget allows: ``None`` for all, 0 if the work cannot be shortened to that."""
        shares = [
            max(0, min(limit - spent, needed)) / needed
            for limit, spent, needed in (
                (self.budget.bytes, self.bytes, work.bytes),
                (self.budget.files, self.files, work.files if work.bytes else 0),
            )
            if limit is not None and needed
        ]
        share = min(shares, default=1.0)
        if share >= 1.0:
            return None
        files = int(work.files * share)
        return files if work.kind == COMPACT and files >= _LEAST_FILES else 0

    def add(self, achieved: Mapping[str, int]) -> None:
        """Count work that is done; work on metadata is free."""
        self.bytes += achieved["bytes"]
        self.files += achieved["files"] if achieved["bytes"] else 0

    def text(self) -> str:
        """Why work is left."""
        parts = [f"{human_bytes(self.budget.bytes)}"] if self.budget.bytes is not None else []
        parts += [counted(self.budget.files, "file")] if self.budget.files is not None else []
        return f"the budget of {' and '.join(parts)} is spent"


def _place(name: str, one: WorkReport) -> tuple[bool, float, str]:
    """What comes first sorts first."""
    return one.work.kind != REPAIR_KIND, -one.score, name


def ranked(reports: Sequence[TableReport]) -> list[tuple[str, WorkReport]]:
    """All work of some tables in the order in which a run does it."""
    queue = Queue({report.table: report for report in reports})
    tables = TopologicalSorter({one.table: queue.first(one.table) if one.work else [] for one in reports})
    tables.prepare()
    # The work of each table in its own order, the next one last.
    waiting = {one.table: sorted(one.work, key=lambda one: (-STAGE[one.work.kind], one.score)) for one in reports}
    done, heads = list[tuple[str, WorkReport]](), list[tuple[bool, float, str]]()
    ready = list(tables.get_ready())
    while ready or heads:
        for name in ready:
            if waiting[name]:
                heappush(heads, _place(name, waiting[name][-1]))
            else:
                tables.done(name)
        ready = list(tables.get_ready())
        if heads and not ready:
            name = heappop(heads)[-1]
            done.append((name, waiting[name].pop()))
            ready = [name]
    return done

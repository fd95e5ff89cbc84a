"""What is left to do: the work of every table, which of it comes next, and what the budget still allows.

Rule: repairs come first, then the highest expected gain per byte. Work of a table waits for work of its earlier stages
(``work.STAGE``), and a table for those that its policy names to come first. A run refuses tables that wait for each
other before it starts, so that some work is always ready.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace

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
        return max(ready, key=self._rank, default=None)

    def _rank(self, one: tuple[str, int]) -> tuple[bool, float, str]:
        report = self.reports[one[0]].work[one[1]]
        return report.work.kind == REPAIR_KIND, report.score, one[0]

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
            max(0, limit - spent) / needed
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


def ranked(reports: Sequence[TableReport]) -> list[tuple[str, WorkReport]]:
    """All work of some tables in the order in which a run does it, if no table waits for another."""

    def priority(one: WorkReport, table: int) -> tuple[bool, float, int]:
        return one.work.kind != REPAIR_KIND, -one.score, table

    # The work of a table in its own order; what comes first of all is the best of the first ones.
    waiting = [sorted(report.work, key=lambda one: (-STAGE[one.work.kind], one.score)) for report in reports]
    heads = [priority(work[-1], table) for table, work in enumerate(waiting) if work]
    heapify(heads)
    done = list[tuple[str, WorkReport]]()
    while heads:
        table = heads[0][2]
        done.append((reports[table].table, waiting[table].pop()))
        if waiting[table]:
            heapreplace(heads, priority(waiting[table][-1], table))
        else:
            heappop(heads)
    return done

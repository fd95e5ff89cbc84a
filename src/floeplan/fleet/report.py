"""What a run found and did: results, and their text for Prometheus.

Rule: every piece of work that was found is in the result once, with its status; what was not done is also in ``left``
with the reason. Predicted and achieved numbers have the same names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from floeplan.display import Displayed, table_html
from floeplan.fleet.policy import Settings
from floeplan.fleet.work import Work
from floeplan.maintenance.doctor import Finding, Severity

HEALTHY, UNREADABLE = "healthy", "unreadable"


class Status(StrEnum):
    """What became of a piece of work."""

    PLANNED = "planned"
    DONE = "done"
    PARTIAL = "partial"
    NOT_NEEDED = "not-needed"
    LEFT = "left"
    BUSY = "busy"
    YIELDED = "yielded"
    CONFLICT = "conflict"
    FAILED = "failed"


UNFINISHED = (Status.PARTIAL, Status.LEFT, Status.BUSY, Status.YIELDED, Status.CONFLICT, Status.FAILED)


@dataclass(frozen=True, slots=True)
class WorkReport:
    """One piece of work.

    Attributes:
        work: What the planner found.
        factor: What earlier work of the kind on the table achieved of its prediction.
        status: What became of it.
        why: Why it was not done, or not completely.
        achieved: What it achieved, under the names of the prediction; ``None`` if it did not run.
        seconds: How long it ran.
    """

    work: Work
    factor: float = 1.0
    status: Status = Status.PLANNED
    why: str = ""
    achieved: Mapping[str, int] | None = None
    seconds: float = 0.0

    @property
    def score(self) -> float:
        """The expected gain per byte."""
        return self.work.score(self.factor)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "kind": self.work.kind,
            "reason": self.work.reason,
            "predicted": self.work.predicted() | {"factor": round(self.factor, 3)},
            "achieved": None if self.achieved is None else dict(self.achieved),
            "status": self.status.value,
            "why": self.why or None,
            "gain_per_byte": round(self.score, 3),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Facts:
    """What a table is made of, from its metadata.

    Attributes:
        files: Live data files.
        bytes: Their size.
        small_files: Those below the smallest size that a rewrite leaves alone.
        delete_files: Live delete files and deletion vectors.
        specs: Partition specs that have files.
        snapshots: Snapshots of the table.
        growth: Bytes by which the table grew in the last 7 days, if that is known.
    """

    files: int = 0
    bytes: int = 0
    small_files: int = 0
    delete_files: int = 0
    specs: int = 0
    snapshots: int = 0
    growth: int | None = None

    def to_dict(self) -> dict[str, int | None]:
        """The JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table: its findings, what it is made of, its settings, its work in its order, and why some of it waits."""

    table: str
    findings: tuple[Finding, ...] = ()
    facts: Facts = field(default_factory=Facts)
    work: tuple[WorkReport, ...] = ()
    settings: Settings = field(default_factory=Settings)
    rules: tuple[int, ...] = ()
    foreign: str | None = None
    waits: tuple[str, ...] = ()
    error: str | None = None

    @property
    def health(self) -> str:
        """The worst severity of the findings; ``healthy`` without findings, ``unreadable`` if it cannot be loaded."""
        if self.error is not None:
            return UNREADABLE
        found = {finding.severity for finding in self.findings}
        return next((severity.value for severity in Severity if severity in found), HEALTHY)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "table": self.table,
            "health": self.health,
            "findings": [finding.to_dict() for finding in self.findings],
            "work": [one.to_dict() for one in self.work],
            "facts": self.facts.to_dict(),
            "policy": self.settings.to_dict() | {"rules": list(self.rules)},
            "foreign": self.foreign,
            "waits": list(self.waits),
            "error": self.error,
        }

    def with_work(self, at: int, changed: WorkReport) -> TableReport:
        """The report with one piece of work changed."""
        return replace(self, work=(*self.work[:at], changed, *self.work[at + 1 :]))


@dataclass(frozen=True, slots=True, repr=False)
class MaintainResult(Displayed):
    """One run.

    Attributes:
        run_id: Its id, which is also the holder of its leases.
        tables: The tables that were looked at.
        spent_bytes: Bytes of data files that were rewritten.
        spent_files: Data files that were rewritten.
        seconds: How long the run took.
        not_looked_at: Tables for which no time was left.
        dry_run: Whether nothing was done.
        runs_table: The table in which the run is recorded.
        notes: What is not as it should be about the run itself.
    """

    run_id: str
    tables: tuple[TableReport, ...]
    spent_bytes: int = 0
    spent_files: int = 0
    seconds: float = 0.0
    not_looked_at: tuple[str, ...] = ()
    dry_run: bool = False
    runs_table: str | None = None
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """The HTML that Jupyter shows."""
        rows = (
            (
                table.table,
                table.health,
                f"{table.facts.files:,}",
                ", ".join(f"{one.work.kind} {one.status.value}" for one in table.work) or table.error or "–",
            )
            for table in self.tables
        )
        return table_html("maintain", ("table", "health", "files", "work"), rows)

    @property
    def exit_code(self) -> int:
        """0 if nothing failed, 1 if some work failed, 3 if there were only conflicts with other writers."""
        statuses = {one.status for table in self.tables for one in table.work}
        if Status.FAILED in statuses or any(table.error is not None for table in self.tables):
            return 1
        return 3 if Status.CONFLICT in statuses else 0

    def left(self) -> list[dict[str, Any]]:
        """What is still to be done, and why it was not."""
        waiting = [
            {"table": table.table, "kind": one.work.kind, "status": one.status.value, "why": one.why or None}
            for table in self.tables
            for one in table.work
            if one.status in UNFINISHED
        ]
        return waiting + [
            {"table": name, "kind": "look", "status": Status.LEFT.value, "why": "the time of the run was spent"}
            for name in self.not_looked_at
        ]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "run_id": self.run_id,
            "tables": [table.to_dict() for table in self.tables],
            "spent": {"bytes": self.spent_bytes, "files": self.spent_files, "seconds": round(self.seconds, 3)},
            "left": self.left(),
            "dry_run": self.dry_run,
            "runs_table": self.runs_table,
            "notes": list(self.notes),
        }


# --- Prometheus

_HELP = {
    "tables": "Tables by health.",
    "work": "Pieces of work of the last run by kind and status.",
    "predicted_gain_bytes": "Predicted gain of the work that ran, by kind.",
    "achieved_gain_bytes": "Achieved gain of the work that ran, by kind.",
    "spent_bytes": "Bytes of data files that the last run rewrote.",
    "spent_seconds": "Duration of the last run.",
    "last_run_timestamp_seconds": "When the last run ended.",
    "exit_code": "Exit code of the last run.",
    "table_files": "Live data files of a table.",
    "table_bytes": "Size of the live data files of a table.",
    "table_small_files": "Live data files of a table below its target size.",
    "table_delete_files": "Live delete files of a table.",
}


def prometheus_text(result: MaintainResult, ended_s: float) -> str:
    """The run as metrics in Prometheus' text format, all of them gauges."""
    lines = list[str]()
    for name, samples in _samples(result, ended_s).items():
        lines += [f"# HELP floeplan_maintain_{name} {_HELP[name]}", f"# TYPE floeplan_maintain_{name} gauge"]
        lines += [f"floeplan_maintain_{name}{labels} {_number(number)}" for labels, number in samples]
    return "\n".join(lines) + "\n"


def _samples(result: MaintainResult, ended_s: float) -> dict[str, list[tuple[str, float]]]:
    reports = [one for table in result.tables for one in table.work]
    ran = [one for one in reports if one.achieved is not None]
    health = Counter(table.health for table in result.tables)
    work = Counter((one.work.kind, one.status.value) for one in reports)
    predicted, achieved = Counter[str](), Counter[str]()
    for one in ran:
        predicted[one.work.kind] += one.work.gain
        achieved[one.work.kind] += (one.achieved or {}).get("gain", 0)
    facts = {name: [(_labels(table=t.table), float(getattr(t.facts, name))) for t in result.tables] for name in _FACTS}
    return {
        "tables": [(_labels(health=name), float(number)) for name, number in sorted(health.items())],
        "work": [(_labels(kind=kind, status=status), float(n)) for (kind, status), n in sorted(work.items())],
        "predicted_gain_bytes": [(_labels(kind=kind), float(gain)) for kind, gain in sorted(predicted.items())],
        "achieved_gain_bytes": [(_labels(kind=kind), float(gain)) for kind, gain in sorted(achieved.items())],
        "spent_bytes": [("", float(result.spent_bytes))],
        "spent_seconds": [("", result.seconds)],
        "last_run_timestamp_seconds": [("", ended_s)],
        "exit_code": [("", float(result.exit_code))],
        **{f"table_{name}": samples for name, samples in facts.items()},
    }


_FACTS = ("files", "bytes", "small_files", "delete_files")


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write_metrics(result: MaintainResult, path: Path, ended_s: float) -> None:
    """Write the metrics; a collector that reads the file never sees a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(prometheus_text(result, ended_s), encoding="utf-8")
    temporary.replace(path)

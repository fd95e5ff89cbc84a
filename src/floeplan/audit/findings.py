"""What an audit found: the queries that read more than they should, each with why and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa

from floeplan.audit.fingerprint import fingerprint, readable
from floeplan.audit.reasons import ADVICE, NO_PARTITION

RATIOS = ("manifests", "files", "row_groups", "rows", "bytes")
"""Levels whose kept share is shown, from the top of the pruning pyramid down."""

FINDINGS_SCHEMA = pa.schema(
    [
        ("found_at", pa.timestamp("us", "UTC")),
        ("fingerprint", pa.string()),
        ("table_name", pa.string()),
        ("filter", pa.string()),
        ("runs", pa.int64()),
        ("files_kept_ratio", pa.float64()),
        ("bytes_kept", pa.int64()),
        ("reason", pa.string()),
        ("advice", pa.string()),
    ]
)
"""Columns of a table of findings."""


@dataclass(frozen=True, slots=True)
class DayOfRuns:
    """The runs of one query on one day, and the bytes they read together."""

    day: date
    runs: int
    bytes_kept: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"day": self.day.isoformat(), "runs": self.runs, "bytes_kept": self.bytes_kept}


@dataclass(frozen=True, slots=True)
class Finding:
    """One query, whatever its literals were, over all its runs.

    Attributes:
        ratios: Kept share per level; ``None`` where reports do not say.
        bytes_kept: Bytes read by all runs together.
        bytes_per_run: Bytes read by one run on average.
        selectivity: Share of the rows the query is expected to want, where bounds can tell.
        trend: Bytes per run in the second half of its days over those in the first; ``None`` within one day.
        reasons: In how many runs each reason was found.
        days: Runs and bytes read on each day, in order of days.
    """

    table: str
    shape: str
    opaque: str
    runs: int
    ratios: Mapping[str, float | None]
    bytes_kept: int
    bytes_per_run: float
    selectivity: float | None
    trend: float | None
    first_run: str
    last_run: str
    reasons: Mapping[str, int]
    days: tuple[DayOfRuns, ...] = ()

    @property
    def fingerprint(self) -> str:
        """The short name of the query."""
        return fingerprint(self.table, self.shape, self.opaque)

    @property
    def filter(self) -> str:
        """The query with its literals abstracted."""
        return readable(self.shape, self.opaque)

    @property
    def reason(self) -> str:
        """The most frequent reason; of several the most specific one."""
        known = [reason for reason in ADVICE if self.reasons.get(reason)]
        return max(known, key=lambda reason: self.reasons[reason], default=NO_PARTITION)

    @property
    def advice(self) -> str:
        """What to do about it."""
        return ADVICE[self.reason]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "fingerprint": self.fingerprint,
            "table": self.table,
            "filter": self.filter,
            "runs": self.runs,
            "files_kept_ratio": self.ratios["files"],
            "bytes_kept": self.bytes_kept,
            "bytes_per_run": self.bytes_per_run,
            "ratios": dict(self.ratios),
            "selectivity": self.selectivity,
            "trend": self.trend,
            "first_run": self.first_run,
            "last_run": self.last_run,
            "reason": self.reason,
            "reasons": dict(self.reasons),
            "advice": self.advice,
            "days": [day.to_dict() for day in self.days],
        }


@dataclass(frozen=True, slots=True)
class AuditResult:
    """An audit: how much was looked at, and what was found.

    ``queries`` counts distinct ones, ``runs`` reports, ``unreadable`` lines that are no scan report; ``flagged_total``
    is larger than the number of findings when only those that read most are shown.
    """

    queries: int
    runs: int
    unreadable: int
    bytes_kept: int
    flagged_total: int
    flagged: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "queries": self.queries,
            "runs": self.runs,
            "unreadable": self.unreadable,
            "bytes_kept": self.bytes_kept,
            "flagged_total": self.flagged_total,
            "flagged": [finding.to_dict() for finding in self.flagged],
        }

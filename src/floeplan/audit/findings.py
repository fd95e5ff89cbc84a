"""What an audit found: the queries that read more than they should, each with why and what to do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from floeplan.errors import InvalidOptionError
from floeplan.scan.explain import CURES

# Why a query reads more than it should, and the one line that says what to do about it.
#
# The first reasons are those a plan gives its conjuncts; the others come from the numbers of a report.


OLD_SPEC = "old-spec files"
DELETES = "delete files"
MANIFESTS = "many small manifests"
NO_FILTER = "no filter"
NO_PARTITION = "the filter uses no partition column"

ADVICE = CURES | {
    OLD_SPEC: "most bytes are in files of older specs: upgrade-spec, or rewrite with --spec current",
    DELETES: "delete files are merged at every read: rewrite the files they belong to",
    MANIFESTS: "planning opens many manifests for few files: rewrite-manifests",
    NO_FILTER: "the whole table is read: ask for a range of a partition column",
    NO_PARTITION: "ask for a partition column too, or see what advise says about partitioning by this one",
}
"""Advice by reason; when a query has several that are equally frequent, the first here is named."""

REASONS = tuple(ADVICE)


# Queries that differ in their literals only are one query: its shape, its fingerprint, and how people read it.


_COMPARISONS = {"eq": "=", "not-eq": "!=", "lt": "<", "lt-eq": "<=", "gt": ">", "gt-eq": ">="}
_OTHERS = {
    "in": "{} IN (?)",
    "not-in": "{} NOT IN (?)",
    "starts-with": "{} LIKE ?",
    "not-starts-with": "{} NOT LIKE ?",
    "is-null": "{} IS NULL",
    "not-null": "{} IS NOT NULL",
    "is-nan": "isnan({})",
    "not-nan": "NOT isnan({})",
}


def fingerprint(table: str, shape: str, opaque: str) -> str:
    """A short name that is the same for the same shape on the same table, today and tomorrow."""
    return hashlib.sha256("\n".join((table, shape, opaque)).encode()).hexdigest()[:12]


def readable(shape: str, opaque: str = "") -> str:
    """A filter whose literals are abstracted, as SQL; what is no expression of Iceberg is shown as it is."""
    try:
        text = _text(json.loads(shape))
    except (ValueError, KeyError, TypeError, AttributeError):
        text = shape
    parts = [part for part in (text, opaque) if part and part != "true"]
    return " AND ".join(parts) or "true"


def _text(node: Any) -> str:
    if isinstance(node, bool):
        return str(node).lower()
    kind = node["type"]
    if kind in ("and", "or"):
        return f" {kind.upper()} ".join(_operand(node[side], kind) for side in ("left", "right"))
    if kind == "not":
        return f"NOT ({_text(node['child'])})"
    if kind in _COMPARISONS:
        return f"{_term(node['term'])} {_COMPARISONS[kind]} ?"
    return _OTHERS[kind].format(_term(node["term"]))


def _operand(node: Any, around: str) -> str:
    """In brackets where AND and OR meet."""
    mixed = isinstance(node, dict) and node["type"] in ("and", "or") and node["type"] != around
    return f"({_text(node)})" if mixed else _text(node)


def _term(term: Any) -> str:
    """A column, or a transform of one."""
    return term if isinstance(term, str) else f"{term['transform']}({_term(term['term'])})"


# ---

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


# When a query is worth a person's attention: the thresholds of the audit.


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Thresholds, all of them per run on average.

    Attributes:
        since: Reports before this time are left out.
        min_ratio: A query that reads less than this share of the files is well pruned.
        min_factor: A query is excused while its share of files is below so many times the share of rows it wants.
        min_files: A query that reads fewer files is never flagged.
        min_bytes: A query that reads fewer bytes is never flagged.
        min_runs: A query that ran less often is never flagged.
        alert_bytes: A query that reads as many bytes is flagged whatever share of the table it is.
        deletes_per_file: Delete files for each data file from which on they are a reason.
        min_manifests: Manifests read from which on small ones are a reason.
        files_per_manifest: Manifests with fewer files on average are small.
        most: Findings shown, those that read most in all first.
    """

    since: datetime | None = None
    min_ratio: float = 0.25
    min_factor: float = 4.0
    min_files: int = 2
    min_bytes: int = 0
    min_runs: int = 1
    alert_bytes: int = 2**40
    deletes_per_file: float = 1.0
    min_manifests: int = 50
    files_per_manifest: float = 4.0
    most: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "since" and value < 0:
                raise InvalidOptionError(
                    f"{field.name} is {value} but must not be negative", context={"option": field.name}
                )

"""The result of an audit: queries that read too much, each with its reason and advice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pyarrow as pa

from floeplan.audit.options import AuditOptions as AuditOptions  # public under this module, too
from floeplan.display import Displayed
from floeplan.scan.explain import CURES

OVERLAP = "bounds overlap in many files"
OLD_SPEC = "old-spec files"
DELETES = "delete files"
MANIFESTS = "many small manifests"
NO_FILTER = "no filter"
NO_PARTITION = "the filter uses no partition column"
LARGE = "large result"

ADVICE = CURES | {
    OVERLAP: "cluster the files by the columns of the filter: run advise for the sort order that saves most",
    OLD_SPEC: "most bytes are in files of older specs: upgrade-spec, or rewrite with --spec current",
    DELETES: "delete files are applied at every read: rewrite the data files they apply to",
    MANIFESTS: "planning opens many manifests for few files: rewrite-manifests",
    NO_FILTER: "the whole table is read: filter by a partition column",
    NO_PARTITION: "filter by a partition column, too, or run advise for partitioning by this column",
    LARGE: "nothing prunes more: read fewer columns, or store an aggregate",
}
"""Advice by reason: causes that a plan reports for conjuncts, then those in the numbers of a report.

A reason follows from what the planner reports for each conjunct: which files partition values and bounds decide, and
which nothing decides. A query whose conjuncts are decided everywhere reads what it needs, and is not a finding.

Of equally frequent reasons of a query the first applies.
"""

REASONS = tuple(ADVICE)

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
    """A stable identifier of a query: its table and its filter without literals."""
    return hashlib.sha256("\n".join((table, shape, opaque)).encode()).hexdigest()[:12]


def readable(shape: str, opaque: str = "") -> str:
    """A filter without literals as SQL; text that is not an Iceberg expression stays as it is."""
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
    """In parentheses where AND and OR are mixed."""
    mixed = isinstance(node, dict) and node["type"] in ("and", "or") and node["type"] != around
    return f"({_text(node)})" if mixed else _text(node)


def _term(term: Any) -> str:
    """A column, or a transform of one."""
    return term if isinstance(term, str) else f"{term['transform']}({_term(term['term'])})"


RATIOS = ("manifests", "files", "row_groups", "rows", "bytes")
"""Levels of pruning whose kept ratio is reported, from the manifest list down."""

UNKNOWN_ENGINE = "unknown engine"
MOST_ENGINES = 10
"""Engines of one query that are listed."""

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
"""The schema of a table of findings."""


@dataclass(frozen=True, slots=True)
class DayOfRuns:
    """The runs of one query on one day, and the bytes that they read."""

    day: date
    runs: int
    bytes_kept: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"day": self.day.isoformat(), "runs": self.runs, "bytes_kept": self.bytes_kept}


@dataclass(frozen=True, slots=True)
class Finding:
    """One query over all its runs; queries that differ only in literals are one query.

    Attributes:
        ratios: Kept ratio per level; ``None`` where reports have no numbers.
        bytes_kept: Bytes read by all runs.
        bytes_per_run: Average bytes read by a run.
        selectivity: The expected fraction of rows that match, where bounds allow an estimate.
        trend: Bytes per run in the second half of its days divided by those in the first; ``None`` for a single day.
        reasons: The number of runs with each reason.
        days: Runs and bytes read on each day, in order of days.
        guessed: Whether the reasons are guessed from the form of the filter: other engines report no conjuncts.
        engines: Runs by engine and version, most first.
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
    guessed: bool = False
    engines: Mapping[str, int] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """The stable identifier of the query."""
        return fingerprint(self.table, self.shape, self.opaque)

    @property
    def filter(self) -> str:
        """The filter as SQL, without literals."""
        return readable(self.shape, self.opaque)

    @property
    def reason(self) -> str:
        """The most frequent reason; of equally frequent ones the most specific."""
        known = [reason for reason in ADVICE if self.reasons.get(reason)]
        return max(known, key=lambda reason: self.reasons[reason], default=LARGE)

    @property
    def advice(self) -> str:
        """What to do about the reason."""
        return ADVICE[self.reason]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        query = ("fingerprint", "table", "filter", "runs", "bytes_kept", "bytes_per_run", "selectivity", "trend")
        return {name: getattr(self, name) for name in (*query, "first_run", "last_run", "reason", "advice")} | {
            "files_kept_ratio": self.ratios["files"],
            "ratios": dict(self.ratios),
            "reasons": dict(self.reasons),
            "basis": "form of the filter" if self.guessed else "planner",
            "days": [day.to_dict() for day in self.days],
            "engines": dict(self.engines),
        }


@dataclass(frozen=True, slots=True, repr=False)
class AuditResult(Displayed):
    """The findings of an audit, and its totals.

    ``queries`` counts distinct queries, ``runs`` reports, ``unreadable`` lines that are not scan reports.
    ``flagged_total`` exceeds the number of findings when they are limited to those that read most. ``outdated`` counts
    the runs before the last change of a table's layout, which say nothing about the table as it is now.
    """

    queries: int
    runs: int
    unreadable: int
    bytes_kept: int
    flagged_total: int
    flagged: tuple[Finding, ...]
    outdated: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return found | {"flagged": [finding.to_dict() for finding in self.flagged]}

"""The table of runs: what every run found and did, as an Iceberg table, and what later runs learn from it.

Rule: a run appends its rows in one commit: one for each table that it looked at, and one for each piece of work. The
factor of a table and a kind of work is the median of achieved over predicted gain of its last ``LEARNED`` rows, within
``LEAST`` and ``MOST``; 1 before there is any. Fail-safe: nothing but ranking depends on the records. If they cannot be
read or written, the run goes on and says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from floeplan.dml.append import append
from floeplan.fleet.report import MaintainResult, Status, TableReport
from floeplan.fleet.work import COMPACT
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.text import document_text

LEARNED = 10
LEAST, MOST = 0.1, 10.0
LOOK = "look"
_REMEMBERED = timedelta(days=90)
_PROPERTIES = {
    "commit.retry.num-retries": "100",
    "commit.retry.min-wait-ms": "20",
    "commit.manifest.min-count-to-merge": "2",  # so that no run finds work in the record of the last one
}
SCHEMA = pa.schema(
    [
        ("run_id", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
        ("table_name", pa.string()),
        ("kind", pa.string()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("predicted_gain", pa.int64()),
        ("achieved_gain", pa.int64()),
        ("bytes", pa.int64()),
        ("seconds", pa.float64()),
        ("health", pa.string()),
        ("files", pa.int64()),
        ("table_bytes", pa.int64()),
        ("detail", pa.string()),
    ]
)
"""Of a table that was looked at, ``kind`` is ``look`` and ``files`` and ``table_bytes`` are its own."""


@dataclass(frozen=True, slots=True)
class History:
    """What is known from earlier runs.

    Attributes:
        factors: By table and kind, how much of its predicted gain work achieved.
        looked: When each table was last looked at.
        orphans: When the files of each table were last listed.
        last_work: The last work on each table: its kind, status and time.
        partial: Tables whose last compaction was shortened to the budget.
    """

    factors: Mapping[tuple[str, str], float] = field(default_factory=dict)
    looked: Mapping[str, datetime] = field(default_factory=dict)
    orphans: Mapping[str, datetime] = field(default_factory=dict)
    last_work: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()

    def factor(self, table: str, kind: str) -> float:
        """The factor of a table and a kind of work."""
        return self.factors.get((table, kind), 1.0)


def read_history(catalog: Catalog, name: str | None) -> History:
    """What earlier runs recorded; nothing if there is no table of runs."""
    if name is None:
        return History()
    try:
        table = catalog.load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError):
        return History()
    since = datetime.now(UTC) - _REMEMBERED
    columns = ["time", "table_name", "kind", "status", "predicted_gain", "achieved_gain", "reason", "detail"]
    options = ScanOptions(footers=False, report=False, cache=False)
    plan = plan_scan(table, f"time >= TIMESTAMP '{since:%Y-%m-%d %H:%M:%S}+00:00'", columns=columns, options=options)
    rows = plan.to_arrow().sort_by("time").to_pylist()
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    looked, orphans, last = dict[str, datetime](), dict[str, datetime](), dict[str, Mapping[str, Any]]()
    partial = set[str]()
    for row in rows:
        if row["kind"] == LOOK:
            looked[row["table_name"]] = row["time"]
            if row["detail"] == _LISTED:
                orphans[row["table_name"]] = row["time"]
            continue
        if row["status"] in (Status.DONE, Status.PARTIAL, Status.FAILED, Status.CONFLICT):
            last[row["table_name"]] = {name: row[name] for name in ("kind", "status", "time", "reason")}
        if row["kind"] == COMPACT and row["status"] in (Status.DONE, Status.PARTIAL):
            (partial.add if row["status"] == Status.PARTIAL else partial.discard)(row["table_name"])
        if row["achieved_gain"] is not None and row["predicted_gain"]:
            ratios[row["table_name"], row["kind"]].append(row["achieved_gain"] / row["predicted_gain"])
    factors = {key: min(MOST, max(LEAST, median(found[-LEARNED:]))) for key, found in ratios.items()}
    return History(factors, looked, orphans, last, frozenset(partial))


_LISTED = "files listed"


def record(catalog: Catalog, name: str, result: MaintainResult, ended: datetime, listed: Sequence[str]) -> None:
    """Append the rows of a run; the table is created if it does not exist."""
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    table = catalog.create_table_if_not_exists(name, SCHEMA, properties=_PROPERTIES)
    rows = [row for report in result.tables for row in _rows(report, set(listed))]
    every = [row | {"run_id": result.run_id, "time": ended} for row in rows]
    append(table, pa.Table.from_pylist(every, schema=SCHEMA))


def _rows(report: TableReport, listed: set[str]) -> list[dict[str, Any]]:
    facts = report.facts
    look = {
        "table_name": report.table,
        "kind": LOOK,
        "status": Status.DONE.value if report.error is None else Status.FAILED.value,
        "reason": report.error,
        "health": report.health,
        "files": facts.files,
        "table_bytes": facts.bytes,
        "detail": _LISTED if report.table in listed else None,
    }
    work = [
        {
            "table_name": report.table,
            "kind": one.work.kind,
            "status": one.status.value,
            "reason": one.why or one.work.reason,
            "predicted_gain": one.work.gain,
            "achieved_gain": None if one.achieved is None else one.achieved["gain"],
            "bytes": 0 if one.achieved is None else one.achieved["bytes"],
            "seconds": one.seconds,
            "health": report.health,
            "files": one.work.files,
            "table_bytes": facts.bytes,
            "detail": document_text({"predicted": one.work.predicted(), "achieved": one.achieved}),
        }
        for one in report.work
    ]
    return [look, *work]

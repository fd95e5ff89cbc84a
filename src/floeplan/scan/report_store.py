"""Where scan reports go: a folder of JSON lines, or an Iceberg table.

The default is the folder ``$FLOEPLAN_REPORTS``, or ``reports`` beside the embedded catalog; ``FLOEPLAN_REPORTS=off``
turns reports off. Fail-safe: a report that cannot be stored becomes a warning of the plan, never its failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from floeplan.catalog import embedded_home
from floeplan.redact import document_text
from floeplan.scan.summary import PlanWarning

OFF = "off"
REPORT_SCHEMA = pa.schema(
    [
        ("timestamp", pa.timestamp("us", "UTC")),
        ("table_name", pa.string()),
        ("snapshot_id", pa.int64()),
        ("predicate", pa.string()),
        ("report", pa.string()),
    ]
)
"""Columns of a table of reports; ``report`` is the whole JSON document."""


class ReportStore(Protocol):
    """Keeps scan reports."""

    def append(self, report: Mapping[str, Any]) -> None:
        """Keep one report."""


class JsonLinesReportStore:
    """A folder with one file per process and day; every report is one line, written in one piece."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def append(self, report: Mapping[str, Any]) -> None:
        """Append a line; the folder is made when the first report arrives."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"scan-{datetime.now(UTC):%Y%m%d}-{os.getpid()}.jsonl"
        line = document_text(report, default=str) + "\n"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, line.encode("utf-8", "backslashreplace"))
        finally:
            os.close(handle)


class TableReportStore:
    """An Iceberg table of reports; every report is an append."""

    def __init__(self, table: Table) -> None:
        self.table = table

    @classmethod
    def create(cls, catalog: Catalog, name: str) -> TableReportStore:
        """Open the table of reports, made when it is not there yet."""
        return cls(catalog.create_table_if_not_exists(name, REPORT_SCHEMA))

    def append(self, report: Mapping[str, Any]) -> None:
        """Append a row."""
        row = {
            "timestamp": datetime.now(UTC),
            "table_name": report["table-name"],
            "snapshot_id": report["snapshot-id"],
            "predicate": report["floeplan"]["predicate"],
            "report": document_text(report, default=str),
        }
        self.table.append(pa.Table.from_pylist([row], schema=REPORT_SCHEMA))


def default_store() -> ReportStore | None:
    """The folder of reports, unless reports are off."""
    chosen = os.environ.get("FLOEPLAN_REPORTS", "")
    if chosen.lower() == OFF:
        return None
    return JsonLinesReportStore(Path(chosen) if chosen else embedded_home() / "reports")


def store_report(store: ReportStore, make: Callable[[], Mapping[str, Any]]) -> PlanWarning | None:
    """Make and keep a report; whatever goes wrong is a warning, because the scan itself is fine."""
    try:
        store.append(make())
    except Exception as error:
        return PlanWarning("report-not-stored", f"the scan report was not stored: {error}", {"error": str(error)})
    return None

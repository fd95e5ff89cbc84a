"""Findings kept as rows of an Iceberg table, so that they can be followed over time."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from floeplan.audit.findings import FINDINGS_SCHEMA, AuditResult
from floeplan.catalog import open_catalog
from floeplan.dml.append import append


def store_findings(result: AuditResult, name: str, catalog: str | None = None) -> None:
    """Append the findings to a table, which is made when it is not there; without findings nothing is written."""
    if not result.flagged:
        return
    now = datetime.now(UTC)
    rows = [{**finding.to_dict(), "table_name": finding.table, "found_at": now} for finding in result.flagged]
    opened = open_catalog(catalog)
    opened.create_namespace_if_not_exists(name.rpartition(".")[0])
    append(opened.create_table_if_not_exists(name, FINDINGS_SCHEMA), pa.Table.from_pylist(rows, FINDINGS_SCHEMA))

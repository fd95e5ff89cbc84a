"""Scan reports in Floeplan's and Iceberg's format, made by hand to create thousands of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any


def leaf(kind: str, term: str, value: object = 1) -> dict[str, Any]:
    """A comparison in Iceberg's JSON."""
    return {"type": kind, "term": term, "values" if kind in ("in", "not-in") else "value": value}


def own_report(
    filter_: Any,
    *,
    kept: int,
    total: int,
    why: str = "",
    when: str = "2024-03-01T12:00:00.000+00:00",
    table: str = "db.events",
    file_size: int = 1000,
    deletes: int = 0,
    manifests: tuple[int, int] = (1, 1),
    selectivity: float | None = None,
    old_spec_kept: int = 0,
    partition_field: str | None = None,
    opaque: Iterable[str] = (),
    undecided: int | None = None,
    layout_changed: str | None = None,
    spec_id: int = 1,
) -> dict[str, Any]:
    """A report with Floeplan's counts; ``manifests`` is (kept, total).

    Without ``undecided`` it is one of a version that did not report it, and reported notes instead of fields.
    """
    fields: dict[str, Any] = {"partition_fields": [] if partition_field is None else [partition_field]}
    if undecided is None:
        fields = {"notes": [{"predicate": "p", "field": partition_field, "how": "cannot", "reason": ""}]}
    specs = [
        {"spec_id": 0, "bytes_kept": old_spec_kept * file_size, **fields},
        {"spec_id": 1, "bytes_kept": (kept - old_spec_kept) * file_size, **fields},
    ]
    summary = {
        "manifests_total": manifests[1],
        "manifests_kept": manifests[0],
        "files_total": total,
        "files_kept": kept,
        "row_groups_total": None,
        "row_groups_kept": None,
        "rows_total": total * 100,
        "rows_kept": kept * 100,
        "bytes_total": total * file_size,
        "bytes_kept": kept * file_size,
        "deletes_total": deletes,
        "deletes_kept": deletes,
    }
    return foreign_report(filter_, kept=kept, skipped=total - kept, table=table) | {
        "floeplan": {
            "timestamp": when,
            "default_spec_id": spec_id,
            "layout_changed_ms": None
            if layout_changed is None
            else int(datetime.fromisoformat(layout_changed).timestamp() * 1000),
            "selectivity": selectivity,
            "summary": summary,
            "specs": specs,
            "passes": [
                {
                    "unit": "files",
                    "total": total,
                    "kept": kept,
                    "effects": [{"predicate": "p", "dropped": 0, "why": why, "undecided": undecided}],
                }
            ],
            "warnings": [{"kind": "not-compiled", "message": "", "context": {"text": text}} for text in opaque],
        }
    }


def foreign_report(
    filter_: Any, *, kept: int, skipped: int, scanned: int = 1, manifests: int = 1, table: str = "db.events"
) -> dict[str, Any]:
    """A report as Iceberg's own planners send it to a REST catalog."""
    counts = {
        "result-data-files": kept,
        "skipped-data-files": skipped,
        "total-data-manifests": manifests,
        "scanned-data-manifests": scanned,
        "result-delete-files": 0,
    }
    return {
        "report-type": "scan-report",
        "table-name": table,
        "snapshot-id": 1,
        "filter": filter_,
        "schema-id": 0,
        "metrics": {name: {"unit": "count", "value": value} for name, value in counts.items()}
        | {"total-file-size-in-bytes": {"unit": "bytes", "value": kept * 1000}},
    }


def write_lines(path: Path, lines: Iterable[Mapping[str, Any] | str]) -> Path:
    """Write a file of reports and other lines; returns its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path.parent

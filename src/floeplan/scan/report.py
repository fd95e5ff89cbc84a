"""Scan reports: what a plan read, in Iceberg's JSON shape, with the numbers Iceberg's reports lack.

The standard part is what Iceberg's own reporters write, so that reports of several engines can be read together. Under
``floeplan`` stand the numbers per spec, the passes with the part of every conjunct, and what could not be used.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np

from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.stats import file_stats
from floeplan.predicate.build import columns as predicate_columns
from floeplan.scan.expression_json import expression_json
from floeplan.scan.scan_plan import ScanPlan
from floeplan.scan.selectivity import selectivity

_POSITIONAL = (DeleteKind.POSITION_FILE, DeleteKind.POSITION_PARTITION)
_EQUALITY = (DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION)


def scan_report(plan: ScanPlan) -> dict[str, Any]:
    """The report of one plan; metrics that are not known are left out."""
    snapshot = plan.target.snapshot
    return {
        "report-type": "scan-report",
        "table-name": plan.target.name,
        "snapshot-id": -1 if snapshot is None else snapshot.snapshot_id,
        "filter": expression_json(plan.compiled.predicate),
        "schema-id": plan.target.schema.schema_id,
        "projected-field-ids": [field.field_id for field in plan.schema.fields],
        "projected-field-names": [field.name for field in plan.schema.fields],
        "metrics": _metrics(plan),
        "metadata": {"engine-name": "floeplan", "engine-version": _own_version()},
        "floeplan": _own_numbers(plan),
    }


@cache
def _own_version() -> str:
    """Looked up once: the metadata of a package are a file that is parsed as a mail."""
    return version("floeplan")


def _metrics(plan: ScanPlan) -> dict[str, Any]:
    summary, files = plan.summary, plan.files
    used = np.unique(files.matches.deletes)
    kinds = files.delete_kinds
    nanoseconds = round(summary.planning_ms * 1_000_000)
    counts = {
        "result-data-files": summary.files_kept,
        "result-delete-files": len(used),
        "total-data-manifests": summary.manifests_total,
        "total-delete-manifests": summary.delete_manifests_total,
        "scanned-data-manifests": summary.manifests_kept,
        "skipped-data-manifests": summary.manifests_total - summary.manifests_kept,
        "skipped-data-files": None if summary.files_total is None else summary.files_total - summary.files_kept,
        "skipped-delete-files": None if summary.deletes_total is None else summary.deletes_total - len(used),
        "scanned-delete-manifests": summary.delete_manifests_kept,
        "skipped-delete-manifests": summary.delete_manifests_total - summary.delete_manifests_kept,
        "indexed-delete-files": len(kinds),
        "equality-delete-files": int(np.isin(kinds[used], _EQUALITY).sum()),
        "positional-delete-files": int(np.isin(kinds[used], _POSITIONAL).sum()),
        "dvs": int((kinds[used] == DeleteKind.VECTOR).sum()),
    }
    sizes = {
        "total-file-size-in-bytes": int(files.entries.ints("file_size_in_bytes").sum()),
        "total-delete-file-size-in-bytes": int(files.deletes.ints("file_size_in_bytes")[used].sum()),
    }
    return {
        "total-planning-duration": {"count": 1, "time-unit": "nanoseconds", "total-duration": nanoseconds},
        **{name: {"unit": "count", "value": value} for name, value in counts.items() if value is not None},
        **{name: {"unit": "bytes", "value": value} for name, value in sizes.items()},
    }


def _own_numbers(plan: ScanPlan) -> dict[str, Any]:
    return {
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "predicate": str(plan.compiled.predicate),
        "default_spec_id": plan.target.metadata.default_spec_id,
        "selectivity": _selectivity(plan),
        "summary": plan.summary.to_dict(),
        "specs": [spec.to_dict() for spec in plan.specs],
        "passes": [step.to_dict() for step in plan.passes],
        "warnings": [warning.to_dict() for warning in plan.warnings[:20]],
    }


def _selectivity(plan: ScanPlan) -> float | None:
    predicate, entries, rows = plan.compiled.predicate, plan.files.entries, plan.summary.rows_total
    bounds = file_stats(entries, predicate_columns(predicate).values())
    return None if rows is None else selectivity(predicate, bounds, entries.record_count, rows)

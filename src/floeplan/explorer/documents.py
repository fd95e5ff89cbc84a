"""JSON documents of the pages: overview, history, doctor, rewrite and upgrade previews, plans.

Every document is made of a result that a command prints too. No property of a catalog or a table is part of one.
"""

from __future__ import annotations

import math
import re
import shlex
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from pyiceberg.catalog import Catalog
from pyiceberg.table import StaticTable, Table
from pyiceberg.types import PrimitiveType

from floeplan.audit.reports import default_reports
from floeplan.explorer.view import TableView
from floeplan.fleet.look import look_at
from floeplan.fleet.policy import Policy
from floeplan.fleet.records import History
from floeplan.maintenance.doctor import Severity, doctor
from floeplan.maintenance.inspect import inspect_files
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.spec_upgrade.upgrade import SpecUpgradeResult, UpgradeOptions, upgrade_spec
from floeplan.scan.explain import advice, reasons, spec_reasons
from floeplan.scan.model import FileScan, ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.schemas import fields_by_id
from floeplan.text import parse_count

MOST_SNAPSHOTS = 1000
MOST_GROUPS = 200
MOST_FILES = 200
FEW_FILES = 256
"""Footers are read automatically if at most this many files are kept: a page plans while the user types."""

_WARNINGS_SHOWN = 3
_SAFE_INTEGER = 2**53
_SPECIAL = re.compile(r'[$`"\\!]')
_SUMMARY = (
    "added-data-files",
    "deleted-data-files",
    "added-delete-files",
    "removed-delete-files",
    "added-records",
    "deleted-records",
    "added-files-size",
    "removed-files-size",
    "total-data-files",
    "total-delete-files",
    "total-records",
    "total-files-size",
)
"""The properties of the snapshot summary that are shown."""


def overview_document(view: TableView) -> dict[str, Any]:
    """The table, its specs with the commit times of their live files, and its snapshots."""
    found = inspect_files(view.table, view.reader, view.files, view.deletes).to_dict()
    schema, snapshots = view.target.schema, found["snapshots"]
    return {
        "table": view.name,
        "read_only": isinstance(view.table, StaticTable),
        "format_version": found["format_version"],
        "location": found["location"],
        "snapshot_id": None if view.target.snapshot is None else view.target.snapshot.snapshot_id,
        "columns": [
            {"name": str(schema.find_column_name(field_id)), "type": str(field.field_type)}
            for field_id, field in fields_by_id(schema).items()
            if isinstance(field.field_type, PrimitiveType)
        ],
        "specs": _specs(view, found),
        "snapshots": [
            {name: snapshot[name] for name in ("snapshot_id", "timestamp_ms", "operation", "current")}
            | {
                "summary": {
                    name: n for name in _SUMMARY if (n := parse_count(snapshot["summary"].get(name))) is not None
                }
            }
            for snapshot in snapshots[:MOST_SNAPSHOTS]
        ],
        "snapshots_total": len(snapshots),
        "refs": found["refs"],
        "delete_files": found["delete_files"],
        "sizes": found["sizes"],
        "files": len(view.files),
        "rows": int(view.files.record_count.sum()),
    }


def _numbers(summary: Mapping[str, str]) -> dict[str, int]:
    return {name: number for name in _SUMMARY if (number := parse_count(summary.get(name))) is not None}


def _specs(view: TableView, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each spec with its files, and the first and last commit time of these unless the snapshots have expired."""
    files = {one["spec_id"]: one for one in found["files_by_spec"]}
    committed = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in view.target.metadata.snapshots}
    times: dict[int, list[int]] = {}
    pairs = np.unique(np.stack([view.files.spec_id, view.files.ints("snapshot_id")]), axis=1).T.tolist()
    for spec_id, snapshot_id in pairs:
        if snapshot_id in committed:
            times.setdefault(spec_id, []).append(committed[snapshot_id])
    return [
        {"spec_id": spec["spec_id"], "spec": spec["spec"], "default": spec["default"]}
        | {name: files.get(spec["spec_id"], {}).get(name, 0) for name in ("files", "rows", "bytes", "partitions")}
        | {
            "first_ms": min(times.get(spec["spec_id"], ()), default=None),
            "last_ms": max(times.get(spec["spec_id"], ()), default=None),
        }
        for spec in found["specs"]
    ]


def doctor_document(table: Table) -> dict[str, Any]:
    """The doctor's findings from metadata alone, errors first; also for tables that cannot be planned."""
    result = doctor(table, sample=0)
    order = [severity.value for severity in Severity]
    found = [finding.to_dict() for finding in result.findings]
    return {"findings": sorted(found, key=lambda finding: order.index(finding["severity"])), "healthy": result.healthy}


def fleet_document(name: str, catalog: Catalog, history: History) -> dict[str, Any]:
    """One line of the front page: what a table is made of, its findings, its last work and what is next."""
    report = look_at(name, catalog, Policy(), history, reports=default_reports(), now_s=time.time())
    found, last = report.to_dict(), history.last_work.get(name)
    return {key: found[key] for key in ("table", "health", "findings", "facts", "work", "foreign", "waits")} | {
        "problem": report.error,  # an answer with an "error" is a failed request
        "last": None
        if last is None
        else {
            "kind": last["kind"],
            "status": last["status"],
            "reason": last["reason"],
            "time_ms": int(last["time"].timestamp() * 1000),
        },
    }


@dataclass(frozen=True, slots=True)
class RewriteRequest:
    """The options of a rewrite that a page can set."""

    strategy: str = "binpack"
    by: str = ""
    spec: str = "keep"
    where: str = ""

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> RewriteRequest:
        """The options among the parameters of a request; empty ones keep their default."""
        return cls(**{name: parameters[name] for name in cls.__slots__ if parameters.get(name)})

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to sort or cluster by."""
        return tuple(name.strip() for name in self.by.split(",") if name.strip())

    def options(self) -> RewriteOptions:
        """The options of the rewrite.

        Raises:
            BadInputError: Invalid options.
        """
        filter_ = self.where or None
        return RewriteOptions(strategy=self.strategy, by=self.columns, spec=self.spec, partition_filter=filter_)

    def command(self, table: str) -> str:
        """The equivalent command line."""
        words = ["floeplan", "rewrite", table, "--strategy", self.strategy]
        words += ["--by", ",".join(self.columns)] if self.columns else []
        words += ["--spec", self.spec] if self.spec != "keep" else []
        words += ["--partition-filter", self.where] if self.where else []
        return " ".join(map(shell_word, words))


def rewrite_document(view: TableView, request: RewriteRequest) -> dict[str, Any]:
    """A dry run of a rewrite."""
    planned = RewriteDataFilesPlanner(view.table, request.options()).plan_with_stats()
    groups = planned.plan.groups
    reasons: Counter[str] = Counter()
    for group in groups:
        reasons.update(group.reasons)
    return {
        "command": request.command(view.name),
        "groups_total": len(groups),
        "groups": [group.to_dict() for group in groups[:MOST_GROUPS]],
        "files": sum(len(group.rows) for group in groups),
        "bytes": sum(group.bytes for group in groups),
        "expected_outputs": sum(group.expected_outputs for group in groups),
        "delete_files": sum(group.delete_files for group in groups),
        "reasons": dict(reasons),
        "skipped": dict(planned.plan.skipped),
        "warnings": [warning.message for warning in planned.warnings],
        "planning_ms": planned.planning_ms,
    }


def upgrade_document(view: TableView, to: str = "current") -> dict[str, Any]:
    """A dry run of a spec upgrade."""
    result: SpecUpgradeResult = upgrade_spec(view.table, options=UpgradeOptions(to=to, dry_run=True))
    return {"command": f"floeplan upgrade-spec {shell_word(view.name)} --to {shell_word(to)}"} | result.to_dict()


def shell_word(text: str) -> str:
    """Quote a shell word; with double quotes if it has no special characters, for readable predicates."""
    quoted = shlex.quote(text)
    return quoted if quoted == text or _SPECIAL.search(text) else f'"{text}"'


def for_browsers(value: Any) -> Any:
    """A document for JavaScript: integers beyond 2^53 and non-finite numbers become text."""
    match value:
        case Mapping():
            return {str(key): for_browsers(item) for key, item in value.items()}
        case list() | tuple():
            return [for_browsers(item) for item in value]
        case bool() | None | str():
            return value
        case int():
            return value if abs(value) < _SAFE_INTEGER else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
    return str(value)


class Footers(StrEnum):
    """Whether footers are read."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"


def plan_for(view: TableView, where: str | None, footers: Footers = Footers.AUTO) -> ScanPlan:
    """Plan a predicate on the snapshot of a view; no scan report is written.

    Raises:
        BadInputError: An invalid predicate.
    """
    options = ScanOptions(footers=footers is Footers.YES, page_index=True, bloom_filter=True, report=False)
    plan = plan_scan(view.table, where or None, options=options)
    if footers is Footers.AUTO and where and 0 < len(plan.files) <= FEW_FILES:
        return plan_scan(view.table, where, options=replace(options, footers=True))
    return plan


def plan_document(view: TableView, where: str | None, plan: ScanPlan) -> dict[str, Any]:
    """The document of a plan, with the kept files per cell of the map."""
    kept = np.zeros(len(view.files), dtype=np.int64)
    kept[view.rows_of(plan.files.entries)] = 1
    # Those of the live data files, as on every card: the snapshot summary may lack them, and its bytes include deletes.
    totals = {
        "files_total": len(view.files),
        "rows_total": int(view.files.record_count.sum()),
        "bytes_total": int(view.files.ints("file_size_in_bytes").sum()),
    }
    messages: dict[str, list[str]] = {}
    for warning in plan.warnings:
        messages.setdefault(warning.kind, []).append(warning.message)
    return {
        "where": where or "",
        "understood": str(plan.compiled.predicate),
        "summary": plan.summary.to_dict() | totals,
        "passes": [step.to_dict() for step in plan.passes],
        "reasons": list(reasons(plan)),
        "specs": [spec.to_dict() | {"reasons": list(spec_reasons(plan, spec))} for spec in plan.specs],
        "advice": list(advice(plan)),
        "warnings": [
            {"kind": kind, "count": len(found), "messages": found[:_WARNINGS_SHOWN]} for kind, found in messages.items()
        ],
        "footers": any(step.unit == "row groups" for step in plan.passes),
        "files": [_file(plan, at, file) for at, file in enumerate(plan.files[:MOST_FILES])],
        "kept_by_cell": view.map.sum_by_cell(kept).tolist(),
    }


def _file(plan: ScanPlan, at: int, file: FileScan) -> dict[str, Any]:
    """One kept file, without its row selection."""
    opened = plan.files.row_groups.get(at)
    document = file.to_dict()
    del document["row_selection"]
    return document | {
        "deletes": len(file.deletes),
        "row_groups_total": None if opened is None else opened.total,
        "rows_selected": file.record_count if opened is None else opened.rows,
    }

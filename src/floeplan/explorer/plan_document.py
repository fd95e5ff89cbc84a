"""A plan as a page shows it: the pyramid, what each conjunct did, the files that survive, and where on the map.

Rule: footers are opened where few files are left, unless a page asks otherwise; a plan that keeps very many files says
so instead of opening them all while somebody types. Plans made here leave no scan report.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from enum import StrEnum
from typing import Any

import numpy as np

from floeplan.explorer.view import TableView
from floeplan.scan.advice import advice
from floeplan.scan.model import FileScan
from floeplan.scan.options import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.scan_plan import ScanPlan

MOST_FILES = 200
FEW_FILES = 256
"""Footers are opened without being asked for when so many files are left."""

_WARNINGS_SHOWN = 3


class Footers(StrEnum):
    """Whether the third pass is made."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"


def plan_for(view: TableView, where: str | None, footers: Footers = Footers.AUTO) -> ScanPlan:
    """Plan a predicate on the snapshot of a view.

    Raises:
        BadInputError: A predicate that cannot be meant.
    """
    options = ScanOptions(footers=footers is Footers.YES, page_index=True, bloom_filter=True, report=False)
    plan = plan_scan(view.table, where or None, options=options)
    if footers is Footers.AUTO and where and 0 < len(plan.files) <= FEW_FILES:
        return plan_scan(view.table, where, options=replace(options, footers=True))
    return plan


def plan_document(view: TableView, where: str | None, plan: ScanPlan) -> dict[str, Any]:
    """The JSON document of a plan on its table's map."""
    rows = view.rows_of(plan.files.entries)
    kept = np.zeros(len(view.files), dtype=np.int64)
    kept[rows] = 1
    return {
        "where": where or "",
        "understood": str(plan.compiled.predicate),
        "summary": _summary(view, plan),
        "passes": [step.to_dict() for step in plan.passes],
        "specs": [spec.to_dict() for spec in plan.specs],
        "advice": list(advice(plan)),
        "warnings": _warnings(plan),
        "footers": any(step.unit == "row groups" for step in plan.passes),
        "files": [_file(plan, at, file) for at, file in enumerate(plan.files[:MOST_FILES])],
        "kept_by_cell": view.map.sum_by_cell(kept).tolist(),
    }


def _summary(view: TableView, plan: ScanPlan) -> dict[str, Any]:
    """The numbers of the plan; totals that its snapshot does not give are known here."""
    known = {
        "files_total": len(view.files),
        "rows_total": int(view.files.record_count.sum()),
        "bytes_total": int(view.files.ints("file_size_in_bytes").sum()),
    }
    summary = plan.summary.to_dict()
    return summary | {name: number for name, number in known.items() if summary[name] is None}


def _file(plan: ScanPlan, at: int, file: FileScan) -> dict[str, Any]:
    """One surviving file; which rows are selected is left to the page about it."""
    opened = plan.files.row_groups.get(at)
    document = file.to_dict()
    del document["row_selection"]
    return document | {
        "deletes": len(file.deletes),
        "row_groups_total": None if opened is None else opened.total,
        "rows_selected": file.record_count if opened is None else opened.rows,
    }


def _warnings(plan: ScanPlan) -> list[dict[str, Any]]:
    """Warnings of each kind: how many, and the first of them."""
    counts = Counter(warning.kind for warning in plan.warnings)
    return [
        {
            "kind": kind,
            "count": count,
            "messages": [w.message for w in plan.warnings if w.kind == kind][:_WARNINGS_SHOWN],
        }
        for kind, count in counts.items()
    ]

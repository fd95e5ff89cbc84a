"""Plan, prune and rewrite Iceberg tables that have changed their mind about partitioning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from floeplan import prune
    from floeplan.catalog import load_table
    from floeplan.errors import FloeplanError
    from floeplan.predicate.compile import CompileResult, compile_predicate
    from floeplan.scan.model import FileScan
    from floeplan.scan.options import ScanOptions
    from floeplan.scan.plan import plan_scan
    from floeplan.scan.scan_plan import ScanPlan
    from floeplan.scan.summary import ScanPlanSummary

__all__ = [
    "CompileResult",
    "FileScan",
    "FloeplanError",
    "ScanOptions",
    "ScanPlan",
    "ScanPlanSummary",
    "compile_predicate",
    "load_table",
    "plan_scan",
    "prune",
]

_HOMES = {
    "CompileResult": "floeplan.predicate.compile",
    "FileScan": "floeplan.scan.model",
    "FloeplanError": "floeplan.errors",
    "ScanOptions": "floeplan.scan.options",
    "ScanPlan": "floeplan.scan.scan_plan",
    "ScanPlanSummary": "floeplan.scan.summary",
    "compile_predicate": "floeplan.predicate.compile",
    "load_table": "floeplan.catalog",
    "plan_scan": "floeplan.scan.plan",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `import floeplan` stays cheap."""
    if name == "prune":
        return import_module("floeplan.prune")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'floeplan' has no attribute {name!r}")

"""Plan, prune and rewrite Iceberg tables that have changed their mind about partitioning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from floeplan import prune
    from floeplan.catalog import load_table
    from floeplan.dml.append import append
    from floeplan.dml.changing import delete, update
    from floeplan.dml.merge import merge
    from floeplan.dml.overwrite import overwrite
    from floeplan.dml.result import DmlResult
    from floeplan.errors import FloeplanError
    from floeplan.maintain.doctor import doctor
    from floeplan.maintain.expire import expire_snapshots
    from floeplan.maintain.inspect import inspect_table
    from floeplan.maintain.orphans import remove_orphans
    from floeplan.maintain.rewrite_manifests import rewrite_manifests
    from floeplan.predicate.compile import CompileResult, compile_predicate
    from floeplan.rewrite.execute import rewrite_data_files
    from floeplan.rewrite.filter import FilterStats
    from floeplan.rewrite.options import RewriteOptions
    from floeplan.rewrite.plan import RewriteDataFilesPlan, RewriteDataFilesPlanningResult
    from floeplan.rewrite.planner import RewriteDataFilesPlanner
    from floeplan.rewrite.result import RewriteResult
    from floeplan.rewrite.spec_upgrade import SpecUpgradeResult, UpgradeOptions, upgrade_spec
    from floeplan.scan.model import FileScan
    from floeplan.scan.options import ScanOptions
    from floeplan.scan.plan import plan_scan
    from floeplan.scan.scan_plan import ScanPlan
    from floeplan.scan.summary import ScanPlanSummary
    from floeplan.spark.datasource import register
    from floeplan.spark.incremental import incremental
    from floeplan.spark.metadata_tables import metadata_table
    from floeplan.spark.reader import ReadOptions, ReadPlan, plan_read, read
    from floeplan.spark.shipping import ship
    from floeplan.sql_text.run import sql
    from floeplan.transaction.evolve_spec import EvolveResult

__all__ = [
    "CompileResult",
    "DmlResult",
    "EvolveResult",
    "FileScan",
    "FilterStats",
    "FloeplanError",
    "ReadOptions",
    "ReadPlan",
    "RewriteDataFilesPlan",
    "RewriteDataFilesPlanner",
    "RewriteDataFilesPlanningResult",
    "RewriteOptions",
    "RewriteResult",
    "ScanOptions",
    "ScanPlan",
    "ScanPlanSummary",
    "SpecUpgradeResult",
    "UpgradeOptions",
    "append",
    "compile_predicate",
    "delete",
    "doctor",
    "expire_snapshots",
    "incremental",
    "inspect_table",
    "load_table",
    "merge",
    "metadata_table",
    "overwrite",
    "plan_read",
    "plan_scan",
    "prune",
    "read",
    "register",
    "remove_orphans",
    "rewrite_data_files",
    "rewrite_manifests",
    "ship",
    "sql",
    "update",
    "upgrade_spec",
]

_HOMES = {
    "CompileResult": "floeplan.predicate.compile",
    "DmlResult": "floeplan.dml.result",
    "EvolveResult": "floeplan.transaction.evolve_spec",
    "FileScan": "floeplan.scan.model",
    "FilterStats": "floeplan.rewrite.filter",
    "FloeplanError": "floeplan.errors",
    "ReadOptions": "floeplan.spark.reader",
    "ReadPlan": "floeplan.spark.reader",
    "RewriteDataFilesPlan": "floeplan.rewrite.plan",
    "RewriteDataFilesPlanner": "floeplan.rewrite.planner",
    "RewriteDataFilesPlanningResult": "floeplan.rewrite.plan",
    "RewriteOptions": "floeplan.rewrite.options",
    "RewriteResult": "floeplan.rewrite.result",
    "ScanOptions": "floeplan.scan.options",
    "ScanPlan": "floeplan.scan.scan_plan",
    "ScanPlanSummary": "floeplan.scan.summary",
    "SpecUpgradeResult": "floeplan.rewrite.spec_upgrade",
    "UpgradeOptions": "floeplan.rewrite.spec_upgrade",
    "append": "floeplan.dml.append",
    "compile_predicate": "floeplan.predicate.compile",
    "delete": "floeplan.dml.changing",
    "doctor": "floeplan.maintain.doctor",
    "expire_snapshots": "floeplan.maintain.expire",
    "incremental": "floeplan.spark.incremental",
    "inspect_table": "floeplan.maintain.inspect",
    "load_table": "floeplan.catalog",
    "merge": "floeplan.dml.merge",
    "metadata_table": "floeplan.spark.metadata_tables",
    "overwrite": "floeplan.dml.overwrite",
    "plan_read": "floeplan.spark.reader",
    "plan_scan": "floeplan.scan.plan",
    "read": "floeplan.spark.reader",
    "register": "floeplan.spark.datasource",
    "remove_orphans": "floeplan.maintain.orphans",
    "rewrite_data_files": "floeplan.rewrite.execute",
    "rewrite_manifests": "floeplan.maintain.rewrite_manifests",
    "ship": "floeplan.spark.shipping",
    "sql": "floeplan.sql_text.run",
    "update": "floeplan.dml.changing",
    "upgrade_spec": "floeplan.rewrite.spec_upgrade",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `import floeplan` stays cheap."""
    if name == "prune":
        return import_module("floeplan.prune")
    if name in _HOMES:
        return _imported(name)
    raise AttributeError(f"module 'floeplan' has no attribute {name!r}")


def _imported(name: str) -> object:
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        from floeplan.errors import UnsupportedError

        raise UnsupportedError(f"fp.{name} needs Spark; install floeplan[spark]", context={"name": name}) from error

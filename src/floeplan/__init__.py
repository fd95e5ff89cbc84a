"""Plan, prune, change and rewrite Apache Iceberg tables whose partition spec has evolved."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from floeplan import prune
    from floeplan.audit.advisor import AdviseOptions, advise
    from floeplan.catalog import load_table
    from floeplan.datasource.source import register
    from floeplan.dml.append import append
    from floeplan.dml.cherry_pick import CherryPickResult, cherry_pick
    from floeplan.dml.commit import DmlResult
    from floeplan.dml.delete_update import delete, update
    from floeplan.dml.merge.builder import merge
    from floeplan.dml.overwrite import overwrite
    from floeplan.errors import FloeplanError
    from floeplan.fleet.report import MaintainResult
    from floeplan.fleet.run import MaintainOptions, maintain
    from floeplan.maintenance.doctor import doctor
    from floeplan.maintenance.expire import expire_snapshots
    from floeplan.maintenance.inspect import inspect_table
    from floeplan.maintenance.orphans import remove_orphans
    from floeplan.maintenance.rewrite_deletes import RewriteDeletesResult, rewrite_position_delete_files
    from floeplan.maintenance.rewrite_manifests import rewrite_manifests
    from floeplan.predicate.compile import CompileResult, compile_predicate
    from floeplan.rewrite.execute import rewrite_data_files
    from floeplan.rewrite.plan.filter import FilterStats
    from floeplan.rewrite.plan.model import RewriteDataFilesPlan, RewriteDataFilesPlanningResult, RewriteResult
    from floeplan.rewrite.plan.options import RewriteOptions
    from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
    from floeplan.rewrite.spec_upgrade.upgrade import SpecUpgradeResult, UpgradeOptions, upgrade_spec
    from floeplan.scan.model import FileScan, ScanOptions
    from floeplan.scan.plan import ScanPlan, plan_scan
    from floeplan.scan.planned_scan import ScanPlanSummary
    from floeplan.scan.why import Why, why
    from floeplan.spark.incremental import incremental
    from floeplan.spark.metadata_tables import metadata_table
    from floeplan.spark.read.reader import ReadOptions, ReadPlan, plan_read, read
    from floeplan.sql_text.attach import attach
    from floeplan.sql_text.create import create_table
    from floeplan.sql_text.run import sql
    from floeplan.tasks.shipping import ship
    from floeplan.transaction.evolve_spec import EvolveResult
    from floeplan.transaction.upgrade_format import FormatUpgradeResult, upgrade_format

__all__ = [
    "AdviseOptions",
    "CherryPickResult",
    "CompileResult",
    "DmlResult",
    "EvolveResult",
    "FileScan",
    "FilterStats",
    "FloeplanError",
    "FormatUpgradeResult",
    "MaintainOptions",
    "MaintainResult",
    "ReadOptions",
    "ReadPlan",
    "RewriteDataFilesPlan",
    "RewriteDataFilesPlanner",
    "RewriteDataFilesPlanningResult",
    "RewriteDeletesResult",
    "RewriteOptions",
    "RewriteResult",
    "ScanOptions",
    "ScanPlan",
    "ScanPlanSummary",
    "SpecUpgradeResult",
    "UpgradeOptions",
    "Why",
    "advise",
    "append",
    "attach",
    "cherry_pick",
    "compile_predicate",
    "create_table",
    "delete",
    "doctor",
    "expire_snapshots",
    "incremental",
    "inspect_table",
    "load_table",
    "maintain",
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
    "rewrite_position_delete_files",
    "ship",
    "sql",
    "update",
    "upgrade_format",
    "upgrade_spec",
    "why",
]

_HOMES = {
    "AdviseOptions": "floeplan.audit.advisor",
    "CherryPickResult": "floeplan.dml.cherry_pick",
    "CompileResult": "floeplan.predicate.compile",
    "DmlResult": "floeplan.dml.commit",
    "EvolveResult": "floeplan.transaction.evolve_spec",
    "FileScan": "floeplan.scan.model",
    "FilterStats": "floeplan.rewrite.plan.filter",
    "FloeplanError": "floeplan.errors",
    "FormatUpgradeResult": "floeplan.transaction.upgrade_format",
    "MaintainOptions": "floeplan.fleet.run",
    "MaintainResult": "floeplan.fleet.report",
    "ReadOptions": "floeplan.spark.read.reader",
    "ReadPlan": "floeplan.spark.read.reader",
    "RewriteDataFilesPlan": "floeplan.rewrite.plan.model",
    "RewriteDataFilesPlanner": "floeplan.rewrite.plan.planner",
    "RewriteDataFilesPlanningResult": "floeplan.rewrite.plan.model",
    "RewriteDeletesResult": "floeplan.maintenance.rewrite_deletes",
    "RewriteOptions": "floeplan.rewrite.plan.options",
    "RewriteResult": "floeplan.rewrite.plan.model",
    "ScanOptions": "floeplan.scan.model",
    "ScanPlan": "floeplan.scan.plan",
    "ScanPlanSummary": "floeplan.scan.planned_scan",
    "SpecUpgradeResult": "floeplan.rewrite.spec_upgrade.upgrade",
    "UpgradeOptions": "floeplan.rewrite.spec_upgrade.upgrade",
    "Why": "floeplan.scan.why",
    "advise": "floeplan.audit.advisor",
    "append": "floeplan.dml.append",
    "attach": "floeplan.sql_text.attach",
    "cherry_pick": "floeplan.dml.cherry_pick",
    "compile_predicate": "floeplan.predicate.compile",
    "create_table": "floeplan.sql_text.create",
    "delete": "floeplan.dml.delete_update",
    "doctor": "floeplan.maintenance.doctor",
    "expire_snapshots": "floeplan.maintenance.expire",
    "incremental": "floeplan.spark.incremental",
    "inspect_table": "floeplan.maintenance.inspect",
    "load_table": "floeplan.catalog",
    "maintain": "floeplan.fleet.run",
    "merge": "floeplan.dml.merge.builder",
    "metadata_table": "floeplan.spark.metadata_tables",
    "overwrite": "floeplan.dml.overwrite",
    "plan_read": "floeplan.spark.read.reader",
    "plan_scan": "floeplan.scan.plan",
    "read": "floeplan.spark.read.reader",
    "register": "floeplan.datasource.source",
    "remove_orphans": "floeplan.maintenance.orphans",
    "rewrite_data_files": "floeplan.rewrite.execute",
    "rewrite_manifests": "floeplan.maintenance.rewrite_manifests",
    "rewrite_position_delete_files": "floeplan.maintenance.rewrite_deletes",
    "ship": "floeplan.tasks.shipping",
    "sql": "floeplan.sql_text.run",
    "update": "floeplan.dml.delete_update",
    "upgrade_format": "floeplan.transaction.upgrade_format",
    "upgrade_spec": "floeplan.rewrite.spec_upgrade.upgrade",
    "why": "floeplan.scan.why",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `import floeplan` stays fast."""
    if name == "prune":
        return import_module("floeplan.prune")
    if name not in _HOMES:
        raise AttributeError(f"module 'floeplan' has no attribute {name!r}")
    collects, new = gc.isenabled(), _HOMES[name] not in sys.modules
    gc.disable()  # modules are never garbage; collecting among them takes a tenth of the import
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        from floeplan.errors import UnsupportedError

        raise UnsupportedError(f"fp.{name} needs Spark; install floeplan[spark]", context={"name": name}) from error
    finally:
        if collects:
            if new and not gc.get_freeze_count():
                gc.freeze()  # with unfreeze: what was imported is old now, so that the next collection skips it
                gc.unfreeze()
            gc.enable()


def __dir__() -> list[str]:
    """The public names, including those not imported yet."""
    return sorted({*globals(), *__all__})

"""Upgrading a whole archive to its newest spec by metadata alone.

A third of the files of the evolved archive is partitioned by region, a third by day and bucket, and a third by month,
which is the newest spec. There is no peer, because other tools rewrite the data. Bar: 100,000 files in 10 s of CPU.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from floeplan.maintenance.rewrite_manifests import rewrite_manifests
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions, upgrade_spec
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from tests.support.tables.archive import write_evolved_archive

MANIFESTS = {"small": 150, "default": 1_508, "large": 6_000}
ENTRIES = 100
SECONDS_PER_100_000 = 10.0
QUESTION = "ts >= TIMESTAMP '2022-03-04 00:00:00' AND ts < TIMESTAMP '2022-03-05 00:00:00'"


def run(size: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        metadata = write_evolved_archive(Path(folder) / "events", MANIFESTS[size], ENTRIES)
        catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder)
        catalog.create_namespace("db")
        catalog.register_table("db.events", str(metadata))
        return [*_upgrade(catalog), *_cluster(catalog)]


def _upgrade(catalog: SqlCatalog) -> list[dict[str, Any]]:
    before = _kept(catalog)
    options = UpgradeOptions(allow_coarser=True, metadata_only=True)
    planned, cpu = _timed(lambda: upgrade_spec(catalog.load_table("db.events"), options=_dry(options)))
    moved, seconds = _timed(lambda: upgrade_spec(catalog.load_table("db.events"), options=options))
    assert planned.files_by_metadata == moved.files_by_metadata, "the plan was not executed"
    bar = SECONDS_PER_100_000 * moved.files_by_metadata / 100_000
    case = f"{moved.files_by_metadata:,} of {moved.files_total:,} files moved"
    return [
        _row(case, "CPU s", seconds, f"ours ≤ {bar:.1f} {'met' if seconds <= bar else 'MISSED'}"),
        _row("the same, only planned", "CPU s", cpu, None),
        _row("the same", "peak MB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, None),
        _row("manifests kept by one day, before", "manifests", float(before), None),
        _row("manifests kept by one day, after", "manifests", float(_kept(catalog)), None),
    ]


def _cluster(catalog: SqlCatalog) -> list[dict[str, Any]]:
    result, seconds = _timed(lambda: rewrite_manifests(catalog.load_table("db.events")))
    case = f"manifests clustered, {result.manifests_before:,} to {result.manifests_after:,}"
    kept = float(_kept(catalog))
    return [_row(case, "CPU s", seconds, None), _row("manifests kept by one day, clustered", "manifests", kept, None)]


def _dry(options: UpgradeOptions) -> UpgradeOptions:
    return UpgradeOptions(allow_coarser=options.allow_coarser, metadata_only=True, dry_run=True)


def _kept(catalog: SqlCatalog) -> int:
    plan = plan_scan(
        catalog.load_table("db.events"), QUESTION, options=ScanOptions(report=False, cache=False, footers=False)
    )
    return plan.summary.manifests_kept


def _timed(do: Any) -> tuple[Any, float]:
    started = time.process_time()
    return do(), time.process_time() - started


def _row(case: str, metric: str, ours: float, bar: str | None) -> dict[str, Any]:
    return {"suite": "upgrade", "case": case, "metric": metric, "ours": ours, "peer": None, "ratio": None, "bar": bar}

"""Looking at one table: what it is made of, what is wrong with it, and the work that its planners find.

Rule: only metadata is read. Fail-safe: a table that cannot be loaded or planned is a report with an error, and does not
stop the others.
"""

from __future__ import annotations

from datetime import timedelta

import numpy as np
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from floeplan.catalog import load_table
from floeplan.errors import FloeplanError
from floeplan.fleet.lease import foreign_maintenance
from floeplan.fleet.planners import delete_options, predict, refused_columns, waits
from floeplan.fleet.policy import Policy
from floeplan.fleet.records import History
from floeplan.fleet.report import Facts, Status, TableReport, WorkReport
from floeplan.fleet.work import COMPACT, KINDS, STAGE, Context, Work
from floeplan.maintenance.doctor import doctor
from floeplan.metadata.manifests.entries import EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.rewrite.plan.candidates import FileSizes
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.snapshot.reader import SnapshotReader
from floeplan.text import parse_count, reason

GROWTH = timedelta(days=7)


def facts_of(table: Table, now_s: float) -> Facts:
    """What a table is made of."""
    metadata = table.metadata
    if metadata.current_snapshot_id is None:
        return Facts(specs=0, snapshots=len(metadata.snapshots))
    head = SnapshotReader.of_branch(table, "main")
    entries = head.entries(head.manifest_rows(DATA), EntryColumns(frozenset(), partition=False))
    sizes = entries.ints("file_size_in_bytes")
    deletes = head.manifest_rows(DELETES)
    counts = (head.manifests.added_files[deletes], head.manifests.existing_files[deletes])
    smallest = FileSizes.of(RewriteOptions(), metadata.properties).smallest
    return Facts(
        files=len(entries),
        bytes=int(sizes.sum()),
        small_files=int(np.count_nonzero(sizes < smallest)),
        delete_files=sum(int(np.maximum(count, 0).sum()) for count in counts),
        specs=len(np.unique(entries.spec_id)),
        snapshots=len(metadata.snapshots),
        growth=_growth(metadata, now_s),
    )


def _growth(metadata: TableMetadata, now_s: float) -> int | None:
    """By how many bytes the table grew, from the totals in the summaries of its snapshots."""
    totals = [
        (snapshot.timestamp_ms / 1000, total)
        for snapshot in metadata.snapshots
        if snapshot.summary is not None
        and (total := parse_count(snapshot.summary.additional_properties.get("total-files-size"))) is not None
    ]
    if not totals:
        return None
    before = [total for at, total in totals if at <= now_s - GROWTH.total_seconds()]
    is_new = totals[0][0] > now_s - GROWTH.total_seconds() and metadata.snapshots[0].parent_snapshot_id is None
    start = before[-1] if before else 0 if is_new else totals[0][1]
    return totals[-1][1] - start


def look_at(
    name: str,
    catalog: Catalog,
    policy: Policy,
    history: History,
    *,
    reports: str,
    now_s: float,
    orphans_due: bool = True,
) -> TableReport:
    """What a table is made of, its findings, and its work in its order."""
    settings, rules = policy.settings(name)
    try:
        table = load_table(name, catalog)
        facts = facts_of(table, now_s)
        thresholds = delete_options(settings)
        is_empty = table.metadata.current_snapshot_id is None
        findings = () if is_empty else doctor(table, sample=0, rewrite=thresholds).findings
        work, waiting = list[WorkReport](), tuple[str, ...]()
        if settings.maintain:
            context = Context(
                table,
                name,
                settings,
                catalog.name,
                reports,
                now_s,
                orphans_due=orphans_due,
                continued=name in history.partial,
            )
            found = (predict(context, kind, findings) for kind in KINDS)
            work = [WorkReport(one, history.factor(name, one.kind)) for one in found if one is not None]
            if (problem := refused_columns(context)) is not None:
                work.append(_failed_compaction(name, policy, problem))
            waiting = waits(context)
    except FloeplanError as error:
        return TableReport(name, settings=settings, rules=rules, error=error.message)
    except Exception as error:
        return TableReport(name, settings=settings, rules=rules, error=reason(error))
    return TableReport(
        name,
        findings,
        facts,
        tuple(sorted(work, key=lambda one: (STAGE[one.work.kind], -one.score))),
        settings,
        rules,
        foreign_maintenance(table.metadata, now_s, settings.yield_for),
        waiting,
    )


def _failed_compaction(name: str, policy: Policy, problem: str) -> WorkReport:
    """A compaction that cannot start: a mistake in the policy must not turn it off unnoticed."""
    why = f"{policy.place(policy.line(name, 'cluster'))}cluster: {problem}; {name} is not compacted"
    work = Work(COMPACT, "order rows by the columns of the policy", 0)
    return WorkReport(work, status=Status.FAILED, why=why)

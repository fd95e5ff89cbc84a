"""The planners of each kind of work, and their execution: both in the same unit.

==================  =================================================  ==============================================
kind                predicted by                                       gain
==================  =================================================  ==============================================
repair              ``doctor``                                         files whose rows are wrong
upgrade-spec        a dry run of ``upgrade_spec``                      manifests of old specs
compact             ``RewriteDataFilesPlanner``                        files and delete files fewer, as often as read
cluster             ``advise``                                         what the logged queries no longer read
rewrite-manifests   a dry run of ``rewrite_manifests``                 manifests that planning no longer opens
expire              a dry run of ``expire_snapshots``                  bytes of storage
remove-orphans      a dry run of ``remove_orphans``                    bytes of storage
==================  =================================================  ==============================================

Fail-safe: where a planner refuses the table there is no work of its kind; what makes it refuse is a finding. Columns
of the policy that the table does not have are failed work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from floeplan.audit.advisor import AdviseOptions, advise, apply_candidate, read_cost
from floeplan.audit.candidates import SPEC
from floeplan.errors import BadInputError, FloeplanError
from floeplan.fleet.policy import ADVISE, METADATA, OFF, TABLE, Settings
from floeplan.fleet.work import (
    CLUSTER,
    COMPACT,
    EXPIRE,
    MANIFESTS,
    ORPHANS,
    REPAIR_KIND,
    UPGRADE,
    Context,
    Numbers,
    Work,
)
from floeplan.maintenance.doctor import REPAIR, Finding, doctor
from floeplan.maintenance.expire import expire_snapshots, snapshots_to_expire
from floeplan.maintenance.orphans import remove_orphans
from floeplan.maintenance.rewrite_manifests import RewriteManifestsResult, rewrite_manifests
from floeplan.metadata.manifests.entries import EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.stats import to_mask
from floeplan.rewrite.execute import run_rewrite
from floeplan.rewrite.plan.candidates import Reason, label, specs_by_time
from floeplan.rewrite.plan.model import RewriteDataFilesPlan
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions, upgrade_spec
from floeplan.rewrite.strategies.registry import find_strategy
from floeplan.snapshot.effects import Predicate
from floeplan.snapshot.passes import evaluate_entries
from floeplan.snapshot.reader import SnapshotReader
from floeplan.text import counted, human_bytes, parse_count
from floeplan.times import age_text
from floeplan.transaction.equality_writers import refuse_live_writers, warn_of_equality_writers

_EXPIRE_PROPERTIES = "history.expire."
_DELETE_REASONS = {label(Reason.DELETES), label(Reason.DELETE_RATIO)}


def predict(context: Context, kind: str, findings: tuple[Finding, ...] = ()) -> Work | None:
    """What the planner of a kind would do; ``None`` if nothing, or if it refuses the table."""
    if context.table.metadata.current_snapshot_id is None:
        return None
    try:
        if kind == REPAIR_KIND:
            return _predict_repair(context, findings)
        return _PREDICTIONS[kind](context)
    except FloeplanError:
        return None


def execute(context: Context, work: Work) -> tuple[dict[str, int], str]:
    """Do the work; returns what it achieved, in the terms of the prediction, and what failed in part."""
    return _EXECUTIONS[work.kind](context, work)


# --- repair


def repairable(findings: tuple[Finding, ...]) -> list[Finding]:
    """Findings that ``doctor --repair`` fixes."""
    command = REPAIR.split("{}")[1]
    return [one for one in findings if one.fix is not None and one.fix.endswith(command)]


def _predict_repair(context: Context, findings: tuple[Finding, ...]) -> Work | None:
    found = repairable(findings or doctor(context.table, sample=0).findings)
    if not context.settings.repair or not found:
        return None
    files = sum(one.files for one in found)
    kinds = ", ".join(dict.fromkeys(one.kind for one in found))
    return Work(REPAIR_KIND, f"{counted(files, 'file')}: {kinds}", files * context.open_cost, 0, files)


def _repair(context: Context, work: Work) -> tuple[dict[str, int], str]:
    result = doctor(context.table, repair=True, sample=0, commit=context.commit)
    left = sum(one.files for one in repairable(result.findings))
    done = max(0, work.files - left)
    why = f"{counted(left, 'file')} could not be repaired" if left else ""
    return {"gain": done * context.open_cost, "bytes": 0, "files": done}, why


# --- upgrade-spec


def _upgrade_options(context: Context, *, dry_run: bool) -> UpgradeOptions:
    return UpgradeOptions(dry_run=dry_run, metadata_only=context.settings.upgrade_specs == METADATA)


def _predict_upgrade(context: Context) -> Work | None:
    metadata = context.table.metadata
    head = SnapshotReader.of_branch(context.table, "main")
    old = head.manifests.spec_id != metadata.default_spec_id
    if context.settings.upgrade_specs == OFF or not old.any():
        return None
    found = upgrade_spec(context.table, options=_upgrade_options(context, dry_run=True))
    files = found.files_by_metadata + found.files_by_rewrite
    if not files:
        return None
    refuse_live_writers(
        warn_of_equality_writers(head, np.unique(head.manifests.spec_id).tolist(), found.target_spec_id)
    )
    share = found.files_by_rewrite / max(1, found.files_total)
    parts = [f"move {counted(found.files_by_metadata, 'file')} by metadata"] if found.files_by_metadata else []
    parts += [f"rewrite {counted(found.files_by_rewrite, 'file')}"] if found.files_by_rewrite else []
    size = int(share * _total(context.table, "total-files-size"))
    gain = context.open_cost * int(np.count_nonzero(old))
    return Work(UPGRADE, f"{' and '.join(parts)} to spec {found.target_spec_id}", gain, size, files)


def _upgrade(context: Context, work: Work) -> tuple[dict[str, int], str]:
    done = upgrade_spec(
        context.table, options=_upgrade_options(context, dry_run=False), spark=context.spark, commit=context.commit
    )
    files = done.files_by_metadata + done.files_by_rewrite
    gain = int(work.gain * files / max(1, work.files))
    return {"gain": gain, "bytes": work.bytes if done.files_by_rewrite else 0, "files": files}, ""


# --- compact


def compact_options(context: Context) -> RewriteOptions:
    """The options of a compaction."""
    settings = context.settings
    by = settings.cluster if isinstance(settings.cluster, tuple) else ()
    return replace(
        delete_options(settings),
        strategy=settings.cluster_strategy if by else "binpack",
        by=by,
        target_file_size_bytes=settings.target_file_size,
        min_input_files=settings.min_input_files,
        min_partition_age_seconds=int(settings.partition_age.total_seconds()),
        max_files_to_rewrite=context.max_files,
        partial_progress_enabled=True,  # what is done when the run is stopped stays done
    )


def delete_options(settings: Settings) -> RewriteOptions:
    """The thresholds of deletes of a compaction, by which ``doctor`` finds the same files."""
    options, threshold = RewriteOptions(delete_ratio_threshold=settings.delete_ratio), settings.delete_file_threshold
    return options if threshold is None else replace(options, delete_file_threshold=threshold)


def refused_columns(context: Context) -> str | None:
    """Why a compaction cannot order the rows of the table by the columns of its policy."""
    settings = context.settings
    if not settings.compact or not isinstance(settings.cluster, tuple):
        return None
    try:
        find_strategy(settings.cluster_strategy).sort_order(settings.cluster, context.table)
    except BadInputError as error:
        return error.message
    return None


def _predict_compact(context: Context) -> Work | None:
    if not context.settings.compact:
        return None
    plan = RewriteDataFilesPlanner(context.table, compact_options(context), cache=False).plan()
    files = sum(len(group.rows) for group in plan.groups)
    outputs = sum(group.expected_outputs for group in plan.groups)
    deletes = sum(group.delete_files for group in plan.groups)
    # Files that are split do not count against those that are merged.
    split = sum(max(0, group.expected_outputs - len(group.rows) - group.delete_files) for group in plan.groups)
    fewer = files - outputs + deletes + split
    # The thresholds of deletes are reasons of their own, however few files there are.
    deleted = any(_DELETE_REASONS & group.reasons.keys() for group in plan.groups)
    enough = deleted or files + deletes >= context.settings.compact_min_files
    if not files or fewer <= 0 or not (enough or context.continued or context.max_files is not None):
        return None
    size = sum(group.bytes for group in plan.groups)
    reads = max(1, round(_reads(context, plan)))
    reason = f"{counted(files, 'file')} ({human_bytes(size)}) into {outputs:,}"
    reason += f", {counted(deletes, 'delete file')} applied" if deletes else ""
    numbers = {"files_after": outputs, "delete_files": deletes, "files_split": split, "reads": reads}
    return Work(COMPACT, reason, context.open_cost * fewer * reads, size, files, numbers)


def waits(context: Context) -> tuple[str, ...]:
    """Why work of this table waits: its windows, partitions still being written, missing reports, its own settings."""
    found = list[str]()
    settings, age = context.settings, context.settings.partition_age
    if not settings.in_window(datetime.fromtimestamp(context.now_s, UTC)):
        found.append(outside_windows(settings))
    if settings.cluster == ADVISE and not context.workload().predicates:
        found.append("cluster needs scan reports of the table (advise)")
    if isinstance(settings.cluster, tuple) and not settings.compact:
        found.append("cluster orders rows when files are compacted, and compact is false")
    with suppress(FloeplanError):
        held = _held_back(context)
        if held > 0:
            where = f"partitions by time to which files were added within {age_text(age)}"
            found.append(f"compact leaves {counted(held, 'file')} in {where} (partition-age)")
    return tuple(found)


def _held_back(context: Context) -> int:
    """The files that a compaction would rewrite if their partitions were complete."""
    options = replace(compact_options(context), max_files_to_rewrite=None)
    since_ms = (context.now_s - options.min_partition_age_seconds) * 1000
    # Planning again is worth it only for tables that have partitions by time and were written recently.
    metadata = context.table.metadata
    recent = any(snapshot.timestamp_ms > since_ms for snapshot in metadata.snapshots)
    if not (context.settings.compact and recent and specs_by_time(metadata, UnionPartitionType.of_table(metadata))):
        return 0
    now, later = (
        sum(len(group.rows) for group in RewriteDataFilesPlanner(context.table, one, cache=False).plan().groups)
        for one in (options, replace(options, min_partition_age_seconds=0))
    )
    return later - now


def outside_windows(settings: Settings) -> str:
    """That work may not run now."""
    return f"outside its windows ({', '.join(window.text for window in settings.windows)})"


def _reads(context: Context, plan: RewriteDataFilesPlan) -> float:
    """How often the logged runs open a file of the plan, on average; 1 without logged runs."""
    workload = context.workload()
    rows = np.concatenate([group.rows for group in plan.groups])
    if not workload.predicates:
        return 1.0
    columns = frozenset(column.field_id for column in workload.columns())
    head = SnapshotReader.of_branch(context.table, "main")
    entries = head.entries(head.manifest_rows(DATA), EntryColumns(frozenset(), stats=columns))
    chosen = to_mask(pc.is_in(entries.path, value_set=plan.files.entries.path.take(pa.array(rows))))
    opened = np.zeros(len(entries), dtype=np.int64)
    for expr, runs in workload.predicates:
        opened += runs * evaluate_entries(Predicate(expr, predicate_columns(expr), head.union), entries).tri.keep
    return float(opened[chosen].mean()) if chosen.any() else 1.0


def _compact(context: Context, work: Work) -> tuple[dict[str, int], str]:
    done = run_rewrite(context.table, compact_options(context), spark=context.spark, commit=context.commit)
    reads, split = (work.numbers or {}).get("reads", 1), (work.numbers or {}).get("files_split", 0)
    fewer = done.files_rewritten - done.files_added + done.delete_files_removed + split
    achieved = {
        "gain": context.open_cost * fewer * reads,
        "bytes": done.bytes_rewritten,
        "files": done.files_rewritten,
        "files_after": done.files_added,
        "delete_files": done.delete_files_removed,
        "files_split": split,
        "reads": reads,
    }
    failed = done.failures[0].error.message if done.failures else ""
    return achieved, f"{counted(done.groups_failed, 'group')} failed: {failed}" if failed else ""


# --- cluster


def _predict_cluster(context: Context) -> Work | None:
    if context.settings.cluster != ADVISE:
        return None
    with suppress(BadInputError):  # without reports there is no advice
        options = AdviseOptions(most=1)
        found = advise(context.table, context.reports, options, catalog=context.catalog).candidates
        # Another spec changes what writers do, so it stays a recommendation.
        if found and found[0].kind != SPEC:
            best = found[0]
            reason = f"{best.kind} {', '.join(best.columns)}".strip()
            files = best.files_total[0]
            return Work(CLUSTER, f"{reason}: {best.basis}", best.gain, best.bytes_rewritten, files, None, best)
    return None


def _cluster(context: Context, work: Work) -> tuple[dict[str, int], str]:
    assert work.candidate is not None, "predicted with its candidate"
    before = read_cost(context.table, context.reports, catalog=context.catalog)
    apply_candidate(context.table, work.candidate, context.spark)
    after = read_cost(context.table.refresh(), context.reports, catalog=context.catalog)
    return {"gain": before - after, "bytes": work.bytes, "files": work.files}, ""


# --- rewrite-manifests


def _predict_manifests(context: Context) -> Work | None:
    if not context.settings.rewrite_manifests or _total(context.table, "total-data-files", 2) < 2:
        return None
    found = rewrite_manifests(context.table, dry_run=True)
    gain = _manifests_gain(context, found)
    if gain < context.open_cost:  # less than one manifest for every logged run
        return None
    reason = f"{counted(found.manifests_before, 'manifest')} into {found.manifests_after:,}; {found.gain}"
    return Work(MANIFESTS, reason, gain, 0, 0, _manifest_numbers(found))


def _manifests_gain(context: Context, found: RewriteManifestsResult) -> int:
    runs = max(1, context.workload().runs) if found.specs else 1
    opened = sum(one.opened_before - one.opened_after for one in found.specs)
    return int(context.open_cost * runs * opened)


def _manifest_numbers(found: RewriteManifestsResult) -> Numbers:
    return {"manifests": found.manifests_before, "manifests_after": found.manifests_after}


def _rewrite_manifests(context: Context, _: Work) -> tuple[dict[str, int], str]:
    done = rewrite_manifests(context.table, commit=context.commit)
    return {"gain": _manifests_gain(context, done), "bytes": 0, "files": 0, **_manifest_numbers(done)}, ""


# --- expire and remove-orphans


def _older_than_ms(context: Context) -> int | None:
    age = context.settings.expire_older_than
    return None if age is None else int((context.now_s - age.total_seconds()) * 1000)


def _predict_expire(context: Context) -> Work | None:
    settings, properties = context.settings, context.table.metadata.properties
    configured = settings.expire == TABLE and any(name.startswith(_EXPIRE_PROPERTIES) for name in properties)
    if settings.expire == OFF or (settings.expire == TABLE and not configured):
        return None
    older_than_ms, retain_last = _older_than_ms(context), settings.retain_last
    if not snapshots_to_expire(context.table, older_than_ms=older_than_ms, retain_last=retain_last):
        return None
    found = expire_snapshots(context.table, older_than_ms=older_than_ms, retain_last=retain_last, dry_run=True)
    reason = f"{counted(len(found.expired), 'snapshot')}, {counted(len(found.removed), 'file')}"
    gain = _storage(context.table, found.data_files, len(found.removed) - found.data_files)
    return Work(EXPIRE, reason, gain, 0, 0, {"snapshots": len(found.expired), "removed": len(found.removed)})


def _expire(context: Context, _: Work) -> tuple[dict[str, int], str]:
    done = expire_snapshots(
        context.table,
        older_than_ms=_older_than_ms(context),
        retain_last=context.settings.retain_last,
        dry_run=False,
        commit=context.commit,
    )
    gain = _storage(context.table, done.data_files, len(done.removed) - done.data_files)
    numbers = {"snapshots": len(done.expired), "removed": len(done.removed)}
    return {"gain": gain, "bytes": 0, "files": 0, **numbers}, ""


def _storage(table: Table, data_files: int, metadata_files: int) -> int:
    """About how many bytes of storage some files are: data files of the table's average size, and small ones."""
    average = _total(table, "total-files-size") / max(1, _total(table, "total-data-files"))
    return int(data_files * average) + metadata_files * 8 * 1024


def _predict_orphans(context: Context) -> Work | None:
    if not context.settings.remove_orphans or not context.orphans_due:
        return None
    found = remove_orphans(context.table, older_than=context.settings.orphans_older_than, dry_run=True)
    if not found.orphans:
        return None
    reason = f"{counted(len(found.orphans), 'unreferenced file')} ({human_bytes(found.bytes)})"
    return Work(ORPHANS, reason, found.bytes, 0, 0, {"removed": len(found.orphans)})


def _remove_orphans(context: Context, _: Work) -> tuple[dict[str, int], str]:
    done = remove_orphans(context.table, older_than=context.settings.orphans_older_than, dry_run=False)
    left = len(done.orphans) - len(done.removed)
    gain = int(done.bytes * len(done.removed) / max(1, len(done.orphans)))
    why = f"{counted(left, 'file')} could not be removed" if left else ""
    return {"gain": gain, "bytes": 0, "files": 0, "removed": len(done.removed)}, why


def _total(table: Table, name: str, default: int = 0) -> int:
    """A total of the snapshot summary."""
    snapshot = table.current_snapshot()
    summary = None if snapshot is None else snapshot.summary
    found = None if summary is None else parse_count(summary.additional_properties.get(name))
    return default if found is None else found


_PREDICTIONS: Mapping[str, Callable[[Context], Work | None]] = {
    UPGRADE: _predict_upgrade,
    COMPACT: _predict_compact,
    CLUSTER: _predict_cluster,
    MANIFESTS: _predict_manifests,
    EXPIRE: _predict_expire,
    ORPHANS: _predict_orphans,
}
_EXECUTIONS: Mapping[str, Callable[[Context, Work], tuple[dict[str, int], str]]] = {
    REPAIR_KIND: _repair,
    UPGRADE: _upgrade,
    COMPACT: _compact,
    CLUSTER: _cluster,
    MANIFESTS: _rewrite_manifests,
    EXPIRE: _expire,
    ORPHANS: _remove_orphans,
}

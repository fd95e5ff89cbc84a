"""What the commands that ``doctor`` recommends would do, from their own planners.

Rule: a command is recommended only if its planner finds something to do on this snapshot, and with the numbers of that
plan. Fail-safe: where a planner refuses the table nothing is recommended; what makes it refuse is a finding of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from floeplan.errors import FloeplanError
from floeplan.maintenance.coarser_spec import FAR_BELOW
from floeplan.maintenance.expire import snapshots_to_expire
from floeplan.maintenance.rewrite_manifests import rewrite_manifests
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.rewrite.plan.candidates import Reason, label
from floeplan.rewrite.plan.model import RewriteDataFilesPlan
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.spec_upgrade.move import MoveStatus, plan_move
from floeplan.snapshot.reader import SnapshotReader
from floeplan.text import counted, human_bytes
from floeplan.transaction.equality_writers import refuse_live_writers, warn_of_equality_writers
from floeplan.write.target import MetricsModes

_PLAIN = RewriteOptions()
_DELETE_THRESHOLDS = ("delete_file_threshold", "delete_ratio_threshold")
_STAYS = (MoveStatus.MOVED, MoveStatus.IN_TARGET_SPEC, MoveStatus.COARSER_TARGET)


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a command would do about some files of one spec."""

    message: str
    spec_id: int | None
    files: int
    examples: tuple[str, ...] = ()


def plan_rewrite(table: Table, branch: str, options: RewriteOptions) -> RewriteDataFilesPlan | None:
    """The plan of ``rewrite``; ``None`` where it refuses the table."""
    try:
        return RewriteDataFilesPlanner(table, options, ref=branch, cache=False).plan()
    except FloeplanError:
        return None


def rewrite_command(table: str, options: RewriteOptions) -> str:
    """The rewrite with the thresholds of deletes that differ from the defaults."""
    given = ((name, getattr(options, name)) for name in _DELETE_THRESHOLDS)
    changed = (f" --option {name.replace('_', '-')}={value}" for name, value in given if value != getattr(_PLAIN, name))
    return f"floeplan rewrite {table}{''.join(changed)}"


def apply_deletes(plan: RewriteDataFilesPlan, shown: int) -> Iterator[Remedy]:
    """What ``rewrite`` would do with files by the thresholds of deletes.

    As in Iceberg, files to which many delete files apply are rewritten only where a threshold is set: a table with a
    stream of equality deletes would be rewritten all the time.
    """
    reasons = {label(Reason.DELETE_RATIO), label(Reason.DELETES)}
    groups = [group for group in plan.groups if reasons & group.reasons.keys()]
    if not groups:
        return
    decisions = plan.decisions["decision"].combine_chunks()
    codes = [at for at, text in enumerate(decisions.dictionary.to_pylist()) if reasons & set(text.split())]
    rows = np.flatnonzero(np.isin(decisions.indices.to_numpy(), codes))
    limits = {
        Reason.DELETE_RATIO: f"at least {100 * plan.options.delete_ratio_threshold:.3g} % of "
        f"{'its' if len(rows) == 1 else 'their'} rows deleted",
        Reason.DELETES: f"at least {counted(plan.options.delete_file_threshold, 'delete file')}",
    }
    why = " or ".join(text for one, text in limits.items() if any(label(one) in group.reasons for group in groups))
    files, deletes = sum(len(group.rows) for group in groups), sum(group.delete_files for group in groups)
    size, outputs = human_bytes(sum(group.bytes for group in groups)), sum(group.expected_outputs for group in groups)
    text = (
        f"{counted(len(rows), 'file')} {'has' if len(rows) == 1 else 'have'} {why}: rewrite applies "
        f"{counted(deletes, 'delete file')} and turns {counted(files, 'file')} ({size}) into {outputs:,}"
    )
    spec_ids = {group.output_spec_id for group in groups}
    examples = plan.decisions["file_path"].take(pa.array(rows[:shown])).to_pylist()
    yield Remedy(text, spec_ids.pop() if len(spec_ids) == 1 else None, len(rows), tuple(examples))


def merge_small_files(plan: RewriteDataFilesPlan, at_least: int, shown: int) -> Iterator[Remedy]:
    """What ``rewrite`` would merge, for every spec with at least ``at_least`` small files.

    Rows that share a file compress better, so that a rewrite may write files that are again too small. Merging those
    would go on for several rewrites, each with less to gain: they are merged only together with others, or if they are
    far below the target, which is larger now. A rewrite keeps the data sequence number, by which its files are
    known after its snapshot has expired; format 1 has none.
    """
    entries = plan.files.entries
    rewritten = np.isin(entries.ints("snapshot_id"), _rewrites(plan.target.metadata))
    rewritten |= entries.sequence_number < entries.ints("file_sequence_number")
    sizes = entries.ints("file_size_in_bytes")
    is_small = np.where(rewritten, sizes * FAR_BELOW < plan.sizes.target, sizes < plan.sizes.smallest)
    merged = [group for group in plan.groups if group.expected_outputs < len(group.rows) and is_small[group.rows].any()]
    for spec_id in sorted({group.output_spec_id for group in merged}):
        groups = [group for group in merged if group.output_spec_id == spec_id]
        rows = np.concatenate([group.rows for group in groups])
        small = rows[is_small[rows]]
        if len(small) >= at_least:
            size = human_bytes(sum(group.bytes for group in groups))
            outputs = sum(group.expected_outputs for group in groups)
            others = f" and {counted(len(rows) - len(small), 'other')}" if len(rows) > len(small) else ""
            text = (
                f"{counted(len(small), 'file')} are below the target size of {human_bytes(plan.sizes.target)}: "
                f"rewrite merges them{others} ({size}) into {outputs:,}"
            )
            yield Remedy(text, spec_id, len(small), tuple(entries.path.take(small[:shown]).to_pylist()))


def _rewrites(metadata: TableMetadata) -> list[int]:
    """The snapshots that wrote rows to new files: not those of other work on metadata, which only move entries."""
    summaries = ((one.snapshot_id, one.summary) for one in metadata.snapshots)
    return [
        snapshot_id
        for snapshot_id, summary in summaries
        if summary is not None
        and summary.operation is Operation.REPLACE
        and summary.additional_properties.get("floeplan.operation", "rewrite") == "rewrite"
    ]


def upgrade_old_specs(head: SnapshotReader, shown: int) -> Iterator[Remedy]:
    """What ``upgrade-spec`` would move or rewrite, for every spec with such files."""
    if head.truncation() is not None or not len(head.manifests):
        return
    try:
        target = head.metadata.default_spec_id
        move = plan_move(head, target)
        moved, rewritten = move.moved, ~np.isin(move.status, _STAYS)
        # As upgrade-spec does, for all specs with data files: also for those whose files would stay.
        with_files = np.unique(head.manifests.spec_id[head.manifest_rows(DATA)]).tolist()
        refuse_live_writers(warn_of_equality_writers(head, with_files, target))
    except FloeplanError:
        return
    sizes = move.data.ints("file_size_in_bytes")
    for spec_id in np.unique(move.data.spec_id[moved | rewritten]).tolist():
        of_spec = move.data.spec_id == spec_id
        by_metadata, by_rewrite = int((moved & of_spec).sum()), int((rewritten & of_spec).sum())
        parts = [f"moves {by_metadata:,} by metadata alone"] if by_metadata else []
        if by_rewrite:
            parts.append(f"rewrites {by_rewrite:,} ({human_bytes(int(sizes[rewritten & of_spec].sum()))})")
        rows = np.flatnonzero((moved | rewritten) & of_spec)
        under = f"{counted(len(rows), 'file')} {'is' if len(rows) == 1 else 'are'} under an old spec"
        text = f"{under}: upgrade-spec {' and '.join(parts)}"
        yield Remedy(text, spec_id, len(rows), tuple(move.data.path.take(rows[:shown]).to_pylist()))


def write_bounds(table: str, metadata: TableMetadata, column: str | None = None) -> str:
    """The commands that write bounds of a column, or of any: a rewrite, after setting the property that omits them."""
    rewrite = f"floeplan rewrite {table} --option rewrite-all=true"
    schema = metadata.schema()
    modes = MetricsModes.from_properties(metadata.properties, schema, metadata.sort_order())
    leaves = [schema.find_field(column).field_id] if column is not None else modes.by_id
    if any(modes.of(field_id).bounds for field_id in leaves):
        return rewrite
    name = "default" if column is None else f"column.{column}"
    return f'floeplan properties {table} "write.metadata.metrics.{name}=truncate(16)" && {rewrite}'


def cluster_manifests(table: Table, branch: str) -> Iterator[Remedy]:
    """What ``rewrite-manifests`` would gain, if it would change anything."""
    try:
        result = rewrite_manifests(table, dry_run=True, branch=branch)
    except FloeplanError:
        return
    if result.specs:
        text = f"{counted(result.manifests_before, 'manifest')}: rewrite-manifests makes {result.manifests_after:,}"
        yield Remedy(f"{text}; {result.gain}", None, result.manifests_before)


def expire_old_snapshots(table: Table) -> Iterator[Remedy]:
    """How many snapshots ``expire`` would remove, if any."""
    try:
        expired = snapshots_to_expire(table)
    except FloeplanError:
        return
    if expired:
        total = len(table.metadata.snapshots)
        yield Remedy(f"{counted(total, 'snapshot')} are kept: expire removes {expired:,}", None, 0)

"""The plan of a rewrite: groups of files, what each becomes, and the decision about every file that was read.

The plan is data. Groups are independent: any of them can be rewritten, in any order, and committed alone or together.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.table.sorting import SortOrder

from floeplan.display import Displayed, table_html
from floeplan.errors import FloeplanError, OperationInterruptedError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.partition.key import PartitionKey
from floeplan.rewrite.plan.candidates import FileSizes
from floeplan.rewrite.plan.filter import FilterStats
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.scan.model import FileScan, PlannedFiles, PlanWarning
from floeplan.snapshot.reader import ScanTarget
from floeplan.text import counted, human_bytes
from floeplan.vectors import Mask

_REQUEST, _RUN, _LEFT = (f"floeplan.rewrite-{name}" for name in ("request", "run", "groups-left"))
_DEFAULTS = RewriteOptions()
_RUNTIME_OPTIONS = (
    "strict",
    "trust_lists",
    "allow_late_equality_deletes",
    "max_files_to_rewrite",
    "rewrite_job_order",
    "partial_progress_enabled",
    "partial_progress_max_commits",
    "partial_progress_max_failed_commits",
    "max_concurrent_file_group_rewrites",
    "task_memory_bytes",
    "range_task_bytes",
)
"""Options that change how a rewrite runs, not its result."""


@dataclass(frozen=True, slots=True)
class RewriteFileGroup:
    """Files that are rewritten together: of one partition, or files whose output partitions are computed from rows.

    Attributes:
        group_id: An id that depends only on the files of the table and on the options.
        key: The partition of the new files where ``proven``, else that of the first old file.
        partition: The partition of the new files as readable names and values; empty where it is not proven.
        proven: Whether metadata proves that all rows are in that partition under the output spec.
        source_spec_ids: The specs of the old files.
        output_spec_id: The spec of the new files.
        rows: The files, as positions in ``RewriteDataFilesPlan.files``.
        bytes: Bytes of the data files.
        expected_outputs: The expected number of new files.
        split_size: The size that splits the bytes into that number.
        delete_files: Delete files that apply to the files of the group.
        reasons: How many files have each reason; a file may have several.
    """

    group_id: int
    key: PartitionKey
    partition: Mapping[str, object]
    proven: bool
    source_spec_ids: tuple[int, ...]
    output_spec_id: int
    rows: npt.NDArray[np.int64]
    bytes: int
    expected_outputs: int
    split_size: int
    delete_files: int
    reasons: Mapping[str, int]

    @property
    def spec_id(self) -> int | None:
        """The spec of the old files, if they have one in common."""
        return self.source_spec_ids[0] if len(self.source_spec_ids) == 1 else None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "group_id": self.group_id,
            "spec_id": self.spec_id,
            "source_spec_ids": list(self.source_spec_ids),
            "output_spec_id": self.output_spec_id,
            "partition": dict(self.partition),
            "partition_proven": self.proven,
            "files": len(self.rows),
            "bytes": self.bytes,
            "delete_files": self.delete_files,
            "expected_outputs": self.expected_outputs,
            "reasons": dict(self.reasons),
        }


@dataclass(frozen=True, slots=True)
class RewriteRun:
    """A rewrite of all files, in one or several runs.

    With ``rewrite-all`` every file is a candidate, including those that the rewrite itself has made. So that a second
    run can recognize them, a commit that leaves groups of its run uncommitted records in the snapshot summary a hash of
    the options, a run id, and the number of groups left. A run with the same options that finds such a summary, with
    groups left, on its branch continues that run: it skips the files that the run made, unless they have deletes or
    another spec. When no group is left, or the options differ, a new run starts.

    Fail-safe: without such a summary all files are rewritten, which is more work than needed but correct.

    Attributes:
        request: A hash of the options.
        run_id: The id that its snapshots share.
        snapshot_ids: Its earlier snapshots.
    """

    request: str
    run_id: str
    snapshot_ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, target: ScanTarget, options: RewriteOptions) -> RewriteRun | None:
        """The run to continue, or a new one; ``None`` without ``rewrite-all``, where file sizes show what is done."""
        if not options.rewrite_all:
            return None
        what = replace(options, **{name: getattr(_DEFAULTS, name) for name in _RUNTIME_OPTIONS})
        request = hashlib.sha256(repr(what).encode()).hexdigest()[:32]
        # Newest first: the summary properties of the planned snapshot and its known ancestors.
        history = dict[int, Mapping[str, str]]()
        known = {snapshot.snapshot_id: snapshot for snapshot in target.metadata.snapshots}
        snapshot = target.snapshot
        while snapshot is not None:
            summary = snapshot.summary
            history[snapshot.snapshot_id] = {} if summary is None else summary.additional_properties
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else known.get(parent)
        last: Mapping[str, str] = next((found for found in history.values() if found.get(_REQUEST) == request), {})
        run_id = last.get(_RUN)
        if run_id and last.get(_LEFT) != "0":
            return cls(request, run_id, frozenset(i for i, found in history.items() if found.get(_RUN) == run_id))
        return cls(request, uuid.uuid4().hex)

    def made(self, entries: EntriesTable) -> Mask:
        """Files that earlier commits of the run added."""
        if not self.snapshot_ids:
            return np.zeros(len(entries), dtype=np.bool_)
        return np.isin(entries.ints("snapshot_id"), list(self.snapshot_ids))

    def summary(self, left: int, *, begun: bool) -> dict[str, str]:
        """Snapshot summary properties of a commit that leaves ``left`` groups; none for the only commit of a run."""
        if not left and not begun and not self.snapshot_ids:
            return {}
        return {_REQUEST: self.request, _RUN: self.run_id, _LEFT: str(left)}


@dataclass(frozen=True, slots=True, repr=False)
class RewriteDataFilesPlan(Displayed):
    """The plan.

    Attributes:
        target: The table and the snapshot the plan is made on.
        options: The options.
        sizes: Target, minimum and maximum file size.
        order: What rows are sorted or clustered by; unsorted when they keep their order.
        output_spec_id: The spec of all new files, or ``None`` when each group keeps its own.
        groups: The groups, in the order in which they are rewritten.
        files: The files that passed the filters, with the deletes that apply to them.
        decisions: One row per entry that was read: ``file_path``, ``spec_id``, ``file_size_in_bytes``, ``decision``
            (its reasons, or why it is skipped) and ``group_id`` (null when it is skipped).
        skipped: How many files are not rewritten, by reason.
        run: The rewrite that commits belong to, with ``rewrite-all``.
    """

    target: ScanTarget
    options: RewriteOptions
    sizes: FileSizes
    order: SortOrder
    output_spec_id: int | None
    groups: tuple[RewriteFileGroup, ...]
    files: PlannedFiles
    decisions: pa.Table
    skipped: Mapping[str, int]
    run: RewriteRun | None = None

    def __repr__(self) -> str:
        numbers = f"{counted(len(self.groups), 'group')}, {counted(sum(len(g.rows) for g in self.groups), 'file')}"
        size, outputs = sum(g.bytes for g in self.groups), sum(g.expected_outputs for g in self.groups)
        return f"<RewriteDataFilesPlan of {self.target.name}: {numbers}, {human_bytes(size)} into {outputs:,}>"

    def _repr_html_(self) -> str:
        headers = ("group", "spec", "partition", "files", "bytes", "into", "delete files", "reasons")
        rows = [
            (
                group.group_id,
                group.output_spec_id,
                ", ".join(f"{name}={value}" for name, value in group.partition.items()) or "–",
                f"{len(group.rows):,}",
                human_bytes(group.bytes),
                f"{group.expected_outputs:,}",
                f"{group.delete_files:,}",
                ", ".join(group.reasons),
            )
            for group in self.groups
        ]
        skipped = [(reason, f"{files:,}") for reason, files in self.skipped.items()]
        return table_html(repr(self), headers, rows) + table_html("skipped", ("reason", "files"), skipped)

    def group_files(self, group: RewriteFileGroup) -> list[FileScan]:
        """The files of a group, each with its deletes."""
        return [self.files[row] for row in group.rows.tolist()]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "groups": [group.to_dict() for group in self.groups],
            "skipped": [{"reason": reason, "files": files} for reason, files in self.skipped.items()],
            "files": sum(len(group.rows) for group in self.groups),
            "bytes": sum(group.bytes for group in self.groups),
            "expected_outputs": sum(group.expected_outputs for group in self.groups),
        }


@dataclass(frozen=True, slots=True)
class GroupRanges:
    """How a group is sorted or clustered in several Spark tasks.

    Attributes:
        group_id: The group.
        tasks: Its tasks, a range of the order each.
        rows_by: How rows reach their task: ``shuffle``, or ``range-reads``, where each task reads its own.
        read_bytes: Bytes of the old files that tasks read, a file once for each task that reads it.
        moved_bytes: Bytes of the old files whose rows are moved between tasks.
        reason: Why rows reach their task in this way.
    """

    group_id: int
    tasks: int
    rows_by: str
    read_bytes: int
    moved_bytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class RewriteDataFilesPlanningResult(Displayed):
    """A plan, where its filters could not be evaluated, and which groups Spark will rewrite in several tasks.

    ``ranges`` is known with the option ``range-task-bytes``, and with a session that sets its default.
    """

    plan: RewriteDataFilesPlan
    filter_stats: FilterStats
    warnings: tuple[PlanWarning, ...] = ()
    manifests_total: int = 0
    manifests_kept: int = 0
    planning_ms: float = 0.0
    ranges: tuple[GroupRanges, ...] = ()

    def _repr_html_(self) -> str:
        return self.plan._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        snapshot = self.plan.target.snapshot
        return {
            "table": self.plan.target.name,
            "snapshot_id": None if snapshot is None else snapshot.snapshot_id,
            "strategy": self.plan.options.strategy,
            "plan": self.plan.to_dict(),
            "filter_stats": self.filter_stats.to_dict(),
            "warnings": [warning.to_dict() for warning in self.warnings],
            "manifests_total": self.manifests_total,
            "manifests_kept": self.manifests_kept,
            "planning_ms": self.planning_ms,
            "ranges": [asdict(one) for one in self.ranges],
        }


@dataclass(frozen=True, slots=True)
class GroupFailure:
    """A group, or a part of one, that could not be rewritten, and why."""

    group_id: int
    error: FloeplanError
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"group_id": self.group_id, "kind": self.error.kind, "message": self.error.message}


@dataclass(frozen=True, slots=True, repr=False)
class RewriteResult(Displayed):
    """One rewrite.

    Attributes:
        planning: The plan, and where its filters could not be evaluated.
        snapshot_ids: The committed snapshots, in order.
        files_rewritten: Data files that were removed.
        files_added: Data files that replace them.
        bytes_rewritten: Bytes of the removed files.
        bytes_added: Bytes of the added files.
        delete_files_removed: Removed delete files and deletion vectors.
        deletes_carried: Rows that other writers deleted from replaced files during the rewrite; the deletes were
            carried over to the new files.
        groups_stitched: Groups whose row groups were copied without decoding.
        failures: Groups that stay unchanged.
        ranges: Groups that were rewritten in several Spark tasks.
    """

    planning: RewriteDataFilesPlanningResult
    snapshot_ids: tuple[int, ...] = ()
    files_rewritten: int = 0
    files_added: int = 0
    bytes_rewritten: int = 0
    bytes_added: int = 0
    delete_files_removed: int = 0
    deletes_carried: int = 0
    groups_stitched: int = 0
    failures: tuple[GroupFailure, ...] = ()
    ranges: tuple[GroupRanges, ...] = ()

    @property
    def groups_failed(self) -> int:
        """Groups that could not be rewritten."""
        return len({failure.group_id for failure in self.failures})

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        counters = fields(self)[2:-2]  # all between the snapshots and the failures
        return {
            **self.planning.to_dict(),
            "snapshot_ids": list(self.snapshot_ids),
            **{field.name: getattr(self, field.name) for field in counters},
            "groups_failed": self.groups_failed,
            "failures": [failure.to_dict() for failure in self.failures],
            "ranges": [asdict(one) for one in self.ranges],
        }


class RewriteInterruptedError(OperationInterruptedError):
    """Ctrl-C: what was committed stays, everything else is unchanged."""

    def __init__(self, result: RewriteResult) -> None:
        done = len(result.snapshot_ids)
        groups = len(result.planning.plan.groups)
        what = "nothing was committed"
        if done:
            what = f"{counted(result.files_rewritten, 'file')} rewritten in {counted(done, 'commit')} stay committed"
        super().__init__(
            f"interrupted while rewriting {counted(groups, 'group')}: {what}; run it again to continue",
            context={"snapshot_ids": list(result.snapshot_ids), "files_rewritten": result.files_rewritten},
            committed=bool(done),
        )

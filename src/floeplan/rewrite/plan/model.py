"""A plan of a rewrite: groups of files, what each becomes, and what was decided of every file that was looked at.

The plan is data. Groups are independent of each other: any of them can be carried out, in any order, and committed
alone or together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.table.sorting import SortOrder

from floeplan.partition.key import PartitionKey
from floeplan.rewrite.plan.candidates import FileSizes
from floeplan.rewrite.plan.filter import FilterStats
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.resume import RewriteRun
from floeplan.scan.model import FileScan, PlannedFiles
from floeplan.scan.summary import PlanWarning
from floeplan.snapshot.target import ScanTarget


@dataclass(frozen=True, slots=True)
class RewriteFileGroup:
    """Files that are rewritten together: of one partition, or such that it takes their rows to tell their partitions.

    Attributes:
        group_id: A number that depends only on the files of the table and on the options.
        key: The partition of the new files where ``proven``, else that of the first of the old ones.
        partition: The partition of the new files as names and values for people; empty where it is not proven.
        proven: Whether all rows of the group are known to be in that one partition under the output spec.
        source_spec_ids: The specs the files have now.
        output_spec_id: The spec the new files will have.
        rows: The files, as positions in ``RewriteDataFilesPlan.files``.
        bytes: Bytes of the data files.
        expected_outputs: How many files they become.
        split_size: The size that cuts the bytes into so many files.
        delete_files: Delete files that apply to the files of the group.
        reasons: How many files are rewritten for each reason; a file may have several.
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
        """The spec of the files, if they have but one."""
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
class RewriteDataFilesPlan:
    """What to rewrite.

    Attributes:
        target: The table and the snapshot the plan is made on.
        options: What was asked for.
        sizes: The sizes that follow from the options and the table.
        order: What the rows are sorted or clustered by; unsorted when they are not.
        output_spec_id: The spec of all new files, or ``None`` when each group keeps its own.
        groups: What is rewritten, in the order of the job.
        files: The files that passed the filters, with the deletes that apply to them.
        decisions: One row a file that was looked at: ``file_path``, ``spec_id``, ``file_size_in_bytes``, ``decision``
            (its reasons, or why it is left) and ``group_id`` (null when it is left).
        skipped: How many files are left as they are, by reason.
        run: The run that commits are of, where everything is rewritten.
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
class RewriteDataFilesPlanningResult:
    """A plan, and where its filters could not decide."""

    plan: RewriteDataFilesPlan
    filter_stats: FilterStats
    warnings: tuple[PlanWarning, ...] = ()
    manifests_total: int = 0
    manifests_kept: int = 0
    planning_ms: float = 0.0

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
        }

"""The groups of a plan as work for tasks, and what tasks give back: values that can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floeplan.dml.planning import works
from floeplan.dml.row_task import FileWork
from floeplan.metadata.entries import EntriesTable
from floeplan.partition.key import PartitionKey
from floeplan.rewrite.compaction_map import CompactionMap
from floeplan.rewrite.plan import RewriteDataFilesPlan, RewriteFileGroup
from floeplan.transaction.change import DeleteFileId

_NAN_COUNT = "nan_count."


@dataclass(frozen=True, slots=True)
class GroupWork:
    """A group to rewrite.

    Attributes:
        group_id: Its number in the plan.
        files: Its files.
        output_spec_id: The spec of the new files.
        partition: The partition all rows are in under that spec, or ``None`` when it takes the rows to tell.
        outputs: How many files the rows are shared out over, when they are all in one partition.
        most_bytes: Where a file ends in any case.
        nan_counts: For each file the number of NaN by field id, as far as its entry states it.
    """

    group_id: int
    files: tuple[FileWork, ...]
    output_spec_id: int
    partition: PartitionKey | None
    outputs: int
    most_bytes: int
    nan_counts: tuple[Mapping[int, int], ...]

    @property
    def bytes(self) -> int:
        """Bytes to read."""
        return sum(work.file.file_size for work in self.files)


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What became of a group: entries of new files, what they replace, and where each row went.

    ``not_stitched`` says why row groups were not copied as they are; empty when they were.
    """

    group_id: int
    added: EntriesTable
    removed_data: tuple[str, ...]
    removed_deletes: tuple[DeleteFileId, ...]
    moved: CompactionMap
    not_stitched: str


def group_works(plan: RewriteDataFilesPlan) -> list[GroupWork]:
    """The groups of a plan as work for tasks, in the order of the job."""
    return [_work(plan, group) for group in plan.groups]


def _work(plan: RewriteDataFilesPlan, group: RewriteFileGroup) -> GroupWork:
    chosen = np.zeros(len(plan.files), dtype=np.bool_)
    chosen[group.rows] = True
    found = {work.file.path: work for work in works(plan.files, chosen)}
    ordered = tuple(found[path] for path in plan.files.entries.path.take(pa.array(group.rows)).to_pylist())
    return GroupWork(
        group_id=group.group_id,
        files=ordered,
        output_spec_id=group.output_spec_id,
        partition=group.key if group.proven else None,
        outputs=group.expected_outputs if group.proven else 1,
        most_bytes=plan.sizes.write_max if group.proven else plan.sizes.target,
        nan_counts=_nan_counts(plan.files.entries.take(group.rows)),
    )


def _nan_counts(entries: EntriesTable) -> tuple[Mapping[int, int], ...]:
    names = [name for name in entries.table.schema.names if name.startswith(_NAN_COUNT)]
    listed = {int(name.removeprefix(_NAN_COUNT)): entries.array(name).to_pylist() for name in names}
    return tuple(
        {i: counts[row] for i, counts in listed.items() if counts[row] is not None} for row in range(len(entries))
    )

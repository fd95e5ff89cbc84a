"""The groups of a plan as work for tasks, and what tasks give back: values that can be pickled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from pyiceberg.table.sorting import SortOrder

from floeplan.dml.row_task import FileTask
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.partition.key import PartitionKey
from floeplan.rewrite.commit.compaction_map import CompactionMap, MapBuilder
from floeplan.rewrite.plan.candidates import FileSizes
from floeplan.rewrite.plan.model import RewriteDataFilesPlan
from floeplan.rewrite.strategies.base import Strategy
from floeplan.scan.file_rows import FileRows
from floeplan.scan.model import PlannedFiles
from floeplan.tasks.memory import Cores
from floeplan.write.target import WriteTarget

_NAN_COUNT = "nan_count."
_NONE = np.zeros(0, dtype=np.int64)
_NEARLY = 0.1
"""A group that lacks no more than this for another core gets it."""


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
        sizes: How many files some bytes become.
        nan_counts: For each file the number of NaN by field id, as far as its entry states it.
        cores: How many cores are left to it; it has the memory of as many tasks.
    """

    group_id: int
    files: tuple[FileTask, ...]
    output_spec_id: int
    partition: PartitionKey | None
    outputs: int
    most_bytes: int
    sizes: FileSizes
    nan_counts: tuple[Mapping[int, int], ...]
    cores: int = 1

    @property
    def bytes(self) -> int:
        """Bytes to read."""
        return sum(work.file.file_size for work in self.files)


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What became of a group, or of a part of one: entries of new files, what they replace, and where each row went.

    ``bytes`` are those of the old files. ``not_stitched`` says why row groups were not copied as they are; it is empty
    when they were.
    """

    group_id: int
    bytes: int
    added: EntriesTable
    removed_data: tuple[str, ...]
    removed_deletes: tuple[DeleteFileId, ...]
    moved: CompactionMap
    not_stitched: str


def group_works(plan: RewriteDataFilesPlan) -> list[GroupWork]:
    """The groups of a plan as work for tasks, in the order of the job."""
    files = plan.files.take(np.concatenate([group.rows for group in plan.groups] or [_NONE]))
    works, nan_counts = _file_works(files), _nan_counts(files.entries)
    ends = np.cumsum([0, *(len(group.rows) for group in plan.groups)]).tolist()
    return [
        GroupWork(
            group_id=group.group_id,
            files=tuple(works[low:high]),
            output_spec_id=group.output_spec_id,
            partition=group.key if group.proven else None,
            outputs=group.expected_outputs if group.proven else 1,
            most_bytes=plan.sizes.write_max if group.proven else plan.sizes.target,
            sizes=plan.sizes,
            nan_counts=nan_counts[low:high],
        )
        for group, (low, high) in zip(plan.groups, pairwise(ends), strict=True)
    ]


def portions(work: GroupWork, order: SortOrder) -> list[GroupWork]:
    """The group in parts that can be rewritten apart, one for each new file; rows in order cannot be taken apart.

    Files go to the part that the middle of each lies in. A group whose files are too large for that stays whole.
    """
    if work.partition is None or work.outputs == 1 or not order.is_unsorted:
        return [work]
    sizes = np.array([one.file.file_size for one in work.files], dtype=np.float64)
    part = ((np.cumsum(sizes) - sizes / 2) / max(1.0, float(sizes.sum())) * work.outputs).astype(np.int64)
    if len(np.unique(part)) < work.outputs or np.bincount(part, sizes).max() > work.most_bytes:
        return [work]
    cuts = np.searchsorted(part, np.arange(work.outputs + 1)).tolist()
    return [
        replace(work, files=work.files[low:high], nan_counts=work.nan_counts[low:high], outputs=1)
        for low, high in pairwise(cuts)
    ]


def with_cores(works: Sequence[GroupWork], cores: Cores) -> list[GroupWork]:
    """The groups with the cores that would be idle, because there are fewer groups, or one is larger than the others.

    Each has its share by bytes, as far as one executor has so many.
    """
    total = max(1, sum(work.bytes for work in works))
    return [
        replace(work, cores=max(1, min(cores.per_executor, int(cores.total * work.bytes / total + _NEARLY))))
        for work in works
    ]


def _file_works(files: PlannedFiles) -> list[FileTask]:
    """Files with the first of their row ids; no deletes are written beside them, so nothing is said of their places."""
    entries = files.entries
    nowhere = EntriesTable(entries.table.select(["spec_id", "file_path"]).slice(0, 0), {})
    first = entries.array("first_row_id").to_pylist() if "first_row_id" in entries else [None] * len(entries)
    return [FileTask(file, nowhere, row_id) for file, row_id in zip(files, first, strict=True)]


def _nan_counts(entries: EntriesTable) -> tuple[Mapping[int, int], ...]:
    names = [name for name in entries.table.schema.names if name.startswith(_NAN_COUNT)]
    listed = {int(name.removeprefix(_NAN_COUNT)): entries.array(name).to_pylist() for name in names}
    return tuple(
        {i: counts[row] for i, counts in listed.items() if counts[row] is not None} for row in range(len(entries))
    )


# What carrying out one group takes, however it is done.


@dataclass(frozen=True, slots=True)
class GroupRun:
    """One attempt at one group.

    Attributes:
        work: The group.
        target: The table as writers see it, with the spec and the file size of this group.
        strategy: How files are made.
        order: What rows are sorted or clustered by; unsorted when they are not.
        token: The beginning of file names, which no other attempt has.
        files: Opens files of the table.
        moved: Notes where rows go.
        memory: Bytes that putting rows in order may take.
        threads: How many cores it may keep busy.
    """

    work: GroupWork
    target: WriteTarget
    strategy: Strategy
    order: SortOrder
    token: str
    files: FileRows
    moved: MapBuilder
    memory: int
    threads: int = 1

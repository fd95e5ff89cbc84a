"""The groups of a plan as tasks, and what a task returns: values that can be pickled.

``GroupTask`` is a group, or a part of one, to rewrite; ``GroupAttempt`` is one attempt at it on the machine where it
runs; ``GroupResult`` lists what was written and what it replaces.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from pyiceberg.table.sorting import SortOrder

from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.partition.key import PartitionKey
from floeplan.rewrite.plan.candidates import FileSizes
from floeplan.rewrite.plan.model import RewriteDataFilesPlan
from floeplan.rewrite.run.position_map import PositionMap, PositionMapBuilder
from floeplan.rewrite.strategies.base import Strategy
from floeplan.scan.file_rows import FileRows
from floeplan.tasks.runner import parallelism
from floeplan.vectors import Ints
from floeplan.write.data_files import FileTask
from floeplan.write.partitioning import FilePartition
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MEMORY = 1024**3
"""Bytes for sorting when nothing else is configured."""

_UNITS = {"": 1024**2, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_LOCAL_MASTER = re.compile(r"local(?:\[(\d+|\*).*\])?$")
_SIZE = re.compile(r"(\d+)\s*([bkmgt]?)b?", re.IGNORECASE)
_NAN_COUNT = "nan_count."
_CORE_ROUNDING = 0.1
"""A group whose share of the cores is this close to the next whole number is given one more."""


@dataclass(frozen=True, slots=True)
class GroupTask:
    """A group to rewrite, or a part of one.

    Attributes:
        group_id: The id of the group in the plan.
        files: Its files.
        output_spec_id: The spec of the new files.
        partition: The partition that all rows are in under that spec; ``None`` when it is computed from the rows.
        outputs: The expected number of new files, when all rows are in one partition.
        max_file_bytes: The size at which a file is closed in any case.
        sizes: Computes how many files a number of bytes becomes.
        nan_counts: For each file the NaN counts by field id, as far as its manifest entry has them.
        cores: Cores assigned to the group; it may use the memory of as many tasks.
    """

    group_id: int
    files: tuple[FileTask, ...]
    output_spec_id: int
    partition: PartitionKey | None
    outputs: int
    max_file_bytes: int
    sizes: FileSizes
    nan_counts: tuple[Mapping[int, int], ...]
    cores: int = 1

    @property
    def bytes(self) -> int:
        """Bytes to read."""
        return sum(one.file.file_size for one in self.files)


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What a group task wrote.

    Attributes:
        group_id: The id of the group.
        bytes: Bytes of the replaced files.
        added: Entries of the new files.
        removed_data: Paths of the replaced files.
        removed_deletes: Delete files that applied to the replaced files only.
        position_map: Where each row went.
        decoded_because: Why row groups were decoded; empty when they were copied.
    """

    group_id: int
    bytes: int
    added: EntriesTable
    removed_data: tuple[str, ...]
    removed_deletes: tuple[DeleteFileId, ...]
    position_map: PositionMap
    decoded_because: str


@dataclass(frozen=True, slots=True)
class GroupAttempt:
    """One attempt at one group.

    Attributes:
        task: The group.
        target: The table as writers see it, with the spec and the file size of this group.
        strategy: The strategy.
        order: What rows are sorted or clustered by; unsorted when they keep their order.
        token: The prefix of file names, unique to this attempt.
        files: Opens files of the table.
        position_map: Records where rows go.
        memory: Bytes that sorting may take.
        threads: Threads to use.
    """

    task: GroupTask
    target: WriteTarget
    strategy: Strategy
    order: SortOrder
    token: str
    files: FileRows
    position_map: PositionMapBuilder
    memory: int
    threads: int = 1

    def new_file(self, written: ExitStack, partition: FilePartition, number: int = 0) -> str:
        """The location of a new data file; ``written`` removes the file when it exits with an exception."""
        target = self.target
        path = target.new_location(f"{target.file_name(f'{self.token}-{number}')}.parquet", partition.key)

        def remove_on_error(kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
            if kind is not None:
                target.files.remove([path])

        written.push(remove_on_error)
        return path


def group_tasks(plan: RewriteDataFilesPlan) -> list[GroupTask]:
    """The groups of a plan as tasks, in the order of the job."""
    rows = [group.rows for group in plan.groups]
    planned = plan.files.take(np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64))
    entries = planned.entries
    # A rewrite writes no position deletes, so the entry that a file task has for them stays empty.
    no_entry = EntriesTable(entries.table.select(["spec_id", "file_path"]).slice(0, 0), {})
    first_ids = entries.array("first_row_id").to_pylist() if "first_row_id" in entries else [None] * len(entries)
    files = [FileTask(file, no_entry, row_id) for file, row_id in zip(planned, first_ids, strict=True)]
    nan_counts = _nan_counts(entries)
    ends = np.cumsum([0, *map(len, rows)]).tolist()
    return [
        GroupTask(
            group_id=group.group_id,
            files=tuple(files[low:high]),
            output_spec_id=group.output_spec_id,
            partition=group.key if group.proven else None,
            outputs=group.expected_outputs if group.proven else 1,
            max_file_bytes=plan.sizes.write_max if group.proven else plan.sizes.target,
            sizes=plan.sizes,
            nan_counts=nan_counts[low:high],
        )
        for group, (low, high) in zip(plan.groups, pairwise(ends), strict=True)
    ]


def _nan_counts(entries: EntriesTable) -> tuple[Mapping[int, int], ...]:
    names = [name for name in entries.table.schema.names if name.startswith(_NAN_COUNT)]
    listed = {int(name.removeprefix(_NAN_COUNT)): entries.array(name).to_pylist() for name in names}
    return tuple(
        {i: counts[row] for i, counts in listed.items() if counts[row] is not None} for row in range(len(entries))
    )


def split_by_output(sizes: Sequence[int], outputs: int) -> Ints:
    """The output that each file goes to: that in which its middle lies when all bytes are divided evenly."""
    size = np.array(sizes, dtype=np.float64)
    middle = (np.cumsum(size) - size / 2) / max(1.0, float(size.sum()))
    return np.asarray((middle * outputs).astype(np.int64))


def split_task(task: GroupTask, order: SortOrder) -> list[GroupTask]:
    """Split a group into parts that can be rewritten apart, one for each new file.

    A group stays whole when its rows are sorted, or when its files are too large to be divided evenly.
    """
    if task.partition is None or task.outputs == 1 or not order.is_unsorted:
        return [task]
    sizes = [one.file.file_size for one in task.files]
    part = split_by_output(sizes, task.outputs)
    if len(np.unique(part)) < task.outputs or np.bincount(part, sizes).max() > task.max_file_bytes:
        return [task]
    cuts = np.searchsorted(part, np.arange(task.outputs + 1)).tolist()
    return [
        replace(task, files=task.files[low:high], nan_counts=task.nan_counts[low:high], outputs=1)
        for low, high in pairwise(cuts)
    ]


def assign_cores(tasks: Sequence[GroupTask], cores: Cores) -> list[GroupTask]:
    """Assign cores by bytes, so that none is idle when groups are few or one is larger than the others.

    A group never gets more cores than one executor has.
    """
    total = max(1, sum(task.bytes for task in tasks))
    return [
        replace(task, cores=max(1, min(cores.per_executor, int(cores.total * task.bytes / total + _CORE_ROUNDING))))
        for task in tasks
    ]


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores of one executor, and of all of them."""

    per_executor: int
    total: int


def cores_of(spark: SparkSession | None) -> Cores:
    """The cores of an executor, and of all executors; one where a session does not tell."""
    if spark is None:
        cores = os.cpu_count() or 1
        return Cores(cores, cores)
    local = _LOCAL_MASTER.match(_setting(spark, "spark.master"))
    text = (local[1] or "1") if local else _setting(spark, "spark.executor.cores") or "1"
    cores = os.cpu_count() or 1 if text == "*" else int(text) if text.isdecimal() else 1
    return Cores(max(1, cores), parallelism(spark))


def task_memory(spark: SparkSession | None) -> int:
    """Bytes for one task, when every core runs one.

    On Spark it is the executor's memory divided by its cores: ``spark.executor.pyspark.memory`` if set, else as much as
    the executor's JVM has (the driver's on a local master). In this process it is half of the machine's memory, divided
    by the cores. Fail-safe: what cannot be determined counts as ``DEFAULT_MEMORY`` and one core.
    """
    if spark is None:
        return max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // (os.cpu_count() or 1))
    local = _LOCAL_MASTER.match(_setting(spark, "spark.master"))
    for name in ("spark.executor.pyspark.memory", "spark.driver.memory" if local else "spark.executor.memory"):
        # A size as Spark writes it; a number without a unit is in MiB.
        found = _SIZE.fullmatch(_setting(spark, name).strip())
        if found and int(found[1]):
            return int(found[1]) * _UNITS[found[2].lower()] // cores_of(spark).per_executor
    return DEFAULT_MEMORY // cores_of(spark).per_executor


def _setting(spark: SparkSession, name: str) -> str:
    return spark.conf.get(name, "") or ""

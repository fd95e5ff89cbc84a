"""Rewriting groups of files: the groups of a plan as tasks, and what such a task does, on Spark or in this process.

The live rows of all files of a group are written to new files under the output spec, in the table's current schema,
with all deletes applied and, in format 3, with their row lineage. The cheapest way that applies is taken:

1. *stitch*: copy row groups byte for byte;
2. *join*: build larger row groups from encoded pages, decoding only columns that need it (``join_group``);
3. *write*: decode all rows, sort them if the strategy says so, and write them (``write_group``).

Fail-safe: file names contain the attempt, and a failed attempt removes the files it wrote. Only files named in a
``GroupResult`` are committed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from pyiceberg.table.sorting import SortOrder

from floeplan.errors import FloeplanError
from floeplan.formats.stored import PARQUET
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.rewrite.pages.column_chunk import CODECS
from floeplan.rewrite.pages.new_file import MIN_ROW_GROUP_BYTES, small_row_groups_reason, stitch, stitch_obstacle
from floeplan.rewrite.plan.model import RewriteDataFilesPlan
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.run.group import GroupAttempt, GroupResult, GroupTask, PositionMapBuilder
from floeplan.rewrite.run.join_group import GroupJoiner, join_layout
from floeplan.rewrite.run.write_group import GroupWriter
from floeplan.rewrite.strategies.base import Strategy
from floeplan.rewrite.strategies.registry import find_strategy
from floeplan.scan.file_rows import FileRows, TableRows
from floeplan.tasks.runner import parallelism
from floeplan.vectors import Ints
from floeplan.write.data_files import FileTask, data_entry
from floeplan.write.metrics import FileEntry, added_entries
from floeplan.write.partitioning import FilePartition
from floeplan.write.position_deletes import file_scoped_deletes
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MEMORY = 1024**3
"""Bytes for sorting when nothing else is configured."""

MEMORY_PER_BYTE = 8
"""Memory that sorting takes per byte of Parquet: rows take about three times their encoded bytes, in two copies."""

_UNITS = {"": 1024**2, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_LOCAL_MASTER = re.compile(r"local(?:\[(\d+|\*).*\])?$")
_SIZE = re.compile(r"(\d+)\s*([bkmgt]?)b?", re.IGNORECASE)
_NAN_COUNT = "nan_count."
_CORE_ROUNDING = 0.1
"""A group whose share of the cores is this close to the next whole number is given one more."""
_FEW_DELETED = 0.1
_TARGET_SIZE = "write.target-file-size-bytes"


@dataclass(frozen=True, slots=True)
class GroupRewriter:
    """Rewrites a group of files; pickled and sent to where it runs.

    Attributes:
        table: The table as readers see it.
        target: The table as writers see it.
        strategy: The strategy.
        order: What rows are sorted or clustered by.
        memory: Bytes that sorting one group may take; ``None`` for ``core_memory`` per core of the group.
        core_memory: Bytes per core.
        on_read: Called with the bytes of old files read so far, a row group at a time; in this process only.
    """

    table: TableRows
    target: WriteTarget
    strategy: Strategy
    order: SortOrder
    memory: int | None = None
    core_memory: int = DEFAULT_MEMORY
    on_read: Callable[[int], None] | None = None

    @classmethod
    def of(
        cls,
        plan: RewriteDataFilesPlan,
        operation_id: str | None = None,
        memory: int | None = None,
        core_memory: int = DEFAULT_MEMORY,
    ) -> GroupRewriter:
        """The rewriter for the groups of a plan."""
        table, schema = plan.target.table, plan.target.schema
        target = WriteTarget.of(table, schema=schema, operation_id=operation_id)
        strategy = find_strategy(plan.options.strategy)
        return cls(TableRows.of(table, schema), target, strategy, plan.order, memory, core_memory)

    def __call__(self, task: GroupTask, attempt_id: str) -> GroupResult:
        """Rewrite a group."""
        files = [one.file for one in task.files]
        positions = PositionMapBuilder([file.path for file in files], self._count_bytes(task))
        attempt = self.attempt(task, f"{attempt_id}-{task.group_id:05d}", positions)
        decoded_because = reason_to_decode(attempt)
        with ExitStack() as written:
            partition = None if task.partition is None else FilePartition.of(attempt.target.union, task.partition)
            if partition is not None and not decoded_because:
                added = _stitch_group(attempt, partition, written)
            elif partition is not None and (layout := join_layout(attempt)) is not None:
                added = GroupJoiner(attempt, partition, layout).write(written)
            else:
                added = GroupWriter(attempt).write(written)
            return GroupResult(
                group_id=task.group_id,
                bytes=task.bytes,
                added=added,
                removed_data=tuple(file.path for file in files),
                removed_deletes=removed_deletes(task),
                position_map=attempt.position_map.finish(),
                decoded_because=decoded_because,
            )

    def attempt(self, task: GroupTask, token: str, positions: PositionMapBuilder) -> GroupAttempt:
        """An attempt at a group or a range of one."""
        properties = {**self.target.properties, _TARGET_SIZE: str(task.max_file_bytes)}
        return GroupAttempt(
            task=task,
            target=replace(self.target, spec_id=task.output_spec_id, properties=properties),
            strategy=self.strategy,
            order=self.order,
            token=token,
            files=FileRows(self.table),
            position_map=positions,
            memory=self.memory or self.core_memory * task.cores,
            threads=task.cores,
        )

    def _count_bytes(self, task: GroupTask) -> Callable[[int], None] | None:
        """Reports the rows that are read as their share of the group's bytes."""
        report = self.on_read
        if report is None:
            return None
        row_bytes = task.bytes / max(1, sum(one.file.record_count for one in task.files))
        return lambda rows: report(int(rows * row_bytes))

    def keeps_sizes(self, task: GroupTask) -> bool:
        """Whether new files will be about as large as the old ones, so that a group can be split by bytes.

        True when few rows are deleted and the codec stays the same, as far as the largest file shows.
        """
        if task.outputs == 1:
            return True
        deletes = {(d.path, d.content_offset): d.record_count for one in task.files for d in one.file.deletes}
        if sum(deletes.values()) > _FEW_DELETED * sum(one.file.record_count for one in task.files):
            return False
        if {self.target.options.format, *(one.file.format for one in task.files)} != {PARQUET}:
            return False
        try:
            footer = FileRows(self.table).open(max(task.files, key=lambda one: one.file.file_size).file).footer
        except FloeplanError:
            return True  # rewriting the group will report the problem of the file
        used = {code for leaf in footer.leaves for code in footer.chunks(leaf).codec.tolist()}
        return used <= {CODECS[self.target.options.codec]}


def removed_deletes(task: GroupTask) -> tuple[DeleteFileId, ...]:
    """Delete files that applied to the files of a group only."""
    return tuple(dict.fromkeys(delete for one in task.files for delete in file_scoped_deletes(one.file)))


def reason_to_decode(attempt: GroupAttempt) -> str:
    """Why row groups cannot be copied byte for byte; empty when they can.

    Files are opened only when nothing that is known without opening them forbids it.
    """
    task, strategy, files = attempt.task, attempt.strategy, [one.file for one in attempt.task.files]
    if not strategy.copies_bytes:
        return f"strategy {strategy.name} orders rows"
    if task.partition is None:
        return "partitions are computed from the rows"
    if attempt.target.options.format != PARQUET:
        return f"new files are {attempt.target.options.format}"
    if other := next((file for file in files if file.format != PARQUET), None):
        return f"{other.path} is {other.format}"
    if any(one.first_row_id is not None for one in task.files):
        # Format 3: a row without a stored _row_id inherits first_row_id + its position, which copying would change.
        return "rows inherit their row ids from their position in a file"
    if any(file.file_size > task.max_file_bytes for file in files):
        return "a file is too large"
    if any(file.deletes for file in files):
        return f"{next(file.path for file in files if file.deletes)} has deletes"
    smallest = 0 if strategy.copies_small_row_groups else MIN_ROW_GROUP_BYTES
    opened = (attempt.files.open(file) for file in files)
    return small_row_groups_reason(task.bytes, len(files), smallest) or stitch_obstacle(
        opened, attempt.target.stored_schema, smallest
    )


def _stitch_group(attempt: GroupAttempt, partition: FilePartition, written: ExitStack) -> EntriesTable:
    """Copy the row groups of neighbouring files into the expected number of new files; their entries."""
    task, target, positions = attempt.task, attempt.target, attempt.position_map
    output = split_by_output([one.file.file_size for one in task.files], task.outputs)
    entries: list[FileEntry] = []
    for number in np.unique(output).tolist():
        sources = np.flatnonzero(output == number).tolist()
        opened = [attempt.files.open(task.files[source].file) for source in sources]
        path = attempt.new_file(written, partition, len(entries))
        made = stitch(opened, target.io, path)
        first, rows = positions.rows, made.footer.num_rows
        for source, file in zip(sources, opened, strict=True):
            positions.add_read(source, np.array([0]), np.array([file.footer.num_rows]))
        positions.add_written([path], [rows], [(np.array([first]), np.array([rows]))])
        entry = data_entry(target, made, partition)
        assert entry.metrics is not None
        # Parquet footers have no NaN counts: sum those of the old manifest entries, where all of them have one.
        counts = [task.nan_counts[source] for source in sources]
        for field_id in set.intersection(*map(set, counts)) & entry.metrics.value_counts.keys():
            entry.metrics.nan_value_counts[field_id] = sum(count[field_id] for count in counts)
        entries.append(entry)
    return added_entries(entries, target.union)


def prepare(plan: RewriteDataFilesPlan, spark: SparkSession | None) -> tuple[GroupRewriter, list[GroupTask]]:
    """The rewriter of a plan, and its groups as tasks: split where possible, with cores assigned."""
    rewriter = GroupRewriter.of(plan, memory=plan.options.task_memory_bytes, core_memory=task_memory(spark))
    tasks = list[GroupTask]()
    for task in group_tasks(plan):
        tasks += split_task(task, plan.order) if rewriter.keeps_sizes(task) else [task]
    return rewriter, assign_cores(tasks, cores_of(spark))


def group_tasks(plan: RewriteDataFilesPlan) -> list[GroupTask]:
    """The groups of a plan as tasks, in the order of the job."""
    rows = [group.rows for group in plan.groups]
    planned = plan.files.take(np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64))
    entries = planned.entries
    # A rewrite writes no position deletes, so the entry that a file task has for them stays empty.
    no_entry = EntriesTable(entries.table.select(["spec_id", "file_path"]).slice(0, 0), {})
    first_ids = entries.array("first_row_id").to_pylist() if "first_row_id" in entries else [None] * len(entries)
    files = [FileTask(file, no_entry, row_id) for file, row_id in zip(planned, first_ids, strict=True)]
    names = [name for name in entries.table.schema.names if name.startswith(_NAN_COUNT)]
    listed = {int(name.removeprefix(_NAN_COUNT)): entries.array(name).to_pylist() for name in names}
    nan_counts = tuple(
        {i: counts[row] for i, counts in listed.items() if counts[row] is not None} for row in range(len(entries))
    )
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
    """The cores of an executor, and of all executors; one if the session does not configure them."""
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
    for name in ("spark.executor.pyspark.memory", f"spark.{'driver' if is_local(spark) else 'executor'}.memory"):
        # A size as Spark writes it; a number without a unit is in MiB.
        found = _SIZE.fullmatch(_setting(spark, name).strip())
        if found and int(found[1]):
            return int(found[1]) * _UNITS[found[2].lower()] // cores_of(spark).per_executor
    return DEFAULT_MEMORY // cores_of(spark).per_executor


def range_task_bytes(options: RewriteOptions, spark: SparkSession | None) -> int | None:
    """Bytes of old files that one task sorts; ``None``, for any number, on a local master, where tasks share memory."""
    if options.range_task_bytes is not None or spark is None or is_local(spark):
        return options.range_task_bytes
    return max(1, task_memory(spark) // MEMORY_PER_BYTE)


def is_local(spark: SparkSession) -> bool:
    """Whether the tasks of a session run in its driver."""
    return _LOCAL_MASTER.match(_setting(spark, "spark.master")) is not None


def _setting(spark: SparkSession, name: str) -> str:
    return spark.conf.get(name, "") or ""

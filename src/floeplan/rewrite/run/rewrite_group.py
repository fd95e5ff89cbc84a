"""Rewriting one group of files: what a task does, on a Spark executor or in this process.

The live rows of all files of a group are written to new files under the output spec, in the table's current schema,
with all deletes applied and, in format 3, with their row lineage. The cheapest way that applies is taken:

1. *stitch*: copy row groups byte for byte;
2. *join*: build larger row groups from encoded pages, decoding only columns that need it (``join_group``);
3. *write*: decode all rows, sort them if the strategy says so, and write them (``write_group``).

Fail-safe: file names contain the attempt, and a failed attempt removes the files it wrote. Only files named in a
``GroupResult`` are committed.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.table.sorting import SortOrder

from floeplan.errors import FloeplanError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.rewrite.pages.column_chunk import CODECS
from floeplan.rewrite.pages.new_file import MIN_ROW_GROUP_BYTES, small_row_groups_reason, stitch, stitch_obstacle
from floeplan.rewrite.plan.model import RewriteDataFilesPlan
from floeplan.rewrite.run.group_task import DEFAULT_MEMORY, GroupAttempt, GroupResult, GroupTask, split_by_output
from floeplan.rewrite.run.join_group import GroupJoiner, join_layout
from floeplan.rewrite.run.position_map import PositionMapBuilder
from floeplan.rewrite.run.write_group import GroupWriter
from floeplan.rewrite.strategies.base import Strategy
from floeplan.rewrite.strategies.registry import find_strategy
from floeplan.scan.file_rows import FileRows, TableRows
from floeplan.write.data_files import data_entry
from floeplan.write.metrics import FileEntry, added_entries
from floeplan.write.partitioning import FilePartition
from floeplan.write.position_deletes import file_scoped_deletes
from floeplan.write.target import WriteTarget

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
    """

    table: TableRows
    target: WriteTarget
    strategy: Strategy
    order: SortOrder
    memory: int | None = None
    core_memory: int = DEFAULT_MEMORY

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
        properties = {**self.target.properties, _TARGET_SIZE: str(task.max_file_bytes)}
        files = [one.file for one in task.files]
        attempt = GroupAttempt(
            task=task,
            target=replace(self.target, spec_id=task.output_spec_id, properties=properties),
            strategy=self.strategy,
            order=self.order,
            token=f"{attempt_id}-{task.group_id:05d}",
            files=FileRows(self.table),
            position_map=PositionMapBuilder([file.path for file in files]),
            memory=self.memory or self.core_memory * task.cores,
            threads=task.cores,
        )
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
                removed_deletes=tuple(dict.fromkeys(d for file in files for d in file_scoped_deletes(file))),
                position_map=attempt.position_map.finish(),
                decoded_because=decoded_because,
            )

    def keeps_sizes(self, task: GroupTask) -> bool:
        """Whether new files will be about as large as the old ones, so that a group can be split by bytes.

        True when few rows are deleted and the codec stays the same, as far as the largest file shows.
        """
        if task.outputs == 1:
            return True
        deletes = {(d.path, d.content_offset): d.record_count for one in task.files for d in one.file.deletes}
        if sum(deletes.values()) > _FEW_DELETED * sum(one.file.record_count for one in task.files):
            return False
        try:
            footer = FileRows(self.table).open(max(task.files, key=lambda one: one.file.file_size).file).footer
        except FloeplanError:
            return True  # rewriting the group will report what is wrong with the file
        used = {code for leaf in footer.leaves for code in footer.chunks(leaf).codec.tolist()}
        return used <= {CODECS[self.target.options.codec]}


def reason_to_decode(attempt: GroupAttempt) -> str:
    """Why row groups cannot be copied byte for byte; empty when they can.

    Files are opened only when nothing that is known without opening them forbids it.
    """
    task, strategy, files = attempt.task, attempt.strategy, [one.file for one in attempt.task.files]
    if not strategy.copies_bytes:
        return f"strategy {strategy.name} orders rows"
    if task.partition is None:
        return "partitions are computed from the rows"
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

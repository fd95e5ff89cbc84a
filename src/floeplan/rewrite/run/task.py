"""Rewriting groups of files: what one task does, on a Spark executor or in this process.

Live rows of all files of a group come out in the table's current schema, with all deletes applied and in format 3 with
their identity, in new files under the output spec. Row groups that are good as they are, are copied instead
(``stitch_group``), or columns of them (``join_group``); otherwise rows are written anew (``write_group``).

Fail-safe: names carry the attempt, and a group that fails removes what it wrote. Only what is named in a
``GroupResult`` is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from pyiceberg.table.sorting import SortOrder

from floeplan.errors import FloeplanError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.rewrite.commit.compaction_map import MapBuilder
from floeplan.rewrite.pages.column_chunk import CODECS
from floeplan.rewrite.plan.model import RewriteDataFilesPlan
from floeplan.rewrite.run.join_group import GroupJoiner, join_layout
from floeplan.rewrite.run.stitch_group import GroupStitcher, not_stitchable
from floeplan.rewrite.run.work import GroupResult, GroupRun, GroupWork
from floeplan.rewrite.run.write_group import GroupWriter
from floeplan.rewrite.strategies.base import Strategy
from floeplan.rewrite.strategies.registry import find_strategy
from floeplan.scan.file_rows import FileRows, TableRows
from floeplan.tasks.memory import DEFAULT_MEMORY
from floeplan.write.partitioning import FilePartition
from floeplan.write.position_deletes import file_scoped_deletes
from floeplan.write.target import WriteTarget

_FEW_DELETED = 0.1
_TARGET_SIZE = "write.target-file-size-bytes"


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Rewrites groups of files; pickled and sent to where it runs."""

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
    ) -> RewriteTask:
        """The task for the groups of a plan; putting rows in order may take ``memory``, or so much for each core."""
        table, schema = plan.target.table, plan.target.schema
        target = WriteTarget.of(table, schema=schema, operation_id=operation_id)
        strategy = find_strategy(plan.options.strategy)
        return cls(TableRows.of(table, schema), target, strategy, plan.order, memory, core_memory)

    def __call__(self, works: Sequence[GroupWork], attempt: str) -> list[GroupResult]:
        """Rewrite some groups, one after the other."""
        return [_rewritten(self._run(work, attempt)) for work in works]

    def keeps_sizes(self, work: GroupWork) -> bool:
        """Whether new files will be about as large as the old ones, so that a group can be taken apart by bytes.

        They are when few rows are deleted and the codec stays; the largest file stands for all.
        """
        if work.outputs == 1:
            return True
        deletes = {(d.path, d.content_offset): d.record_count for one in work.files for d in one.file.deletes}
        if sum(deletes.values()) > _FEW_DELETED * sum(one.file.record_count for one in work.files):
            return False
        try:
            footer = FileRows(self.table).open(max(work.files, key=lambda one: one.file.file_size).file).footer
        except FloeplanError:
            return True
        used = {code for leaf in footer.leaves for code in footer.chunks(leaf).codec.tolist()}
        return used <= {CODECS[self.target.options.codec]}

    def _run(self, work: GroupWork, attempt: str) -> GroupRun:
        properties = {**self.target.properties, _TARGET_SIZE: str(work.most_bytes)}
        return GroupRun(
            work=work,
            target=replace(self.target, spec_id=work.output_spec_id, properties=properties),
            strategy=self.strategy,
            order=self.order,
            token=f"{attempt}-{work.group_id:05d}",
            files=FileRows(self.table),
            moved=MapBuilder([one.file.path for one in work.files]),
            memory=self.memory or self.core_memory * work.cores,
            threads=work.cores,
        )


def _rewritten(run: GroupRun) -> GroupResult:
    files = [one.file for one in run.work.files]
    not_stitched = not_stitchable(run)
    with ExitStack() as written:
        added = _written(run, not not_stitched, written)
        return GroupResult(
            group_id=run.work.group_id,
            bytes=run.work.bytes,
            added=added,
            removed_data=tuple(file.path for file in files),
            removed_deletes=tuple(dict.fromkeys(delete for file in files for delete in file_scoped_deletes(file))),
            moved=run.moved.finish(),
            not_stitched=not_stitched,
        )


def _written(run: GroupRun, stitch: bool, written: ExitStack) -> EntriesTable:
    """The entries of the new files, made in the cheapest way that does."""
    if run.work.partition is not None:
        partition = FilePartition.of(run.target.union, run.work.partition)
        if stitch:
            return GroupStitcher(run, partition).write(written)
        layout = join_layout(run)
        if layout is not None:
            return GroupJoiner(run, partition, layout).write(written)
    return GroupWriter(run).write(written)

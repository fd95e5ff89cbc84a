"""Changing the rows of data files: one task, on a Spark executor or in this process.

For each file, the task reads the columns the decision needs, for the rows that the plan kept and no delete removes, and
decides which rows change. Only for files with a changed row it reads the other columns:

- merge-on-read: the changed rows become position deletes or a deletion vector, their new values new rows;
- copy-on-write: the remaining rows and the new values are written again, and the file is removed.

A file without remaining rows is removed in both modes. New rows are written under the target's spec; deletes keep the
spec and partition of their data file.

Memory: the decision's columns of one file, and the rows of one row group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from floeplan.dml.assign import top_fields
from floeplan.dml.row_changes import Decision, RowChanges
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.parquet.prune.selection import RowSelection
from floeplan.scan.file_rows import FileRows, OpenFile, PlannedRows, TableRows
from floeplan.scan.model import FileScan
from floeplan.scan.projection import arrow_schema
from floeplan.write.data_files import coalesce_batches, write_data_files
from floeplan.write.file_entries import remove_written_files
from floeplan.write.full_rows import FileTask, FullRowReader, mark_updated
from floeplan.write.position_deletes import PositionDeleteCollector, file_scoped_deletes
from floeplan.write.target import WriteTarget


@dataclass(slots=True)
class RowTaskResult:
    """What a task wrote and removed; only what is named here is committed."""

    added_data: EntriesTable | None = None
    added_deletes: EntriesTable | None = None
    removed_data: list[str] = field(default_factory=list)
    removed_deletes: list[DeleteFileId] = field(default_factory=list)
    referenced: list[str] = field(default_factory=list)
    rows_deleted: int = 0
    rows_updated: int = 0
    matched_sources: BitMap64 = field(default_factory=BitMap64)

    def discard(self, files: TableFiles) -> None:
        """Delete the files the task wrote."""
        remove_written_files(self.added_data, files)
        remove_written_files(self.added_deletes, files)


@dataclass(frozen=True, slots=True)
class RowTask:
    """Changes the rows of some files; pickled to run on an executor."""

    table: TableRows
    target: WriteTarget
    decision: Decision
    copies: bool

    def __call__(self, tasks: Sequence[FileTask], attempt: str) -> RowTaskResult:
        """Decide, read and write."""
        return _Run(self, attempt).run(tasks)


class _Run:
    """One run of a task."""

    def __init__(self, task: RowTask, attempt: str) -> None:
        self.task, self.attempt = task, attempt
        self.files = FileRows(task.table)
        self.whole = FullRowReader(task.target, self.files)
        self.deletes = PositionDeleteCollector(task.target, self.files)
        self.columns = cache(partial(top_fields, task.table.schemas[0]))
        self.to_update = cache(self._without_replaced)
        self.result = RowTaskResult()

    def run(self, tasks: Sequence[FileTask]) -> RowTaskResult:
        self.files.expect(task.file for task in tasks)
        rows = coalesce_batches(table for task in tasks for table in self._change(task))
        self.result.added_data = write_data_files(self.task.target, rows, file_name_token=self.attempt, sort=True)
        try:
            self.result.added_deletes = self.deletes.write(self.attempt)
        except BaseException:
            self.task.target.files.remove(self.result.added_data.path.to_pylist())
            raise
        self.result.removed_deletes += self.deletes.replaced
        return self.result

    def _change(self, task: FileTask) -> Iterator[pa.Table]:
        """Decide one file and yield the rows to write for it."""
        opened = self.files.open(task.file)
        planned = opened.planned_rows(self.columns(self.task.decision.fields(task.file)))
        changes = self.task.decision.decide(task.file, planned)
        if changes.matched_sources is not None:
            self.result.matched_sources |= changes.matched_sources
        if not len(changes.positions):
            return
        self._count(changes)
        if self.task.copies or self._is_emptied(opened, planned, changes):
            self._remove(task.file)
            if self.task.copies:
                yield from self._survivors(task, opened, RowSelection.from_rows(changes.positions))
        else:
            self.result.referenced.append(task.file.path)
            self.deletes.add(task.file, task.entry, changes.positions)
        yield from self._updated(task, opened, changes)

    def _count(self, changes: RowChanges) -> None:
        counts = np.bincount(changes.clause, minlength=len(self.task.decision.clauses)).tolist()
        updated = sum(n for n, clause in zip(counts, self.task.decision.clauses, strict=True) if clause.assignments)
        self.result.rows_updated += updated
        self.result.rows_deleted += sum(counts) - updated

    def _is_emptied(self, opened: OpenFile, planned: PlannedRows, changes: RowChanges) -> bool:
        if len(changes.positions) < planned.live_count:
            return False
        others = RowSelection.all_rows(opened.footer.num_rows).difference(opened.planned())
        return not opened.undeleted(others)

    def _remove(self, file: FileScan) -> None:
        self.result.removed_data.append(file.path)
        self.result.removed_deletes += file_scoped_deletes(file)

    def _survivors(self, task: FileTask, opened: OpenFile, gone: RowSelection) -> Iterator[pa.Table]:
        """The live rows that stay, row group by row group."""
        footer = opened.footer
        stay = opened.undeleted(RowSelection.all_rows(footer.num_rows)).difference(gone)
        for first, rows in zip(footer.first_rows.tolist(), footer.row_group_rows.tolist(), strict=True):
            part = stay.intersect(RowSelection.from_runs(np.array([first]), np.array([rows])))
            if part:
                yield self.whole.read(task, opened, part)

    def _updated(self, task: FileTask, opened: OpenFile, changes: RowChanges) -> Iterator[pa.Table]:
        """The updated rows, with their new values."""
        for number, clause in enumerate(self.task.decision.clauses):
            mine = changes.clause == number
            if clause.assignments is None or not mine.any():
                continue
            rows = self.to_update(number).read(task, opened, RowSelection.from_rows(changes.positions[mine]))
            source = None if changes.source is None else changes.source[mine]
            resolve = self.task.decision.resolver(rows, self.whole.schema, source)
            yield mark_updated(clause.assignments.update(rows, resolve, arrow_schema(self.whole.schema)))

    def _without_replaced(self, clause: int) -> FullRowReader:
        """Reads the columns of updated rows, without those that are replaced and that no expression reads."""
        assignments = self.task.decision.clauses[clause].assignments
        assert assignments is not None, "only updating clauses read rows"
        return FullRowReader(self.task.target, self.files, Schema(*assignments.kept_fields(self.whole.schema)))

"""Changing the rows of some data files: what one task does, on a Spark executor or in this process.

For each file: the rows that the plan left open and no delete removes are read in the columns the decision needs, and
decided. Only then, and only for files with a changed row, the other columns are read:

- merge-on-read: the changed rows become positions for a delete file or deletion vector, their new values new rows;
- copy-on-write: all rows that stay, and the new values, are written again, and the file is removed.

A file without a row left is removed in both ways. New rows take the target's spec; deletes keep the spec and tuple of
their data file. In format 3 rows keep their ``_row_id``, and those that stay the number of their last update too.

Memory: the columns of the decision for one file, and the rows of one row group.
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
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.parquet.prune.selection import RowSelection
from floeplan.scan.file_rows import FileRows, OpenFile, PlannedRows, TableRows
from floeplan.scan.model import FileScan
from floeplan.scan.projection import arrow_schema
from floeplan.write.data_files import coalesce_batches, write_data_files
from floeplan.write.full_rows import FileTask, FullRowReader, mark_updated
from floeplan.write.position_deletes import PositionDeleteCollector, file_scoped_deletes
from floeplan.write.target import WriteTarget


@dataclass(slots=True)
class RowTaskResult:
    """What a task did; only what is named here is committed."""

    added_data: EntriesTable | None = None
    added_deletes: EntriesTable | None = None
    removed_data: list[str] = field(default_factory=list)
    removed_deletes: list[DeleteFileId] = field(default_factory=list)
    referenced: list[str] = field(default_factory=list)
    rows_deleted: int = 0
    rows_updated: int = 0
    matched_sources: BitMap64 = field(default_factory=BitMap64)


@dataclass(frozen=True, slots=True)
class RowTask:
    """Changes the rows of a pack of files; pickled and sent to where it runs."""

    table: TableRows
    target: WriteTarget
    decision: Decision
    copies: bool

    def __call__(self, works: Sequence[FileTask], attempt: str) -> RowTaskResult:
        """Decide, read and write."""
        return _Run(self, attempt).run(works)


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

    def run(self, works: Sequence[FileTask]) -> RowTaskResult:
        self.files.expect(work.file for work in works)
        rows = coalesce_batches(table for work in works for table in self._change(work))
        self.result.added_data = write_data_files(self.task.target, rows, file_name_token=self.attempt, sort=True)
        try:
            self.result.added_deletes = self.deletes.write(self.attempt)
        except BaseException:
            self.task.target.files.remove(self.result.added_data.path.to_pylist())
            raise
        self.result.removed_deletes += self.deletes.replaced
        return self.result

    def _change(self, work: FileTask) -> Iterator[pa.Table]:
        """Decide about one file; the rows to be written for it."""
        opened = self.files.open(work.file)
        planned = opened.planned_rows(self.columns(self.task.decision.fields(work.file)))
        fates = self.task.decision.decide(work.file, planned)
        if fates.met is not None:
            self.result.matched_sources |= fates.met
        if not len(fates.positions):
            return
        self._count(fates)
        if self.task.copies or self._nothing_left(opened, planned, fates):
            self._remove(work.file)
            if self.task.copies:
                yield from self._survivors(work, opened, RowSelection.from_rows(fates.positions))
        else:
            self.result.referenced.append(work.file.path)
            self.deletes.add(work.file, work.entry, fates.positions)
        yield from self._updated(work, opened, fates)

    def _count(self, fates: RowChanges) -> None:
        counts = np.bincount(fates.clause, minlength=len(self.task.decision.clauses)).tolist()
        updated = sum(n for n, clause in zip(counts, self.task.decision.clauses, strict=True) if clause.assignments)
        self.result.rows_updated += updated
        self.result.rows_deleted += sum(counts) - updated

    def _nothing_left(self, opened: OpenFile, planned: PlannedRows, fates: RowChanges) -> bool:
        if len(fates.positions) < planned.live_count:
            return False
        others = RowSelection.all_rows(opened.footer.num_rows).difference(opened.planned())
        return not opened.undeleted(others)

    def _remove(self, file: FileScan) -> None:
        self.result.removed_data.append(file.path)
        self.result.removed_deletes += file_scoped_deletes(file)

    def _survivors(self, work: FileTask, opened: OpenFile, gone: RowSelection) -> Iterator[pa.Table]:
        """All live rows but those, row group by row group."""
        footer = opened.footer
        stay = opened.undeleted(RowSelection.all_rows(footer.num_rows)).difference(gone)
        for first, rows in zip(footer.first_rows.tolist(), footer.row_group_rows.tolist(), strict=True):
            part = stay.intersect(RowSelection.from_runs(np.array([first]), np.array([rows])))
            if part:
                yield self.whole.read(work, opened, part)

    def _updated(self, work: FileTask, opened: OpenFile, fates: RowChanges) -> Iterator[pa.Table]:
        """The new values of updated rows."""
        for number, clause in enumerate(self.task.decision.clauses):
            mine = fates.clause == number
            if clause.assignments is None or not mine.any():
                continue
            rows = self.to_update(number).read(work, opened, RowSelection.from_rows(fates.positions[mine]))
            source = None if fates.source is None else fates.source[mine]
            resolve = self.task.decision.resolver(rows, self.whole.schema, source)
            yield mark_updated(clause.assignments.update(rows, resolve, arrow_schema(self.whole.schema)))

    def _without_replaced(self, clause: int) -> FullRowReader:
        """Reads all but the columns whose new values do not depend on what they were."""
        assignments = self.task.decision.clauses[clause].assignments
        assert assignments is not None, "rows that are deleted get no new values"
        return FullRowReader(self.task.target, self.files, Schema(*assignments.kept_fields(self.whole.schema)))

"""Changing the rows of data files: one task, on a Spark executor or in this process.

For each file, the task reads the columns the decision needs, for the rows that the plan kept and no delete removes, and
decides which rows change. It reads the other columns only for files with a changed row:

- merge-on-read: the changed rows become position deletes or a deletion vector, their new values new rows;
- copy-on-write: the remaining rows and the new values are written again, and the file is removed.

A file without remaining rows is removed in both modes. New rows are written under the target's spec; deletes keep the
spec and partition of their data file.

Memory: the decision's columns of one file, and the rows of one row group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from floeplan.dml.assign import Assignments, top_fields
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.parquet.prune.selection import RowSelection
from floeplan.predicate.build import field_ids, has_opaque
from floeplan.predicate.rows.arrow_columns import Resolver, typed_columns_of
from floeplan.predicate.rows.evaluate import matching_mask
from floeplan.scan.delete_files import Positions
from floeplan.scan.file_rows import FileRows, OpenFile, PlannedRows, TableRows, shared_layouts
from floeplan.scan.model import FileScan
from floeplan.vectors import Ints, Mask
from floeplan.write.data_files import FileTask, FullRowReader, coalesce_batches, mark_updated, write_data_files
from floeplan.write.metrics import remove_written_files
from floeplan.write.position_deletes import PositionDeleteCollector, file_scoped_deletes
from floeplan.write.target import WriteTarget

# Which rows of a file change, decided on a few of its columns before any other column is read.
#
# A decision has clauses: each deletes rows or updates them. For one file it returns the rows that change and the number
# of the clause that applies to each; every other row stays. Files are decided independently, in parallel.
#
# Fail-safe: a deleted row never changes, and no expression that can fail is evaluated on it.


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The rows of a file that change, in file order.

    Attributes:
        positions: Their positions in the file.
        clause: The number of the clause that applies to each.
        source: In a merge, the source row that matched each of them, negative for none.
        matched_sources: In a merge, the source rows that matched any target row, changed or not.
    """

    positions: Positions
    clause: npt.NDArray[np.int16]
    source: Ints | None = None
    matched_sources: BitMap64 | None = None

    @classmethod
    def one_clause(cls, positions: Positions) -> RowChanges:
        """Rows that the first clause changes."""
        return cls(positions, np.zeros(len(positions), dtype=np.int16))


class Decision(ABC):
    """Chooses the rows of a file that change. By default they are deleted."""

    __slots__ = ()

    @property
    def clauses(self) -> tuple[Assignments | None, ...]:
        """What may apply to a row: assignments, which update it, or ``None``, which deletes it."""
        return (None,)

    @abstractmethod
    def fields(self, file: FileScan) -> frozenset[int]:
        """The fields the decision reads."""

    @abstractmethod
    def decide(self, file: FileScan, planned: PlannedRows) -> RowChanges:
        """The changes among the rows of the file that the plan kept."""

    def resolver(self, rows: pa.Table, schema: Schema, source: Ints | None) -> Resolver:
        """Resolves the columns of assignments, by default those of the row itself; ``source`` are matched rows."""
        return typed_columns_of(rows, schema)


@dataclass(frozen=True, slots=True)
class Matching(Decision):
    """Changes every row for which the plan's predicate is TRUE."""

    schema: Schema
    assignments: Assignments | None = None

    @property
    def clauses(self) -> tuple[Assignments | None, ...]:
        """The one clause."""
        return (self.assignments,)

    def fields(self, file: FileScan) -> frozenset[int]:
        """The fields of the residual."""
        return frozenset(field_ids(file.residual))

    def decide(self, file: FileScan, planned: PlannedRows) -> RowChanges:
        """Evaluate the residual."""
        # An opaque expression can fail on a deleted row, so those are filtered out first; otherwise evaluating all rows
        # is cheaper than copying the live ones.
        if has_opaque(file.residual):
            found = np.flatnonzero(self._mask(file, planned.undeleted(), planned.live_count))
            return RowChanges.one_clause(planned.undeleted_positions(found))
        return RowChanges.one_clause(
            planned.positions(self._mask(file, planned.rows, len(planned.live)) & planned.live)
        )

    def _mask(self, file: FileScan, rows: pa.Table, count: int) -> Mask:
        if rows.num_columns:
            return matching_mask(file.residual, rows, self.schema)
        return np.full(count, bool(matching_mask(file.residual, pa.table({"row": pa.nulls(1)}), Schema())[0]))


@dataclass(frozen=True, slots=True)
class DeletePositions(Decision):
    """Deletes rows whose positions are already known."""

    positions: Mapping[str, BitMap64]

    def fields(self, file: FileScan) -> frozenset[int]:
        """No fields."""
        return frozenset()

    def decide(self, file: FileScan, planned: PlannedRows) -> RowChanges:
        """The positions that are still live."""
        found = rows_of(self.positions[file.path])
        found = found[planned.selection.contains(found)]
        return RowChanges.one_clause(found[planned.live[planned.selection.rank(found)]])


def rows_of(numbers: BitMap64) -> Ints:
    """The values of a bitmap, ascending."""
    return np.frombuffer(numbers.to_array(), dtype=np.uint64).astype(np.int64)


# The task: change the rows of some files.


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
        return _Run(self, tasks, attempt).run()


class _Run:
    """One run of a task."""

    def __init__(self, task: RowTask, tasks: Sequence[FileTask], attempt: str) -> None:
        self.task, self.tasks, self.attempt = task, tasks, attempt
        self.files = FileRows(task.table)
        opened = (self.files.open(one.file) for one in tasks)
        self.layouts = shared_layouts(opened, task.target.stored_schema)
        self.whole = FullRowReader(task.target, self.files, layouts=self.layouts)
        self.deletes = PositionDeleteCollector(task.target, self.files)
        self.columns = cache(partial(top_fields, task.table.schemas[0]))
        self.to_update = cache(self._without_replaced)
        self.result = RowTaskResult()

    def run(self) -> RowTaskResult:
        self.files.expect(task.file for task in self.tasks)
        rows = coalesce_batches(table for task in self.tasks for table in self._change(task))
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
        clauses = self.task.decision.clauses
        counts = np.bincount(changes.clause, minlength=len(clauses)).tolist()
        updated = sum(n for n, assignments in zip(counts, clauses, strict=True) if assignments)
        self.result.rows_updated += updated
        self.result.rows_deleted += sum(counts) - updated
        # A file is emptied when no row stays, neither among the planned rows nor among the others.
        emptied = len(changes.positions) >= planned.live_count
        if emptied and not self.task.copies:
            emptied = not opened.undeleted(RowSelection.all_rows(opened.stored.num_rows).difference(opened.planned()))
        if self.task.copies or emptied:
            self.result.removed_data.append(task.file.path)
            self.result.removed_deletes += file_scoped_deletes(task.file)
            if self.task.copies:
                yield from self._survivors(task, opened, RowSelection.from_rows(changes.positions))
        else:
            self.result.referenced.append(task.file.path)
            self.deletes.add(task.file, task.entry, changes.positions)
        yield from self._updated(task, opened, changes)

    def _survivors(self, task: FileTask, opened: OpenFile, gone: RowSelection) -> Iterator[pa.Table]:
        """The live rows that stay, row group by row group."""
        stored = opened.stored
        stay = opened.undeleted(RowSelection.all_rows(stored.num_rows)).difference(gone)
        for first, rows in zip(stored.first_rows.tolist(), stored.row_group_rows.tolist(), strict=True):
            part = stay.intersect(RowSelection.from_runs(np.array([first]), np.array([rows])))
            if part:
                yield self.whole.read(task, opened, part)

    def _updated(self, task: FileTask, opened: OpenFile, changes: RowChanges) -> Iterator[pa.Table]:
        """The updated rows, with their new values."""
        for number, assignments in enumerate(self.task.decision.clauses):
            mine = changes.clause == number
            if assignments is None or not mine.any():
                continue
            rows = self.to_update(number).read(task, opened, RowSelection.from_rows(changes.positions[mine]))
            source = None if changes.source is None else changes.source[mine]
            resolve = self.task.decision.resolver(rows, self.whole.schema, source)
            yield mark_updated(assignments.update(rows, resolve, self.whole.arrow_schema))

    def _without_replaced(self, clause: int) -> FullRowReader:
        """Reads the columns of updated rows, without those that are replaced and that no expression reads."""
        assignments = self.task.decision.clauses[clause]
        assert assignments is not None, "only updating clauses read rows"
        kept = Schema(*assignments.kept_fields(self.whole.schema))
        return FullRowReader(self.task.target, self.files, kept, self.layouts)

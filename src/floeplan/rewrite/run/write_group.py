"""Writing the rows of one group: decode, apply deletes, sort by the strategy's order, and split into files.

The bytes of the old files are divided evenly over the expected number of new ones. The size of the first new file
corrects that number: where rows take less space than before, because of a better codec or many deletes, they go to
fewer files, so that the next rewrite finds no small ones. Sorting and clustering order the whole group, so new files
do not overlap. Rows that go to several partitions are sorted by partition first.

Memory: unsorted rows are streamed row group by row group. To be sorted, a group is buffered if it fits the memory of
the task (``sorting.BufferedRows``), and spills to disk if not (``sorting.sort_on_disk``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER_ID, SortField, SortOrder

from floeplan.formats.stored import PARQUET
from floeplan.metadata.manifests.entries import EntriesTable, concat_entries
from floeplan.parquet.prune.selection import RowSelection
from floeplan.partition.key import PartitionKey
from floeplan.rewrite.run.group import GroupAttempt, GroupTask, Runs, runs_of
from floeplan.rewrite.run.sorting import COPIES, ORDER_BYTES, BufferedRows, SortedFileWriter, sort_on_disk
from floeplan.rewrite.strategies.base import RowOrder, Strategy
from floeplan.rewrite.strategies.curves import SAMPLE_ROWS
from floeplan.scan.file_rows import OpenFile, shared_layouts
from floeplan.schemas import fields_by_id
from floeplan.tasks.runner import parallel_map, prefetch
from floeplan.vectors import Ints
from floeplan.write.conform import conform
from floeplan.write.data_files import DataFileWriter, FileTask, FullRowReader, full_schema
from floeplan.write.partitioning import FilePartition, partitions_of, split
from floeplan.write.target import WriteTarget

PROCESS_BYTES = 150 * 1024 * 1024
"""Memory of a task before it has read a row: the interpreter and the libraries."""
SLACK = 1.15
"""Factor for memory that was freed but not returned to the system."""

_NUMBER = "floeplan.row-number"
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """A row group of a source file: the index of the file in the group, the live rows to read, and all its rows."""

    source: int
    task: FileTask
    opened: OpenFile
    live: RowSelection
    rows: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows, their row numbers in reading order, and the fraction of the group's bytes that they are."""

    rows: pa.Table
    numbers: Ints
    share: float

    def slice(self, first: int, count: int) -> Batch:
        """Some of the rows."""
        return Batch(self.rows.slice(first, count), self.numbers[first : first + count], 0.0)


class GroupWriter:
    """Writes the live rows of a group to new files."""

    def __init__(self, attempt: GroupAttempt) -> None:
        self.attempt = attempt
        self.task, self.target = attempt.task, attempt.target
        opened = (attempt.files.open(task.file) for task in self.task.files)
        layouts = shared_layouts(opened, attempt.target.stored_schema)
        self.whole = FullRowReader(attempt.target, attempt.files, layouts=layouts)
        self.total_rows = max(1, sum(task.file.record_count for task in self.task.files))
        self._writer: DataFileWriter | None = None

    def write(self, written: ExitStack) -> EntriesTable:
        """Write the group; return the entries of the new files. ``written`` removes them on an error."""
        order, row_order = self.attempt.order, self._row_order()
        if row_order is None:
            return self._write_stream(self._rows(), written)
        batches = self._rows(self.attempt.threads)
        pieces, share = self._buffer(batches)
        if share < 1.0 - _ROUNDING:
            # Too large for memory: what was buffered so far and the rest are sorted on disk.
            tables = _with_numbers(chain(pieces, (batch.rows for batch in batches)))
            added = self._write_stream(self._sort_on_disk(row_order, tables, pieces, share), written)
        elif not pieces:
            return self._write_stream((), written)
        else:
            buffered = BufferedRows.of(pieces, row_order, self.attempt.threads)
            options = self.target.options
            if self.task.partition is None or options.bloom or options.format != PARQUET:
                # DataFileWriter splits by partition, and writes Bloom filters and all formats; the other writer encodes
                # row groups of Parquet in parallel.
                added = self._write_stream(self._sorted_batches(buffered), written)
            else:
                partition_of_all = FilePartition.of(self.target.union, self.task.partition)
                added = SortedFileWriter(self.attempt, partition_of_all, buffered).write(written)
        if order.order_id <= UNSORTED_SORT_ORDER_ID:
            return added
        # Files that are sorted by one of the table's own orders state it.
        at = added.table.schema.get_field_index("sort_order_id")
        column = pa.array([order.order_id] * len(added), added.table.schema.field(at).type)
        return EntriesTable(added.table.set_column(at, "sort_order_id", column), added.partition_types)

    def _row_order(self) -> RowOrder | None:
        """The order of the group; ``None`` when rows keep theirs."""
        return group_order(self.task, self.target, self.attempt.strategy, self.attempt.order)

    def _rows(self, threads: int = 1) -> Iterator[Batch]:
        """Read live rows, row group by row group."""
        total = max(1, self.task.bytes)
        for group, rows, found in parallel_map(self._read, self._row_groups(), threads):
            share = group.task.file.file_size * group.rows / max(1, group.opened.stored.num_rows) / total
            numbers = self.attempt.position_map.add_read(group.source, found.starts, found.counts)
            yield Batch(rows, np.arange(numbers.start, numbers.stop, dtype=np.int64), share)

    def _row_groups(self) -> Iterator[_RowGroup]:
        for source, task in enumerate(self.task.files):
            opened = self.attempt.files.open(task.file)
            stored = opened.stored
            live = opened.undeleted(RowSelection.all_rows(stored.num_rows))
            for first, count in zip(stored.first_rows.tolist(), stored.row_group_rows.tolist(), strict=True):
                yield _RowGroup(source, task, opened, live.intersect(RowSelection.from_runs([first], [count])), count)

    def _read(self, group: _RowGroup) -> tuple[_RowGroup, pa.Table, RowSelection]:
        rows, found = self.whole.read_with_positions(group.task, group.opened, group.live)
        return group, rows, found

    def _buffer(self, batches: Iterator[Batch]) -> tuple[list[pa.Table], float]:
        """Buffer rows until they exceed the memory; return them and the fraction of the group that they are.

        The first batch estimates the size of the group; later batches may still turn out to be larger.
        """
        pieces, share, size, rows = list[pa.Table](), 0.0, 0, 0
        for batch in batches:
            share += batch.share
            if not batch.rows.num_rows:
                continue
            pieces.append(conform(batch.rows, self.target.stored_schema, lineage=self.target.format_version > 2))
            size, rows = size + pieces[-1].nbytes, rows + batch.rows.num_rows
            expected = 1.0 if len(pieces) > 1 else min(1.0, share)
            # Bytes it takes to buffer and sort the group: the maximum of while sorting and while writing.
            buffered = size / expected
            largest: float = max(column.nbytes for column in pieces[0].columns) / max(1, pieces[0].nbytes)
            sorting = largest * buffered + ORDER_BYTES * rows / expected
            writing = 2 * self.attempt.threads * min(buffered, self.target.options.row_group_size)
            if PROCESS_BYTES + SLACK * (buffered + max(sorting, writing)) > self.attempt.memory:
                return pieces, min(share, 1.0 - 2 * _ROUNDING)
        return pieces, 1.0

    def _sorted_batches(self, buffered: BufferedRows) -> Iterator[Batch]:
        """Buffered rows in sorted order, a row group at a time."""
        step = max(1, int(len(buffered) * self.target.options.row_group_size / max(1, buffered.rows.nbytes)))
        for first in range(0, len(buffered), step):
            rows = buffered.sorted_rows(first, step)
            numbers = buffered.permutation[first : first + step].astype(np.int64)
            yield Batch(rows, numbers, rows.num_rows / len(buffered))

    def _sort_on_disk(
        self, order: RowOrder, tables: Iterator[pa.Table], buffered: Sequence[pa.Table], share: float
    ) -> Iterator[Batch]:
        """All rows of the group in sorted order, range by range."""
        size = sum(table.nbytes for table in buffered) / share
        row_groups = 2 * min(size, self.target.options.row_group_size)
        memory = max(self.attempt.memory / 4, self.attempt.memory - PROCESS_BYTES - row_groups)
        ranges = math.ceil(size * COPIES / memory)
        for table in prefetch(sort_on_disk(order, tables, self._sample_keys(order), ranges, self.total_rows)):
            numbers = np.asarray(table.column(_NUMBER))
            yield Batch(table.drop_columns([_NUMBER]), numbers, table.num_rows / self.total_rows)

    def _sample_keys(self, order: RowOrder) -> pa.Table:
        """Sample the key columns evenly over all row groups; deleted rows are harmless."""
        schema = order.key_schema
        every, seen, parts = max(1, -(-self.total_rows // SAMPLE_ROWS)), 0, []
        for task in self.task.files:
            opened = self.attempt.files.open(replace(task.file, deletes=()))
            stored = opened.stored
            for first, count in zip(stored.first_rows.tolist(), stored.row_group_rows.tolist(), strict=True):
                rows, _ = opened.read(schema, RowSelection.from_runs([first], [count]))
                parts.append(rows.take(pa.array(np.arange(-seen % every, rows.num_rows, every))))
                seen += rows.num_rows
        return pa.concat_tables(parts, promote_options="permissive")

    def _write_stream(self, batches: Iterable[Batch], written: ExitStack) -> EntriesTable:
        """Write batches as they come."""
        portions = groupby(_divide(batches, self.task.outputs, self._corrected_outputs), key=itemgetter(0))
        parts = [self._write_portion(written, number, (b for _, b in portion)) for number, portion in portions]
        return concat_entries(parts, self.target.union)

    def _write_portion(self, written: ExitStack, number: int, batches: Iterator[Batch]) -> EntriesTable:
        """Write one portion and record where each row went."""
        token = f"{self.attempt.token}-{number}"
        self._writer = writer = written.enter_context(
            DataFileWriter(self.target, file_name_token=token, partition=self.task.partition)
        )
        runs: dict[PartitionKey, list[Runs]] = {}
        for batch in batches:
            for key, numbers in self._numbers_by_partition(batch):
                runs.setdefault(key, []).append(runs_of(numbers))
            writer.write(batch.rows)
        added = writer.finish()
        # The files of a partition hold its rows one after the other.
        files: dict[PartitionKey, list[int]] = {}
        for row, partition in enumerate(partitions_of(added, self.target.union)):
            files.setdefault(partition.key, []).append(row)
        paths, counts = added.path.to_pylist(), added.record_count.tolist()
        for key, rows in files.items():
            self.attempt.position_map.add_written(
                [paths[row] for row in rows], [counts[row] for row in rows], runs[key]
            )
        return added

    def _numbers_by_partition(self, batch: Batch) -> Iterator[tuple[PartitionKey, Ints]]:
        """The row numbers of each partition."""
        if self.task.partition is not None:
            return iter([(self.task.partition, batch.numbers)])
        schema, union = self.target.stored_schema, self.target.union
        sources = {field.source_id for field in union.spec(self.task.output_spec_id).fields}
        tops = [top.name for top in schema.fields if not sources.isdisjoint(fields_by_id(Schema(top)))]
        numbered = batch.rows.select(tops).append_column(_NUMBER, pa.array(batch.numbers))
        parts = split(numbered, schema, union, self.task.output_spec_id)
        return ((key, np.asarray(part.column(_NUMBER))) for key, part in parts)

    def _corrected_outputs(self) -> int:
        """The number of files by the size of the first one; never more than expected."""
        if self._writer is None:  # all rows so far are deleted
            return self.task.outputs
        return min(self.task.outputs, self.task.sizes.expected_outputs(self._writer.flush() * self.task.outputs))


def group_order(task: GroupTask, target: WriteTarget, strategy: Strategy, order: SortOrder) -> RowOrder | None:
    """How the rows of a group are ordered; ``None`` when they keep their order."""
    if task.partition is None and strategy.partition_first:
        # Rows go to several partitions: sorted by partition first, each of them comes once.
        fields = target.union.spec(task.output_spec_id).fields
        partition = [SortField(field.source_id, field.transform) for field in fields if not field.is_void]
        order = SortOrder(*partition, *order.fields, order_id=order.order_id)
    return None if order.is_unsorted else strategy.row_order(full_schema(target), order)


def _with_numbers(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Append the row numbers in reading order as a column."""
    first = 0
    for table in tables:
        yield table.append_column(_NUMBER, pa.array(np.arange(first, first + table.num_rows)))
        first += table.num_rows


def _divide(batches: Iterable[Batch], portions: int, corrected: Callable[[], int]) -> Iterator[tuple[int, Batch]]:
    """Cut batches so that every portion has the same share; yield each with the number of its portion, ascending.

    Where the first portion would end, ``corrected`` returns how many there will be.
    """
    done, portion, is_corrected = 0.0, 0, False
    for batch in batches:
        start, rows, cut = done, batch.rows.num_rows, 0
        done += batch.share
        while portion < portions - 1 and done > (portion + 1) / portions:
            end = max(cut, int(rows * ((portion + 1) / portions - start) / batch.share))
            if end > cut:
                yield portion, batch.slice(cut, end - cut)
            cut = end
            # The first portion continues when there will be fewer of them than planned.
            planned, portions = portions, portions if is_corrected else corrected()
            portion += is_corrected or portions == planned
            is_corrected = True
        if rows > cut:
            yield portion, batch.slice(cut, rows - cut)

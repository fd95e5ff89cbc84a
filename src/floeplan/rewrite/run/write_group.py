"""Writing the rows of one group anew: read, deletes applied, put in order if there is one, and shared out over files.

The bytes of the old files are shared out evenly over the expected number of new ones. What the first of them comes to
tells how large the others will be: where rows take less room than before, because of a better codec or many deletes,
they are shared out over fewer, so that the next rewrite finds no small files. Sorting and clustering order the whole
group, so that new files follow each other. Rows that go to many partitions are put in the order of these.

Memory: without an order rows stream through, row group by row group; with one the group is held in memory if that fits
the budget of the task (``sorting.BufferedRows``), and put in order over local disk if not (``sorting.sort_on_disk``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER_ID, SortField, SortOrder

from floeplan.dml.row_task import FileTask, WholeRows
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.new_entries import concat_entries
from floeplan.parquet.prune.selection import RowSelection
from floeplan.partition.key import PartitionKey
from floeplan.rewrite.commit.compaction_map import Runs, runs_of
from floeplan.rewrite.run.ordered_files import OrderedFiles
from floeplan.rewrite.run.sorting import COPIES, ORDER_BYTES, BufferedRows, sort_on_disk
from floeplan.rewrite.run.work import GroupRun
from floeplan.rewrite.strategies.base import RowOrder
from floeplan.rewrite.strategies.curves import SAMPLE_ROWS
from floeplan.scan.file_rows import OpenFile
from floeplan.schemas import fields_by_id
from floeplan.tasks.threads import parallel_map, prefetch
from floeplan.vectors import Ints
from floeplan.write.conform import conform
from floeplan.write.data_files import DataFileWriter
from floeplan.write.partitioning import FilePartition, partitions_of, split

PROCESS_BYTES = 150 * 1024 * 1024
"""What a task takes before it has read a row: the interpreter and the libraries."""
SLACK = 1.15
"""What memory that was let go and not given back adds."""

_NUMBER = "floeplan.row-number"
_ROUNDING = 1e-6


class GroupWriter:
    """Writes the live rows of a group as new files."""

    def __init__(self, run: GroupRun) -> None:
        self.run = run
        self.work, self.target, self.moved = run.work, run.target, run.moved
        self.whole = WholeRows(run.target, run.files)
        self._writer: DataFileWriter | None = None

    def write(self, written: ExitStack) -> EntriesTable:
        """The entries of the new files; ``written`` removes them when it is left by an exception."""
        wanted = self._order()
        if wanted.is_unsorted:
            return self._streamed(self._rows(), written)
        order = self.run.strategy.row_order(self.whole.schema, wanted)
        batches = self._rows(self.run.threads)
        pieces, share = self._fitting(batches)
        if share < 1.0 - _ROUNDING:
            tables = _numbered(chain(pieces, (batch.rows for batch in batches)))
            return self._stating_order(self._streamed(self._over_disk(order, tables, pieces, share), written))
        if not pieces:
            return self._streamed((), written)
        held = BufferedRows.of(pieces, order, self.run.threads)
        if self.work.partition is None or self.target.options.bloom:
            return self._stating_order(self._streamed(self._picked(held), written))
        partition = FilePartition.of(self.target.union, self.work.partition)
        return self._stating_order(OrderedFiles(self.run, partition, held).write(written))

    def _order(self) -> SortOrder:
        """What rows are put in order by: where they go to many partitions first by these, so that each comes once."""
        if self.work.partition is not None or not self.run.strategy.partition_first:
            return self.run.order
        fields = self.target.union.spec(self.work.output_spec_id).fields
        partition = [SortField(field.source_id, field.transform) for field in fields if not field.is_void]
        return SortOrder(*partition, *self.run.order.fields, order_id=self.run.order.order_id)

    def _streamed(self, stream: Iterable[_Batch], written: ExitStack) -> EntriesTable:
        """Write rows as they come."""
        portions = groupby(_shared_out(stream, self.work.outputs, self._outputs), key=itemgetter(0))
        parts = [self._write_portion(written, number, (b for _, b in portion)) for number, portion in portions]
        return concat_entries(parts, self.target.union)

    def _rows(self, threads: int = 1) -> Iterator[_Batch]:
        """Live rows, row group by row group."""
        total = max(1, self.work.bytes)
        for piece, (rows, found) in parallel_map(self._read, self._pieces(), threads):
            share = piece.work.file.file_size * piece.rows / max(1, piece.opened.footer.num_rows) / total
            yield _Batch(rows, self.moved.read(piece.place, found.starts, found.counts), share)

    def _pieces(self) -> Iterator[_Piece]:
        """Row groups of all files, without the rows that are listed as deleted."""
        for place, work in enumerate(self.work.files):
            opened = self.run.files.open(work.file)
            footer = opened.footer
            live = opened.undeleted(RowSelection.all_rows(footer.num_rows))
            for first, count in zip(footer.first_rows.tolist(), footer.row_group_rows.tolist(), strict=True):
                part = live.intersect(RowSelection.from_runs([first], [count]))
                yield _Piece(place, work, opened, part, count)

    def _read(self, piece: _Piece) -> tuple[_Piece, tuple[pa.Table, RowSelection]]:
        rows, found = self.whole.located(piece.work, piece.opened, piece.part)
        return piece, (rows, found)

    def _fitting(self, batches: Iterator[_Batch]) -> tuple[list[pa.Table], float]:
        """Rows to hold in memory, and the share of the group that they are: not all of it when it does not fit.

        The first rows tell how large the whole will be; the others may still turn out to be larger.
        """
        pieces, share, size, rows = list[pa.Table](), 0.0, 0, 0
        for batch in batches:
            share += batch.share
            if not batch.rows.num_rows:
                continue
            pieces.append(self._in_layout(batch.rows))
            size, rows = size + pieces[-1].nbytes, rows + batch.rows.num_rows
            expected = 1.0 if len(pieces) > 1 else min(1.0, share)
            if self._needed(pieces[0], size / expected, rows / expected) > self.run.memory:
                return pieces, min(share, 1.0 - 2 * _ROUNDING)
        return pieces, 1.0

    def _needed(self, sample: pa.Table, size: float, rows: float) -> float:
        """Bytes it takes to hold so many rows and put them in order: while they are sorted, and while written."""
        largest: float = max(column.nbytes for column in sample.columns) / max(1, sample.nbytes)
        row_group = min(size, self.target.options.row_group_size)
        sorting, writing = largest * size + ORDER_BYTES * rows, 2 * self.run.threads * row_group
        return PROCESS_BYTES + SLACK * (size + max(sorting, writing))

    def _in_layout(self, rows: pa.Table) -> pa.Table:
        """Rows as files hold them."""
        return conform(rows, self.target.stored_schema, lineage=self.target.format_version > 2)

    def _picked(self, held: BufferedRows) -> Iterator[_Batch]:
        """Held rows in order, a row group at a time."""
        step = max(1, int(len(held) * self.target.options.row_group_size / max(1, held.rows.nbytes)))
        for first in range(0, len(held), step):
            rows = held.sorted_rows(first, step)
            numbers = held.permutation[first : first + step].astype(np.int64)
            yield _Batch(rows, numbers, rows.num_rows / len(held))

    def _over_disk(
        self, order: RowOrder, tables: Iterator[pa.Table], seen: Sequence[pa.Table], share: float
    ) -> Iterator[_Batch]:
        """All rows of the group in order, range by range."""
        size = sum(table.nbytes for table in seen) / share
        row_groups = 2 * min(size, self.target.options.row_group_size)
        memory = max(self.run.memory / 4, self.run.memory - PROCESS_BYTES - row_groups)
        ranges = math.ceil(size * COPIES / memory)
        total = max(1, sum(work.file.record_count for work in self.work.files))
        for table in prefetch(sort_on_disk(order, tables, self._sample(order), ranges, total)):
            yield _Batch.of(table, table.num_rows / total)

    def _sample(self, order: RowOrder) -> pa.Table:
        """Some rows of the key columns, evenly spread over all row groups; deleted ones do no harm."""
        schema, total = order.key_schema, sum(work.file.record_count for work in self.work.files)
        every, seen, parts = max(1, -(-total // SAMPLE_ROWS)), 0, []
        for work in self.work.files:
            opened = self.run.files.open(replace(work.file, deletes=()))
            footer = opened.footer
            for first, count in zip(footer.first_rows.tolist(), footer.row_group_rows.tolist(), strict=True):
                rows, _ = opened.read(schema, RowSelection.from_runs([first], [count]))
                parts.append(rows.take(pa.array(np.arange(-seen % every, rows.num_rows, every))))
                seen += rows.num_rows
        return pa.concat_tables(parts, promote_options="permissive")

    def _write_portion(self, written: ExitStack, number: int, batches: Iterator[_Batch]) -> EntriesTable:
        """Write the rows of one portion and note where each went."""
        self._writer = writer = written.enter_context(
            DataFileWriter(self.target, file_name_token=f"{self.run.token}-{number}", partition=self.work.partition)
        )
        runs: dict[PartitionKey, list[Runs]] = {}
        for batch in batches:
            for key, numbers in self._numbers(batch):
                runs.setdefault(key, []).append(runs_of(numbers))
            writer.write(batch.rows)
        added = writer.finish()
        self._note(added, runs)
        return added

    def _outputs(self) -> int:
        """How many files it will be, by what the first of the expected number came to; never more of them."""
        if self._writer is None:  # all rows so far are deleted
            return self.work.outputs
        return min(self.work.outputs, self.work.sizes.expected_outputs(self._writer.flush() * self.work.outputs))

    def _numbers(self, batch: _Batch) -> Iterator[tuple[PartitionKey, Ints]]:
        """The numbers of the rows of each partition."""
        if self.work.partition is not None:
            return iter([(self.work.partition, batch.numbers)])
        schema, union = self.target.stored_schema, self.target.union
        sources = {field.source_id for field in union.spec(self.work.output_spec_id).fields}
        tops = [top.name for top in schema.fields if not sources.isdisjoint(fields_by_id(Schema(top)))]
        numbered = batch.rows.select(tops).append_column(_NUMBER, pa.array(batch.numbers))
        parts = split(numbered, schema, union, self.work.output_spec_id)
        return ((key, np.asarray(part.column(_NUMBER))) for key, part in parts)

    def _note(self, added: EntriesTable, runs: Mapping[PartitionKey, Sequence[Runs]]) -> None:
        """A partition's files hold its rows one after the other."""
        paths, counts = added.path.to_pylist(), added.record_count.tolist()
        files: dict[PartitionKey, list[int]] = {}
        for place, partition in enumerate(partitions_of(added, self.target.union)):
            files.setdefault(partition.key, []).append(place)
        for key, places in files.items():
            self.moved.wrote([paths[at] for at in places], [counts[at] for at in places], runs[key])

    def _stating_order(self, added: EntriesTable) -> EntriesTable:
        """Files in the table's own order say so."""
        if self.run.order.order_id <= UNSORTED_SORT_ORDER_ID:
            return added
        at = added.table.schema.get_field_index("sort_order_id")
        column = pa.array([self.run.order.order_id] * len(added), added.table.schema.field(at).type)
        return EntriesTable(added.table.set_column(at, "sort_order_id", column), added.partition_types)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A row group of a file: which file of the group that is, the rows to be read of it, and how many it has."""

    place: int
    work: FileTask
    opened: OpenFile
    part: RowSelection
    rows: int


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows, their numbers in the order of reading, and the share of all bytes of the group that they are."""

    rows: pa.Table
    numbers: Ints
    share: float

    @classmethod
    def of(cls, numbered: pa.Table, share: float) -> _Batch:
        """Rows whose numbers are a column."""
        return cls(numbered.drop_columns([_NUMBER]), np.asarray(numbered.column(_NUMBER)), share)

    def slice(self, first: int, count: int) -> _Batch:
        """Some of the rows."""
        return _Batch(self.rows.slice(first, count), self.numbers[first : first + count], 0.0)


def _numbered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Rows in the order of reading with their numbers as a column."""
    first = 0
    for table in tables:
        yield table.append_column(_NUMBER, pa.array(np.arange(first, first + table.num_rows)))
        first += table.num_rows


def _shared_out(stream: Iterable[_Batch], portions: int, measured: Callable[[], int]) -> Iterator[tuple[int, _Batch]]:
    """Batches cut so that every portion gets the same share, each with the number of its portion, ascending.

    Where the first portion would end, ``measured`` tells how many there will be.
    """
    done, portion, asked = 0.0, 0, False
    for batch in stream:
        start, rows, cut = done, batch.rows.num_rows, 0
        done += batch.share
        while portion < portions - 1 and done > (portion + 1) / portions:
            end = max(cut, int(rows * ((portion + 1) / portions - start) / batch.share))
            if end > cut:
                yield portion, batch.slice(cut, end - cut)
            cut = end
            planned, portions = portions, portions if asked else measured()
            portion += asked or portions == planned
            asked = True
        if rows > cut:
            yield portion, batch.slice(cut, rows - cut)

"""Writing the rows of one group anew: read, deletes applied, put in order if there is one, and shared out over files.

The bytes of the old files are shared out evenly over the expected number of new ones. What the first of them comes to
tells how large the others will be: where rows take less room than before, because of a better codec or many deletes,
they are shared out over fewer, so that the next rewrite finds no small files. Sorting and clustering order the whole
group, so that new files follow each other.

Memory: without an order rows stream through, row group by row group; with one the group is held in memory if it fits
the budget of the task, and put in order over local disk if not (``group_order``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from floeplan.dml.row_task import WholeRows
from floeplan.metadata.entries import EntriesTable
from floeplan.parquet.selection import RowSelection
from floeplan.partition.key import PartitionKey
from floeplan.rewrite.ahead import ahead
from floeplan.rewrite.compaction_map import Ints, Runs, runs_of
from floeplan.rewrite.group_order import COPIES, SAMPLE_ROWS, GroupOrder
from floeplan.rewrite.group_run import GroupRun
from floeplan.rewrite.orders import NOT_OF_THE_TABLE
from floeplan.transaction.entry_tables import concat_entries
from floeplan.write.data_files import DataFileWriter
from floeplan.write.partitioning import partitions_of, split

_NUMBER = "floeplan.row-number"


class GroupWriter:
    """Writes the live rows of a group as new files."""

    def __init__(self, run: GroupRun) -> None:
        self.run = run
        self.work, self.target, self.moved = run.work, run.target, run.moved
        self.whole = WholeRows(run.target, run.files)
        self._writer: DataFileWriter | None = None

    def write(self, written: ExitStack) -> EntriesTable:
        """The entries of the new files; ``written`` removes them when it is left by an exception."""
        stream = self._rows() if self.run.order.is_unsorted else self._ordered()
        portions = groupby(_shared_out(stream, self.work.outputs, self._outputs), key=itemgetter(0))
        parts = [self._write_portion(written, number, (b for _, b in portion)) for number, portion in portions]
        return self._stating_order(concat_entries(parts, self.target.union))

    def _rows(self) -> Iterator[_Batch]:
        """Live rows, row group by row group."""
        total = max(1, self.work.bytes)
        for place, work in enumerate(self.work.files):
            opened = self.run.files.open(work.file)
            footer = opened.footer
            live = opened.undeleted(RowSelection.all_rows(footer.num_rows))
            for first, count in zip(footer.first_rows.tolist(), footer.row_group_rows.tolist(), strict=True):
                part = live.intersect(RowSelection.from_runs([first], [count]))
                share = work.file.file_size * count / max(1, footer.num_rows) / total
                rows, found = self.whole.located(work, opened, part)
                yield _Batch(rows, self.moved.read(place, found.starts, found.counts), share)

    def _ordered(self) -> Iterator[_Batch]:
        """All rows of the group in one order, at once or range by range."""
        order = GroupOrder(self.whole.schema, self.run.order, self.run.strategy)
        rows = self._rows()
        seen = list(_until_rows(rows))
        read = sum(batch.share for batch in seen)
        size = sum(batch.rows.nbytes for batch in seen) / read if read else 0
        ranges = -(-int(size * COPIES) // self.run.memory)
        tables = (batch.numbered() for batch in chain(seen, rows))
        if ranges <= 1:
            whole = list(tables)
            yield from (_Batch.of(order.ordered(pa.concat_tables(whole)), 1.0) for _ in whole[:1])
            return
        total = max(1, sum(work.file.record_count for work in self.work.files))
        for table in ahead(order.ordered_on_disk(tables, self._sample(order), ranges, total)):
            yield _Batch.of(table, table.num_rows / total)

    def _sample(self, order: GroupOrder) -> pa.Table:
        """Some rows of the key columns, evenly spread; deleted ones do no harm."""
        schema, total = order.key_schema, sum(work.file.record_count for work in self.work.files)
        every, parts = max(1, -(-total // SAMPLE_ROWS)), []
        for work in self.work.files:
            opened = self.run.files.open(replace(work.file, deletes=()))
            footer = opened.footer
            for first, count in zip(footer.first_rows.tolist(), footer.row_group_rows.tolist(), strict=True):
                rows, _ = opened.read(schema, RowSelection.from_runs([first], [count]))
                parts.append(rows.take(pa.array(np.arange(0, rows.num_rows, every))))
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
        tops = [top.name for top in schema.fields if not sources.isdisjoint(Schema(top)._lazy_id_to_field)]
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
        if self.run.strategy != "sort" or self.run.order.order_id == NOT_OF_THE_TABLE:
            return added
        at = added.table.schema.get_field_index("sort_order_id")
        column = pa.array([self.run.order.order_id] * len(added), added.table.schema.field(at).type)
        return EntriesTable(added.table.set_column(at, "sort_order_id", column), added.partition_types)


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

    def numbered(self) -> pa.Table:
        """The rows with their numbers as a column."""
        return self.rows.append_column(_NUMBER, pa.array(self.numbers))

    def slice(self, first: int, count: int) -> _Batch:
        """Some of the rows."""
        return _Batch(self.rows.slice(first, count), self.numbers[first : first + count], 0.0)


def _until_rows(stream: Iterator[_Batch]) -> Iterator[_Batch]:
    """The first batches, up to one that has rows."""
    for batch in stream:
        yield batch
        if batch.rows.num_rows:
            return


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

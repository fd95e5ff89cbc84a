"""Sorting the rows of one group within a memory budget.

A group that fits is buffered in memory and written through a permutation (``BufferedRows``). A larger one spills to
disk (``sort_on_disk``): a sample of the key columns chooses ranges that fit into memory; rows are streamed and appended
to the file of their range; then each range is read back and sorted. Every row is written to local disk once and read
once. The steps overlap, each one piece ahead of the next.

Fail-safe: range files are in a temporary directory that is removed however the rewrite ends.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from pathlib import Path

import pyarrow as pa

from floeplan.metadata.files import writing
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.parquet.footer.footer import decode_footer
from floeplan.rewrite.pages.new_file import Chunk, JoinedFile, encoded_chunks, encoded_footer
from floeplan.rewrite.run.group import GroupAttempt, runs_of_one
from floeplan.rewrite.strategies.base import RowOrder
from floeplan.tasks.runner import parallel_map, prefetch
from floeplan.write.data_files import data_entry
from floeplan.write.metrics import FileEntry, added_entries
from floeplan.write.parquet_file import (
    RowGroupMetrics,
    WrittenFile,
    encoded_file,
    high_cardinality_columns,
    row_group_metrics,
)
from floeplan.write.partitioning import FilePartition, RowNumbers, divide

COPIES = 4
"""Copies of a range in memory: its rows, the sorted rows, the encoded ones, and the previous range being written."""
ORDER_BYTES = 24
"""Bytes per row that computing the permutation takes."""
_FULL_ENOUGH = 0.9
"""A file this close to its maximum size takes no further row group."""


@dataclass(frozen=True, slots=True)
class BufferedRows:
    """Rows of a group as they were read, and the permutation that sorts them.

    Rows are never sorted as a whole: a writer takes those of one row group at a time. Each column is one chunk, because
    ``take`` from many chunks takes twice the time.

    Memory: the rows, four bytes per row for the permutation, and a second copy of one column while its chunks are
    combined.
    """

    rows: pa.Table
    permutation: RowNumbers

    @classmethod
    def of(cls, pieces: list[pa.Table], order: RowOrder, threads: int) -> BufferedRows:
        """Combine pieces; empties the list, so that each piece is freed as soon as it is copied."""
        schema = pieces[0].schema
        columns = [list(column) for column in zip(*(piece.columns for piece in pieces), strict=True)]
        pieces.clear()

        def combine(at: int) -> pa.ChunkedArray:
            chunks = [chunk for column in columns[at] for chunk in column.chunks]
            columns[at].clear()
            one = pa.chunked_array(chunks, schema.field(at).type)
            return pa.table([one], schema=pa.schema([schema.field(at)])).combine_chunks().column(0)

        keys = [schema.get_field_index(field.name) for field in order.key_schema.fields]
        others = [at for at in range(len(schema)) if at not in keys]
        combined = dict(zip(keys, parallel_map(combine, keys, threads), strict=True))
        key_rows = pa.table([combined[at] for at in keys], schema=pa.schema([schema.field(at) for at in keys]))
        # The permutation needs the keys only: with several threads it is computed while other columns are combined.
        with ThreadPoolExecutor(1, "floeplan-order") as beside:
            permutation = beside.submit(order.permutation, key_rows)
            if threads <= 1:
                permutation.result()
            combined |= dict(zip(others, parallel_map(combine, others, threads - 1), strict=True))
            return cls(pa.table([combined[at] for at in range(len(schema))], schema=schema), permutation.result())

    def __len__(self) -> int:
        return len(self.permutation)

    def sorted_rows(self, first: int, count: int, columns: Sequence[str] | None = None) -> pa.Table:
        """``count`` sorted rows, of some columns or all."""
        rows = self.rows if columns is None else self.rows.select(columns)
        return rows.take(pa.array(self.permutation[first : first + count]))


def sort_on_disk(
    order: RowOrder, rows: Iterable[pa.Table], sample: pa.Table, ranges: int, total_rows: int
) -> Iterator[pa.Table]:
    """Sort rows in ranges on local disk; ``sample`` has the columns of ``order.key_schema``."""
    chosen = order.ranges(sample, ranges, total_rows)

    def split_by_range(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The rows of each range, in the order they have."""
        return divide(*chosen.assign(table))

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="floeplan-rewrite-")))
        files: dict[int, _RangeFile] = {}
        filled = (table for table in rows if table.num_rows)
        for parts in prefetch(list(split_by_range(table)) for table in prefetch(filled)):
            for number, part in parts:
                if number not in files:
                    files[number] = _RangeFile(folder / f"{number}.arrow", part.schema)
                    stack.callback(files[number].close)
                files[number].write(part)
        for number in sorted(files):
            pieces = files[number].read()
            # Keys of an odd range are all equal: its rows are streamed in the order they have.
            yield from map(chosen.plain, pieces) if number % 2 else [chosen.sorted(pa.concat_tables(pieces))]


class _RangeFile:
    """The rows of one range on local disk."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._sink = pa.OSFile(str(path), "wb")
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(self._sink, schema, options=options)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def close(self) -> None:
        """Nothing can be written after; may be called again."""
        if not self._sink.closed:
            self._writer.close()
            self._sink.close()

    def read(self) -> Iterator[pa.Table]:
        """All rows, piece by piece as they were written."""
        self.close()
        with pa.OSFile(str(self._path), "rb") as source:
            for batch in pa.ipc.open_stream(source):
                yield pa.Table.from_batches([batch])
        self._path.unlink()


@dataclass(frozen=True, slots=True)
class _Span:
    """Sorted rows for one row group: the number of their file, the first of them, and their count."""

    file: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """An encoded row group."""

    span: _Span
    chunks: Sequence[Chunk]
    metrics: RowGroupMetrics

    @property
    def size(self) -> int:
        """Bytes in the file, including its metadata."""
        pages = sum(len(piece) for chunk in self.chunks for piece in chunk.pieces)
        return pages + sum(len(c.column_index) + len(c.offset_index(0)) + len(c.metadata(0)) for c in self.chunks)


class SortedFileWriter:
    """Writes buffered rows, all of one partition, to new files; several threads gather and encode row groups.

    A row group is encoded on its own, in memory, and appended to its file after those before it: only encoding takes
    time, and no row group waits for another. Rows are divided evenly over the expected number of files, which the size
    of the first file corrects (``FileSizes.expected_outputs``). A file that becomes too large is closed, and another
    one is started.

    Memory: per thread an encoded row group and one decoded column of it.
    """

    def __init__(self, attempt: GroupAttempt, partition: FilePartition, buffered: BufferedRows) -> None:
        self.attempt, self.partition, self.buffered, self.target = attempt, partition, buffered, attempt.target
        self._blank = encoded_footer(encoded_file(buffered.rows.schema.empty_table(), attempt.target.options))
        self._paths = [leaf.path for leaf in decode_footer(self._blank, "the table", len(self._blank)).leaves]
        self._plain = high_cardinality_columns(buffered.rows)

    def write(self, written: ExitStack) -> EntriesTable:
        """Write the rows; return the entries of the new files. ``written`` removes them when it exits with an error."""
        entries: list[FileEntry] = []
        for _, of_file in groupby(self._row_groups(), key=lambda group: group.span.file):
            groups = iter(of_file)
            for group in groups:  # a file that is full takes no more row groups: the next file takes the rest
                entries.append(self._write_file(written, len(entries), chain([group], groups)))
        return added_entries(entries, self.target.union)

    def _row_groups(self) -> Iterator[_RowGroup]:
        """Encode row groups in order; the size of those of the first file corrects the number of files."""
        rows, outputs = len(self.buffered), self.attempt.task.outputs
        size, begun = len(self._blank), rows // outputs
        for group in parallel_map(self._encode, self._spans(0, 0, begun), self.attempt.threads):
            size += group.size
            yield group
        files = min(outputs, self.attempt.task.sizes.expected_outputs(size * outputs))
        ends = [rows * number // files for number in range(1, files + 1)]
        spans = (self._spans(number, *span) for number, span in enumerate(pairwise([begun, *ends])))
        yield from parallel_map(self._encode, chain.from_iterable(spans), self.attempt.threads)

    def _spans(self, file: int, first: int, end: int) -> Iterator[_Span]:
        """Divide rows into row groups of equal size, none larger than the row group size of the table."""
        options, share = self.target.options, (end - first) / len(self.buffered)
        groups = max(
            self.buffered.rows.nbytes * share / options.row_group_size,
            self.attempt.task.bytes * share / options.target_file_size,
        )
        step = max(1, -(-(end - first) // max(1, math.ceil(groups))))
        return (_Span(file, at, min(step, end - at)) for at in range(first, end, step))

    def _encode(self, span: _Span) -> _RowGroup:
        """Encode column by column, while the values that were just gathered are in the CPU cache."""
        chunks, metrics = dict[tuple[str, ...], Chunk](), list[RowGroupMetrics]()
        for column in self.buffered.rows.column_names:
            rows = self.buffered.sorted_rows(span.first, span.count, [column])
            chunks |= encoded_chunks(encoded_file(rows, self.target.options, self._plain))
            metrics.append(row_group_metrics(rows))
        return _RowGroup(span, [chunks[path] for path in self._paths], RowGroupMetrics.merged(metrics))

    def _write_file(self, written: ExitStack, number: int, groups: Iterator[_RowGroup]) -> FileEntry:
        """Write a file of the next row groups, until it is full."""
        path = self.attempt.new_file(written, self.partition, number)
        metrics, first, size = list[RowGroupMetrics](), 0, 0
        with writing(path), self.target.io.new_output(path).create() as out:
            file = JoinedFile(out, path, self._blank)
            for group in groups:
                first = first if metrics else group.span.first
                file.add(group.span.count, group.chunks)
                metrics.append(group.metrics)
                size += group.size
                if size >= _FULL_ENOUGH * self.target.options.target_file_size:
                    break
            size, footer = file.finish()
        numbers = self.buffered.permutation[first : first + footer.num_rows]
        self.attempt.position_map.add_written([path], [footer.num_rows], [runs_of_one(numbers)])
        return data_entry(self.target, WrittenFile(path, size, footer, tuple(metrics)), self.partition)

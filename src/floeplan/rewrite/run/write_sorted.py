"""Writing buffered rows in sorted order: several threads gather and encode row groups.

A row group is encoded on its own, in memory, and appended to its file after those before it: only encoding takes time,
and no row group waits for another.

Rows are divided evenly over the expected number of files, which the size of the first file corrects
(``FileSizes.expected_outputs``). A file that becomes too large is closed, and another one is started.

Memory: per thread an encoded row group and one decoded column of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, groupby, pairwise

from floeplan.metadata.files import writing
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.parquet.footer.footer import decode_footer
from floeplan.rewrite.pages.joined_file import Chunk, JoinedFile, encoded_chunks, encoded_footer
from floeplan.rewrite.run.group_task import GroupAttempt
from floeplan.rewrite.run.position_map import runs_of_one
from floeplan.rewrite.run.sorting import BufferedRows
from floeplan.tasks.threads import parallel_map
from floeplan.write.data_files import data_entry
from floeplan.write.file_entries import FileEntry, added_entries
from floeplan.write.parquet_file import (
    RowGroupMetrics,
    WrittenFile,
    encoded_file,
    high_cardinality_columns,
    row_group_metrics,
)
from floeplan.write.partitioning import FilePartition

_FULL_ENOUGH = 0.9
"""A file this close to its maximum size takes no further row group."""


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
    """Writes buffered rows, all of one partition, to new files."""

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
            rows = self.buffered.sorted_column(column, span.first, span.count)
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

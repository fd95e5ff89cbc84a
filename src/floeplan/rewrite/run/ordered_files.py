"""Files of rows that are held in memory, in order: row groups are picked and encoded by several threads.

A row group is encoded by itself, in memory, and put into its file when those before it are there: only the encoding
takes time, and no row group waits for another one.

The rows are shared out evenly over the expected number of files. What the first of them comes to tells how many it will
be (``FileSizes.expected_outputs``). A file that became large before its end is closed, and another one is begun.

Memory: for each thread an encoded row group, and one column of it as rows.
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
from floeplan.rewrite.commit.compaction_map import each_alone
from floeplan.rewrite.pages.joined_file import Chunk, JoinedFile, encoded_chunks, encoded_footer
from floeplan.rewrite.run.sorting import BufferedRows
from floeplan.rewrite.run.stitch_group import removing
from floeplan.rewrite.run.work import GroupRun
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
"""A file this near to where it must end is not worth another row group."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows for one row group: the number of their file, where they begin in the order, and how many there are."""

    file: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """An encoded row group."""

    span: _Span
    chunks: Sequence[Chunk]
    facts: RowGroupMetrics

    @property
    def size(self) -> int:
        """Bytes it takes in a file, with what the file will say of it."""
        pages = sum(len(piece) for chunk in self.chunks for piece in chunk.pieces)
        return pages + sum(len(c.column_index) + len(c.offset_index(0)) + len(c.metadata(0)) for c in self.chunks)


class OrderedFiles:
    """Writes held rows, all of one partition, as new files."""

    def __init__(self, run: GroupRun, partition: FilePartition, held: BufferedRows) -> None:
        self.run, self.partition, self.held, self.target = run, partition, held, run.target
        self._blank = encoded_footer(encoded_file(held.rows.schema.empty_table(), run.target.options))
        self._paths = [leaf.path for leaf in decode_footer(self._blank, "the table", len(self._blank)).leaves]
        self._plain = high_cardinality_columns(held.rows)

    def write(self, written: ExitStack) -> EntriesTable:
        """The entries of the new files; ``written`` removes them when it is left by an exception."""
        entries: list[FileEntry] = []
        for _, of_file in groupby(self._row_groups(), key=lambda group: group.span.file):
            groups = iter(of_file)
            for group in groups:  # as long as there are some: a file that is full takes no more of them
                entries.append(self._file(written, len(entries), chain([group], groups)))
        return added_entries(entries, self.target.union)

    def _row_groups(self) -> Iterator[_RowGroup]:
        """Row groups in order; those of the first file tell how many files there will be."""
        rows, outputs = len(self.held), self.run.work.outputs
        size, begun = len(self._blank), rows // outputs
        for group in self._encoded(self._spans(0, 0, begun)):
            size += group.size
            yield group
        files = min(outputs, self.run.work.sizes.expected_outputs(size * outputs))
        ends = [rows * number // files for number in range(1, files + 1)]
        spans = (self._spans(number, *span) for number, span in enumerate(pairwise([begun, *ends])))
        yield from self._encoded(chain.from_iterable(spans))

    def _spans(self, file: int, first: int, end: int) -> Iterator[_Span]:
        """Rows for row groups of equal size, none of which is larger than it should be."""
        options, share = self.target.options, (end - first) / len(self.held)
        wanted = max(
            self.held.rows.nbytes * share / options.row_group_size,
            self.run.work.bytes * share / options.target_file_size,
        )
        step = max(1, -(-(end - first) // max(1, math.ceil(wanted))))
        return (_Span(file, at, min(step, end - at)) for at in range(first, end, step))

    def _encoded(self, spans: Iterator[_Span]) -> Iterator[_RowGroup]:
        return parallel_map(self._encode, spans, self.run.threads)

    def _encode(self, span: _Span) -> _RowGroup:
        """Column by column: what was picked of one is encoded while it is still at hand."""
        chunks, facts = dict[tuple[str, ...], Chunk](), list[RowGroupMetrics]()
        for column in self.held.rows.column_names:
            rows = self.held.sorted_column(column, span.first, span.count)
            chunks |= encoded_chunks(encoded_file(rows, self.target.options, self._plain))
            facts.append(row_group_metrics(rows))
        return _RowGroup(span, [chunks[path] for path in self._paths], RowGroupMetrics.merged(facts))

    def _file(self, written: ExitStack, number: int, groups: Iterator[_RowGroup]) -> FileEntry:
        """Write a file of the next row groups, until it is full."""
        target = self.target
        name = f"{target.file_name(f'{self.run.token}-{number}')}.parquet"
        path = target.new_location(name, self.partition.key)
        written.push(removing(target.files, path))
        facts, first, size = list[RowGroupMetrics](), 0, 0
        with writing(path), target.io.new_output(path).create() as out:
            file = JoinedFile(out, path, self._blank)
            for group in groups:
                first = first if facts else group.span.first
                file.add(group.span.count, group.chunks)
                facts.append(group.facts)
                size += group.size
                if size >= _FULL_ENOUGH * target.options.target_file_size:
                    break
            size, footer = file.finish()
        self.run.moved.wrote(
            [path], [footer.num_rows], [each_alone(self.held.permutation[first : first + footer.num_rows])]
        )
        return data_entry(target, WrittenFile(path, size, footer, tuple(facts)), self.partition)

"""Joining the files of one group into one: small row groups become large ones, built from encoded pages where possible.

Pages that fit the new file (``CopyablePages``) are copied, which costs next to nothing. Pages with deleted rows, and
pages that refer to a dictionary, are re-encoded without building their values (``filtered_pages``). Only the other
columns are decoded and encoded, among them columns that a file does not have yet and, in format 3, the row lineage.
This is decided for each new row group.

Fail-safe: a column with an unsupported page is decoded and encoded.

Memory: one row group, encoded, before and after, and those of its columns that are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from floeplan.formats.stored import PARQUET
from floeplan.metadata.files import writing
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.opaque_types import is_variant
from floeplan.parquet.footer.footer import ChunkLocation, decode_footer
from floeplan.parquet.pages.data_pages import UNSUPPORTED_PAGE
from floeplan.parquet.prune.selection import RowSelection
from floeplan.rewrite.pages.column_chunk import CODECS, CopyablePages, PageChunk, PageRun
from floeplan.rewrite.pages.filtered_pages import FilteredColumn, SourcePages, can_filter_pages
from floeplan.rewrite.pages.new_file import Chunk, JoinedFile, encoded_chunks, encoded_footer
from floeplan.rewrite.run.group import GroupAttempt
from floeplan.scan.file_rows import EQUALITY, OpenFile
from floeplan.scan.metadata_columns import LAST_UPDATED, ROW_ID
from floeplan.scan.projection import arrow_schema
from floeplan.tasks.runner import parallel_map
from floeplan.vectors import Mask
from floeplan.write.conform import conform
from floeplan.write.data_files import FileTask, FullRowReader, data_entry
from floeplan.write.metrics import added_entries
from floeplan.write.parquet_file import (
    RowGroupMetrics,
    WrittenFile,
    encoded_file,
    high_cardinality_columns,
    row_group_metrics,
)
from floeplan.write.partitioning import FilePartition
from floeplan.write.target import WriteTarget

_LINEAGE = (ROW_ID.field_id, LAST_UPDATED.field_id)
_WORTH = 0.25
"""Least fraction of a file's bytes in reusable pages for which joining pays off."""
_MAX_OPEN = 128
"""Files that stay open between choosing the layout and joining."""


@dataclass(frozen=True, slots=True)
class JoinLayout:
    """The layout of the new file.

    A column that has no definition levels in any of the old files has none in the new one: some writers omit them when
    no row is null, even if the table schema allows nulls, and pages without them fit no column that has them.
    """

    schema: Schema
    blank: bytes
    paths: Sequence[tuple[str, ...]]
    copyable: CopyablePages
    opened: dict[int, OpenFile] = field(default_factory=dict)
    """Files of the group that were opened to choose the layout, by index; ``GroupJoiner`` takes them from here."""

    @classmethod
    def of(cls, target: WriteTarget, required: Set[int]) -> JoinLayout:
        """The layout when the ``required`` columns have no definition levels."""
        lineage = (ROW_ID, LAST_UPDATED) if target.format_version >= 3 else ()
        fields = [
            field.model_copy(update={"required": True}) if field.field_id in required else field
            for field in target.stored_schema.fields
        ]
        schema = Schema(*fields, *lineage)
        blank = encoded_footer(encoded_file(_conform(arrow_schema(schema).empty_table(), schema), target.options))
        footer = decode_footer(blank, "the table", len(blank))
        copyable = CopyablePages.of(target.options, footer, without=_LINEAGE)
        return cls(schema, blank, [leaf.path for leaf in footer.leaves], copyable)


def join_layout(attempt: GroupAttempt) -> JoinLayout | None:
    """The layout of the joined file; ``None`` when joining is not possible or does not pay off."""
    task, options = attempt.task, attempt.target.options
    if not attempt.strategy.copies_bytes or task.partition is None or task.outputs > 1:
        return None
    if options.bloom or options.level is not None:
        return None
    if {options.format, *(one.file.format for one in task.files)} != {PARQUET}:
        return None
    if any(is_variant(field.field_type) for field in attempt.target.stored_schema.fields):
        return None  # the new file may have to keep the layout of shredded variants: see ``shared_layouts``
    largest = max(range(len(task.files)), key=lambda index: task.files[index].file.file_size)
    opened = attempt.files.open(task.files[largest].file)
    required = _without_definition_levels(opened)
    if not _pays_off(JoinLayout.of(attempt.target, required), opened, task.nan_counts[largest]):
        return None  # not even for the largest file alone: the others need not be opened
    kept_open: dict[int, OpenFile] = {}
    for index, one in enumerate(task.files):
        another = attempt.files.open(one.file)
        required &= _without_definition_levels(another)
        if index < _MAX_OPEN:
            kept_open[index] = another
    layout = replace(JoinLayout.of(attempt.target, required), opened=kept_open)
    return layout if _pays_off(layout, opened, task.nan_counts[largest]) else None


def _pays_off(layout: JoinLayout, opened: OpenFile, nan_counts: Mapping[int, int]) -> bool:
    """Whether enough bytes of a file are in reusable pages."""
    footer = opened.footer
    copyable = {} if opened.file.deletes else dict(enumerate(layout.copyable.found(opened, nan_counts)))
    reusable = 0
    for group in range(footer.num_row_groups):
        for leaf in layout.copyable.fitting(footer):
            chunk = footer.chunk_location(leaf, group)
            if leaf.field_id in copyable.get(group, ()) or can_filter_pages(leaf, chunk):
                reusable += chunk.size
    return reusable >= _WORTH * footer.file_size


def _without_definition_levels(opened: OpenFile) -> set[int]:
    """Top-level primitive columns without definition levels."""
    footer = opened.footer
    return {
        leaf.field_id for leaf in footer.leaves if footer.has_field_ids and not leaf.max_def and len(leaf.path) == 1
    }


@dataclass(frozen=True, slots=True)
class _SourceGroup:
    """One row group of a source file.

    Attributes:
        task: The file.
        opened: The same, opened.
        group: The index of the row group.
        size: Uncompressed bytes of the live rows.
        live: Which rows are live; ``None`` for all.
        copyable: Columns whose pages can be copied unchanged, by field id.
        reusable: Columns that can be built from their pages, copied or filtered, by field id.
    """

    task: FileTask
    opened: OpenFile
    group: int
    size: int
    live: Mask | None
    copyable: Mapping[int, PageRun]
    reusable: Mapping[int, ChunkLocation]

    @property
    def all_rows(self) -> int:
        """Rows including deleted ones."""
        return int(self.opened.footer.row_group_rows[self.group])

    @property
    def rows(self) -> int:
        """Live rows."""
        return self.all_rows if self.live is None else int(np.count_nonzero(self.live))

    @property
    def selection(self) -> RowSelection:
        """The live rows as positions in the file."""
        first = int(self.opened.footer.first_rows[self.group])
        if self.live is None:
            return RowSelection.from_runs([first], [self.all_rows])
        return RowSelection.from_mask(self.live, first)

    def pages(self, columns: Sequence[int]) -> list[SourcePages]:
        """Read the pages of some columns at once."""
        chunks = [self.reusable[i] for i in columns]
        read = self.opened.source.read_ranges([(chunk.start, chunk.size) for chunk in chunks])
        return [
            SourcePages(data, chunk, self.all_rows, self.live, self.copyable.get(i))
            for i, chunk, data in zip(columns, chunks, read, strict=True)
        ]


class GroupJoiner:
    """Writes the rows of a group as one new file."""

    def __init__(self, attempt: GroupAttempt, partition: FilePartition, layout: JoinLayout) -> None:
        self.attempt, self.partition, self.layout, self.target = attempt, partition, layout, attempt.target
        self._unsupported: set[int] = set()  # columns of which a page could not be reused
        self._repeats: dict[str, bool] = {}

    def write(self, written: ExitStack) -> EntriesTable:
        """Write the file; return its entry, or none when all rows are deleted. ``written`` removes it on an error."""
        target, metrics, positions = self.target, list[RowGroupMetrics](), self.attempt.position_map
        batches = self._batches()
        batch = next(batches, None)
        if batch is None:
            return added_entries([], target.union)
        path = self.attempt.new_file(written, self.partition)
        with writing(path), target.io.new_output(path).create() as out:
            file = JoinedFile(out, path, self.layout.blank)
            while batch is not None:
                while batch:
                    count, group_metrics = self._write_group(file, batch)
                    if group_metrics is not None:  # otherwise try again with another column decoded
                        metrics.append(group_metrics)
                        batch = batch[count:]
                batch = next(batches, None)
            size, footer = file.finish()
        positions.add_written([path], [footer.num_rows], [(np.array([0]), np.array([positions.rows]))])
        made = WrittenFile(path, size, footer, tuple(metrics))
        return added_entries([data_entry(target, made, self.partition)], target.union)

    def _batches(self) -> Iterator[list[_SourceGroup]]:
        """Neighbouring row groups, as many as fill a new one."""
        batch: list[_SourceGroup] = []
        size = 0
        for source in self._source_groups():
            if batch and size + source.size > self.target.options.row_group_size:
                yield batch
                batch, size = [], 0
            batch.append(source)
            size += source.size
        if batch:
            yield batch

    def _source_groups(self) -> Iterator[_SourceGroup]:
        """All row groups with live rows, file by file."""
        copyable = self.layout.copyable
        for index, task in enumerate(self.attempt.task.files):
            opened = self.layout.opened.pop(index, None) or self.attempt.files.open(task.file)
            footer = opened.footer
            live = self._live(opened)
            selection = RowSelection.all_rows(len(live)) if live.all() else RowSelection.from_mask(live)
            self.attempt.position_map.add_read(index, selection.starts, selection.counts)
            per_group = np.split(live, np.cumsum(footer.row_group_rows)[:-1])
            fitting = {leaf.index for leaf in copyable.fitting(footer)}
            # Pages are copied unchanged only in row groups without a deleted row.
            some_whole = any(mask.all() for mask in per_group)
            found = copyable.found(opened, self.attempt.task.nan_counts[index]) if some_whole else []
            for group, mask in enumerate(per_group):
                if not mask.any():
                    continue
                copied = found[group] if mask.all() else {}
                chunks = [(leaf, footer.chunk_location(leaf, group)) for leaf in footer.leaves]
                size = sum(chunk.uncompressed_size for _, chunk in chunks) * int(np.count_nonzero(mask)) // len(mask)
                reusable = {
                    leaf.field_id: chunk
                    for leaf, chunk in chunks
                    if leaf.index in fitting and (leaf.field_id in copied or can_filter_pages(leaf, chunk))
                }
                yield _SourceGroup(task, opened, group, size, None if mask.all() else mask, copied, reusable)

    def _live(self, opened: OpenFile) -> Mask:
        """The rows of a file that no delete removes."""
        deletes = opened.file.deletes
        live = np.ones(opened.footer.num_rows, dtype=np.bool_)
        if any(delete.kind in EQUALITY for delete in deletes):
            _, live = opened.read(Schema(), RowSelection.all_rows(len(live)))
        for delete in deletes:
            if delete.kind not in EQUALITY:
                gone = self.attempt.files.positions(delete, opened.file.path)
                live[gone[gone < len(live)]] = False
        return live

    def _write_group(self, file: JoinedFile, sources: Sequence[_SourceGroup]) -> tuple[int, RowGroupMetrics | None]:
        """Write a row group of the first of these; return how many, and its metrics.

        The metrics are ``None``, and nothing is written, when a column turns out to need decoding.
        """
        common = set.intersection(*(set(source.reusable) for source in sources)) - self._unsupported
        columns = [i for i in self.layout.copyable.leaves if i in common]
        others = Schema(*(field for field in self.layout.schema.fields if field.field_id not in columns))
        count, rows = self._decode(sources, others) if others.fields else (len(sources), None)
        built = self._reuse_pages(sources[:count], columns)
        if len(built) < len(columns):
            return 0, None
        # Columns built from pages have no NaN: those that may have some are not reusable.
        chunks: dict[tuple[str, ...], Chunk] = {chunk.leaf.path: chunk for chunk in built}
        nulls = {chunk.leaf.field_id: chunk.nulls for chunk in built}
        metrics = RowGroupMetrics(nulls, dict.fromkeys(nulls, 0), {})
        if rows is not None:
            metrics = RowGroupMetrics.merged([metrics, row_group_metrics(rows)])
            # Columns whose values hardly repeat in the first row group are written without a dictionary.
            for name, column in zip(rows.column_names, rows.columns, strict=True):
                if name not in self._repeats:
                    self._repeats[name] = not high_cardinality_columns(pa.table({name: column}))
            plain = frozenset(name for name in rows.column_names if not self._repeats[name])
            chunks |= encoded_chunks(encoded_file(rows, self.target.options, plain))
        file.add(sum(source.rows for source in sources[:count]), [chunks[path] for path in self.layout.paths])
        return count, metrics

    def _decode(self, sources: Sequence[_SourceGroup], schema: Schema) -> tuple[int, pa.Table]:
        """Decode columns of as many row groups as fit a new one: decoded they may be far larger than encoded."""
        reader = FullRowReader(self.target, self.attempt.files, schema)
        tables: list[pa.Table] = []
        size = 0
        for source in sources:
            tables.append(reader.read(source.task, source.opened, source.selection))
            size += tables[-1].nbytes
            if size >= self.target.options.row_group_size:
                break
        return len(tables), _conform(pa.concat_tables(tables), schema)

    def _reuse_pages(self, sources: Sequence[_SourceGroup], columns: Sequence[int]) -> list[PageChunk]:
        """Build columns from their pages; those with an unsupported page are left out and remembered."""
        codec, leaves = CODECS[self.target.options.codec], self.layout.copyable.leaves
        read = [source.pages(columns) for source in sources] if columns else []

        def build(at: int) -> PageChunk | None:
            column = FilteredColumn(leaves[columns[at]], codec, self.target.options)
            try:
                for pages in read:
                    column.add(pages[at])
                return column.finish()
            except UNSUPPORTED_PAGE:
                return None

        found = list(parallel_map(build, range(len(columns)), self.attempt.threads))
        self._unsupported.update(i for i, chunk in zip(columns, found, strict=True) if chunk is None)
        return [chunk for chunk in found if chunk is not None]


def _conform(rows: pa.Table, schema: Schema) -> pa.Table:
    """Rows in the types and with the field ids that files store."""
    stored = [field for field in schema.fields if field.field_id not in _LINEAGE]
    return conform(rows, Schema(*stored), lineage=len(stored) < len(schema.fields))

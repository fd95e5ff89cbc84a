"""Joining the files of one group into one: small row groups become large ones, and columns are made of their pages.

Columns whose pages are good as they are (``kept_pages``) are copied, which costs next to nothing. Pages of rows that
are deleted, and pages that refer to a dictionary, are made anew without building their values (``thin_pages``). Only
the other columns are decoded and encoded, among them columns that a file does not have yet and, in format 3, the
identity of rows. Each new row group decides for itself.

Fail-safe: a column with a page that is not as it should be is decoded and encoded.

Memory: what one row group holds, encoded, before and after, and the decoded columns of it that are not made of pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from floeplan.dml.row_task import LAST_UPDATED, ROW_ID, FileTask, WholeRows
from floeplan.metadata.files import writing
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.parquet.footer.footer import ChunkLocation, ParquetFooter, decode_footer
from floeplan.parquet.pages.data_pages import UNSUPPORTED_PAGE
from floeplan.parquet.prune.selection import RowSelection
from floeplan.rewrite.pages.column_chunk import CODECS, CopyablePages, PageChunk, PageRun
from floeplan.rewrite.pages.filtered_pages import FilteredColumn, SourcePages, can_filter_pages
from floeplan.rewrite.pages.joined_file import Chunk, JoinedFile, encoded_chunks, encoded_footer
from floeplan.rewrite.run.stitch_group import removing
from floeplan.rewrite.run.work import GroupRun
from floeplan.scan.file_rows import EQUALITY, FileRows, OpenFile
from floeplan.scan.projection import arrow_schema
from floeplan.tasks.threads import parallel_map
from floeplan.vectors import Mask
from floeplan.write.conform import conform
from floeplan.write.data_files import data_entry
from floeplan.write.file_entries import added_entries
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
"""The share of a file's bytes that must be in pages that columns are made of."""
_HELD = 128
"""Files that are not opened twice."""


@dataclass(frozen=True, slots=True)
class JoinLayout:
    """What the new file looks like.

    A column that has no definition levels in any of the old files has none in the new one: writers leave them away
    where rows cannot be null, whatever the table says, and pages without them fit no column that has them.
    """

    schema: Schema
    blank: bytes
    paths: Sequence[tuple[str, ...]]
    kept: CopyablePages
    opened: dict[int, OpenFile] = field(default_factory=dict)
    """Files of the group that were opened to find this, by their place; whoever needs one takes it."""

    @classmethod
    def of(cls, target: WriteTarget, required: Set[int]) -> JoinLayout:
        """For new files of which some columns have no definition levels."""
        lineage = (ROW_ID, LAST_UPDATED) if target.format_version >= 3 else ()
        fields = [
            field.model_copy(update={"required": True}) if field.field_id in required else field
            for field in target.stored_schema.fields
        ]
        schema = Schema(*fields, *lineage)
        blank = encoded_footer(encoded_file(_in_layout(arrow_schema(schema).empty_table(), schema), target.options))
        footer = decode_footer(blank, "the table", len(blank))
        kept = CopyablePages.of(target.options, footer, without=_LINEAGE)
        return cls(schema, blank, [leaf.path for leaf in footer.leaves], kept)


def join_layout(run: GroupRun) -> JoinLayout | None:
    """How the group becomes one file of which a good part is made of pages, if it can; the largest stands for all."""
    work, options = run.work, run.target.options
    if not run.strategy.copies_bytes or work.partition is None or work.outputs > 1:
        return None
    if options.bloom or options.level is not None:
        return None
    largest = max(range(len(work.files)), key=lambda place: work.files[place].file.file_size)
    opened = run.files.open(work.files[largest].file)
    if not _worth(JoinLayout.of(run.target, _required(opened)), opened, work.nan_counts[largest]):
        return None
    held: dict[int, OpenFile] = {}
    required = _required(opened)
    for place, one in enumerate(work.files):
        another = run.files.open(one.file)
        required &= _required(another)
        if place < _HELD:
            held[place] = another
    layout = replace(JoinLayout.of(run.target, required), opened=held)
    return layout if _worth(layout, opened, work.nan_counts[largest]) else None


def _worth(layout: JoinLayout, opened: OpenFile, nan_counts: Mapping[int, int]) -> bool:
    footer = opened.footer
    kept = {} if opened.file.deletes else dict(enumerate(layout.kept.found(opened, nan_counts)))
    made = 0
    for group in range(footer.num_row_groups):
        for leaf in layout.kept.fitting(footer):
            place = footer.chunk_location(leaf, group)
            if leaf.field_id in kept.get(group, ()) or can_filter_pages(leaf, place):
                made += place.size
    return made >= _WORTH * footer.file_size


def _required(opened: OpenFile) -> set[int]:
    """Plain columns without definition levels."""
    footer = opened.footer
    return {
        leaf.field_id for leaf in footer.leaves if footer.has_field_ids and not leaf.max_def and len(leaf.path) == 1
    }


@dataclass(frozen=True, slots=True)
class _Piece:
    """One row group of a file of the group, and what can become of its columns.

    Attributes:
        work: The file.
        opened: The same, opened.
        group: The row group.
        size: Bytes of the rows that stay when they are not compressed.
        keep: The rows that stay; ``None`` for all.
        kept: What is known of columns whose pages can stay as they are, by field id.
        paged: Columns that can be made of their pages, by field id.
    """

    work: FileTask
    opened: OpenFile
    group: int
    size: int
    keep: Mask | None
    kept: Mapping[int, PageRun]
    paged: Mapping[int, ChunkLocation]

    @property
    def all_rows(self) -> int:
        """Rows, deleted ones included."""
        return int(self.opened.footer.row_group_rows[self.group])

    @property
    def rows(self) -> int:
        return self.all_rows if self.keep is None else int(np.count_nonzero(self.keep))

    @property
    def selection(self) -> RowSelection:
        first = int(self.opened.footer.first_rows[self.group])
        if self.keep is None:
            return RowSelection.from_runs([first], [self.all_rows])
        return RowSelection.from_mask(self.keep, first)

    def pages(self, columns: Sequence[int]) -> list[SourcePages]:
        """The pages of some columns, read at once."""
        places = [self.paged[i] for i in columns]
        read = self.opened.source.read_ranges([(place.start, place.size) for place in places])
        return [
            SourcePages(data, place, self.all_rows, self.keep, self.kept.get(i))
            for i, place, data in zip(columns, places, read, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _NewGroup:
    """A new row group: how many old ones it was made of, its rows, its columns, and what is known of these."""

    pieces: int
    rows: int
    chunks: Sequence[Chunk]
    facts: RowGroupMetrics


class GroupJoiner:
    """Writes the rows of a group as one new file."""

    def __init__(self, run: GroupRun, partition: FilePartition, layout: JoinLayout) -> None:
        self.run, self.partition, self.layout, self.target = run, partition, layout, run.target
        self.unusual: set[int] = set()
        self.repeating: dict[str, bool] = {}

    def write(self, written: ExitStack) -> EntriesTable:
        """The entry of the new file, if rows are left; ``written`` removes it when it is left by an exception."""
        target, facts = self.target, []
        groups = self._row_groups()
        group = next(groups, None)
        if group is None:  # all rows are deleted
            return added_entries([], target.union)
        path = target.new_location(f"{target.file_name(self.run.token)}.parquet", self.partition.key)
        written.push(removing(target.files, path))
        with writing(path), target.io.new_output(path).create() as out:
            file = JoinedFile(out, path, self.layout.blank)
            while group is not None:
                file.add(group.rows, group.chunks)
                facts.append(group.facts)
                group = None  # it is not held while the next one is made
                group = next(groups, None)
            size, footer = file.finish()
        self.run.moved.wrote([path], [footer.num_rows], [(np.array([0]), np.array([self.run.moved.rows]))])
        made = WrittenFile(path, size, footer, tuple(facts))
        return added_entries([data_entry(target, made, self.partition)], target.union)

    def _row_groups(self) -> Iterator[_NewGroup]:
        for pieces in self._good_sizes():
            while pieces:
                group = self._row_group(pieces)
                if group is None:
                    continue
                pieces = pieces[group.pieces :]
                yield group
                del group

    def _row_group(self, pieces: Sequence[_Piece]) -> _NewGroup | None:
        """A row group of the first of these; nothing when it turns out that a column must be encoded after all."""
        paged = self._paged(pieces)
        others = Schema(*(field for field in self.layout.schema.fields if field.field_id not in paged))
        count, rows = self._read(pieces, others) if others.fields else (len(pieces), None)
        taken = pieces[:count]
        made = self._of_pages(taken, paged)
        if len(made) < len(paged):
            return None
        chunks, facts = self._columns(made, rows)
        return _NewGroup(count, sum(piece.rows for piece in taken), chunks, facts)

    def _good_sizes(self) -> Iterator[list[_Piece]]:
        """Neighbouring row groups, as many as make a good one."""
        waiting: list[_Piece] = []
        size = 0
        for piece in self._pieces():
            if waiting and size + piece.size > self.target.options.row_group_size:
                yield waiting
                waiting, size = [], 0
            waiting.append(piece)
            size += piece.size
        if waiting:
            yield waiting

    def _pieces(self) -> Iterator[_Piece]:
        for place, work in enumerate(self.run.work.files):
            opened = self.layout.opened.pop(place, None) or self.run.files.open(work.file)
            live = _live(self.run.files, opened)
            stay = RowSelection.all_rows(len(live)) if live.all() else RowSelection.from_mask(live)
            self.run.moved.note_read(place, stay.starts, stay.counts)
            yield from self._pieces_of(place, opened, live)

    def _pieces_of(self, place: int, opened: OpenFile, live: Mask) -> Iterator[_Piece]:
        """The row groups of a file that have rows which stay."""
        footer, work = opened.footer, self.run.work
        keeps = [_of_group(live, footer, group) for group in range(footer.num_row_groups)]
        fitting = {leaf.index for leaf in self.layout.kept.fitting(footer)}
        untouched = any(keep.all() for keep in keeps)
        kept = self.layout.kept.found(opened, work.nan_counts[place]) if untouched else []
        for group, keep in enumerate(keeps):
            if not keep.any():
                continue
            parts = kept[group] if keep.all() else {}
            places = [(leaf, footer.chunk_location(leaf, group)) for leaf in footer.leaves]
            size = sum(at.uncompressed_size for _, at in places) * int(np.count_nonzero(keep)) // len(keep)
            paged = {
                leaf.field_id: at
                for leaf, at in places
                if leaf.index in fitting and (leaf.field_id in parts or can_filter_pages(leaf, at))
            }
            yield _Piece(work.files[place], opened, group, size, None if keep.all() else keep, parts, paged)

    def _paged(self, pieces: Sequence[_Piece]) -> list[int]:
        """The columns that can be made of their pages."""
        common = set.intersection(*(set(piece.paged) for piece in pieces)) - self.unusual
        return [i for i in self.layout.kept.leaves if i in common]

    def _read(self, pieces: Sequence[_Piece], schema: Schema) -> tuple[int, pa.Table]:
        """Some columns of the first pieces: as many as a row group may hold, for decoded they may be far larger."""
        reader = WholeRows(self.target, self.run.files, schema)
        tables: list[pa.Table] = []
        size = 0
        for piece in pieces:
            tables.append(reader.read(piece.work, piece.opened, piece.selection))
            size += tables[-1].nbytes
            if size >= self.target.options.row_group_size:
                break
        return len(tables), _in_layout(pa.concat_tables(tables), schema)

    def _columns(self, made: Sequence[PageChunk], rows: pa.Table | None) -> tuple[list[Chunk], RowGroupMetrics]:
        """The columns of a row group, those that are made and those that are yet to be encoded."""
        chunks: dict[tuple[str, ...], Chunk] = {chunk.leaf.path: chunk for chunk in made}
        facts = _known(made)
        if rows is not None:
            facts = _together(facts, row_group_metrics(rows))
            chunks |= encoded_chunks(encoded_file(rows, self.target.options, self._plain(rows)))
        return [chunks[path] for path in self.layout.paths], facts

    def _of_pages(self, pieces: Sequence[_Piece], columns: Sequence[int]) -> list[PageChunk]:
        """Columns made of their pages; those that turn out not to be usual are left out and noted."""
        codec, leaves = CODECS[self.target.options.codec], self.layout.kept.leaves
        read = [piece.pages(columns) for piece in pieces] if columns else []

        def made(at: int) -> PageChunk | None:
            column = FilteredColumn(leaves[columns[at]], codec, self.target.options)
            try:
                for pages in read:
                    column.add(pages[at])
                return column.finish()
            except UNSUPPORTED_PAGE:
                return None

        found = list(parallel_map(made, range(len(columns)), self.run.threads))
        self.unusual.update(i for i, chunk in zip(columns, found, strict=True) if chunk is None)
        return [chunk for chunk in found if chunk is not None]

    def _plain(self, rows: pa.Table) -> frozenset[str]:
        """Columns whose values hardly repeat, by the first row group."""
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            if name not in self.repeating:
                self.repeating[name] = not high_cardinality_columns(pa.table({name: column}))
        return frozenset(name for name in rows.column_names if not self.repeating[name])


def _live(files: FileRows, opened: OpenFile) -> Mask:
    """The rows of a file that no delete removes."""
    deletes = opened.file.deletes
    live = np.ones(opened.footer.num_rows, dtype=np.bool_)
    if any(delete.kind in EQUALITY for delete in deletes):
        _, live = opened.read(Schema(), RowSelection.all_rows(len(live)))
    for delete in deletes:
        if delete.kind not in EQUALITY:
            gone = files.positions(delete, opened.file.path)
            live[gone[gone < len(live)]] = False
    return live


def _of_group(flags: Mask, footer: ParquetFooter, group: int) -> Mask:
    """The flags of the rows of a row group."""
    first = int(footer.first_rows[group])
    return flags[first : first + int(footer.row_group_rows[group])]


def _known(kept: Sequence[PageChunk]) -> RowGroupMetrics:
    """What is known of columns made of pages; those that may have NaN are not."""
    nulls = {chunk.leaf.field_id: chunk.nulls for chunk in kept}
    return RowGroupMetrics(nulls, dict.fromkeys(nulls, 0), {})


def _together(one: RowGroupMetrics, other: RowGroupMetrics) -> RowGroupMetrics:
    return RowGroupMetrics(
        {**one.null_counts, **other.null_counts},
        {**one.nan_counts, **other.nan_counts},
        {**one.long_bounds, **other.long_bounds},
    )


def _in_layout(rows: pa.Table, schema: Schema) -> pa.Table:
    """Rows as files hold them."""
    stored = [field for field in schema.fields if field.field_id not in _LINEAGE]
    return conform(rows, Schema(*stored), lineage=len(stored) < len(schema.fields))

"""Joining the files of one group into one: small row groups become large ones, and columns keep the pages they have.

Columns whose pages are good as they are (``kept_pages``) are copied, which costs next to nothing; only the others are
decoded and encoded anew, among them columns that a file does not have yet and, in format 3, the identity of rows. Each
new row group decides for itself.

Memory: what one row group holds, encoded, and the decoded columns of it that are not kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from floeplan.dml.row_task import LAST_UPDATED, ROW_ID, FileWork, WholeRows
from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.io import writing
from floeplan.parquet.footer import decode_footer
from floeplan.parquet.selection import RowSelection
from floeplan.rewrite.group_run import GroupRun
from floeplan.rewrite.joined_file import Chunk, JoinedFile, encoded_chunks, encoded_footer
from floeplan.rewrite.kept_pages import CODECS, KeptChunk, KeptPages, KeptPart, statistics
from floeplan.rewrite.options import STITCHING
from floeplan.rewrite.stitch_group import removing
from floeplan.scan.file_rows import OpenFile
from floeplan.scan.projection import arrow_schema
from floeplan.write.conform import conform
from floeplan.write.entry_rows import FileEntry, entries_of
from floeplan.write.metrics import file_metrics
from floeplan.write.parquet_file import GroupFacts, encoded_file, group_facts, hardly_repeating
from floeplan.write.partitioning import FilePartition
from floeplan.write.target import WriteTarget

_LINEAGE = (ROW_ID.field_id, LAST_UPDATED.field_id)
_WORTH = 0.25
"""The share of a file's bytes that must be in pages that are kept."""


@dataclass(frozen=True, slots=True)
class JoinLayout:
    """What the new file looks like.

    A column that has no definition levels in any of the old files has none in the new one: writers leave them away
    where rows cannot be null, whatever the table says, and pages without them fit no column that has them.
    """

    schema: Schema
    blank: bytes
    paths: Sequence[tuple[str, ...]]
    kept: KeptPages

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
        kept = KeptPages.of(target.options, footer, without=_LINEAGE)
        return cls(schema, blank, [leaf.path for leaf in footer.leaves], kept)


def join_layout(run: GroupRun) -> JoinLayout | None:
    """How the group becomes one file of which a good part is copied, if it can; the largest file stands for all."""
    work, options = run.work, run.target.options
    if run.strategy not in STITCHING or work.partition is None or work.outputs > 1:
        return None
    if options.bloom or options.level is not None or any(one.file.deletes for one in work.files):
        return None
    largest = max(range(len(work.files)), key=lambda place: work.files[place].file.file_size)
    opened = run.files.open(work.files[largest].file)
    if not _worth(JoinLayout.of(run.target, _required(opened)), opened, work.nan_counts[largest]):
        return None
    required = set.intersection(*(_required(run.files.open(one.file)) for one in work.files))
    layout = JoinLayout.of(run.target, required)
    return layout if _worth(layout, opened, work.nan_counts[largest]) else None


def _worth(layout: JoinLayout, opened: OpenFile, nan_counts: Mapping[int, int]) -> bool:
    kept = layout.kept.found(opened, nan_counts)
    return sum(part.place[1] for parts in kept for part in parts.values()) >= _WORTH * opened.footer.file_size


def _required(opened: OpenFile) -> set[int]:
    """Plain columns without definition levels."""
    footer = opened.footer
    return {leaf.field_id for leaf in footer.leaves if footer.has_own_ids and not leaf.max_def and len(leaf.path) == 1}


@dataclass(frozen=True, slots=True)
class _Piece:
    """One row group of a file of the group, and the columns of it that can be kept."""

    work: FileWork
    opened: OpenFile
    group: int
    kept: Mapping[int, KeptPart]

    @property
    def rows(self) -> int:
        return int(self.opened.footer.row_group_rows[self.group])

    @property
    def size(self) -> int:
        """Bytes when they are not compressed."""
        footer = self.opened.footer
        return sum(int(footer.chunks(leaf).total_uncompressed_size[self.group]) for leaf in footer.leaves)

    @property
    def selection(self) -> RowSelection:
        return RowSelection.from_runs([int(self.opened.footer.first_rows[self.group])], [self.rows])


class GroupJoiner:
    """Writes the rows of a group as one new file."""

    def __init__(self, run: GroupRun, partition: FilePartition, layout: JoinLayout) -> None:
        self.run, self.partition, self.layout, self.target = run, partition, layout, run.target
        self.plain: frozenset[str] | None = None

    def write(self, written: ExitStack) -> EntriesTable:
        """The entry of the new file; ``written`` removes it when it is left by an exception."""
        target = self.target
        path = target.new_location(f"{target.file_name(self.run.token)}.parquet", self.partition.key)
        written.push(removing(target.files, path))
        facts = []
        with writing(path), target.io.new_output(path).create() as out:
            file = JoinedFile(out, path, self.layout.blank)
            for rows, chunks, seen in self._row_groups():
                file.add(rows, chunks)
                facts.append(seen)
            size, footer = file.finish()
        self.run.moved.wrote([path], [footer.num_rows], [(np.array([0]), np.array([self.run.moved.rows]))])
        entry = FileEntry(
            path=path,
            partition=self.partition,
            record_count=footer.num_rows,
            size=size,
            metrics=file_metrics(footer, target.schema, target.metrics_modes, facts),
            split_offsets=footer.chunks(0).start.tolist(),
            sort_order_id=0,
        )
        return entries_of([entry], target.union)

    def _row_groups(self) -> Iterator[tuple[int, list[Chunk], GroupFacts]]:
        """New row groups: their rows, their columns, and what is known of these."""
        for pieces in self._good_sizes():
            while pieces:
                kept = self._kept(pieces)
                others = Schema(*(field for field in self.layout.schema.fields if field.field_id not in kept))
                count, rows = self._read(pieces, others) if others.fields else (len(pieces), None)
                taken, pieces = pieces[:count], pieces[count:]
                yield sum(piece.rows for piece in taken), *self._columns(taken, kept, rows)

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
            opened = self.run.files.open(work.file)
            self.run.moved.read(place, np.array([0]), np.array([opened.footer.num_rows]))
            kept = self.layout.kept.found(opened, self.run.work.nan_counts[place])
            for group in np.flatnonzero(opened.footer.row_group_rows).tolist():
                yield _Piece(work, opened, group, kept[group])

    def _kept(self, pieces: Sequence[_Piece]) -> list[int]:
        """The columns of which all pages can be kept."""
        common = set.intersection(*(set(piece.kept) for piece in pieces))
        leaves = self.layout.kept.leaves
        return [i for i in leaves if i in common and statistics(leaves[i], [piece.kept[i] for piece in pieces])]

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

    def _columns(
        self, pieces: Sequence[_Piece], kept: Sequence[int], rows: pa.Table | None
    ) -> tuple[list[Chunk], GroupFacts]:
        """The columns of a row group, kept and encoded; what is kept of a file is read at once."""
        codec, leaves = CODECS[self.target.options.codec], self.layout.kept.leaves
        read = [
            piece.opened.source.read_ranges([piece.kept[i].place for i in kept]) if kept else () for piece in pieces
        ]
        copied = [
            KeptChunk(leaves[i], codec, [piece.kept[i] for piece in pieces], [data[at] for data in read])
            for at, i in enumerate(kept)
        ]
        chunks: dict[tuple[str, ...], Chunk] = {chunk.leaf.path: chunk for chunk in copied}
        facts = _known(copied)
        if rows is not None:
            if self.plain is None:
                self.plain = hardly_repeating(rows)
            facts = _together(facts, group_facts(rows))
            chunks |= encoded_chunks(encoded_file(rows, self.target.options, self.plain))
        return [chunks[path] for path in self.layout.paths], facts


def _known(kept: Sequence[KeptChunk]) -> GroupFacts:
    """What is known of kept columns; those that may have NaN are not kept."""
    nulls = {chunk.leaf.field_id: chunk.nulls for chunk in kept}
    return GroupFacts(nulls, dict.fromkeys(nulls, 0), {})


def _together(one: GroupFacts, other: GroupFacts) -> GroupFacts:
    return GroupFacts(
        {**one.null_counts, **other.null_counts},
        {**one.nan_counts, **other.nan_counts},
        {**one.long_bounds, **other.long_bounds},
    )


def _in_layout(rows: pa.Table, schema: Schema) -> pa.Table:
    """Rows as files hold them."""
    stored = [field for field in schema.fields if field.field_id not in _LINEAGE]
    return conform(rows, Schema(*stored), lineage=len(stored) < len(schema.fields))

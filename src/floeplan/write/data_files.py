"""Writes rows in any order to data files, one partition per file, of about the target file size.

Files have the format of ``write.format.default``: Parquet, or ORC or Avro (``other_files``).

Memory is bounded: rows are buffered until a row group is full. When all buffers exceed ``WriterLimits.buffered_bytes``,
the largest one is flushed; when more than ``WriterLimits.open_files`` files are open, the least recently used one is
closed, and its partition continues in a new file.

A file ends at the target size, estimated from the compression ratio of earlier rows. With ``sort`` each file is sorted
by the table's sort order as a whole: it holds the rows that were buffered when it ended.

Fail-safe: file names contain the operation and a token of the attempt, so two attempts never write the same file, and a
failed attempt removes its files.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from floeplan.formats.stored import PARQUET
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.opaque_types import is_variant
from floeplan.parquet.footer.footer import join_footers
from floeplan.parquet.prune.selection import RowSelection
from floeplan.partition.key import PartitionKey
from floeplan.scan.file_rows import FileRows, OpenFile
from floeplan.scan.metadata_columns import LAST_UPDATED, ROW_ID
from floeplan.scan.model import FileScan
from floeplan.scan.projection import NO_LAYOUTS, Layouts, project, with_layouts
from floeplan.write.conform import Rows, conform
from floeplan.write.metrics import FileEntry, added_entries, metrics_of_files
from floeplan.write.parquet_file import ParquetFile, WrittenFile, high_cardinality_columns
from floeplan.write.partitioning import FilePartition, sort_rows, split
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from floeplan.write.other_files import RowFile, WrittenRows

_FULL_ENOUGH = 0.9
"""A file that reaches this fraction of the target size gets no further row group."""


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Limits of a writer.

    Attributes:
        buffered_bytes: Rows in memory over all partitions. Defaults to 192 MiB.
        open_files: Open files. Defaults to 100.
    """

    buffered_bytes: int = 192 * 1024 * 1024
    open_files: int = 100


def write_data_files(
    target: WriteTarget,
    batches: Iterable[Rows],
    *,
    file_name_token: str,
    partition: PartitionKey | None = None,
    sort: bool = False,
    limits: WriterLimits | None = None,
) -> EntriesTable:
    """Write rows and return the manifest entries of the files, in the order they were closed.

    Args:
        target: The table to write to.
        batches: Rows, converted to the table's schema here.
        file_name_token: The prefix of file names, which distinguishes the writers of one operation.
        partition: The partition of all rows, of any spec of the table; computed from the rows by default.
        sort: Sort the rows of each file by the table's sort order.
        limits: Limits of the writer.
    """
    with DataFileWriter(
        target, file_name_token=file_name_token, partition=partition, sort=sort, limits=limits
    ) as writer:
        for rows in batches:
            writer.write(rows)
        return writer.finish()


@dataclass(slots=True)
class _Slot:
    """The buffered rows of one partition, and its open file."""

    partition: FilePartition
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0
    file: ParquetFile | RowFile | None = None


class DataFileWriter:
    """Writes rows and returns entries; as a context manager it removes its files when an exception is raised."""

    def __init__(
        self,
        target: WriteTarget,
        *,
        file_name_token: str,
        partition: PartitionKey | None = None,
        sort: bool = False,
        limits: WriterLimits | None = None,
    ) -> None:
        self._target = target
        self._name = target.file_name(file_name_token)
        self._partition = partition
        self._sort = sort and bool(target.sort_order.fields)
        self._limits = limits or WriterLimits()
        self._slots: OrderedDict[PartitionKey, _Slot] = OrderedDict()
        self._buffered = 0
        self._encoded = self._taken = 0
        self._begun = self._open = 0
        self._plain: frozenset[str] | None = None
        self._layout: pa.Schema | None = None
        self._finished: list[tuple[WrittenFile | WrittenRows, FilePartition]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()

    def write(self, rows: Rows) -> None:
        """Write rows, or buffer them."""
        if not rows.num_rows:
            return
        # Convert rows to the schema of data files: the table's, without columns of unknown type.
        schema, stored = self._target.schema, self._target.stored_schema
        ready = conformed = conform(rows, schema, lineage=self._target.format_version > 2)
        if stored is not schema:
            layouts = {
                field.field_id: conformed.schema.field(position).type
                for position, field in enumerate(schema.fields)
                if is_variant(field.field_type)
            }
            ready = project(conformed, stored, {}, "the rows", layouts=layouts)
            for name in conformed.column_names[len(schema.fields) :]:
                ready = ready.append_column(conformed.schema.field(name), conformed.column(name))
        if ready.schema != self._layout:  # rows with and without row lineage, or with other layouts, share no file
            self._close_all()
            self._layout = ready.schema
        if self._partition is not None:
            self._add(self._partition, ready)
            return
        for key, part in split(ready, stored, self._target.union, self._target.spec_id):
            self._add(key, part)

    def flush(self) -> int:
        """Write all buffered rows, and return the bytes of all files so far."""
        for slot in self._slots.values():
            if slot.waiting:
                self._flush(slot)
        being_written = sum(slot.file.size for slot in self._slots.values() if slot.file is not None)
        return being_written + sum(file.size for file, _ in self._finished)

    def finish(self) -> EntriesTable:
        """Close all files, and return the entries of all written files."""
        self._close_all()
        order = self._target.sort_order.order_id if self._sort else 0
        return added_entries(data_entries(self._target, self._finished, order), self._target.union)

    def abort(self) -> None:
        """Remove all written files."""
        for slot in self._slots.values():
            if slot.file is not None:
                slot.file.discard()
        self._target.files.remove(file.path for file, _ in self._finished)
        self._slots.clear()
        self._finished.clear()

    def _add(self, key: PartitionKey, rows: pa.Table) -> None:
        rest: pa.Table | None = rows
        while rest is not None:
            if key not in self._slots:
                self._slots[key] = _Slot(FilePartition.of(self._target.union, key))
            self._slots.move_to_end(key)
            slot = self._slots[key]
            # Buffer what fits into the row group or file, and flush when it is full.
            room = self._room(slot) - slot.waiting_bytes
            part, size, rest = rest, rest.nbytes, None
            fitting = max(1, int(room * part.num_rows / max(size, 1)))
            if fitting < part.num_rows:
                part, rest = part.slice(0, fitting), part.slice(fitting)
                size = part.nbytes
            slot.waiting.append(part)
            slot.waiting_bytes += size
            self._buffered += size
            if rest is not None or slot.waiting_bytes >= self._room(slot):
                self._flush(slot)
            while self._buffered > self._limits.buffered_bytes:
                self._flush(max(self._slots.values(), key=lambda slot: slot.waiting_bytes))

    def _room(self, slot: _Slot) -> float:
        """Bytes of rows to buffer: a row group or the rest of the file; a sorted file is buffered as a whole."""
        options = self._target.options
        ratio = self._encoded / self._taken if self._encoded else 1.0
        written = slot.file.size if slot.file is not None else 0
        left = max(1.0, (options.target_file_size - written) / ratio)
        return left if self._sort else min(left, options.row_group_size)

    def _flush(self, slot: _Slot) -> None:
        """Write the buffered rows; this ends a sorted file, and any other file that is full."""
        rows, size = pa.concat_tables(slot.waiting), slot.waiting_bytes
        slot.waiting, slot.waiting_bytes = [], 0
        self._buffered -= size
        if self._sort:
            rows = sort_rows(rows, self._target.stored_schema, self._target.sort_order)
        format_ = self._target.options.format
        if format_ != PARQUET:
            from floeplan.write.other_files import fitting_format

            format_ = fitting_format(format_, rows)
        if slot.file is not None and slot.file.format != format_:
            self._end(slot)
        file = slot.file = slot.file or self._opened(slot, rows, format_)
        before = file.size
        # Row groups of equal size, none larger than the table's row-group size.
        row_groups = -(-size // self._target.options.row_group_size)
        step = -(-rows.num_rows // max(row_groups, 1))
        for start in range(0, rows.num_rows, step):
            file.write(rows.slice(start, step))
        self._encoded += file.size - before
        self._taken += size
        if self._sort or file.size >= _FULL_ENOUGH * self._target.options.target_file_size:
            self._end(slot)

    def _opened(self, slot: _Slot, rows: pa.Table, format_: str) -> ParquetFile | RowFile:
        """A new file of a partition; ``rows`` are the first that it will hold."""
        if self._open >= self._limits.open_files:
            self._close(next(other for other in self._slots.values() if other.file is not None))
        self._open += 1
        self._begun += 1
        target = self._target
        location = target.new_location(f"{self._name}-{self._begun:05d}.{format_.lower()}", slot.partition.key)
        if format_ != PARQUET:
            from floeplan.write.other_files import FILES

            return FILES[format_](target.files, location, target.options, rows.schema)
        if self._plain is None:
            self._plain = high_cardinality_columns(rows)
        return ParquetFile(target.files, location, target.options, rows, self._plain)

    def _close_all(self) -> None:
        for slot in list(self._slots.values()):
            self._close(slot)

    def _close(self, slot: _Slot) -> None:
        if slot.waiting:
            self._flush(slot)
        if slot.file is not None:
            self._end(slot)
        self._slots.pop(slot.partition.key, None)

    def _end(self, slot: _Slot) -> None:
        if slot.file is not None:
            before, closed = slot.file.size, slot.file.close()
            if slot.file.format != PARQUET:  # the size of an ORC file was an estimate until now
                self._encoded += closed.size - before
            self._finished.append((closed, slot.partition))
            slot.file = None
            self._open -= 1


def data_entry(
    target: WriteTarget, file: WrittenFile | WrittenRows, partition: FilePartition, sort_order_id: int = 0
) -> FileEntry:
    """The manifest entry of a written data file."""
    return data_entries(target, [(file, partition)], sort_order_id)[0]


def data_entries(
    target: WriteTarget, files: Sequence[tuple[WrittenFile | WrittenRows, FilePartition]], sort_order_id: int = 0
) -> list[FileEntry]:
    """The manifest entries of written data files, in their order."""
    entries: dict[int, FileEntry] = {}
    alike: dict[int, list[tuple[int, WrittenFile]]] = {}
    for at, (file, partition) in enumerate(files):
        if isinstance(file, WrittenFile):
            alike.setdefault(id(file.footer.columns), []).append((at, file))
            continue
        entries[at] = FileEntry(
            path=file.path,
            partition=partition,
            record_count=file.metrics.rows,
            size=file.size,
            format=file.format,
            metrics=file.metrics.file_metrics(target.schema, target.metrics_modes),
            sort_order_id=sort_order_id,
        )
    # Parquet files of one schema at once.
    for numbered in alike.values():
        footer = join_footers([file.footer for _, file in numbered])
        counts = [file.footer.num_row_groups for _, file in numbered]
        groups = [group for _, file in numbered for group in file.groups]
        metrics = metrics_of_files(footer, counts, target.schema, target.metrics_modes, groups)
        offsets = np.split(footer.chunks(0).start, np.cumsum(counts)[:-1])
        for (at, file), found, starts in zip(numbered, metrics, offsets, strict=True):
            entries[at] = FileEntry(
                path=file.path,
                partition=files[at][1],
                record_count=file.footer.num_rows,
                size=file.size,
                metrics=found,
                split_offsets=starts.tolist(),
                sort_order_id=sort_order_id,
            )
    return [entries[at] for at in range(len(files))]


ROWS_AT_ONCE = 128 * 1024
BYTES_AT_ONCE = 64 * 1024 * 1024


def coalesce_batches(pieces: Iterable[Rows]) -> Iterator[pa.Table]:
    """Combine consecutive small batches of one schema, because the writer's cost per batch exceeds that of its rows.

    The order of rows is kept and no table is empty. Memory: ``BYTES_AT_ONCE`` and one batch.
    """
    waiting: list[pa.Table] = []
    rows = size = 0
    for piece in pieces:
        if not piece.num_rows:
            continue
        table = piece if isinstance(piece, pa.Table) else pa.Table.from_batches([piece])
        piece_bytes = piece.nbytes
        full = rows + table.num_rows > ROWS_AT_ONCE or size + piece_bytes > BYTES_AT_ONCE
        if waiting and (full or table.schema != waiting[0].schema):
            yield _together(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(table)
        rows, size = rows + table.num_rows, size + piece_bytes
    if waiting:
        yield _together(waiting)


def _together(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()


# Reserved field ids of the Iceberg spec, "Reserved Field IDs".


@dataclass(frozen=True, slots=True)
class FileTask:
    """A data file to change or rewrite; ``entry`` has its spec and partition, which deletes for it must share."""

    file: FileScan
    entry: EntriesTable
    first_row_id: int | None


def full_schema(target: WriteTarget) -> Schema:
    """All stored columns and, in format 3, the row lineage."""
    return Schema(*target.stored_schema.fields, *((ROW_ID, LAST_UPDATED) if target.format_version >= 3 else ()))


class FullRowReader:
    """Reads rows to write them again, in the columns of a schema: by default all and, in format 3, the row lineage.

    A row that is written again keeps its ``_row_id``, and one that does not change also keeps its
    ``_last_updated_sequence_number``. A file that stores neither leaves both to be inherited: the row id from the
    entry's first row id and the row's position, the update number from the entry's data sequence number. New files
    cannot inherit those values, so they are filled in.
    """

    def __init__(
        self, target: WriteTarget, files: FileRows, schema: Schema | None = None, layouts: Layouts = NO_LAYOUTS
    ) -> None:
        self._files = files
        self._lineage = target.format_version >= 3
        self._layouts = layouts
        self.schema = schema or full_schema(target)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the rows; shredded variants have the layouts given."""
        return with_layouts(self.schema, self._layouts)

    def read(self, task: FileTask, opened: OpenFile, selection: RowSelection) -> pa.Table:
        """The live rows at these positions."""
        return self.read_with_positions(task, opened, selection)[0]

    def read_with_positions(
        self, task: FileTask, opened: OpenFile, selection: RowSelection
    ) -> tuple[pa.Table, RowSelection]:
        """The live rows at these positions, and the positions they are at."""
        rows, live = opened.read(self.schema, selection, layouts=self._layouts)
        if self._lineage and task.first_row_id is not None:
            # Fill in inherited row ids and update numbers.
            rows = _filled(rows, ROW_ID.name, pa.array(selection.to_rows() + task.first_row_id))
            rows = _filled(rows, LAST_UPDATED.name, pa.scalar(task.file.sequence_number, pa.int64()))
        return (rows, selection) if live.all() else (rows.filter(pa.array(live)), selection.narrow(live))

    def read_for_update(self, task: FileTask, selection: RowSelection) -> pa.Table:
        """The rows at these positions, marked as updated; the caller replaces their values."""
        return mark_updated(self.read(task, self._files.open(task.file), selection))


def mark_updated(rows: pa.Table) -> pa.Table:
    """Rows whose last update is the commit being made: a null update number is inherited from its snapshot."""
    position = rows.schema.get_field_index(LAST_UPDATED.name)
    if position < 0:
        return rows
    field = rows.schema.field(position)
    return rows.set_column(position, field, pa.nulls(rows.num_rows, field.type))


def _filled(rows: pa.Table, name: str, values: pa.Array | pa.Scalar) -> pa.Table:
    position = rows.schema.get_field_index(name)
    column = rows.column(position).combine_chunks()
    return rows.set_column(position, rows.schema.field(position), pc.coalesce(column, values))

"""Reading the complete rows of a data file to write them again, with their row lineage in format 3.

Rule: a row that is written again keeps its ``_row_id``, and one that does not change also keeps its
``_last_updated_sequence_number``. A file that stores neither leaves both to be inherited: the row id from the entry's
first row id and the row's position, the update number from the entry's data sequence number. New files cannot inherit
those values, so they are filled in.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.parquet.prune.selection import RowSelection
from floeplan.scan.file_rows import FileRows, OpenFile
from floeplan.scan.model import FileScan
from floeplan.vectors import Ints
from floeplan.write.target import WriteTarget

# Reserved field ids of the Iceberg spec, "Reserved Field IDs".
ROW_ID = NestedField(2147483540, "_row_id", LongType(), required=False)
LAST_UPDATED = NestedField(2147483539, "_last_updated_sequence_number", LongType(), required=False)


@dataclass(frozen=True, slots=True)
class FileTask:
    """A data file to change or rewrite; ``entry`` has its spec and partition, which deletes for it must share."""

    file: FileScan
    entry: EntriesTable
    first_row_id: int | None


class FullRowReader:
    """Reads rows in the columns of a schema: by default all columns and, in format 3, the row lineage."""

    def __init__(self, target: WriteTarget, files: FileRows, schema: Schema | None = None) -> None:
        self._files = files
        self._lineage = target.format_version >= 3
        extra = (ROW_ID, LAST_UPDATED) if self._lineage else ()
        self.schema = schema or Schema(*target.stored_schema.fields, *extra)

    def read(self, task: FileTask, opened: OpenFile, selection: RowSelection) -> pa.Table:
        """The live rows at these positions."""
        return self.read_with_positions(task, opened, selection)[0]

    def read_with_positions(
        self, task: FileTask, opened: OpenFile, selection: RowSelection
    ) -> tuple[pa.Table, RowSelection]:
        """The live rows at these positions, and the positions they are at."""
        rows, live = opened.read(self.schema, selection)
        if self._lineage:
            rows = _with_lineage(rows, task, selection.to_rows())
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


def _with_lineage(rows: pa.Table, task: FileTask, positions: Ints) -> pa.Table:
    """The rows with inherited row ids and update numbers filled in."""
    if task.first_row_id is not None:
        rows = _filled(rows, ROW_ID.name, pa.array(positions + task.first_row_id))
        rows = _filled(rows, LAST_UPDATED.name, pa.scalar(task.file.sequence_number, pa.int64()))
    return rows


def _filled(rows: pa.Table, name: str, values: pa.Array | pa.Scalar) -> pa.Table:
    position = rows.schema.get_field_index(name)
    column = rows.column(position).combine_chunks()
    return rows.set_column(position, rows.schema.field(position), pc.coalesce(column, values))

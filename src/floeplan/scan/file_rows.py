"""Reads rows of single data files: any columns at any positions, and which of the rows are deleted.

``TableRows`` holds what reading a file needs; it is small and picklable, so a task on another machine reads exactly as
this process does. Positions count the rows of the file from zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import NestedField, StructType

from floeplan.errors import CorruptMetadataError, UnsupportedError
from floeplan.formats.files import ParquetFile, open_stored
from floeplan.formats.stored import StoredFile
from floeplan.metadata.delete_index import DeleteKind
from floeplan.opaque_types import is_variant
from floeplan.parquet.footer.footer import MAGIC, ParquetFooter, known_footer, likely_tail
from floeplan.parquet.prune.selection import RowSelection
from floeplan.parquet.read.decoder import ValueCounts
from floeplan.parquet.read.reader import LONGEST_GAP, REMOTE_ROUND_TRIP_BYTES
from floeplan.parquet.source import ByteSource, is_local
from floeplan.scan.delete_files import DeleteFileReader, Positions, key_columns, matches_any
from floeplan.scan.model import DeleteScan, FileScan
from floeplan.scan.projection import NO_LAYOUTS, Layouts, project
from floeplan.scan.variants import shredded_layout
from floeplan.schemas import FIELD_ID, fields_by_id, mapped_field_ids
from floeplan.vectors import Mask, arrow

EQUALITY = (DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION)


@dataclass(frozen=True, slots=True)
class TableRows:
    """What reading files of a table needs: the read schema and all others, newest first, name mapping and IO."""

    schemas: tuple[Schema, ...]
    mapping: NameMapping | None
    io: FileIO

    @staticmethod
    def of(table: Table, schema: Schema) -> TableRows:
        """For files of a table that are read with a schema."""
        known = sorted(table.metadata.schemas, key=lambda one: -one.schema_id)
        return TableRows((schema, *known), table.name_mapping(), table.io)


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """The rows of a file that a plan keeps, including deleted ones.

    ``rows`` with the mask ``live`` avoids a copy; ``undeleted`` copies the live rows when some are deleted.
    """

    rows: pa.Table
    selection: RowSelection
    live: Mask

    @property
    def live_count(self) -> int:
        """The number of rows that are not deleted."""
        return int(np.count_nonzero(self.live))

    def undeleted(self) -> pa.Table:
        """The rows that are not deleted."""
        return self.rows if self.live.all() else self.rows.filter(arrow(self.live))

    def positions(self, flags: Mask) -> Positions:
        """Positions of the flagged rows, one flag for each row."""
        return self.selection.at(np.flatnonzero(flags))

    def undeleted_positions(self, numbers: Positions) -> Positions:
        """Positions of some ``undeleted`` rows by their number."""
        return self.selection.at(numbers if self.live.all() else np.flatnonzero(self.live)[numbers])


class FileRows:
    """Opens files of one table; a delete file of several data files is decoded once. Thread-safe."""

    def __init__(self, table: TableRows) -> None:
        self.table = table
        self._deletes = DeleteFileReader(table.io)

    def expect(self, files: Iterable[FileScan]) -> None:
        """Announce which files will be opened: deletion vectors stored in one Puffin file are then fetched together."""
        self._deletes.expect(delete for file in files for delete in file.deletes)

    def open(self, file: FileScan, *, whole: bool = False) -> OpenFile:
        """A data file with its footer read; with ``whole``, a small one is fetched from a store with all its bytes."""
        if file.encrypted:
            raise UnsupportedError(
                f"data file {file.path} is encrypted; encrypted files are not read", context={"file": file.path}
            )
        self._deletes.begin(file.deletes)
        return OpenFile(self.table, self._deletes, file, whole=whole)

    def positions(self, delete: DeleteScan, path: str) -> Positions:
        """The rows of a data file that a position delete or a deletion vector removes."""
        return self._deletes.positions(delete, path)


class OpenFile:
    """One data file."""

    def __init__(self, table: TableRows, deletes: DeleteFileReader, file: FileScan, *, whole: bool = False) -> None:
        self._table, self._deletes, self.file = table, deletes, file
        known = known_footer(file.path, file.file_size)
        tail = likely_tail(file.file_size, len(fields_by_id(table.schemas[0])))
        if whole and tail < file.file_size <= REMOTE_ROUND_TRIP_BYTES and not is_local(file.path):
            tail = file.file_size - len(MAGIC)  # without the magic number at its start
        self.stored: StoredFile = open_stored(file.path, file.format, table.io, footer=known, tail=tail)

    @property
    def source(self) -> ByteSource:
        """The bytes of a Parquet file."""
        return self._parquet.source

    @property
    def footer(self) -> ParquetFooter:
        """The footer of a Parquet file."""
        return self._parquet.footer

    @property
    def _parquet(self) -> ParquetFile:
        assert isinstance(self.stored, ParquetFile), "callers check the format"
        return self.stored

    @property
    def has_equality_deletes(self) -> bool:
        """Whether rows are deleted by their values."""
        return any(delete.kind in EQUALITY for delete in self.file.deletes)

    def planned(self) -> RowSelection:
        """The rows that may match according to the plan, deleted or not."""
        file, stored = self.file, self.stored
        if file.row_selection is not None:
            return file.row_selection
        if file.row_groups is None:
            return RowSelection.all_rows(stored.num_rows)
        kept = np.array(file.row_groups, dtype=np.int64)
        return RowSelection.from_runs(stored.first_rows[kept], stored.row_group_rows[kept])

    def undeleted(self, selection: RowSelection) -> RowSelection:
        """Without the positions that deletion vectors and position deletes list."""
        for gone in self._listed():
            selection = selection.difference(RowSelection.from_rows(gone))
        return selection

    def without_deleted_pages(self, selection: RowSelection) -> RowSelection:
        """Without listed positions if they may cover whole pages; a selection of many short runs would only cost."""
        if not self._worth_waiting():
            return selection
        for gone in self._listed():
            if (gone[LONGEST_GAP:] - gone[:-LONGEST_GAP] == LONGEST_GAP).any():
                selection = selection.difference(RowSelection.from_rows(gone))
        return selection

    def _worth_waiting(self) -> bool:
        """Whether the pages of rows that are deleted by position may exceed what a store sends in the time."""
        listed = sum(delete.record_count for delete in self.file.deletes if delete.kind not in EQUALITY)
        spared = self.file.file_size * listed
        return is_local(self.file.path) or spared > REMOTE_ROUND_TRIP_BYTES * self.stored.num_rows

    def live(self, selection: RowSelection) -> Mask:
        """Which of the selected rows no deletion vector or position delete lists."""
        live = np.ones(selection.row_count, dtype=np.bool_)
        for gone in self._listed():
            if len(selection) == 1:
                first, last = np.searchsorted(gone, (selection.starts[0], selection.ends[0]))
                live[gone[first:last] - selection.starts[0]] = False
            else:
                live[selection.rank(gone[selection.contains(gone)])] = False
        return live

    def planned_rows(self, schema: Schema) -> PlannedRows:
        """The planned rows in the columns of a schema; deleted rows share pages with others, so they are read too."""
        selection = self.planned()
        rows, live = self.read(schema, selection)
        return PlannedRows(rows, selection, live & self.live(selection))

    def _listed(self) -> Iterator[Positions]:
        """What each deletion vector and position delete lists."""
        for delete in self.file.deletes:
            if delete.kind not in EQUALITY:
                yield self._deletes.positions(delete, self.file.path)

    def columns(self, schema: Schema, selection: RowSelection, kept: Mask | None = None) -> pa.Table:
        """These rows in the columns of a schema, deleted or not; with flags, those of them whose flag is set."""
        rows = selection.row_count if kept is None else int(np.count_nonzero(kept))
        stored = self._read_stored([schema], selection, kept=None if rows == selection.row_count else kept)
        return project(stored, schema, self.file.constants, self.file.path, rows)

    def read(
        self, schema: Schema, selection: RowSelection, *, keep_dictionaries: bool = False, layouts: Layouts = NO_LAYOUTS
    ) -> tuple[pa.Table, Mask]:
        """These rows in the columns of a schema, and which of them no equality delete removes."""
        found, matched = self.matched(schema, selection, keep_dictionaries=keep_dictionaries, layouts=layouts)
        live = np.ones(selection.row_count, dtype=np.bool_)
        for deleted in matched:
            live &= ~deleted
        return found, live

    def matched(
        self, schema: Schema, selection: RowSelection, *, keep_dictionaries: bool = False, layouts: Layouts = NO_LAYOUTS
    ) -> tuple[pa.Table, list[Mask]]:
        """These rows in the columns of a schema, and for each equality delete which of them it removes."""
        keys = [(delete, self._key_schemas(delete)) for delete in self.file.deletes if delete.kind in EQUALITY]
        path, rows, constants = self.file.path, selection.row_count, self.file.constants
        wanted = [schema, *chain.from_iterable(schemas for _, schemas in keys)]
        stored = self._read_stored(wanted, selection, keep_dictionaries=keep_dictionaries)
        matched = [
            matches_any(key_columns(stored, schemas, constants, path, rows), self._deletes.keys(delete, schemas))
            for delete, schemas in keys
        ]
        found = project(stored, schema, constants, path, rows, keep_dictionaries=keep_dictionaries, layouts=layouts)
        return found, matched

    def variant_layouts(self, fields: Iterable[NestedField]) -> dict[int, pa.DataType | None]:
        """The layouts of the variants that the file has, by field id; ``None`` for one that is not shredded."""
        known = self.stored.field_ids
        if known is None:
            return dict.fromkeys(field.field_id for field in fields)
        stored = {i: self.stored.read([i], RowSelection.none()) for i in {field.field_id for field in fields} & known}
        return {i: shredded_layout(table.schema.field(0).type) for i, table in stored.items()}

    def _read_stored(
        self,
        schemas: Sequence[Schema],
        selection: RowSelection,
        *,
        keep_dictionaries: bool = False,
        kept: Mask | None = None,
    ) -> pa.Table:
        """The stored columns that these schemas need."""
        known = self.stored.field_ids
        if known is None:
            stored = with_mapped_ids(self.stored.read(None, selection), self._table.mapping, self.file.path)
            self.stored.check_times(stored, schemas)
            return stored if kept is None else stored.filter(arrow(kept))
        fields = [_stored_ids(field, known) for schema in schemas for field in schema.fields]
        columns = list(dict.fromkeys(chain.from_iterable(fields)))
        if kept is not None and columns:
            stored = self.stored.read_kept(columns, selection, kept)
        else:
            stored = self.stored.read(columns, selection, keep_dictionaries=keep_dictionaries)
        self.stored.check_times(stored, schemas)
        return stored

    def worth_two_reads(self, schema: Schema, selection: RowSelection) -> bool:
        """Whether reading these columns may cost more than the round trip that leaves fewer of their rows to read."""
        return self.stored.worth_two_reads([field.field_id for field in schema.fields], selection)

    def worth_pages(self, schema: Schema, selection: RowSelection) -> bool:
        """Whether reading only those pages of these columns that have needed rows may pay."""
        return self.stored.worth_pages([field.field_id for field in schema.fields], selection)

    def fetch(self, schema: Schema, selection: RowSelection) -> bool:
        """Fetch these columns of a store's file now, unless fewer bytes would be read once matching rows are known."""
        if is_local(self.file.path) or self.worth_two_reads(schema, selection):
            return False
        held = self.fetch_together(schema, selection)
        if held:
            self.source.read_ranges([])
        return held

    def fetch_together(self, schema: Schema, selection: RowSelection) -> bool:
        """Fetch these columns with the next read, so that the one after it takes no round trip, if that is possible."""
        return self.stored.fetch_together([field.field_id for field in schema.fields], selection)

    def value_counts(self, field_id: int) -> list[ValueCounts] | None:
        """How many of the planned rows have each value of a column of text, in parts, where that is faster to read."""
        return None if field_id in self.file.constants else self.stored.value_counts(field_id, self.planned())

    def _key_schemas(self, delete: DeleteScan) -> tuple[Schema, ...]:
        """One schema per key, from the newest schema that has it: keys may be columns dropped since."""
        found = []
        for field_id in delete.equality_ids:
            schema = next((schema for schema in self._table.schemas if field_id in fields_by_id(schema)), None)
            if schema is None:
                raise CorruptMetadataError(
                    f"equality delete {delete.path} names field id {field_id}, which no schema of the table has",
                    context={"file": delete.path, "field_id": field_id},
                )
            found.append(prune_columns(schema, {field_id}, select_full_types=False))
        return tuple(found)


def _stored_ids(field: NestedField, stored: frozenset[int]) -> list[int]:
    """What to fetch of one field: lists and maps as a whole, structs by their fields.

    A struct whose projected fields are all newer than the file is fetched for its nulls.
    """
    if field.field_id not in stored:
        return []
    if not isinstance(field.field_type, StructType):
        return [field.field_id]
    inside = chain.from_iterable(_stored_ids(child, stored) for child in field.field_type.fields)
    return list(inside) or [field.field_id]


def shared_layouts(files: Iterable[OpenFile], schema: Schema) -> Layouts:
    """The layouts of shredded variants that all files share, so that their rows can be written to one file as stored.

    A variant whose layout differs between the files, or that is nested, has none. The files are opened only for a
    schema with variants.
    """
    variants = [field for field in schema.fields if is_variant(field.field_type)]
    found: dict[int, set[pa.DataType | None]] = {}
    for file in files if variants else ():
        for field_id, layout in file.variant_layouts(variants).items():
            found.setdefault(field_id, set()).add(layout)
    return {i: layout for i, layouts in found.items() if len(layouts) == 1 for layout in layouts if layout is not None}


def with_mapped_ids(table: pa.Table, mapping: NameMapping | None, path: str) -> pa.Table:
    """Assign field ids to the columns of a file without them, by the table's name mapping.

    A column that the mapping does not name gets no id and is not read.
    """
    ids = mapped_field_ids(mapping, path)
    fields = [_mapped(field, field.name, ids) for field in table.schema]
    columns = [column.cast(field.type) for column, field in zip(table.columns, fields, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _mapped(field: pa.Field, path: str, ids: dict[str, int]) -> pa.Field:
    type_ = field.type
    if pa.types.is_struct(type_):
        type_ = pa.struct([_mapped(child, f"{path}.{child.name}", ids) for child in type_])
    elif pa.types.is_list(type_):
        type_ = pa.list_(_mapped(type_.value_field, f"{path}.element", ids))
    elif pa.types.is_large_list(type_):
        type_ = pa.large_list(_mapped(type_.value_field, f"{path}.element", ids))
    elif pa.types.is_map(type_):
        key = _mapped(type_.key_field, f"{path}.key", ids)
        type_ = pa.map_(key, _mapped(type_.item_field, f"{path}.value", ids))
    metadata = {FIELD_ID: str(ids[path])} if path in ids else None
    return pa.field(field.name, type_, field.nullable, metadata)

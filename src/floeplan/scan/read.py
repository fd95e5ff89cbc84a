"""Reading what a plan keeps: exactly the rows that match and are not deleted.

Per file: the rows worth reading, minus deleted positions, are fetched by their pages; the file's columns take the
table's shape; rows whose key an equality delete lists are removed; the residual is evaluated. The order of rows is
that of the plan's files, and within a file that of its rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.types import NestedField, StructType

from floeplan.errors import CorruptMetadataError, UnsupportedError
from floeplan.metadata.delete_index import DeleteKind
from floeplan.parquet.footer import ParquetFooter, read_footer
from floeplan.parquet.reader import read_selected
from floeplan.parquet.selection import RowSelection
from floeplan.parquet.source import open_source
from floeplan.predicate.build import field_ids
from floeplan.predicate.ir import TRUE
from floeplan.predicate.rows import filter_rows
from floeplan.predicate.tristate import TriState
from floeplan.scan.delete_files import DeleteFileReader
from floeplan.scan.equality import key_columns, matches_any
from floeplan.scan.model import DeleteScan, FileScan
from floeplan.scan.name_mapping import with_mapped_ids
from floeplan.scan.projection import arrow_schema, project
from floeplan.scan.scan_plan import ScanPlan

READ_THREADS = 8
_EQUALITY = (DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION)


def read_plan(plan: ScanPlan, schema: Schema, limit: int | None = None) -> pa.Table:
    """The rows of a plan as one table with the columns of ``schema``."""
    shape = arrow_schema(schema)
    tables = []
    wanted = limit
    for table in read_batches(plan, schema):
        tables.append(table if wanted is None else table.slice(0, wanted))
        if wanted is not None:
            wanted -= tables[-1].num_rows
            if wanted <= 0:
                break
    return pa.concat_tables(tables) if tables else shape.empty_table()


def read_batches(plan: ScanPlan, schema: Schema) -> Iterator[pa.Table]:
    """The rows of a plan file by file, in order, a few files read ahead."""
    reader = PlanReader(plan, schema)
    with ThreadPoolExecutor(READ_THREADS, "floeplan-read") as pool:
        ahead: deque[Future[pa.Table]] = deque()
        try:
            for file in plan.files:
                ahead.append(pool.submit(reader.read, file))
                if len(ahead) >= READ_THREADS:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def count_rows(plan: ScanPlan) -> int:
    """Rows that match: record counts where every row matches and none is deleted, reading only the other files."""
    reader = PlanReader(plan, Schema())
    files = plan.files
    by_metadata = (files.states == TriState.TRUE) & (files.matches.counts == 0) & (files.entries.record_count >= 0)
    total = int(files.entries.record_count[by_metadata].sum())
    for row in np.flatnonzero(~by_metadata):
        total += _count(files[int(row)], reader)
    return total


def _count(file: FileScan, reader: PlanReader) -> int:
    """One file: a deletion vector's length is the number of rows it removes, anything else must be looked at."""
    if file.residual == TRUE and file.row_groups is None and [d.kind for d in file.deletes] == [DeleteKind.VECTOR]:
        return file.record_count - file.deletes[0].record_count
    return reader.count(file)


class PlanReader:
    """Reads files of one plan into the columns of one schema; safe under threads."""

    def __init__(self, plan: ScanPlan, schema: Schema) -> None:
        self._plan = plan
        self._schema = schema
        self._io = plan.target.table.io
        self._deletes = DeleteFileReader(self._io)
        self._schemas = _newest_first(plan)

    def read(self, file: FileScan) -> pa.Table:
        """The rows of one file that match and are not deleted, in the columns asked for."""
        rows = self._matching(file)
        return rows.select([field.name for field in self._schema.fields]).cast(arrow_schema(self._schema))

    def count(self, file: FileScan) -> int:
        """How many rows of one file match and are not deleted."""
        if file.residual == TRUE and not any(delete.kind in _EQUALITY for delete in file.deletes):
            return self._undeleted(file, _selected(file, read_footer(open_source(file.path, self._io)))).row_count
        rows: int = self._matching(file).num_rows
        return rows

    def _matching(self, file: FileScan) -> pa.Table:
        """The rows that match and are not deleted, in all columns that deciding so took."""
        if file.encrypted or file.format != "PARQUET":
            what = "encrypted" if file.encrypted else file.format
            raise UnsupportedError(
                f"data file {file.path} is {what}; only plain Parquet data files are read", context={"file": file.path}
            )
        source = open_source(file.path, self._io)
        footer = read_footer(source)
        selection = self._undeleted(file, _selected(file, footer))
        keys = [(delete, self._key_schemas(delete)) for delete in file.deletes if delete.kind in _EQUALITY]
        wanted = self._wanted(file)
        if footer.has_own_ids:
            schemas = (wanted, *chain.from_iterable(schemas for _, schemas in keys))
            stored = read_selected(source, footer, _stored_columns(footer, schemas), selection)
        else:
            mapping = self._plan.target.table.name_mapping()
            stored = with_mapped_ids(read_selected(source, footer, None, selection), mapping, file.path)
        rows = project(stored, wanted, file.constants, file.path, selection.row_count)
        live = np.ones(selection.row_count, dtype=np.bool_)
        for delete, schemas in keys:
            row_keys = key_columns(stored, schemas, file.constants, file.path, selection.row_count)
            live &= ~matches_any(row_keys, self._deletes.keys(delete, schemas))
        return filter_rows(file.residual, rows if live.all() else rows.filter(live), wanted)

    def _undeleted(self, file: FileScan, selection: RowSelection) -> RowSelection:
        positional = [delete for delete in file.deletes if delete.kind not in _EQUALITY]
        for delete in positional:
            gone = self._deletes.positions(delete, file.path)
            selection = selection.difference(RowSelection.from_runs(gone, np.ones_like(gone)))
        return selection

    def _key_schemas(self, delete: DeleteScan) -> tuple[Schema, ...]:
        """One schema for each key, as the newest schema that has it knows it: keys may be columns dropped since."""
        return tuple(self._key_schema(field_id, delete.path) for field_id in delete.equality_ids)

    def _key_schema(self, field_id: int, path: str) -> Schema:
        for schema in self._schemas:
            if field_id in schema._lazy_id_to_field:
                return prune_columns(schema, {field_id}, select_full_types=False)
        raise CorruptMetadataError(
            f"equality delete {path} names field id {field_id}, which no schema of the table has",
            context={"file": path, "field_id": field_id},
        )

    def _wanted(self, file: FileScan) -> Schema:
        """The columns to show and those of the residual."""
        tops = {field.field_id: field for field in self._schema.fields}
        asked = set(field_ids(file.residual))
        for field in self._plan.target.schema.fields:
            if not asked.isdisjoint(Schema(field)._lazy_id_to_field):
                tops[field.field_id] = field
        return Schema(*tops.values())


def _selected(file: FileScan, footer: ParquetFooter) -> RowSelection:
    if file.row_selection is not None:
        return file.row_selection
    if file.row_groups is None:
        return RowSelection.all_rows(footer.num_rows)
    kept = np.array(file.row_groups, dtype=np.int64)
    return RowSelection.from_runs(footer.first_rows[kept], footer.row_group_rows[kept])


def _stored_columns(footer: ParquetFooter, wanted: Iterable[Schema]) -> list[int]:
    """Columns to fetch; a struct whose wanted fields are all newer than the file is fetched for its nulls."""
    fields = chain.from_iterable(schema.fields for schema in wanted)
    return list(dict.fromkeys(chain.from_iterable(_stored(field, footer.field_ids) for field in fields)))


def _stored(field: NestedField, stored: frozenset[int]) -> list[int]:
    """What to fetch of one field: lists and maps as a whole, structs by their fields."""
    if field.field_id not in stored:
        return []
    if not isinstance(field.field_type, StructType):
        return [field.field_id]
    inside = chain.from_iterable(_stored(child, stored) for child in field.field_type.fields)
    return list(inside) or [field.field_id]


def _newest_first(plan: ScanPlan) -> list[Schema]:
    """The schema that is shown, then all of the table, the newest first."""
    return [plan.target.schema, *sorted(plan.target.metadata.schemas, key=lambda schema: -schema.schema_id)]

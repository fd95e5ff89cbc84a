"""Reading what a plan keeps: exactly the rows that match and are not deleted.

Per file: the rows worth reading, minus deleted positions, are fetched by their pages; the file's columns take the
table's shape; rows whose key an equality delete lists are removed; the residual is evaluated. The order of rows is
that of the plan's files, and within a file that of its rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from floeplan.metadata.delete_index import DeleteKind
from floeplan.predicate.build import field_ids
from floeplan.predicate.ir import TRUE
from floeplan.predicate.rows.evaluate import filter_rows
from floeplan.predicate.tristate import TriState
from floeplan.scan.file_rows import EQUALITY, FileRows, TableRows
from floeplan.scan.model import FileScan
from floeplan.scan.planned_scan import PlannedScan
from floeplan.scan.projection import arrow_schema, without_columns
from floeplan.schemas import fields_by_id

READ_THREADS = 8


def read_plan(plan: PlannedScan, schema: Schema, limit: int | None = None) -> pa.Table:
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
    if not schema.fields:
        return without_columns(sum(table.num_rows for table in tables))
    return pa.concat_tables(tables) if tables else shape.empty_table()


def read_batches(plan: PlannedScan, schema: Schema) -> Iterator[pa.Table]:
    """The rows of a plan file by file, in order, a few files read ahead."""
    reader = PlanReader.of(plan, schema)
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


def count_rows(plan: PlannedScan) -> int:
    """Rows that match: record counts where every row matches and none is deleted, reading only the other files."""
    reader = PlanReader.of(plan, Schema())
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
    """Reads files of one table into the columns of one schema; safe under threads."""

    def __init__(self, table: TableRows, schema: Schema) -> None:
        self._table_schema = table.schemas[0]
        self._schema = schema
        self._rows = FileRows(table)

    @staticmethod
    def of(plan: PlannedScan, schema: Schema) -> PlanReader:
        """For the files of a plan."""
        return PlanReader(TableRows.of(plan.target.table, plan.target.schema), schema)

    def read(self, file: FileScan) -> pa.Table:
        """The rows of one file that match and are not deleted, in the columns asked for."""
        rows = self._matching(file)
        shown, shape = rows.select([field.name for field in self._schema.fields]), arrow_schema(self._schema)
        return shown if shown.schema.equals(shape) else shown.cast(shape)

    def count(self, file: FileScan) -> int:
        """How many rows of one file match and are not deleted."""
        if file.residual == TRUE and not any(delete.kind in EQUALITY for delete in file.deletes):
            opened = self._rows.open(file)
            return opened.undeleted(opened.planned()).row_count
        rows: int = self._matching(file).num_rows
        return rows

    def _matching(self, file: FileScan) -> pa.Table:
        """The rows that match and are not deleted, in all columns that deciding so took."""
        opened = self._rows.open(file)
        wanted = self._wanted(file)
        rows, live = opened.read(wanted, opened.undeleted(opened.planned()))
        return filter_rows(file.residual, rows if live.all() else rows.filter(live), wanted)

    def _wanted(self, file: FileScan) -> Schema:
        """The columns to show and those of the residual."""
        tops = {field.field_id: field for field in self._schema.fields}
        asked = set(field_ids(file.residual))
        for field in self._table_schema.fields:
            if not asked.isdisjoint(fields_by_id(Schema(field))):
                tops[field.field_id] = field
        return Schema(*tops.values())

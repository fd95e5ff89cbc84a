"""Reads the rows of a plan: exactly those that match and are not deleted.

Per file: the selected rows, minus deleted positions, are read page by page; columns are projected onto the table's
schema; rows that an equality delete matches are removed; the residual is evaluated. Rows come in the order of the
plan's files, and within a file in file order.
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
from floeplan.predicate.stats import TriState
from floeplan.scan.file_rows import EQUALITY, FileRows, TableRows
from floeplan.scan.model import FileScan
from floeplan.scan.planned_scan import PlannedScan
from floeplan.scan.projection import arrow_schema, without_columns
from floeplan.schemas import fields_by_id

READ_THREADS = 8


def read_plan(plan: PlannedScan, schema: Schema, limit: int | None = None) -> pa.Table:
    """Read a plan into one table with the columns of ``schema``, at most ``limit`` rows."""
    tables = []
    left = limit
    for table in read_batches(plan, schema):
        tables.append(table if left is None else table.slice(0, left))
        if left is not None:
            left -= tables[-1].num_rows
            if left <= 0:
                break
    if not schema.fields:
        return without_columns(sum(table.num_rows for table in tables))
    return pa.concat_tables(tables) if tables else arrow_schema(schema).empty_table()


def read_batches(plan: PlannedScan, schema: Schema) -> Iterator[pa.Table]:
    """Read a plan file by file, in order, with a few files prefetched."""
    reader = PlanReader.of(plan, schema)
    with ThreadPoolExecutor(READ_THREADS, "floeplan-read") as pool:
        pending: deque[Future[pa.Table]] = deque()
        try:
            for file in plan.files:
                pending.append(pool.submit(reader.read, file))
                if len(pending) >= READ_THREADS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def count_rows(plan: PlannedScan) -> int:
    """Count matching rows: by record counts where every row matches and none is deleted, else by reading the file."""
    reader = PlanReader.of(plan, Schema())
    files = plan.files
    by_metadata = (files.states == TriState.TRUE) & (files.matches.counts == 0) & (files.entries.record_count >= 0)
    total = int(files.entries.record_count[by_metadata].sum())
    for row in np.flatnonzero(~by_metadata):
        file = files[int(row)]
        # A deletion vector replaces all position deletes of its file, and its cardinality is in the manifest.
        if file.residual == TRUE and file.row_groups is None and [d.kind for d in file.deletes] == [DeleteKind.VECTOR]:
            total += file.record_count - file.deletes[0].record_count
        else:
            total += reader.count(file)
    return total


class PlanReader:
    """Reads files of one table into the columns of one schema; thread-safe."""

    def __init__(self, table: TableRows, schema: Schema) -> None:
        self._table_schema = table.schemas[0]
        self._schema = schema
        self._rows = FileRows(table)

    @staticmethod
    def of(plan: PlannedScan, schema: Schema) -> PlanReader:
        """For the files of a plan."""
        return PlanReader(TableRows.of(plan.target.table, plan.target.schema), schema)

    def read(self, file: FileScan) -> pa.Table:
        """The rows of one file that match and are not deleted, in the projected columns."""
        rows = self._matching(file)
        projected, schema = rows.select([field.name for field in self._schema.fields]), arrow_schema(self._schema)
        return projected if projected.schema.equals(schema) else projected.cast(schema)

    def count(self, file: FileScan) -> int:
        """How many rows of one file match and are not deleted."""
        if file.residual == TRUE and not any(delete.kind in EQUALITY for delete in file.deletes):
            opened = self._rows.open(file)
            return opened.undeleted(opened.planned()).row_count
        rows: int = self._matching(file).num_rows
        return rows

    def _matching(self, file: FileScan) -> pa.Table:
        """The rows that match and are not deleted, in the projected columns and those of the residual."""
        opened = self._rows.open(file)
        fields = {field.field_id: field for field in self._schema.fields}
        residual_ids = set(field_ids(file.residual))
        for field in self._table_schema.fields:
            if not residual_ids.isdisjoint(fields_by_id(Schema(field))):
                fields[field.field_id] = field
        schema = Schema(*fields.values())
        rows, live = opened.read(schema, opened.undeleted(opened.planned()))
        return filter_rows(file.residual, rows if live.all() else rows.filter(live), schema)

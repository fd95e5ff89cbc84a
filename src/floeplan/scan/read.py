"""Reads the rows of a plan: exactly those that match and are not deleted.

Per file: the selected rows, minus deleted positions, are read page by page; columns are projected onto the table's
schema; rows that an equality delete matches are removed; the residual is evaluated. Rows come in the order of the
plan's files, and within a file in file order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from floeplan.metadata.delete_index import DeleteKind
from floeplan.parquet.prune.selection import RowSelection
from floeplan.predicate.build import field_ids
from floeplan.predicate.ir import TRUE
from floeplan.predicate.rows.evaluate import filter_rows
from floeplan.predicate.stats import TriState
from floeplan.scan.file_rows import EQUALITY, FileRows, OpenFile, TableRows
from floeplan.scan.metadata_columns import (
    DELETED,
    FILE,
    LAST_UPDATED,
    METADATA_IDS,
    POSITION,
    ROW_ID,
    SPEC_ID,
    fill_metadata,
)
from floeplan.scan.model import FileScan
from floeplan.scan.planned_scan import PlannedScan
from floeplan.scan.projection import arrow_schema, without_columns
from floeplan.schemas import fields_by_id

READ_THREADS = 8


def read_plan(plan: PlannedScan, schema: Schema) -> pa.Table:
    """Read a plan into one table with the columns of ``schema``."""
    return one_table(read_batches(plan, schema), schema)


def one_table(found: Iterator[pa.Table], schema: Schema) -> pa.Table:
    """Concatenate tables with the columns of ``schema``; there may be none."""
    tables = list(found)
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


@dataclass(frozen=True, slots=True)
class FilePart:
    """Some rows of a file that are not deleted by position; ``exact`` if all of them match and none is deleted."""

    opened: OpenFile
    selection: RowSelection
    exact: bool
    bytes: int

    def cut(self, rows: int) -> FilePart:
        """The first rows of the part."""
        return self if rows >= self.selection.row_count else replace(self, selection=self.selection.slice(limit=rows))


class PlanReader:
    """Reads files of one table into the columns of one schema; thread-safe."""

    def __init__(self, table: TableRows, schema: Schema) -> None:
        self._table_schema = table.schemas[0]
        self._schema = schema
        self._with_deleted = DELETED.field_id in (field.field_id for field in schema.fields)
        self._rows = FileRows(table)

    @staticmethod
    def of(plan: PlannedScan, schema: Schema) -> PlanReader:
        """For the files of a plan."""
        return PlanReader(TableRows.of(plan.target.table, plan.target.schema), schema)

    def read(self, file: FileScan) -> pa.Table:
        """The rows of one file that match and are not deleted, in the projected columns."""
        opened = self._rows.open(file)
        return self._projected(self._matching(opened, self._chosen(opened)))

    def parts(self, file: FileScan, most: int) -> list[FilePart]:
        """Open a file, and split its rows at row groups into parts whose columns take about ``most`` bytes."""
        opened = self._rows.open(file)
        selection, stored = self._chosen(opened), opened.stored
        sizes = stored.group_bytes([field.field_id for field in self._read_schema(file).fields])
        sizes[~selection.overlaps(stored.first_rows, stored.row_group_rows)] = 0
        number = (np.cumsum(sizes) - sizes) // most
        exact = file.residual == TRUE and not any(delete.kind in EQUALITY for delete in file.deletes)
        parts = []
        for groups in np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(number)) + 1):
            rows = RowSelection.from_runs(stored.first_rows[groups], stored.row_group_rows[groups])
            if chosen := selection.intersect(rows):
                parts.append(FilePart(opened, chosen, exact, int(sizes[groups].sum())))
        return parts

    def read_part(self, part: FilePart) -> pa.Table:
        """The rows of a part that match and are not deleted, in the projected columns."""
        return self._projected(self._matching(part.opened, part.selection))

    def _chosen(self, opened: OpenFile) -> RowSelection:
        """The planned rows: without those deleted by position, unless ``_deleted`` is read."""
        planned = opened.planned()
        return planned if self._with_deleted else opened.undeleted(planned)

    def _projected(self, rows: pa.Table) -> pa.Table:
        projected, schema = rows.select([field.name for field in self._schema.fields]), arrow_schema(self._schema)
        return projected if projected.schema.equals(schema) else projected.cast(schema)

    def count(self, file: FileScan) -> int:
        """How many rows of one file match and are not deleted."""
        if file.residual == TRUE and not any(delete.kind in EQUALITY for delete in file.deletes):
            opened = self._rows.open(file)
            return opened.undeleted(opened.planned()).row_count
        opened = self._rows.open(file)
        rows: int = self._matching(opened, opened.undeleted(opened.planned())).num_rows
        return rows

    def _read_schema(self, file: FileScan) -> Schema:
        """The projected columns and those of the residual."""
        fields = {field.field_id: field for field in self._schema.fields}
        residual_ids = set(field_ids(file.residual))
        for field in self._table_schema.fields:
            if not residual_ids.isdisjoint(fields_by_id(Schema(field))):
                fields[field.field_id] = field
        for field in (FILE, POSITION, SPEC_ID, ROW_ID, LAST_UPDATED):
            if field.field_id in residual_ids:
                fields[field.field_id] = field
        return Schema(*fields.values())

    def _matching(self, opened: OpenFile, selection: RowSelection) -> pa.Table:
        """The selected rows that match and are not deleted, in the columns of ``_read_schema``."""
        file, schema = opened.file, self._read_schema(opened.file)
        rows, live = opened.read(schema, selection)
        if not METADATA_IDS.isdisjoint(field.field_id for field in schema.fields):
            if self._with_deleted:
                listed = selection.difference(opened.undeleted(selection))
                live &= ~listed.contains(selection.to_rows())
            rows = fill_metadata(rows, schema, file, selection, live)
            live |= self._with_deleted
        return filter_rows(file.residual, rows if live.all() else rows.filter(live), schema)

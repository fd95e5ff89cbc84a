"""Reads the rows of a plan: exactly those that match and are not deleted.

Per file: pages whose rows are all deleted are left out. The columns of the residual are read first, with the keys of
equality deletes, and projected onto the table's schema; the residual is evaluated on the rows that are not deleted, on
dictionaries where text is stored with one. The other columns are then read for pages with matching rows, if these leave
some out, else in bulk, and filtered once. A store gets one request for all of them, where the bytes that could be saved
are worth less than a round trip. Rows come in the order of the plan's files, and within a file in file order.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, PrimitiveType, StringType

from floeplan.metadata.delete_index import DeleteKind
from floeplan.parquet.prune.selection import RowSelection, distinct
from floeplan.parquet.read.decoder import ValueCounts, decode_alone, decoders
from floeplan.parquet.read.reader import LONGEST_GAP
from floeplan.parquet.source import is_local
from floeplan.predicate.build import field_ids, has_opaque
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.predicate.rows.evaluate import matching_mask
from floeplan.predicate.stats import TriState
from floeplan.scan.file_rows import EQUALITY, FileRows, OpenFile, TableRows
from floeplan.scan.metadata_columns import DELETED, METADATA_IDS, fill_metadata, metadata_columns_of
from floeplan.scan.model import FileScan
from floeplan.scan.planned_scan import PlannedScan
from floeplan.scan.projection import arrow_schema, expand_dictionaries, without_columns
from floeplan.schemas import fields_by_id
from floeplan.vectors import Mask, all_set, arrow

READ_AHEAD = 8
"""Files that are read ahead of the consumer, regardless of their size."""
STORE_THREADS, STORE_BYTES = 64, 256 * 1024 * 1024
"""Files read at once from a store, as long as they have no more bytes. Most of their time is waiting; local files are
decoded by one thread per core, because more do not decode faster, and each holds memory."""


def read_plan(plan: PlannedScan, schema: Schema) -> pa.Table:
    """Read a plan into one table with the columns of ``schema``."""
    return one_table(read_batches(plan, schema), schema)


def one_table(found: Iterator[pa.Table], schema: Schema) -> pa.Table:
    """Concatenate tables with the columns of ``schema``; there may be none."""
    tables = list(found)
    if not schema.fields:
        return without_columns(sum(table.num_rows for table in tables))
    return pa.concat_tables(tables) if tables else _empty_table(schema)


def read_batches(plan: PlannedScan, schema: Schema) -> Iterator[pa.Table]:
    """Read a plan file by file, in order, with a few files prefetched."""
    reader, threads = PlanReader.of(plan, schema), read_threads(plan)
    if len(plan.files) == 1:  # without waiting for a thread
        yield reader.read(plan.files[0])
        return
    with ThreadPoolExecutor(threads, "floeplan-read", decode_alone) as pool:
        pending: deque[tuple[Future[pa.Table], int]] = deque()
        taken = 0
        try:
            for file in plan.files:
                while len(pending) >= READ_AHEAD and (len(pending) >= threads or taken + file.file_size > STORE_BYTES):
                    future, size = pending.popleft()
                    taken -= size
                    yield future.result()
                pending.append((pool.submit(reader.read, file), file.file_size))
                taken += file.file_size
            while pending:
                yield pending.popleft()[0].result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def read_threads(plan: PlannedScan) -> int:
    """How many threads read the files of a plan."""
    local = bool(len(plan.files)) and is_local(plan.files[0].path)
    return min(os.cpu_count() or 1, READ_AHEAD) if local else STORE_THREADS


def count_rows(plan: PlannedScan) -> int:
    """Count matching rows: by record counts where every row matches and none is deleted, else by reading the file.

    Deleted rows count if ``_deleted`` is among the columns of the plan, as they are returned then.
    """
    reader = PlanReader.of(plan, Schema(*(field for field in plan.schema.fields if field == DELETED)))
    files = plan.files
    by_metadata = (files.states == TriState.TRUE) & (files.matches.counts == 0) & (files.entries.record_count >= 0)
    total = int(files.entries.record_count[by_metadata].sum())
    others = files.take(np.flatnonzero(~by_metadata))
    with ThreadPoolExecutor(read_threads(plan), "floeplan-read", decode_alone) as pool:
        found = list(pool.map(reader.count, others))
    return total + sum(one for one in found if isinstance(one, int)) + _count_values(found)


class CountedText(NamedTuple):
    """Values of the only column of a residual, and how many rows of a file have each."""

    residual: IrExpr
    parts: list[ValueCounts]


def _count_values(found: Sequence[int | CountedText]) -> int:
    """How many rows match; each residual is evaluated once on the values of all files."""
    total, alike = 0, defaultdict[IrExpr, list[ValueCounts]](list)
    for one in found:
        if isinstance(one, CountedText):
            alike[one.residual] += one.parts
    for residual, parts in alike.items():
        counts = np.concatenate([part.counts for part in parts])
        values = pa.chunked_array([part.values for part in parts], type=pa.string())
        # An expression may raise an error on a value that no row has.
        rows = pa.table({"values": values}).filter(arrow(counts > 0))
        matching = matching_mask(residual, rows, lambda _: rows.column(0))  # noqa: B023 - evaluated at once
        total += int(counts[counts > 0][matching].sum())
    return total


@dataclass(frozen=True, slots=True)
class FilePart:
    """Some rows of a file; ``exact`` if all of them match that are not deleted by position."""

    opened: OpenFile
    selection: RowSelection
    exact: bool
    bytes: int

    def cut(self, rows: int) -> FilePart:
        """The first rows of the part that are not deleted by position."""
        live = self.opened.undeleted(self.selection)
        return replace(self, selection=live if rows >= live.row_count else live.slice(limit=rows))


class _Columns(NamedTuple):
    """The columns of a residual, the other projected ones, and both."""

    condition: Schema
    others: Schema
    together: Schema


class PlanReader:
    """Reads files of one table into the columns of one schema; thread-safe.

    ``filtered`` are the metadata columns that the predicate of the plan uses.
    """

    def __init__(self, table: TableRows, schema: Schema, filtered: tuple[NestedField, ...] = ()) -> None:
        self._table_schema = table.schemas[0]
        self._schema, self._filtered_by = schema, filtered
        self._with_deleted = DELETED in (*schema.fields, *filtered)
        self._rows = FileRows(table)
        self._known: dict[frozenset[int], _Columns] = {}
        self._all_columns = {f.field_id for f in schema.fields} >= {f.field_id for f in self._table_schema.fields}

    @staticmethod
    def of(plan: PlannedScan, schema: Schema) -> PlanReader:
        """For the files of a plan."""
        filtered = metadata_columns_of(plan.compiled.predicate, plan.target.metadata)
        return PlanReader(TableRows.of(plan.target.table, plan.target.schema), schema, filtered)

    def read(self, file: FileScan) -> pa.Table:
        """The rows of one file that match and are not deleted, in the projected columns."""
        opened = self._rows.open(file, whole=self._all_columns)
        selection = self._chosen(opened)
        if opened.fetch(self._columns(file).together, selection):
            return decoders().submit(self._matching, opened, selection).result()
        return self._matching(opened, selection)

    def parts(self, file: FileScan, most: int) -> list[FilePart]:
        """Open a file, and split its rows at row groups into parts whose columns take about ``most`` bytes."""
        opened = self._rows.open(file, whole=self._all_columns)
        selection, stored = self._chosen(opened), opened.stored
        sizes = stored.group_bytes([field.field_id for field in self._columns(file).together.fields])
        sizes[~selection.overlaps(stored.first_rows, stored.row_group_rows)] = 0
        number = (np.cumsum(sizes) - sizes) // most
        exact = file.residual == TRUE and not opened.has_equality_deletes and not self._with_deleted
        parts = []
        for groups in np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(number)) + 1):
            rows = RowSelection.from_runs(stored.first_rows[groups], stored.row_group_rows[groups])
            if chosen := selection.intersect(rows):
                parts.append(FilePart(opened, chosen, exact, int(sizes[groups].sum())))
        return parts

    def read_part(self, part: FilePart, limit: int | None = None) -> pa.Table:
        """The rows of a part that match and are not deleted, in the projected columns.

        With a limit, rows after the first ones may be left out.
        """
        return self._matching(part.opened, part.selection, limit)

    def _chosen(self, opened: OpenFile) -> RowSelection:
        """The planned rows: without pages of deleted rows, unless ``_deleted`` is used."""
        planned = opened.planned()
        return planned if self._with_deleted else opened.without_deleted_pages(planned)

    def count(self, file: FileScan) -> int | CountedText:
        """The number of matching rows of one file that are not deleted, or the value counts that determine it."""
        if not self._with_deleted and file.residual == TRUE and file.row_groups is None and file.record_count >= 0:
            kinds = {delete.kind for delete in file.deletes}
            # A deletion vector replaces all position deletes of its file, and its cardinality is in the manifest.
            if kinds == {DeleteKind.VECTOR} and len(file.deletes) == 1:
                return file.record_count - file.deletes[0].record_count
            if kinds.isdisjoint(EQUALITY):
                listed = [self._rows.positions(delete, file.path) for delete in file.deletes]
                gone = distinct(np.concatenate([np.zeros(0, dtype=np.int64), *listed]))
                return file.record_count - int(np.searchsorted(gone, file.record_count))
        opened = self._rows.open(file)
        condition = self._columns(file).condition
        is_text = len(condition.fields) == 1 and isinstance(condition.fields[0].field_type, StringType)
        if is_text and not file.deletes and not has_opaque(file.residual):
            counted = opened.value_counts(condition.fields[0].field_id)
            if counted is not None:
                return CountedText(file.residual, counted)
        return int(np.count_nonzero(self._filtered(opened, self._chosen(opened), self._columns(file).condition)[1]))

    def _matching(self, opened: OpenFile, selection: RowSelection, limit: int | None = None) -> pa.Table:
        """The selected rows that match and are not deleted, in the projected columns."""
        condition, others, together = self._columns(opened.file)
        # Metadata columns are filled in for all rows of one read. What is left of a predicate need not name them.
        has_metadata = self._with_deleted or not METADATA_IDS.isdisjoint(field.field_id for field in together.fields)
        if opened.file.residual == TRUE and not has_metadata and not opened.has_equality_deletes:
            return self._projected(opened.columns(together, selection, opened.live(selection)))
        two = bool(condition.fields) and not has_metadata
        held = two and not opened.worth_two_reads(others, selection)
        if not two or (held and not opened.fetch_together(together, selection)):
            rows, matching = self._filtered(opened, selection, together)
            return self._projected(expand_dictionaries(_kept(rows, matching), together))
        first, matching = self._filtered(opened, selection, condition)
        if limit is not None and len(hits := np.flatnonzero(matching)) > limit:
            matching[hits[limit] :] = False
        encoded = all(pa.types.is_dictionary(column.type) for column in first.columns)
        if encoded and others.fields and matching.any() and not opened.worth_pages(together, selection):
            # Decoding dictionary indexes again, without other rows, takes a fraction of filtering them.
            return self._projected(opened.columns(self._schema, selection, matching))
        found = expand_dictionaries(_kept(first, matching), condition)
        if not found.num_rows or not others.fields:
            rest = _empty_table(others)
        elif not held and opened.worth_pages(others, selection) and _may_skip_pages(matching):
            rest = opened.columns(others, selection.narrow(matching))
        else:
            rest = opened.columns(others, selection, matching)
        fields = [*found.schema, *rest.schema]
        columns = [*found.columns, *rest.columns] if others.fields else found.columns
        return self._projected(pa.Table.from_arrays(columns, schema=pa.schema(fields)))

    def _filtered(self, opened: OpenFile, selection: RowSelection, schema: Schema) -> tuple[pa.Table, Mask]:
        """The selected rows in the columns of a schema, and which of them match and are not deleted."""
        rows, matching = opened.read(schema, selection, keep_dictionaries=True)
        if opened.file.deletes:
            matching &= opened.live(selection)
        if not METADATA_IDS.isdisjoint(field.field_id for field in schema.fields):
            rows = fill_metadata(rows, schema, opened.file, selection, matching)
        matching |= self._with_deleted
        residual = opened.file.residual
        if residual != TRUE:
            # Only on live rows: an expression may raise an error on a value that was deleted.
            if all_set(matching):
                matching = matching_mask(residual, rows, schema)
            else:
                matching[matching] = matching_mask(residual, rows.filter(arrow(matching)), schema)
        return rows, matching

    def _columns(self, file: FileScan) -> _Columns:
        """Computed once for all files with the same columns in their residual: making a schema takes 0.3 ms."""
        ids = frozenset(field_ids(file.residual))
        if ids not in self._known:
            fields = []
            if ids:
                known = (*self._table_schema.fields, *self._filtered_by)
                fields += [field for field in known if not ids.isdisjoint(_ids_of(field))]
            read = {field.field_id for field in fields}  # a struct of which some fields are projected is read whole
            others = [field for field in self._schema.fields if field.field_id not in read]
            separate = (Schema(*others), Schema(*fields, *others)) if fields else (self._schema, self._schema)
            self._known[ids] = _Columns(Schema(*fields), *separate)
        return self._known[ids]

    def _projected(self, rows: pa.Table) -> pa.Table:
        if not self._schema.fields:
            return without_columns(rows.num_rows)
        projected, schema = rows.select([field.name for field in self._schema.fields]), arrow_schema(self._schema)
        return projected if projected.schema.equals(schema) else projected.cast(schema)


def _ids_of(field: NestedField) -> Iterable[int]:
    """The ids of a field and its nested fields; only the latter are worth a schema."""
    return (field.field_id,) if isinstance(field.field_type, PrimitiveType) else fields_by_id(Schema(field))


def _kept(rows: pa.Table, kept: Mask) -> pa.Table:
    return rows if all_set(kept) else rows.filter(arrow(kept))


def _empty_table(schema: Schema) -> pa.Table:
    """As ``pa.Schema.empty_table``, which imports pandas if it is installed."""
    return pa.Table.from_batches([], arrow_schema(schema))


def _may_skip_pages(matching: Mask) -> bool:
    """Whether consecutive rows that do not match may cover a whole page."""
    hits = np.flatnonzero(matching)
    return bool((np.diff(hits, prepend=-1, append=len(matching)) > LONGEST_GAP).any())

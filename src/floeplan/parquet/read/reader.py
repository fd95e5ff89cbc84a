"""Reads exactly the selected rows, with no more bytes than their pages.

``read_selected`` reads given rows of given columns. ``read`` prunes a file with a predicate first and returns exactly
the rows that match: proven rows are returned without evaluation, the rest is filtered.

Late materialization: the predicate's columns are read first and the others only for matched rows, if the bytes that may
be saved are worth the additional round trip.

Large reads are split into waves of row groups, which bounds the compressed bytes in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.page_index import PageIndex, read_page_indexes
from floeplan.parquet.prune.options import PruneOptions
from floeplan.parquet.prune.pruner import Binding, Pruner, cost_since, resolves_by_field_id
from floeplan.parquet.prune.result import PruneResult
from floeplan.parquet.prune.selection import RowSelection, distinct
from floeplan.parquet.read.pages import LeafPlan, plan_leaf, read_leaves, take_rows
from floeplan.parquet.read.projection import ProjectedField, project, project_leaves, without_field_ids
from floeplan.parquet.source import ByteSource, BytesSource, LocalSource, open_source
from floeplan.predicate.build import field_ids
from floeplan.predicate.ir import TRUE
from floeplan.predicate.rows.evaluate import matching_mask

if TYPE_CHECKING:
    import os

    from pyiceberg.io import FileIO

WAVE_BYTES = 128 * 1024 * 1024
REMOTE_ROUND_TRIP_BYTES = 4 * 1024 * 1024
"""About the bytes that a store delivers in the time of one round trip."""
LOCAL_ROUND_TRIP_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The matched rows, the pruning result and the total cost."""

    table: pa.Table
    prune: PruneResult
    bytes_read: int
    requests: int
    round_trips: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the pruning, with the matched rows and the total cost."""
        cost = {"bytes_read": self.bytes_read, "requests": self.requests, "round_trips": self.round_trips}
        return self.prune.to_dict() | cost | {"rows_matched": self.table.num_rows}


def read(
    file: str | os.PathLike[str] | bytes | memoryview | ByteSource,
    where: Any = TRUE,
    columns: Sequence[str | int] | None = None,
    *,
    schema: Schema | None = None,
    io: FileIO | None = None,
    options: PruneOptions | None = None,
    limit: int | None = None,
) -> ReadResult:
    """Read the rows of one file that match a predicate.

    Args:
        file: A path, a URI, bytes or a source.
        where: The predicate, in any form ``Pruner`` takes.
        columns: Names, struct paths or field ids to return; all columns by default.
        schema: The schema whose columns the predicate names; the file's own by default.
        io: The PyIceberg ``FileIO`` to open a URI with.
        options: What pruning may use.
        limit: Return at most this number of rows.
    """
    source = open_source(file, io)
    before = replace(source.counters)
    footer = read_footer(source)
    options = options or PruneOptions()
    fields = project(footer, columns, case_sensitive=options.case_sensitive)
    pruner = Pruner(where, schema, options)
    pruning = pruner.examine(source, footer, [leaf for field in fields for leaf in field.leaves], before)
    pruned = pruning.result()
    reading = _Reading(source, footer, fields, pruning.indexes, pruning.binding)
    table = reading.matching(pruned.file_selection, pruned.proven, limit)
    cost = cost_since(source, before)
    return ReadResult(table, pruned, cost.bytes, cost.requests, cost.round_trips)


def read_selected(
    source: ByteSource,
    footer: ParquetFooter,
    columns: Sequence[str | int] | None = None,
    selection: RowSelection | None = None,
) -> pa.Table:
    """Read rows, numbered over the file, of columns; all rows of all columns by default."""
    fields = project(footer, columns)
    rows = RowSelection.all_rows(footer.num_rows) if selection is None else selection
    selected = rows.rank(footer.first_rows + footer.row_group_rows) - rows.rank(footer.first_rows)
    partial = np.flatnonzero((selected > 0) & (selected < footer.row_group_rows))
    leaves = [leaf for field in fields for leaf in field.leaves]
    indexes = read_page_indexes(source, footer, leaves, partial, with_statistics=()) if len(partial) and leaves else {}
    return _Reading(source, footer, fields, indexes, None).matching(rows, rows, None)


class _Reading:
    """One projection of one file, read wave by wave."""

    def __init__(
        self,
        source: ByteSource,
        footer: ParquetFooter,
        fields: tuple[ProjectedField, ...],
        indexes: Mapping[int, PageIndex],
        binding: Binding | None,
    ) -> None:
        self._source, self._footer, self._fields, self._indexes = source, footer, fields, indexes
        self._filtered: tuple[ProjectedField, ...] = ()
        if binding is not None:
            # The leaves that the predicate reads, including those of opaque parts and structs.
            wanted: Iterable[int | str | None] = field_ids(binding.predicate)
            if not resolves_by_field_id(footer, binding.schema):
                wanted = [binding.schema.find_column_name(field) for field in field_ids(binding.predicate)]
            self._filtered = project_leaves(
                footer, [leaf for name in wanted if name is not None for leaf in footer.leaves_of_column(name)]
            )
        self._binding = binding
        self._layouts = {leaf.index: field.layout for field in (*fields, *self._filtered) for leaf in field.leaves}

    def matching(self, selection: RowSelection, proven: RowSelection, limit: int | None) -> pa.Table:
        """The selected rows that match; proven rows are not evaluated."""
        tables, rows = [], 0
        for wave in self._waves(selection):
            if limit is not None and rows >= limit:
                break
            left = None if limit is None else limit - rows
            tables.append(self._wave(wave, wave.intersect(proven), left))
            rows += tables[-1].num_rows
        if not tables:
            return self._wave(RowSelection.none(), RowSelection.none(), None)
        return pa.concat_tables(tables) if self._fields else _table([], rows)

    def _waves(self, selection: RowSelection) -> Iterator[RowSelection]:
        """Cut the selection at row groups into parts whose pages stay within ``WAVE_BYTES``."""
        footer = self._footer
        touched = np.flatnonzero(selection.overlaps(footer.first_rows, footer.row_group_rows))
        if sum(int(footer.chunks(leaf).total_compressed_size[touched].sum()) for leaf in self._layouts) <= WAVE_BYTES:
            yield from [selection] if selection else []
            return
        sizes = np.zeros(footer.num_row_groups)
        for leaf in self._layouts:
            plan = self._plan(leaf, selection)
            sizes += np.bincount(plan.row_group, plan.size, minlength=footer.num_row_groups)
        wave = (np.cumsum(sizes[touched]) // WAVE_BYTES).astype(np.int64)
        for number in distinct(wave):
            groups = touched[wave == number]
            yield selection.intersect(RowSelection.from_runs(footer.first_rows[groups], footer.row_group_rows[groups]))

    def _wave(self, selection: RowSelection, proven: RowSelection, limit: int | None) -> pa.Table:
        doubtful = selection.difference(proven)
        if not doubtful:
            wanted = selection.slice(limit=limit)
            data = self._fetch(dict.fromkeys(_leaves_of(self._fields), wanted))
            return _assembled(self._fields, data, wanted.row_count)
        # The predicate's columns are read for the unproven rows, or for all if they are projected too.
        projected, filtered = dict.fromkeys(_leaves_of(self._fields)), _leaves_of(self._filtered)
        first = {leaf: selection if leaf in projected else doubtful for leaf in filtered}
        others = [leaf for leaf in projected if leaf not in first]
        # Late materialization: reading the others for all rows may cost more than a round trip.
        local = isinstance(self._source, LocalSource | BytesSource)
        threshold = LOCAL_ROUND_TRIP_BYTES if local else REMOTE_ROUND_TRIP_BYTES
        late = sum(self._plan(leaf, doubtful).bytes for leaf in others) > threshold
        data = self._fetch(first if late else first | dict.fromkeys(others, selection))
        matched = self._evaluate({leaf: data[leaf] for leaf in filtered}, first, doubtful)
        wanted = matched.union(proven).slice(limit=limit)
        data = {leaf: take_rows(data[leaf], _within(wanted, selection)) for leaf in projected if leaf in data}
        if late:
            data |= self._fetch(dict.fromkeys(others, wanted))
        return _assembled(self._fields, data, wanted.row_count)

    def _plan(self, leaf: int, rows: RowSelection) -> LeafPlan:
        return plan_leaf(self._footer, self._footer.leaves[leaf], rows, self._indexes.get(leaf))

    def _fetch(self, wanted: Mapping[int, RowSelection]) -> dict[int, pa.ChunkedArray]:
        plans = [self._plan(leaf, rows) for leaf, rows in wanted.items()]
        return read_leaves(self._source, self._footer, plans, self._layouts)

    def _evaluate(
        self, data: Mapping[int, pa.ChunkedArray], rows_of: Mapping[int, RowSelection], doubtful: RowSelection
    ) -> RowSelection:
        """The unproven rows that match."""
        assert self._binding is not None
        aligned = {leaf: take_rows(column, _within(doubtful, rows_of[leaf])) for leaf, column in data.items()}
        table = _assembled(self._filtered, aligned, doubtful.row_count)
        if not self._footer.has_field_ids:
            table = without_field_ids(table)
        return doubtful.narrow(matching_mask(self._binding.predicate, table, self._binding.schema))


def _assembled(fields: Iterable[ProjectedField], data: Mapping[int, pa.ChunkedArray], rows: int) -> pa.Table:
    return _table([field.assemble(data) for field in fields], rows)


def _table(columns: Sequence[tuple[pa.Field, pa.ChunkedArray]], rows: int) -> pa.Table:
    """A table of the columns; a table without columns keeps its number of rows."""
    counted = (pa.field("rows", pa.null()), pa.nulls(rows))
    fields, arrays = zip(counted, *columns, strict=True)
    return pa.Table.from_arrays(list(arrays), schema=pa.schema(fields)).select(range(1, len(arrays)))


def _leaves_of(fields: Iterable[ProjectedField]) -> list[int]:
    return [leaf.index for field in fields for leaf in field.leaves]


def _within(rows: RowSelection, larger: RowSelection) -> RowSelection:
    """Renumber rows relative to a selection that contains them."""
    return rows.relative_to(larger.starts, larger.counts)

"""Reads exactly the selected rows, with no more bytes than their pages.

``read_selected`` reads given rows of given columns. ``read`` prunes a file with a predicate first and returns exactly
the rows that match: proven rows are returned without evaluation, the rest is filtered.

Late materialization: the predicate's columns are read first and the others only for matched rows, if the bytes that may
be saved are worth the additional round trip.

Large reads are split into waves of row groups, which bounds the compressed bytes in memory.

``read_row_groups`` decodes whole row groups without the unselected rows. Reading single pages pays when some can be
skipped. When the selected rows are spread over all pages, as when a file is rewritten, it would skip none and create
one decoder per column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.logical_types import Physical
from floeplan.parquet.footer.page_index import PageIndex, read_page_indexes
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.pages.data_pages import PLAIN, UNSUPPORTED_PAGE, PageCodec, kernel, read_pages
from floeplan.parquet.prune.options import PruneOptions
from floeplan.parquet.prune.pruner import Binding, Pruner, resolves_by_field_id
from floeplan.parquet.prune.result import PruneResult
from floeplan.parquet.prune.selection import RowSelection, distinct
from floeplan.parquet.read.decoder import decode_row_groups, thread_codec
from floeplan.parquet.read.pages import FEW_RUNS, LeafPlan, plan_leaf, read_leaves, take_rows
from floeplan.parquet.read.projection import ProjectedField, project, project_leaves, without_field_ids
from floeplan.parquet.source import ByteSource, BytesSource, LocalSource, open_source
from floeplan.predicate.build import field_ids
from floeplan.predicate.ir import TRUE
from floeplan.predicate.rows.evaluate import matching_mask
from floeplan.vectors import Ints, Mask

if TYPE_CHECKING:
    import os

    from pyiceberg.io import FileIO

WAVE_BYTES = 128 * 1024 * 1024
"""Compressed bytes to hold in memory at once."""
LONGEST_GAP = 1024
"""Consecutive unselected rows: a longer gap may cover a whole page."""
_WORTH_SKIPPING = 1 / 16
"""A fraction of rows: pages that hold fewer are read faster with the others than found."""
REMOTE_ROUND_TRIP_BYTES = 4 * 1024 * 1024
"""About the bytes that a store delivers in the time of one round trip."""
LOCAL_ROUND_TRIP_BYTES = 64 * 1024
_PLAIN_INT64 = np.dtype("<i8")


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
    cost = source.counters.since(before)
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
            wanted: Iterable[int | str | None] = field_ids(binding.compiled.predicate)
            if not resolves_by_field_id(footer, binding.schema):
                wanted = [binding.schema.find_column_name(field) for field in field_ids(binding.compiled.predicate)]
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
        return pa.concat_tables(tables) if self._fields else _assembled((), {}, rows)

    def _waves(self, selection: RowSelection) -> Iterator[RowSelection]:
        """Cut the selection at row groups into parts whose pages stay within ``WAVE_BYTES``."""
        footer = self._footer
        touched = _touched(footer, selection)
        if sum(int(footer.chunks(leaf).total_compressed_size[touched].sum()) for leaf in self._layouts) <= WAVE_BYTES:
            yield from [selection] if selection else []
            return
        sizes = np.zeros(footer.num_row_groups)
        for leaf in self._layouts:
            plan = self._plan(leaf, selection)
            sizes += np.bincount(plan.row_group, plan.size, minlength=footer.num_row_groups)
        for groups in _waves(touched, sizes[touched]):
            yield selection.intersect(_rows_of(footer, groups))

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
        # Evaluate the predicate on the unproven rows.
        assert self._binding is not None
        aligned = {leaf: take_rows(data[leaf], _within(doubtful, first[leaf])) for leaf in filtered}
        table = _assembled(self._filtered, aligned, doubtful.row_count)
        if not self._footer.has_field_ids:
            table = without_field_ids(table)
        matched = doubtful.narrow(matching_mask(self._binding.compiled.predicate, table, self._binding.schema))
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


def _assembled(fields: Iterable[ProjectedField], data: Mapping[int, pa.ChunkedArray], rows: int) -> pa.Table:
    """A table of the fields; a table without columns keeps its number of rows."""
    counted = (pa.field("rows", pa.null()), pa.nulls(rows))
    schema, arrays = zip(counted, *(field.assemble(data) for field in fields), strict=True)
    return pa.Table.from_arrays(list(arrays), schema=pa.schema(schema)).select(range(1, len(arrays)))


def _leaves_of(fields: Iterable[ProjectedField]) -> list[int]:
    return [leaf.index for field in fields for leaf in field.leaves]


def _within(rows: RowSelection, larger: RowSelection) -> RowSelection:
    """Renumber rows relative to a selection that contains them."""
    return rows.relative_to(larger.starts, larger.counts)


def selects_most_pages(footer: ParquetFooter, selection: RowSelection) -> bool:
    """Whether few pages of the row groups with selected rows could be skipped."""
    if not selection or selection.row_count == footer.num_rows:
        return bool(selection)
    rows = _rows_of(footer, _touched(footer, selection))
    gaps = rows.difference(selection).counts
    return int(gaps[gaps > LONGEST_GAP].sum()) <= _WORTH_SKIPPING * rows.row_count


def read_row_groups(
    source: ByteSource,
    footer: ParquetFooter,
    columns: Sequence[str | int],
    selection: RowSelection,
    *,
    keep_dictionaries: bool = False,
    kept: Mask | None = None,
) -> pa.Table:
    """The selected rows of columns that the file has; fields are in the order of the file.

    With ``keep_dictionaries``, text that is stored with a dictionary stays encoded with it. ``kept`` has one flag for
    each selected row; the others are left out.
    """
    leaves = sorted({leaf for column in columns for leaf in footer.leaves_of_column(column)})
    touched, everything = _touched(footer, selection), selection.row_count == footer.num_rows
    waves: Iterable[Ints] = [touched]
    if footer.file_size > WAVE_BYTES:
        sizes = (footer.chunks(leaf).total_compressed_size[touched] for leaf in leaves)
        waves = _waves(touched, sum(sizes, np.zeros(len(touched))))
    tables, done = [], 0
    for groups in waves:
        rows, wanted, mask = int(footer.row_group_rows[groups].sum()), None, None
        if not everything:
            wanted = selection.intersect(_rows_of(footer, groups))
            wanted = wanted.relative_to(footer.first_rows[groups], footer.row_group_rows[groups])
        if kept is not None:
            count = rows if wanted is None else wanted.row_count
            mask, done = kept[done : done + count], done + count
        if wanted is not None and (mask is not None or len(wanted) > FEW_RUNS):
            within = wanted.to_mask(rows)
            if mask is not None:
                within[within] = mask
            wanted, mask = None, within
        table = decode_row_groups(source, footer, leaves, groups, keep_dictionaries=keep_dictionaries, kept=mask)
        tables.append(table if wanted is None else take_rows(table, wanted))
    return pa.concat_tables(tables)


def _touched(footer: ParquetFooter, selection: RowSelection) -> Ints:
    return np.flatnonzero(selection.overlaps(footer.first_rows, footer.row_group_rows))


def _rows_of(footer: ParquetFooter, groups: Ints) -> RowSelection:
    return RowSelection.from_runs(footer.first_rows[groups], footer.row_group_rows[groups])


def _waves(groups: Ints, sizes: npt.NDArray[Any]) -> Iterator[Ints]:
    """Split row groups of these sizes into parts of at most ``WAVE_BYTES``."""
    wave = (np.cumsum(sizes) // WAVE_BYTES).astype(np.int64)
    return (groups[wave == number] for number in distinct(wave))


def read_plain_int64(source: ByteSource, footer: ParquetFooter, leaf: LeafColumn) -> Ints | None:
    """Read a whole INT64 column without a decoder, which saves most of the time on many small files.

    ``None``, for the decoder to read it, unless all pages are plain and supported and no row is null.
    """
    locations = [footer.chunk_location(leaf, group) for group in range(footer.num_row_groups)]
    simple = leaf.physical is Physical.INT64 and not leaf.max_rep and leaf.max_def <= 1 and kernel is not None
    if not simple or not all(PageCodec.knows(chunk.codec) for chunk in locations):
        return None
    read = source.read_ranges([(chunk.start, chunk.size) for chunk in locations])
    parts = []
    try:
        for chunk, data, rows in zip(locations, read, footer.row_group_rows.tolist(), strict=True):
            for page in read_pages(data, thread_codec(chunk.codec), leaf.max_def, chunk.uncompressed_size, rows):
                size = page.rows * _PLAIN_INT64.itemsize
                if page.encoding != PLAIN or page.present is not None or len(page.values) != size:
                    return None
                parts.append(page.values.view(_PLAIN_INT64))
    except UNSUPPORTED_PAGE:
        return None
    numbers = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    return numbers if len(numbers) == footer.num_rows else None

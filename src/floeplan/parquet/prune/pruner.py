"""One predicate against one file, step by step: row groups, then bloom filters, then pages.

Each step asks only about the row groups that are still open, that is neither dropped nor proven. The steps are apart
so that filters can come from anywhere, awaited or not, between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.schema import Schema

from floeplan.parquet.footer.bloom import BloomResults, bloom_probes
from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.page_index import PageIndex, read_page_indexes
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.statistics import row_group_stats
from floeplan.parquet.prune.result import (
    PruneOptions,
    PruneResult,
    Segments,
    build_result,
    page_segments,
    row_group_segments,
)
from floeplan.parquet.read.projection import leaves_of_column
from floeplan.parquet.source import ByteSource, IoCounters, PrefetchingSource, Range
from floeplan.predicate.build import columns, with_bloom
from floeplan.predicate.compile import CompileResult
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import Column, IrExpr
from floeplan.predicate.literals import Value
from floeplan.predicate.stats import ColumnStats, StatsTable
from floeplan.vectors import Ints

CARRIED_BYTES = 256 * 1024
"""Page indexes up to this size are fetched with the bloom filters, before it is known whether they are needed."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A compiled predicate, and where files of one schema keep its columns."""

    schema: Schema
    compiled: CompileResult
    leaf_positions: Mapping[int, int]
    """By field id, the leaf of the file; a column that is not there is null in every row."""

    @property
    def predicate(self) -> IrExpr:
        """The whole predicate: what is opaque in it answers "unknown"."""
        return self.compiled.predicate

    def leaves(self, footer: ParquetFooter) -> dict[int, LeafColumn]:
        """The file's leaves by field id."""
        return {field: footer.leaves[position] for field, position in self.leaf_positions.items()}


def by_field_id(footer: ParquetFooter, schema: Schema) -> bool:
    """Whether columns of the schema are found in the file by field id; by name otherwise."""
    return footer.has_field_ids or schema is footer.schema


def is_null_in(footer: ParquetFooter, schema: Schema, column: Column) -> bool:
    """Whether a column that is no leaf of the file is null in it: not there in any form, and without a default."""
    name = column.field_id if by_field_id(footer, schema) else ".".join(column.path)
    try:
        return schema.find_field(column.field_id).initial_default is None and not leaves_of_column(footer, name)
    except ValueError:
        return False


def bind(footer: ParquetFooter, schema: Schema, compiled: CompileResult) -> Binding:
    """Find the predicate's columns in a file: by field id where the file has its own, else by name."""
    asked = columns(compiled.predicate)
    if by_field_id(footer, schema):
        found = {field: footer.leaf_by_id[field].index for field in asked if field in footer.leaf_by_id}
    else:
        by_path = {leaf.path: leaf.index for leaf in footer.leaves if leaf.max_rep == 0}
        found = {field: by_path[column.path] for field, column in asked.items() if column.path in by_path}
    return Binding(schema, compiled, found)


class FilePruning:
    """The state of one predicate on one file.

    Args:
        binding: The predicate, bound to the file's columns.
        footer: The file's footer.
        source: The file itself; without it only the footer is asked.
        options: What may be used.
        cost_before: The source's counters before anything was read for this examination.
        projected: Columns that will be read: their offset indexes are fetched with those of the predicate's columns.
        without_nan: Field ids of columns that are known to hold no NaN, which Parquet's own statistics cannot say.
    """

    def __init__(
        self,
        binding: Binding,
        footer: ParquetFooter,
        source: ByteSource | None,
        options: PruneOptions,
        cost_before: IoCounters,
        projected: Iterable[LeafColumn] = (),
        without_nan: frozenset[int] = frozenset(),
    ) -> None:
        self.binding, self.footer, self.options = binding, footer, options
        self.source = None if source is None else PrefetchingSource(source)
        self.indexes: Mapping[int, PageIndex] = {}
        self._projected = {leaf.index: leaf for leaf in projected}
        self._cost_before = cost_before
        self._asked = columns(binding.predicate)
        self._leaves = binding.leaves(footer)
        self._stats = self._row_group_stats(without_nan)
        self._answer = evaluate(binding.predicate, self._stats)
        self._finer: Segments | None = None
        self._pages = (0, 0)
        self._notes: list[str] = []
        self._note_missing("statistics", (field for field in self._leaves if _is_blind(self._stats.columns.get(field))))

    def _row_group_stats(self, without_nan: frozenset[int]) -> StatsTable:
        """Statistics by row group; nothing is known of a column that may be there in another form, or has a default."""
        stats = row_group_stats(self.footer, self._asked.values(), self._leaves)
        missing = self._asked.keys() - self._leaves.keys()
        unknown = {i for i in missing if not is_null_in(self.footer, self.binding.schema, self._asked[i])}
        columns = {i: known for i, known in stats.columns.items() if i not in unknown}
        no_nan = np.zeros(len(stats.nonempty), dtype=np.bool_)
        columns |= {i: replace(known, may_nan=no_nan) for i, known in columns.items() if i in without_nan}
        return replace(stats, columns=columns)

    @property
    def open_groups(self) -> Ints:
        """Row groups that are neither dropped nor proven."""
        return np.flatnonzero(self._answer.keep & ~self._answer.all_match)

    def questions(self) -> list[tuple[Column, tuple[Value, ...]]]:
        """What bloom filters can be asked about the open row groups."""
        if not self.options.bloom_filter or len(self.open_groups) == 0:
            return []
        return bloom_probes(with_bloom(self.binding.predicate))

    def has_filters(self, column: Column) -> bool:
        """Whether the file has a bloom filter of the column in an open row group."""
        leaf = self._leaves.get(column.field_id)
        return leaf is not None and bool((self.footer.chunks(leaf).bloom_offset[self.open_groups] >= 0).any())

    def hear(self, answers: BloomResults) -> None:
        """Take the answers of bloom filters into account."""
        informed = replace(self._stats, bloom=answers)
        self._answer = self._answer.refine(evaluate(with_bloom(self.binding.predicate), informed))

    def expect_pages(self) -> None:
        """Let the page indexes travel with the bloom filters where that is cheaper than another round trip."""
        if self.source is not None and self.options.page_index:
            ranges = self._index_ranges()
            if sum(length for _, length in ranges) <= CARRIED_BYTES:
                self.source.carry(ranges)

    def _index_ranges(self) -> list[Range]:
        groups = self.open_groups
        ranges: list[Range] = []
        for leaf in self._paged_leaves().values():
            chunks = self.footer.chunks(leaf)
            places = [(chunks.offset_index_offset, chunks.offset_index_length)]
            if leaf in self._leaves.values():
                places.append((chunks.column_index_offset, chunks.column_index_length))
            for offsets, lengths in places:
                found = groups[offsets[groups] >= 0]
                ranges += zip(offsets[found].tolist(), lengths[found].tolist(), strict=True)
        return ranges

    def _paged_leaves(self) -> dict[int, LeafColumn]:
        return {leaf.index: leaf for leaf in self._leaves.values()} | self._projected

    def ask_pages(self) -> None:
        """Ask the page index about the open row groups."""
        groups = self.open_groups
        if not self.options.page_index or self.source is None or len(groups) == 0:
            return
        self.indexes = read_page_indexes(
            self.source, self.footer, self._paged_leaves().values(), groups, with_statistics=self._leaves.values()
        )
        pages = {
            field: (self._asked[field], self.indexes[leaf.index])
            for field, leaf in self._leaves.items()
            if self.indexes[leaf.index].has_column_index.any()
        }
        self._note_missing("page index", self._leaves.keys() - pages.keys())
        if not pages:
            return
        predicate, stats, answer = self.binding.predicate, self._stats, self._answer
        self._finer = page_segments(self.footer, predicate, pages, groups, stats, answer)
        self._pages = _count_pages(self.footer, self._finer, [index for _, index in pages.values()])

    def _note_missing(self, what: str, fields: Iterable[int]) -> None:
        self._notes += [f"column {self._asked[field]}: no {what}" for field in sorted(fields)]

    def note_missing_filters(self, questions: Iterable[Column]) -> None:
        """Say for which columns a bloom filter was wanted and is not there."""
        self._note_missing("bloom filter", {column.field_id for column in questions})

    def result(self) -> PruneResult:
        """Sum up what is known."""
        segments = row_group_segments(self.footer, self._answer)
        if self._finer is not None:
            segments = segments.refined(self._finer)
        return build_result(
            self.footer,
            self.binding.compiled,
            segments,
            self._pages,
            spent(self.source, self._cost_before),
            tuple(self._notes),
            self.options.emit_roaring,
        )


def _is_blind(known: ColumnStats | None) -> bool:
    """Whether a column has values and no row group bounds them."""
    if known is None:
        return True
    bounds = [bound for bound in (known.lower, known.upper) if bound is not None]
    return bool(known.may_value.any()) and not any(bound.valid.any() for bound in bounds)


def _count_pages(footer: ParquetFooter, segments: Segments, indexes: Sequence[PageIndex]) -> tuple[int, int]:
    selection = segments.selection
    total = kept = 0
    for index in indexes:
        first_row = footer.first_rows[index.row_group] + index.first_row
        told_apart = np.repeat(index.has_column_index, np.diff(index.page_starts))
        total += int(told_apart.sum())
        kept += int((selection.overlaps(first_row, index.row_count) & told_apart).sum())
    return total, kept


def spent(source: ByteSource | None, before: IoCounters) -> IoCounters:
    """What a source was asked since the counters were as they were before."""
    if source is None:
        return IoCounters()
    now = source.counters
    return IoCounters(now.requests - before.requests, now.bytes - before.bytes, now.round_trips - before.round_trips)

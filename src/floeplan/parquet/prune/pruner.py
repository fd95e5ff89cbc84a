"""``Pruner`` compiles a predicate once and prunes many files; ``FilePruning`` is its state on one file.

The passes of ``FilePruning`` are separate methods, because Bloom filters may come from a provider that is awaited
between them. Each pass looks only at undecided row groups: those neither dropped nor proven to match.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from pyiceberg.schema import Schema

from floeplan.errors import InvalidOptionError
from floeplan.parquet.footer.bloom import BloomResults, FilterProbe, bloom_probes, hash_probes, probe_file
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.page_index import PageIndex, read_page_indexes
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.statistics import row_group_stats
from floeplan.parquet.prune.options import PruneOptions
from floeplan.parquet.prune.provider import (
    AsyncBloomFilterProvider,
    BloomFilterProvider,
    filter_requests,
    probe_filters,
)
from floeplan.parquet.prune.result import PruneResult, build_result
from floeplan.parquet.prune.segments import Segments, page_segments, row_group_segments
from floeplan.parquet.source import ByteSource, IoCounters, PrefetchingSource, Range, open_source
from floeplan.predicate.build import columns, with_bloom
from floeplan.predicate.compile import CompileResult, compile_predicate
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import Column, IrExpr
from floeplan.predicate.stats import ColumnStats, StatsTable
from floeplan.vectors import Ints

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

Target: TypeAlias = "str | os.PathLike[str] | bytes | memoryview | ByteSource | ParquetFooter"

MAX_PREFETCHED_INDEX_BYTES = 256 * 1024
"""Page indexes up to this size are fetched with the Bloom filters, before it is known whether they are needed."""


class Pruner:
    """A predicate compiled once, for many files; its columns are resolved once per distinct file schema.

    Args:
        predicate: Spark-SQL text, a PyIceberg expression, tuples, an IR expression, or a ``CompileResult``.
        schema: The schema whose columns the predicate names. Without it the predicate is compiled against the schema
            of each file.
        options: What may be used.
        provider: Supplies Bloom filters instead of the file.
    """

    def __init__(
        self,
        predicate: Any,
        schema: Schema | None = None,
        options: PruneOptions | None = None,
        *,
        provider: BloomFilterProvider | AsyncBloomFilterProvider | None = None,
    ) -> None:
        self.options = options or PruneOptions()
        self._predicate = predicate
        self._schema = schema
        self._provider: Any = provider
        self._is_async = provider is not None and asyncio.iscoroutinefunction(provider.bloom_filters_batch)
        self._compiled = None if schema is None else self._compile(schema)
        self._bindings: dict[bytes, Binding] = {}

    def prune(self, file: Target, io: FileIO | None = None) -> PruneResult:
        """Prune one file.

        Args:
            file: A path, a URI, bytes, a source, or a footer (then only the footer is used).
            io: The PyIceberg ``FileIO`` to open a URI with.
        """
        source, footer, before = _open(file, io)
        return self.examine(source, footer, cost_before=before).result()

    async def prune_async(self, file: Target, io: FileIO | None = None) -> PruneResult:
        """Prune one file without blocking the event loop; an asynchronous provider is awaited."""
        source, footer, before = await asyncio.to_thread(_open, file, io)
        pruning = await asyncio.to_thread(lambda: FilePruning(self._bind(footer), footer, source, self.options, before))
        if self._is_async:
            if probes := pruning.bloom_probes():
                requests = filter_requests(probes, pruning.undecided)
                filters = await self._provider.bloom_filters_batch(requests)
                pruning.apply_bloom(probe_filters(footer, probes, filters))
        else:
            await asyncio.to_thread(self._prune_by_bloom, pruning)
        await asyncio.to_thread(pruning.prune_by_pages)
        return pruning.result()

    def examine(
        self,
        source: ByteSource | None,
        footer: ParquetFooter,
        projected: Sequence[LeafColumn] = (),
        cost_before: IoCounters | None = None,
        without_nan: frozenset[int] = frozenset(),
    ) -> FilePruning:
        """Run all passes on an opened file; the returned state keeps the page indexes, also of projected columns."""
        before = cost_before or IoCounters()
        pruning = FilePruning(self._bind(footer), footer, source, self.options, before, projected, without_nan)
        self._prune_by_bloom(pruning)
        pruning.prune_by_pages()
        return pruning

    def _bind(self, footer: ParquetFooter) -> Binding:
        # The encoded schema elements identify the schema: files of one table mostly share it.
        key = b"".join(node.encoded for node in footer.root.walk())
        if key not in self._bindings:
            schema = self._schema or footer.schema
            self._bindings[key] = bind(footer, schema, self._compiled or self._compile(schema))
        return self._bindings[key]

    def _compile(self, schema: Schema) -> CompileResult:
        if isinstance(self._predicate, CompileResult):
            return self._predicate
        return compile_predicate(self._predicate, schema, case_sensitive=self.options.case_sensitive)

    def _prune_by_bloom(self, pruning: FilePruning) -> None:
        if self._provider is None:
            pruning.probe_own_filters()
            return
        probes = pruning.bloom_probes()
        if not probes:
            return
        if self._is_async:
            raise InvalidOptionError("the Bloom filter provider is asynchronous; use prune_async")
        filters = self._provider.bloom_filters_batch(filter_requests(probes, pruning.undecided))
        pruning.apply_bloom(probe_filters(pruning.footer, probes, filters))


def _open(file: Target, io: FileIO | None) -> tuple[ByteSource | None, ParquetFooter, IoCounters]:
    if isinstance(file, ParquetFooter):
        return None, file, IoCounters()
    source = open_source(file, io)
    before = replace(source.counters)
    return source, read_footer(source), before


@dataclass(frozen=True, slots=True)
class Binding:
    """A compiled predicate bound to the leaf columns of files with one schema."""

    schema: Schema
    compiled: CompileResult
    leaf_positions: Mapping[int, int]
    """Leaf index by field id. A column without an entry is not in the file."""

    @property
    def predicate(self) -> IrExpr:
        """The whole predicate; its opaque parts evaluate to UNKNOWN."""
        return self.compiled.predicate


def bind(footer: ParquetFooter, schema: Schema, compiled: CompileResult) -> Binding:
    """Resolve the predicate's columns in a file: by field id if the file has field ids, else by name."""
    used = columns(compiled.predicate)
    if resolves_by_field_id(footer, schema):
        found = {field: footer.leaf_by_id[field].index for field in used if field in footer.leaf_by_id}
    else:
        by_path = {leaf.path: leaf.index for leaf in footer.leaves if leaf.max_rep == 0}
        found = {field: by_path[column.path] for field, column in used.items() if column.path in by_path}
    return Binding(schema, compiled, found)


def resolves_by_field_id(footer: ParquetFooter, schema: Schema) -> bool:
    """Whether columns of the schema are resolved in the file by field id rather than by name."""
    return footer.has_field_ids or schema is footer.schema


class FilePruning:
    """The state of one predicate on one file.

    Args:
        binding: The predicate, bound to the file's columns.
        footer: The file's footer.
        source: The file; without it only the footer is used.
        options: What may be used.
        cost_before: The source's counters before anything was read for this pruning.
        projected: Columns that will be read: their offset indexes are fetched with those of the predicate's columns.
        without_nan: Field ids of columns known to hold no NaN, which Parquet statistics cannot express.
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
        self._cost_before = cost_before
        self._columns = columns(binding.predicate)
        self._leaves = {field: footer.leaves[position] for field, position in binding.leaf_positions.items()}
        self._paged_leaves = {leaf.index: leaf for leaf in (*self._leaves.values(), *projected)}
        self._page_segments: Segments | None = None
        self._pages = (0, 0)
        self._notes: list[str] = []
        self._stats = self._row_group_stats(without_nan)
        self._states = evaluate(binding.predicate, self._stats)
        self._note_missing("statistics", (i for i in self._leaves if _has_no_bounds(self._stats.columns.get(i))))

    def _row_group_stats(self, without_nan: frozenset[int]) -> StatsTable:
        stats = row_group_stats(self.footer, self._columns.values(), self._leaves)
        # A column that is not a leaf of the file is null in every row only if the file has it in no other form (a
        # struct of the same id, a list) and the schema gives it no initial default; otherwise nothing is known of it.
        unknown = {i for i in self._columns.keys() - self._leaves.keys() if not self._is_null(self._columns[i])}
        known = {i: column for i, column in stats.columns.items() if i not in unknown}
        no_nan = np.zeros(len(stats.nonempty), dtype=np.bool_)
        known |= {i: replace(column, may_nan=no_nan) for i, column in known.items() if i in without_nan}
        return replace(stats, columns=known)

    def _is_null(self, column: Column) -> bool:
        footer, schema = self.footer, self.binding.schema
        name = column.field_id if resolves_by_field_id(footer, schema) else ".".join(column.path)
        try:
            return schema.find_field(column.field_id).initial_default is None and not footer.leaves_of_column(name)
        except ValueError:
            return False

    @property
    def undecided(self) -> Ints:
        """Row groups that are neither dropped nor proven to match."""
        return np.flatnonzero(self._states.keep & ~self._states.all_match)

    def bloom_probes(self) -> list[FilterProbe]:
        """Return what Bloom filters can be probed for in the undecided row groups."""
        if not self.options.bloom_filter or len(self.undecided) == 0:
            return []
        return hash_probes(bloom_probes(with_bloom(self.binding.predicate)), self._leaves)

    def probe_own_filters(self) -> None:
        """Probe the Bloom filters of the file, and prefetch small page indexes in the same round trip."""
        if not self.options.bloom_filter or len(self.undecided) == 0:
            return
        probes = bloom_probes(with_bloom(self.binding.predicate))
        present = [probe for probe in probes if self._has_bloom_filter(probe[0])]
        missing = {column.field_id for column, _ in probes if not self._has_bloom_filter(column)}
        self._note_missing("bloom filter", missing)
        if not present or self.source is None:
            return
        if self.options.page_index:
            ranges = self._index_ranges()
            if sum(length for _, length in ranges) <= MAX_PREFETCHED_INDEX_BYTES:
                self.source.prefetch(ranges)
        self.apply_bloom(probe_file(self.source, self.footer, present, self.undecided, self._leaves))

    def _has_bloom_filter(self, column: Column) -> bool:
        leaf = self._leaves.get(column.field_id)
        return leaf is not None and bool((self.footer.chunks(leaf).bloom_offset[self.undecided] >= 0).any())

    def _index_ranges(self) -> list[Range]:
        groups = self.undecided
        ranges: list[Range] = []
        for leaf in self._paged_leaves.values():
            chunks = self.footer.chunks(leaf)
            indexes = [(chunks.offset_index_offset, chunks.offset_index_length)]
            if leaf in self._leaves.values():
                indexes.append((chunks.column_index_offset, chunks.column_index_length))
            for offsets, lengths in indexes:
                found = groups[offsets[groups] >= 0]
                ranges += zip(offsets[found].tolist(), lengths[found].tolist(), strict=True)
        return ranges

    def apply_bloom(self, results: BloomResults) -> None:
        """Refine the row-group states with the results of Bloom filters."""
        stats = replace(self._stats, bloom=results)
        self._states = self._states.refine(evaluate(with_bloom(self.binding.predicate), stats))

    def prune_by_pages(self) -> None:
        """Evaluate the predicate over the pages of the undecided row groups."""
        groups = self.undecided
        if not self.options.page_index or self.source is None or len(groups) == 0:
            return
        self.indexes = read_page_indexes(
            self.source, self.footer, self._paged_leaves.values(), groups, with_statistics=self._leaves.values()
        )
        pages = {
            field: (self._columns[field], self.indexes[leaf.index])
            for field, leaf in self._leaves.items()
            if self.indexes[leaf.index].has_column_index.any()
        }
        self._note_missing("page index", self._leaves.keys() - pages.keys())
        if pages:
            segments = page_segments(self.footer, self.binding.predicate, pages, groups, self._stats, self._states)
            self._page_segments = segments
            self._pages = _count_pages(self.footer, segments, [index for _, index in pages.values()])

    def _note_missing(self, what: str, fields: Iterable[int]) -> None:
        self._notes += [f"column {self._columns[field]}: no {what}" for field in sorted(fields)]

    def result(self) -> PruneResult:
        """Return what the passes found."""
        segments = row_group_segments(self.footer, self._states)
        if self._page_segments is not None:
            segments = segments.refined(self._page_segments)
        return build_result(
            self.footer,
            self.binding.compiled,
            segments,
            self._pages,
            cost_since(self.source, self._cost_before),
            tuple(self._notes),
            self.options.emit_roaring,
        )


def _has_no_bounds(known: ColumnStats | None) -> bool:
    """Whether a column has values that no row group bounds."""
    if known is None:
        return True
    bounds = [bound for bound in (known.lower, known.upper) if bound is not None]
    return bool(known.may_value.any()) and not any(bound.valid.any() for bound in bounds)


def _count_pages(footer: ParquetFooter, segments: Segments, indexes: Sequence[PageIndex]) -> tuple[int, int]:
    """Count the pages with statistics, and those of them that hold a selected row."""
    selection = segments.selection
    total = kept = 0
    for index in indexes:
        first_row = footer.first_rows[index.row_group] + index.first_row
        with_statistics = np.repeat(index.has_column_index, np.diff(index.page_starts))
        total += int(with_statistics.sum())
        kept += int((selection.overlaps(first_row, index.row_count) & with_statistics).sum())
    return total, kept


def cost_since(source: ByteSource | None, before: IoCounters) -> IoCounters:
    """Return what a source has read since ``before``."""
    if source is None:
        return IoCounters()
    now = source.counters
    return IoCounters(now.requests - before.requests, now.bytes - before.bytes, now.round_trips - before.round_trips)

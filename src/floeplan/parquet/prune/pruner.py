"""``Pruner`` compiles a predicate once and prunes many files; ``FilePruning`` is its state on one file.

The passes of ``FilePruning`` are separate methods, because Bloom filters may come from a provider that is awaited
between them. Each pass looks only at undecided row groups: those neither dropped nor proven to match.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from floeplan.errors import InvalidOptionError
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.statistics import row_group_stats
from floeplan.parquet.prune.options import PruneOptions
from floeplan.parquet.prune.result import PruneResult, Segments
from floeplan.parquet.prune.selection import ROARING_ROW_LIMIT, distinct
from floeplan.parquet.source import ByteSource, IoCounters, PrefetchingSource, open_source
from floeplan.predicate.build import columns, with_bloom
from floeplan.predicate.compile import CompileResult, compile_predicate
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import Column, IrExpr
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable, Tri, TriState, take
from floeplan.schemas import fields_by_id
from floeplan.vectors import Ints

if TYPE_CHECKING:  # Bloom filters and page indexes are imported where they are read: a plan without them starts earlier
    from pyiceberg.io import FileIO

    from floeplan.parquet.footer.bloom import BloomResults, FilterProbe
    from floeplan.parquet.footer.page_index import PageIndex
    from floeplan.parquet.prune.provider import AsyncBloomFilterProvider, BloomFilterProvider

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
        self._is_async = provider is not None and inspect.iscoroutinefunction(provider.bloom_filters_batch)
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
        import asyncio  # takes 10 ms to import, and plans do not need it

        source, footer, before = await asyncio.to_thread(_open, file, io)
        pruning = await asyncio.to_thread(lambda: FilePruning(self._bind(footer), footer, source, self.options, before))
        if self._is_async:
            if probes := pruning.bloom_probes():
                from floeplan.parquet.prune.provider import filter_requests, probe_filters

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

    def row_group_stats(self, footer: ParquetFooter, without_nan: frozenset[int] = frozenset()) -> StatsTable:
        """The footer's statistics of the predicate's columns, for each row group."""
        binding = self._bind(footer)
        leaves = {field: footer.leaves[position] for field, position in binding.leaf_positions.items()}
        return _row_group_stats(footer, binding, columns(binding.compiled.predicate), leaves, without_nan)

    def row_group_states(self, columns_of: ParquetFooter, stats: Sequence[StatsTable]) -> list[npt.NDArray[np.int8]]:
        """A ``TriState`` per row group of each file, of files with the same columns: one evaluation covers them all."""
        joined = {i: ColumnStats.concat([table.columns[i] for table in stats]) for i in stats[0].columns}
        nonempty = np.concatenate([table.nonempty for table in stats])
        predicate = self._bind(columns_of).compiled.predicate
        states = evaluate(predicate, StatsTable(len(nonempty), joined, nonempty)).states()
        return np.split(states, np.cumsum([table.length for table in stats])[:-1])

    def _bind(self, footer: ParquetFooter) -> Binding:
        """Resolve the predicate's columns in a file: by field id if the file has field ids, else by name."""
        # The encoded schema elements identify the schema: files of one table mostly share it.
        key = b"".join(node.encoded for node in footer.columns.root.walk())
        if key not in self._bindings:
            schema = self._schema or footer.schema
            compiled = self._compiled or self._compile(schema)
            used = columns(compiled.predicate)
            if resolves_by_field_id(footer, schema):
                found = {field: footer.leaf_by_id[field].index for field in used if field in footer.leaf_by_id}
            else:
                by_path = {leaf.path: leaf.index for leaf in footer.leaves if leaf.max_rep == 0}
                found = {field: by_path[column.path] for field, column in used.items() if column.path in by_path}
            self._bindings[key] = Binding(schema, compiled, found)
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
        from floeplan.parquet.prune.provider import filter_requests, probe_filters

        filters = self._provider.bloom_filters_batch(filter_requests(probes, pruning.undecided))
        pruning.apply_bloom(probe_filters(pruning.footer, probes, filters))


def _open(file: Target, io: FileIO | None) -> tuple[ByteSource | None, ParquetFooter, IoCounters]:
    if isinstance(file, ParquetFooter):
        return None, file, IoCounters()
    source = open_source(file, io)
    before = replace(source.counters)
    return source, read_footer(source), before


class Binding(NamedTuple):
    """A compiled predicate bound to the leaf columns of files with one schema."""

    schema: Schema
    compiled: CompileResult
    """The opaque parts of its predicate evaluate to UNKNOWN."""
    leaf_positions: Mapping[int, int]
    """Leaf index by field id. A column without an entry is not in the file."""


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
        self._columns = columns(binding.compiled.predicate)
        self._leaves = {field: footer.leaves[position] for field, position in binding.leaf_positions.items()}
        self._paged_leaves = {leaf.index: leaf for leaf in (*self._leaves.values(), *projected)}
        self._page_segments: Segments | None = None
        self._pages_total = self._pages_kept = 0
        self._notes: list[str] = []
        self._stats = _row_group_stats(footer, binding, self._columns, self._leaves, without_nan)
        self._states = evaluate(binding.compiled.predicate, self._stats)
        # Columns with values that no row group bounds.
        for i in sorted(self._leaves):
            known = self._stats.columns.get(i)
            bounds = [] if known is None else [bound.valid.any() for bound in (known.lower, known.upper) if bound]
            if known is None or (known.may_value.any() and not any(bounds)):
                self._note_missing("statistics", [i])

    @property
    def undecided(self) -> Ints:
        """Row groups that are neither dropped nor proven to match."""
        return np.flatnonzero(self._states.keep & ~self._states.all_match)

    def bloom_probes(self) -> list[FilterProbe]:
        """Return what Bloom filters can be probed for in the undecided row groups."""
        if not self.options.bloom_filter or len(self.undecided) == 0:
            return []
        from floeplan.parquet.footer.bloom import bloom_probes, hash_probes

        return hash_probes(bloom_probes(with_bloom(self.binding.compiled.predicate)), self._leaves)

    def probe_own_filters(self) -> None:
        """Probe the Bloom filters of the file, and prefetch small page indexes in the same round trip."""
        if not self.options.bloom_filter or len(self.undecided) == 0:
            return
        from floeplan.parquet.footer.bloom import bloom_probes, probe_file

        present, missing = [], set()
        for probe in bloom_probes(with_bloom(self.binding.compiled.predicate)):
            leaf = self._leaves.get(probe[0].field_id)
            if leaf is not None and (self.footer.chunks(leaf).bloom_offset[self.undecided] >= 0).any():
                present.append(probe)
            else:
                missing.add(probe[0].field_id)
        self._note_missing("bloom filter", missing)
        if not present or self.source is None:
            return
        if self.options.page_index:
            from floeplan.parquet.footer.page_index import index_ranges

            with_statistics = {leaf.index for leaf in self._leaves.values()}
            ranges = index_ranges(self.footer, self._paged_leaves.values(), self.undecided, with_statistics)
            if sum(length for _, length in ranges) <= MAX_PREFETCHED_INDEX_BYTES:
                self.source.prefetch(ranges)
        self.apply_bloom(probe_file(self.source, self.footer, present, self.undecided, self._leaves))

    def apply_bloom(self, results: BloomResults) -> None:
        """Refine the row-group states with the results of Bloom filters."""
        stats = replace(self._stats, bloom=results)
        self._states = self._states.refine(evaluate(with_bloom(self.binding.compiled.predicate), stats))

    def prune_by_pages(self) -> None:
        """Evaluate the predicate over the pages of the undecided row groups."""
        groups = self.undecided
        if not self.options.page_index or self.source is None or len(groups) == 0:
            return
        from floeplan.parquet.footer.page_index import read_page_indexes

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
            predicate = self.binding.compiled.predicate
            self._page_segments = page_segments(self.footer, predicate, pages, groups, self._stats, self._states)
            # Count the pages with statistics, and those of them that hold a selected row.
            selection = self._page_segments.selection
            for _, index in pages.values():
                first_row = self.footer.first_rows[index.row_group] + index.first_row
                counted = np.repeat(index.has_column_index, np.diff(index.page_starts))
                self._pages_total += int(counted.sum())
                self._pages_kept += int((selection.overlaps(first_row, index.row_count) & counted).sum())

    def _note_missing(self, what: str, fields: Iterable[int]) -> None:
        self._notes += [f"column {self._columns[field]}: no {what}" for field in sorted(fields)]

    def result(self) -> PruneResult:
        """Return what the passes found."""
        footer, groups = self.footer, np.arange(self.footer.num_row_groups, dtype=np.int64)
        segments = Segments(groups, footer.first_rows, footer.row_group_rows, self._states.states())
        if self._page_segments is not None:
            segments = segments.refined(self._page_segments)
        selection = segments.selection
        kept = np.flatnonzero(selection.overlaps(footer.first_rows, footer.row_group_rows))
        # A row group is TRUE or FALSE when all its segments with rows are, else UNKNOWN.
        holds = segments.row_count > 0
        lowest = np.full(footer.num_row_groups, TriState.TRUE, dtype=np.int8)
        highest = np.full(footer.num_row_groups, TriState.FALSE, dtype=np.int8)
        np.minimum.at(lowest, segments.row_group[holds], segments.state[holds])
        np.maximum.at(highest, segments.row_group[holds], segments.state[holds])
        bitmap = skipped = None
        if self.options.emit_roaring and footer.num_rows > ROARING_ROW_LIMIT:
            rows = footer.num_rows
            skipped = f"{rows} rows exceed a 32-bit Roaring bitmap; use row_selection, which has the same rows"
        elif self.options.emit_roaring:
            bitmap = selection.to_bitmap()
        cost = IoCounters() if self.source is None else self.source.counters.since(self._cost_before)
        return PruneResult(
            file=footer.file,
            compile_result=self.binding.compiled,
            row_groups=tuple(kept.tolist()),
            row_selection=selection.relative_to(footer.first_rows[kept], footer.row_group_rows[kept]),
            file_selection=selection,
            proven=segments.proven,
            roaring_bitmap=bitmap,
            roaring_skipped=skipped,
            row_group_states=np.where(lowest == highest, lowest, np.minimum(highest, TriState.UNKNOWN)).astype(np.int8),
            segments=segments,
            rows_total=footer.num_rows,
            pages_total=self._pages_total,
            pages_kept=self._pages_kept,
            bytes_read=cost.bytes,
            requests=cost.requests,
            round_trips=cost.round_trips,
            notes=tuple(self._notes),
        )


def _row_group_stats(
    footer: ParquetFooter,
    binding: Binding,
    wanted: Mapping[int, Column],
    leaves: Mapping[int, LeafColumn],
    without_nan: frozenset[int],
) -> StatsTable:
    stats = row_group_stats(footer, wanted.values(), leaves)
    # A column that is not a leaf of the file is null in every row only if the file has it in no other form (a struct of
    # the same id, a list) and the schema gives it no initial default; otherwise nothing is known of it.
    unknown = set()
    for i in wanted.keys() - leaves.keys():
        name = i if resolves_by_field_id(footer, binding.schema) else ".".join(wanted[i].path)
        field = fields_by_id(binding.schema).get(i)
        if field is None or field.initial_default is not None or footer.leaves_of_column(name):
            unknown.add(i)
    known = {i: column for i, column in stats.columns.items() if i not in unknown}
    no_nan = np.zeros(len(stats.nonempty), dtype=np.bool_)
    known |= {i: replace(column, may_nan=no_nan) for i, column in known.items() if i in without_nan}
    return replace(stats, columns=known)


def page_segments(
    footer: ParquetFooter,
    expr: IrExpr,
    pages: Mapping[int, tuple[Column, PageIndex]],
    row_groups: Ints,
    known: StatsTable,
    states: Tri,
) -> Segments:
    """Evaluate the predicate over the pages of some row groups, although pages of different columns do not line up.

    Rows are cut wherever a page of any predicate column begins. Within such a segment every column has exactly one
    page, so the statistics of that page hold for the segment, and one evaluation covers all segments of all row
    groups::

        a   |---- page 0 ----|------- page 1 -------|
        b   |-- page 0 --|---- page 1 ----|- page 2 -|
            |     s0     |s1 |     s2     |   s3     |

    What the row group already proved holds for each of its segments, so both states are combined. A column without a
    page index is one page per row group.

    Args:
        footer: The file's footer.
        expr: The predicate.
        pages: By field id, the columns that have a page index, and the index over exactly these row groups.
        row_groups: The row groups, ascending; none is empty.
        known: Statistics of all row groups of the file, for the columns without pages.
        states: The states that statistics and Bloom filters gave to all row groups of the file.
    """
    from floeplan.parquet.footer.page_index import page_column_stats

    firsts, ends = footer.first_rows[row_groups], (footer.first_rows + footer.row_group_rows)[row_groups]
    page_rows = {field: footer.first_rows[index.row_group] + index.first_row for field, (_, index) in pages.items()}
    # Cut at every page and row-group boundary; cuts at the end of a row group open no segment.
    cuts = distinct(np.concatenate((firsts, ends, *page_rows.values())))
    position = np.searchsorted(firsts, cuts, side="right") - 1
    inside = cuts < ends[position]
    first_row, group = cuts[inside], row_groups[position[inside]]
    row_count = np.diff(cuts, append=cuts[-1])[inside]
    # Statistics of each segment: those of its page, else those of its row group.
    found = {field: _take_stats(stats, group) for field, stats in known.columns.items()}
    for field, (column, index) in pages.items():
        stats = page_column_stats(index, column)
        if stats is not None:
            page = np.searchsorted(page_rows[field], first_row, side="right") - 1
            in_page, in_group = _take_stats(stats, page), found.get(field)
            if in_group is not None:  # a page holds no null, NaN or value where its row group holds none
                flags = ("may_null", "may_nan", "may_value")
                in_page = replace(in_page, **{name: getattr(in_page, name) & getattr(in_group, name) for name in flags})
            found[field] = in_page
    finer = evaluate(expr, StatsTable(len(first_row), found))
    coarser = Tri(states.may_true[group], states.may_false[group], states.may_null[group])
    return Segments(group, first_row, row_count, finer.refine(coarser).states())


def _take_stats(stats: ColumnStats, rows: Ints) -> ColumnStats:
    """Gather the statistics of row groups or pages by position."""
    bounds = [bound and Bound(take(bound.values, rows), bound.valid[rows]) for bound in (stats.lower, stats.upper)]
    return ColumnStats(stats.may_null[rows], stats.may_nan[rows], stats.may_value[rows], *bounds)

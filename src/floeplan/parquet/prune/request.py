"""Which row groups and rows of a Parquet file can match a predicate, decided from its metadata alone.

Three questions, each asked only of what the one before left open: row-group statistics (in the footer), bloom filters
(for equality), and the page index. Rule: a row is dropped only when metadata proves that it cannot match; a row group
or page is called proven only when every row of it matches.

Fail-safe: whatever is missing or cannot be trusted keeps the rows, and ``PruneResult.notes`` says what it was.

``PruneRequest`` answers once, ``Pruner`` compiles a predicate once and answers for many files.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from pyiceberg.schema import Schema

from floeplan.errors import InvalidOptionError
from floeplan.parquet.footer.bloom import (
    AsyncBloomFilterProvider,
    BloomFilterProvider,
    probe_file,
    probe_provider,
    probe_provider_async,
)
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.prune.pruner import Binding, FilePruning, bind
from floeplan.parquet.prune.result import PruneOptions, PruneResult
from floeplan.parquet.source import ByteSource, IoCounters, open_source
from floeplan.predicate.compile import CompileResult, compile_predicate
from floeplan.predicate.ir import TRUE

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

Target: TypeAlias = "str | os.PathLike[str] | bytes | memoryview | ByteSource | ParquetFooter"

__all__ = [
    "AsyncBloomFilterProvider",
    "BloomFilterProvider",
    "PruneOptions",
    "PruneRequest",
    "PruneResult",
    "Pruner",
]


class Pruner:
    """A predicate compiled once, for many files.

    Where its columns are is worked out once per distinct file schema.

    Args:
        predicate: Spark-SQL text, a PyIceberg expression, tuples, an IR expression, or what compiling one gave.
        schema: The schema whose columns the predicate names. Without it each file is taken on its own: the predicate
            is compiled against the file's schema.
        options: What may be used.
        provider: Where bloom filters come from, instead of from the file.
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
        self._provider = provider
        self._compiled = None if schema is None else self._compile(schema)
        self._bindings: dict[bytes, Binding] = {}

    def prune(self, file: Target, io: FileIO | None = None) -> PruneResult:
        """Decide about one file.

        Args:
            file: A path, a URI, bytes, a source, or a footer (then nothing but the footer is asked).
            io: The PyIceberg ``FileIO`` to open a URI with.
        """
        source, footer, before = _open(file, io)
        return self.examine(source, footer, cost_before=before).result()

    async def prune_async(self, file: Target, io: FileIO | None = None) -> PruneResult:
        """Decide about one file without blocking the event loop; an asynchronous provider is awaited."""
        source, footer, before = await asyncio.to_thread(_open, file, io)
        examination = await asyncio.to_thread(self._begin, source, footer, before)
        provider = self._provider
        questions = examination.questions()
        if questions and provider is not None and asyncio.iscoroutinefunction(provider.bloom_filters_batch):
            leaves = examination.binding.leaves(footer)
            groups = examination.open_groups.tolist()
            examination.hear(await probe_provider_async(provider, footer, questions, groups, leaves))  # type: ignore[arg-type]
        else:
            await asyncio.to_thread(self._ask_filters, examination)
        await asyncio.to_thread(examination.ask_pages)
        return examination.result()

    def examine(
        self,
        source: ByteSource | None,
        footer: ParquetFooter,
        projected: Sequence[LeafColumn] = (),
        cost_before: IoCounters | None = None,
        without_nan: frozenset[int] = frozenset(),
    ) -> FilePruning:
        """All steps on an opened file; the page indexes that were fetched, also of projected columns, stay at hand."""
        examination = self._begin(source, footer, cost_before or IoCounters(), projected, without_nan)
        self._ask_filters(examination)
        examination.ask_pages()
        return examination

    def _begin(
        self,
        source: ByteSource | None,
        footer: ParquetFooter,
        before: IoCounters,
        projected: Sequence[LeafColumn] = (),
        without_nan: frozenset[int] = frozenset(),
    ) -> FilePruning:
        return FilePruning(self._bind(footer), footer, source, self.options, before, projected, without_nan)

    def _ask_filters(self, examination: FilePruning) -> None:
        questions = examination.questions()
        if not questions:
            return
        footer, groups = examination.footer, examination.open_groups.tolist()
        leaves = examination.binding.leaves(footer)
        if self._provider is not None:
            if asyncio.iscoroutinefunction(self._provider.bloom_filters_batch):
                raise InvalidOptionError("the bloom filter provider is asynchronous; use prune_async")
            examination.hear(probe_provider(self._provider, footer, questions, groups, leaves))  # type: ignore[arg-type]
            return
        answerable = [question for question in questions if examination.has_filters(question[0])]
        examination.note_missing_filters(column for column, _ in questions if not examination.has_filters(column))
        if answerable and examination.source is not None:
            examination.expect_pages()
            examination.hear(probe_file(examination.source, footer, answerable, groups, leaves))

    def _compile(self, schema: Schema) -> CompileResult:
        if isinstance(self._predicate, CompileResult):
            return self._predicate
        return compile_predicate(self._predicate, schema, case_sensitive=self.options.case_sensitive)

    def _bind(self, footer: ParquetFooter) -> Binding:
        key = b"".join(node.encoded for node in footer.root.walk())
        if key not in self._bindings:
            schema = self._schema or footer.schema
            self._bindings[key] = bind(footer, schema, self._compiled or self._compile(schema))
        return self._bindings[key]


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """One question about one file, refined step by step; every step gives a new request.

    Args:
        target: A path, a URI, bytes, a source, or a footer.
        schema: The schema whose columns the predicate names; the file's own when not given.
    """

    target: Target
    schema: Schema | None = None
    predicate: Any = TRUE
    options: PruneOptions = field(default_factory=PruneOptions)
    io: FileIO | None = None
    provider: BloomFilterProvider | AsyncBloomFilterProvider | None = None

    def with_predicate(self, predicate: Any) -> PruneRequest:
        """Ask about this predicate: Spark-SQL text, a PyIceberg expression, tuples, IR, or a ``CompileResult``."""
        return replace(self, predicate=predicate)

    def with_schema(self, schema: Schema) -> PruneRequest:
        """Name columns by this schema; they are found in the file by field id, or by name where it has none."""
        return replace(self, schema=schema)

    def with_options(self, options: PruneOptions) -> PruneRequest:
        """Replace all options."""
        return replace(self, options=options)

    def with_io(self, io: FileIO) -> PruneRequest:
        """Open the location with this ``FileIO``."""
        return replace(self, io=io)

    def enable_page_index(self, enabled: bool = True) -> PruneRequest:
        """Prune within row groups by page statistics."""
        return replace(self, options=replace(self.options, page_index=enabled))

    def enable_bloom_filter(
        self, enabled: bool = True, provider: BloomFilterProvider | AsyncBloomFilterProvider | None = None
    ) -> PruneRequest:
        """Prune row groups by bloom filters, those of the file or those a provider has."""
        return replace(self, options=replace(self.options, bloom_filter=enabled), provider=provider)

    def emit_roaring(self, enabled: bool = True) -> PruneRequest:
        """Return the rows as a Roaring bitmap too."""
        return replace(self, options=replace(self.options, emit_roaring=enabled))

    def prune(self) -> PruneResult:
        """Answer."""
        return self._pruner().prune(self.target, self.io)

    async def prune_async(self) -> PruneResult:
        """Answer without blocking the event loop."""
        return await self._pruner().prune_async(self.target, self.io)

    def _pruner(self) -> Pruner:
        return Pruner(self.predicate, self.schema, self.options, provider=self.provider)


def _open(file: Target, io: FileIO | None) -> tuple[ByteSource | None, ParquetFooter, IoCounters]:
    if isinstance(file, ParquetFooter):
        return None, file, IoCounters()
    source = open_source(file, io)
    before = replace(source.counters)
    return source, read_footer(source), before

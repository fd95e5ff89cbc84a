"""``PruneRequest``: prune one file with one predicate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema

from floeplan.parquet.prune.options import PruneOptions
from floeplan.parquet.prune.provider import AsyncBloomFilterProvider, BloomFilterProvider
from floeplan.parquet.prune.pruner import Pruner, Target
from floeplan.parquet.prune.result import PruneResult
from floeplan.predicate.ir import TRUE

if TYPE_CHECKING:
    from pyiceberg.io import FileIO


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """A one-shot builder; every method returns a new request.

    Args:
        target: A path, a URI, bytes, a source, or a footer.
        schema: The schema whose columns the predicate names; the file's own by default.
    """

    target: Target
    schema: Schema | None = None
    predicate: Any = TRUE
    options: PruneOptions = field(default_factory=PruneOptions)
    io: FileIO | None = None
    provider: BloomFilterProvider | AsyncBloomFilterProvider | None = None

    def with_predicate(self, predicate: Any) -> PruneRequest:
        """Set the predicate: Spark-SQL text, a PyIceberg expression, tuples, IR, or a ``CompileResult``."""
        return replace(self, predicate=predicate)

    def with_schema(self, schema: Schema) -> PruneRequest:
        """Resolve columns in this schema, then in the file by field id, or by name if the file has no field ids."""
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
        """Prune row groups by Bloom filters, those of the file or those of a provider."""
        return replace(self, options=replace(self.options, bloom_filter=enabled), provider=provider)

    def emit_roaring(self, enabled: bool = True) -> PruneRequest:
        """Also return the selected rows as a Roaring bitmap."""
        return replace(self, options=replace(self.options, emit_roaring=enabled))

    def prune(self) -> PruneResult:
        """Prune the file."""
        return self._pruner().prune(self.target, self.io)

    async def prune_async(self) -> PruneResult:
        """Prune the file without blocking the event loop."""
        return await self._pruner().prune_async(self.target, self.io)

    def _pruner(self) -> Pruner:
        return Pruner(self.predicate, self.schema, self.options, provider=self.provider)

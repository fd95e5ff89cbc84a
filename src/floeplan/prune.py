"""Metadata pruning of Parquet files: ``fp.prune.PruneRequest("file.parquet").with_predicate("a = 1").prune()``."""

from floeplan.parquet.prune import (
    AsyncBloomFilterProvider,
    BloomFilterProvider,
    PruneOptions,
    Pruner,
    PruneRequest,
    PruneResult,
)
from floeplan.parquet.selection import RowSelection

__all__ = [
    "AsyncBloomFilterProvider",
    "BloomFilterProvider",
    "PruneOptions",
    "PruneRequest",
    "PruneResult",
    "Pruner",
    "RowSelection",
]

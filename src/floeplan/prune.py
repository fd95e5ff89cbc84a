"""Metadata pruning of Parquet files: ``fp.prune.PruneRequest("file.parquet").with_predicate("a = 1").prune()``."""

from __future__ import annotations

from floeplan.parquet.prune.request import (
    AsyncBloomFilterProvider,
    BloomFilterProvider,
    PruneOptions,
    Pruner,
    PruneRequest,
    PruneResult,
)
from floeplan.parquet.prune.selection import RowSelection

__all__ = [
    "AsyncBloomFilterProvider",
    "BloomFilterProvider",
    "PruneOptions",
    "PruneRequest",
    "PruneResult",
    "Pruner",
    "RowSelection",
]

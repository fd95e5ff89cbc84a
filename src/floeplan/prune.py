"""Metadata pruning of Parquet files: ``fp.prune.PruneRequest("file.parquet").with_predicate("a = 1").prune()``."""

from __future__ import annotations

from floeplan.parquet.prune.options import PruneOptions
from floeplan.parquet.prune.provider import AsyncBloomFilterProvider, BloomFilterProvider
from floeplan.parquet.prune.pruner import Pruner
from floeplan.parquet.prune.request import PruneRequest
from floeplan.parquet.prune.result import PruneResult
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

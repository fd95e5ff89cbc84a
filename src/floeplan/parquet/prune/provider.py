"""Bloom filters supplied by the caller instead of read from the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from floeplan.parquet.footer.bloom import BloomResults, ChunkKey, FilterProbe, SplitBlockFilter
from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.vectors import Ints


class BloomFilterProvider(Protocol):
    """A custom source of Bloom filters, such as a cache. Keys are (row group, leaf index)."""

    def bloom_filters_batch(self, requests: Sequence[ChunkKey]) -> Mapping[ChunkKey, SplitBlockFilter]:
        """Return the filters that are known among the requested ones."""


class AsyncBloomFilterProvider(Protocol):
    """An asynchronous ``BloomFilterProvider``; use it with ``prune_async``."""

    async def bloom_filters_batch(self, requests: Sequence[ChunkKey]) -> Mapping[ChunkKey, SplitBlockFilter]:
        """Return the filters that are known among the requested ones."""


def filter_requests(probes: Sequence[FilterProbe], row_groups: Ints) -> list[ChunkKey]:
    """Return the keys of all filters that the probes need, for one batched call."""
    leaves = sorted({probe.leaf.index for probe in probes})
    return [(group, leaf) for leaf in leaves for group in row_groups.tolist()]


def probe_filters(
    footer: ParquetFooter, probes: Sequence[FilterProbe], filters: Mapping[ChunkKey, SplitBlockFilter]
) -> BloomResults:
    """Probe the filters a provider returned; a row group without a filter may contain the value."""
    masks = {}
    for probe in probes:
        mask = np.ones(footer.num_row_groups, dtype=np.bool_)
        # Look filters up by key: a provider may return more than was requested.
        for group in range(footer.num_row_groups):
            found = filters.get((group, probe.leaf.index))
            if found is not None:
                mask[group] = found.might_contain(probe.hashes).any()
        masks[probe.key] = mask
    return BloomResults(masks)

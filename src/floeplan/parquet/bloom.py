"""Split-block bloom filters: one 32-byte block answers, the filter is not fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from floeplan.parquet.footer import ParquetFooter
from floeplan.parquet.schema import LeafColumn
from floeplan.parquet.source import ByteSource
from floeplan.predicate.ir import Column, IrExpr
from floeplan.predicate.literals import Value
from floeplan.predicate.tristate import Mask


@dataclass(frozen=True, slots=True)
class SplitBlockFilter:
    """A whole filter held in memory."""

    blocks: npt.NDArray[np.uint32]

    def might_contain(self, hashes: npt.NDArray[np.uint64]) -> Mask:
        """Per hash, whether a value with it may have been inserted."""
        raise NotImplementedError


class BloomFilterProvider(Protocol):
    """A custom source of filters, a cache for instance; keys are (row group, leaf index), absent ones unknown."""

    def bloom_filters_batch(self, requests: Sequence[tuple[int, int]]) -> Mapping[tuple[int, int], SplitBlockFilter]:
        """The filters that are known among those asked for."""


class AsyncBloomFilterProvider(Protocol):
    """The same, awaited."""

    async def bloom_filters_batch(
        self, requests: Sequence[tuple[int, int]]
    ) -> Mapping[tuple[int, int], SplitBlockFilter]:
        """The filters that are known among those asked for."""


@dataclass(frozen=True, slots=True)
class BloomAnswers:
    """Answers to the questions that were asked beforehand: a ``BloomProbe`` over all row groups of the file."""

    answers: Mapping[tuple[int, tuple[Value, ...]], Mask]

    def might_contain(self, column: Column, values: tuple[Value, ...]) -> Mask | None:
        """Per row group, whether any of the values may be there; ``None`` when the question was not asked."""
        return self.answers.get((column.field_id, values))


def bloom_questions(expr: IrExpr) -> list[tuple[Column, tuple[Value, ...]]]:
    """The (column, values) pairs of the bloom leaves in an expression."""
    raise NotImplementedError


def probe_file(
    source: ByteSource,
    footer: ParquetFooter,
    questions: Sequence[tuple[Column, tuple[Value, ...]]],
    row_groups: Sequence[int],
    leaves: Mapping[int, LeafColumn] | None = None,
) -> BloomAnswers:
    """Ask the filters of the file for some row groups; the others answer "may be there". One or two round trips."""
    raise NotImplementedError


def probe_provider(
    provider: BloomFilterProvider,
    footer: ParquetFooter,
    questions: Sequence[tuple[Column, tuple[Value, ...]]],
    row_groups: Sequence[int],
    leaves: Mapping[int, LeafColumn] | None = None,
) -> BloomAnswers:
    """Ask a custom provider's filters."""
    raise NotImplementedError


async def probe_provider_async(
    provider: AsyncBloomFilterProvider,
    footer: ParquetFooter,
    questions: Sequence[tuple[Column, tuple[Value, ...]]],
    row_groups: Sequence[int],
    leaves: Mapping[int, LeafColumn] | None = None,
) -> BloomAnswers:
    """Ask a custom provider's filters, awaiting them."""
    raise NotImplementedError

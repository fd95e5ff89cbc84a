"""Trying a layout on points: cut them into files of the wanted size, and ask a predicate which files it would read.

The files have bounds and partition values as real ones do, and the same evaluator that plans scans answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from floeplan.audit.points import NULL, CodedColumn, Codes, Points
from floeplan.partition.fields import BoundField
from floeplan.partition.projection import partition_answer
from floeplan.partition.transforms import apply_vector
from floeplan.predicate.evaluate import answer_leaf
from floeplan.predicate.ir import IrExpr
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable, Vector, take
from floeplan.predicate.tristate import Tri, kleene
from floeplan.rewrite.curves import bits_per_column, curve_words

Keys: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """Imagined files: what is known of each, and its bytes."""

    bounds: StatsTable
    partitions: StatsTable
    fields: tuple[BoundField, ...]
    bytes: npt.NDArray[np.float64]

    def bytes_read(self, predicate: IrExpr) -> float:
        """Bytes of the files that may hold a matching row."""
        answer = kleene(predicate, self.bounds.nonempty, self._answer())
        return float(self.bytes[answer.keep].sum())

    def _answer(self) -> Callable[[IrExpr], Tri]:
        def answer(leaf: IrExpr) -> Tri:
            return answer_leaf(leaf, self.bounds).refine(partition_answer(leaf, list(self.fields), self.partitions))

        return answer


def lay_out(
    points: Points, fields: Sequence[BoundField], keys: Sequence[npt.NDArray[Any]], file_bytes: float
) -> Layout:
    """Files of about so many bytes, none across partitions, points within a partition in the order of the keys.

    Without keys points stay in the order of the files they come from.
    """
    values = [_partition_values(points.columns[field.source_id], field) for field in fields]
    groups = np.zeros(len(points), dtype=np.int64)
    for _, codes in values:
        _, groups = np.unique(groups * (codes.max(initial=0) + 2) + codes + 1, return_inverse=True)
    order = np.lexsort([*reversed(keys), groups]) if len(keys) else np.argsort(groups, kind="stable")
    starts = _cuts(groups[order], points.bytes[order], file_bytes)
    bounds = {i: _bounds(column, order, starts) for i, column in points.columns.items()}
    exact = {
        field.column.field_id: _exact(distinct, codes[order][starts])
        for field, (distinct, codes) in zip(fields, values, strict=True)
    }
    number = len(starts)
    sizes = np.add.reduceat(points.bytes[order], starts)
    return Layout(StatsTable(number, bounds), StatsTable(number, exact), tuple(fields), sizes)


def _partition_values(column: CodedColumn, field: BoundField) -> tuple[Vector, Codes]:
    """The distinct partition values in order, and each point's place among them; ``NULL`` where the value is null."""
    made = apply_vector(field.transform, field.source_type, column.values)
    if isinstance(made, np.ndarray):
        distinct, places = np.unique(made, return_inverse=True)
    else:
        encoded = made.dictionary_encode()
        distinct, places = encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return distinct, np.where(column.codes == NULL, NULL, places[column.codes])


def _cuts(groups: Codes, sizes: npt.NDArray[np.float64], file_bytes: float) -> npt.NDArray[np.intp]:
    """Where files begin: at every new partition, and within one as often as its bytes fill a file."""
    new = np.flatnonzero(np.diff(groups, prepend=-1))
    total = np.add.reduceat(sizes, new)
    before = np.repeat(np.cumsum(total) - total, np.diff(np.append(new, len(groups))))
    parts = np.maximum(1, np.rint(total / file_bytes))
    each = np.repeat(total / parts, np.diff(np.append(new, len(groups))))
    middle = np.cumsum(sizes) - sizes / 2
    number = np.floor((middle - before) / each)
    return np.flatnonzero((np.diff(groups, prepend=-1) != 0) | (np.diff(number, prepend=-1) != 0))


def _bounds(column: CodedColumn, order: npt.NDArray[np.intp], starts: npt.NDArray[np.intp]) -> ColumnStats:
    codes = column.codes[order]
    lowest = np.minimum.reduceat(np.where(codes == NULL, len(column.values), codes), starts)
    highest = np.maximum.reduceat(codes, starts)
    there = highest != NULL
    nulls = np.maximum.reduceat(codes == NULL, starts)
    lower, upper = (Bound(take(column.values, np.where(there, places, 0)), there) for places in (lowest, highest))
    return ColumnStats(nulls, np.zeros_like(nulls), there, lower, upper)


def _exact(distinct: Vector, codes: Codes) -> ColumnStats:
    return ColumnStats.exact(take(distinct, np.maximum(codes, 0)), codes == NULL)


def curve_keys(columns: Sequence[CodedColumn]) -> list[npt.NDArray[np.uint64]]:
    """The place of every point on a Z-order curve through some columns."""
    bits = bits_per_column(len(columns))
    scaled = [
        (np.maximum(column.codes, 0).astype(np.uint64) * np.uint64(1 << bits)) // np.uint64(max(len(column.values), 1))
        for column in columns
    ]
    return curve_words(scaled, bits, "zorder")

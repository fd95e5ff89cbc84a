"""Finding equal keys: a hash index over the source of a merge, asked with whole columns of the target.

Keys are equal as Spark's ``=`` says: NaN equals NaN, -0.0 equals 0.0, and NULL equals nothing; under ``<=>`` NULL
equals NULL. Both sides are brought into the type they meet in. Any number of source rows may share a key, and any
number of columns may make one; with none, every row meets every other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from floeplan.errors import TypeMismatchError, UnsupportedError
from floeplan.parquet.selection import distinct
from floeplan.predicate.opaque_types import cast, common_type, entering

Rows = npt.NDArray[np.int64]
NO_MATCH = -1
_DENSE = 8


def meeting_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type in which keys of two columns are compared."""
    if pt.is_nested(left) or pt.is_nested(right):
        raise UnsupportedError("structs, lists and maps cannot be joined on outside Spark")
    met = common_type(entering(pa.nulls(0, left)).type, entering(pa.nulls(0, right)).type)
    if pt.is_decimal256(met):
        raise TypeMismatchError(f"a {left} and a {right} share no decimal of at most 38 digits")
    return met


def key_values(column: pa.ChunkedArray | pa.Array, type_: pa.DataType) -> pa.Array:
    """A column as keys of a type: equal keys have equal bits."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values = cast(entering(whole), type_)
    if not pt.is_floating(type_):
        return values
    plain = pc.add(values, pa.scalar(0.0, type_))
    one_nan = pc.if_else(pc.is_nan(plain), pa.scalar(float("nan"), type_), plain)
    return one_nan.view(pa.int64() if type_.bit_width == 64 else pa.int32())


@dataclass(frozen=True, slots=True)
class _Step:
    """The values of one key column, and which combinations with the columns before it there are, ascending."""

    values: pa.Array
    null_safe: bool
    combinations: Rows

    @classmethod
    def learn(cls, column: pa.Array, null_safe: bool, before: Rows) -> tuple[_Step, Rows]:
        """The step of a column of the source, and the codes of its rows."""
        step = cls(pc.unique(column).drop_null(), null_safe, np.zeros(0, dtype=np.int64))
        pairs = step._pairs(column, before)
        learnt = replace(step, combinations=distinct(pairs[pairs >= 0]))
        return learnt, learnt._places(pairs)

    def codes(self, keys: pa.Array, before: Rows) -> Rows:
        """The combinations of rows whose earlier columns have these codes."""
        return self._places(self._pairs(keys, before))

    def _pairs(self, keys: pa.Array, before: Rows) -> Rows:
        code = np.asarray(pc.index_in(keys, value_set=self.values).fill_null(NO_MATCH), dtype=np.int64)
        if self.null_safe:
            code = np.where(np.asarray(keys.is_null()), len(self.values), code)
        return np.where((code < 0) | (before < 0), NO_MATCH, before * (len(self.values) + 1) + code)

    def _places(self, pairs: Rows) -> Rows:
        """Where the combinations of rows are among those there are: by a table when they are dense, else by search."""
        known = self.combinations
        if not len(known):
            return np.full(len(pairs), NO_MATCH, dtype=np.int64)
        if known[-1] < _DENSE * len(known):
            table = np.full(int(known[-1]) + 1, NO_MATCH, dtype=np.int64)
            table[known] = np.arange(len(known))
            inside = (pairs >= 0) & (pairs < len(table))
            return np.where(inside, table[np.where(inside, pairs, 0)], NO_MATCH)
        place = np.minimum(np.searchsorted(known, pairs), len(known) - 1)
        return np.where(known[place] == pairs, place, NO_MATCH)


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """Source rows by key."""

    steps: tuple[_Step, ...]
    order: Rows
    first: Rows
    counts: Rows

    @classmethod
    def build(cls, keys: Sequence[pa.Array], null_safe: Sequence[bool], usable: npt.NDArray[np.bool_]) -> KeyIndex:
        """Index the usable rows of the source; the others meet nothing."""
        codes = np.where(usable, 0, NO_MATCH)
        steps = []
        for column, safe in zip(keys, null_safe, strict=True):
            step, codes = _Step.learn(column, safe, codes)
            steps.append(step)
        order = np.argsort(codes, kind="stable")
        order = order[np.searchsorted(codes[order], 0) :]
        groups = int(codes.max(initial=NO_MATCH)) + 1
        edges = np.searchsorted(codes[order], np.arange(groups + 1))
        return cls(tuple(steps), order.astype(np.int64), edges[:-1].astype(np.int64), np.diff(edges).astype(np.int64))

    def pairs(self, keys: Sequence[pa.Array], usable: npt.NDArray[np.bool_]) -> tuple[Rows, Rows]:
        """Pairs of target and source rows with equal keys, by target row."""
        codes = np.where(usable, 0 if len(self.first) else NO_MATCH, NO_MATCH)
        for step, column in zip(self.steps, keys, strict=True):
            codes = step.codes(column, codes)
        target = np.flatnonzero(codes >= 0)
        found = codes[target]
        counts = self.counts[found]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(target, counts), self.order[np.repeat(self.first[found], counts) + within]

"""Finding equal keys: an index over the source of a merge, asked with whole columns of the target.

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


def _sortable(keys: pa.Array) -> pa.Array:
    """Keys as integers or bytes: equal ones stay equal, and their order is any that stays the same."""
    type_ = keys.type
    if pt.is_boolean(type_):
        return keys.cast(pa.int64())
    if pt.is_integer(type_) or pt.is_date32(type_):
        return (keys.cast(pa.int32()) if pt.is_date32(type_) else keys).cast(pa.int64())
    if pt.is_timestamp(type_) or pt.is_time64(type_):
        return keys.cast(pa.int64())
    if pt.is_decimal(type_):
        return keys.view(pa.binary(type_.byte_width)).cast(pa.large_binary())
    return keys.cast(pa.large_binary())


class _Places:
    """Where keys are among sorted, distinct ones: by a table when those are dense integers, else by search.

    The table is made when it is first asked, and not sent along.
    """

    def __init__(self, known: pa.Array) -> None:
        self._known = known
        self._table: npt.NDArray[np.int32] | None = None

    @classmethod
    def of(cls, keys: pa.Array) -> _Places:
        """Of the distinct keys in a column, NULL left out."""
        found = pc.unique(keys).drop_null()
        return cls(found.take(pc.array_sort_indices(found)))

    def __reduce__(self) -> tuple[type[_Places], tuple[pa.Array]]:
        return _Places, (self._known,)

    def __len__(self) -> int:
        return len(self._known)

    def find(self, keys: pa.Array) -> Rows:
        """The place of each key; ``NO_MATCH`` for those that are not there, NULL among them."""
        if not len(self._known):
            return np.full(len(keys), NO_MATCH, dtype=np.int64)
        if not pt.is_int64(keys.type):
            place = pc.min_element_wise(pc.search_sorted(self._known, keys), len(self._known) - 1)
            same = pc.equal(self._known.take(place), keys)
            return np.asarray(pc.if_else(same, place, NO_MATCH).fill_null(NO_MATCH), dtype=np.int64)
        known, numbers = np.asarray(self._known), np.asarray(keys.fill_null(0))
        found = self._find_numbers(known, numbers)
        return found if not keys.null_count else np.where(np.asarray(keys.is_null()), NO_MATCH, found)

    def _find_numbers(self, known: Rows, numbers: Rows) -> Rows:
        first, last = int(known[0]), int(known[-1])
        if last - first >= _DENSE * len(known):
            place = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
            return np.where(known[place] == numbers, place, NO_MATCH)
        if self._table is None:
            self._table = np.full(last - first + 1, NO_MATCH, dtype=np.int32)
            self._table[known - first] = np.arange(len(known), dtype=np.int32)
        inside = (numbers >= first) & (numbers <= last)
        return np.where(inside, self._table[np.where(inside, numbers - first, 0)], NO_MATCH).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Step:
    """The values of one key column, and which combinations with the columns before it there are."""

    values: _Places
    null_safe: bool
    combinations: _Places

    @classmethod
    def learn(cls, column: pa.Array, null_safe: bool, before: Rows) -> tuple[_Step, Rows]:
        """The step of a column of the source, and the codes of its rows."""
        step = cls(_Places.of(_sortable(column)), null_safe, _Places(pa.array([], pa.int64())))
        pairs = step._pairs(column, before)
        learnt = replace(step, combinations=_Places(pa.array(distinct(pairs[pairs >= 0]))))
        return learnt, learnt.combinations.find(pa.array(pairs))

    def codes(self, keys: pa.Array, before: Rows) -> Rows:
        """The combinations of rows whose earlier columns have these codes."""
        return self.combinations.find(pa.array(self._pairs(keys, before)))

    def _pairs(self, keys: pa.Array, before: Rows) -> Rows:
        code = self.values.find(_sortable(keys))
        if self.null_safe:
            code = np.where(np.asarray(keys.is_null()), len(self.values), code)
        return np.where((code < 0) | (before < 0), NO_MATCH, before * (len(self.values) + 1) + code)


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

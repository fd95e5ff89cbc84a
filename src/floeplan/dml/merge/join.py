"""The decision of a merge: join the rows of a file with the source, and choose the first clause that applies.

To a matched target row the first WHEN MATCHED clause applies whose condition holds, to an unmatched one the first WHEN
NOT MATCHED BY SOURCE clause. A row that no clause applies to stays.

Keys are equal as in Spark's ``=``: NaN equals NaN, -0.0 equals 0.0, and NULL equals nothing; under ``<=>`` NULL equals
NULL. Both sides are cast to their common type. Any number of source rows may share a key, and a key may have any number
of columns; without key columns every source row matches every target row.

Fail-safe: when clauses would apply to one target row for two source rows, the merge is ambiguous: an error, and nothing
is committed. The exception is a single unconditional DELETE, which has the same result either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.schema import Schema

from floeplan.dml.assign import Assignments
from floeplan.dml.merge.compile import MergeCondition, When, is_source
from floeplan.dml.row_task import Decision, RowChanges
from floeplan.errors import BadInputError, TypeMismatchError, UnsupportedError
from floeplan.parquet.prune.selection import distinct
from floeplan.predicate.build import field_ids
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.predicate.rows.arrow_columns import Resolver, typed_columns_of
from floeplan.predicate.rows.evaluate import matching_mask
from floeplan.predicate.rows.types import cast, common_type, normalize
from floeplan.scan.file_rows import PlannedRows
from floeplan.scan.model import FileScan
from floeplan.write.position_deletes import merge_positions

Rows = npt.NDArray[np.int64]
NO_MATCH = -1
_DENSE = 8


def common_key_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type in which keys of two columns are compared."""
    if pt.is_nested(left) or pt.is_nested(right):
        raise UnsupportedError("structs, lists and maps cannot be join keys outside Spark")
    found = common_type(normalize(pa.nulls(0, left)).type, normalize(pa.nulls(0, right)).type)
    if pt.is_decimal256(found):
        raise TypeMismatchError(f"a {left} and a {right} share no decimal of at most 38 digits")
    return found


def key_values(column: pa.ChunkedArray | pa.Array, type_: pa.DataType) -> pa.Array:
    """A column as keys of a type: equal keys have equal bits."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values = cast(normalize(whole), type_)
    if not pt.is_floating(type_):
        return values
    plain = pc.add(values, pa.scalar(0.0, type_))
    one_nan = pc.if_else(pc.is_nan(plain), pa.scalar(float("nan"), type_), plain)
    return one_nan.view(pa.int64() if type_.bit_width == 64 else pa.int32())


def _sortable(keys: pa.Array) -> pa.Array:
    """Keys as integers or bytes: equal keys stay equal, in some stable order."""
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


class _KeyLookup:
    """Finds the index of keys among sorted, distinct ones: by a lookup table for dense integers, else by search.

    The lookup table is built on first use and not pickled.
    """

    def __init__(self, known: pa.Array) -> None:
        self._known = known
        self._table: npt.NDArray[np.int32] | None = None

    @classmethod
    def of(cls, keys: pa.Array) -> _KeyLookup:
        """Of the distinct keys of a column, without NULL."""
        found = pc.unique(keys).drop_null()
        return cls(found.take(pc.array_sort_indices(found)))

    def __reduce__(self) -> tuple[type[_KeyLookup], tuple[pa.Array]]:
        return _KeyLookup, (self._known,)

    def __len__(self) -> int:
        return len(self._known)

    def find(self, keys: pa.Array) -> Rows:
        """The index of each key; ``NO_MATCH`` for unknown keys and NULL."""
        if not len(self._known):
            return np.full(len(keys), NO_MATCH, dtype=np.int64)
        if not pt.is_int64(keys.type):
            index = pc.min_element_wise(pc.search_sorted(self._known, keys), len(self._known) - 1)
            same = pc.equal(self._known.take(index), keys)
            return np.asarray(pc.if_else(same, index, NO_MATCH).fill_null(NO_MATCH), dtype=np.int64)
        known, numbers = np.asarray(self._known), np.asarray(keys.fill_null(0))
        first, last = int(known[0]), int(known[-1])
        if last - first >= _DENSE * len(known):
            index = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
            found = np.where(known[index] == numbers, index, NO_MATCH)
        else:
            if self._table is None:
                self._table = np.full(last - first + 1, NO_MATCH, dtype=np.int32)
                self._table[known - first] = np.arange(len(known), dtype=np.int32)
            inside = (numbers >= first) & (numbers <= last)
            found = np.where(inside, self._table[np.where(inside, numbers - first, 0)], NO_MATCH).astype(np.int64)
        return found if not keys.null_count else np.where(np.asarray(keys.is_null()), NO_MATCH, found)


@dataclass(frozen=True, slots=True)
class _Step:
    """The values of one key column, and their combinations with the columns before it."""

    values: _KeyLookup
    null_safe: bool
    combinations: _KeyLookup

    @classmethod
    def learn(cls, column: pa.Array, null_safe: bool, before: Rows) -> tuple[_Step, Rows]:
        """The step of a column of the source, and the codes of its rows."""
        step = cls(_KeyLookup.of(_sortable(column)), null_safe, _KeyLookup(pa.array([], pa.int64())))
        pairs = step._pairs(column, before)
        learnt = replace(step, combinations=_KeyLookup(pa.array(distinct(pairs[pairs >= 0]))))
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
        """Index the usable rows of the source; the others match nothing."""
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


MOST_PAIRS = 50_000_000
STAYS = -1
"""No clause applies."""


@dataclass(frozen=True, slots=True)
class MergeSource:
    """The rows merged into the table, and their index by key."""

    rows: pa.Table
    schema: Schema
    index: KeyIndex
    key_types: tuple[pa.DataType, ...]


@dataclass(frozen=True, slots=True)
class Joined(Decision):
    """The decision of a merge."""

    schema: Schema
    source: MergeSource
    condition: MergeCondition
    matched: tuple[When, ...]
    by_source: tuple[When, ...]

    @property
    def clauses(self) -> tuple[Assignments | None, ...]:
        """Those of matched rows, then those of unmatched rows."""
        return tuple(when.assignments for when in (*self.matched, *self.by_source))

    def fields(self, file: FileScan) -> frozenset[int]:
        """Keys, and the target fields of conditions."""
        conditions = [when.condition for when in (*self.matched, *self.by_source)]
        expressions = [self.condition.target_only, self.condition.pairs, *conditions]
        keys = frozenset(key.target for key in self.condition.keys)
        return keys.union(*map(field_ids, expressions))

    def decide(self, file: FileScan, planned: PlannedRows) -> RowChanges:
        """Join, and evaluate the clauses."""
        rows, count = planned.undeleted(), planned.live_count
        target, source = self._pairs(rows, count)
        # To each pair, the first clause whose condition holds.
        chosen = np.full(len(target), STAYS, dtype=np.int16)
        for number, when in enumerate(self.matched):
            left = np.flatnonzero(chosen == STAYS)
            if not len(left):
                break
            resolve = self._resolve_pairs(rows, target[left], source[left])
            chosen[left[true_mask(when.condition, len(left), resolve)]] = number
        applies = chosen != STAYS
        self._check_single(target[applies])
        clause, matched_source = np.full(count, STAYS, dtype=np.int16), np.full(count, STAYS, dtype=np.int64)
        clause[target[applies]], matched_source[target[applies]] = chosen[applies], source[applies]
        # To each row without a pair, the first clause NOT MATCHED BY SOURCE.
        is_unmatched = np.ones(count, dtype=np.bool_)
        is_unmatched[target] = False
        for number, when in enumerate(self.by_source, start=len(self.matched)):
            left = np.flatnonzero(is_unmatched & (clause == STAYS))
            resolve = typed_columns_of(rows.take(pa.array(left)) if rows.num_columns else rows, self.schema)
            clause[left[true_mask(when.condition, len(left), resolve)]] = number
        changed = np.flatnonzero(clause != STAYS)
        where = planned.undeleted_positions(changed)
        return RowChanges(where, clause[changed], matched_source[changed], merge_positions(source))

    def resolver(self, rows: pa.Table, schema: Schema, source: npt.NDArray[np.int64] | None) -> Resolver:
        """Columns of the target rows and of the source rows that matched them."""
        found = self.source.rows if source is None else self.source.rows.take(pa.array(source, mask=source < 0))
        return both_sides(typed_columns_of(rows, schema), typed_columns_of(found, self.source.schema))

    def _pairs(self, rows: pa.Table, count: int) -> tuple[Rows, Rows]:
        """Pairs of matching target and source rows."""
        of_target = typed_columns_of(rows, self.schema)
        usable = true_mask(self.condition.target_only, count, of_target)
        found = zip(self.condition.keys, self.source.key_types, strict=True)
        keys = [key_values(of_target(key.target), type_) for key, type_ in found]
        if not keys and count * len(self.source.index.order) > MOST_PAIRS:
            raise UnsupportedError("a merge without an equality between target and source needs Spark; give a session")
        target, source = self.source.index.pairs(keys, usable)
        if self.condition.pairs == TRUE or not len(target):
            return target, source
        agree = true_mask(self.condition.pairs, len(target), self._resolve_pairs(rows, target, source))
        return target[agree], source[agree]

    def _check_single(self, target: Rows) -> None:
        """Refuse two changes of one row; target rows are in file order, so repetitions are neighbours."""
        if len(self.matched) == 1 and self.matched[0] == When():
            return
        times = int((np.diff(target) == 0).sum())
        if times:
            raise BadInputError(
                f"several source rows match one target row ({times} too many); make the source unique by its key",
                kind="ambiguous-merge",
            )

    def _resolve_pairs(self, rows: pa.Table, target: Rows, source: Rows) -> Resolver:
        of_target, of_source = (
            typed_columns_of(rows, self.schema),
            typed_columns_of(self.source.rows, self.source.schema),
        )
        left, right = pa.array(target), pa.array(source)
        return both_sides(lambda i: of_target(i).take(left), lambda i: of_source(i).take(right))


def both_sides(of_target: Resolver, of_source: Resolver) -> Resolver:
    """A column of either side, by field id."""
    return lambda field_id: of_source(field_id) if is_source(field_id) else of_target(field_id)


def true_mask(expr: IrExpr, rows: int, resolve: Resolver) -> npt.NDArray[np.bool_]:
    """Where a condition is TRUE."""
    if expr == TRUE or not rows:
        return np.ones(rows, dtype=np.bool_)
    return matching_mask(expr, pa.table({"row": pa.nulls(rows)}), resolve)

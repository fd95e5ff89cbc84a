"""Statistics of many containers, which every pruning level fills for the evaluator, and three-valued answers.

A container is a manifest, a data file, a row group or a page. For each container and column, ``ColumnStats`` states
whether a null, a NaN or an ordinary value *may* occur, and bounds the ordinary values.

Bounds are not minimum and maximum: they may be loose, truncated or missing, which only weakens an answer. Bounds that
cannot be true (NaN, or a lower above its upper) are treated as missing.

A predicate is TRUE, FALSE or NULL on each row. Statistics state which of the three *may* occur in a container; ``Tri``
holds one mask for each. Masks only err on the side of ``may``:

* a container is dropped when TRUE may not occur;
* every row of it matches when neither FALSE nor NULL may occur;
* everything else is unknown and is read.

Combinations are Kleene's, over sets of rows: NOT swaps TRUE and FALSE and leaves NULL, so a negation is correct with
nulls and NaN without being pushed to the leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import reduce
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from floeplan import arrow_compute as pc
from floeplan.predicate.ir import And, Column, FalseExpr, IrExpr, Not, NullExpr, Or, TrueExpr
from floeplan.predicate.literals import Value
from floeplan.vectors import Mask, arrow, flags, without_nulls

_set = object.__setattr__
POOL = pa.system_memory_pool()
"""The pool for small vectors; initialising Arrow's default allocator would dominate the time of a small plan."""

Counts: TypeAlias = npt.NDArray[np.int64]
"""Row, null or NaN counts; a negative number means unknown."""

Vector: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.float64] | pa.Array"
"""Bound values in the physical domain of their type.

``int64`` for booleans, integers, dates, times, timestamps and unscaled decimals of at most 18 digits; ``float64``
for float and double; Arrow arrays for strings, bytes (binary, fixed, UUID: compared as unsigned bytes) and wider
decimals (``decimal128``/``decimal256`` at the column's scale).
"""


class BloomProbe(Protocol):
    """Membership tests beside the statistics."""

    def might_contain(self, column: Column, values: tuple[Value, ...]) -> Mask | None:
        """Per container, whether any of the values may occur; ``None`` if the column has no filter."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound per container; ``values`` are undefined where ``valid`` is false."""

    values: Vector
    valid: Mask

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _plain(self.values))

    def slice(self, start: int, end: int) -> Bound:
        """The bounds of consecutive containers."""
        part = object.__new__(Bound)  # without ``__post_init__``: the values are plain already
        _set(part, "values", self.values[start:end])
        _set(part, "valid", self.valid[start:end])
        return part


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """What each container may hold of one column; bounds that cannot be true are dropped on construction.

    ``stored`` has the bounds of a variant or geometry column as bytes, which have no order: lower and upper ones.
    """

    may_null: Mask
    may_nan: Mask
    may_value: Mask
    lower: Bound | None = None
    upper: Bound | None = None
    stored: tuple[pa.Array, pa.Array] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        lower, upper = trusted(self.lower, self.upper)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    def slice(self, start: int, end: int) -> ColumnStats:
        """The statistics of consecutive containers."""
        part = object.__new__(ColumnStats)  # without ``__post_init__``: the bounds are checked already
        _set(part, "may_null", self.may_null[start:end])
        _set(part, "may_nan", self.may_nan[start:end])
        _set(part, "may_value", self.may_value[start:end])
        lower = None if self.lower is None else self.lower.slice(start, end)
        same = self.upper is self.lower  # exact values stay recognisable
        _set(part, "lower", lower)
        _set(part, "upper", lower if same else None if self.upper is None else self.upper.slice(start, end))
        _set(part, "stored", None if self.stored is None else tuple(one[start:end] for one in self.stored))
        return part

    @staticmethod
    def concat(parts: Sequence[ColumnStats]) -> ColumnStats:
        """The statistics of all containers of the parts; no bounds where the parts do not share their type."""
        if len(parts) == 1:
            return parts[0]
        return ColumnStats(
            np.concatenate([part.may_null for part in parts]),
            np.concatenate([part.may_nan for part in parts]),
            np.concatenate([part.may_value for part in parts]),
            _concat_bounds([part.lower for part in parts]),
            _concat_bounds([part.upper for part in parts]),
        )

    @classmethod
    def from_counts(
        cls,
        row_count: Counts,
        null_count: Counts,
        nan_count: Counts,
        lower: Bound | None = None,
        upper: Bound | None = None,
    ) -> ColumnStats:
        """Flags from counts: a zero proves absence, and counts that add up to the rows leave no ordinary values.

        For types without NaN pass zeros. Counts that together exceed the row count are ignored.
        """
        rows_known = row_count >= 0
        consistent = ~(rows_known & (np.maximum(null_count, 0) + np.maximum(nan_count, 0) > row_count))
        nulls_known, nans_known = (null_count >= 0) & consistent, (nan_count >= 0) & consistent
        no_rows = row_count == 0
        filled = np.where(nulls_known, null_count, 0) + np.where(nans_known, nan_count, 0)
        may_null = ~(nulls_known & (null_count == 0)) & ~no_rows
        may_nan = ~(nans_known & (nan_count == 0)) & ~no_rows & ~(rows_known & nulls_known & (null_count == row_count))
        may_value = ~(rows_known & (filled >= row_count))
        return cls(may_null, may_nan, may_value, lower, upper)

    @classmethod
    def all_null(cls, nonempty: Mask) -> ColumnStats:
        """A column that is absent from every container: only nulls."""
        nothing = np.zeros_like(nonempty)
        return cls(nonempty, nothing, nothing)

    @classmethod
    def exact(cls, values: Vector, is_null: Mask) -> ColumnStats:
        """Containers in which every row has the same value, such as partitions; the values may include NaN."""
        nan = _is_nan(Bound(values, ~is_null))
        bound = Bound(values, ~is_null & ~nan)
        return cls(is_null, nan, bound.valid, bound, bound)


@dataclass(frozen=True, slots=True)
class StatsTable:
    """Statistics of ``length`` containers by field id; nothing is known of a column that is missing."""

    length: int
    columns: Mapping[int, ColumnStats]
    nonempty: Mask = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    bloom: BloomProbe | None = None

    def __post_init__(self) -> None:
        if len(self.nonempty) != self.length:
            object.__setattr__(self, "nonempty", np.ones(self.length, dtype=np.bool_))


def _concat_bounds(parts: Sequence[Bound | None]) -> Bound | None:
    bounds = [part for part in parts if part is not None]
    values: list[Any] = [bound.values for bound in bounds]
    if len(bounds) < len(parts) or len({(type(one), getattr(one, "type", None)) for one in values}) > 1:
        return None
    joined = np.concatenate(values) if isinstance(values[0], np.ndarray) else pa.concat_arrays(values)
    return Bound(joined, np.concatenate([bound.valid for bound in bounds]))


def trusted(lower: Bound | None, upper: Bound | None) -> tuple[Bound | None, Bound | None]:
    """Drop bounds that cannot be true: NaN on either side, or a lower above its upper."""
    if lower is upper:
        return (_without_nan(lower),) * 2
    if lower is None or upper is None:
        return _without_nan(lower), _without_nan(upper)
    if isinstance(lower.values, np.ndarray):
        ordered = np.asarray(lower.values <= upper.values)
    else:
        ordered = to_mask(pc.less_equal(lower.values, upper.values, memory_pool=POOL))
    bad = lower.valid & upper.valid & ~ordered
    if _has_nan(lower.values):
        bad |= _is_nan(lower) | _is_nan(upper)
    if not bad.any():
        return lower, upper
    return Bound(lower.values, lower.valid & ~bad), Bound(upper.values, upper.valid & ~bad)


def _plain(values: Vector) -> Vector:
    """Fixed-size and view types as plain binary and string, which compare with literals of any length."""
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    if pt.is_fixed_size_binary(values.type) or pt.is_binary_view(values.type):
        return values.cast(pa.binary())
    return values.cast(pa.string()) if pt.is_string_view(values.type) else values


def _without_nan(bound: Bound | None) -> Bound | None:
    if bound is None or not _has_nan(bound.values):
        return bound
    return Bound(bound.values, bound.valid & ~_is_nan(bound))


def _has_nan(values: Vector) -> bool:
    """Whether values of this domain can be NaN."""
    return isinstance(values, np.ndarray) and values.dtype.kind == "f"


def _is_nan(bound: Bound) -> Mask:
    if _has_nan(bound.values):
        return bound.valid & np.isnan(bound.values)
    return np.zeros(len(bound.valid), dtype=np.bool_)


def take(values: Vector, rows: npt.NDArray[np.integer]) -> Vector:
    """The values at some rows."""
    return values[rows] if isinstance(values, np.ndarray) else values.take(arrow(rows))


def to_mask(answer: pa.Array) -> Mask:
    """An Arrow boolean array as a NumPy mask; null counts as false."""
    return flags(without_nulls(answer, False))


class TriState(IntEnum):
    """The answer for one container: no row matches, cannot determine, every row matches."""

    FALSE = 0
    UNKNOWN = 1
    TRUE = 2


class Tri(NamedTuple):
    """Which of TRUE, FALSE and NULL may occur among the rows of each container; or a row of these per predicate."""

    may_true: Mask
    may_false: Mask
    may_null: Mask

    @classmethod
    def stacked(cls, answers: Sequence[Tri], length: int) -> Tri:
        """The answers to several predicates for this many containers, in rows: one call serves all of them."""
        shape = len(answers), length
        return cls(
            np.array([answer.may_true for answer in answers], np.bool_).reshape(shape),
            np.array([answer.may_false for answer in answers], np.bool_).reshape(shape),
            np.array([answer.may_null for answer in answers], np.bool_).reshape(shape),
        )

    @classmethod
    def unknown(cls, nonempty: Mask) -> Tri:
        """Nothing is known: all three may occur wherever there are rows."""
        return cls(nonempty, nonempty, nonempty)

    @property
    def keep(self) -> Mask:
        """Containers that may hold a matching row."""
        return self.may_true

    @property
    def all_match(self) -> Mask:
        """Kept containers in which every row matches."""
        return self.may_true > (self.may_false | self.may_null)

    @property
    def undecided(self) -> Mask:
        """Kept containers in which some row may not match."""
        return self.may_true & (self.may_false | self.may_null)

    def states(self) -> npt.NDArray[np.int8]:
        """One ``TriState`` value per container."""
        return self.may_true.view(np.int8) + self.all_match.view(np.int8)

    def refine(self, other: Tri) -> Tri:
        """Combine two sound answers to the *same* predicate: only what may occur in both may occur."""
        return Tri(self.may_true & other.may_true, self.may_false & other.may_false, self.may_null & other.may_null)

    def conjunction(self) -> Tri:
        """The answer to the conjunction of the predicates in the rows, as ``&`` of all of them."""
        every, some = np.logical_and.reduce, np.logical_or.reduce
        null = every(self.may_true | self.may_null) & some(self.may_null)
        return Tri(every(self.may_true), some(self.may_false), null)

    def __invert__(self) -> Tri:
        return Tri(self.may_false, self.may_true, self.may_null)

    def __and__(self, other: Tri) -> Tri:
        null = (self.may_null & (other.may_true | other.may_null)) | (self.may_true & other.may_null)
        return Tri(self.may_true & other.may_true, self.may_false | other.may_false, null)

    def __or__(self, other: Tri) -> Tri:
        return ~(~self & ~other)


def kleene(expr: IrExpr, nonempty: Mask, answer: Callable[[IrExpr], Tri]) -> Tri:
    """Evaluate a tree from the answers to its leaves; in a container without rows nothing may occur."""
    match expr:
        case And(operands):
            return reduce(Tri.__and__, (kleene(operand, nonempty, answer) for operand in operands))
        case Or(operands):
            return reduce(Tri.__or__, (kleene(operand, nonempty, answer) for operand in operands))
        case Not(operand):
            return ~kleene(operand, nonempty, answer)
        case TrueExpr():
            return Tri(nonempty, np.zeros_like(nonempty), np.zeros_like(nonempty))
        case FalseExpr():
            return Tri(np.zeros_like(nonempty), nonempty, np.zeros_like(nonempty))
        case NullExpr():
            return Tri(np.zeros_like(nonempty), np.zeros_like(nonempty), nonempty)
    return answer(expr)

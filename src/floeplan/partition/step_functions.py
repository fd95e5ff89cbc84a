"""Lift predicates through transforms that keep the order: year, month, day, hour and truncation.

**Integers** (time transforms and truncation of numbers).

A leaf is a set of closed ranges of source integers, and an order-preserving transform maps the range [a, b]
to the range [T(a), T(b)] of partition values. No operator needs a rule of its own.

Partition values are what a writer stored, which is not always T(v). Each known deviation widens the ranges:

* Writers that round toward zero (Iceberg Java up to 0.10 and others) store T(v) + 1 for values before 1970.
* Iceberg Java stores T(v) - 1 for timestamps before 1970 in the last tick of a unit's first second.
* Labels that do not fit the 32 or 64 bits of the result wrap around: numeric truncation within one width of the
  smallest integer, and hours beyond the year 245000.

A leaf is lifted *exactly* when no partition value lies in both its own ranges and those of its negation.

**Strings and bytes** (truncation). A partition value shorter than the width W *is* the source value; one of full width
is the prefix that all its source values share. With ``n`` the length of the literal:

=================  ==================  ======================================
leaf               exact when          otherwise
=================  ==================  ======================================
``= x``, ``<= x``  n < W               the same on the first W of x
``> x``            n < W               ``>=`` the first W of x
``< x``            n <= W              ``<=`` the first W of x
``>= x``           n <= W              the same on the first W of x
``!= x``           n < W               nothing can be excluded
``LIKE 'x%'``      n <= W              the same on the first W of x
``NOT LIKE``       n <= W              nothing can be excluded
=================  ==================  ======================================

Lengths of strings are code points, as in the transform itself; counting UTF-16 units or bytes would lose rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from pyiceberg.transforms import DayTransform, TruncateTransform
from pyiceberg.types import DateType, DecimalType, IntegerType, LongType, PrimitiveType
from pyiceberg.utils.decimal import unscaled_to_decimal

from floeplan.partition.transforms import TIMESTAMPS, Transform, integer_limits, result_type, to_integer, units
from floeplan.predicate.build import and_, or_
from floeplan.predicate.ir import FALSE, Between, Cmp, CmpOp, Column, InList, IrExpr, IsNull, StartsWith
from floeplan.predicate.literals import Value

Range: TypeAlias = tuple[int, int]
"""Both ends are inclusive; the range is empty if the first exceeds the second."""

_ROUNDED = {CmpOp.LT: CmpOp.LE, CmpOp.GT: CmpOp.GE}
_EXACT_AT_FULL_WIDTH = (CmpOp.LT, CmpOp.GE)
_WRAPS = {IntegerType: 2**32, LongType: 2**64}


@dataclass(frozen=True, slots=True)
class StepFunction:
    """An order-preserving transform of the integers of one type; labels have to fit the limits of ``result``."""

    transform: Transform
    source: PrimitiveType
    result: PrimitiveType

    @classmethod
    def of(cls, transform: Transform, source: PrimitiveType) -> StepFunction:
        """A transform of one source type."""
        return cls(transform, source, result_type(transform, source))

    def ranges(self, leaf: Cmp | Between | InList) -> list[Range]:
        """The partition values that may hold a row for which the leaf is TRUE, in no order."""
        low, high = _limits(self.source)
        inside = [(max(a, low), min(b, high)) for a, b in source_ranges(leaf, low, high) if a <= high and b >= low]
        inside = [(a, b) for a, b in inside if a <= b]
        ends = units(self.transform, self.source, [end for ab in inside for end in ab])
        labels = zip(ends[::2], ends[1::2], strict=True)
        return [stored for a, b in labels for stored in self._wrapped(*self._as_written(a, b))]

    def everything(self) -> Range:
        """The smallest and largest partition value that can have been stored."""
        labels = units(self.transform, self.source, _limits(self.source))
        stored = self._wrapped(*self._as_written(*labels))
        smallest, largest = _limits(self.result)
        return max(min(low for low, _ in stored), smallest), min(max(high for _, high in stored), largest)

    def _as_written(self, low: int, high: int) -> Range:
        """Add the neighbouring labels that faulty writers store for units before 1970."""
        if isinstance(self.transform, TruncateTransform):
            return low, high
        if isinstance(self.source, DateType) and isinstance(self.transform, DayTransform):
            return low, high
        downward = isinstance(self.source, TIMESTAMPS) and low < 0
        return low - downward, high + (high < 0)

    def _wrapped(self, low: int, high: int) -> list[Range]:
        """Add the ranges to which labels outside the result type wrap around."""
        turn = _WRAPS.get(type(self.result))
        if turn is None:
            return [(low, high)]
        smallest, largest = _limits(self.result)
        below, above = (low + turn, min(high, smallest - 1) + turn), (max(low, largest + 1) - turn, high - turn)
        return [(low, high), *(part for part in (below, above) if part[0] <= part[1])]


@dataclass(frozen=True, slots=True)
class Steps:
    """An order-preserving transform of all integer types its source has had: each wraps at limits of its own.

    ``gap`` is how far one label is from the next, ``everything`` the smallest and largest label that can be stored.
    """

    functions: tuple[StepFunction, ...]
    gap: int
    everything: Range

    @classmethod
    def of(cls, transform: Transform, types: Iterable[PrimitiveType]) -> Steps:
        """A transform of every one of the types."""
        functions = tuple(StepFunction.of(transform, type_) for type_ in types)
        lows, highs = zip(*(function.everything() for function in functions), strict=True)
        gap = transform.width if isinstance(transform, TruncateTransform) else 1
        return cls(functions, gap, (min(lows), max(highs)))

    def ranges(self, leaf: Cmp | Between | InList) -> list[Range]:
        """The partition values that may hold a row for which the leaf is TRUE: sorted ranges that are apart."""
        return merged((found for function in self.functions for found in function.ranges(leaf)), self.gap)


def _limits(type_: PrimitiveType) -> Range:
    limits = integer_limits(type_)
    assert limits is not None, type_
    return limits


def source_ranges(leaf: Cmp | Between | InList, low: int, high: int) -> Iterable[Range]:
    """The source integers for which a leaf is TRUE; ``low`` and ``high`` stand for minus and plus infinity."""
    match leaf:
        case InList(_, values, False):
            return [(point, point) for point in map(to_integer, values)]
        case InList(_, values, True):
            points = sorted(set(map(to_integer, values)))
            return zip([low, *(p + 1 for p in points)], [*(p - 1 for p in points), high], strict=True)
        case Between(_, first, last, inclusive):
            gap = 0 if inclusive else 1
            return [(to_integer(first) + gap, to_integer(last) - gap)]
        case Cmp(_, op, value):
            point = to_integer(value)
            return {
                CmpOp.EQ: [(point, point)],
                CmpOp.NE: [(low, point - 1), (point + 1, high)],
                CmpOp.LT: [(low, point - 1)],
                CmpOp.LE: [(low, point)],
                CmpOp.GT: [(point + 1, high)],
                CmpOp.GE: [(point, high)],
            }[op]
    raise AssertionError(leaf)


def merged(ranges: Iterable[Range], step: int) -> list[Range]:
    """The same labels as sorted ranges that are apart; labels are ``step`` from each other, so none lies in a gap."""
    result: list[Range] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + step:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return result


def overlap(left: Sequence[Range], right: Sequence[Range]) -> bool:
    """Whether any integer lies in both; the ranges of each side are apart."""
    return any(later[0] <= earlier[1] for earlier, later in pairwise(sorted([*left, *right])))


def ranges_to_ir(column: Column, ranges: Sequence[Range], everything: Range) -> IrExpr:
    """Ranges of partition values as a predicate; ends at the limits of what can be stored are left open."""
    lone = [low == high and everything[0] < low < everything[1] for low, high in ranges]
    points = [low for (low, _), alone in zip(ranges, lone, strict=True) if alone]
    parts = [_range_to_ir(column, ends, everything) for ends, alone in zip(ranges, lone, strict=True) if not alone]
    if len(points) == 1:
        parts.append(Cmp(column, CmpOp.EQ, _literal(column, points[0])))
    elif points:
        parts.append(InList(column, tuple(_literal(column, point) for point in points)))
    return or_(*parts)


def _range_to_ir(column: Column, ends: Range, everything: Range) -> IrExpr:
    """One range; an end outside what the type can express moves to the limit, which only widens the range."""
    smallest, largest = everything
    low = _literal(column, min(ends[0], largest)) if ends[0] > smallest else None
    high = _literal(column, max(ends[1], smallest)) if ends[1] < largest else None
    if low is not None and high is not None:
        return Between(column, low, high)
    if low is not None:
        return Cmp(column, CmpOp.GE, low)
    if high is not None:
        return Cmp(column, CmpOp.LE, high)
    return IsNull(column, negated=True)


def _literal(column: Column, label: int) -> Value:
    return unscaled_to_decimal(label, column.type.scale) if isinstance(column.type, DecimalType) else label


def lift_prefix(leaf: IrExpr, column: Column, width: int) -> tuple[IrExpr, bool]:
    """Lift a leaf through truncation of strings or bytes.

    Returns the leaf on the partition column and whether it is exact; ``IS NOT NULL`` if nothing can be excluded.
    """
    match leaf:
        case Cmp(_, op, value):
            return _lift_comparison(op, _text(value), column, width)
        case Between(_, low, high, inclusive):
            above, below = (CmpOp.GE, CmpOp.LE) if inclusive else (CmpOp.GT, CmpOp.LT)
            first, first_exact = _lift_comparison(above, _text(low), column, width)
            last, last_exact = _lift_comparison(below, _text(high), column, width)
            return and_(first, last), first_exact and last_exact
        case InList(_, values, False):
            return _lift_in([_text(value) for value in values], column, width)
        case InList(_, values, True):
            short = tuple(value for value in map(_text, values) if len(value) < width)
            lifted: IrExpr = InList(column, short, negated=True) if short else IsNull(column, negated=True)
            return lifted, len(short) == len(values)
        case StartsWith(_, prefix, negated):
            return _lift_starts_with(prefix, negated, column, width)
    return IsNull(column, negated=True), False


def _text(value: Value) -> str | bytes:
    assert isinstance(value, str | bytes), value
    return value


def _lift_comparison(op: CmpOp, value: str | bytes, column: Column, width: int) -> tuple[IrExpr, bool]:
    exact = len(value) < width or (len(value) == width and op in _EXACT_AT_FULL_WIDTH)
    if exact:
        return Cmp(column, op, value), True
    if op is CmpOp.NE:
        return IsNull(column, negated=True), False
    return Cmp(column, _ROUNDED.get(op, op), value[:width]), False


def _lift_in(values: list[str | bytes], column: Column, width: int) -> tuple[IrExpr, bool]:
    cut = tuple(dict.fromkeys(value[:width] for value in values))
    if not cut:
        return FALSE, True
    lifted = Cmp(column, CmpOp.EQ, cut[0]) if len(cut) == 1 else InList(column, cut)
    return lifted, all(len(value) < width for value in values)


def _lift_starts_with(prefix: str, negated: bool, column: Column, width: int) -> tuple[IrExpr, bool]:
    if len(prefix) < width:
        return StartsWith(column, prefix, negated), True
    if len(prefix) == width:
        return Cmp(column, CmpOp.NE if negated else CmpOp.EQ, prefix), True
    if negated:
        return IsNull(column, negated=True), False
    return Cmp(column, CmpOp.EQ, prefix[:width]), False

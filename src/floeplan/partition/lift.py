"""Lift a predicate on a source column to a predicate on a partition field.

Rule: ``lift(leaf, field)`` is TRUE for every partition that may hold a row for which the leaf is TRUE. Only this
direction is implemented. That *every* row of a partition matches follows from it: no row may make the negated leaf
TRUE, and none may be null. ``floeplan.partition.union`` derives both.

===========================  =========  ============================================================
transform                    lifts      how
===========================  =========  ============================================================
identity, truncate[1],       exactly    the same leaf on the partition column
day of a date
year, month, day, hour,      by ranges  ``StepFunction``
truncate of numbers
truncate of strings, bytes   by prefix  ``_lift_prefix``
bucket                       =, IN      hashes preserve equality only
void, unknown                cannot     the partition value says nothing
===========================  =========  ============================================================

A condition on a transform itself (``ir.Transformed``) lifts exactly onto fields of the same transform, and onto all
others as the equivalent condition on the source column.

**Integers** (time transforms and truncation of numbers). A leaf is a set of closed ranges of source integers, and an
order-preserving transform maps the range [a, b] to the range [T(a), T(b)] of partition values. No operator needs a rule
of its own. A leaf is lifted *exactly* when no partition value lies in both its own ranges and those of its negation.

Partition values are what a writer stored, which is not always T(v). Each known deviation widens the ranges:

* Writers that round toward zero (Iceberg Java up to 0.10 and others) store T(v) + 1 for values before 1970.
* Iceberg Java stores T(v) - 1 for timestamps before 1970 in the last tick of a unit's first second.
* Labels that do not fit the 32 or 64 bits of the result wrap around: numeric truncation within one width of the
  smallest integer, and hours beyond the year 245000.

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

Fail-safe: a leaf that cannot be lifted becomes TRUE, or ``IS NOT NULL`` if it is never TRUE for a null and the
transform maps only nulls to null.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from pyiceberg import types
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.utils.decimal import unscaled_to_decimal

from floeplan.partition.fields import BoundField, transform_name
from floeplan.partition.transforms import TIMESTAMPS, Transform, buckets, integer_limits, result_type, to_integer, units
from floeplan.predicate import ir
from floeplan.predicate.build import and_, negate, one_of, or_, push_not
from floeplan.predicate.ir import FALSE, TRUE, CmpOp, Column, IrExpr
from floeplan.predicate.literals import Value

RangeLeaf: TypeAlias = ir.Cmp | ir.Between | ir.InList

Range: TypeAlias = tuple[int, int]
"""Both ends are inclusive; the range is empty if the first exceeds the second."""

_LIFTABLE = (ir.Cmp, ir.Between, ir.InList, ir.StartsWith, ir.IsNull, ir.IsNaN)
_WRAPS = {types.IntegerType: 2**32, types.LongType: 2**64}
SHARED = "the partition may contain other values"


class Exactness(StrEnum):
    """How much a partition value determines about a leaf.

    ``EXACT``: the partition value determines the leaf for all its rows. ``CONSERVATIVE``: it does so for some
    partitions, while others hold rows of both kinds. ``CANNOT``: it tells at most whether the source is null.
    """

    EXACT = "exact"
    CONSERVATIVE = "conservative"
    CANNOT = "cannot"


WORST_FIRST = (Exactness.CANNOT, Exactness.CONSERVATIVE, Exactness.EXACT)


class Lifted(NamedTuple):
    """A predicate on the partition column, how exact it is, and why it is not exact."""

    expr: IrExpr
    exactness: Exactness
    reason: str = ""


_NOTHING = Lifted(FALSE, Exactness.EXACT)


@lru_cache(maxsize=256)
def lift(expr: IrExpr, field: BoundField) -> Lifted:
    """Lift a leaf on the source column of a field, or any combination of such leaves.

    Cached, because every pruning pass of a plan and its explanation lift the same leaves.
    """
    match _plain(push_not(expr)):
        case ir.And(operands) | ir.Or(operands) as junction:
            # The least exact operand determines the exactness of the whole.
            parts = [lift(operand, field) for operand in operands]
            worst = min(parts, key=lambda part: WORST_FIRST.index(part.exactness))
            combine = and_ if isinstance(junction, ir.And) else or_
            return worst._replace(expr=combine(*(part.expr for part in parts)))
        case leaf:
            return _lift_leaf(leaf, field)


def _plain(leaf: IrExpr) -> IrExpr:
    """The same TRUE rows without null-safe equality and bloom filters."""
    match leaf:
        case ir.BloomEq(column, value) | ir.Cmp(column, CmpOp.NULL_SAFE_EQ, value):
            return ir.Cmp(column, CmpOp.EQ, value)
        case ir.Not(ir.BloomEq(column, value)):
            return ir.Cmp(column, CmpOp.NE, value)
        case ir.Not(ir.Cmp(column, CmpOp.NULL_SAFE_EQ, value)):
            return ir.Or((ir.IsNull(column), ir.Cmp(column, CmpOp.NE, value)))
        case ir.BloomInList(column, values):
            return ir.InList(column, values)
        case ir.Not(ir.BloomInList(column, values)):
            return ir.InList(column, values, negated=True)
    return leaf


def _lift_leaf(leaf: IrExpr, field: BoundField) -> Lifted:
    if isinstance(leaf, ir.Transformed):
        if str(field.transform) != leaf.transform or field.obstacle:
            return lift(leaf.source, field)
        # The condition is on the stored partition values themselves, also on those of the faulty writers above.
        return Lifted(replace(leaf.leaf, column=field.column), Exactness.EXACT)
    if not isinstance(leaf, _LIFTABLE):
        return Lifted(TRUE, Exactness.CANNOT, "only rows can answer it")
    if field.obstacle:
        return Lifted(TRUE, Exactness.CANNOT, field.obstacle)
    if isinstance(leaf, ir.IsNaN) and not isinstance(leaf.column.type, types.FloatType | types.DoubleType):
        return Lifted(TRUE if leaf.negated else FALSE, Exactness.EXACT)
    if isinstance(leaf, ir.IsNull | ir.IsNaN) or _is_identity(field):
        return Lifted(replace(leaf, column=field.column), Exactness.EXACT)
    match field.transform, leaf:
        case BucketTransform() as bucket, ir.Cmp(op=CmpOp.EQ) | ir.InList(negated=False):
            values = (leaf.value,) if isinstance(leaf, ir.Cmp) else leaf.values
            labels = sorted(set(buckets(bucket, field.source_type, values)))
            return Lifted(one_of(field.column, labels), Exactness.CONSERVATIVE, SHARED) if labels else _NOTHING
        case TruncateTransform(width=width), _ if isinstance(field.source_type, types.StringType | types.BinaryType):
            lifted, exact = _lift_prefix(leaf, field.column, width)
        case _, ir.Cmp() | ir.Between() | ir.InList() if not isinstance(field.transform, BucketTransform):
            steps, ranges = _steps(field, leaf.column.type), _ranges(leaf, field)
            if not ranges:
                return _NOTHING
            negated = negate(leaf)
            parts = negated.operands if isinstance(negated, ir.Or) else (negated,)
            others = [found for part in parts if isinstance(part, RangeLeaf) for found in _ranges(part, field)]
            exact = not _overlap(ranges, _merged(others, steps.gap))
            lifted = _ranges_to_ir(field.column, ranges, steps.everything)
        case _:
            return _cannot(leaf, field)
    if exact:
        return Lifted(lifted, Exactness.EXACT)
    if lifted == ir.IsNull(field.column, negated=True):
        return _cannot(leaf, field)
    return Lifted(lifted, Exactness.CONSERVATIVE, SHARED)


def _is_identity(field: BoundField) -> bool:
    """Whether every partition value is its source value, so that any leaf lifts unchanged."""
    match field.transform:
        case IdentityTransform():
            return True
        case TruncateTransform(width=1):
            return not isinstance(field.source_type, types.StringType | types.BinaryType)
        case DayTransform():
            return all(isinstance(type_, types.DateType) for type_ in field.source_types)
    return False


def _cannot(leaf: IrExpr, field: BoundField) -> Lifted:
    """Only nulls can be excluded: the leaf is not TRUE for a null, and the transform maps only nulls to null."""
    match leaf:
        case ir.Cmp(op=CmpOp.LT | CmpOp.LE | CmpOp.GT | CmpOp.GE) | ir.Between():
            kind = "range"
        case ir.Cmp(op=op):
            kind = str(op)
        case ir.InList(negated=negated):
            kind = "NOT IN" if negated else "IN"
        case ir.StartsWith(negated=negated):
            kind = "NOT LIKE" if negated else "LIKE"
        case _:
            kind = str(leaf)
    not_null = ir.IsNull(field.column, negated=True)
    return Lifted(not_null, Exactness.CANNOT, f"{kind} over {transform_name(field.transform)}")


# Integers: ranges of partition values.


class StepFunction(NamedTuple):
    """An order-preserving transform of the integers of one type; labels have to fit the limits of ``result``."""

    transform: Transform
    source: types.PrimitiveType
    result: types.PrimitiveType

    def ranges(self, leaf: RangeLeaf) -> list[Range]:
        """The partition values that may hold a row for which the leaf is TRUE, in no order."""
        low, high = _limits(self.source)
        inside = [(max(a, low), min(b, high)) for a, b in _source_ranges(leaf, low, high) if a <= high and b >= low]
        inside = [(a, b) for a, b in inside if a <= b]
        ends = units(self.transform, self.source, [end for ab in inside for end in ab])
        return [stored for a, b in zip(ends[::2], ends[1::2], strict=True) for stored in self._stored(a, b)]

    def everything(self) -> Range:
        """The smallest and largest partition value that can have been stored."""
        stored = self._stored(*units(self.transform, self.source, _limits(self.source)))
        smallest, largest = _limits(self.result)
        return max(min(low for low, _ in stored), smallest), min(max(high for _, high in stored), largest)

    def _stored(self, low: int, high: int) -> list[Range]:
        """A range of labels as writers store them."""
        day_of_date = isinstance(self.source, types.DateType) and isinstance(self.transform, DayTransform)
        if not isinstance(self.transform, TruncateTransform) and not day_of_date:
            # The neighbouring labels that faulty writers store for units before 1970.
            low, high = low - (isinstance(self.source, TIMESTAMPS) and low < 0), high + (high < 0)
        turn = _WRAPS.get(type(self.result))
        if turn is None:
            return [(low, high)]
        # The ranges to which labels outside the result type wrap around.
        smallest, largest = _limits(self.result)
        below, above = (low + turn, min(high, smallest - 1) + turn), (max(low, largest + 1) - turn, high - turn)
        return [(low, high), *(part for part in (below, above) if part[0] <= part[1])]


class _Steps(NamedTuple):
    """An order-preserving transform of all integer types its source has had: each wraps at its own limits.

    ``gap`` is how far one label is from the next, ``everything`` the smallest and largest label that can be stored.
    """

    functions: tuple[StepFunction, ...]
    gap: int
    everything: Range


@lru_cache(maxsize=64)
def _steps(field: BoundField, compared: types.PrimitiveType) -> _Steps:
    """The transform of a field through every integer type its source has had, or else the one that is compared."""
    known = dict.fromkeys((compared, *field.source_types))
    integers = tuple(type_ for type_ in known if isinstance(type_, types.IntegerType | types.LongType))
    sources, transform = integers or (compared,), field.transform
    functions = tuple(StepFunction(transform, source, result_type(transform, source)) for source in sources)
    lows, highs = zip(*(function.everything() for function in functions), strict=True)
    gap = transform.width if isinstance(transform, TruncateTransform) else 1
    return _Steps(functions, gap, (min(lows), max(highs)))


@lru_cache(maxsize=256)
def _ranges(leaf: RangeLeaf, field: BoundField) -> tuple[Range, ...]:
    """The partition values that may hold a row for which the leaf is TRUE: sorted ranges that are apart.

    Cached: a leaf and its negation are always lifted together, and each needs the ranges of the other.
    """
    steps = _steps(field, leaf.column.type)
    return tuple(_merged((found for function in steps.functions for found in function.ranges(leaf)), steps.gap))


def _limits(type_: types.PrimitiveType) -> Range:
    limits = integer_limits(type_)
    assert limits is not None, type_
    return limits


def _source_ranges(leaf: RangeLeaf, low: int, high: int) -> Iterable[Range]:
    """The source integers for which a leaf is TRUE; ``low`` and ``high`` mean minus and plus infinity."""
    match leaf:
        case ir.InList(_, values, False):
            return [(point, point) for point in map(to_integer, values)]
        case ir.InList(_, values, True):
            points = sorted(set(map(to_integer, values)))
            return zip([low, *(p + 1 for p in points)], [*(p - 1 for p in points), high], strict=True)
        case ir.Between(_, first, last, inclusive):
            gap = 0 if inclusive else 1
            return [(to_integer(first) + gap, to_integer(last) - gap)]
        case ir.Cmp(_, op, value):
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


def _merged(ranges: Iterable[Range], step: int) -> list[Range]:
    """The same labels as sorted ranges that are apart; labels are ``step`` from each other, so none lies in a gap."""
    result: list[Range] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + step:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return result


def _overlap(left: Sequence[Range], right: Sequence[Range]) -> bool:
    """Whether any integer lies in both; the ranges of each side are apart."""
    return any(later[0] <= earlier[1] for earlier, later in pairwise(sorted([*left, *right])))


def _ranges_to_ir(column: Column, ranges: Sequence[Range], everything: Range) -> IrExpr:
    """Ranges of partition values as a predicate; ends at the limits of what can be stored are left open."""
    smallest, largest = everything
    parts: list[IrExpr] = []
    points: list[Value] = []
    for first, last in ranges:
        # An end outside what the type can express moves to the limit, which only widens the range.
        low = _label(column, min(first, largest)) if first > smallest else None
        high = _label(column, max(last, smallest)) if last < largest else None
        if low is not None and high is not None and first == last:
            points.append(low)
        elif low is not None and high is not None:
            parts.append(ir.Between(column, low, high))
        elif low is not None:
            parts.append(ir.Cmp(column, CmpOp.GE, low))
        elif high is not None:
            parts.append(ir.Cmp(column, CmpOp.LE, high))
        else:
            parts.append(ir.IsNull(column, negated=True))
    return or_(*parts, *([one_of(column, points)] if points else []))


def _label(column: Column, label: int) -> Value:
    type_ = column.type
    return unscaled_to_decimal(label, type_.scale) if isinstance(type_, types.DecimalType) else label


# Strings and bytes: prefixes.


def _lift_prefix(leaf: IrExpr, column: Column, width: int) -> tuple[IrExpr, bool]:
    """Lift a leaf through truncation of strings or bytes.

    Returns the leaf on the partition column and whether it is exact; ``IS NOT NULL`` if nothing can be excluded.
    """
    not_null = ir.IsNull(column, negated=True)
    match leaf:
        case ir.Cmp(_, op, str() | bytes() as value):
            if len(value) < width or (len(value) == width and op in (CmpOp.LT, CmpOp.GE)):
                return ir.Cmp(column, op, value), True
            rounded = {CmpOp.LT: CmpOp.LE, CmpOp.GT: CmpOp.GE}.get(op, op)
            return (not_null if op is CmpOp.NE else ir.Cmp(column, rounded, value[:width])), False
        case ir.Between(source, low, high, inclusive):
            above, below = (CmpOp.GE, CmpOp.LE) if inclusive else (CmpOp.GT, CmpOp.LT)
            first, first_exact = _lift_prefix(ir.Cmp(source, above, low), column, width)
            last, last_exact = _lift_prefix(ir.Cmp(source, below, high), column, width)
            return and_(first, last), first_exact and last_exact
        case ir.InList(_, values, negated):
            texts = [value for value in values if isinstance(value, str | bytes)]
            short = [text for text in texts if len(text) < width]
            if negated:
                lifted: IrExpr = ir.InList(column, tuple(short), negated=True) if short else not_null
            else:
                lifted = one_of(column, [text[:width] for text in texts]) if texts else FALSE
            return lifted, len(short) == len(values)
        case ir.StartsWith(_, prefix, negated):
            if len(prefix) < width:
                return ir.StartsWith(column, prefix, negated), True
            if len(prefix) == width:
                return ir.Cmp(column, CmpOp.NE if negated else CmpOp.EQ, prefix), True
            return (not_null if negated else ir.Cmp(column, CmpOp.EQ, prefix[:width])), False
    return not_null, False

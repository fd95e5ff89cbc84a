"""Lift a predicate on a source column to a predicate on a partition field.

Rule: ``lift(leaf, field)`` is TRUE for every partition that may hold a row for which the leaf is TRUE. Only this
direction is implemented. That *every* row of a partition matches follows from it: no row may make the negated leaf
TRUE, and none may be null. ``floeplan.partition.union`` derives both.

===========================  =========  ============================================================
transform                    lifts      how
===========================  =========  ============================================================
identity, truncate[1],       exactly    the same leaf on the partition column
day of a date
year, month, day, hour,      by ranges  ``floeplan.partition.step_functions``
truncate of numbers
truncate of strings, bytes   by prefix  ``floeplan.partition.step_functions``
bucket                       =, IN      hashes preserve equality only
void, unknown                cannot     the partition value says nothing
===========================  =========  ============================================================

Fail-safe: a leaf that cannot be lifted becomes TRUE, or ``IS NOT NULL`` if it is never TRUE for a null and the
transform maps only nulls to null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
)

from floeplan.partition.fields import BoundField, transform_name
from floeplan.partition.step_functions import Range, Steps, lift_prefix, merged, overlap, ranges_to_ir
from floeplan.partition.transforms import buckets
from floeplan.predicate.build import and_, negate, or_, push_not
from floeplan.predicate.ir import (
    FALSE,
    TRUE,
    And,
    Between,
    BloomEq,
    BloomInList,
    Cmp,
    CmpOp,
    InList,
    IrExpr,
    IsNaN,
    IsNull,
    Not,
    Or,
    StartsWith,
)
from floeplan.predicate.literals import Value


class Exactness(StrEnum):
    """How much a partition value determines about a leaf.

    ``EXACT``: the partition value determines the leaf for all its rows. ``CONSERVATIVE``: it does so for some
    partitions, while others hold rows of both kinds. ``CANNOT``: it tells at most whether the source is null.
    """

    EXACT = "exact"
    CONSERVATIVE = "conservative"
    CANNOT = "cannot"


_WORST_FIRST = (Exactness.CANNOT, Exactness.CONSERVATIVE, Exactness.EXACT)
_LIFTABLE = (Cmp, Between, InList, StartsWith, IsNull, IsNaN)
SHARED = "the partition may contain other values"


@dataclass(frozen=True, slots=True)
class Lifted:
    """A predicate on the partition column, how exact it is, and why it is not exact."""

    expr: IrExpr
    exactness: Exactness
    reason: str = ""


@lru_cache(maxsize=256)
def lift(expr: IrExpr, field: BoundField) -> Lifted:
    """Lift a leaf on the source column of a field, or any combination of such leaves.

    Cached, because every pruning pass of a plan and its explanation lift the same leaves.
    """
    match _plain(push_not(expr)):
        case And(operands):
            return _combined([lift(operand, field) for operand in operands], and_)
        case Or(operands):
            return _combined([lift(operand, field) for operand in operands], or_)
        case leaf:
            return _lift_leaf(leaf, field)


def _combined(parts: list[Lifted], combine: Callable[..., IrExpr]) -> Lifted:
    """Combine lifted operands; the least exact of them determines the exactness of the whole."""
    worst = min(parts, key=lambda part: _WORST_FIRST.index(part.exactness))
    return replace(worst, expr=combine(*(part.expr for part in parts)))


def _plain(leaf: IrExpr) -> IrExpr:
    """The same TRUE rows without null-safe equality and bloom filters."""
    match leaf:
        case BloomEq(column, value) | Cmp(column, CmpOp.NULL_SAFE_EQ, value):
            return Cmp(column, CmpOp.EQ, value)
        case Not(BloomEq(column, value)):
            return Cmp(column, CmpOp.NE, value)
        case Not(Cmp(column, CmpOp.NULL_SAFE_EQ, value)):
            return Or((IsNull(column), Cmp(column, CmpOp.NE, value)))
        case BloomInList(column, values):
            return InList(column, values)
        case Not(BloomInList(column, values)):
            return InList(column, values, negated=True)
    return leaf


def _lift_leaf(leaf: IrExpr, field: BoundField) -> Lifted:
    if not isinstance(leaf, _LIFTABLE):
        return Lifted(TRUE, Exactness.CANNOT, "only rows can answer it")
    if field.obstacle:
        return Lifted(TRUE, Exactness.CANNOT, field.obstacle)
    match leaf:
        case IsNaN(column, negated) if not isinstance(column.type, FloatType | DoubleType):
            return Lifted(TRUE if negated else FALSE, Exactness.EXACT)
        case IsNull() | IsNaN():
            return Lifted(replace(leaf, column=field.column), Exactness.EXACT)
        case _ if _is_identity(field):
            return Lifted(replace(leaf, column=field.column), Exactness.EXACT)
    match field.transform:
        case BucketTransform() as bucket:
            return _lift_bucket(leaf, field, bucket)
        case TruncateTransform(width=width) if isinstance(field.source_type, StringType | BinaryType):
            return _lifted(*lift_prefix(leaf, field.column, width), leaf, field)
    return _lift_ranges(leaf, field) if isinstance(leaf, Cmp | Between | InList) else _cannot(leaf, field)


def _is_identity(field: BoundField) -> bool:
    """Whether every partition value is its source value, so that any leaf lifts unchanged."""
    match field.transform:
        case IdentityTransform():
            return True
        case TruncateTransform(width=1):
            return not isinstance(field.source_type, StringType | BinaryType)
        case DayTransform():
            return all(isinstance(type_, DateType) for type_ in field.source_types)
    return False


def _lift_bucket(leaf: IrExpr, field: BoundField, transform: BucketTransform[Any]) -> Lifted:
    match leaf:
        case Cmp(_, CmpOp.EQ, value):
            values: tuple[Value, ...] = (value,)
        case InList(_, values, False):
            pass
        case _:
            return _cannot(leaf, field)
    labels = sorted(set(buckets(transform, field.source_type, values)))
    if not labels:
        return Lifted(FALSE, Exactness.EXACT)
    lifted = Cmp(field.column, CmpOp.EQ, labels[0]) if len(labels) == 1 else InList(field.column, tuple(labels))
    return Lifted(lifted, Exactness.CONSERVATIVE, SHARED)


def _lift_ranges(leaf: Cmp | Between | InList, field: BoundField) -> Lifted:
    steps, ranges = _steps(field, leaf.column.type), _ranges(leaf, field)
    if not ranges:
        return Lifted(FALSE, Exactness.EXACT)
    others = [found for part in _parts(negate(leaf)) for found in _ranges(part, field)]
    exact = not overlap(ranges, merged(others, steps.gap))
    return _lifted(ranges_to_ir(field.column, ranges, steps.everything), exact, leaf, field)


@lru_cache(maxsize=64)
def _steps(field: BoundField, compared: PrimitiveType) -> Steps:
    """The transform of a field through every integer type its source has had, or else the one that is compared."""
    types = dict.fromkeys((compared, *field.source_types))
    whole = [type_ for type_ in types if isinstance(type_, IntegerType | LongType)]
    return Steps.of(field.transform, whole or [compared])


@lru_cache(maxsize=256)
def _ranges(leaf: Cmp | Between | InList, field: BoundField) -> tuple[Range, ...]:
    """Cached: a leaf and its negation are always lifted together, and each needs the ranges of the other."""
    return tuple(_steps(field, leaf.column.type).ranges(leaf))


def _parts(expr: IrExpr) -> list[Cmp | Between | InList]:
    """The ranges of a negated range, one by one."""
    operands = expr.operands if isinstance(expr, Or) else (expr,)
    return [part for part in operands if isinstance(part, Cmp | Between | InList)]


def _lifted(lifted: IrExpr, exact: bool, leaf: IrExpr, field: BoundField) -> Lifted:
    if exact:
        return Lifted(lifted, Exactness.EXACT)
    if lifted == IsNull(field.column, negated=True):
        return _cannot(leaf, field)
    return Lifted(lifted, Exactness.CONSERVATIVE, SHARED)


def _cannot(leaf: IrExpr, field: BoundField) -> Lifted:
    """Only nulls can be excluded: the leaf is not TRUE for a null, and the transform maps only nulls to null."""
    reason = f"{leaf_kind(leaf)} over {transform_name(field.transform)}"
    return Lifted(IsNull(field.column, negated=True), Exactness.CANNOT, reason)


def leaf_kind(leaf: IrExpr) -> str:
    """The kind of a leaf for messages: ``range``, or its operator."""
    match leaf:
        case Cmp(op=CmpOp.LT | CmpOp.LE | CmpOp.GT | CmpOp.GE) | Between():
            return "range"
        case Cmp(op=op):
            return str(op)
        case InList(negated=negated):
            return "NOT IN" if negated else "IN"
        case StartsWith(negated=negated):
            return "NOT LIKE" if negated else "LIKE"
    return str(leaf)

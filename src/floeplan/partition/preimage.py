"""Conditions on a partition transform, such as ``day(ts) >= 19000``, as conditions on the source column.

Engines push down such terms (``system.days(ts)`` in Spark). Order-preserving transforms have an exact equivalent: with
``first(v)`` the least source value whose transform is at or above ``v``, ``T(x) >= v`` is ``x >= first(v)``, and every
other comparison follows from that one. Column bounds, row groups and files of all other specs are pruned by it.

=============================  ==========================================================
transform                      ``T(x) >= v`` on the source
=============================  ==========================================================
year, month, day, hour         ``x >=`` the start of the unit ``v``
truncate[W] of numbers         ``x >=`` the next multiple of W at or above ``v``
truncate[W] of strings, bytes  ``x >= v``; above the prefix when ``v`` is longer than W
bucket[N]                      none: only partition values of the same transform answer it
=============================  ==========================================================

The result is an ``ir.Transformed``, which keeps the condition on the transform beside its equivalent.
Fail-safe: where there is no equivalent, an opaque piece stands for it, which statistics never answer.
"""

from __future__ import annotations

import numpy as np
from pyiceberg import transforms as pt
from pyiceberg import types

from floeplan.partition.transforms import Transform, to_integer
from floeplan.predicate.build import and_, negate, or_
from floeplan.predicate.casts import compare_cut, domain_of
from floeplan.predicate.ir import (
    NULL_PREDICATE,
    Cmp,
    CmpOp,
    Column,
    InList,
    IrExpr,
    IsNull,
    Opaque,
    StartsWith,
    Transformed,
)
from floeplan.predicate.literals import Value

_MICROS_PER_HOUR = 3_600_000_000
_TEXT = (types.StringType, types.BinaryType)


def transformed(column: Column, transform: Transform, leaf: Cmp | InList | StartsWith) -> IrExpr:
    """A condition on ``transform(column)``; the column of ``leaf`` has the type of the result."""
    match leaf:
        case InList(_, ()):
            return InList(column, (), leaf.negated)
        case InList(_, values, negated):
            listed = or_(*(_compared(column, transform, CmpOp.EQ, value) for value in values))
            source = negate(listed) if negated else listed
        case StartsWith(_, prefix, negated) if isinstance(transform, pt.TruncateTransform):
            # Longer than any result: no value has the prefix.
            fits = len(prefix) <= transform.width
            source = StartsWith(column, prefix, negated) if fits else InList(column, (), negated)
        case Cmp(_, op, value):
            source = _compared(column, transform, op, value)
        case _:
            source = _unknown(column, str(leaf))
    return Transformed(column, str(transform), leaf, source)


def _compared(column: Column, transform: Transform, op: CmpOp, value: Value) -> IrExpr:
    match op:
        case CmpOp.GE | CmpOp.GT:
            return _above(column, transform, value, strictly=op is CmpOp.GT)
        case CmpOp.LT | CmpOp.LE:
            return negate(_above(column, transform, value, strictly=op is CmpOp.LE))
        case CmpOp.NE:
            return negate(_compared(column, transform, CmpOp.EQ, value))
    if isinstance(transform, pt.BucketTransform):
        return _unknown(column, f"{transform}({column}) = {value!r}")
    if isinstance(transform, pt.TruncateTransform) and isinstance(column.type, _TEXT):
        return _equal_prefix(column, transform.width, value)
    return and_(
        _above(column, transform, value, strictly=False), negate(_above(column, transform, value, strictly=True))
    )


def _above(column: Column, transform: Transform, value: Value, *, strictly: bool) -> IrExpr:
    """``T(x) >= value``, or ``T(x) > value``."""
    if isinstance(transform, pt.BucketTransform):
        return _unknown(column, f"{transform}({column}) {'>' if strictly else '>='} {value!r}")
    if isinstance(transform, pt.TruncateTransform) and isinstance(value, str | bytes):
        prefix = value[: transform.width]
        if len(value) < transform.width or (len(value) == transform.width and not strictly):
            return Cmp(column, CmpOp.GT if strictly else CmpOp.GE, value)
        return and_(Cmp(column, CmpOp.GT, prefix), negate(_has_prefix(column, prefix)))
    first = _first(transform, column.type, to_integer(value) + strictly)
    return compare_cut(column, CmpOp.GE, domain_of(column.type).cut(first, first))


def _first(transform: Transform, source: types.PrimitiveType, label: int) -> int:
    """The least source integer whose label is at or above this one."""
    if isinstance(transform, pt.TruncateTransform):
        return -(-label // transform.width) * transform.width
    nanos = isinstance(source, types.TimestampNanoType | types.TimestamptzNanoType)
    per_hour = _MICROS_PER_HOUR * (1000 if nanos else 1)
    if isinstance(transform, pt.HourTransform):
        return label * per_hour
    unit = {pt.YearTransform: "Y", pt.MonthTransform: "M"}.get(type(transform))
    days = label if unit is None else _calendar_days(label, unit)
    return days if isinstance(source, types.DateType) else days * 24 * per_hour


def _calendar_days(label: int, unit: str) -> int:
    """The first day of a year or month, counted from 1970; the calendar repeats every 400 years."""
    months = label * 12 if unit == "Y" else label
    cycles, within = divmod(months, 4800)
    return cycles * 146_097 + int(np.datetime64(within, "M").astype("datetime64[D]").astype(np.int64))


def _equal_prefix(column: Column, width: int, value: Value) -> IrExpr:
    assert isinstance(value, str | bytes)
    if len(value) > width:
        return InList(column, ())
    return Cmp(column, CmpOp.EQ, value) if len(value) < width else _has_prefix(column, value)


def _has_prefix(column: Column, prefix: str | bytes) -> IrExpr:
    if isinstance(prefix, str):
        return StartsWith(column, prefix)
    shorter = prefix.rstrip(b"\xff")
    at_least = Cmp(column, CmpOp.GE, prefix)
    # Bytes with the prefix end before the next prefix of the same length; after FF FF … there is none.
    return at_least if not shorter else and_(at_least, Cmp(column, CmpOp.LT, shorter[:-1] + bytes([shorter[-1] + 1])))


def _unknown(column: Column, text: str) -> IrExpr:
    """TRUE or FALSE for a value, cannot be determined which; NULL for a null."""
    is_null = IsNull(column)
    return or_(
        and_(IsNull(column, negated=True), Opaque(text, (column.field_id,), None)), and_(is_null, NULL_PREDICATE)
    )

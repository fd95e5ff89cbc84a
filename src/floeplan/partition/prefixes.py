"""Lifting predicates through truncation of strings (by code points) and of bytes.

The rule: a partition value shorter than the width *is* the source value; one of full width is the prefix that all its
source values share. So with ``n`` the length of the literal and ``W`` the width:

=================  ==================  ======================================
leaf               exact when          otherwise
=================  ==================  ======================================
``= x``, ``<= x``  n < W               the same on the first W of x
``> x``            n < W               ``>= `` the first W of x
``< x``            n <= W              ``<= `` the first W of x
``>= x``           n <= W              the same on the first W of x
``!= x``           n < W               nothing can be excluded
``LIKE 'x%'``      n <= W              the same on the first W of x
``NOT LIKE``       n <= W              nothing can be excluded
=================  ==================  ======================================

Lengths are code points, as in the truncation itself: counting UTF-16 units or bytes instead loses rows.
"""

from __future__ import annotations

from floeplan.predicate.build import and_
from floeplan.predicate.ir import FALSE, Between, Cmp, CmpOp, Column, InList, IrExpr, IsNull, StartsWith
from floeplan.predicate.literals import Value

_ROUNDED = {CmpOp.LT: CmpOp.LE, CmpOp.GT: CmpOp.GE}
_EXACT_AT_FULL_WIDTH = (CmpOp.LT, CmpOp.GE)


def lift_prefix(leaf: IrExpr, column: Column, width: int) -> tuple[IrExpr, bool]:
    """The leaf on the truncated column, and whether it is exact; ``IS NOT NULL`` where nothing can be excluded."""
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

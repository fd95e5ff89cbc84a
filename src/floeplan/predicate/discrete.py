"""Comparisons of a column of a discrete type with a literal that may fall between two of its values.

Integers, decimals, dates, times, timestamps, fixed and UUID are discrete: their values are the integers of a range,
times a unit (unscaled decimals, days, microseconds, bytes read as a number). A literal is located among them by a
*cut*, the greatest value not above it and the least value not below it, and every comparison is rewritten to those two
values:

=========  ===========================  ==========================================
operator   literal is a column value    literal falls between two column values
=========  ===========================  ==========================================
``=``      equal (or the range          ``IN ()``: FALSE for values, NULL for nulls
           between the two)
``<``      ``< ceil``                   ``<= floor``
``<=``     ``<= floor``                 ``<= floor``
``>``      ``> floor``                  ``> floor``
``>=``     ``>= ceil``                  ``> floor``
=========  ===========================  ==========================================

A cut outside the type's range answers the comparison for every value. Where Spark compares as double, several column
values may round to the literal: then ``ceil`` is below ``floor``, and ``=`` matches the range between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.decimal import unscaled_to_decimal

from floeplan.predicate.build import and_, negate
from floeplan.predicate.ir import FALSE, Between, Cmp, CmpOp, Column, InList, IrExpr, IsNull
from floeplan.predicate.literals import Value

NANOS_PER_DAY = 86_400 * 10**9
TEMPORAL_UNIT: dict[type[PrimitiveType], int] = {
    DateType: NANOS_PER_DAY,
    TimestampType: 1000,
    TimestamptzType: 1000,
    TimestampNanoType: 1,
    TimestamptzNanoType: 1,
    TimeType: 1000,
}
"""Nanoseconds per unit of a temporal type."""

_INT32, _INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a literal falls: ``floor`` is the greatest value not above it, ``ceil`` the least value not below it."""

    floor: int
    ceil: int


@dataclass(frozen=True, slots=True)
class Domain:
    """The values of a discrete type as the integers ``low`` … ``high``, each worth ``unit``."""

    low: int
    high: int
    unit: Fraction
    value: Callable[[int], Value]

    def cut(self, floor: int, ceil: int) -> Cut:
        """A cut, clipped to just outside the range."""
        return Cut(max(min(floor, self.high), self.low - 1), min(max(ceil, self.low), self.high + 1))

    def exact_cut(self, value: int | float | Decimal) -> Cut:
        """Locate a number exactly; for temporal types a number of nanoseconds."""
        numerator, denominator = value.as_integer_ratio()
        numerator, denominator = numerator * self.unit.denominator, denominator * self.unit.numerator
        return self.cut(numerator // denominator, -(-numerator // denominator))

    def double_cut(self, value: float) -> Cut:
        """Locate a double among values that Spark rounds to double before it compares them.

        Both ends are found by bisection of the rounding itself, so the result is Spark's even above 2^53.
        """
        if math.isnan(value):
            return Cut(self.high, self.high + 1)  # NaN is above every value

        def rounded(number: int) -> float:
            return to_double(number) if self.unit == 1 else float(number * self.unit)

        ceil = self._first(lambda number: rounded(number) >= value)
        return Cut(self._first(lambda number: rounded(number) > value) - 1, ceil)

    def _first(self, holds: Callable[[int], bool]) -> int:
        """The least value for which a monotone condition holds; one past the end if there is none."""
        low, high = self.low, self.high + 1
        while low < high:
            middle = (low + high) // 2
            if holds(middle):
                high = middle
            else:
                low = middle + 1
        return low


@lru_cache(maxsize=256)
def domain_of(type_: PrimitiveType) -> Domain:
    """The integers behind a discrete type."""
    match type_:
        case BooleanType():
            return Domain(0, 1, Fraction(1), bool)
        case IntegerType():
            return Domain(*_INT32, Fraction(1), int)
        case DateType():
            return Domain(*_INT32, Fraction(NANOS_PER_DAY), int)
        case TimeType():
            return Domain(0, 86_400 * 10**6 - 1, Fraction(1000), int)
        case DecimalType():
            limit = 10**type_.precision - 1
            return Domain(-limit, limit, Fraction(1, 10**type_.scale), lambda n: unscaled_to_decimal(n, type_.scale))
        case FixedType() | UUIDType():
            size = 16 if isinstance(type_, UUIDType) else len(type_)
            return Domain(0, 256**size - 1, Fraction(1), lambda n: n.to_bytes(size, "big"))
    return Domain(*_INT64, Fraction(TEMPORAL_UNIT.get(type(type_), 1)), int)


def compare_cut(column: Column, op: CmpOp, cut: Cut) -> IrExpr:
    """``column op literal`` for a literal at a cut."""
    if op not in (CmpOp.EQ, CmpOp.NE, CmpOp.NULL_SAFE_EQ):
        return _compare_order(column, op, cut)
    value = domain_of(column.type).value
    if cut.ceil == cut.floor:
        return Cmp(column, op, value(cut.ceil))
    if op is CmpOp.NULL_SAFE_EQ:
        is_value = IsNull(column, negated=True)
        return FALSE if cut.ceil > cut.floor else and_(is_value, compare_cut(column, CmpOp.EQ, cut))
    if cut.ceil > cut.floor:
        return InList(column, (), negated=op is CmpOp.NE)
    between = Between(column, value(cut.ceil), value(cut.floor))
    return negate(between) if op is CmpOp.NE else between


def _compare_order(column: Column, op: CmpOp, cut: Cut) -> IrExpr:
    domain = domain_of(column.type)
    between_values = cut.ceil > cut.floor
    bound = cut.ceil if op in (CmpOp.LT, CmpOp.GE) and not between_values else cut.floor
    if between_values:
        op = CmpOp.LE if op in (CmpOp.LT, CmpOp.LE) else CmpOp.GT
    # The greatest value on the lower side of the comparison: if all values or none are there, it is decided.
    below = bound if op in (CmpOp.LE, CmpOp.GT) else bound - 1
    if below in (domain.high, domain.low - 1):
        all_below = below == domain.high
        return InList(column, (), negated=all_below == (op in (CmpOp.LT, CmpOp.LE)))
    return Cmp(column, op, domain.value(bound))


def to_double(value: int | float | Decimal) -> float:
    """The nearest double, infinite beyond the greatest."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf

"""Compare a column with a literal of another type exactly as Spark does in ANSI mode, without casting the column.

The literal is coerced to the column's type: to a value, or to a cut between two values. Decimals are compared exactly,
also where both operands together need more than the 38 digits to which Spark would round them.

Integers, decimals, dates, times, timestamps, fixed and UUID are discrete: their values are the integers of a range,
times a unit (unscaled decimals, days, microseconds, bytes read as a number). A literal is located among them by a
*cut*, the greatest value not above it and the least value not below it, and every comparison is rewritten to those two:

========  ============================  ===========================================
operator  literal is a column value     literal falls between two column values
========  ============================  ===========================================
``=``     equal (or the range between)  ``IN ()``: FALSE for values, NULL for nulls
``<``     ``< ceil``                    ``<= floor``
``<=``    ``<= floor``                  ``<= floor``
``>``     ``> floor``                   ``> floor``
``>=``    ``>= ceil``                   ``> floor``
========  ============================  ===========================================

A cut outside the type's range answers the comparison for every value. Where Spark compares as double, several column
values may round to the literal: then ``ceil`` is below ``floor``, and ``=`` matches the range between them.

Fail-safe: a comparison for which Spark casts the column in a way that does not preserve order raises ``NeedsRows`` (it
is then evaluated on rows); one that Spark rejects raises ``TypeMismatchError`` or ``BadInputError``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from pyiceberg import types
from pyiceberg.utils.decimal import unscaled_to_decimal

from floeplan.errors import BadInputError, TypeMismatchError
from floeplan.predicate import spark_text
from floeplan.predicate.build import and_, negate, one_of, or_
from floeplan.predicate.ir import FALSE, NULL_PREDICATE, Between, Cmp, CmpOp, Column, InList, IrExpr, IsNull
from floeplan.predicate.literals import Kind, Literal, Value

NANOS_PER_DAY = 86_400 * 10**9
TEMPORAL_UNIT: dict[type[types.PrimitiveType], int] = {
    types.DateType: NANOS_PER_DAY,
    types.TimestampType: 1000,
    types.TimestamptzType: 1000,
    types.TimestampNanoType: 1,
    types.TimestamptzNanoType: 1,
    types.TimeType: 1000,
}
"""Nanoseconds per unit of a temporal type."""

_NUMBERS = (Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE)
_INT32, _INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)


class Cut(NamedTuple):
    """Where a literal falls: ``floor`` is the greatest value not above it, ``ceil`` the least value not below it."""

    floor: int
    ceil: int


class Domain(NamedTuple):
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
def domain_of(type_: types.PrimitiveType) -> Domain:
    """The integers behind a discrete type."""
    match type_:
        case types.BooleanType():
            return Domain(0, 1, Fraction(1), bool)
        case types.IntegerType():
            return Domain(*_INT32, Fraction(1), int)
        case types.DateType():
            return Domain(*_INT32, Fraction(NANOS_PER_DAY), int)
        case types.TimeType():
            return Domain(0, 86_400 * 10**6 - 1, Fraction(1000), int)
        case types.DecimalType():
            limit = 10**type_.precision - 1
            return Domain(-limit, limit, Fraction(1, 10**type_.scale), lambda n: unscaled_to_decimal(n, type_.scale))
        case types.FixedType() | types.UUIDType():
            size = 16 if isinstance(type_, types.UUIDType) else len(type_)
            return Domain(0, 256**size - 1, Fraction(1), lambda n: n.to_bytes(size, "big"))
    return Domain(*_INT64, Fraction(TEMPORAL_UNIT.get(type(type_), 1)), int)


def compare_cut(column: Column, op: CmpOp, cut: Cut) -> IrExpr:
    """``column op literal`` for a literal at a cut."""
    domain = domain_of(column.type)
    between_values = cut.ceil > cut.floor
    if op in (CmpOp.EQ, CmpOp.NE, CmpOp.NULL_SAFE_EQ):
        if cut.ceil == cut.floor:
            return Cmp(column, op, domain.value(cut.ceil))
        if op is CmpOp.NULL_SAFE_EQ:
            is_value = IsNull(column, negated=True)
            return FALSE if between_values else and_(is_value, compare_cut(column, CmpOp.EQ, cut))
        if between_values:
            return InList(column, (), negated=op is CmpOp.NE)
        between = Between(column, domain.value(cut.ceil), domain.value(cut.floor))
        return negate(between) if op is CmpOp.NE else between
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


class NeedsRows(Exception):  # noqa: N818 - control flow inside the compiler, not an error of the caller
    """No IR leaf is equivalent: the piece stays opaque. The message says why."""


class Term(NamedTuple):
    """A column compared as ``type``: its own type, or that of an order-preserving widening cast around it."""

    column: Column
    type: types.PrimitiveType


def compare(term: Term, op: CmpOp, literal: Literal) -> IrExpr:
    """``column op literal`` with Spark's coercions."""
    if literal.kind is Kind.NULL:
        return IsNull(term.column) if op is CmpOp.NULL_SAFE_EQ else NULL_PREDICATE
    coerced = _coerce(term, literal, as_double=_compares_as_double(term, literal))
    if isinstance(coerced, Cut):
        return compare_cut(term.column, op, coerced)
    return Cmp(term.column, op, coerced)


def in_list(term: Term, literals: Iterable[Literal]) -> IrExpr:
    """``column IN (literals)``: all are compared in their common type, and a NULL turns FALSE into NULL."""
    listed = list(literals)
    present = [literal for literal in listed if literal.kind is not Kind.NULL]
    kinds = {literal.kind for literal in present}
    if isinstance(term.type, types.IntegerType | types.LongType) and {Kind.STRING, Kind.DECIMAL} <= kinds:
        raise NeedsRows(f"text and decimals together in a list for the {term.type} column {term.column}")
    if isinstance(term.type, types.DateType | types.TimestampType) and Kind.TIMESTAMP in kinds:
        # One timestamp in the list makes a date column, and text, timestamps too.
        zoned = any(literal.zoned for literal in present)
        term = Term(term.column, types.TimestamptzType() if zoned else types.TimestampType())
    if kinds == {Kind.INTEGER} and _holds_integers(term):
        found = in_integers(term, [literal.value for literal in present if isinstance(literal.value, int)])
    else:
        values: list[Value] = []
        ranges: list[IrExpr] = []
        as_double = any(_compares_as_double(term, literal) for literal in present)
        for literal in present:
            coerced = _coerce(term, literal, as_double=as_double)
            if not isinstance(coerced, Cut):
                values.append(coerced)
            elif coerced.floor == coerced.ceil:
                values.append(domain_of(term.column.type).value(coerced.ceil))
            elif coerced.ceil < coerced.floor:
                ranges.append(compare_cut(term.column, CmpOp.EQ, coerced))
        found = or_(one_of(term.column, values), *ranges) if values or not ranges else or_(*ranges)
    return found if len(present) == len(listed) else or_(found, NULL_PREDICATE)


def in_integers(term: Term, numbers: list[int]) -> IrExpr:
    """``column IN (numbers)``; lists hold thousands, and on integer columns only the range of the type matters."""
    if not _holds_integers(term):
        return in_list(term, [Literal(Kind.INTEGER, number) for number in numbers])
    domain = domain_of(term.column.type)
    return one_of(term.column, [number for number in numbers if domain.low <= number <= domain.high])


def _holds_integers(term: Term) -> bool:
    integers = types.IntegerType | types.LongType
    return isinstance(term.column.type, integers) and isinstance(term.type, integers)


def widened(column: Column, target: types.PrimitiveType) -> Term:
    """The column under ``CAST(column AS target)``, if that cast keeps every value and its order."""
    source, timestamps = column.type, (types.TimestampType, types.TimestamptzType)
    match source, target:
        case (types.IntegerType(), types.LongType()) | (types.FloatType(), types.DoubleType()):
            keeps_order = True
        case types.IntegerType() | types.LongType() | types.DecimalType(), types.DoubleType():
            keeps_order = True
        case types.IntegerType() | types.LongType(), types.DecimalType():
            keeps_order = target.precision - target.scale >= (10 if isinstance(source, types.IntegerType) else 19)
        case types.DecimalType(), types.DecimalType():
            more_digits = target.precision - target.scale >= source.precision - source.scale
            keeps_order = more_digits and target.scale >= source.scale
        case _ if isinstance(target, timestamps) and isinstance(source, (types.DateType, *timestamps)):
            keeps_order = True
        case _:
            keeps_order = source == target
    if not keeps_order:
        raise NeedsRows(f"CAST({column} AS {target}) does not keep every {column.type} and its order")
    return Term(column, target)


def _compares_as_double(term: Term, literal: Literal) -> bool:
    """Whether Spark compares as double although the column holds exact numbers."""
    if isinstance(term.column.type, types.FloatType | types.DoubleType):
        return False
    return (
        literal.kind is Kind.DOUBLE
        or (isinstance(term.type, types.DoubleType) and literal.kind in (*_NUMBERS, Kind.STRING))
        or (isinstance(term.type, types.DecimalType) and literal.kind is Kind.STRING)
    )


def _coerce(term: Term, literal: Literal, *, as_double: bool) -> Cut | Value:
    """The literal as a value of the column's type, or as a cut for discrete types."""
    try:
        match term.type:
            case types.IntegerType() | types.LongType() | types.DecimalType() | types.FloatType() | types.DoubleType():
                return _number(term, literal, as_double=as_double)
            case types.StringType() if literal.kind is Kind.STRING:
                return str(literal.value)
            case types.StringType():
                reason = f"the literal is not ({literal.kind}), so Spark casts the column"
                raise NeedsRows(f"column {term.column} is a string and {reason}")
            case types.BinaryType() | types.FixedType() | types.UUIDType():
                return _bytes(term, literal)
            case types.BooleanType() if literal.kind in (Kind.BOOLEAN, Kind.STRING):
                is_text = literal.kind is Kind.STRING
                flag = int(spark_text.parse_boolean(str(literal.value)) if is_text else bool(literal.value))
                return Cut(flag, flag)
            case types.BooleanType() | types.UnknownType():
                raise _mismatch(term, literal)
        return _instant(term, literal)
    except TypeMismatchError:
        raise
    except BadInputError as error:
        # Malformed text: name the column whose type it does not fit.
        raise TypeMismatchError(
            f"column {term.column} is {term.type}, and {error.message}",
            context={"column": str(term.column), "type": str(term.type), "literal": str(literal)},
        ) from error


def _bytes(term: Term, literal: Literal) -> Cut | bytes:
    if isinstance(term.type, types.UUIDType) and literal.kind is Kind.STRING:
        raw = spark_text.parse_uuid(str(literal.value))
    elif literal.kind is Kind.STRING:
        raw = str(literal.value).encode()
    elif literal.kind is Kind.BINARY:
        raw = bytes(literal.value)  # type: ignore[arg-type]
    else:
        raise _mismatch(term, literal)
    if isinstance(term.type, types.BinaryType):
        return raw
    # Fixed and UUID: a shorter or longer literal falls between two values of the type.
    domain = domain_of(term.type)
    size = (domain.high.bit_length() + 7) // 8
    number = int.from_bytes(raw[:size].ljust(size, b"\0"), "big")
    return domain.cut(number if len(raw) >= size else number - 1, number if len(raw) <= size else number + 1)


def _number(term: Term, literal: Literal, *, as_double: bool) -> Cut | float:
    continuous = isinstance(term.column.type, types.FloatType | types.DoubleType)
    value = literal.value
    if literal.kind is Kind.STRING:
        text = str(value)
        value = spark_text.parse_double(text) if continuous or as_double else spark_text.parse_integer(text, 64)
    elif literal.kind not in _NUMBERS:
        raise _mismatch(term, literal)
    assert isinstance(value, int | float | Decimal)
    if continuous:
        return to_double(value) + 0.0  # -0.0 becomes 0.0
    domain = domain_of(term.column.type)
    return domain.double_cut(to_double(value)) if as_double else domain.exact_cut(value)


def _instant(term: Term, literal: Literal) -> Cut:
    """Dates, times and timestamps compare as nanoseconds; text and literals without a zone are in UTC."""
    type_ = term.type
    if literal.kind is Kind.STRING:
        text = str(literal.value)
        if isinstance(type_, types.DateType):
            literal = Literal(Kind.DATE, spark_text.parse_date(text))
        elif isinstance(type_, types.TimeType):
            literal = Literal(Kind.TIME, spark_text.parse_time(text))
        else:
            zoned = isinstance(type_, types.TimestamptzType | types.TimestamptzNanoType)
            literal = Literal(Kind.TIMESTAMP, spark_text.parse_timestamp(text, zoned=zoned), from_text=True)
    comparable = {Kind.TIME} if isinstance(type_, types.TimeType) else {Kind.DATE, Kind.TIMESTAMP}
    if literal.kind not in comparable:
        raise _mismatch(term, literal)
    assert isinstance(literal.value, int)
    nanos = literal.value * NANOS_PER_DAY if literal.kind is Kind.DATE else literal.value
    if literal.from_text and not isinstance(term.column.type, types.TimestampNanoType | types.TimestamptzNanoType):
        nanos -= nanos % 1000  # Spark's timestamps have microseconds
    return domain_of(term.column.type).exact_cut(nanos)


def _mismatch(term: Term, literal: Literal) -> TypeMismatchError:
    return TypeMismatchError(
        f"column {term.column} is {term.type} and cannot be compared with the {literal.kind} {literal}",
        context={"column": str(term.column), "type": str(term.type), "literal": str(literal)},
    )

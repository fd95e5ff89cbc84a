"""Comparing a column with a literal of another type, exactly as Spark (ANSI) would, without casting the column.

Rule: a column of a discrete type holds integers of some unit (unscaled decimals, days, microseconds, bytes read as a
number). The literal is placed among them as a *cut* — the greatest column value not above it and the least not below
it — and every comparison is rewritten against those two values:

=========  ===========================  ==========================================
operator   literal is a column value    literal falls between two column values
=========  ===========================  ==========================================
``=``      equal (or the range          ``IN ()``: false for values, NULL for nulls
           between the two)
``<``      ``< ceil``                   ``<= floor``
``<=``     ``<= floor``                 ``<= floor``
``>``      ``> floor``                  ``> floor``
``>=``     ``>= ceil``                  ``> floor``
=========  ===========================  ==========================================

A cut outside the type's range answers the comparison for every value. Where Spark compares as double (a double
literal, or text against a decimal) several column values may round to the literal; the two ends of that range are
found by bisection of the rounding itself, so the answer is Spark's even above 2^53. Decimals are compared exactly, also
where the two together need more than the 38 digits to which Spark would round them.

Fail-safe: what would make Spark cast the column in a way that does not preserve order raises ``NeedsRows`` (only rows
can be asked); what Spark would reject raises ``TypeMismatchError`` or ``BadInputError``. Nothing is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.errors import BadInputError, TypeMismatchError
from floeplan.predicate import spark_text
from floeplan.predicate.build import and_, negate, or_
from floeplan.predicate.ir import FALSE, NULL_PREDICATE, Between, Cmp, CmpOp, Column, InList, IrExpr, IsNull
from floeplan.predicate.literals import Kind, Literal, Value

_NANOS_PER_DAY = 86_400 * 10**9
TEMPORAL_UNIT: dict[type[PrimitiveType], int] = {
    DateType: _NANOS_PER_DAY,
    TimestampType: 1000,
    TimestamptzType: 1000,
    TimestampNanoType: 1,
    TimestamptzNanoType: 1,
    TimeType: 1000,
}
_NUMBERS = (Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE)
_INT32, _INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)


class NeedsRows(Exception):  # noqa: N818 - control flow inside the compiler, not an error of the caller
    """No IR leaf is equivalent: the piece stays opaque. The message says why."""


@dataclass(frozen=True, slots=True)
class Term:
    """A column seen as ``type``: its own type, or that of an order-preserving widening cast around it."""

    column: Column
    type: PrimitiveType


@dataclass(frozen=True, slots=True)
class Domain:
    """The values of a discrete type as the integers ``low`` … ``high``, each worth ``unit``."""

    low: int
    high: int
    unit: Fraction
    value: Callable[[int], Value]

    def cut(self, floor: int, ceil: int) -> Cut:
        """A cut, moved to just outside the range when it lies beyond it."""
        return Cut(max(min(floor, self.high), self.low - 1), min(max(ceil, self.low), self.high + 1))


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a literal falls: ``floor`` is the greatest value not above it, ``ceil`` the least not below it."""

    floor: int
    ceil: int


def compare(term: Term, op: CmpOp, literal: Literal) -> IrExpr:
    """``column op literal`` with Spark's coercions."""
    if literal.kind is Kind.NULL:
        return IsNull(term.column) if op is CmpOp.NULL_SAFE_EQ else NULL_PREDICATE
    place = _place(term, literal, as_double=_in_double(term, literal))
    if not isinstance(place, Cut):
        return Cmp(term.column, op, place)
    if op in (CmpOp.EQ, CmpOp.NE, CmpOp.NULL_SAFE_EQ):
        return _equality(term.column, op, place)
    return _order(term.column, op, place)


def in_list(term: Term, literals: Iterable[Literal]) -> IrExpr:
    """``column IN (literals)``: all of them compared in the one type they have in common, and NULL makes FALSE NULL."""
    listed = list(literals)
    present = [literal for literal in listed if literal.kind is not Kind.NULL]
    term = _common_view(term, present)
    as_double = any(_in_double(term, literal) for literal in present)
    whole = _whole_numbers(term, present)
    places = [] if whole else [_place(term, literal, as_double=as_double) for literal in present]
    values: list[Value] = [*whole]
    ranges: list[IrExpr] = []
    for place in places:
        if not isinstance(place, Cut):
            values.append(place)
        elif place.floor == place.ceil:
            values.append(domain_of(term.column.type).value(place.ceil))
        elif place.ceil < place.floor:
            ranges.append(_equality(term.column, CmpOp.EQ, place))
    unique = tuple(dict.fromkeys(values))
    plain = Cmp(term.column, CmpOp.EQ, unique[0]) if len(unique) == 1 else InList(term.column, unique)
    found = or_(plain, *ranges) if unique or not ranges else or_(*ranges)
    return found if len(present) == len(listed) else or_(found, NULL_PREDICATE)


def _whole_numbers(term: Term, literals: list[Literal]) -> list[int]:
    """What can be a value of the column, if that and all literals are whole numbers: lists have thousands of them."""
    if not isinstance(term.column.type, IntegerType | LongType) or not isinstance(term.type, IntegerType | LongType):
        return []
    if any(literal.kind is not Kind.INTEGER for literal in literals):
        return []
    domain = domain_of(term.column.type)
    return [n for literal in literals if isinstance(n := literal.value, int) and domain.low <= n <= domain.high]


def _common_view(term: Term, literals: list[Literal]) -> Term:
    """The column as IN sees it: one timestamp in the list makes a date, and the text beside it, timestamps too."""
    kinds = {literal.kind for literal in literals}
    if isinstance(term.type, IntegerType | LongType) and {Kind.STRING, Kind.DECIMAL} <= kinds:
        raise NeedsRows(f"text and decimals together in a list for the {term.type} column {term.column}")
    if not isinstance(term.type, DateType | TimestampType) or Kind.TIMESTAMP not in kinds:
        return term
    zoned = any(literal.zoned for literal in literals)
    return Term(term.column, TimestamptzType() if zoned else TimestampType())


def _equality(column: Column, op: CmpOp, cut: Cut) -> IrExpr:
    domain = domain_of(column.type)
    if op is CmpOp.NULL_SAFE_EQ:
        if cut.ceil > cut.floor:
            return FALSE
        if cut.ceil == cut.floor:
            return Cmp(column, op, domain.value(cut.ceil))
        return and_(IsNull(column, negated=True), _equality(column, CmpOp.EQ, cut))
    negated = op is CmpOp.NE
    if cut.ceil > cut.floor:
        return InList(column, (), negated)
    if cut.ceil == cut.floor:
        return Cmp(column, op, domain.value(cut.ceil))
    between = Between(column, domain.value(cut.ceil), domain.value(cut.floor))
    return negate(between) if negated else between


def _order(column: Column, op: CmpOp, cut: Cut) -> IrExpr:
    domain = domain_of(column.type)
    between_values = cut.ceil > cut.floor
    bound = cut.ceil if op in (CmpOp.LT, CmpOp.GE) and not between_values else cut.floor
    if between_values:
        op = CmpOp.LE if op in (CmpOp.LT, CmpOp.LE) else CmpOp.GT
    below = bound if op in (CmpOp.LE, CmpOp.GT) else bound - 1
    if below == domain.high or below == domain.low - 1:
        everything_below = below == domain.high
        return InList(column, (), negated=everything_below == (op in (CmpOp.LT, CmpOp.LE)))
    return Cmp(column, op, domain.value(bound))


@lru_cache(maxsize=256)
def domain_of(type_: PrimitiveType) -> Domain:
    """The integers behind a discrete type."""
    match type_:
        case BooleanType():
            return Domain(0, 1, Fraction(1), bool)
        case IntegerType():
            return Domain(*_INT32, Fraction(1), int)
        case DateType():
            return Domain(*_INT32, Fraction(_NANOS_PER_DAY), int)
        case TimeType():
            return Domain(0, 86_400 * 10**6 - 1, Fraction(1000), int)
        case DecimalType():
            limit = 10**type_.precision - 1
            return Domain(-limit, limit, Fraction(1, 10**type_.scale), lambda n: _decimal(n, type_.scale))
        case FixedType() | UUIDType():
            size = 16 if isinstance(type_, UUIDType) else len(type_)
            return Domain(0, 256**size - 1, Fraction(1), lambda n: n.to_bytes(size, "big"))
    return Domain(*_INT64, Fraction(TEMPORAL_UNIT.get(type(type_), 1)), int)


def _decimal(unscaled: int, scale: int) -> Decimal:
    """Exact at any precision, unlike ``scaleb``, which rounds to the current context."""
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def _in_double(term: Term, literal: Literal) -> bool:
    """Whether Spark compares as double although the column holds exact numbers."""
    if isinstance(term.column.type, FloatType | DoubleType):
        return False
    return (
        literal.kind is Kind.DOUBLE
        or (isinstance(term.type, DoubleType) and literal.kind in (*_NUMBERS, Kind.STRING))
        or (isinstance(term.type, DecimalType) and literal.kind is Kind.STRING)
    )


def _place(term: Term, literal: Literal, *, as_double: bool) -> Cut | Value:
    """Place the literal among the column's values; text that cannot be one of them is the column's mismatch."""
    try:
        return _placed(term, literal, as_double=as_double)
    except TypeMismatchError:
        raise
    except BadInputError as error:
        raise TypeMismatchError(
            f"column {term.column} is {term.type}, and {error.message}",
            context={"column": str(term.column), "type": str(term.type), "literal": str(literal)},
        ) from error


def _placed(term: Term, literal: Literal, *, as_double: bool) -> Cut | Value:
    """The place of a literal; a value itself for types that are not discrete."""
    match term.type:
        case StringType():
            return _text(term, literal)
        case BinaryType() | FixedType() | UUIDType():
            return _bytes(term, literal)
        case BooleanType():
            return _boolean(term, literal)
        case IntegerType() | LongType() | DecimalType() | FloatType() | DoubleType():
            return _number(term, literal, as_double=as_double)
    return _instant(term, literal)


def _text(term: Term, literal: Literal) -> str:
    if literal.kind is Kind.STRING:
        return str(literal.value)
    raise NeedsRows(
        f"column {term.column} is a string and the literal is not ({literal.kind}), so Spark casts the column"
    )


def _bytes(term: Term, literal: Literal) -> Cut | bytes:
    if isinstance(term.type, UUIDType) and literal.kind is Kind.STRING:
        raw = spark_text.parse_uuid(str(literal.value))
    elif literal.kind is Kind.STRING:
        raw = str(literal.value).encode()
    elif literal.kind is Kind.BINARY:
        raw = bytes(literal.value)  # type: ignore[arg-type]
    else:
        raise _mismatch(term, literal)
    if isinstance(term.type, BinaryType):
        return raw
    domain = domain_of(term.type)
    size = (domain.high.bit_length() + 7) // 8
    number = int.from_bytes(raw[:size].ljust(size, b"\0"), "big")
    return domain.cut(number if len(raw) >= size else number - 1, number if len(raw) <= size else number + 1)


def _boolean(term: Term, literal: Literal) -> Cut:
    if literal.kind is Kind.BOOLEAN:
        flag = int(bool(literal.value))
    elif literal.kind is Kind.STRING:
        flag = int(spark_text.parse_boolean(str(literal.value)))
    else:
        raise _mismatch(term, literal)
    return Cut(flag, flag)


def _number(term: Term, literal: Literal, *, as_double: bool) -> Cut | float:
    continuous = isinstance(term.column.type, FloatType | DoubleType)
    value = literal.value
    if literal.kind is Kind.STRING:
        value = spark_text.parse_double(str(value)) if continuous or as_double else spark_text.parse_long(str(value))
    elif literal.kind not in _NUMBERS:
        raise _mismatch(term, literal)
    assert isinstance(value, int | float | Decimal)
    if continuous:
        return to_double(value) + 0.0
    return _cut_by_rounding(term, to_double(value)) if as_double else exact_cut(term.column.type, value)


def to_double(value: int | float | Decimal) -> float:
    """The nearest double, infinite beyond the greatest."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def exact_cut(type_: PrimitiveType, value: int | float | Decimal) -> Cut:
    """Place an exact number (for temporal types: of nanoseconds) among the values of a discrete type."""
    domain = domain_of(type_)
    numerator, denominator = value.as_integer_ratio()
    numerator, denominator = numerator * domain.unit.denominator, denominator * domain.unit.numerator
    return domain.cut(numerator // denominator, -(-numerator // denominator))


def _cut_by_rounding(term: Term, value: float) -> Cut:
    """Place a double among exact numbers that are rounded to double before they are compared."""
    domain = domain_of(term.column.type)
    if math.isnan(value):
        return Cut(domain.high, domain.high + 1)

    def rounded(number: int) -> float:
        return to_double(number) if domain.unit == 1 else float(number * domain.unit)

    ceil = _first(domain, lambda number: rounded(number) >= value)
    return Cut(_first(domain, lambda number: rounded(number) > value) - 1, ceil)


def _first(domain: Domain, holds: Callable[[int], bool]) -> int:
    """The least number of the domain from which on a monotone property holds; one past the end if it never does."""
    low, high = domain.low, domain.high + 1
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _instant(term: Term, literal: Literal) -> Cut:
    """Dates, times and timestamps compare as nanoseconds; zone-less text and literals are in UTC."""
    view = term.type
    if literal.kind is Kind.STRING:
        literal = _parse_instant(view, str(literal.value))
    comparable = {Kind.TIME} if isinstance(view, TimeType) else {Kind.DATE, Kind.TIMESTAMP}
    if literal.kind not in comparable:
        raise _mismatch(term, literal)
    assert isinstance(literal.value, int)
    nanos = literal.value * _NANOS_PER_DAY if literal.kind is Kind.DATE else literal.value
    if literal.from_text and not isinstance(term.column.type, TimestampNanoType | TimestamptzNanoType):
        nanos -= nanos % 1000
    return exact_cut(term.column.type, nanos)


def _parse_instant(view: PrimitiveType, text: str) -> Literal:
    match view:
        case DateType():
            return Literal(Kind.DATE, spark_text.parse_date(text))
        case TimeType():
            return Literal(Kind.TIME, spark_text.parse_time(text))
    zoned = isinstance(view, TimestamptzType | TimestamptzNanoType)
    return Literal(Kind.TIMESTAMP, spark_text.parse_timestamp(text, zoned=zoned), from_text=True)


def _mismatch(term: Term, literal: Literal) -> TypeMismatchError:
    return TypeMismatchError(
        f"column {term.column} is {term.type} and cannot be compared with the {literal.kind} {literal}",
        context={"column": str(term.column), "type": str(term.type), "literal": str(literal)},
    )


def widened(column: Column, target: PrimitiveType) -> Term:
    """The column under ``CAST(column AS target)``, if that cast loses nothing and keeps the order."""
    if _widens(column.type, target):
        return Term(column, target)
    raise NeedsRows(f"CAST({column} AS {target}) does not keep every {column.type} and its order")


def _widens(source: PrimitiveType, target: PrimitiveType) -> bool:
    if source == target:
        return True
    match source, target:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case IntegerType() | LongType() | DecimalType(), DoubleType():
            return True
        case IntegerType() | LongType(), DecimalType():
            return target.precision - target.scale >= (10 if isinstance(source, IntegerType) else 19)
        case DecimalType(), DecimalType():
            return target.scale >= source.scale and target.precision - target.scale >= source.precision - source.scale
        case DateType() | TimestampType() | TimestamptzType(), TimestampType() | TimestamptzType():
            return True
    return False

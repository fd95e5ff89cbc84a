"""Compare a column with a literal of another type exactly as Spark does in ANSI mode, without casting the column.

The literal is coerced to the column's type: to a value, or to a cut between two values (``discrete``). Decimals are
compared exactly, also where both operands together need more than the 38 digits to which Spark would round them.

Fail-safe: a comparison for which Spark casts the column in a way that does not preserve order raises ``NeedsRows`` (it
is then evaluated on rows); one that Spark rejects raises ``TypeMismatchError`` or ``BadInputError``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

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
from floeplan.predicate.build import or_
from floeplan.predicate.discrete import NANOS_PER_DAY, Cut, compare_cut, domain_of, to_double
from floeplan.predicate.ir import NULL_PREDICATE, Cmp, CmpOp, Column, InList, IrExpr, IsNull
from floeplan.predicate.literals import Kind, Literal, Value

_NUMBERS = (Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE)


class NeedsRows(Exception):  # noqa: N818 - control flow inside the compiler, not an error of the caller
    """No IR leaf is equivalent: the piece stays opaque. The message says why."""


@dataclass(frozen=True, slots=True)
class Term:
    """A column compared as ``type``: its own type, or that of an order-preserving widening cast around it."""

    column: Column
    type: PrimitiveType


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
    term = _common_term(term, present)
    domain, whole_types = domain_of(term.column.type), IntegerType | LongType
    values: list[Value] = []
    ranges: list[IrExpr] = []
    if isinstance(term.column.type, whole_types) and isinstance(term.type, whole_types) and _all_integers(present):
        # Lists of thousands of integers: only the range of the type matters.
        numbers = [literal.value for literal in present if isinstance(literal.value, int)]
        values = [number for number in numbers if domain.low <= number <= domain.high]
    else:
        as_double = any(_compares_as_double(term, literal) for literal in present)
        for literal in present:
            coerced = _coerce(term, literal, as_double=as_double)
            if not isinstance(coerced, Cut):
                values.append(coerced)
            elif coerced.floor == coerced.ceil:
                values.append(domain.value(coerced.ceil))
            elif coerced.ceil < coerced.floor:
                ranges.append(compare_cut(term.column, CmpOp.EQ, coerced))
    unique = tuple(dict.fromkeys(values))
    plain = Cmp(term.column, CmpOp.EQ, unique[0]) if len(unique) == 1 else InList(term.column, unique)
    found = or_(plain, *ranges) if unique or not ranges else or_(*ranges)
    return found if len(present) == len(listed) else or_(found, NULL_PREDICATE)


def widened(column: Column, target: PrimitiveType) -> Term:
    """The column under ``CAST(column AS target)``, if that cast keeps every value and its order."""
    source = column.type
    match source, target:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            keeps_order = True
        case IntegerType() | LongType() | DecimalType(), DoubleType():
            keeps_order = True
        case IntegerType() | LongType(), DecimalType():
            keeps_order = target.precision - target.scale >= (10 if isinstance(source, IntegerType) else 19)
        case DecimalType(), DecimalType():
            more_digits = target.precision - target.scale >= source.precision - source.scale
            keeps_order = more_digits and target.scale >= source.scale
        case DateType() | TimestampType() | TimestamptzType(), TimestampType() | TimestamptzType():
            keeps_order = True
        case _:
            keeps_order = source == target
    if not keeps_order:
        raise NeedsRows(f"CAST({column} AS {target}) does not keep every {column.type} and its order")
    return Term(column, target)


def _all_integers(literals: list[Literal]) -> bool:
    return all(literal.kind is Kind.INTEGER for literal in literals)


def _common_term(term: Term, literals: list[Literal]) -> Term:
    """The column as IN compares it: one timestamp in the list makes a date column, and text, timestamps too."""
    kinds = {literal.kind for literal in literals}
    if isinstance(term.type, IntegerType | LongType) and {Kind.STRING, Kind.DECIMAL} <= kinds:
        raise NeedsRows(f"text and decimals together in a list for the {term.type} column {term.column}")
    if not isinstance(term.type, DateType | TimestampType) or Kind.TIMESTAMP not in kinds:
        return term
    zoned = any(literal.zoned for literal in literals)
    return Term(term.column, TimestamptzType() if zoned else TimestampType())


def _compares_as_double(term: Term, literal: Literal) -> bool:
    """Whether Spark compares as double although the column holds exact numbers."""
    if isinstance(term.column.type, FloatType | DoubleType):
        return False
    return (
        literal.kind is Kind.DOUBLE
        or (isinstance(term.type, DoubleType) and literal.kind in (*_NUMBERS, Kind.STRING))
        or (isinstance(term.type, DecimalType) and literal.kind is Kind.STRING)
    )


def _coerce(term: Term, literal: Literal, *, as_double: bool) -> Cut | Value:
    """The literal as a value of the column's type, or as a cut for discrete types."""
    try:
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
    except TypeMismatchError:
        raise
    except BadInputError as error:
        # Malformed text: name the column whose type it does not fit.
        raise TypeMismatchError(
            f"column {term.column} is {term.type}, and {error.message}",
            context={"column": str(term.column), "type": str(term.type), "literal": str(literal)},
        ) from error


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
    # Fixed and UUID: a shorter or longer literal falls between two values of the type.
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
        if isinstance(type_, DateType):
            literal = Literal(Kind.DATE, spark_text.parse_date(text))
        elif isinstance(type_, TimeType):
            literal = Literal(Kind.TIME, spark_text.parse_time(text))
        else:
            zoned = isinstance(type_, TimestamptzType | TimestamptzNanoType)
            literal = Literal(Kind.TIMESTAMP, spark_text.parse_timestamp(text, zoned=zoned), from_text=True)
    comparable = {Kind.TIME} if isinstance(type_, TimeType) else {Kind.DATE, Kind.TIMESTAMP}
    if literal.kind not in comparable:
        raise _mismatch(term, literal)
    assert isinstance(literal.value, int)
    nanos = literal.value * NANOS_PER_DAY if literal.kind is Kind.DATE else literal.value
    if literal.from_text and not isinstance(term.column.type, TimestampNanoType | TimestamptzNanoType):
        nanos -= nanos % 1000  # Spark's timestamps have microseconds
    return domain_of(term.column.type).exact_cut(nanos)


def _mismatch(term: Term, literal: Literal) -> TypeMismatchError:
    return TypeMismatchError(
        f"column {term.column} is {term.type} and cannot be compared with the {literal.kind} {literal}",
        context={"column": str(term.column), "type": str(term.type), "literal": str(literal)},
    )

"""Predicates as Iceberg expression JSON, for scan reports and REST catalogs.

Opaque parts have no such form and are left out (``without_opaque``), so the JSON matches at least the rows that the
predicate matches.
"""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from typing import TypeAlias

from pyiceberg.types import (
    BinaryType,
    DateType,
    FixedType,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.predicate.build import negate, push_not, without_opaque
from floeplan.predicate.ir import (
    And,
    Between,
    BloomEq,
    BloomInList,
    Cmp,
    CmpOp,
    FalseExpr,
    InList,
    IrExpr,
    IsNaN,
    IsNull,
    Not,
    NullExpr,
    Or,
    StartsWith,
    TrueExpr,
)
from floeplan.predicate.literals import Value

Json: TypeAlias = "bool | str | int | float | list[Json] | dict[str, Json]"

_OPERATIONS = {
    CmpOp.EQ: "eq",
    CmpOp.NE: "not-eq",
    CmpOp.LT: "lt",
    CmpOp.LE: "lt-eq",
    CmpOp.GT: "gt",
    CmpOp.GE: "gt-eq",
    CmpOp.NULL_SAFE_EQ: "eq",
}


def expression_json(expr: IrExpr) -> Json:
    """The prunable part of a predicate as Iceberg expression JSON."""
    return _json(push_not(without_opaque(expr)))


def _json(expr: IrExpr) -> Json:
    match expr:
        case TrueExpr():
            return True
        case FalseExpr() | NullExpr():
            return False
        case And(operands) | Or(operands):
            name = "and" if isinstance(expr, And) else "or"
            return reduce(lambda left, right: {"type": name, "left": left, "right": right}, map(_json, operands))
        case Not(operand):
            return {"type": "not", "child": _json(operand)}
    return _leaf(expr)


def _leaf(leaf: IrExpr) -> Json:
    match leaf:
        case Cmp(column, op, value):
            return {"type": _OPERATIONS[op], "term": str(column), "value": value_json(column.type, value)}
        case BloomEq(column, value):
            return _leaf(Cmp(column, CmpOp.EQ, value))
        case BloomInList(column, values):
            return _leaf(InList(column, values))
        case InList(column, (), negated):
            return {"type": "not-null", "term": str(column)} if negated else False
        case InList(column, values, negated):
            listed: list[Json] = [value_json(column.type, value) for value in values]
            return {"type": "not-in" if negated else "in", "term": str(column), "values": listed}
        case StartsWith(column, prefix, negated):
            return {"type": "not-starts-with" if negated else "starts-with", "term": str(column), "value": prefix}
        case IsNull(column, negated):
            return {"type": "not-null" if negated else "is-null", "term": str(column)}
        case IsNaN(column, negated):
            return {"type": "not-nan" if negated else "is-nan", "term": str(column)}
        case Between():
            return _json(push_not(Not(negate(leaf))))
    raise AssertionError(leaf)


def value_json(type_: PrimitiveType, value: Value) -> Json:
    """A canonical value in Iceberg's JSON single-value form."""
    match type_:
        case DateType():
            return _iso_date(int(value))
        case TimestampType() | TimestamptzType():
            return _iso_timestamp(int(value), "", zoned=isinstance(type_, TimestamptzType))
        case TimestampNanoType() | TimestamptzNanoType():
            micros, nanos = divmod(int(value), 1000)
            return _iso_timestamp(micros, f"{nanos:03d}", zoned=isinstance(type_, TimestamptzNanoType))
        case TimeType():
            return (datetime(1970, 1, 1) + timedelta(microseconds=int(value))).time().isoformat()
        case UUIDType() if isinstance(value, bytes):
            return str(uuid.UUID(bytes=value))
        case BinaryType() | FixedType() if isinstance(value, bytes):
            return value.hex().upper()
    if isinstance(value, float) and not abs(value) < float("inf"):
        return {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(value, "NaN")
    return str(value) if isinstance(value, Decimal | bytes) else value


def _iso_date(days: int) -> Json:
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError:
        return days


def _iso_timestamp(micros: int, nanos: str, *, zoned: bool) -> Json:
    try:
        timestamp = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    except OverflowError:
        return int(f"{micros}{nanos}")
    text = timestamp.replace(tzinfo=None).isoformat(timespec="microseconds") + nanos
    return text + "+00:00" if zoned else text

"""Predicates as Iceberg expression JSON, for scan reports and REST catalogs.

Opaque parts have no such form and are left out (``without_opaque``), so the JSON matches at least the rows that the
predicate matches.
"""

from __future__ import annotations

from functools import reduce
from typing import TypeAlias

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
from floeplan.predicate.literals import value_json

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

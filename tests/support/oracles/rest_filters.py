"""Filters of REST clients: random ones in the dialects that clients send, and what each client's rows say to them.

Three clients, three semantics. Java has two values: its negative operators match nulls, and NaN is above every number.
PyIceberg filters with Arrow: a null matches nothing but ``not-in``, NaN compares with nothing, NOT negates the answer.
SQL has three values. A plan must serve all of them.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, auto
from typing import Any

import numpy as np
from pyiceberg import types

from floeplan.predicate import ir
from tests.support.oracles.rows import Row, is_nan, order_key

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEGATIVE = ("not-eq", "not-in", "not-starts-with")
INVERSE = {
    "lt": "gt-eq",
    "gt": "lt-eq",
    "eq": "not-eq",
    "in": "not-in",
    "starts-with": "not-starts-with",
    "is-null": "not-null",
    "is-nan": "not-nan",
}
INVERSE |= {there: back for back, there in INVERSE.items()}
NAMES = {
    ir.CmpOp.EQ: "eq",
    ir.CmpOp.NULL_SAFE_EQ: "eq",
    ir.CmpOp.NE: "not-eq",
    ir.CmpOp.LT: "lt",
    ir.CmpOp.LE: "lt-eq",
    ir.CmpOp.GT: "gt",
    ir.CmpOp.GE: "gt-eq",
}


class Client(Enum):
    JAVA = auto()
    PYICEBERG = auto()
    SQL = auto()


class Dialect(Enum):
    """How a filter is written: literals as Java or PyIceberg write them, or the operands of the newer form."""

    JAVA = auto()
    PYICEBERG = auto()
    NEWER = auto()


def written(expr: ir.IrExpr, dialect: Dialect) -> Any:
    """A filter made of the nodes of a predicate; null-safe equality becomes equality."""
    match expr:
        case ir.TrueExpr():
            return True
        case ir.FalseExpr() | ir.NullExpr():
            return False
        case ir.And(operands) | ir.Or(operands):
            kind, joined = "and" if isinstance(expr, ir.And) else "or", written(operands[0], dialect)
            for operand in operands[1:]:
                joined = {"type": kind, "left": joined, "right": written(operand, dialect)}
            return joined
        case ir.Not(operand):
            return {"type": "not", "child": written(operand, dialect)}
        case ir.Between(column, low, high, inclusive):
            above, below = (ir.CmpOp.GE, ir.CmpOp.LE) if inclusive else (ir.CmpOp.GT, ir.CmpOp.LT)
            return written(ir.And((ir.Cmp(column, above, low), ir.Cmp(column, below, high))), dialect)
        case ir.Cmp(column, op, value) if is_nan(value):
            return _leaf("is-nan" if op in (ir.CmpOp.EQ, ir.CmpOp.GE) else "not-nan", column, dialect)
        case ir.Cmp(column, op, value):
            return _leaf(NAMES[op], column, dialect, literal(column.type, value, dialect))
        case ir.BloomEq(column, value):
            return written(ir.Cmp(column, ir.CmpOp.EQ, value), dialect)
        case ir.BloomInList(column, values):
            return written(ir.InList(column, values), dialect)
        case ir.InList(column, values, negated):
            listed = [literal(column.type, value, dialect) for value in values if not is_nan(value)]
            return _leaf("not-in" if negated else "in", column, dialect) | {"values": listed}
        case ir.StartsWith(column, prefix, negated):
            return _leaf("not-starts-with" if negated else "starts-with", column, dialect, prefix)
        case ir.IsNull(column, negated):
            return _leaf("not-null" if negated else "is-null", column, dialect)
        case ir.IsNaN(column, negated):
            return _leaf("not-nan" if negated else "is-nan", column, dialect)
    raise AssertionError(expr)


def _leaf(kind: str, column: ir.Column, dialect: Dialect, value: Any = None) -> dict[str, Any]:
    name = ".".join(column.path)
    if dialect is not Dialect.NEWER:
        return {"type": kind, "term": name} | ({} if value is None else {"value": value})
    reference = {"type": "reference", "name": name}
    if value is None:
        return {"type": kind, "child": reference}
    return {"type": kind, "left": reference, "right": {"type": "literal", "value": value}}


def literal(type_: types.PrimitiveType, value: Any, dialect: Dialect = Dialect.JAVA) -> Any:
    """A canonical value as a client writes it."""
    if dialect is Dialect.PYICEBERG:
        zoned = isinstance(type_, types.TimestamptzType)
        try:
            if isinstance(type_, types.DateType):
                return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
            if zoned or isinstance(type_, types.TimestampType):
                return (EPOCH + timedelta(microseconds=value)).replace(tzinfo=None).isoformat()
        except OverflowError:
            return value
    match value:
        case bytes() if isinstance(type_, types.UUIDType):
            text = value.hex()
            return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        case bytes():
            return value.hex().upper() if dialect is Dialect.JAVA else value.hex()
        case Decimal():
            return str(value)
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
    return value


def matches(node: Any, row: Row, ids: dict[str, ir.Column], client: Client) -> bool:
    """Whether a client returns the row."""
    return _answer(node, row, ids, client) is True


def _answer(node: Any, row: Row, ids: dict[str, ir.Column], client: Client, negated: bool = False) -> bool | None:
    if isinstance(node, bool):
        return node != negated
    kind = node["type"]
    if kind == "not" and client is Client.JAVA:
        return _answer(node["child"], row, ids, client, not negated)
    if kind == "not":
        inner = _answer(node["child"], row, ids, client)
        return None if inner is None else not inner
    if kind in ("and", "or"):
        answers = [_answer(node[side], row, ids, client, negated) for side in ("left", "right")]
        decisive = (kind == "or") != negated
        return decisive if decisive in answers else None if None in answers else not decisive
    term = node.get("term") or node.get("child") or node["left"]
    column = ids[term if isinstance(term, str) else term["name"]]
    given = node["values"] if "values" in node else node.get("value", node.get("right"))
    return _of_value(INVERSE[kind] if negated else kind, row[column.field_id], column.type, given, client)


def _of_value(kind: str, value: Any, type_: types.PrimitiveType, given: Any, client: Client) -> bool | None:
    if kind in ("is-null", "not-null"):
        return (value is None) == (kind == "is-null")
    if value is None:
        if client is Client.JAVA:
            return kind in NEGATIVE or kind == "not-nan"
        if client is Client.PYICEBERG and kind in ("in", "not-in"):
            return kind == "not-in"
        return (kind == "not-nan") if kind in ("is-nan", "not-nan") and client is Client.SQL else None
    if kind in ("is-nan", "not-nan"):
        return is_nan(value) == (kind == "is-nan")
    if kind in ("in", "not-in"):
        listed = [order_key(read(type_, one)) for one in given]
        return (order_key(value) in listed) == (kind == "in")
    wanted = read(type_, given)
    if kind in ("starts-with", "not-starts-with"):
        return value.startswith(wanted) == (kind == "starts-with")
    if client is Client.PYICEBERG and is_nan(value):
        return kind == "not-eq"
    left, right = order_key(value), order_key(wanted)
    return {
        "eq": left == right,
        "not-eq": left != right,
        "lt": left < right,
        "lt-eq": left <= right,
        "gt": left > right,
        "gt-eq": left >= right,
    }[kind]


def read(type_: types.PrimitiveType, given: Any) -> Any:
    """The canonical value of a literal, the inverse of ``literal``."""
    value = given["value"] if isinstance(given, dict) else given
    match type_:
        case types.DecimalType():
            return Decimal(value)
        case types.UUIDType() | types.BinaryType() | types.FixedType():
            return bytes.fromhex(value.replace("-", ""))
        case types.DateType() if isinstance(value, str):
            return (date.fromisoformat(value) - date(1970, 1, 1)).days
        case types.TimestampType() | types.TimestamptzType() if isinstance(value, str):
            return (datetime.fromisoformat(value).replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
        case types.FloatType():  # all clients round the literal to a float before they compare
            with np.errstate(over="ignore"):
                return float(np.float32(float(value)))
        case types.DoubleType():
            return float(value)
    return value

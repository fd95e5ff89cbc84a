"""Predicates as Iceberg's expression JSON."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.predicate.build import and_, or_
from floeplan.predicate.ir import (
    FALSE,
    NULL_PREDICATE,
    TRUE,
    Between,
    Cmp,
    CmpOp,
    Column,
    InList,
    IrExpr,
    IsNaN,
    IsNull,
    Not,
    Opaque,
    StartsWith,
    Value,
)
from floeplan.predicate.literals import value_json
from floeplan.scan.report import Json, expression_json

pytestmark = pytest.mark.unit

A = Column(1, LongType(), ("a",))
S = Column(2, StringType(), ("s",))
F = Column(3, DoubleType(), ("f",))
EQ = {"type": "eq", "term": "a", "value": 1}


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (TRUE, True),
        (FALSE, False),
        (NULL_PREDICATE, False),
        (Cmp(A, CmpOp.EQ, 1), EQ),
        (Not(Cmp(A, CmpOp.EQ, 1)), {"type": "not-eq", "term": "a", "value": 1}),
        (Not(Cmp(A, CmpOp.NULL_SAFE_EQ, 1)), {"type": "not", "child": EQ}),
        (InList(A, (1, 2), negated=True), {"type": "not-in", "term": "a", "values": [1, 2]}),
        (InList(A, ()), False),
        (InList(A, (), negated=True), {"type": "not-null", "term": "a"}),
        (StartsWith(S, "x"), {"type": "starts-with", "term": "s", "value": "x"}),
        (IsNull(A), {"type": "is-null", "term": "a"}),
        (IsNaN(F, negated=True), {"type": "not-nan", "term": "f"}),
        (
            Between(A, 1, 2),
            {
                "type": "and",
                "left": {"type": "gt-eq", "term": "a", "value": 1},
                "right": {"type": "lt-eq", "term": "a", "value": 2},
            },
        ),
        (
            or_(Cmp(A, CmpOp.EQ, 1), IsNull(A), IsNull(S)),
            {
                "type": "or",
                "left": {"type": "or", "left": EQ, "right": {"type": "is-null", "term": "a"}},
                "right": {"type": "is-null", "term": "s"},
            },
        ),
        (and_(Cmp(A, CmpOp.EQ, 1), Opaque("a > b", (1, 2), None)), EQ),
        (or_(Cmp(A, CmpOp.EQ, 1), Opaque("a > b", (1, 2), None)), True),
    ],
    ids=str,
)
def test_expression(expr: IrExpr, expected: Json) -> None:
    assert expression_json(expr) == expected


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        (DateType(), -1, "1969-12-31"),
        (TimestampType(), 1_500_000, "1970-01-01T00:00:01.500000"),
        (TimestamptzType(), 0, "1970-01-01T00:00:00.000000+00:00"),
        (TimestampNanoType(), -1, "1969-12-31T23:59:59.999999999"),
        (TimeType(), 3_600_000_000, "01:00:00"),
        (DecimalType(9, 2), Decimal("1.50"), "1.50"),
        (UUIDType(), b"\x00" * 15 + b"\x01", "00000000-0000-0000-0000-000000000001"),
        (BinaryType(), b"\xab\x01", "AB01"),
        (DoubleType(), math.nan, "NaN"),
        (DoubleType(), -math.inf, "-Infinity"),
        (DoubleType(), 1.5, 1.5),
        (TimestampType(), 2**62, 2**62),
        (StringType(), "é", "é"),
    ],
    ids=str,
)
def test_value(type_: PrimitiveType, value: Value, expected: Json) -> None:
    assert value_json(type_, value) == expected

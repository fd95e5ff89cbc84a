"""Equal predicates have equal trees, and tree walks find all nodes."""

from __future__ import annotations

import pytest
from pyiceberg.types import LongType, StringType

from floeplan.predicate.build import (
    and_,
    column_of,
    columns,
    conjuncts,
    field_ids,
    has_opaque,
    leaves,
    negate,
    or_,
    push_not,
    with_bloom,
    without_opaque,
)
from floeplan.predicate.ir import (
    FALSE,
    NULL_PREDICATE,
    TRUE,
    And,
    Between,
    BloomEq,
    BloomInList,
    Cmp,
    CmpOp,
    Column,
    InList,
    IrExpr,
    IsNull,
    Not,
    Opaque,
    Or,
    StartsWith,
)

pytestmark = pytest.mark.unit

COLUMN_A, COLUMN_S = Column(1, LongType(), ("a",)), Column(2, StringType(), ("s",))
A, B, C = Cmp(COLUMN_A, CmpOp.GT, 1), Cmp(COLUMN_A, CmpOp.LT, 9), IsNull(COLUMN_S)
HIDDEN = Opaque("f(a, z)", (1, 7), None)


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (and_(), TRUE),
        (or_(), FALSE),
        (and_(A), A),
        (or_(A), A),
        (and_(A, TRUE), A),
        (and_(A, FALSE, B), FALSE),
        (or_(A, FALSE), A),
        (or_(A, TRUE, B), TRUE),
        (and_(A, NULL_PREDICATE), And((A, NULL_PREDICATE))),
        (and_(A, and_(B, C)), And((A, B, C))),
        (or_(or_(A, B), C), Or((A, B, C))),
        (and_(A, or_(B, C)), And((A, Or((B, C))))),
        (and_(A, B, A), And((A, B))),
        (or_(A, A), A),
    ],
    ids=str,
)
def test_constructors_flatten_absorb_and_deduplicate(built: IrExpr, expected: IrExpr) -> None:
    assert built == expected


@pytest.mark.parametrize(
    ("expr", "negated"),
    [
        (TRUE, FALSE),
        (NULL_PREDICATE, NULL_PREDICATE),
        (A, Cmp(COLUMN_A, CmpOp.LE, 1)),
        (C, IsNull(COLUMN_S, negated=True)),
        (InList(COLUMN_A, ()), InList(COLUMN_A, (), negated=True)),
        (StartsWith(COLUMN_S, "x", negated=True), StartsWith(COLUMN_S, "x")),
        (Between(COLUMN_A, 1, 2), Or((Cmp(COLUMN_A, CmpOp.LT, 1), Cmp(COLUMN_A, CmpOp.GT, 2)))),
        (Between(COLUMN_A, 1, 2, inclusive=False), Or((Cmp(COLUMN_A, CmpOp.LE, 1), Cmp(COLUMN_A, CmpOp.GE, 2)))),
        (And((A, C)), Or((Cmp(COLUMN_A, CmpOp.LE, 1), IsNull(COLUMN_S, negated=True)))),
        (Not(A), A),
        (HIDDEN, Not(HIDDEN)),
        (Cmp(COLUMN_A, CmpOp.NULL_SAFE_EQ, 1), Not(Cmp(COLUMN_A, CmpOp.NULL_SAFE_EQ, 1))),
    ],
    ids=str,
)
def test_negation_is_pushed_to_the_leaves(expr: IrExpr, negated: IrExpr) -> None:
    assert negate(expr) == push_not(Not(expr)) == negated


@pytest.mark.parametrize(
    ("expr", "prunable"),
    [
        (HIDDEN, TRUE),
        (Not(HIDDEN), TRUE),
        (And((A, HIDDEN)), A),
        (Or((A, HIDDEN)), TRUE),
        (Not(Or((A, HIDDEN))), negate(A)),
        (Not(And((A, HIDDEN))), TRUE),
        (And((Or((A, B)), Not(Not(HIDDEN)))), Or((A, B))),
    ],
    ids=str,
)
def test_and_is_best_effort_or_is_all_or_nothing(expr: IrExpr, prunable: IrExpr) -> None:
    assert without_opaque(expr) == prunable
    assert has_opaque(expr)
    assert not has_opaque(prunable)


def test_equalities_may_consult_bloom_filters() -> None:
    equal, listed = Cmp(COLUMN_A, CmpOp.EQ, 1), InList(COLUMN_A, (1, 2))
    assert with_bloom(And((equal, listed, A))) == And((BloomEq(COLUMN_A, 1), BloomInList(COLUMN_A, (1, 2)), A))
    assert with_bloom(Not(equal)) == Not(BloomEq(COLUMN_A, 1))
    for unchanged in (InList(COLUMN_A, (1,), negated=True), InList(COLUMN_A, ()), C):
        assert with_bloom(unchanged) == unchanged


def test_walks() -> None:
    expr = And((A, Not(Or((C, HIDDEN)))))
    assert list(leaves(expr)) == [A, C, HIDDEN]
    assert columns(expr) == {1: COLUMN_A, 2: COLUMN_S}
    assert field_ids(expr) == (1, 2, 7)
    assert [column_of(leaf) for leaf in leaves(expr)] == [COLUMN_A, COLUMN_S, None]
    assert (conjuncts(expr), conjuncts(A), conjuncts(TRUE)) == (expr.operands, (A,), ())

"""Rewriting a predicate keeps its result on every row; removing opaque pieces only weakens it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floeplan.predicate.build import (
    and_,
    conjuncts,
    leaves,
    map_leaves,
    negate,
    or_,
    push_not,
    with_bloom,
    without_opaque,
)
from floeplan.predicate.ir import And, IrExpr, Not, Opaque, Or
from tests.support.oracles import rows as oracle
from tests.support.oracles.datasets import datasets, every_leaf, literals, one_column, predicates

pytestmark = pytest.mark.property


def rebuilt(expr: IrExpr) -> IrExpr:
    """The same tree, built with the constructors."""
    if isinstance(expr, And):
        return and_(*map(rebuilt, expr.operands))
    if isinstance(expr, Or):
        return or_(*map(rebuilt, expr.operands))
    return Not(rebuilt(expr.operand)) if isinstance(expr, Not) else expr


REWRITES: dict[str, Callable[[IrExpr], IrExpr]] = {
    "and_ and or_": rebuilt,
    "conjuncts": lambda expr: and_(*conjuncts(expr)),
    "push_not": push_not,
    "negate twice": lambda expr: negate(negate(expr)),
    "not of negate": lambda expr: Not(negate(expr)),
    "map_leaves": lambda expr: map_leaves(expr, lambda leaf: leaf),
    "with_bloom": with_bloom,
}


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES.keys())
@given(data=st.data())
def test_a_rewrite_keeps_the_result_of_every_row(rewrite: Callable[[IrExpr], IrExpr], data: st.DataObject) -> None:
    rows = data.draw(datasets(max_size=8))
    expr = data.draw(predicates(rows, opaque=True))
    assert oracle.evaluate_rows(rewrite(expr), rows.rows) == oracle.evaluate_rows(expr, rows.rows)


@given(st.data())
def test_the_negation_of_every_leaf_is_its_negation_on_every_row(data: st.DataObject) -> None:
    rows = data.draw(datasets(one_column(), max_size=6))
    column = rows.columns[0]
    for leaf in every_leaf(column, literals(column, rows)):
        assert oracle.evaluate_rows(negate(leaf), rows.rows) == oracle.evaluate_rows(Not(leaf), rows.rows), leaf


@given(st.data())
def test_negations_reach_the_leaves(data: st.DataObject) -> None:
    expr = push_not(data.draw(predicates(data.draw(datasets(max_size=2)), opaque=True)))
    todo = [expr]
    while todo:
        node = todo.pop()
        assert not (isinstance(node, Not) and node.operand.children)
        todo.extend(node.children)


@given(st.data())
def test_leaving_opaque_pieces_out_loses_no_matching_row(data: st.DataObject) -> None:
    rows = data.draw(datasets(max_size=8))
    expr = data.draw(predicates(rows, opaque=True))
    weaker = without_opaque(expr)
    assert not any(isinstance(leaf, Opaque) for leaf in leaves(weaker))
    truth = zip(oracle.evaluate_rows(expr, rows.rows), oracle.evaluate_rows(weaker, rows.rows), strict=True)
    assert all(after is True for before, after in truth if before is True)


@given(st.data())
def test_without_opaque_pieces_there_is_nothing_to_leave_out(data: st.DataObject) -> None:
    rows = data.draw(datasets(max_size=8))
    expr = data.draw(predicates(rows))
    assert oracle.evaluate_rows(without_opaque(expr), rows.rows) == oracle.evaluate_rows(expr, rows.rows)

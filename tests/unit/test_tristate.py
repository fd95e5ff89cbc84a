"""The three masks combine by Kleene's logic."""

from __future__ import annotations

from functools import reduce
from itertools import product

import numpy as np
import pytest
from pyiceberg.types import LongType

from floeplan.predicate.ir import FALSE, NULL_PREDICATE, TRUE, And, Cmp, CmpOp, Column, IrExpr, Not, Or
from floeplan.predicate.stats import Tri, TriState, kleene

pytestmark = pytest.mark.unit

ANSWERS = (True, False, None)
SETS = [frozenset(a for a, there in zip(ANSWERS, bits, strict=True) if there) for bits in product((0, 1), repeat=3)]
NONEMPTY = [answers for answers in SETS if answers]


def tri(answers: frozenset[bool | None]) -> Tri:
    return Tri(*(np.array([answer in answers]) for answer in ANSWERS))


def names(answer: Tri) -> frozenset[bool | None]:
    masks = (answer.may_true, answer.may_false, answer.may_null)
    return frozenset(a for a, mask in zip(ANSWERS, masks, strict=True) if mask[0])


def kleene_and(a: bool | None, b: bool | None) -> bool | None:
    return False if a is False or b is False else None if a is None or b is None else True


def kleene_not(a: bool | None) -> bool | None:
    return None if a is None else not a


def kleene_or(a: bool | None, b: bool | None) -> bool | None:
    return kleene_not(kleene_and(kleene_not(a), kleene_not(b)))


@pytest.mark.parametrize("left", NONEMPTY)
@pytest.mark.parametrize("right", NONEMPTY)
def test_and_or_admit_exactly_what_some_pair_of_answers_gives(
    left: frozenset[bool | None], right: frozenset[bool | None]
) -> None:
    assert names(tri(left) & tri(right)) == {kleene_and(a, b) for a in left for b in right}
    assert names(tri(left) | tri(right)) == {kleene_or(a, b) for a in left for b in right}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_stacked_answers_join_as_one_after_another(count: int) -> None:
    for chosen in product(NONEMPTY, repeat=count):
        parts = [tri(answers) for answers in chosen]
        assert names(Tri.stacked(parts, 1).conjunction()) == names(reduce(Tri.__and__, parts))


@pytest.mark.parametrize("answers", SETS)
def test_not_exchanges_true_and_false_and_leaves_null(answers: frozenset[bool | None]) -> None:
    assert names(~tri(answers)) == {kleene_not(a) for a in answers}


@pytest.mark.parametrize("left", SETS)
@pytest.mark.parametrize("right", SETS)
def test_two_results_of_one_predicate_refine_each_other(
    left: frozenset[bool | None], right: frozenset[bool | None]
) -> None:
    assert names(tri(left).refine(tri(right))) == left & right


@pytest.mark.parametrize("answers", SETS)
def test_what_a_result_means_for_a_reader(answers: frozenset[bool | None]) -> None:
    expected = TriState.FALSE if True not in answers else TriState.TRUE if answers == {True} else TriState.UNKNOWN
    assert tri(answers).states().tolist() == [expected]
    assert tri(answers).keep.tolist() == [expected is not TriState.FALSE]
    assert tri(answers).all_match.tolist() == [expected is TriState.TRUE]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (TRUE, {True}),
        (FALSE, {False}),
        (NULL_PREDICATE, {None}),
        (Not(TRUE), {False}),
        (Not(NULL_PREDICATE), {None}),
        (And((TRUE, NULL_PREDICATE)), {None}),
        (And((FALSE, NULL_PREDICATE)), {False}),
        (Or((TRUE, NULL_PREDICATE)), {True}),
        (Or((FALSE, NULL_PREDICATE)), {None}),
        (Not(And((TRUE, Or((FALSE, TRUE)), TRUE))), {False}),
    ],
    ids=str,
)
def test_constants(expr: IrExpr, expected: set[bool | None]) -> None:
    def unexpected(leaf: IrExpr) -> Tri:
        raise AssertionError(leaf)

    assert names(kleene(expr, np.array([True]), unexpected)) == expected
    assert names(kleene(expr, np.array([False]), unexpected)) == set(), "a container without rows admits nothing"


def test_leaves_are_evaluated_and_combined() -> None:
    leaf = Cmp(Column(1, LongType(), ("a",)), CmpOp.EQ, 1)
    evaluated: list[IrExpr] = []

    def answer(node: IrExpr) -> Tri:
        evaluated.append(node)
        return tri(frozenset({True, None}))

    assert names(kleene(Or((Not(leaf), FALSE)), np.array([True]), answer)) == {False, None}
    assert evaluated == [leaf]

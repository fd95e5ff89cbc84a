"""Evaluation on statistics never loses a matching row and never proves a wrong one, even for weakened statistics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floeplan.predicate.build import push_not, with_bloom
from floeplan.predicate.evaluate import evaluate, may_match
from floeplan.predicate.ir import IrExpr
from floeplan.predicate.stats import StatsTable
from tests.support.oracles import rows as oracle
from tests.support.oracles.datasets import Dataset, datasets, every_leaf, literals, one_column, predicates
from tests.support.oracles.statistics import containers, exact_table, weakened_tables

pytestmark = pytest.mark.property


def assert_sound(expr: IrExpr, data: Dataset, cut: list[range], stats: StatsTable) -> None:
    """Every result of a row is admitted by the statistics."""
    truth = oracle.evaluate_rows(expr, data.rows)
    tri = evaluate(expr, stats)
    for container, rows in enumerate(cut):
        given_ = {truth[row] for row in rows}
        admitted = {True: tri.may_true, False: tri.may_false, None: tri.may_null}
        lost = {answer for answer in given_ if not admitted[answer][container]}
        assert not lost, f"{expr}: container {container} has rows with the result {lost}"
        assert tri.keep[container] or True not in given_
        assert not tri.all_match[container] or given_ == {True} or not rows
    assert may_match(expr, stats).tolist() == tri.may_true.tolist()


@given(st.data())
def test_exact_statistics_are_sound(data: st.DataObject) -> None:
    rows = data.draw(datasets())
    cut = data.draw(containers(rows.size))
    assert_sound(data.draw(predicates(rows, opaque=True)), rows, cut, exact_table(rows, cut))


@given(st.data())
def test_weakened_statistics_are_sound(data: st.DataObject) -> None:
    rows = data.draw(datasets())
    cut = data.draw(containers(rows.size))
    stats = data.draw(weakened_tables(rows, cut))
    assert_sound(data.draw(predicates(rows, opaque=True)), rows, cut, stats)


@given(st.data())
def test_every_leaf_is_sound_on_weakened_statistics(data: st.DataObject) -> None:
    rows = data.draw(datasets(one_column(), max_size=8))
    cut = data.draw(containers(rows.size))
    stats = data.draw(weakened_tables(rows, cut))
    column = rows.columns[0]
    for leaf in every_leaf(column, literals(column, rows)):
        assert_sound(leaf, rows, cut, stats)


@given(st.data())
def test_rewritten_predicates_are_as_sound(data: st.DataObject) -> None:
    rows = data.draw(datasets())
    cut = data.draw(containers(rows.size))
    stats = data.draw(weakened_tables(rows, cut))
    expr = data.draw(predicates(rows, opaque=True))
    assert_sound(with_bloom(expr), rows, cut, stats)
    assert_sound(with_bloom(push_not(expr)), rows, cut, stats)


@given(st.data())
def test_one_row_with_exact_statistics_is_answered_exactly(data: st.DataObject) -> None:
    """Bounds that determine the value decide the result: an evaluator that never decides fails here."""
    rows = data.draw(datasets(min_size=1))
    cut = [range(row, row + 1) for row in range(rows.size)]
    expr = data.draw(predicates(rows))
    assert certain(expr, exact_table(rows, cut)) == oracle.evaluate_rows(expr, rows.rows)


@given(st.data())
def test_every_leaf_is_exact_on_one_row_with_exact_statistics(data: st.DataObject) -> None:
    rows = data.draw(datasets(one_column(), min_size=1, max_size=8))
    stats = exact_table(rows, [range(row, row + 1) for row in range(rows.size)])
    column = rows.columns[0]
    for leaf in every_leaf(column, literals(column, rows)):
        assert certain(leaf, stats) == oracle.evaluate_rows(leaf, rows.rows), leaf


def certain(expr: IrExpr, stats: StatsTable) -> list[object]:
    """The only result that each container admits, or all of them."""
    tri = evaluate(expr, stats)
    answers = zip(tri.may_true.tolist(), tri.may_false.tolist(), tri.may_null.tolist(), strict=True)
    names = {(True, False, False): True, (False, True, False): False, (False, False, True): None}
    return [names.get(answer, answer) for answer in answers]

"""Lifted predicates keep every partition with a matching row of any writer, and prove only what holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField
from pyiceberg.types import PrimitiveType

from floeplan.partition.fields import BoundField, bind_field
from floeplan.partition.lift import Exactness, lift
from floeplan.partition.union import partition_answer, project
from floeplan.predicate.build import negate
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import TRUE, And, Column, IrExpr, IsNull, Not, Or
from floeplan.predicate.stats import StatsTable
from tests.support.oracles.datasets import leaves
from tests.support.oracles.rows import evaluate_leaf, evaluate_row
from tests.support.oracles.statistics import Summary, column_stats
from tests.support.oracles.values import CASES, awkward_values, edges, neighbours, values, written

pytestmark = pytest.mark.property

SOURCE = 1
MANY = settings(max_examples=3 * settings.default.max_examples)
"""Examples for a hundred pairs of transform and type."""


def bound(transform: Any, type_: PrimitiveType, field_id: int = 1000, source_id: int = SOURCE) -> BoundField:
    field = PartitionField(source_id=source_id, field_id=field_id, transform=transform, name=f"p{field_id}")
    return bind_field(field, {source_id: (type_,)})


def partitions(field: BoundField, groups: list[list[Any]]) -> StatsTable:
    """Statistics of containers with these partition values."""
    stats = column_stats(field.column.type, [Summary.of(group) for group in groups])
    return StatsTable(len(groups), {field.column.field_id: stats})


@st.composite
def source_values(draw: st.DrawFn, transform: Any, type_: PrimitiveType) -> list[Any]:
    awkward = awkward_values(transform, type_)
    one = st.sampled_from(awkward) | values(type_) if awkward else values(type_)
    drawn = draw(st.lists(one, min_size=1, max_size=6))
    return [*drawn, *(near for value in drawn for near in neighbours(type_, value))]


@st.composite
def lifts(draw: st.DrawFn) -> tuple[BoundField, IrExpr, list[Any]]:
    """A field, a leaf on its source or its negation, and values of the source."""
    transform, type_ = draw(st.sampled_from(CASES))
    found = draw(source_values(transform, type_))
    candidates = [*found, *edges(type_), *awkward_values(transform, type_)]
    leaf = draw(leaves(Column(SOURCE, type_, ("x",)), candidates))
    expr = draw(st.sampled_from((leaf, Not(leaf), negate(leaf))))
    return bound(transform, type_), expr, [*found, None]


def pairs(field: BoundField, found: list[Any]) -> list[tuple[Any, Any]]:
    """Source values with their possible partition values."""
    return [(v, p) for v in found for p in written(field.transform, field.source_type, v)]


@MANY
@given(lifts())
def test_no_partition_with_a_matching_row_is_lost(case: tuple[BoundField, IrExpr, list[Any]]) -> None:
    field, expr, found = case
    both = pairs(field, found)
    kept = evaluate(lift(expr, field).expr, partitions(field, [[p] for _, p in both])).may_true
    for (value, partition), keep in zip(both, kept, strict=True):
        assert keep or evaluate_row(expr, {SOURCE: value}) is not True, f"{value} in partition {partition} is lost"


@MANY
@given(lifts())
def test_exactness_is_correct(case: tuple[BoundField, IrExpr, list[Any]]) -> None:
    field, expr, found = case
    lifted = lift(expr, field)
    if lifted.exactness is Exactness.CANNOT:
        weakest = (TRUE, IsNull(field.column, negated=True))
        assert lifted.reason
        assert lifted.expr in weakest or any(part in weakest for part in lifted.expr.children)
    if lifted.exactness is Exactness.EXACT:
        for value, partition in pairs(field, found):
            matches = evaluate_row(expr, {SOURCE: value}) is True
            claims = evaluate_row(lifted.expr, {field.column.field_id: partition}) is True
            assert claims == matches, f"{value} in partition {partition}"


@MANY
@given(lifts())
def test_strict_holds_only_for_partitions_whose_rows_all_match(case: tuple[BoundField, IrExpr, list[Any]]) -> None:
    field, expr, found = case
    strict = project(expr, [field]).strict
    for value, partition in pairs(field, found):
        if evaluate_row(strict, {field.column.field_id: partition}) is True:
            assert evaluate_row(expr, {SOURCE: value}) is True, f"{value} in partition {partition}"


@MANY
@given(lifts(), st.data())
def test_the_result_of_a_leaf_admits_the_results_of_its_rows(
    case: tuple[BoundField, IrExpr, list[Any]], data: st.DataObject
) -> None:
    """On tuples of files and on ranges of manifest summaries."""
    field, expr, found = case
    leaf = expr.operand if isinstance(expr, Not) else expr
    if isinstance(leaf, Or):
        leaf = leaf.operands[0]
    both = pairs(field, found)
    several = data.draw(st.lists(st.sampled_from(both), min_size=1, max_size=6))
    containers = [[pair] for pair in both] + [several]
    tri = partition_answer(leaf, [field], partitions(field, [[p for _, p in pairs_] for pairs_ in containers]))
    for at, container in enumerate(containers):
        admitted = {True: tri.may_true[at], False: tri.may_false[at], None: tri.may_null[at]}
        for value, partition in container:
            answer = evaluate_leaf(leaf, value)
            assert admitted[answer], f"{value} in partition {partition} gives {answer}"


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[BoundField], IrExpr, list[dict[int, Any]]]:
    """A predicate over two columns, a spec with up to two fields on each, and rows."""
    fields, rows_of, leaf = [], {}, []
    for source in (1, 2):
        cases = [draw(st.sampled_from(CASES))]
        cases += [case for case in [draw(st.sampled_from(CASES))] if case[1] == cases[0][1] and case != cases[0]]
        type_ = cases[0][1]
        found = [value for transform, _ in cases for value in draw(source_values(transform, type_))]
        rows_of[source] = [*found, None]
        fields += [bound(t, type_, 1000 + 10 * source + i, source) for i, (t, _) in enumerate(cases)]
        leaf.append(leaves(Column(source, type_, (f"x{source}",)), [*found, *edges(type_)]))
    spec = draw(st.lists(st.sampled_from(fields), unique=True))
    operands = st.lists(st.one_of(leaf), min_size=1, max_size=3).map(tuple)
    expr = draw(st.recursive(st.one_of(leaf), lambda inner: inner.map(Not) | operands.map(And) | operands.map(Or)))
    pick = st.fixed_dictionaries({source: st.sampled_from(found) for source, found in rows_of.items()})
    return spec, expr, draw(st.lists(pick, min_size=1, max_size=10))


@given(trees(), st.data())
def test_projections_of_whole_predicates_are_sound(
    case: tuple[list[BoundField], IrExpr, list[dict[int, Any]]], data: st.DataObject
) -> None:
    spec, expr, rows = case
    projection = project(expr, spec)
    for row in rows:
        tuple_ = {
            f.column.field_id: data.draw(st.sampled_from(written(f.transform, f.source_type, row[f.source_id])))
            for f in spec
            if written(f.transform, f.source_type, row[f.source_id])
        }
        if len(tuple_) < len(spec):
            continue
        matches = evaluate_row(expr, row) is True
        assert evaluate_row(projection.inclusive, tuple_) is True or not matches
        assert evaluate_row(projection.strict, tuple_) is not True or matches

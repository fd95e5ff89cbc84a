"""Random predicates over the columns of a dataset, with literals that sit on, beside and far from the data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from pyiceberg.types import StringType

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
    IsNaN,
    IsNull,
    Not,
    Opaque,
    Or,
    StartsWith,
)
from tests.support.datasets import Dataset
from tests.support.values import edges, is_float, neighbours


def predicates(data: Dataset, *, opaque: bool = False, max_leaves: int = 6) -> st.SearchStrategy[IrExpr]:
    """Any tree over any node kind; with ``opaque`` some leaves are hidden from statistics."""
    leaf = st.one_of([leaves(column, literals(column, data)) for column in data.columns])
    constant = st.sampled_from((TRUE, FALSE, NULL_PREDICATE))
    base = one_in(6, constant, leaf)
    if opaque:
        base = one_in(4, base.map(hidden), base)

    def combined(inner: st.SearchStrategy[IrExpr]) -> st.SearchStrategy[IrExpr]:
        operands = st.lists(inner, min_size=2, max_size=3).map(tuple)
        return st.one_of(operands.map(And), operands.map(Or), inner.map(Not))

    return st.recursive(base, combined, max_leaves=max_leaves)


def one_in(
    times: int, seldom: st.SearchStrategy[IrExpr], often: st.SearchStrategy[IrExpr]
) -> st.SearchStrategy[IrExpr]:
    """A choice by weight; ``one_of`` would flatten its alternatives and make them all equally likely."""
    return st.integers(1, times).flatmap(lambda number: seldom if number == times else often)


def hidden(expr: IrExpr) -> Opaque:
    """The same predicate as a piece that only rows can answer."""
    return Opaque(f"opaque({expr!r})", (), expr)


def literals(column: Column, data: Dataset) -> list[Any]:
    """Values of the column, their neighbours, and the edges of its type."""
    found = data.values_of(column)
    return [*found, *(near for value in found for near in neighbours(column.type, value)), *edges(column.type)]


def leaves(column: Column, candidates: list[Any]) -> st.SearchStrategy[IrExpr]:
    """Any leaf on one column."""
    value = st.sampled_from(candidates)
    several = st.lists(value, max_size=4).map(tuple)
    negated = st.booleans()
    kinds: list[st.SearchStrategy[IrExpr]] = [
        st.builds(Cmp, st.just(column), st.sampled_from(CmpOp), value),
        st.builds(Cmp, st.just(column), st.sampled_from(CmpOp), value),
        st.builds(Between, st.just(column), value, value, st.booleans()),
        st.builds(InList, st.just(column), several, negated),
        st.builds(IsNull, st.just(column), negated),
        st.builds(BloomEq, st.just(column), value),
        st.builds(BloomInList, st.just(column), several.filter(bool)),
    ]
    if is_float(column.type):
        kinds.append(st.builds(IsNaN, st.just(column), negated))
    if isinstance(column.type, StringType):
        kinds.append(st.builds(StartsWith, st.just(column), value, negated))
    return st.one_of(kinds)


def every_leaf(column: Column, candidates: list[Any]) -> Iterator[IrExpr]:
    """Each kind of leaf on one column with each candidate in turn: a sweep where random draws would be thin."""
    unique = list({repr(value): value for value in candidates}.values())
    for value in unique:
        yield from (Cmp(column, op, value) for op in CmpOp)
        yield BloomEq(column, value)
        if isinstance(column.type, StringType):
            yield StartsWith(column, value)
    for low, high in pairwise(unique):
        yield from (Between(column, low, high, inclusive) for inclusive in (True, False))
        yield InList(column, (low, high))
        yield BloomInList(column, (low, high))
    yield from (InList(column, values) for values in ((), tuple(unique)))
    yield IsNull(column)
    if is_float(column.type):
        yield IsNaN(column)

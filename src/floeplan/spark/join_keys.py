"""Equalities of joins in a query over placeholders: rows of one table that need a match in another.

A row of an inner or semi join without a match in the other side does not appear in its result, on either side. So when
``a.k = b.k`` is a condition of such a join, rows of ``a`` whose ``k`` no row of ``b`` has cannot change the result of
the query, and the other way round.

Rule: a column counts as one of a table only where every operator between the table and the join hands it on unchanged
and would drop the same rows earlier: filters, projections, other inner and semi joins, and groupings by the column.
Fail-safe: any other operator (a limit, a window, a union, an outer join), and a condition that is not an equality of
two columns, leaves the tables as they are, and so does a reference that occurs several times in the plan.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from floeplan.spark.jvm import JavaObject, class_name, elements, optimized_plan, plan_nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OUTPUT = re.compile(r"\br(\d+)_(\d+)#(\d+)")
_MATCHING = ("Inner", "LeftSemi")
"""Joins that return only rows with a match in the other side."""


@dataclass(frozen=True, slots=True, order=True)
class KeyColumn:
    """A column of a reference, by their numbers."""

    reference: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class JoinKey:
    """Rows of a table matter only if ``column`` has a value that ``other`` has, too."""

    column: KeyColumn
    other: KeyColumn


def join_keys(query: DataFrame) -> list[JoinKey]:
    """The equalities of joins in a query over placeholders, each in both directions."""
    try:
        plan = optimized_plan(query)
        if plan is None:
            return []
        nodes = list(_with_subqueries(plan))
        uses = Counter(found.reference for node in nodes for found in _first_column(node))
        pairs = [pair for node in nodes for pair in _equalities(node)]
    except Exception:  # py4j raises many classes; nothing is pruned then
        return []
    both = [JoinKey(*pair) for pair in (*pairs, *((other, column) for column, other in pairs))]
    return [key for key in dict.fromkeys(both) if uses[key.column.reference] == 1]


def _with_subqueries(plan: JavaObject) -> Iterator[JavaObject]:
    for node in plan_nodes(plan):
        yield node
        for inner in elements(node.subqueries()):
            yield from _with_subqueries(inner)


def _first_column(node: JavaObject) -> Iterator[KeyColumn]:
    if class_name(node) == "LogicalRelation":
        yield from list(_columns(node).values())[:1]


def _columns(relation: JavaObject) -> dict[int, KeyColumn]:
    """The columns of a placeholder by expression id; none for another relation."""
    output = relation.output()
    if not output.nonEmpty() or re.fullmatch(r"r\d+_\d+", str(output.head().name())) is None:
        return {}
    # A placeholder has columns of our names only, so that its text cannot be ambiguous.
    return {int(i): KeyColumn(int(r), int(at)) for r, at, i in _OUTPUT.findall(str(output.toString()))}


def _equalities(node: JavaObject) -> Iterator[tuple[KeyColumn, KeyColumn]]:
    """The pairs of columns that a join compares."""
    if class_name(node) != "Join" or str(node.joinType().toString()) not in _MATCHING or node.condition().isEmpty():
        return
    for part in _conjuncts(node.condition().get()):
        if class_name(part) != "EqualTo" or not (_is_column(part.left()) and _is_column(part.right())):
            continue
        sides = [
            [_source(side, _id(operand)) for side in (node.left(), node.right())]
            for operand in (part.left(), part.right())
        ]
        # One operand is of the left side, the other of the right one.
        for one, other in ((sides[0][0], sides[1][1]), (sides[1][0], sides[0][1])):
            if one is not None and other is not None:
                yield one, other


def _conjuncts(condition: JavaObject) -> Iterator[JavaObject]:
    if class_name(condition) != "And":
        yield condition
        return
    yield from _conjuncts(condition.left())
    yield from _conjuncts(condition.right())


def _source(node: JavaObject, expression_id: int) -> KeyColumn | None:
    """The column of a table that a column in the output of a node is."""
    match class_name(node):
        case "LogicalRelation":
            return _columns(node).get(expression_id)
        case "Filter" if node.condition().deterministic():
            return _source(node.child(), expression_id)
        case "Project" | "Aggregate" as name:
            listed = node.projectList() if name == "Project" else node.aggregateExpressions()
            for value in elements(listed):
                if _id(value) == expression_id:
                    # An attribute in the output of an aggregate is one of its grouping columns.
                    inner = value.child() if class_name(value) == "Alias" else value
                    return _source(node.child(), _id(inner)) if _is_column(inner) else None
        case "Join" if str(node.joinType().toString()) in _MATCHING:
            return _source(node.left(), expression_id) or _source(node.right(), expression_id)
    return None


def _is_column(value: JavaObject) -> bool:
    return class_name(value) == "AttributeReference"


def _id(value: JavaObject) -> int:
    """The expression id of a named expression."""
    return int(value.exprId().id())

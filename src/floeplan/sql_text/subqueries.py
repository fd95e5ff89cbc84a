"""Subqueries in the condition of a DELETE or UPDATE: ``id IN (SELECT …)``, ``EXISTS (…)``, ``ts < (SELECT …)``.

Rule: names inside a subquery are resolved by Spark, the subquery's own tables first and the changed table after them;
nothing in such a condition is rewritten but names of the catalog's tables, which become views.

Fail-safe: for planning only those parts count that stand beside subqueries under AND; where there is an OR, none does.
"""

from __future__ import annotations

from collections.abc import Iterator

from floeplan.dml.subqueries import SubqueryCondition
from floeplan.sql_text.qualifiers import Qualifiers, has_subquery
from floeplan.sql_text.tokens import Cursor, Piece


def subquery_condition(piece: Piece, names: Qualifiers, alias: str, what: str) -> SubqueryCondition:
    """A condition in which ``has_subquery`` found one."""
    plain = [names.expression(part, what) for part in _conjuncts(piece.text) if not has_subquery(part)]
    return SubqueryCondition(piece.text, " AND ".join(plain) or "TRUE", alias)


def _conjuncts(text: str) -> Iterator[Piece]:
    """The parts of a condition that all must hold; a condition with OR is one part."""
    cursor = Cursor(text)
    whole = cursor.rest()
    cursor.at, waiting = 0, 0

    def ends(at: Cursor) -> bool:
        nonlocal waiting
        if at.sees("BETWEEN"):
            waiting += 1
        elif at.sees("AND") and waiting:
            waiting -= 1
        else:
            return at.sees("AND") or at.sees("OR")
        return False

    parts = []
    while not cursor.done:
        parts.append(cursor.until(ends))
        if cursor.sees("OR"):
            yield whole
            return
        cursor.at += 1
    yield from parts

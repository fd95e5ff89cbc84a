"""MERGE INTO target USING source ON condition WHEN … THEN …."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from floeplan.errors import BadInputError
from floeplan.sql_text.parse_names import alias_of, assignments_of, table_name
from floeplan.sql_text.qualifiers import Qualifiers
from floeplan.sql_text.statements import (
    SOURCE,
    TARGET,
    Assignment,
    Clause,
    DeleteRow,
    InsertRow,
    Merge,
    Query,
    Relation,
    Source,
    UpdateRow,
)
from floeplan.sql_text.tokens import Cursor


def parse_merge(cursor: Cursor) -> Merge:
    """Parse from MERGE to the end."""
    cursor.expect("MERGE")
    if cursor.sees("WITH", "SCHEMA", "EVOLUTION"):
        raise BadInputError("MERGE WITH SCHEMA EVOLUTION is not supported; add the columns first")
    cursor.expect("INTO")
    table = table_name(cursor)
    target_alias = alias_of(cursor, "USING")
    cursor.expect("USING")
    source = _source(cursor)
    source_alias = alias_of(cursor, "ON")
    columns = tuple(parts[0] for parts in cursor.names()) if cursor.sees_symbol(TokenType.L_PAREN) else None
    source_name = source.parts if isinstance(source, Relation) else ()
    target = (table.parts, target_alias, TARGET)
    both = Qualifiers.of(target, (source_name, source_alias, SOURCE))
    cursor.expect("ON")
    on = _condition(both.expression(cursor.until(_at_when), "the condition of MERGE"))
    clauses = _Clauses(cursor, Qualifiers.of(target), both)
    clauses.parse()
    return Merge(
        table, source, on, tuple(clauses.matched), tuple(clauses.not_matched), tuple(clauses.by_source), columns
    )


def _condition(text: str) -> str:
    """A bare name is a boolean column, as in SQL, and not the name of a key."""
    return f"({text})" if text.isidentifier() else text


def _source(cursor: Cursor) -> Source:
    if not cursor.sees_symbol(TokenType.L_PAREN):
        return Relation(cursor.name())
    first, stop = cursor.parenthesised()
    if first == stop:
        raise cursor.error("a query is expected between the parentheses", first)
    return Query(cursor.piece(first, stop).text)


def _at_when(cursor: Cursor) -> bool:
    return cursor.sees("WHEN", "MATCHED") or cursor.sees("WHEN", "NOT", "MATCHED")


class _Clauses:
    """The WHEN clauses, by kind and in their order."""

    def __init__(self, cursor: Cursor, target: Qualifiers, both: Qualifiers) -> None:
        self.cursor, self.target, self.both = cursor, target, both
        self.matched: list[Clause] = []
        self.not_matched: list[Clause] = []
        self.by_source: list[Clause] = []

    def parse(self) -> None:
        if self.cursor.done:
            raise self.cursor.error("MERGE needs at least one WHEN clause")
        while not self.cursor.done:
            if self.cursor.accept("WHEN", "MATCHED"):
                self._clause(self.matched, "WHEN MATCHED")
            elif self.cursor.accept("WHEN", "NOT", "MATCHED", "BY", "SOURCE"):
                self._clause(self.by_source, "WHEN NOT MATCHED BY SOURCE")
            elif self.cursor.accept("WHEN", "NOT", "MATCHED"):
                self.cursor.accept("BY", "TARGET")
                self._clause(self.not_matched, "WHEN NOT MATCHED")
            else:
                raise self.cursor.error("WHEN [NOT] MATCHED is expected")

    def _clause(self, kind: list[Clause], what: str) -> None:
        if kind and kind[-1].condition is None:
            raise BadInputError(f"{what}: only the last clause of a kind may be without a condition")
        condition = None
        if self.cursor.accept("AND"):
            condition = self.both.expression(self.cursor.until(lambda c: c.sees("THEN")), f"the condition of {what}")
        self.cursor.expect("THEN")
        kind.append(Clause(self._action(kind, what), condition))

    def _action(self, kind: list[Clause], what: str) -> DeleteRow | UpdateRow | InsertRow:
        inserts = kind is self.not_matched
        if inserts and self.cursor.accept("INSERT"):
            return InsertRow(None if self._star() else self._inserted(what))
        if not inserts and self.cursor.accept("DELETE"):
            return DeleteRow()
        if not inserts and self.cursor.accept("UPDATE", "SET"):
            if kind is self.matched and self._star():
                return UpdateRow(None)
            return UpdateRow(assignments_of(self.cursor, self.target, self.both, _at_when, f"{what}: UPDATE SET"))
        raise self.cursor.error(f"{what} takes {'INSERT' if inserts else 'UPDATE SET or DELETE'}")

    def _star(self) -> bool:
        star = self.cursor.sees_symbol(TokenType.STAR)
        self.cursor.at += star
        return star

    def _inserted(self, what: str) -> tuple[Assignment, ...]:
        columns = [self.target.column(parts) for parts in self.cursor.names()]
        self.cursor.expect("VALUES")
        values = self.cursor.items()
        if len(columns) != len(values):
            raise BadInputError(f"{what}: INSERT names {len(columns)} columns and has {len(values)} values")
        for position, column in enumerate(columns):
            if column in columns[:position]:
                raise BadInputError(f"{what}: INSERT names {'.'.join(column)} twice")
        return tuple(
            Assignment(column, self.both.expression(value, f"{what}: INSERT {'.'.join(column)}"))
            for column, value in zip(columns, values, strict=True)
        )

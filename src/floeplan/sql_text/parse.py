"""Statements from text: INSERT, DELETE, UPDATE, MERGE in Spark's dialect and Iceberg's ALTER TABLE … PARTITION FIELD.

Fail-safe: what is not one of these, or says more than is understood here, is refused in one line that names it; nothing
of a statement is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import TokenType

from floeplan.dml.statement import SubqueryCondition
from floeplan.errors import BadInputError
from floeplan.sql_text.names import alias_of, assignments_of, table_name
from floeplan.sql_text.parse_alter import parse_alter
from floeplan.sql_text.qualifiers import Qualifiers, has_subquery, refuse_parameters
from floeplan.sql_text.statements import (
    SOURCE,
    TARGET,
    Assignment,
    Clause,
    Delete,
    DeleteRow,
    Insert,
    InsertRow,
    Merge,
    PartitionValue,
    Query,
    Relation,
    Source,
    Statement,
    TableName,
    Update,
    UpdateRow,
)
from floeplan.sql_text.tokens import Cursor, Piece, is_name, is_word
from floeplan.text import excerpt, one_line

# INSERT INTO and INSERT OVERWRITE: PARTITION clause, column list or BY NAME, and the query.


_QUERY_WORDS = ("SELECT", "VALUES", "WITH", "TABLE", "FROM")


def parse_insert(cursor: Cursor) -> Insert:
    """Parse ``[WITH …] INSERT …`` to the end; common table expressions become part of the query."""
    shared = _common_tables(cursor)
    cursor.expect("INSERT")
    overwrite = cursor.accept("OVERWRITE")
    if not overwrite:
        if cursor.sees("WITH", "SCHEMA", "EVOLUTION"):
            raise BadInputError("INSERT WITH SCHEMA EVOLUTION is not supported; add the columns first")
        cursor.expect("INTO")
    if cursor.sees("DIRECTORY") or cursor.sees("LOCAL", "DIRECTORY"):
        raise BadInputError("INSERT OVERWRITE DIRECTORY writes no table; use 'floeplan scan TABLE -o FILE.parquet'")
    cursor.accept("TABLE")
    table = table_name(cursor)
    partition = _partition(cursor)
    replace_where = _replace_where(cursor, Qualifiers.of((table.parts, None, ""))) if not overwrite else None
    by_name = cursor.accept("BY", "NAME")
    columns = None if by_name else _columns(cursor)
    query = shared + _query(cursor)
    return Insert(table, Query(query), overwrite, columns, by_name, partition, replace_where)


def _common_tables(cursor: Cursor) -> str:
    if not cursor.sees("WITH"):
        return ""
    text = cursor.until(lambda c: c.sees("INSERT") or c.sees("SELECT")).text
    if not cursor.sees("INSERT"):
        raise BadInputError(
            "WITH … SELECT reads, and only statements that change a table are run here; use fp.read(spark, table)",
            context={"statement": "WITH"},
        )
    return text + " "


def _partition(cursor: Cursor) -> tuple[PartitionValue, ...]:
    if not cursor.accept("PARTITION"):
        return ()
    found = tuple(_partition_value(piece) for piece in cursor.items())
    if cursor.sees("IF", "NOT", "EXISTS"):
        raise BadInputError("IF NOT EXISTS is not supported in a PARTITION clause")
    if not found:
        raise BadInputError("the PARTITION clause is empty")
    return found


def _partition_value(piece: Piece) -> PartitionValue:
    name, *rest = piece.tokens
    if not is_name(name) or (rest and (len(rest) < 2 or rest[0].token_type is not TokenType.EQ)):
        raise BadInputError(f"PARTITION takes column or column = value, not {piece.text!r}")
    value = piece.text[rest[0].end + 1 - piece.start :].strip() if rest else None
    return PartitionValue(str(name.text), value)


def _replace_where(cursor: Cursor, names: Qualifiers) -> str | None:
    """``REPLACE WHERE condition``: rows that match are replaced by those of the query."""
    if not cursor.accept("REPLACE", "WHERE"):
        return None
    return names.expression(cursor.until(_at_query), "REPLACE WHERE")


def _at_query(cursor: Cursor) -> bool:
    return not cursor.done and is_word(cursor.tokens[cursor.at], *_QUERY_WORDS)


def _columns(cursor: Cursor) -> tuple[str, ...] | None:
    """A column list, unless the parenthesis begins a query."""
    if not cursor.sees_symbol(TokenType.L_PAREN):
        return None
    inside = cursor.tokens[cursor.at + 1]
    after = cursor.partner[cursor.at] + 1
    followed = after < len(cursor.tokens) and (
        is_word(cursor.tokens[after], *_QUERY_WORDS) or cursor.tokens[after].token_type is TokenType.L_PAREN
    )
    if not followed or is_word(inside, "SELECT") or inside.token_type is TokenType.L_PAREN:
        return None
    names = cursor.names()
    for position, parts in enumerate(names):
        if len(parts) > 1:
            raise BadInputError(f"INSERT takes top-level columns, not {'.'.join(parts)}")
        if parts in names[:position]:
            raise BadInputError(f"INSERT names {parts[0]} twice", context={"column": parts[0]})
    return tuple(parts[0] for parts in names)


def _query(cursor: Cursor) -> str:
    if not (_at_query(cursor) or cursor.sees_symbol(TokenType.L_PAREN)):
        raise cursor.error("a query is expected: SELECT …, VALUES … or TABLE …")
    return cursor.rest().text


# MERGE INTO target USING source ON condition WHEN … THEN ….


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


# Subqueries in the condition of a DELETE or UPDATE: ``id IN (SELECT …)``, ``EXISTS (…)``, ``ts < (SELECT …)``.
#
# Rule: names inside a subquery are resolved by Spark, the subquery's own tables first and the changed table after them;
# nothing in such a condition is rewritten but names of the catalog's tables, which become views.
#
# Fail-safe: for planning only those parts count that stand beside subqueries under AND; where there is an OR, none
# does.


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


# ---

_READS = ("SELECT", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN")


def parse_statement(text: str) -> Statement:
    """The statement a text says.

    Raises:
        BadInputError: It is no statement Floeplan runs, or cannot be parsed.
    """
    cursor = Cursor(text)
    first = cursor.tokens[0].text.upper()
    match first:
        case "INSERT" | "WITH":
            return parse_insert(cursor)
        case "DELETE":
            return _delete(cursor)
        case "UPDATE":
            return _update(cursor)
        case "MERGE":
            return parse_merge(cursor)
        case "ALTER":
            return parse_alter(cursor)
    if first in _READS or cursor.sees_symbol(TokenType.L_PAREN):
        raise BadInputError(
            f"{first} reads, and only statements that change a table are run here; "
            "use 'floeplan scan TABLE --where …', or fp.read(spark, table) and Spark's own SQL",
            context={"statement": first},
        )
    raise BadInputError(
        f"{first} is not supported; INSERT, DELETE, UPDATE, MERGE and ALTER TABLE … PARTITION FIELD are: "
        f"{excerpt(one_line(text))}",
        context={"statement": first},
    )


def _delete(cursor: Cursor) -> Delete:
    cursor.expect("DELETE", "FROM")
    table = table_name(cursor)
    alias = alias_of(cursor, "WHERE")
    where = _rows(cursor, table, alias, "the condition of DELETE")
    cursor.expect_end()
    return Delete(table, where)


def _update(cursor: Cursor) -> Update:
    cursor.expect("UPDATE")
    table = table_name(cursor)
    alias = alias_of(cursor, "SET")
    names = _names(table, alias)
    cursor.expect("SET")
    assignments = assignments_of(cursor, names, names, lambda c: c.sees("WHERE"), "UPDATE SET")
    where = _rows(cursor, table, alias, "the condition of UPDATE")
    cursor.expect_end()
    return Update(table, assignments, where)


def _names(table: TableName, alias: str | None) -> Qualifiers:
    return Qualifiers.of((table.parts, alias, ""))


def _rows(cursor: Cursor, table: TableName, alias: str | None, what: str) -> str | SubqueryCondition | None:
    """The condition after WHERE, which may have subqueries, if there is one."""
    if not cursor.accept("WHERE"):
        return None
    piece, names = cursor.rest(), _names(table, alias)
    if not has_subquery(piece):
        return names.expression(piece, what)
    refuse_parameters(piece, what)
    return subquery_condition(piece, names, alias or table.parts[-1], what)

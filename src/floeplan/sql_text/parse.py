"""Statements from text: INSERT, DELETE, UPDATE, MERGE in Spark's dialect and Iceberg's ALTER TABLE … PARTITION FIELD.

Fail-safe: what is not one of these, or says more than is understood here, is refused in one line that names it; nothing
of a statement is passed over.
"""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from floeplan.dml.subqueries import SubqueryCondition
from floeplan.errors import BadInputError
from floeplan.sql_text.parse_alter import parse_alter
from floeplan.sql_text.parse_insert import parse_insert
from floeplan.sql_text.parse_merge import parse_merge
from floeplan.sql_text.parse_names import alias_of, assignments_of, table_name
from floeplan.sql_text.qualifiers import Qualifiers, has_subquery, refuse_parameters
from floeplan.sql_text.statements import Delete, Statement, TableName, Update
from floeplan.sql_text.subqueries import subquery_condition
from floeplan.sql_text.tokens import Cursor
from floeplan.text import excerpt

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
        f"{excerpt(' '.join(text.split()))}",
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

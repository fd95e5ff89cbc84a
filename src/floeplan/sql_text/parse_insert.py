"""INSERT INTO and INSERT OVERWRITE: PARTITION clause, column list or BY NAME, and the query."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from floeplan.errors import BadInputError
from floeplan.sql_text.parse_names import table_name
from floeplan.sql_text.qualifiers import Qualifiers
from floeplan.sql_text.statements import Insert, PartitionValue, Query
from floeplan.sql_text.tokens import Cursor, Piece, is_name, is_word

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

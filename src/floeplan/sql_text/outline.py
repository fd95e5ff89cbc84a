"""The outline of a statement: its tokens with every expression and query merged into one token, parsed by sqlglot.

    UPDATE db.t AS x SET v = CASE WHEN x.a THEN 1 ELSE 2 END WHERE x.id IN (1, 2)
    UPDATE db.t AS x SET v = «CASE WHEN x.a THEN 1 ELSE 2 END» WHERE «x.id IN (1, 2)»

sqlglot parses the second line; it decides which clauses a statement has. A merged token carries the offsets of its
text, and sqlglot copies those to the identifier it becomes, so every expression is taken exactly as written. This is
needed because

- nodes of sqlglot's AST have no positions except identifiers, and rendering an expression is not exact: ``2.50BD``
  becomes ``CAST('2.50' AS DECIMAL(3, 2))`` and ``'it''s'`` becomes ``CONCAT('it', 's')``;
- expressions and queries are for Spark, which accepts more than sqlglot does (a column named ``when`` or ``end``);
- a list of 100,000 literals would take sqlglot's parser seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError

from floeplan.errors import BadInputError
from floeplan.sql_text.tokens import QUERY_WORDS, Cursor, Piece, is_name, is_word

_PARSER_FAILURES = (ParseError, ValueError, TypeError, AttributeError, LookupError)
"""sqlglot raises more than ``ParseError`` on some malformed statements."""


@dataclass(slots=True)
class Outline:
    """A parsed statement and the expressions behind its tokens, by their offset in the text."""

    tree: exp.Expr
    pieces: dict[int, Piece]

    def piece(self, node: exp.Expr | None) -> Piece | None:
        """The expression behind a node; ``None`` for any other node."""
        identifier = node.this if isinstance(node, exp.Column | exp.Table) else None
        return self.pieces.get(identifier.meta.get("start", -1)) if isinstance(identifier, exp.Identifier) else None


def outline_of(cursor: Cursor) -> Outline:
    """Parse the statement from the cursor to its end."""
    reducer = _Reducer(cursor)
    reducer.insert() if cursor.sees("INSERT") else reducer.change()
    try:
        (tree,) = Spark().parser(error_level=ErrorLevel.IMMEDIATE).parse(reducer.tokens, cursor.text)
    except _PARSER_FAILURES as error:
        # The token that sqlglot reports; the last one when it reports none.
        facts = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        places = [(token.line, token.col) for token in cursor.tokens]
        found = (facts.get("line"), facts.get("col"))
        index = places.index(found) if found in places else len(places) - 1
        raise cursor.error("the statement is not valid here", index) from error
    if tree is None:
        raise BadInputError("the statement is empty")
    return Outline(tree, reducer.pieces)


def _at_when(cursor: Cursor) -> bool:
    """Whether the next clause of a MERGE begins here."""
    return cursor.sees("WHEN", "MATCHED") or cursor.sees("WHEN", "NOT", "MATCHED")


def _at_query(cursor: Cursor) -> bool:
    return not cursor.done and is_word(cursor.tokens[cursor.at], *QUERY_WORDS)


_EXPRESSION_ENDS: dict[str, Callable[[Cursor], bool]] = {
    "WHERE": lambda _: False,
    "ON": _at_when,
    "AND": lambda cursor: cursor.sees("THEN"),
    "=": lambda cursor: cursor.sees_symbol(TokenType.COMMA) or cursor.sees("WHERE") or _at_when(cursor),
}
"""Words of DELETE, UPDATE and MERGE that an expression follows, and where it ends."""


@dataclass(slots=True)
class _Reducer:
    """Copies tokens, merging those of each expression into one."""

    cursor: Cursor
    tokens: list[Token] = field(default_factory=list)
    pieces: dict[int, Piece] = field(default_factory=dict)

    def change(self) -> None:
        """DELETE, UPDATE and MERGE."""
        cursor = self.cursor
        while not cursor.done:
            token = self._copy()
            if token.token_type is TokenType.IDENTIFIER:
                continue
            opens = cursor.sees_symbol(TokenType.L_PAREN)
            if (ends := _EXPRESSION_ENDS.get(token.text.upper())) is not None:
                self._merge(cursor.until(ends))
                if is_word(token, "ON") and not _at_when(cursor):
                    raise cursor.error("MERGE needs at least one WHEN clause")
            elif opens and is_word(token, "USING"):
                stop = cursor.closing[cursor.at]
                if stop == cursor.at + 1:
                    raise cursor.error("a query is expected between the parentheses")
                self._merge(cursor.piece(cursor.at + 1, stop))
                cursor.at = stop + 1
            elif opens:
                self._list(self._merge if is_word(token, "VALUES") else self._column)

    def insert(self) -> None:
        """INSERT: everything before the query, and the query as one token."""
        cursor = self.cursor
        while not cursor.done:
            if self._query_begins():
                query = cursor.piece(cursor.at, len(cursor.tokens))
                self.tokens.append(Token(TokenType.SELECT, "SELECT"))
                self._merge(query)
                return
            if cursor.sees_symbol(TokenType.L_PAREN):
                self._list(self._partition_item if is_word(self.tokens[-1], "PARTITION") else self._column)
            elif is_word(self._copy(), "WHERE"):
                self._merge(cursor.until(_at_query))
        raise cursor.error("a query is expected: SELECT …, VALUES … or TABLE …")

    def _query_begins(self) -> bool:
        """Whether the query of an INSERT begins here, rather than a name, a column list or ``INTO TABLE``."""
        cursor, before = self.cursor, self.tokens[-1] if self.tokens else None
        if before is not None and (before.token_type is TokenType.DOT or is_word(before, "INTO", "OVERWRITE")):
            return False
        if not cursor.sees_symbol(TokenType.L_PAREN):
            return _at_query(cursor)
        inside, stop = cursor.tokens[cursor.at + 1], cursor.closing[cursor.at]
        if inside.token_type is TokenType.L_PAREN or is_word(inside, "SELECT"):
            return True
        # Any other query word may be the name of a column: a column list is followed by the query.
        after = cursor.tokens[stop + 1 : stop + 2]
        is_list = bool(after) and (is_word(after[0], *QUERY_WORDS) or after[0].token_type is TokenType.L_PAREN)
        return is_word(inside, *QUERY_WORDS) and not is_list

    def _partition_item(self, item: Piece) -> None:
        """``column`` or ``column = value`` of a PARTITION clause."""
        self.tokens.extend(item.tokens[:2])
        if len(item.tokens) > 2:
            start = item.tokens[2].start
            self._merge(Piece(item.tokens[2:], item.text[start - item.start :], start))

    def _column(self, item: Piece) -> None:
        self.tokens.extend(map(_as_identifier, item.tokens))

    def _list(self, copy: Callable[[Piece], None]) -> None:
        """Copy a parenthesised list item by item."""
        opening = self.cursor.tokens[self.cursor.at]
        closing = self.cursor.tokens[self.cursor.closing[self.cursor.at]]
        self.tokens.append(opening)
        items = self.cursor.items()
        if not items:
            raise self.cursor.error("this list is empty", self.cursor.at - 1)
        for number, item in enumerate(items):
            if number:
                self.tokens.append(Token(TokenType.COMMA, ",", opening.line, opening.col))
            copy(item)
        self.tokens.append(closing)

    def _copy(self) -> Token:
        """Step over one token; a part of a name is copied as an identifier, since Spark reserves no keywords."""
        tokens, at = self.cursor.tokens, self.cursor.at
        token = tokens[at]
        before = tokens[at - 1].token_type if at else None
        after = tokens[at + 1].token_type if at + 1 < len(tokens) else None
        named = before in (TokenType.DOT, TokenType.ALIAS) or after in (TokenType.DOT, TokenType.EQ)
        self.tokens.append(_as_identifier(token) if named else token)
        self.cursor.at += 1
        return self.tokens[-1]

    def _merge(self, piece: Piece) -> None:
        first, last = piece.tokens[0], piece.tokens[-1]
        self.pieces[first.start] = piece
        self.tokens.append(Token(TokenType.IDENTIFIER, "?", first.line, first.col, first.start, last.end))


def _as_identifier(token: Token) -> Token:
    if not is_name(token):
        return token
    return Token(TokenType.IDENTIFIER, token.text, token.line, token.col, token.start, token.end)

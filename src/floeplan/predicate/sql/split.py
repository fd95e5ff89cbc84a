"""Split a SQL predicate at its ANDs, ORs, NOTs and grouping parentheses; the pieces between them stay token runs.

Only the pieces go to sqlglot. Splitting first is a matter of correctness, not speed:

* Each piece keeps its exact offsets in the text, which ``CompileError`` and syntax errors report. Only few of sqlglot's
  nodes carry theirs.
* sqlglot's tree of ``a OR b OR c …`` is one level deep per operand, and visiting a few hundred of them would exceed
  Python's recursion limit. Here they become one flat ``Junction``.

``BETWEEN x AND y`` and ``CASE … END`` keep their own AND and OR. Parentheses form a group only when an AND, an OR or
the end follows; all others (function calls, IN lists, arithmetic) belong to their piece.

Fail-safe: unbalanced parentheses, missing operands and nesting deeper than ``MAX_DEPTH`` raise an error before any
recursion starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlglot import Token, TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError

from floeplan.errors import BadInputError, PredicateSyntaxError

MAX_DEPTH = 100
_OPEN = {TokenType.L_PAREN: TokenType.R_PAREN, TokenType.L_BRACKET: TokenType.R_BRACKET}
_CLOSE = frozenset(_OPEN.values())


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens between boolean operators; ``start`` and ``end`` are offsets into the text, ``end`` exclusive."""

    tokens: tuple[Token, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Junction:
    """Operands joined by AND (``every``) or OR."""

    every: bool
    operands: tuple[BooleanTree, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """NOT of an operand."""

    operand: BooleanTree


BooleanTree: TypeAlias = Piece | Junction | Negation


def syntax_error(sql: str, position: int, message: str) -> PredicateSyntaxError:
    """A syntax error at an offset; its context holds the line with a caret under the offset."""
    line_start = sql.rfind("\n", 0, position) + 1
    line_end = sql.find("\n", position)
    line = sql[line_start : len(sql) if line_end < 0 else line_end]
    first = max(0, position - line_start - 40)
    snippet = line[first : first + 80]
    caret = " " * (position - line_start - first) + "^"
    return PredicateSyntaxError(
        f"cannot parse the predicate at position {position + 1}, near {sql[position : position + 20]!r}: {message}",
        context={"position": position, "snippet": f"{snippet}\n{caret}"},
    )


def tokenize(sql: str) -> list[Token]:
    """Tokenize a text with Spark's rules for strings."""
    try:
        tokens = Spark().tokenize(sql)
    except TokenError as error:
        raise syntax_error(sql, max(len(sql) - 1, 0), "unfinished string, name or comment") from error
    if "''" not in sql and '""' not in sql:
        return list(tokens)
    # Spark reads 'it''s' as one string with a quote in it, sqlglot's Spark dialect as two adjacent strings.
    merged: list[Token] = []
    for token in tokens:
        before = merged[-1] if merged else token
        both_strings = before.token_type is TokenType.STRING is token.token_type
        if both_strings and before.end + 1 == token.start and sql[before.end] == sql[token.start]:
            text = before.text + sql[token.start] + token.text
            merged[-1] = Token(TokenType.STRING, text, start=before.start, end=token.end)
        else:
            merged.append(token)
    return merged


def split_predicate(sql: str) -> BooleanTree:
    """Split the text of a predicate."""
    tokens = tokenize(sql)
    if not tokens:
        raise PredicateSyntaxError("the predicate is empty; write TRUE to match every row")
    return _Splitter(sql, tokens).split(0, len(tokens))


class _Splitter:
    """Splits token ranges; recurses once per pair of grouping parentheses."""

    def __init__(self, sql: str, tokens: Sequence[Token]) -> None:
        self.sql = sql
        self.tokens = tokens
        self.closing = self._match_parentheses()

    def _match_parentheses(self) -> dict[int, int]:
        """The index of the closing parenthesis for each opening one."""
        closing: dict[int, int] = {}
        open_: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.token_type in _OPEN:
                open_.append(index)
                if len(open_) > MAX_DEPTH:
                    raise BadInputError(f"the predicate nests more than {MAX_DEPTH} parentheses deep; flatten it")
            elif token.token_type in _CLOSE:
                if not open_ or _OPEN[self.tokens[open_[-1]].token_type] is not token.token_type:
                    raise syntax_error(self.sql, token.start, f"unexpected {token.text!r}")
                closing[open_.pop()] = index
            elif token.token_type is TokenType.SEMICOLON:
                raise syntax_error(self.sql, token.start, "a predicate is one expression; unexpected ';'")
        if open_:
            raise syntax_error(self.sql, self.tokens[open_[-1]].start, "this parenthesis is never closed")
        return closing

    def split(self, first: int, stop: int) -> BooleanTree:
        """Split the tokens from ``first`` up to ``stop`` into an OR of ANDs of operands."""
        alternatives: list[BooleanTree] = []
        conjunction: list[BooleanTree] = []
        for start, end in self._operands(first, stop):
            conjunction.append(self._operand(start, end))
            if end == stop or self.tokens[end].token_type is TokenType.OR:
                alternatives.append(_join(conjunction, every=True))
                conjunction = []
        return _join(alternatives, every=False)

    def _operands(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Token ranges between the ANDs and ORs of this level."""
        start = index = first
        cases = betweens = 0
        while index < stop:
            kind = self.tokens[index].token_type
            if kind in _OPEN:
                index = self.closing[index]
            elif kind is TokenType.CASE:
                cases += 1
            elif kind is TokenType.END and cases:
                cases -= 1
            elif cases:
                pass  # an AND or OR inside CASE … END
            elif kind is TokenType.BETWEEN:
                betweens += 1
            elif kind is TokenType.AND and betweens:
                betweens -= 1
            elif kind is TokenType.AND or kind is TokenType.OR:
                yield start, index
                start = index + 1
            index += 1
        yield start, stop

    def _operand(self, start: int, end: int) -> BooleanTree:
        """One operand: its NOTs, then a group in parentheses or a piece."""
        negations = 0
        while start < end and self.tokens[start].token_type is TokenType.NOT:
            negations += 1
            start += 1
        if start == end:
            position = self.tokens[start].start if start < len(self.tokens) else len(self.sql)
            raise syntax_error(self.sql, position, "an operand of AND, OR or NOT is missing")
        if self.tokens[start].token_type is TokenType.L_PAREN and self.closing[start] == end - 1 and end - start > 2:
            inner = self.split(start + 1, end - 1)
        else:
            run = tuple(self.tokens[start:end])
            inner = Piece(run, run[0].start, run[-1].end + 1)
        return Negation(inner) if negations % 2 else inner


def _join(operands: list[BooleanTree], *, every: bool) -> BooleanTree:
    return operands[0] if len(operands) == 1 else Junction(every, tuple(operands))

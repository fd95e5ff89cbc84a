"""The boolean skeleton of a SQL predicate: AND, OR, NOT and parentheses, with the pieces between them as token runs.

Rule: a piece is a maximal run of tokens without an AND or OR of its own level, so it has an exact place in the text
and thousands of them are as flat as they were written; only a piece is handed to the SQL parser. ``BETWEEN x AND y``
and ``CASE … END`` keep their keywords, and a pair of parentheses is a group only when nothing but AND, OR or the end
follows it.

Fail-safe: parentheses that do not match, empty operands and nesting beyond ``MAX_DEPTH`` are refused here, before any
recursion could grow with the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlglot import Token, TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError

from floeplan.errors import BadInputError, PredicateSyntaxError
from floeplan.predicate.sql.fast_path import all_blanked, without_numbers

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
    operands: tuple[Skeleton, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """NOT of an operand."""

    operand: Skeleton


Skeleton: TypeAlias = Piece | Junction | Negation


def syntax_error(sql: str, position: int, message: str) -> PredicateSyntaxError:
    """An error with its place; the context holds the line with a caret under it."""
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


def tokens_of(sql: str) -> list[Token]:
    """The tokens of a text, strings as Spark reads them."""
    try:
        return _with_doubled_quotes(sql, Spark().tokenize(sql))
    except TokenError as error:
        raise syntax_error(sql, max(len(sql) - 1, 0), "unfinished string, name or comment") from error


def skeleton_of(sql: str) -> Skeleton:
    """Split the text of a predicate."""
    tokens = _short_tokens_of(sql)
    if not tokens:
        raise PredicateSyntaxError("the predicate is empty; write TRUE to match every row")
    return _Splitter(sql, tokens).split(0, len(tokens))


def _short_tokens_of(sql: str) -> list[Token]:
    """The tokens of a text, a long list of whole numbers as one of them where that is safe."""
    text, lists = without_numbers(sql)
    if lists:
        try:
            tokens = tokens_of(text)
        except PredicateSyntaxError:
            tokens = []
        if all_blanked(tokens, lists):
            return tokens
    return tokens_of(sql)


def _with_doubled_quotes(sql: str, tokens: Sequence[Token]) -> list[Token]:
    """Two strings without a gap between them are one with a quote in it, as Spark reads ``'it''s'``."""
    merged: list[Token] = []
    for token in tokens:
        before = merged[-1] if merged else None
        both = before is not None and before.token_type is TokenType.STRING is token.token_type
        if before is not None and both and before.end + 1 == token.start and sql[before.end] == sql[token.start]:
            merged[-1] = Token(
                TokenType.STRING, before.text + sql[token.start] + token.text, start=before.start, end=token.end
            )
        else:
            merged.append(token)
    return merged


class _Splitter:
    """Splits token ranges; recursion goes one frame deeper per pair of grouping parentheses."""

    def __init__(self, sql: str, tokens: Sequence[Token]) -> None:
        self.sql = sql
        self.tokens = tokens
        self.partner = self._match_parentheses()

    def _match_parentheses(self) -> dict[int, int]:
        partner: dict[int, int] = {}
        waiting: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.token_type in _OPEN:
                waiting.append(index)
                if len(waiting) > MAX_DEPTH:
                    raise BadInputError(f"the predicate nests more than {MAX_DEPTH} parentheses deep; flatten it")
            elif token.token_type in _CLOSE:
                if not waiting or _OPEN[self.tokens[waiting[-1]].token_type] is not token.token_type:
                    raise syntax_error(self.sql, token.start, f"unexpected {token.text!r}")
                partner[waiting.pop()] = index
            elif token.token_type is TokenType.SEMICOLON:
                raise syntax_error(self.sql, token.start, "a predicate is one expression; unexpected ';'")
        if waiting:
            raise syntax_error(self.sql, self.tokens[waiting[-1]].start, "this parenthesis is never closed")
        return partner

    def split(self, first: int, stop: int) -> Skeleton:
        """The skeleton of the tokens from ``first`` up to ``stop``: OR of ANDs of operands."""
        alternatives: list[Skeleton] = []
        conjunction: list[Skeleton] = []
        for start, end in self._operands(first, stop):
            conjunction.append(self._operand(start, end))
            if end == stop or self.tokens[end].token_type is TokenType.OR:
                alternatives.append(_join(conjunction, every=True))
                conjunction = []
        return _join(alternatives, every=False)

    def _operands(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Ranges between the ANDs and ORs of this level."""
        start = index = first
        cases = betweens = 0
        while index < stop:
            kind = self.tokens[index].token_type
            if kind in _OPEN:
                index = self.partner[index]
            elif kind is TokenType.CASE:
                cases += 1
            elif kind is TokenType.END and cases:
                cases -= 1
            elif cases:
                pass
            elif kind is TokenType.BETWEEN:
                betweens += 1
            elif kind is TokenType.AND and betweens:
                betweens -= 1
            elif kind is TokenType.AND or kind is TokenType.OR:
                yield start, index
                start = index + 1
            index += 1
        yield start, stop

    def _operand(self, start: int, end: int) -> Skeleton:
        negations = 0
        while start < end and self.tokens[start].token_type is TokenType.NOT:
            negations += 1
            start += 1
        if start == end:
            raise self._missing(start)
        if self.tokens[start].token_type is TokenType.L_PAREN and self.partner[start] == end - 1 and end - start > 2:
            inner = self.split(start + 1, end - 1)
        else:
            run = tuple(self.tokens[start:end])
            inner = Piece(run, run[0].start, run[-1].end + 1)
        return Negation(inner) if negations % 2 else inner

    def _missing(self, index: int) -> PredicateSyntaxError:
        position = self.tokens[index].start if index < len(self.tokens) else len(self.sql)
        return syntax_error(self.sql, position, "an operand of AND, OR or NOT is missing")


def _join(operands: list[Skeleton], *, every: bool) -> Skeleton:
    return operands[0] if len(operands) == 1 else Junction(every, tuple(operands))

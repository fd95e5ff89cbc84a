"""Whose column a name is: qualifiers in expressions are taken away or replaced, at their place in the text.

Rule: ``t.v`` is column ``v`` of the table called ``t`` here; a table with an alias has only that, one without is also
known by the last parts of its name (``t``, ``db.t``). As in Spark, a qualifier wins over a struct of the same name, and
capitals do not matter.

Fail-safe: an expression that a qualifier could not be read in with certainty (a lambda variable of the same name, a
subquery with names of its own) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import Token, TokenType

from floeplan.errors import BadInputError
from floeplan.sql_text.tokens import Piece, is_name, is_word
from floeplan.text import excerpt, one_line

_QUERIES = ("SELECT", "VALUES", "WITH", "TABLE", "FROM")
_PARAMETERS = frozenset((TokenType.PLACEHOLDER, TokenType.PARAMETER))


@dataclass(frozen=True, slots=True)
class Qualifiers:
    """What stands in the place of each qualifier; the empty text takes it away."""

    replacements: Mapping[tuple[str, ...], str]

    @classmethod
    def of(cls, *tables: tuple[Sequence[str], str | None, str]) -> Qualifiers:
        """For tables given by the parts of their name, their alias and what replaces it."""
        found: dict[tuple[str, ...], str] = {}
        for parts, alias, replacement in tables:
            names = [(alias,)] if alias is not None else [tuple(parts[i:]) for i in range(len(parts))]
            found.update({tuple(part.lower() for part in name): replacement for name in names})
        return cls(found)

    def expression(self, piece: Piece, what: str) -> str:
        """The text of an expression with its qualifiers replaced; ``what`` says where it stands, for errors."""
        _refuse(piece, what)
        self._refuse_lambda(piece, what)
        edits: list[tuple[int, int, str]] = []
        tokens = piece.tokens
        for index, token in enumerate(tokens):
            if is_name(token) and not (index and tokens[index - 1].token_type is TokenType.DOT):
                chain = _chain(tokens, index)
                edits.extend(self._edits(chain, is_call=_is_call(tokens, index + 2 * len(chain) - 1)))
        text = piece.text
        for start, end, replacement in reversed(edits):
            text = text[: start - piece.start] + replacement + text[end - piece.start :]
        return text

    def column(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """The path of a column that is assigned to, without its qualifier."""
        return parts[self._length(parts) :]

    def _length(self, parts: Sequence[str]) -> int:
        """How many leading parts are a qualifier; a column must be left."""
        folded = tuple(part.lower() for part in parts)
        return max((n for n in range(1, len(parts)) if folded[:n] in self.replacements), default=0)

    def _edits(self, chain: list[Token], *, is_call: bool) -> list[tuple[int, int, str]]:
        parts = [str(token.text) for token in chain]
        length = self._length(parts[:-1] if is_call else parts)
        if not length:
            return []
        replacement = self.replacements[tuple(part.lower() for part in parts[:length])]
        column = chain[length]
        plain = column.token_type in (TokenType.VAR, TokenType.IDENTIFIER)
        quoted = [] if plain else [(column.start, column.end + 1, f"`{column.text}`")]
        return [(chain[0].start, column.start, f"{replacement}." if replacement else ""), *quoted]

    def _refuse_lambda(self, piece: Piece, what: str) -> None:
        for variable in _lambda_variables(piece.tokens):
            if (variable.lower(),) in self.replacements:
                raise BadInputError(
                    f"{what}: {variable} is a table and the variable of a lambda; rename one: {_shown(piece)}",
                    context={"text": piece.text},
                )


def _lambda_variables(tokens: Sequence[Token]) -> Iterator[str]:
    """What stands before ``->``: a name, or names in parentheses."""
    for arrow, token in enumerate(tokens):
        if token.token_type is TokenType.ARROW and arrow:
            first = last = arrow - 1
            if tokens[last].token_type is TokenType.R_PAREN:
                while first and tokens[first].token_type is not TokenType.L_PAREN:
                    first -= 1
            yield from (str(one.text) for one in tokens[first : last + 1] if is_name(one))


def _chain(tokens: Sequence[Token], index: int) -> list[Token]:
    """The parts of the name that begins at a token."""
    parts = [tokens[index]]
    while index + 2 < len(tokens) and tokens[index + 1].token_type is TokenType.DOT and is_name(tokens[index + 2]):
        index += 2
        parts.append(tokens[index])
    return parts


def _is_call(tokens: Sequence[Token], after: int) -> bool:
    return after < len(tokens) and tokens[after].token_type is TokenType.L_PAREN


def _shown(piece: Piece) -> str:
    return excerpt(one_line(piece.text))


def has_subquery(piece: Piece) -> bool:
    """Whether there is a query inside an expression."""
    for index, token in enumerate(piece.tokens):
        opened = index > 0 and piece.tokens[index - 1].token_type is TokenType.L_PAREN
        if is_word(token, "SELECT") or (opened and is_word(token, *_QUERIES)):
            return True
    return False


def refuse_parameters(piece: Piece, what: str) -> None:
    """A statement is run as it is written, so there is nobody to give a value."""
    if any(token.token_type in _PARAMETERS for token in piece.tokens):
        raise BadInputError(f"{what} has a parameter; write its value: {_shown(piece)}")


def _refuse(piece: Piece, what: str) -> None:
    if has_subquery(piece):
        raise BadInputError(
            f"{what} has a subquery, which is not supported; use MERGE with the subquery as its source: "
            f"{_shown(piece)}",
            context={"text": piece.text},
        )
    refuse_parameters(piece, what)

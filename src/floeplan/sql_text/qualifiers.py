"""Qualifiers of columns in expressions: removed or replaced in the text of the expression.

Rule: a table with an alias is qualified by the alias alone; one without by the last parts of its name (``t``,
``db.t``). As in Spark, a qualifier takes precedence over a struct of the same name, and case does not matter.

Fail-safe: an expression in which a qualifier is ambiguous (a lambda variable of the same name, a subquery with names of
its own) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import Token, TokenType

from floeplan.errors import BadInputError
from floeplan.sql_text.tokens import Piece, is_name, is_word, name_chain
from floeplan.text import excerpt, one_line

_QUERIES = ("SELECT", "VALUES", "WITH", "TABLE", "FROM")
_PARAMETERS = frozenset((TokenType.PLACEHOLDER, TokenType.PARAMETER))


@dataclass(frozen=True, slots=True)
class Qualifiers:
    """The replacement of each qualifier; the empty string removes it."""

    replacements: Mapping[tuple[str, ...], str]

    @classmethod
    def of(cls, *tables: tuple[Sequence[str], str | None, str]) -> Qualifiers:
        """Qualifiers of tables, each given by the parts of its name, its alias and the replacement."""
        found: dict[tuple[str, ...], str] = {}
        for parts, alias, replacement in tables:
            names = [(alias,)] if alias is not None else [tuple(parts[i:]) for i in range(len(parts))]
            found.update({tuple(part.lower() for part in name): replacement for name in names})
        return cls(found)

    def expression(self, piece: Piece, what: str) -> str:
        """The text of an expression with its qualifiers replaced; ``what`` names the clause in errors."""
        if has_subquery(piece):
            raise BadInputError(
                f"{what} has a subquery, which is not supported; use MERGE with the subquery as its source: "
                f"{_excerpt(piece)}",
                context={"text": piece.text},
            )
        refuse_parameters(piece, what)
        self._refuse_lambda(piece, what)
        edits: list[tuple[int, int, str]] = []
        tokens = piece.tokens
        for index, token in enumerate(tokens):
            if is_name(token) and not (index and tokens[index - 1].token_type is TokenType.DOT):
                chain = name_chain(tokens, index)
                after = index + 2 * len(chain) - 1
                is_call = after < len(tokens) and tokens[after].token_type is TokenType.L_PAREN
                edits.extend(self._edits(chain, is_call=is_call))
        text = piece.text
        for start, end, replacement in reversed(edits):
            text = text[: start - piece.start] + replacement + text[end - piece.start :]
        return text

    def column(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """The path of an assigned column without its qualifier."""
        return parts[self._length(parts) :]

    def _length(self, parts: Sequence[str]) -> int:
        """The number of leading parts that are a qualifier; at least one part is the column."""
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
        # Without its qualifier a column named like a keyword (t.date) would be read as the keyword.
        quoted = [] if plain else [(column.start, column.end + 1, f"`{column.text}`")]
        return [(chain[0].start, column.start, f"{replacement}." if replacement else ""), *quoted]

    def _refuse_lambda(self, piece: Piece, what: str) -> None:
        for variable in _lambda_variables(piece.tokens):
            if (variable.lower(),) in self.replacements:
                raise BadInputError(
                    f"{what}: {variable} is a table and the variable of a lambda; rename one: {_excerpt(piece)}",
                    context={"text": piece.text},
                )


def _lambda_variables(tokens: Sequence[Token]) -> Iterator[str]:
    """The names before ``->``: one, or several in parentheses."""
    for arrow, token in enumerate(tokens):
        if token.token_type is TokenType.ARROW and arrow:
            first = last = arrow - 1
            if tokens[last].token_type is TokenType.R_PAREN:
                while first and tokens[first].token_type is not TokenType.L_PAREN:
                    first -= 1
            yield from (str(one.text) for one in tokens[first : last + 1] if is_name(one))


def _excerpt(piece: Piece) -> str:
    return excerpt(one_line(piece.text))


def has_subquery(piece: Piece) -> bool:
    """Whether an expression contains a query."""
    for index, token in enumerate(piece.tokens):
        opened = index > 0 and piece.tokens[index - 1].token_type is TokenType.L_PAREN
        if is_word(token, "SELECT") or (opened and is_word(token, *_QUERIES)):
            return True
    return False


def refuse_parameters(piece: Piece, what: str) -> None:
    """Raise if an expression has a parameter marker: a statement has no arguments."""
    if any(token.token_type in _PARAMETERS for token in piece.tokens):
        raise BadInputError(f"{what} has a parameter; write its value instead: {_excerpt(piece)}")

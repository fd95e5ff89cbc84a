"""Tokens of a statement, with the exact source text of any run of them.

``Cursor`` steps over the tokens of sqlglot's Spark tokenizer. An expression or query ends at a keyword or comma outside
all parentheses and outside ``CASE … END``; it is kept as text, so nothing in it changes.

Fail-safe: parentheses must match, a second statement after ``;`` is refused, and every error names its position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import Token, TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError

from floeplan.errors import BadInputError
from floeplan.text import one_line

_OPEN = {
    TokenType.L_PAREN: TokenType.R_PAREN,
    TokenType.L_BRACKET: TokenType.R_BRACKET,
    TokenType.L_BRACE: TokenType.R_BRACE,
}
_CLOSE = frozenset(_OPEN.values())
_LITERALS = frozenset((TokenType.STRING, TokenType.IDENTIFIER, TokenType.NUMBER))


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens with its source text; ``start`` is the offset of that text in the statement."""

    tokens: tuple[Token, ...]
    text: str
    start: int


def is_word(token: Token, *words: str) -> bool:
    """Whether a token is one of these keywords, unquoted."""
    return token.token_type not in _LITERALS and token.text.upper() in words


def is_name(token: Token) -> bool:
    """Whether a token can be a part of a name: an identifier, or any word, since Spark reserves no keywords."""
    if token.token_type is TokenType.IDENTIFIER:
        return True
    return token.token_type not in _LITERALS and token.text.replace("_", "a").isalnum()


def name_chain(tokens: Sequence[Token], index: int) -> list[Token]:
    """The parts of the dotted name that begins at a token."""
    parts = [tokens[index]]
    while index + 2 < len(tokens) and tokens[index + 1].token_type is TokenType.DOT and is_name(tokens[index + 2]):
        index += 2
        parts.append(tokens[index])
    return parts


class Cursor:
    """A position in the tokens of one statement."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self.tokens = tuple(Spark().tokenize(text))
        except TokenError as error:
            raise BadInputError("cannot parse the statement: unterminated string, quoted name or comment") from error
        while self.tokens and self.tokens[-1].token_type is TokenType.SEMICOLON:
            self.tokens = self.tokens[:-1]
        if not self.tokens:
            raise BadInputError("the statement is empty")
        self.closing = self._match_parentheses()
        self.at = 0

    def _match_parentheses(self) -> dict[int, int]:
        """The index of the closing parenthesis of every opening one."""
        closing: dict[int, int] = {}
        unclosed: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.token_type in _OPEN:
                unclosed.append(index)
            elif token.token_type in _CLOSE:
                if not unclosed or _OPEN[self.tokens[unclosed[-1]].token_type] is not token.token_type:
                    raise self.error(f"unexpected {token.text!r}", index)
                closing[unclosed.pop()] = index
            elif token.token_type is TokenType.SEMICOLON:
                raise BadInputError("only one statement at a time; there is more text after ';'")
        if unclosed:
            raise self.error("this parenthesis is never closed", unclosed[-1])
        return closing

    def error(self, message: str, index: int | None = None) -> BadInputError:
        """An error at a token, by default the next one."""
        index = self.at if index is None else index
        if index >= len(self.tokens):
            return BadInputError(f"cannot parse the statement at its end: {message}", context={"position": None})
        start = self.tokens[index].start
        near = one_line(self.text[start : start + 20])
        return BadInputError(
            f"cannot parse the statement at position {start + 1}, near {near!r}: {message}", context={"position": start}
        )

    @property
    def done(self) -> bool:
        return self.at >= len(self.tokens)

    def sees(self, *words: str) -> bool:
        """Whether these words come next, in this order."""
        ahead = self.tokens[self.at : self.at + len(words)]
        return len(ahead) == len(words) and all(is_word(token, word) for token, word in zip(ahead, words, strict=True))

    def sees_symbol(self, kind: TokenType) -> bool:
        """Whether a token of this kind comes next."""
        return not self.done and self.tokens[self.at].token_type is kind

    def accept(self, *words: str) -> bool:
        """Step over these words if they come next."""
        if not self.sees(*words):
            return False
        self.at += len(words)
        return True

    def name(self) -> tuple[str, ...]:
        """Step over a name; its parts."""
        parts = [self.word()]
        while self.sees_symbol(TokenType.DOT):
            self.at += 1
            parts.append(self.word())
        return tuple(parts)

    def word(self) -> str:
        """Step over a name of one part."""
        if self.done or not is_name(self.tokens[self.at]):
            raise self.error("a name is expected")
        self.at += 1
        return str(self.tokens[self.at - 1].text)

    def until(self, ends: Callable[[Cursor], bool] = lambda _: False) -> Piece:
        """Step over an expression: at least one token, up to where ``ends`` holds or to the end of the statement.

        Parentheses and ``CASE … END`` are stepped over whole, so ``ends`` never sees the keywords inside them.
        """
        first, open_cases = self.at, 0
        while not self.done and (open_cases or not ends(self)):
            token = self.tokens[self.at]
            if token.token_type in _OPEN:
                self.at = self.closing[self.at]
            elif is_word(token, "CASE"):
                open_cases += 1
            elif is_word(token, "END") and open_cases:
                open_cases -= 1
            self.at += 1
        if self.at == first:
            raise self.error("an expression is expected")
        return self.piece(first, self.at)

    def items(self) -> list[Piece]:
        """Step over a parenthesised, comma-separated list, which must come next; its items."""
        if not self.sees_symbol(TokenType.L_PAREN):
            raise self.error("'(' is expected")
        stop = self.closing[self.at]
        found: list[Piece] = []
        while self.at < stop:
            self.at += 1  # over the opening parenthesis or a comma
            if self.at < stop or found:
                found.append(self.until(lambda cursor: cursor.at >= stop or cursor.sees_symbol(TokenType.COMMA)))
        self.at = stop + 1
        return found

    def piece(self, first: int, stop: int) -> Piece:
        """The tokens of a range with their text."""
        start, end = self.tokens[first].start, self.tokens[stop - 1].end + 1
        return Piece(self.tokens[first:stop], self.text[start:end], start)

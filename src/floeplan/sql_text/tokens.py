"""The tokens of a statement, read from left to right, with the text between any two of them exactly as written.

Rule: only the words of the statement itself are interpreted; an expression or a query is found by where it ends (a
keyword or comma outside all parentheses and outside CASE … END) and is kept as text, so nothing in it is changed.

Fail-safe: parentheses must match, a second statement after ``;`` is refused, and every error names the place.
"""

from __future__ import annotations

from collections.abc import Callable
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
_NO_WORDS = frozenset((TokenType.STRING, TokenType.IDENTIFIER, TokenType.NUMBER))


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens with its text."""

    tokens: tuple[Token, ...]
    text: str
    start: int


def is_word(token: Token, *words: str) -> bool:
    """Whether a token is one of these keywords, unquoted."""
    return token.token_type not in _NO_WORDS and token.text.upper() in words


def is_name(token: Token) -> bool:
    """Whether a token can be a part of a name: a word, quoted or not, also one that is a keyword elsewhere."""
    if token.token_type is TokenType.IDENTIFIER:
        return True
    return token.token_type not in _NO_WORDS and token.text.replace("_", "a").isalnum()


def whole_name(piece: Piece) -> tuple[str, ...]:
    """The parts of a name that is all there is."""
    parts, dots = piece.tokens[::2], piece.tokens[1::2]
    joined = len(parts) == len(dots) + 1 and all(dot.token_type is TokenType.DOT for dot in dots)
    if not joined or not all(map(is_name, parts)):
        raise BadInputError(f"{piece.text!r} is not a name", context={"position": piece.start})
    return tuple(str(part.text) for part in parts)


class Cursor:
    """A place in the statement."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self.tokens = tuple(Spark().tokenize(text))
        except TokenError as error:
            raise BadInputError("cannot parse the statement: a string, name or comment is not finished") from error
        while self.tokens and self.tokens[-1].token_type is TokenType.SEMICOLON:
            self.tokens = self.tokens[:-1]
        if not self.tokens:
            raise BadInputError("the statement is empty")
        self.partner = self._partners()
        self.at = 0

    def _partners(self) -> dict[int, int]:
        """The closing parenthesis of every opening one."""
        partner: dict[int, int] = {}
        waiting: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.token_type in _OPEN:
                waiting.append(index)
            elif token.token_type in _CLOSE:
                if not waiting or _OPEN[self.tokens[waiting[-1]].token_type] is not token.token_type:
                    raise self.error(f"unexpected {token.text!r}", index)
                partner[waiting.pop()] = index
            elif token.token_type is TokenType.SEMICOLON:
                raise BadInputError("one statement at a time; there is more text after ';'")
        if waiting:
            raise self.error("this parenthesis is never closed", waiting[-1])
        return partner

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

    def sees_symbol(self, *kinds: TokenType) -> bool:
        """Whether a token of one of these kinds comes next."""
        return not self.done and self.tokens[self.at].token_type in kinds

    def accept(self, *words: str) -> bool:
        """Step over these words if they come next."""
        if not self.sees(*words):
            return False
        self.at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Step over these words, which must come next."""
        if not self.accept(*words):
            raise self.error(f"{' '.join(words)} is expected")

    def expect_end(self) -> None:
        """Nothing may follow."""
        if not self.done:
            raise self.error("the statement should end here")

    def name(self) -> tuple[str, ...]:
        """A name with its parts, joined by dots."""
        parts = [self.word()]
        while self.sees_symbol(TokenType.DOT):
            self.at += 1
            parts.append(self.word())
        return tuple(parts)

    def word(self) -> str:
        """A name of one part."""
        if self.done or not is_name(self.tokens[self.at]):
            raise self.error("a name is expected")
        self.at += 1
        return str(self.tokens[self.at - 1].text)

    def until(self, ends: Callable[[Cursor], bool]) -> Piece:
        """Everything up to where ``ends`` says so, parentheses and CASE … END taken whole; at least one token."""
        first, cases = self.at, 0
        while not self.done and (cases or not ends(self)):
            token = self.tokens[self.at]
            if token.token_type in _OPEN:
                self.at = self.partner[self.at]
            elif is_word(token, "CASE"):
                cases += 1
            elif is_word(token, "END") and cases:
                cases -= 1
            self.at += 1
        if self.at == first:
            raise self.error("an expression is expected")
        return self.piece(first, self.at)

    def rest(self) -> Piece:
        """Everything that follows."""
        return self.until(lambda _: False)

    def parenthesised(self) -> tuple[int, int]:
        """Step over a pair of parentheses, which must come next; returns the range of tokens between them."""
        if not self.sees_symbol(TokenType.L_PAREN):
            raise self.error("'(' is expected")
        first, self.at = self.at + 1, self.partner[self.at] + 1
        return first, self.at - 1

    def items(self) -> list[Piece]:
        """The items of a parenthesised, comma-separated list."""
        first, stop = self.parenthesised()
        after, self.at = self.at, first
        found: list[Piece] = []
        while self.at < stop:
            found.append(self.until(lambda cursor: cursor.at >= stop or cursor.sees_symbol(TokenType.COMMA)))
            if self.at < stop:
                self.at += 1
                if self.at == stop:
                    raise self.error("an item is expected after the comma")
        self.at = after
        return found

    def names(self) -> tuple[tuple[str, ...], ...]:
        """The names in a parenthesised, comma-separated list."""
        return tuple(map(whole_name, self.items()))

    def piece(self, first: int, stop: int) -> Piece:
        """The tokens of a range with their text."""
        start, end = self.tokens[first].start, self.tokens[stop - 1].end + 1
        return Piece(self.tokens[first:stop], self.text[start:end], start)

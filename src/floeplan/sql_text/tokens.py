"""Tokens of a statement, with the exact source text of any run of them, and the qualifiers of columns in that text.

``Cursor`` steps over the tokens of sqlglot's Spark tokenizer. An expression or query ends at a keyword or comma outside
all parentheses and outside ``CASE … END``; it is kept as text, so nothing in it changes but its qualifiers.

A table with an alias is qualified by the alias alone; one without by the last parts of its name (``t``, ``db.t``). As
in Spark, a qualifier takes precedence over a struct of the same name, and case does not matter.

Fail-safe: parentheses must match, a second statement after ``;`` is refused, and every error names its position. An
expression in which a qualifier is ambiguous (a lambda variable of the same name, a subquery with names of its own) is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlglot import Token, TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError

from floeplan.errors import BadInputError
from floeplan.text import excerpt, one_line

_OPEN = {
    TokenType.L_PAREN: TokenType.R_PAREN,
    TokenType.L_BRACKET: TokenType.R_BRACKET,
    TokenType.L_BRACE: TokenType.R_BRACE,
}
_CLOSE = frozenset(_OPEN.values())
_LITERALS = frozenset((TokenType.STRING, TokenType.IDENTIFIER, TokenType.NUMBER))
_PARAMETERS = frozenset((TokenType.PLACEHOLDER, TokenType.PARAMETER))
QUERY_WORDS = ("SELECT", "VALUES", "WITH", "TABLE", "FROM")
"""Words that a query begins with."""

Qualifiers: TypeAlias = Mapping[tuple[str, ...], str]
"""The replacement of each lowercase qualifier; the empty string removes it."""


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


def quoted(*parts: str) -> str:
    """A name with every part in backquotes."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


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
        self.at = 0
        self.closing: dict[int, int] = {}
        """The index of the closing parenthesis of every opening one."""
        unclosed: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.token_type in _OPEN:
                unclosed.append(index)
            elif token.token_type in _CLOSE:
                if not unclosed or _OPEN[self.tokens[unclosed[-1]].token_type] is not token.token_type:
                    raise self.error(f"unexpected {token.text!r}", index)
                self.closing[unclosed.pop()] = index
            elif token.token_type is TokenType.SEMICOLON:
                raise BadInputError("only one statement at a time; there is more text after ';'")
        if unclosed:
            raise self.error("this parenthesis is never closed", unclosed[-1])

    def error(self, message: str, index: int | None = None) -> BadInputError:
        """An error at a token, by default the next one."""
        index = self.at if index is None else index
        if index >= len(self.tokens):
            return BadInputError(f"cannot parse the statement at its end: {message}", context={"position": None})
        start = self.tokens[index].start
        near = one_line(self.text[start : start + 20])
        return BadInputError(
            f"cannot parse the statement at position {start + 1}, near {near!r}: {message}",
            context={"position": start + 1},
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


def qualifiers_of(*tables: tuple[Sequence[str], str | None, str]) -> Qualifiers:
    """The qualifiers of tables, each given by the parts of its name, its alias and the replacement."""
    found: dict[tuple[str, ...], str] = {}
    for parts, alias, replacement in tables:
        names = [(alias,)] if alias is not None else [tuple(parts[i:]) for i in range(len(parts))]
        found.update({tuple(part.lower() for part in name): replacement for name in names})
    return found


def qualifier_length(parts: Sequence[str], qualifiers: Qualifiers) -> int:
    """The number of leading parts of a name that are a qualifier; at least one part is the column."""
    folded = tuple(part.lower() for part in parts)
    return max((n for n in range(1, len(parts)) if folded[:n] in qualifiers), default=0)


def expression_text(piece: Piece, qualifiers: Qualifiers, what: str) -> str:
    """The text of an expression with its qualifiers replaced; ``what`` names the clause in errors."""
    shown, context = excerpt(one_line(piece.text)), {"text": piece.text}
    if has_subquery(piece):
        advice = "use MERGE with the subquery as its source"
        raise BadInputError(f"{what} has a subquery, which is not supported; {advice}: {shown}", context=context)
    refuse_parameters(piece, what)
    text, tokens, shift = piece.text, piece.tokens, -piece.start
    for index, token in enumerate(tokens):
        # Before ``->`` are the variables of a lambda: one, or several in parentheses.
        if token.token_type is TokenType.ARROW and index:
            first = index - 1
            if tokens[first].token_type is TokenType.R_PAREN:
                while first and tokens[first].token_type is not TokenType.L_PAREN:
                    first -= 1
            for variable in filter(is_name, tokens[first:index]):
                if (variable.text.lower(),) in qualifiers:
                    message = f"{what}: {variable.text} is a table and the variable of a lambda; rename one: {shown}"
                    raise BadInputError(message, context=context)
        if not is_name(token) or (index and tokens[index - 1].token_type is TokenType.DOT):
            continue
        # A name begins here. The last part of a function's name is not a column.
        chain = name_chain(tokens, index)
        parts = [str(one.text) for one in chain]
        after = index + 2 * len(chain) - 1
        is_call = after < len(tokens) and tokens[after].token_type is TokenType.L_PAREN
        length = qualifier_length(parts[:-1] if is_call else parts, qualifiers)
        if not length:
            continue
        replacement = qualifiers[tuple(part.lower() for part in parts[:length])]
        column = chain[length]
        name = text[column.start + shift : column.end + 1 + shift]
        if column.token_type not in (TokenType.VAR, TokenType.IDENTIFIER):
            name = f"`{column.text}`"  # without its qualifier a column named like a keyword would be the keyword
        new = f"{replacement}.{name}" if replacement else name
        start, stop = chain[0].start + shift, column.end + 1 + shift
        text = text[:start] + new + text[stop:]
        shift += len(new) - (stop - start)
    return text


def has_subquery(piece: Piece) -> bool:
    """Whether an expression contains a query."""
    for index, token in enumerate(piece.tokens):
        opened = index > 0 and piece.tokens[index - 1].token_type is TokenType.L_PAREN
        if is_word(token, "SELECT") or (opened and is_word(token, *QUERY_WORDS)):
            return True
    return False


def refuse_parameters(piece: Piece, what: str) -> None:
    """Raise if an expression has a parameter marker: a statement has no arguments."""
    if any(token.token_type in _PARAMETERS for token in piece.tokens):
        raise BadInputError(f"{what} has a parameter; write its value instead: {excerpt(one_line(piece.text))}")

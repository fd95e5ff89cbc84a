"""Long IN lists of plain literals, kept from the SQL parser, which takes most of a millisecond for each.

Rule: a list of more than ``LONG`` tokens whose items are all plain literals (a number, maybe with a minus, a string,
NULL, ``DATE '…'`` and the like) is cut down to its first item before parsing and put back, as the same nodes the parser
would have made, afterwards. Any other list is left to the parser.

Whole numbers, of which lists have thousands, do not get as far as tokens: in the text they are blanked out to a single
zero, nothing else moves, and they are read from the text where the piece they are in asks for them.

Fail-safe: a list that is blanked out must come back from the tokenizer as that zero between its parentheses. One that
does not, say because it is inside a string, leaves the whole text as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.tokenizer_core import Token, TokenType

LONG = 200
_TYPED = {
    TokenType.DATE: exp.DType.DATE,
    TokenType.TIMESTAMP: exp.DType.TIMESTAMP,
    TokenType.TIMESTAMPTZ: exp.DType.TIMESTAMPTZ,
    TokenType.TIMESTAMPLTZ: exp.DType.TIMESTAMPLTZ,
    TokenType.TIMESTAMPNTZ: exp.DType.TIMESTAMPNTZ,
}
_NUMBERS = re.compile(r"-?+[0-9]{1,18}+(?:\s*+,\s*+-?+[0-9]{1,18}+)++\s*+", re.ASCII)
"""Whole numbers that surely have 64 bits."""
_LIST = re.compile(rf"\bIN\s*+\(\s*+({_NUMBERS.pattern})\)", re.ASCII | re.IGNORECASE)
_BLANKS = str.maketrans(dict.fromkeys("0123456789-,", " "))


def without_numbers(sql: str) -> tuple[str, list[tuple[int, int]]]:
    """The text with long lists of whole numbers blanked out, and where they begin and end."""
    spans = [found.span(1) for found in _LIST.finditer(sql) if found[1].count(",") * 2 >= LONG]
    parts, kept = [], 0
    for start, end in spans:
        parts += [sql[kept:start], "0", sql[start + 1 : end].translate(_BLANKS)]
        kept = end
    return "".join([*parts, sql[kept:]]), spans


def all_blanked(tokens: Sequence[Token], spans: list[tuple[int, int]]) -> bool:
    """Whether each list that was blanked out came back as one number between its parentheses."""
    found = {(tokens[at].start, tokens[at + 1].start) for at in range(len(tokens) - 1) if _may_be_blank(tokens, at)}
    return found.issuperset(spans)


def take_long_list(tokens: Sequence[Token], sql: str) -> tuple[list[Token], list[exp.Expr], tuple[int, ...]]:
    """The tokens with a long list cut to its first item, and all its items, as nodes or as whole numbers.

    No items when there is none.
    """
    opening = next((at for at, token in enumerate(tokens) if token.token_type is TokenType.L_PAREN), 0)
    ends = opening > 0 and tokens[opening - 1].token_type is TokenType.IN
    ends = ends and tokens[-1].token_type is TokenType.R_PAREN
    numbers = _numbers(tokens, opening + 1, sql) if ends and len(tokens) == opening + 3 else None
    if numbers is not None:
        return list(tokens), [], tuple(map(int, numbers.split(",")))
    kept = list(_with_numbers(tokens, sql))
    if len(kept) < LONG or not ends:
        return kept, [], ()
    items = _items(kept[opening + 1 : -1])
    if items is None:
        return kept, [], ()
    first_comma = next(i for i in range(opening, len(kept)) if kept[i].token_type is TokenType.COMMA)
    return [*kept[:first_comma], kept[-1]], items, ()


def put_long_list(tree: exp.Expr, items: Sequence[exp.Expr | int]) -> exp.Expr:
    """Give the one IN of the tree its items back, if there are any."""
    if items:
        listed = tree.find(exp.In)
        assert listed is not None
        listed.set("expressions", [exp.convert(item) if isinstance(item, int) else item for item in items])
    return tree


def _may_be_blank(tokens: Sequence[Token], at: int) -> bool:
    one = tokens[at].token_type is TokenType.NUMBER and tokens[at].text == "0"
    return one and tokens[at + 1].token_type is TokenType.R_PAREN


def _numbers(tokens: Sequence[Token], at: int, sql: str) -> str | None:
    """The text of the numbers that a token stands for, if it stands for any."""
    if at + 1 >= len(tokens) or not _may_be_blank(tokens, at):
        return None
    found = _NUMBERS.fullmatch(sql, tokens[at].start, tokens[at + 1].start)
    return found and found[0]


def _with_numbers(tokens: Sequence[Token], sql: str) -> Iterator[Token]:
    """The tokens with those of the numbers that others stand for."""
    for at, token in enumerate(tokens):
        numbers = _numbers(tokens, at, sql)
        if numbers is None:
            yield token
            continue
        for one in Spark().tokenize(numbers):
            start, end = token.start + one.start, token.start + one.end
            yield Token(one.token_type, one.text, token.line, token.col, start, end)


def _items(tokens: Sequence[Token]) -> list[exp.Expr] | None:
    items: list[exp.Expr] = []
    start = 0
    for index in range(len(tokens) + 1):
        if index == len(tokens) or tokens[index].token_type is TokenType.COMMA:
            item = _item(tokens[start:index])
            if item is None:
                return None
            items.append(item)
            start = index + 1
    return items


def _item(tokens: Sequence[Token]) -> exp.Expr | None:
    """The node of a plain literal."""
    match [token.token_type for token in tokens]:
        case [TokenType.NUMBER]:
            return exp.Literal.number(tokens[0].text)
        case [TokenType.STRING]:
            return exp.Literal.string(tokens[0].text)
        case [TokenType.NULL]:
            return exp.Null()
        case [TokenType.DASH, TokenType.NUMBER]:
            return exp.Neg(this=exp.Literal.number(tokens[1].text))
        case [kind, TokenType.STRING] if kind in _TYPED:
            return exp.Cast(this=exp.Literal.string(tokens[1].text), to=exp.DataType(this=_TYPED[kind]))
    return None

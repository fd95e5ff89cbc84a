"""Long IN lists of plain literals, kept from the SQL parser, which takes most of a millisecond for each.

Rule: a list of more than ``LONG`` tokens whose items are all plain literals (a number, maybe with a minus, a string,
NULL, ``DATE '…'`` and the like) is cut down to its first item before parsing and put back, as the same nodes the parser
would have made, afterwards. Any other list is left to the parser.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

LONG = 200
_TYPED = {
    TokenType.DATE: exp.DType.DATE,
    TokenType.TIMESTAMP: exp.DType.TIMESTAMP,
    TokenType.TIMESTAMPTZ: exp.DType.TIMESTAMPTZ,
    TokenType.TIMESTAMPLTZ: exp.DType.TIMESTAMPLTZ,
    TokenType.TIMESTAMPNTZ: exp.DType.TIMESTAMPNTZ,
}


def take_long_list(tokens: Sequence[Token]) -> tuple[list[Token], list[exp.Expr]]:
    """The tokens with a long list cut to its first item, and all its items; no items when there is none."""
    kept = list(tokens)
    if len(kept) < LONG or kept[-1].token_type is not TokenType.R_PAREN:
        return kept, []
    for opening in range(1, len(kept)):
        if kept[opening].token_type is TokenType.L_PAREN:
            break
    if kept[opening - 1].token_type is not TokenType.IN:
        return kept, []
    items = _items(kept[opening + 1 : -1])
    if items is None:
        return kept, []
    first_comma = next(i for i in range(opening, len(kept)) if kept[i].token_type is TokenType.COMMA)
    return [*kept[:first_comma], kept[-1]], items


def put_long_list(tree: exp.Expr, items: list[exp.Expr]) -> None:
    """Give the one IN of the tree its items back."""
    listed = tree.find(exp.In)
    assert listed is not None
    listed.set("expressions", items)


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

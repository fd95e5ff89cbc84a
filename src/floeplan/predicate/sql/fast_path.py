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

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser

from floeplan.errors import FloeplanError
from floeplan.predicate.casts import NeedsRows, Term, compare
from floeplan.predicate.ir import CmpOp, IrExpr
from floeplan.predicate.literals import Kind, Literal, checked_text
from floeplan.predicate.names import Names
from floeplan.predicate.spark_text import parse_date, parse_timestamp

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


# Pieces of a predicate that need no SQL parser: ``column op literal``, which is what most predicates are made of.
#
# Rule: a bare name, a comparison and a whole number, a string, a date or a timestamp are compiled from their tokens
# into
# what the parser's tree would become, in a fraction of the time. Fail-safe: every other run of tokens is left to the
# parser, and so is one with anything wrong in it, because the parser's way says what and where.


WHOLE_NUMBER = re.compile("[0-9]{1,18}")
"""Digits of a number that surely has 64 bits; longer ones may be decimals."""

_OPERATORS = {
    TokenType.EQ: CmpOp.EQ,
    TokenType.NEQ: CmpOp.NE,
    TokenType.LT: CmpOp.LT,
    TokenType.LTE: CmpOp.LE,
    TokenType.GT: CmpOp.GT,
    TokenType.GTE: CmpOp.GE,
    TokenType.NULLSAFE_EQ: CmpOp.NULL_SAFE_EQ,
}
_ZONED = {
    TokenType.TIMESTAMP: True,
    TokenType.TIMESTAMPTZ: True,
    TokenType.TIMESTAMPLTZ: True,
    TokenType.TIMESTAMPNTZ: False,
}
_FUNCTIONS = frozenset(SparkParser.NO_PAREN_FUNCTION_PARSERS)
"""Names that the parser takes for functions although no parenthesis follows."""


def plain_comparison(tokens: Sequence[Token], names: Names) -> IrExpr | None:
    """The comparison that a piece is, if it is a plain one."""
    if not 3 <= len(tokens) <= 4 or tokens[0].token_type is not TokenType.VAR:
        return None
    name, op = tokens[0].text, _OPERATORS.get(tokens[1].token_type)
    if op is None or name.upper() in _FUNCTIONS:
        return None
    try:
        literal = _literal(tokens[2:])
        if literal is None:
            return None
        column = names.column((name,))
        return compare(Term(column, column.type), op, literal)
    except (FloeplanError, NeedsRows):
        return None


def _literal(tokens: Sequence[Token]) -> Literal | None:
    kind, text = tokens[0].token_type, tokens[-1].text
    if len(tokens) == 1:
        if kind is TokenType.STRING:
            return Literal(Kind.STRING, checked_text(text))
        whole = kind is TokenType.NUMBER and WHOLE_NUMBER.fullmatch(text)
        return Literal(Kind.INTEGER, int(text)) if whole else None
    if tokens[1].token_type is not TokenType.STRING:
        return None
    if kind is TokenType.DATE:
        days = parse_date(text)
        return Literal(Kind.DATE, days) if -(2**31) <= days < 2**31 else None
    zoned = _ZONED.get(kind)
    return None if zoned is None else _timestamp(text, zoned)


def _timestamp(text: str, zoned: bool) -> Literal | None:
    """A timestamp within the years that nanoseconds reach."""
    nanos = parse_timestamp(text, zoned=zoned)
    return Literal(Kind.TIMESTAMP, nanos, zoned=zoned, from_text=True) if -(2**63) <= nanos < 2**63 else None

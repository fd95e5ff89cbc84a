"""Pieces of a predicate that need no SQL parser: ``column op literal``, which is what most predicates are made of.

Rule: a bare name, a comparison and a whole number, a string, a date or a timestamp are compiled from their tokens into
what the parser's tree would become, in a fraction of the time. Fail-safe: every other run of tokens is left to the
parser, and so is one with anything wrong in it, because the parser's way says what and where.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from floeplan.errors import FloeplanError
from floeplan.predicate.casts import NeedsRows, Term, compare
from floeplan.predicate.ir import CmpOp, IrExpr
from floeplan.predicate.names import Names
from floeplan.predicate.raw_literals import Kind, Literal, checked_text
from floeplan.predicate.spark_text import parse_date, parse_timestamp

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

"""Pieces of a predicate that need no SQL parser: ``column op literal``, which is what most predicates are made of.

Rule: a bare name, a comparison and a plain literal (``long_lists.plain_literal``) become the nodes that the parser
would have made, in a tenth of the time. Fail-safe: every other run of tokens, a quoted name and a name that the parser
reads as a function without parentheses among them, is left to the parser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from floeplan.predicate.long_lists import plain_literal

_COMPARISONS: dict[TokenType, type[exp.Binary]] = {
    TokenType.EQ: exp.EQ,
    TokenType.NEQ: exp.NEQ,
    TokenType.LT: exp.LT,
    TokenType.LTE: exp.LTE,
    TokenType.GT: exp.GT,
    TokenType.GTE: exp.GTE,
    TokenType.NULLSAFE_EQ: exp.NullSafeEQ,
}
_MOST_TOKENS = 4
_FUNCTIONS = frozenset(SparkParser.NO_PAREN_FUNCTION_PARSERS)


@dataclass(frozen=True, slots=True)
class PlainComparison:
    """``name op literal``."""

    name: str
    op: type[exp.Binary]
    literal: exp.Expr


def plain_comparison(tokens: Sequence[Token]) -> PlainComparison | None:
    """The comparison that a piece is, if it is a plain one."""
    if not 3 <= len(tokens) <= _MOST_TOKENS or tokens[0].token_type is not TokenType.VAR:
        return None
    name, op = tokens[0].text, _COMPARISONS.get(tokens[1].token_type)
    literal = None if op is None or name.upper() in _FUNCTIONS else plain_literal(tokens[2:])
    return None if op is None or literal is None else PlainComparison(name, op, literal)

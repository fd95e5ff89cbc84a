"""What is fixed about a statement before it is planned: its timestamp, and conditions that contain subqueries.

``current_timestamp()`` and related functions are evaluated once per statement and replaced by a literal, because tasks
run at different times and may run twice. Other non-deterministic functions (``rand()``, ``uuid()``) are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from pyiceberg.schema import Schema
from sqlglot import Token, TokenType

from floeplan.errors import PredicateSyntaxError
from floeplan.predicate.compile import PredicateSource
from floeplan.predicate.sql.split import tokenize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Value = TypeVar("Value")

_INSTANT_FUNCTIONS = ("current_timestamp", "now")
_LOCAL_FUNCTION = "localtimestamp"
_DATE_FUNCTIONS = ("current_date", "curdate")
_MENTIONED = re.compile("|".join((*_INSTANT_FUNCTIONS, _LOCAL_FUNCTION, *_DATE_FUNCTIONS)), re.IGNORECASE)


def statement_timestamp() -> datetime:
    """The time a statement begins."""
    return datetime.now(UTC)


def with_timestamp(value: Value, timestamp: datetime) -> Value:
    """SQL text with ``current_timestamp()`` and related functions as literals; other values unchanged."""
    return _substitute(value, timestamp) if isinstance(value, str) else value  # type: ignore[return-value]


def _substitute(text: str, timestamp: datetime) -> str:
    if _MENTIONED.search(text) is None:
        return text
    try:
        tokens = tokenize(text)
    except PredicateSyntaxError:
        return text  # the parser reports the error with its position
    parts, end = [], 0
    for at, token in enumerate(tokens):
        literal = _literal(token.text.lower(), timestamp)
        if literal is None or token.token_type is TokenType.STRING or token.start < end or _is_name(tokens, at):
            continue
        called = [other.token_type for other in tokens[at + 1 : at + 3]] == [TokenType.L_PAREN, TokenType.R_PAREN]
        # Spark allows current_timestamp and current_date without parentheses, but not now and curdate.
        if not called and token.text.lower() in ("now", "curdate"):
            continue
        parts += [text[end : token.start], literal]
        end = (tokens[at + 2] if called else token).end + 1
    return "".join([*parts, text[end:]])


def _literal(name: str, timestamp: datetime) -> str | None:
    if name in _INSTANT_FUNCTIONS:
        return f"TIMESTAMP '{timestamp.isoformat(sep=' ', timespec='microseconds').replace('+00:00', 'Z')}'"
    if name == _LOCAL_FUNCTION:
        return f"TIMESTAMP_NTZ '{timestamp.replace(tzinfo=None).isoformat(sep=' ', timespec='microseconds')}'"
    return f"DATE '{timestamp.date().isoformat()}'" if name in _DATE_FUNCTIONS else None


def _is_name(tokens: list[Token], at: int) -> bool:
    """Whether a token is part of a column name, or quoted as one."""
    dots = [tokens[n].token_type is TokenType.DOT for n in (at - 1, at + 1) if 0 <= n < len(tokens)]
    return any(dots) or tokens[at].token_type is TokenType.IDENTIFIER


@dataclass(frozen=True, slots=True)
class SubqueryCondition:
    """A condition with subqueries, which only Spark can evaluate.

    Files are planned with ``implied``, so that no file that may match is left out whatever the subqueries return, and
    no file is removed by metadata alone; Spark then evaluates the condition on every row of those files.

    Attributes:
        text: The condition; its subqueries name views of the session.
        implied: What every matching row satisfies, without subqueries.
        alias: The name of the table in the condition.
    """

    text: str
    implied: str
    alias: str

    def columns(self, schema: Schema) -> set[int]:
        """The columns the condition may name, including same-named columns of other tables."""
        words = {token.text.lower() for token in tokenize(self.text)}
        return {field.field_id for field in schema.fields if field.name.lower() in words}

    def matching(self, frame: DataFrame) -> DataFrame:
        """The rows of a frame for which the condition is TRUE."""
        from pyspark.sql import functions

        return frame.alias(self.alias).where(functions.expr(self.text))


def planned(where: PredicateSource | SubqueryCondition) -> PredicateSource:
    """The predicate to plan files with."""
    return where.implied if isinstance(where, SubqueryCondition) else where

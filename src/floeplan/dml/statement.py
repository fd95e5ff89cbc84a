"""``current_timestamp()`` and its kin in a statement: one moment for the whole statement, written as a literal.

Tasks run at different times and may run twice, so the moment is fixed before anything is planned. Everything else whose
value changes with every run (``rand()``, ``uuid()``) stays refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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

Given = TypeVar("Given")

_INSTANTS = ("current_timestamp", "now")
_LOCAL = "localtimestamp"
_DAYS = ("current_date", "curdate")
_MENTIONED = re.compile("|".join((*_INSTANTS, _LOCAL, *_DAYS)), re.IGNORECASE)


def with_timestamp(given: Given, moment: datetime) -> Given:
    """SQL text with the moment written out; anything that is no text as it is."""
    return _written(given, moment) if isinstance(given, str) else given  # type: ignore[return-value]


def all_at_moment(given: Mapping[str, object], moment: datetime) -> dict[str, object]:
    """Assignments with the moment written out."""
    return {name: with_timestamp(value, moment) for name, value in given.items()}


def statement_timestamp() -> datetime:
    """The time a statement begins at."""
    return datetime.now(UTC)


def _written(text: str, moment: datetime) -> str:
    if _MENTIONED.search(text) is None:
        return text
    try:
        tokens = tokenize(text)
    except PredicateSyntaxError:
        return text
    parts, end = [], 0
    for at, token in enumerate(tokens):
        literal = _literal(token.text.lower(), moment)
        if literal is None or token.token_type is TokenType.STRING or token.start < end or _is_name(tokens, at):
            continue
        called = [other.token_type for other in tokens[at + 1 : at + 3]] == [TokenType.L_PAREN, TokenType.R_PAREN]
        if not called and token.text.lower() in ("now", "curdate"):
            continue
        parts += [text[end : token.start], literal]
        end = (tokens[at + 2] if called else token).end + 1
    return "".join([*parts, text[end:]])


def _literal(name: str, moment: datetime) -> str | None:
    if name in _INSTANTS:
        return f"TIMESTAMP '{moment.isoformat(sep=' ', timespec='microseconds').replace('+00:00', 'Z')}'"
    if name == _LOCAL:
        return f"TIMESTAMP_NTZ '{moment.replace(tzinfo=None).isoformat(sep=' ', timespec='microseconds')}'"
    return f"DATE '{moment.date().isoformat()}'" if name in _DAYS else None


def _is_name(tokens: list[Token], at: int) -> bool:
    """Whether this is a part of a column's name, or quoted as one."""
    dots = [tokens[n].token_type is TokenType.DOT for n in (at - 1, at + 1) if 0 <= n < len(tokens)]
    return any(dots) or tokens[at].token_type is TokenType.IDENTIFIER


# Conditions with subqueries, which only Spark can evaluate.
#
# Rule: Spark decides about every row of the files that may match. Fail-safe: files are planned with what the condition
# implies without its subqueries, so that whatever these find, no file that could matter is left out; and no file is
# dropped by metadata alone.


@dataclass(frozen=True, slots=True)
class SubqueryCondition:
    """A condition as Spark reads it.

    Attributes:
        text: The condition; its subqueries name views of the session.
        implied: What every matching row satisfies, without subqueries.
        alias: What the condition calls the table.
    """

    text: str
    implied: str
    alias: str

    def columns(self, schema: Schema) -> set[int]:
        """The columns that the condition may name; those of other tables with the same names among them."""
        words = {token.text.lower() for token in tokenize(self.text)}
        return {field.field_id for field in schema.fields if field.name.lower() in words}

    def matching(self, frame: DataFrame) -> DataFrame:
        """The rows of a frame for which the condition is TRUE."""
        from pyspark.sql import functions

        return frame.alias(self.alias).where(functions.expr(self.text))


def planned(where: PredicateSource | SubqueryCondition) -> PredicateSource:
    """What files are chosen by."""
    return where.implied if isinstance(where, SubqueryCondition) else where

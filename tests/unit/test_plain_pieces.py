"""Plain comparisons skip the SQL parser; whatever skips it must mean what it means to the parser."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokens import Tokenizer, TokenType

from floeplan.errors import FloeplanError
from floeplan.predicate.names import Names
from floeplan.predicate.sql import compiler as sql
from floeplan.predicate.sql.compiler import compile_sql
from floeplan.predicate.sql.fast_path import plain_comparison
from floeplan.predicate.sql.skeleton import tokens_of

pytestmark = pytest.mark.unit
TYPES: dict[str, PrimitiveType] = {
    "i": IntegerType(),
    "l": LongType(),
    "d": DoubleType(),
    "dec": DecimalType(9, 2),
    "s": StringType(),
    "b": BinaryType(),
    "flag": BooleanType(),
    "day": DateType(),
    "clock": TimeType(),
    "ts": TimestampType(),
    "tz": TimestamptzType(),
    "ns": TimestampNanoType(),
    "u": UUIDType(),
}
OPERATORS = ("=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>")
PLAIN = (
    "1",
    "007",
    "123456789012345678",
    "'eu'",
    '"eu"',
    "'it''s'",
    "''",
    "'7'",
    "'2024-01-01'",
    "DATE '2024-01-01'",
    "date '2024'",
    "TIMESTAMP '2024-01-01'",
    "TIMESTAMP '2024-01-01T10:00:00.123456789+02:00'",
    "TIMESTAMP_NTZ '2024-01-01 00:00:00 -05:00'",
    "TIMESTAMP_LTZ '1969-12-31 23:59:59.9999999'",
)
LEFT_TO_THE_PARSER = (
    "s = i",
    "1 = i",
    "`i` = 1",
    "t.i = 1",
    "i = .5",
    "i = 1.5",
    "i = -1",
    "i = 1L",
    "i = NULL",
    "i = TRUE",
    "i = 1234567890123456789",
    "b = X'1F'",
    "i = INTERVAL '1' DAY",
    "i = 1 + 1",
    "i IS NULL",
    "i IN (1)",
    "flag",
    "if = 1",
    "transform = 1",
    "s = 'x' 'y'",
    "i < 1 < 2",
    "tz > TIMESTAMP '+200000-01-01'",
    "tz > TIMESTAMP 'soon'",
    "day > DATE 'soon'",
    "s = '\ud800'",
    "many = 1",
    "unknown = 1",
)


def names_of(types: dict[str, PrimitiveType]) -> Names:
    fields = [NestedField(at, name, type_, required=False) for at, (name, type_) in enumerate(types.items(), 1)]
    many = ListType(element_id=101, element=IntegerType(), element_required=False)
    return Names(Schema(*fields, NestedField(100, "many", many, required=False)))


def outcome(text: str, names: Names) -> str:
    try:
        expr, errors = compile_sql(text, names)
    except FloeplanError as error:
        return f"{type(error).__name__}: {error.message} {error.context}"
    return f"{expr!r} {errors}"


@pytest.mark.parametrize("column", TYPES)
def test_a_plain_comparison_means_what_it_means_to_the_parser(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{column}{op} {literal} -- why" for op in OPERATORS for literal in PLAIN]
    plain = [outcome(text, names_of(TYPES)) for text in texts]
    monkeypatch.setattr(sql, "plain_comparison", lambda tokens, names: None)
    assert plain == [outcome(text, names_of(TYPES)) for text in texts]


@pytest.mark.parametrize("literal", PLAIN)
def test_plain_literals_need_no_parser(literal: str) -> None:
    column = "tz" if "TIME" in literal else "day" if "date" in literal.lower() else "s" if literal[0] in "'\"" else "l"
    assert plain_comparison(tokens_of(f"{column} >= {literal}"), names_of(TYPES)) is not None


@pytest.mark.parametrize("text", LEFT_TO_THE_PARSER)
def test_anything_else_is_left_to_the_parser(text: str) -> None:
    assert plain_comparison(tokens_of(text), names_of(TYPES)) is None


def test_a_name_that_means_something_to_the_parser_means_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {*Tokenizer.KEYWORDS, *Spark.Tokenizer.KEYWORDS, *SparkParser.FUNCTIONS, *SparkParser.FUNCTION_PARSERS}
    words |= {*SparkParser.NO_PAREN_FUNCTION_PARSERS, *SparkParser.STATEMENT_PARSERS}
    words |= {*SparkParser.QUERY_MODIFIER_PARSERS, *(kind.name for kind in TokenType)}
    columns = sorted({str(word).lower() for word in words if str(word).isidentifier()})
    named = [(f"{column} >= 'x'", names_of({column: StringType()})) for column in columns]
    plain = [(text, names) for text, names in named if plain_comparison(tokens_of(text), names) is not None]
    assert len(plain) > 100
    found = [outcome(*one) for one in plain]
    monkeypatch.setattr(sql, "plain_comparison", lambda tokens, names: None)
    assert found == [outcome(*one) for one in plain]

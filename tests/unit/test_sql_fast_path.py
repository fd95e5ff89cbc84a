"""The parser bypass for plain predicates: the same IR, errors and offsets as through sqlglot."""

from __future__ import annotations

import re

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
    StructType,
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
from floeplan.predicate import compile as compile_module
from floeplan.predicate import sql_compiler as sql
from floeplan.predicate import sql_parser
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.names import Names
from floeplan.predicate.plain_sql import compile_plain
from floeplan.predicate.sql_compiler import compile_sql

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
    "-1",
    "1.5",
    "-007.50",
    "1e3",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "12345678901234567890.123",
    "NULL",
)
LISTS = (
    "1",
    "1, 2, 3",
    "-1, 2.5, NULL, 9223372036854775808",
    "'a', 'it''s', NULL",
    "'1', 2",
    "DATE '2024-01-01', TIMESTAMP '2024-01-01 10:00:00', '2024-01-02'",
    ", ".join(map(str, range(-300, 300))),
)
MIXED = (
    "d IN ({}) AND dec IN ({})",
    "NOT (l IN ({}) OR i = 3)",
    "CAST(i AS BIGINT) IN ({})",
    "l + 1 IN ({})",
    "5 IN ({})",
    "-9 NOT IN ({})",
    "unknown IN ({})",
    "CASE WHEN l IN ({}) THEN i > 1 ELSE i < 1 END",
    "(l IN ({})) = (i = 1)",
    "coalesce(l IN ({}), FALSE)",
    "l IN ({}) IS NULL",
    "l = i IN ({})",
    "array_contains(array({}), l)",
    "l IN ({}) AND i >",
    "l IN ({}) AND s = 'open",
    "l IN ({}) /* open",
    "l IN ({})) AND i = 1",
)
LEFT_TO_THE_PARSER = (
    "s = i",
    "1 = i",
    "`i` = 1",
    "i = 1L",
    "i = TRUE",
    "b = X'1F'",
    "i = INTERVAL '1' DAY",
    "i = 1 + 1",
    "i IS NULL",
    "i = .5",
    "i IN ()",
    "i IN (1, i)",
    "i IN (1, 2L)",
    "i IN (1, 1 + 1)",
    "i IN (1,, 2)",
    "i IN (1 2)",
    "i IN (1) IS NULL",
    "i NOT (1)",
    "i + 1 IN (1)",
    "t.i = 1",
    "s IN (1)",
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
def test_the_bypass_and_the_parser_give_the_same_result(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{column}{op} {literal} -- why" for op in OPERATORS for literal in PLAIN]
    texts += [f"{column} {word}({listed})" for word in ("IN", "not in ") for listed in LISTS]
    plain = [outcome(text, names_of(TYPES)) for text in texts]
    monkeypatch.setattr(sql, "compile_plain", lambda text, names: None)
    assert plain == [outcome(text, names_of(TYPES)) for text in texts]


@pytest.mark.parametrize("text", MIXED)
def test_a_list_inside_a_larger_predicate_keeps_its_meaning(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome(text.replace("{}", LISTS[-1]), names_of(TYPES))
    monkeypatch.setattr(sql, "compile_plain", lambda text, names: None)
    assert found == outcome(text.replace("{}", LISTS[-1]), names_of(TYPES))


@pytest.mark.parametrize(
    "text", [*MIXED, *(f"{c} NOT IN ({{}})" for c in TYPES), "s = 'l IN ({})'", "-- IN ({})\ni = 1"]
)
def test_a_list_of_integers_is_read_without_tokens(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = text.replace("{}", LISTS[-1].replace("5,", "5\n ,\t"))
    found = outcome(text, names_of(TYPES))
    monkeypatch.setattr(sql_parser, "_INTEGERS", re.compile("(?!)"))
    assert found == outcome(text, names_of(TYPES))


def test_a_column_inside_a_struct_needs_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = StructType(NestedField(2, "b", LongType(), required=False))
    names = Names(Schema(NestedField(1, "a", inner, required=False)))
    assert compile_plain("a.b IN (1, 2)", names) is not None
    found = outcome("a.b IN (1, 2) AND a.b > 1", names)
    monkeypatch.setattr(sql, "compile_plain", lambda text, names: None)
    assert found == outcome("a.b IN (1, 2) AND a.b > 1", names)


@pytest.mark.parametrize(
    "text",
    [
        "i = 1 AND s = 'x' OR l IN (1, 2) AND NOT_A_COLUMN = 3",
        "i=1 and s='x'and d>-1.5",
        "i = 1 OR s = 'x' OR i = 1",
        "i = 1 AND (s = 'x' OR l = 2)",
        "i = 1 OR l NOT IN (3, 4) AND day >= DATE'2024-01-01'",
        "i BETWEEN 1 AND 2 AND l = 3",
        "i = 1 AND",
        "AND i = 1",
        "i = 1 XOR l = 2",
        "i = 1\n\tAND l =\r\n- 2",
        "i = 1;",
        "s = 'a\\'b'",
        "s = r'a' AND i = 1",
        "i = 1 AND l IN (1, 2",
        "i = 1.AND l = 2",
        "i = 1\u00a0AND l = 2",
    ],
)
def test_joined_pieces_mean_what_the_parser_reads(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole texts, as `compile_predicate` compiles them."""

    def compiled() -> str:
        try:
            found = compile_predicate(text, names_of(TYPES).schema)
        except FloeplanError as error:
            return f"{type(error).__name__}: {error.message} {error.context}"
        return f"{found.predicate!r} {found.errors}"

    plain = compiled()
    monkeypatch.setattr(compile_module, "compile_plain", lambda text, names: None)
    monkeypatch.setattr(sql, "compile_plain", lambda text, names: None)
    assert plain == compiled()


@pytest.mark.parametrize("literal", PLAIN)
def test_plain_literals_need_no_parser(literal: str) -> None:
    column = "tz" if "TIME" in literal else "day" if "date" in literal.lower() else "s" if literal[0] in "'\"" else "l"
    assert compile_plain(f"{column} >= {literal}", names_of(TYPES)) is not None


@pytest.mark.parametrize("text", LEFT_TO_THE_PARSER)
def test_anything_else_is_left_to_the_parser(text: str) -> None:
    assert compile_plain(text, names_of(TYPES)) is None


def test_a_name_that_means_something_to_the_parser_means_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {*Tokenizer.KEYWORDS, *Spark.Tokenizer.KEYWORDS, *SparkParser.FUNCTIONS, *SparkParser.FUNCTION_PARSERS}
    words |= {*SparkParser.NO_PAREN_FUNCTION_PARSERS, *SparkParser.STATEMENT_PARSERS}
    words |= {*SparkParser.QUERY_MODIFIER_PARSERS, *(kind.name for kind in TokenType)}
    columns = sorted({str(word).lower() for word in words if str(word).isidentifier()})
    texts = ("{} >= 'x'", "{} = NULL", "{} IN ('a', 'b')", "{} NOT IN ('a')")
    named = [(text.format(column), names_of({column: StringType()})) for column in columns for text in texts]
    plain = [(text, names) for text, names in named if compile_plain(text, names) is not None]
    assert len(plain) > 100
    found = [outcome(*one) for one in plain]
    monkeypatch.setattr(sql, "compile_plain", lambda text, names: None)
    assert found == [outcome(*one) for one in plain]

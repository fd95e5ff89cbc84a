"""Plain comparisons skip the SQL parser; whatever skips it must become the very tree that the parser makes."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType
from sqlglot.tokens import Tokenizer

from floeplan.errors import FloeplanError
from floeplan.predicate.names import Names
from floeplan.predicate.plain_pieces import plain_comparison
from floeplan.predicate.sql_parse import parse_piece, parsed_piece
from floeplan.predicate.sql_skeleton import Piece, skeleton_of, tokens_of

pytestmark = pytest.mark.unit
OPERATORS = ("=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>")
LITERALS = (
    "1",
    "-1",
    "1.5",
    "1e3",
    "'eu'",
    '"eu"',
    "'it''s'",
    "''",
    "NULL",
    "DATE '2024-01-01'",
    "TIMESTAMP '2024-01-01'",
    "TIMESTAMP_NTZ '2024-01-01 00:00:00'",
    "TIMESTAMP_LTZ '2024-01-01'",
)
LEFT_TO_THE_PARSER = (
    "a = b",
    "1 = a",
    "`a` = 1",
    "t.a = 1",
    "a = .5",
    "a = 1L",
    "a = +1",
    "a = - -1",
    "a = TRUE",
    "a = X'1F'",
    "a = INTERVAL '1' DAY",
    "a = 1 + 1",
    "a IS NULL",
    "a IN (1)",
    "a",
    "if = 1",
    "transform = 1",
    "a = 'x' 'y'",
    "a < 1 < 2",
)


def piece_of(text: str) -> Piece:
    found = skeleton_of(text)
    assert isinstance(found, Piece)
    return found


def names_of(name: str) -> Names:
    return Names(Schema(NestedField(7, name, StringType(), required=False)))


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("literal", LITERALS)
def test_a_plain_comparison_is_the_tree_that_the_parser_makes(op: str, literal: str) -> None:
    text = f"some_name{op} {literal} -- why"
    piece, names = piece_of(text), names_of("some_name")
    assert plain_comparison(piece.tokens) is not None
    assert parse_piece(text, piece, names) == parsed_piece(text, piece, names)


def test_a_name_that_means_something_to_the_parser_means_the_same() -> None:
    words = {*Tokenizer.KEYWORDS, *Spark.Tokenizer.KEYWORDS, *SparkParser.FUNCTIONS, *SparkParser.FUNCTION_PARSERS}
    words |= {
        *SparkParser.NO_PAREN_FUNCTION_PARSERS,
        *SparkParser.STATEMENT_PARSERS,
        *SparkParser.QUERY_MODIFIER_PARSERS,
    }
    words |= {kind.name for kind in TokenType}
    compared = 0
    for word in sorted(str(word).lower() for word in words if str(word).isidentifier()):
        text = f"{word} >= 'x'"
        if plain_comparison(tokens_of(text)) is None:
            continue
        piece, names = piece_of(text), names_of(word)
        assert parse_piece(text, piece, names) == parsed_piece(text, piece, names)
        compared += 1
    assert compared > 100


@pytest.mark.parametrize("text", LEFT_TO_THE_PARSER)
def test_anything_else_is_left_to_the_parser(text: str) -> None:
    assert plain_comparison(tokens_of(text)) is None


def test_an_unknown_name_is_the_same_error_either_way() -> None:
    text = "regoin = 'eu'"
    told = []
    for parse in (parse_piece, parsed_piece):
        with pytest.raises(FloeplanError) as failure:
            parse(text, piece_of(text), names_of("region"))
        told.append(failure.value.message)
    assert told[0] == told[1]
    assert "did you mean region?" in told[0]

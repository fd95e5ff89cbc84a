"""Damaged and huge SQL: a valid statement or predicate, or a one-line error, in little time."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from sqlglot.dialects.spark import Spark

from floeplan.errors import FloeplanError
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.rows.evaluate import filter_rows
from floeplan.scan.projection import arrow_schema
from floeplan.sql_text.parse import parse_statement
from tests.support.fuzz import fuzzing

pytestmark = pytest.mark.property

COUNT = 1500
SECONDS = 5.0
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "region", StringType()),
    NestedField(3, "ts", TimestamptzType()),
    NestedField(4, "d", DecimalType(9, 2)),
    NestedField(5, "v", DoubleType()),
    NestedField(6, "day", DateType()),
    NestedField(7, "flag", BooleanType()),
    NestedField(8, "nested", StructType(NestedField(9, "a", LongType()))),
)
ROWS = pa.Table.from_pylist(
    [
        {
            "id": 1,
            "region": "eu",
            "ts": datetime(2024, 2, 29, 12, tzinfo=UTC),
            "d": Decimal("1.50"),
            "v": 0.5,
            "day": date(2024, 2, 29),
            "flag": True,
            "nested": {"a": 7},
        },
        dict.fromkeys(field.name for field in SCHEMA.fields),
    ],
    schema=arrow_schema(SCHEMA),
)
ARGUMENTS = (
    *("", "1", "-1", "'a'", "NULL", "9999999999999999999", "id", "region", "ts", "v", "day", "flag", "nested", "*"),
    *("region, 1", "region, -1", "id, 'x'", "'day', ts", "ts, 1", "d, 1", "ts, INTERVAL 1 DAY", "INTERVAL 1 DAY"),
    *(
        "region, 'a', 'b'",
        "region, 1, 2",
        "id, id, id",
        "id, id, id, id",
        "DISTINCT id",
        "id AS x",
        "(SELECT 1)",
        "x -> x",
    ),
)
PREDICATES = (
    "id IN (1, 2, -3) AND region = 'eu' OR NOT (d <= 12.50 AND v IS NOT NULL)",
    "ts >= TIMESTAMP '2024-02-29 12:00:00.5+02:00' AND day BETWEEN DATE '2024-01-01' AND '2024-12-31'",
    "region LIKE 'e%\\_' AND nested.a <=> 7 AND isnan(v) AND flag",
    "CASE WHEN id > 1 THEN upper(region) ELSE concat(region, 'x') END = 'A' AND cast(id AS STRING) != '1'",
    "(id, region) IN ((1, 'a'), (2, 'b')) AND date_trunc('day', ts) = TIMESTAMP '2024-01-01' AND v > 1e-3",
)
STATEMENTS = (
    "MERGE INTO db.t AS t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED AND s.id > 1 THEN UPDATE SET v = 2 "
    "WHEN NOT MATCHED THEN INSERT (id, region) VALUES (s.id, 'y') WHEN NOT MATCHED BY SOURCE THEN DELETE",
    "UPDATE db.t SET region = CASE WHEN id = 1 THEN 'a' ELSE region END, v = v + 1 WHERE id IN (SELECT id FROM db.s)",
    "DELETE FROM db.t.branch_x WHERE region = 'it''s' -- away\n AND id > 3",
    "INSERT INTO db.t (id, region) VALUES (1, 'a'), (2, NULL)",
    "ALTER TABLE db.t REPLACE PARTITION FIELD ts_day WITH bucket(8, id) AS b",
)
MANY = 10_000
MONSTERS = {
    "parentheses": "(" * MANY + "id = 1" + ")" * MANY,
    "open": "(" * MANY,
    "not": "NOT " * MANY + "id = 1",
    "minus": "id = " + "- " * MANY + "1",
    "or": " OR ".join(f"id = {i}" for i in range(2000)),
    "sum": "id = " + "+".join(["1"] * MANY),
    "case": "CASE WHEN id=1 THEN " * 500 + "TRUE" + " END" * 500,
    "functions": "abs(" * 2000 + "id" + ")" * 2000 + " = 1",
    "indexes": "id" + "[0]" * 3000 + " = 1",
    "dots": ".".join(["id"] * 5000) + " = 1",
    "pattern": "region LIKE '" + "%_" * 5000 + "'",
    "regular expression": "region RLIKE '(a+)+$'",
    "digits": "id = " + "9" * 5000,
    "decimal": "d = " + "9" * 5000 + "." + "9" * 5000,
    "exponent": "d = 1e999999999",
    "scale": "id < 1E-400BD",
    "exponent without digits": "v > 1e",
    "interval": "ts > TIMESTAMP '2024-01-01' - INTERVAL 99999999999999 YEARS",
    "half a character": "region = '\ud800'",
    "zero byte": "region = '\x00'",
    "quotes": "`" * 4001,
    "hex": "X'" + "F" * 9999 + "'",
    "else without case": " ELSE concat(region, 'x') END = 'A' AND cast(id AS STRING) != '1'",
    "else alone": "ELSE",
    "function without arguments": "date_trunc() = TIMESTAMP '2024-01-01'",
    "function that cannot be written": "regexp_replace(region, 'x') = 'a' OR ceil() = 1",
    "is a column": "nested IS isnan(v) OR flag IS flag OR region LIKE 'a' ESCAPE region OR region RLIKE region",
    "number for a text": "contains(region, 1)",
    "number for a pattern": "region LIKE 7 OR region ILIKE TRUE OR region RLIKE 7 OR region LIKE 1.5",
    "bytes for a pattern": "region LIKE X'FF'",
    "text for a number": "substr(region, 'x') = 'a' OR round(id, 'x') = 1 OR add_months(day, 'x') = day",
}


def assert_one_line_error(text: str) -> None:
    """Assert that a text is evaluated in little time, with a one-line Floeplan error if it is invalid."""
    for evaluate in (
        lambda: filter_rows(compile_predicate(text, SCHEMA).predicate, ROWS, SCHEMA),
        lambda: parse_statement(text),
    ):
        started = time.process_time()
        try:
            with suppress(FloeplanError):
                evaluate()
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error} came of {text[:500]!r}")
        assert time.process_time() - started < SECONDS


def damaged(text: str, random: Random) -> str:
    """The text with pieces duplicated, removed, moved or replaced by other pieces and odd characters."""
    for _ in range(random.choice((1, 1, 2, 4))):
        start, end = sorted(random.choices(range(len(text) + 1), k=2))
        end = min(end, start + random.choice((1, 3, 12, 60)))
        other = random.choice((*PREDICATES, *STATEMENTS))
        at = random.randrange(len(other))
        piece = random.choice(
            ("", text[start:end] * 2, other[at : at + 15], random.choice("'`\"();,.%\\\x00\n\ud800é=<>-*/0"))
        )
        text = text[:start] + piece + text[end:]
    return text


def test_damaged_sql_is_sql_or_bad_input() -> None:
    for seed in fuzzing.seeds(COUNT):
        random = Random(seed)
        assert_one_line_error(damaged(random.choice((*PREDICATES, *STATEMENTS)), random))


def test_every_function_of_the_parser_is_evaluated_or_refused() -> None:
    """Also with too few, too many and invalid arguments."""
    parser = type(Spark().parser())
    names = sorted({*parser.FUNCTIONS, *parser.FUNCTION_PARSERS, *parser.NO_PAREN_FUNCTION_PARSERS})
    for number, name in enumerate(names):
        for arguments in (
            ARGUMENTS
            if fuzzing.SECONDS
            else {"", *(ARGUMENTS[(number + step) % len(ARGUMENTS)] for step in (0, 7, 19))}
        ):
            assert_one_line_error(f"{name}({arguments}) = 1")


@pytest.mark.parametrize("name", MONSTERS)
def test_huge_sql_is_cheap(name: str) -> None:
    assert_one_line_error(MONSTERS[name])
    assert_one_line_error(f"DELETE FROM db.t WHERE {MONSTERS[name]}")

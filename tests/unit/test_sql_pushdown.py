"""Conditions that Spark renders become predicates for planning, and what is in doubt is left out."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestamptzType,
    UUIDType,
)

from floeplan.spark.pushdown import ConditionCompiler
from floeplan.sql_text.queries import is_query, query_template
from floeplan.sql_text.relations import table_references

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "odd name", StringType()),
    NestedField(3, "d", DateType()),
    NestedField(4, "ts", TimestamptzType()),
    NestedField(5, "ns", TimestampNanoType()),
    NestedField(6, "u", UUIDType()),
    NestedField(7, "f", DoubleType()),
)
UUID_TEXT = "f79c3e09-677c-4bbd-a479-512f87f5f2f1"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("((r0_0 IS NOT NULL) AND (r0_0 = 7L))", "id = 7"),
        ("(r0_1 = 'it\\'s r0_0')", "`odd name` = 'it\\'s r0_0'"),
        ("((r0_2 >= DATE '2024-01-01') AND (year(r0_2) = some_udf(r0_0)))", "d >= DATE '2024-01-01'"),
        ("((r0_0 = 1L) OR (scalarsubquery() > r0_0))", "true"),
        ("(NOT ((r0_0 = 1L) AND some_udf(r0_0)))", "true"),
        ("(NOT ((r0_0 = 1L) OR some_udf(r0_0)))", "id != 1"),
        ("(r0_4 <= TIMESTAMP_NTZ '2024-01-01 00:00:00')", "true"),
        (f"(r0_5 = '{UUID_TEXT}')", "u = X'F79C3E09677C4BBDA479512F87F5F2F1'"),
        (f"(r0_5 = '{UUID_TEXT.upper()}')", "true"),
        (f"(r0_5 < '{UUID_TEXT}')", "true"),
        ("(r0_6 > 1.0D)", "f > 1.0"),
        ("((collate(r0_1, 'UNICODE_CI') = 'x' collate UNICODE_CI) AND (r0_0 < 3L))", "id < 3"),
        ("(r0_1 IS NULL)", "`odd name` IS NULL"),
    ],
)
def test_a_condition_of_spark_as_a_predicate(condition: str, expected: str) -> None:
    assert str(ConditionCompiler(SCHEMA, "UTC").predicate(condition)) == expected


def test_casts_do_not_prune_without_ansi_mode() -> None:
    """Then 4294967301 is 5 as an INT."""
    condition = "((CAST(r0_0 AS INT) = 5) AND (r0_2 IN (DATE '2024-01-01')))"
    assert "id" not in str(ConditionCompiler(SCHEMA, ansi=False).predicate(condition))
    assert "d" in str(ConditionCompiler(SCHEMA, ansi=False).predicate(condition))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("(r0_3 >= TIMESTAMP '2024-01-01 00:00:00')", "2024-01-01 08:00:00"),
        ("(r0_3 >= TIMESTAMP '2024-07-01 00:00:00.5')", "2024-07-01 07:00:00.5"),
        ("(r0_3 >= TIMESTAMP '2024-11-03 01:30:00')", None),
        ("(CAST(r0_3 AS DATE) = DATE '2024-01-01')", None),
        ("(CAST(r0_2 AS TIMESTAMP) >= TIMESTAMP '2024-01-01 00:00:00')", None),
    ],
)
def test_timestamps_are_those_of_the_session_time_zone(condition: str, expected: str | None) -> None:
    found = str(ConditionCompiler(SCHEMA, "America/Los_Angeles").predicate(condition))
    assert found == "true" if expected is None else expected in found
    assert str(ConditionCompiler(SCHEMA, "GMT+25:61").predicate(condition)) == "true"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM db.t", "SELECT * FROM {floeplan_0} AS `t`"),
        ("SELECT db.t.a, t.b FROM db.t", "SELECT `t`.a, t.b FROM {floeplan_0} AS `t`"),
        ("SELECT x.a, '{y}' FROM db.t x, db.u", "SELECT x.a, '{{y}}' FROM {floeplan_0} x, {floeplan_1} AS `u`"),
        ("SELECT * FROM db.t TABLESAMPLE (5 ROWS)", "SELECT * FROM {floeplan_0} TABLESAMPLE (5 ROWS)"),
        ("TABLE db.t", "TABLE {floeplan_0}"),
        ("SELECT * FROM db.t VERSION AS OF 5 x", "SELECT * FROM {floeplan_0} x"),
    ],
)
def test_only_names_of_tables_change_in_a_query(text: str, expected: str) -> None:
    assert query_template(text, list(table_references(text))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1", True),
        ("(SELECT 1) UNION (SELECT 2)", True),
        ("WITH x AS (SELECT 1) SELECT * FROM x", True),
        ("EXPLAIN FORMATTED SELECT 1", True),
        ("TABLE db.t", True),
        ("WITH x AS (SELECT 1) INSERT INTO db.t SELECT * FROM x", False),
        ("FROM x INSERT INTO db.t SELECT *", False),
        ("DELETE FROM db.t", False),
        ("SHOW TABLES", False),
    ],
)
def test_which_statements_are_queries(text: str, expected: bool) -> None:
    assert is_query(text) is expected

"""Spark SQL to IR, for each form of a predicate."""

from __future__ import annotations

import pytest

from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.ir import FALSE, NULL_PREDICATE, TRUE, Cmp, CmpOp, Opaque
from tests.support.compiled import SCHEMA, compiled

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("i = 1", "i = 1"),
        ("i == 1", "i = 1"),
        ("i <> 1", "i != 1"),
        ("5 < i", "i > 5"),
        ("5 >= i", "i <= 5"),
        ("5 <=> i", "i <=> 5"),
        ("i <=> NULL", "i IS NULL"),
        ("i = NULL", "null"),
        ("i BETWEEN 1 AND 2", "i BETWEEN 1 AND 2"),
        ("i NOT BETWEEN 1 AND 2", "i < 1 OR i > 2"),
        ("i BETWEEN 0.5 AND 1.5", "i > 0 AND i <= 1"),
        ("i BETWEEN 5 AND NULL", "i >= 5 AND null"),
        ("i IN (1, 2, 1)", "i IN (1, 2)"),
        ("i IN (1)", "i = 1"),
        ("i NOT IN (1, 2)", "i NOT IN (1, 2)"),
        ("i IN (1, NULL)", "i = 1 OR null"),
        ("i NOT IN (1, NULL)", "i != 1 AND null"),
        ("i IS NOT NULL", "i IS NOT NULL"),
        ("isnull(i) OR isnotnull(l)", "i IS NULL OR l IS NOT NULL"),
        ("i IS DISTINCT FROM 3", "NOT (i <=> 3)"),
        ("1 IS DISTINCT FROM 2", "true"),
        ("1 IS NOT DISTINCT FROM 1", "true"),
        ("'ab' LIKE 'a%'", "true"),
        ("i IS NOT DISTINCT FROM 3", "i <=> 3"),
        ("isnan(db)", "isnan(db)"),
        ("NOT isnan(f)", "NOT isnan(f)"),
        ("isnan(i)", "false"),
        ("b", "b = TRUE"),
        ("NOT b", "b != TRUE"),
        ("! b", "b != TRUE"),
        ("b IS TRUE", "b <=> TRUE"),
        ("b IS NOT FALSE", "NOT (b <=> FALSE)"),
        ("b IS UNKNOWN", "b IS NULL"),
        ("NOT NOT i = 1", "i = 1"),
        ("NOT (i = 1 AND s = 'x')", "i != 1 OR s != 'x'"),
        ("i = 1 AND (l = 2 OR b) AND NOT (s = 'x')", "i = 1 AND (l = 2 OR b = TRUE) AND s != 'x'"),
        ("i = 1 OR i BETWEEN 2 AND 3 AND l = 4", "i = 1 OR (i BETWEEN 2 AND 3 AND l = 4)"),
        ("((i)) = ((1))", "i = 1"),
        ("TRUE", "true"),
        ("FALSE OR 1 > 2", "false"),
        ("NULL", "null"),
        ("NOT NULL", "null"),
        ("'a' < 'b' AND i = 1", "i = 1"),
        ("NULL IS NULL", "true"),
        ("i = 1 -- why", "i = 1"),
        ("/* why */ i = 1", "i = 1"),
        ("i\n=\n1", "i = 1"),
    ],
)
def test_conditions(sql: str, expected: str) -> None:
    assert str(compiled(sql)) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("`a.b` = 3", "`a.b` = 3"),
        ("st.x = 4", "st.x = 4"),
        ("`st`.`y z` = 'q'", "st.`y z` = 'q'"),
        ("st.x IS NULL", "st.x IS NULL"),
        ("date > DATE '2024-01-01'", "date > DATE '2024-01-01'"),
        ("comment = 'x'", "comment = 'x'"),
    ],
)
def test_names(sql: str, expected: str) -> None:
    assert str(compiled(sql)) == expected


def test_columns_are_bound_by_field_id_also_inside_structs() -> None:
    leaf = compiled("st.x = 4")
    assert isinstance(leaf, Cmp)
    assert leaf.column.field_id == 100
    assert leaf.column.path == ("st", "x")


def test_without_case_sensitivity_the_schema_decides_the_spelling() -> None:
    result = compile_predicate("ST.X = 4 AND I > 1", SCHEMA, case_sensitive=False)
    assert str(result.predicate) == "st.x = 4 AND i > 1"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("s LIKE 'a%'", "s LIKE 'a%'"),
        ("s LIKE 'a%%'", "s LIKE 'a%'"),
        ("s NOT LIKE 'a%'", "s NOT LIKE 'a%'"),
        ("s LIKE 'abc'", "s = 'abc'"),
        ("s LIKE ''", "s = ''"),
        ("s LIKE '%'", "s NOT IN ()"),
        ("s NOT LIKE '%'", "s IN ()"),
        (r"s LIKE 'a\_b%'", r"s LIKE 'a\\_b%'"),
        (r"s LIKE 'a\\%b'", "s = 'a%b'"),
        ("s LIKE 'a!%%' ESCAPE '!'", r"s LIKE 'a\\%%'"),
        ("s NOT LIKE 'a!%%' ESCAPE '!'", r"s NOT LIKE 'a\\%%'"),
        ("s LIKE r'a\\_'", "s = 'a_'"),
        ("s LIKE NULL", "null"),
        ("startswith(s, 'x')", "s LIKE 'x%'"),
        ("startswith(s, '')", "s NOT IN ()"),
    ],
)
def test_patterns(sql: str, expected: str) -> None:
    assert str(compiled(sql)) == expected


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("s = 'it''s'", "it's"),
        (r"s = 'it\'s'", "it's"),
        ('s = "dq"', "dq"),
        ('s = "a""b"', 'a"b'),
        ("s = 'a' 'b'", "ab"),
        (r"s = '\u00e9\U0001F600\101\n'", "é😀A\n"),
        ("s = ''''", "'"),
        ("i = -5", -5),
        ("i = - 5S", -5),
        ("l = -9223372036854775808", -(2**63)),
        ("l = -9223372036854775808L", -(2**63)),
        ("i = 2 + 3 * 4", 14),
        ("i = 7 % -4", 3),
        ("i = 7 DIV 2", 3),
        ("db = 1.5BD", 1.5),
        ("db = 1e3", 1000.0),
        ("db = .5", 0.5),
        ("db = 1 / 4", 0.25),
        ("i = CAST('7' AS INT)", 7),
        ("i = bigint('7')", 7),
        ("bin = X'1A2b'", b"\x1a\x2b"),
        ("bin = 'ab'", b"ab"),
        ("u = '12345678-1234-1234-1234-123456789ABC'", bytes.fromhex("12345678123412341234123456789abc")),
        ("tm = TIME '10:00:00.5'", 36_000_500_000),
        ("tm = '10:00'", 36_000_000_000),
        ("b = ' Yes '", True),
    ],
)
def test_literals(sql: str, value: object) -> None:
    leaf = compiled(sql)
    assert isinstance(leaf, Cmp)
    assert leaf.op is CmpOp.EQ
    assert leaf.value == value
    assert type(leaf.value) is type(value)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("ts >= '2024-03-01'", "ts >= TIMESTAMP '2024-03-01 00:00:00Z'"),
        ("ts >= '2024'", "ts >= TIMESTAMP '2024-01-01 00:00:00Z'"),
        ("ts >= '2024-03'", "ts >= TIMESTAMP '2024-03-01 00:00:00Z'"),
        ("ts = '2024-03-01 01:00:00+01:00'", "ts = TIMESTAMP '2024-03-01 00:00:00Z'"),
        ("nt = '2024-03-01 01:00:00+01:00'", "nt = TIMESTAMP_NTZ '2024-03-01 01:00:00'"),
        ("nt = TIMESTAMP '2024-03-01 01:00:00+01:00'", "nt = TIMESTAMP_NTZ '2024-03-01 00:00:00'"),
        ("ts = TIMESTAMP_LTZ '2024-03-01 12:00:00'", "ts = TIMESTAMP '2024-03-01 12:00:00Z'"),
        ("ts = date('2024-03-01')", "ts = TIMESTAMP '2024-03-01 00:00:00Z'"),
        ("ts = timestamp('2024-03-01')", "ts = TIMESTAMP '2024-03-01 00:00:00Z'"),
        ("ns >= '2024-03-01 00:00:00.123456789'", "ns >= TIMESTAMP_NTZ '2024-03-01 00:00:00.123456789'"),
        ("ts >= '2024-03-01 00:00:00.123456789'", "ts >= TIMESTAMP '2024-03-01 00:00:00.123456Z'"),
        ("ns = DATE '2024-03-01'", "ns = TIMESTAMP_NTZ '2024-03-01 00:00:00'"),
        ("dt = '2024-03-01 12:00:00'", "dt = DATE '2024-03-01'"),
        ("ts < TIMESTAMP '2024-03-01' + INTERVAL 7 DAYS", "ts < TIMESTAMP '2024-03-08 00:00:00Z'"),
        ("ts < TIMESTAMP '2024-03-01' + INTERVAL '1 day 3 hours'", "ts < TIMESTAMP '2024-03-02 03:00:00Z'"),
        ("ts < TIMESTAMP '2024-03-01' - INTERVAL 1 day 2 hours", "ts < TIMESTAMP '2024-02-28 22:00:00Z'"),
        ("dt < DATE '2024-03-31' - INTERVAL '1' MONTH", "dt < DATE '2024-02-29'"),
        ("dt < DATE '2024-03-31' - INTERVAL '1-1' YEAR TO MONTH", "dt < DATE '2023-02-28'"),
        ("ts < DATE '2024-03-31' + INTERVAL '3' HOUR", "ts < TIMESTAMP '2024-03-31 03:00:00Z'"),
        ("dt < DATE '2024-02-29' + 1", "dt < DATE '2024-03-01'"),
        ("dt < date_sub('2024-03-01', 1)", "dt < DATE '2024-02-29'"),
        ("dt < add_months(DATE '2024-01-31', 1)", "dt < DATE '2024-02-29'"),
        ("dt > DATE '12024-01-01'", "dt > DATE '12024-01-01'"),
    ],
)
def test_instants(sql: str, expected: str) -> None:
    assert str(compiled(sql)) == expected


@pytest.mark.parametrize(
    ("sql", "prunable"),
    [
        ("i > l", "true"),
        ("i + 1 > 5", "true"),
        ("upper(s) = 'X'", "true"),
        ("some_udf(s, i)", "true"),
        ("s LIKE 'a%b%'", "s LIKE 'a%'"),
        ("s LIKE 'a_'", "s LIKE 'a%'"),
        ("s LIKE '%b'", "true"),
        ("s NOT LIKE 'a%b'", "true"),
        ("s ILIKE 'a%'", "true"),
        ("s RLIKE '^a'", "true"),
        ("s LIKE ANY ('a%', 'b%')", "true"),
        ("s = 5", "true"),
        ("s > DATE '2024-01-01'", "true"),
        ("CAST(l AS INT) = 5", "true"),
        ("CAST(i AS STRING) = '5'", "true"),
        ("CAST(ts AS DATE) = DATE '2024-03-01'", "true"),
        ("try_cast(i AS BIGINT) = 5", "true"),
        ("st IS NULL", "true"),
        ("arr IS NOT NULL", "true"),
        ("arr[0] = 1", "true"),
        ("m['k'] = 1", "true"),
        ("exists(arr, e -> e > 1)", "true"),
        ("(i = 1) IS NULL", "true"),
        ("CASE WHEN b THEN i = 1 AND l = 2 ELSE FALSE END", "true"),
        ("coalesce(i, 0) = 0", "true"),
        ("i IN (1, l)", "true"),
        ("i BETWEEN l AND 5", "true"),
        ("(i, l) = (1, 2)", "true"),
    ],
)
def test_what_statistics_cannot_answer_stays_for_rows(sql: str, prunable: str) -> None:
    result = compile_predicate(sql, SCHEMA)
    assert str(result.prunable) == prunable
    assert result.residual == result.predicate
    (error,) = result.errors
    assert (error.text, error.start, error.end) == (sql, 0, len(sql))
    assert error.message


def test_and_keeps_what_can_prune_and_or_is_all_or_nothing() -> None:
    mixed = compile_predicate("i = 1 AND foo(s) AND l > 3", SCHEMA)
    assert str(mixed.prunable) == "i = 1 AND l > 3"
    assert [(e.text, e.start, e.end) for e in mixed.errors] == [("foo(s)", 10, 16)]
    assert str(compile_predicate("i = 1 OR foo(s)", SCHEMA).prunable) == "true"
    assert str(compile_predicate("NOT (i = 1 OR foo(s))", SCHEMA).prunable) == "i != 1"
    assert str(compile_predicate("NOT (i = 1 AND foo(s))", SCHEMA).prunable) == "true"


def test_an_opaque_piece_names_the_columns_it_reads() -> None:
    (opaque,) = [compile_predicate("st.x + i > l", SCHEMA).predicate]
    assert isinstance(opaque, Opaque)
    assert opaque.field_ids == (1, 2, 100)


def test_the_result_as_json() -> None:
    assert compile_predicate("i = 1 AND l > i", SCHEMA).to_dict() == {
        "prunable": "i = 1",
        "residual": "i = 1 AND l > i",
        "errors": [
            {
                "kind": "unsupported",
                "message": "statistics cannot compare a column with another",
                "text": "l > i",
                "start": 10,
                "end": 15,
            }
        ],
    }


def test_constants_need_no_rows() -> None:
    assert compile_predicate("TRUE", SCHEMA).residual == TRUE
    assert compile_predicate("1 = 2", SCHEMA).residual == FALSE
    assert compile_predicate("i > NULL", SCHEMA).residual == NULL_PREDICATE


def test_ir_passes_through() -> None:
    leaf = compiled("i = 1")
    assert compile_predicate(leaf, SCHEMA).predicate is leaf

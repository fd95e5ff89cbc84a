"""Row evaluation of what the IR cannot express: Spark's results where its rules surprise, and errors."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from floeplan.errors import EvaluationError, FloeplanError, TypeMismatchError, UnsupportedError
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.ir import Opaque
from floeplan.predicate.rows.evaluate import evaluate_condition, evaluate_rows

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "i", IntegerType()),
    NestedField(2, "j", LongType()),
    NestedField(3, "f", FloatType()),
    NestedField(4, "db", DoubleType()),
    NestedField(5, "d", DecimalType(9, 2)),
    NestedField(6, "s", StringType()),
    NestedField(7, "b", BooleanType()),
    NestedField(8, "dt", DateType()),
    NestedField(9, "ts", TimestamptzType()),
    NestedField(10, "nt", TimestampType()),
    NestedField(11, "ns", TimestampNanoType()),
    NestedField(12, "u", UUIDType()),
    NestedField(13, "bin", BinaryType()),
    NestedField(14, "wide", DecimalType(38, 0)),
    NestedField(15, "arr", ListType(16, IntegerType())),
)
NAN, INF = float("nan"), float("inf")
NOON = datetime(2024, 3, 1, 12)
TYPES = {
    "i": pa.int32(),
    "j": pa.int64(),
    "f": pa.float32(),
    "db": pa.float64(),
    "d": pa.decimal128(9, 2),
    "s": pa.string(),
    "b": pa.bool_(),
    "dt": pa.date32(),
    "ts": pa.timestamp("us", "UTC"),
    "nt": pa.timestamp("us"),
    "ns": pa.timestamp("ns"),
    "u": pa.uuid(),
    "bin": pa.binary(),
    "wide": pa.decimal128(38, 0),
    "arr": pa.list_(pa.int32()),
}


def answers(sql: str, **columns: list[Any]) -> list[bool | None]:
    rows = pa.table({name: pa.array(values, TYPES[name]) for name, values in columns.items()})
    return evaluate_rows(compile_predicate(sql, SCHEMA).predicate, rows, SCHEMA).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("sql", "columns", "expected"),
    [
        ("i < j", {"i": [1, 2, None, 3], "j": [2, 2, 3, None]}, [True, False, None, None]),
        ("i <=> j", {"i": [1, 2, None, None], "j": [1, 3, 3, None]}, [True, False, False, True]),
        ("i IS DISTINCT FROM j", {"i": [1, None, None], "j": [1, 3, None]}, [False, True, False]),
        ("f = db", {"f": [NAN, 0.1, -0.0, INF], "db": [NAN, 0.1, 0.0, INF]}, [True, False, True, True]),
        ("f > db", {"f": [NAN, NAN, 1.0, INF], "db": [NAN, INF, NAN, 1.0]}, [False, True, False, True]),
        ("f >= db", {"f": [NAN, 1.0], "db": [NAN, NAN]}, [True, False]),
        ("f != db", {"f": [NAN, 1.0, None], "db": [NAN, NAN, 1.0]}, [False, True, None]),
        ("db IN (f, 1)", {"f": [NAN, None, 2.0], "db": [NAN, 1.0, 3.0]}, [True, True, False]),
        ("i IN (j, NULL)", {"i": [1, 2], "j": [1, 3]}, [True, None]),
        ("i BETWEEN j AND 5", {"i": [1, 7, 3], "j": [2, None, 3]}, [False, False, True]),
        ("d > i", {"d": [Decimal("1.01"), Decimal("1.00")], "i": [1, 1]}, [True, False]),
        ("wide = d", {"wide": [Decimal(10**37)], "d": [Decimal("1.00")]}, [False]),
        ("s = 5", {"s": ["5", " 5 ", "6", None]}, [True, True, False, None]),
        ("s = 2.5", {"s": ["2.50", "1"]}, [True, False]),
        ("s < DATE '2024-03-01'", {"s": ["2024", "2024-03-01 x"]}, [True, False]),
        ("s = TRUE", {"s": ["yes", "0"]}, [True, False]),
        ("dt < ts", {"dt": [date(2024, 3, 1)] * 2, "ts": [NOON, datetime(2024, 3, 1)]}, [True, False]),
        ("nt = ts", {"nt": [NOON], "ts": [NOON.replace(tzinfo=UTC)]}, [True]),
        ("ns > nt", {"ns": [1], "nt": [datetime(1970, 1, 1)]}, [True]),
        ("bin = s", {"bin": [b"ab", b"\xff"], "s": ["ab", "a"]}, [True, False]),
        ("upper(u) = s", {"u": [bytes(15) + b"\xab"], "s": ["00000000-0000-0000-0000-0000000000AB"]}, [True]),
        ("u = s", {"u": [b"\x10" * 16, None], "s": ["10101010-1010-1010-1010-101010101010", ""]}, [True, None]),
    ],
)
def test_comparisons_between_columns(sql: str, columns: dict[str, list[Any]], expected: list[bool | None]) -> None:
    assert answers(sql, **columns) == expected


@pytest.mark.parametrize(
    ("sql", "columns", "expected"),
    [
        ("i + 1 = 2", {"i": [1, None]}, [True, None]),
        ("i / 2 = 0.5", {"i": [1, 2]}, [True, False]),
        ("i % 3 = -1", {"i": [-7, 7, None]}, [True, False, None]),
        ("7 % i = 1", {"i": [3, -3]}, [True, True]),
        ("db % 2 = -1.5D", {"db": [-3.5, 3.5]}, [True, False]),
        ("i DIV 2 = -3", {"i": [-7, 7]}, [True, False]),
        ("-i = 1", {"i": [-1, 1]}, [True, False]),
        ("d * 2 = 2.02", {"d": [Decimal("1.01"), None]}, [True, None]),
        ("d + d = 2.02", {"d": [Decimal("1.01")]}, [True]),
        ("d - 1 = 0.01", {"d": [Decimal("1.01")]}, [True]),
        ("f + f = 0.2F", {"f": [0.1]}, [True]),
        ("i + '1' = 3", {"i": [2]}, [True]),
        ("abs(i) = 1", {"i": [-1, 1]}, [True, True]),
        ("floor(d) = -2", {"d": [Decimal("-1.01")]}, [True]),
        ("ceil(d) = 10000000", {"d": [Decimal("9999999.99")]}, [True]),
        ("floor(db) = -2", {"db": [-1.5, 1.5]}, [True, False]),
        ("round(d) = 3", {"d": [Decimal("2.50"), Decimal("-2.50")]}, [True, False]),
        ("round(d, 1) = -2.6", {"d": [Decimal("-2.55")]}, [True]),
        ("greatest(i, j) = 3", {"i": [None, 3, 4], "j": [3, 1, 1]}, [True, True, False]),
        ("least(i, j) IS NULL", {"i": [None, 3], "j": [None, 1]}, [True, False]),
        ("CAST(d AS INT) = -1", {"d": [Decimal("-1.99")]}, [True]),
        ("CAST(CAST(d AS DECIMAL(2, 2)) AS INT) = 0", {"d": [Decimal("0.99"), Decimal("-0.50")]}, [True, True]),
        ("CAST(db AS INT) = -1", {"db": [-1.99]}, [True]),
        ("CAST(d AS DECIMAL(9, 1)) = 1.1", {"d": [Decimal("1.05"), Decimal("1.04")]}, [True, False]),
        ("CAST(i AS BOOLEAN)", {"i": [0, 5, None]}, [False, True, None]),
        ("CAST(b AS INT) = 1", {"b": [True, False]}, [True, False]),
        ("CAST(d AS BOOLEAN)", {"d": [Decimal("0.00"), Decimal("0.01"), None]}, [False, True, None]),
        ("CAST(j AS DECIMAL(5, 2)) = 7", {"j": [7, 8, None]}, [True, False, None]),
        ("CAST(i AS STRING) = '5'", {"i": [5, 6]}, [True, False]),
        ("CAST(s AS DECIMAL(9, 2)) = 1.01", {"s": ["1.005", "1.004"]}, [True, False]),
    ],
)
def test_arithmetic(sql: str, columns: dict[str, list[Any]], expected: list[bool | None]) -> None:
    assert answers(sql, **columns) == expected


@pytest.mark.parametrize(
    ("sql", "columns", "expected"),
    [
        ("upper(s) = 'STRASSE'", {"s": ["straße", None]}, [True, None]),
        ("lower(s) = 'àé'", {"s": ["ÀÉ"]}, [True]),
        ("length(s) = 2", {"s": ["é ", "😀"]}, [True, False]),
        ("length(bin) = 2", {"bin": ["é".encode()]}, [True]),
        ("s || i = 'a1'", {"s": ["a", None], "i": [1, 1]}, [True, None]),
        ("concat(s, 'x', s) = 'axa'", {"s": ["a"]}, [True]),
        ("trim(s) = 'a\\t'", {"s": [" a\t "]}, [True]),
        ("rtrim(s) = ' a'", {"s": [" a "]}, [True]),
        ("trim(BOTH 'x' FROM s) = 'a'", {"s": ["xax"]}, [True]),
        ("substring(s, 2, 1) = 'b'", {"s": ["abc", "a"]}, [True, False]),
        ("substring(s, -2, 1) = 'b'", {"s": ["abc"]}, [True]),
        ("substring(s, -5, 3) = 'a'", {"s": ["abc"]}, [True]),
        ("substring(s, 0, 2) = 'ab'", {"s": ["abc"]}, [True]),
        ("s LIKE 'a_c'", {"s": ["abc", "a\nc", "a😀c", "abbc"]}, [True, True, True, False]),
        ("s LIKE '%b%'", {"s": ["abc", "b", "ac", None]}, [True, True, False, None]),
        ("s NOT LIKE 'a%c'", {"s": ["abc", "ab", None]}, [False, True, None]),
        ("s LIKE 'a.%(c'", {"s": ["a.b(c", "axb(c"]}, [True, False]),
        ("s ILIKE 'STRA%E'", {"s": ["straße"]}, [True]),
        ("s RLIKE '^a.c$'", {"s": ["abc", "xabc"]}, [True, False]),
        ("contains(s, '%') AND endswith(s, 'b')", {"s": ["a%b", "ab"]}, [True, False]),
    ],
)
def test_text(sql: str, columns: dict[str, list[Any]], expected: list[bool | None]) -> None:
    assert answers(sql, **columns) == expected


@pytest.mark.parametrize(
    ("sql", "columns", "expected"),
    [
        ("year(dt) = 2024 AND month(dt) = 3 AND day(dt) = 1", {"dt": [date(2024, 3, 1), None]}, [True, None]),
        ("hour(ts) = 12", {"ts": [NOON]}, [True]),
        ("year(s) = 2024", {"s": ["2024-05"]}, [True]),
        ("date_trunc('WEEK', ts) = TIMESTAMP '2024-02-26'", {"ts": [NOON]}, [True]),
        ("date_trunc('day', dt) = DATE '2024-03-01'", {"dt": [date(2024, 3, 1)]}, [True]),
        ("CAST(ts AS DATE) = DATE '1969-12-31'", {"ts": [datetime(1969, 12, 31, 23), None]}, [True, None]),
        ("dt + 1 = DATE '2024-03-01'", {"dt": [date(2024, 2, 29)]}, [True]),
        ("dt + INTERVAL 1 MONTH = DATE '2023-02-28'", {"dt": [date(2023, 1, 31), None]}, [True, None]),
        ("nt - INTERVAL '1' MONTH = '2024-02-01 12:00:00'", {"nt": [NOON]}, [True]),
        ("ts + INTERVAL 36 HOURS > '2024-03-02 23:00:00'", {"ts": [NOON]}, [True]),
        ("date_add(dt, i) = DATE '2024-03-03'", {"dt": [date(2024, 3, 1)], "i": [2]}, [True]),
        ("add_months(dt, -1) = DATE '2024-02-29'", {"dt": [date(2024, 3, 31)]}, [True]),
    ],
)
def test_dates(sql: str, columns: dict[str, list[Any]], expected: list[bool | None]) -> None:
    assert answers(sql, **columns) == expected


@pytest.mark.parametrize(
    ("sql", "columns", "expected"),
    [
        ("CASE WHEN i > 0 THEN b END", {"i": [1, 0, None], "b": [True, True, True]}, [True, None, None]),
        ("CASE WHEN i = 0 THEN FALSE ELSE 12 / i > 3 END", {"i": [0, 3, 4]}, [False, True, False]),
        (
            "CASE i WHEN 1 THEN 'one' ELSE s END = 'one'",
            {"i": [1, 2, None], "s": ["x", "one", "y"]},
            [True, True, False],
        ),
        ("IF(b, i, j) = 1", {"b": [True, False, None], "i": [1, 1, 1], "j": [0, 1, 1]}, [True, True, True]),
        ("IF(i = 0, 0, 12 / i) > 3", {"i": [0, 3]}, [False, True]),
        ("coalesce(i, 12 DIV j) = 1", {"i": [1, None], "j": [0, 12]}, [True, True]),
        ("nullif(i, 1) IS NULL", {"i": [1, 2, None]}, [True, False, True]),
        ("(i <> 0 AND 12 / i > 3) IS NOT NULL", {"i": [0, 3, None]}, [True, True, False]),
        ("(i = 0 OR 12 / i > 3) = TRUE", {"i": [0, 3, 4, None]}, [True, True, False, None]),
        ("(i > 1) IS NULL", {"i": [1, None]}, [False, True]),
        ("(b OR i > 0) IS NOT TRUE", {"b": [None, True], "i": [0, 0]}, [True, False]),
        ("NOT (i > j)", {"i": [1, None], "j": [2, 2]}, [True, None]),
        ("isnull(i + 1)", {"i": [1, None]}, [False, True]),
    ],
)
def test_branches_are_evaluated_only_where_they_are_reached(
    sql: str, columns: dict[str, list[Any]], expected: list[bool | None]
) -> None:
    assert answers(sql, **columns) == expected


@pytest.mark.parametrize(
    ("sql", "columns", "error", "message"),
    [
        ("i + 1 > 0", {"i": [2**31 - 1]}, EvaluationError, "overflow"),
        ("12 / i > 3", {"i": [0]}, EvaluationError, "division by zero"),
        ("12 % i > 3", {"i": [0]}, EvaluationError, "remainder by zero"),
        ("12 DIV i > 3", {"i": [0]}, EvaluationError, "by zero"),
        ("abs(i) > 3", {"i": [-(2**31)]}, EvaluationError, "overflow"),
        ("s = 5", {"s": ["five"]}, EvaluationError, "cannot evaluate s = 5: 'five' is not a whole number"),
        ("CAST(db AS INT) = 1", {"db": [NAN]}, EvaluationError, "cannot evaluate"),
        ("CAST(j AS INT) = 1", {"j": [2**40]}, EvaluationError, "cannot evaluate"),
        ("CAST(j AS DECIMAL(5, 2)) = 1", {"j": [1000]}, EvaluationError, "cannot evaluate"),
        ("CAST(j AS ARRAY<INT>) IS NULL", {"j": [1]}, UnsupportedError, "the type ARRAY<INT>"),
        ("some_udf(i) = 1", {"i": [1]}, UnsupportedError, r"the function some_udf\(\)"),
        ("soundex(s) = 'A'", {"s": ["a"]}, UnsupportedError, r"the function soundex\(\)"),
        ("i & 1 = 1", {"i": [1]}, UnsupportedError, "^i & 1 cannot be evaluated outside Spark"),
        ("d / 3 > 1", {"d": [Decimal("1.00")]}, UnsupportedError, "division of decimals"),
        ("wide * wide > 1", {"wide": [Decimal(1)]}, UnsupportedError, "digits"),
        ("round(db, 2) = 2.68", {"db": [2.675]}, UnsupportedError, "round"),
        ("CAST(db AS STRING) = '1.0'", {"db": [1.0]}, UnsupportedError, "double to text"),
        ("CAST(db AS DECIMAL(9, 2)) = 1", {"db": [1.0]}, UnsupportedError, "double to decimal"),
        ("s RLIKE '(?i)a'", {"s": ["a"]}, UnsupportedError, "regular expression"),
        ("s RLIKE 'a(?=b)'", {"s": ["a"]}, UnsupportedError, "regular expression"),
        ("s RLIKE 'a$'", {"s": ["a\n"]}, UnsupportedError, "line breaks"),
        ("try_cast(s AS INT) = 1", {"s": ["x"]}, UnsupportedError, "cannot be evaluated outside Spark"),
        ("i + b > 1", {"i": [1], "b": [True]}, TypeMismatchError, "cannot be compared or combined"),
        ("b > dt", {"b": [True], "dt": [date(2024, 1, 1)]}, TypeMismatchError, "cannot be compared or combined"),
        ("upper(s)", {"s": ["a"]}, TypeMismatchError, "is not a condition"),
        ("arr[0] = 1", {"arr": [[1]]}, UnsupportedError, r"^arr\[0\] cannot be evaluated outside Spark"),
        ("size(arr) = 1", {"arr": [[1]]}, UnsupportedError, r"the function size\(\)"),
    ],
)
def test_unsupported_values_are_errors(
    sql: str, columns: dict[str, list[Any]], error: type[FloeplanError], message: str
) -> None:
    with pytest.raises(error, match=message):
        answers(sql, **columns)


def test_no_rows_are_no_problem() -> None:
    assert answers("CASE WHEN i = 1 THEN 12 / i > 3 ELSE coalesce(s, 'x') = upper(s) END", i=[], s=[]) == []
    assert answers("u = s", u=[], s=[]) == []


def test_an_opaque_piece_can_travel() -> None:
    opaque = compile_predicate("upper(s) = 'A'", SCHEMA).predicate
    assert isinstance(opaque, Opaque)
    moved = pickle.loads(pickle.dumps(opaque))
    rows = pa.table({"s": ["a", "b"]})
    chunked = pa.chunked_array([["a"], ["b"]])
    assert evaluate_condition(moved.expression, rows, lambda _: chunked).to_pylist() == [True, False]


def test_only_what_the_compiler_made_is_evaluated() -> None:
    with pytest.raises(UnsupportedError):
        evaluate_condition("i = 1", pa.table({"i": [1]}), lambda _: pa.array([1]))

"""Literals compared with a column of another type, at every edge; expected results are written by hand."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import numpy as np
import pytest
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from floeplan.errors import BadInputError, FloeplanError, TypeMismatchError
from floeplan.predicate.casts import NeedsRows, widened
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.ir import Between, Cmp, Column
from floeplan.predicate.literals import NULL, Kind, Literal, literal_of
from tests.support.compiled import SCHEMA, compiled

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("i > 3.5", "i > 3"),
        ("i >= 3.5", "i > 3"),
        ("i < 3.5", "i <= 3"),
        ("i <= -3.5", "i <= -4"),
        ("i = 3.5", "i IN ()"),
        ("i != 3.5", "i NOT IN ()"),
        ("i <=> 3.5", "false"),
        ("i = 3.0", "i = 3"),
        ("i = 3000000000", "i IN ()"),
        ("i != 3000000000", "i NOT IN ()"),
        ("i < 3000000000", "i NOT IN ()"),
        ("i > 3000000000", "i IN ()"),
        ("i >= -3000000000", "i NOT IN ()"),
        ("i <=> 3000000000", "false"),
        ("i IN (1, 2.5, 3000000000)", "i = 1"),
        ("i <= 2147483647", "i NOT IN ()"),
        ("i < 2147483647", "i < 2147483647"),
        ("i < -2147483648", "i IN ()"),
        ("i > -2147483648", "i > -2147483648"),
        ("i = '7'", "i = 7"),
        ("i = ' 7 '", "i = 7"),
        ("l = 9223372036854775808", "l IN ()"),
        ("l < 9223372036854775808", "l NOT IN ()"),
        ("l < 1e19", "l NOT IN ()"),
        ("l = 3.5D", "l IN ()"),
        ("l > 3.5F", "l > 3"),
        ("l < DOUBLE('NaN')", "l NOT IN ()"),
        ("l >= DOUBLE('NaN')", "l IN ()"),
        ("l = DOUBLE('NaN')", "l IN ()"),
        ("l > float('-inf')", "l NOT IN ()"),
        ("d = 1.005", "d IN ()"),
        ("d < 1.005", "d <= 1.00"),
        ("d >= 1.005", "d > 1.00"),
        ("d = 1", "d = 1.00"),
        ("d = 1.05D", "d = 1.05"),
        ("d = '1.05'", "d = 1.05"),
        ("d > 10000000", "d IN ()"),
        ("d < 99999999.99", "d NOT IN ()"),
        ("d <= -9999999.99", "d <= -9999999.99"),
        ("big = 1234567890123456789012345678.0123456789", "big = 1234567890123456789012345678.0123456789"),
        ("big = 12345678901234567890123456789.0", "big IN ()"),
        ("f = 0.1", "f = 0.1"),
        ("f = 0.1F", "f = 0.10000000149011612"),
        ("db = 0.1F", "db = 0.10000000149011612"),
        ("db = -0.0", "db = 0.0"),
        ("db = '1.5'", "db = 1.5"),
        ("db = 9007199254740993", "db = 9007199254740992.0"),
        ("db = DOUBLE('NaN')", "db = DOUBLE('nan')"),
        ("db < 'Infinity'", "db < DOUBLE('inf')"),
        ("dt >= TIMESTAMP '2024-03-01 12:00:00'", "dt > DATE '2024-03-01'"),
        ("dt < TIMESTAMP '2024-03-01 12:00:00'", "dt <= DATE '2024-03-01'"),
        ("dt = TIMESTAMP '2024-03-01 12:00:00'", "dt IN ()"),
        ("dt = TIMESTAMP '2024-03-01 00:00:00'", "dt = DATE '2024-03-01'"),
        ("dt = TIMESTAMP '2024-03-01 00:00:00+01:00'", "dt IN ()"),
        ("ns > DATE '9999-01-01'", "ns IN ()"),
        ("ns < DATE '9999-01-01'", "ns NOT IN ()"),
        ("fx = X'01020304'", "fx = X'01020304'"),
        ("fx = X'0102'", "fx IN ()"),
        ("fx > X'0102'", "fx > X'0101FFFF'"),
        ("fx < X'0102'", "fx <= X'0101FFFF'"),
        ("fx <= X'0102030405'", "fx <= X'01020304'"),
        ("fx >= X'0102030405'", "fx > X'01020304'"),
        ("fx > X'FFFFFFFFFF'", "fx IN ()"),
        ("fx >= X''", "fx NOT IN ()"),
    ],
)
def test_the_comparison_a_literal_turns_into(sql: str, expected: str) -> None:
    assert str(compiled(sql)) == expected


def test_a_double_equals_every_long_that_rounds_to_it() -> None:
    assert compiled("l = 9007199254740993D") == Between(column("l"), 2**53, 2**53 + 1)
    assert str(compiled("l > 9007199254740993D")) == f"l > {2**53 + 1}"
    assert str(compiled("l < 9007199254740993D")) == f"l < {2**53}"
    assert str(compiled("l != 9007199254740993D")) == f"l < {2**53} OR l > {2**53 + 1}"
    assert str(compiled("l <=> 9007199254740993D")) == f"l IS NOT NULL AND l BETWEEN {2**53} AND {2**53 + 1}"
    assert str(compiled("l IN (1, 9007199254740993D)")) == f"l = 1 OR l BETWEEN {2**53} AND {2**53 + 1}"
    assert str(compiled("l IN (9007199254740993, 0.5D)")) == f"l BETWEEN {2**53} AND {2**53 + 1}"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("dt IN ('2024-03-01 12:00:00', DATE '2024-01-01')", "dt IN (DATE '2024-03-01', DATE '2024-01-01')"),
        ("dt IN ('2024-03-01 12:00:00', TIMESTAMP '2024-01-01')", "dt = DATE '2024-01-01'"),
        ("dt IN ('2024-03-01 02:00:00+02:00', TIMESTAMP '2024-03-01')", "dt = DATE '2024-03-01'"),
        ("dt IN ('2024-03-01 02:00:00+02:00', TIMESTAMP_NTZ '2024-03-01')", "dt = DATE '2024-03-01'"),
        ("nt IN ('2024-03-01 02:00:00+02:00')", "nt = TIMESTAMP_NTZ '2024-03-01 02:00:00'"),
        ("nt IN ('2024-03-01 02:00:00+02:00', TIMESTAMP '2024-03-01')", "nt = TIMESTAMP_NTZ '2024-03-01 00:00:00'"),
        ("i IN ('3', 2.5)", None),
        ("i IN ('3', 2.5D)", "i = 3"),
        ("s IN ('a', 1)", None),
    ],
)
def test_a_list_is_compared_in_one_common_type(sql: str, expected: str | None) -> None:
    result = compile_predicate(sql, SCHEMA)
    assert str(result.prunable) == ("true" if expected is None else expected)
    assert len(result.errors) == (expected is None)


def test_a_wide_decimal_is_compared_with_text_as_double() -> None:
    leaf = compiled("big = '1234567890123456789'")
    assert isinstance(leaf, Between)
    assert leaf.low < Decimal("1234567890123456789") < leaf.high  # type: ignore[operator]
    assert float(leaf.low) == float(leaf.high) == 1234567890123456789.0


def column(name: str) -> Column:
    field = SCHEMA.find_field(name)
    assert isinstance(field.field_type, PrimitiveType)
    return Column(field.field_id, field.field_type, (name,))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("CAST(l AS BIGINT) = 100", "l = 100"),
        ("CAST(s AS STRING) = 'x'", "s = 'x'"),
        ("CAST(i AS BIGINT) = 3000000000", "i IN ()"),
        ("CAST(i AS DOUBLE) = 5.5", "i IN ()"),
        ("CAST(i AS DECIMAL(12, 2)) > 1.255", "i > 1"),
        ("CAST(l AS DOUBLE) = 9007199254740993D", f"l BETWEEN {2**53} AND {2**53 + 1}"),
        ("CAST(f AS DOUBLE) = 0.1", "f = 0.1"),
        ("CAST(d AS DECIMAL(12, 4)) < 1.005", "d <= 1.00"),
        ("CAST(dt AS TIMESTAMP_NTZ) >= '2024-01-01 12:00:00'", "dt > DATE '2024-01-01'"),
        ("CAST(dt AS TIMESTAMP) = DATE '2024-01-01'", "dt = DATE '2024-01-01'"),
        ("bigint(i) = 5", None),
        ("CAST(CAST(i AS BIGINT) AS INT) = 5", None),
        ("CAST(l AS INT) = 5", None),
        ("CAST(d AS DECIMAL(9, 1)) = 5", None),
        ("CAST(i AS DECIMAL(9, 0)) = 5", None),
        ("CAST(l AS DECIMAL(18, 0)) = 5", None),
        ("CAST(db AS FLOAT) = 5", None),
        ("CAST(db AS BIGINT) = 5", None),
        ("CAST(ts AS DATE) = DATE '2024-01-01'", None),
        ("CAST(i AS STRING) = '5'", None),
        ("CAST(s AS INT) = 5", None),
        ("CAST(i AS SMALLINT) = 5", None),
        ("CAST(i AS BOOLEAN)", None),
    ],
)
def test_a_cast_of_a_column_counts_only_if_it_loses_nothing(sql: str, expected: str | None) -> None:
    result = compile_predicate(sql, SCHEMA)
    if expected is None:
        assert str(result.prunable) == "true"
        assert len(result.errors) == 1
    else:
        assert str(result.predicate) == expected
        assert result.errors == ()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (LongType(), IntegerType()),
        (DoubleType(), FloatType()),
        (TimestampType(), DateType()),
        (LongType(), DecimalType(18, 0)),
        (DecimalType(9, 2), DecimalType(9, 3)),
        (DecimalType(9, 2), LongType()),
        (StringType(), DoubleType()),
        (BooleanType(), IntegerType()),
    ],
)
def test_narrowing_is_never_a_widening(source: PrimitiveType, target: PrimitiveType) -> None:
    with pytest.raises(NeedsRows):
        widened(Column(1, source, ("x",)), target)


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("b = 1", TypeMismatchError),
        ("b > 0.5", TypeMismatchError),
        ("i = TRUE", TypeMismatchError),
        ("i = DATE '2024-01-01'", TypeMismatchError),
        ("dt = 20240301", TypeMismatchError),
        ("ts > 5", TypeMismatchError),
        ("tm = DATE '2024-01-01'", TypeMismatchError),
        ("bin = 5", TypeMismatchError),
        ("u = 5", TypeMismatchError),
        ("db = X'00'", TypeMismatchError),
        ("isnan(dt)", TypeMismatchError),
        ("ts = INTERVAL 1 DAY", TypeMismatchError),
        ("ts > DATE '2024-01-01' + TRUE", TypeMismatchError),
        ("i = '7.5'", BadInputError),
        ("i = ''", BadInputError),
        ("l = '9223372036854775808'", BadInputError),
        ("db = 'one'", BadInputError),
        ("b = 'maybe'", BadInputError),
        ("ts > 'yesterday'", BadInputError),
        ("ts > '12:30'", BadInputError),
        ("ts > '2024-02-30'", BadInputError),
        ("ts > '2024-01-01 25:00:00'", BadInputError),
        ("ts > '2024-01-01 10:00:00+19:00'", BadInputError),
        ("ts > '2024-01-01 10:00:00 Mars/Phobos'", BadInputError),
        ("dt > '2024-13-01'", BadInputError),
        ("u = 'x'", BadInputError),
        ("i = 2147483647 + 1", BadInputError),
        ("i = 1 / 0", BadInputError),
        ("i = CAST(3000000000 AS INT)", BadInputError),
        ("i = CAST('x' AS INT)", BadInputError),
        ("d = CAST(1e10BD AS DECIMAL(9, 2))", BadInputError),
        ("db > 1e400", BadInputError),
        ("d > 1234567890123456789012345678901234567890", BadInputError),
        ("dt > DATE '2024-01-01' + INTERVAL '1 month 2 days'", BadInputError),
        ("dt > DATE '2024-01-01' + INTERVAL 1 FORTNIGHT", FloeplanError),
        ("s = '\ud800'", BadInputError),
    ],
)
def test_what_spark_would_refuse_is_refused(sql: str, error: type[FloeplanError]) -> None:
    with pytest.raises(error) as caught:
        compile_predicate(sql, SCHEMA)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        (None, NULL),
        (True, Literal(Kind.BOOLEAN, True)),
        (np.int64(5), Literal(Kind.INTEGER, 5)),
        (np.float32(0.5), Literal(Kind.DOUBLE, 0.5)),
        (Decimal("1.50"), Literal(Kind.DECIMAL, Decimal("1.50"))),
        (bytearray(b"x"), Literal(Kind.BINARY, b"x")),
        (UUID(int=1), Literal(Kind.BINARY, bytes(15) + b"\x01")),
        (date(1970, 1, 2), Literal(Kind.DATE, 1)),
        (datetime(1970, 1, 1, 0, 0, 1), Literal(Kind.TIMESTAMP, 10**9)),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), Literal(Kind.TIMESTAMP, 0, zoned=True)),
        (datetime(1969, 12, 31, 23, 59, 59, 999999), Literal(Kind.TIMESTAMP, -1000)),
        (time(0, 0, 1), Literal(Kind.TIME, 10**9)),
        (np.datetime64("1970-01-02"), Literal(Kind.DATE, 1)),
        (np.datetime64(7, "ns"), Literal(Kind.TIMESTAMP, 7)),
        (np.datetime64("NaT", "ns"), NULL),
    ],
)
def test_python_values_as_literals(value: object, literal: Literal) -> None:
    assert literal_of(value) == literal


@pytest.mark.parametrize("value", [object(), [1], time(1, tzinfo=UTC), np.datetime64("2024", "Y"), "\udfff"])
def test_values_that_are_no_literals(value: object) -> None:
    with pytest.raises(BadInputError):
        literal_of(value)


def test_nan_and_infinite_decimals_are_doubles() -> None:
    assert math.isnan(literal_of(Decimal("NaN")).value)  # type: ignore[arg-type]
    assert literal_of(Decimal("-Infinity")) == Literal(Kind.DOUBLE, -math.inf)


def test_nanoseconds_against_microseconds_are_exact_for_values() -> None:
    """SQL text loses what Spark drops; a NumPy value keeps it, so nothing in microseconds equals it."""
    timestamp = np.datetime64("2024-03-01T00:00:00.000000001")
    assert str(compile_predicate(("ts", "=", timestamp), SCHEMA).predicate) == "ts IN ()"
    assert str(compile_predicate(("ts", ">=", timestamp), SCHEMA).predicate) == "ts > TIMESTAMP '2024-03-01 00:00:00Z'"
    leaf = compile_predicate(("ns", "=", timestamp), SCHEMA).predicate
    assert isinstance(leaf, Cmp)
    assert leaf.value == 1_709_251_200_000_000_001


def test_zoned_and_zoneless_columns_read_the_same_text_differently() -> None:
    zoned, plain = compiled("ts = '2024-03-01 00:00:00+05:30'"), compiled("nt = '2024-03-01 00:00:00+05:30'")
    assert isinstance(zoned, Cmp)
    assert isinstance(plain, Cmp)
    assert isinstance(zoned.column.type, TimestamptzType)
    assert plain.value - zoned.value == 5.5 * 3600 * 10**6  # type: ignore[operator]

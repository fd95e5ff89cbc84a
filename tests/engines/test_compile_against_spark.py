"""The compiler against Spark: random predicates and constants, evaluated by both on the same rows.

All predicates of a run are columns of one Spark query, which distinguishes NULL from FALSE and needs one job.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

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
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.ir import Cmp
from floeplan.predicate.literals import sql_literal
from floeplan.predicate.rows.evaluate import evaluate_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# PySpark's collect() drops its socket without closing it.
pytestmark = pytest.mark.spark

SCHEMA = Schema(
    NestedField(1, "i", IntegerType()),
    NestedField(2, "l", LongType()),
    NestedField(3, "d", DecimalType(9, 2)),
    NestedField(4, "big", DecimalType(30, 10)),
    NestedField(5, "f", FloatType()),
    NestedField(6, "db", DoubleType()),
    NestedField(7, "s", StringType()),
    NestedField(8, "b", BooleanType()),
    NestedField(9, "dt", DateType()),
    NestedField(10, "ts", TimestamptzType()),
    NestedField(11, "nt", TimestampType()),
    NestedField(12, "bin", BinaryType()),
    NestedField(13, "st", StructType(NestedField(14, "x", IntegerType()), NestedField(15, "y z", StringType()))),
)
NOON = datetime(2024, 3, 1, 12, 30, 15, 123456)
DAYS = [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date(2024, 3, 1), date(9999, 12, 31)]
TIMESTAMPS = [datetime(1900, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2024, 3, 1), NOON]
TEXTS = ["", "a", "ab", "a%b", "a_b", "Straße", "b\nc", "é", "日本", "\U0001f600", "\uffff", " x ", "3", "2024-03-01"]
POOLS: dict[str, list[object]] = {
    "i": [0, 1, -1, 3, 4, 7, 100, 2**31 - 1, -(2**31)],
    "l": [0, 1, -7, 3, 2**53, 2**53 + 1, 2**53 - 1, 2**63 - 1, -(2**63), 3_000_000_000],
    "d": [Decimal(text) for text in ("0.00", "1.00", "1.01", "-1.05", "3.50", "9999999.99", "-9999999.99")],
    "big": [Decimal(text) for text in ("0", "1.0050000000", "12345678901234567890.0123456789", "-3.5")],
    "f": [0.0, -0.0, 0.1, 1.0, 3.5, float("nan"), float("inf"), float("-inf"), 16777217.0],
    "db": [0.0, -0.0, 0.1, 1.0, 3.5, float("nan"), float("inf"), float("-inf"), 9007199254740992.0, 5e-324],
    "s": list(TEXTS),
    "b": [True, False],
    "dt": list(DAYS),
    "ts": [timestamp.replace(tzinfo=UTC) for timestamp in TIMESTAMPS],
    "nt": list(TIMESTAMPS),
    "bin": [b"", b"a", b"ab", b"\x00\xff", b"\xff"],
    "st": [{"x": 1, "y z": "a"}, {"x": None, "y z": "b"}, {"x": 3, "y z": None}],
}
ARROW = pa.schema(
    [
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("d", pa.decimal128(9, 2)),
        ("big", pa.decimal128(30, 10)),
        ("f", pa.float32()),
        ("db", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("dt", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("nt", pa.timestamp("us")),
        ("bin", pa.binary()),
        ("st", pa.struct([("x", pa.int32()), ("y z", pa.string())])),
    ]
)
NUMBERS = [
    "0",
    "1",
    "-1",
    "3",
    "3.5",
    "-3.5",
    "1.005",
    "1.01",
    "2147483648",
    "-3000000000",
    "3.5D",
    "0.1",
    "0.1F",
    "0.1D",
]
NUMBERS += ["1e3", "'3'", "'1'", "2L", "7S", "1+2", "5*0.5", "-(2)"]
DOUBLES = ["DOUBLE('NaN')", "CAST('-inf' AS DOUBLE)", "9007199254740993D", "9007199254740992D", "1e19", "16777217D"]
INSTANTS = [
    "DATE '2024-03-01'",
    "TIMESTAMP '2024-03-01 12:30:15.123456'",
    "TIMESTAMP_NTZ '2024-03-01 12:30:15.123456'",
    "TIMESTAMP '2024-03-01 01:00:00+01:00'",
    "'2024-03-01'",
    "'2024-03'",
    "'2024'",
    "'1969-12-31 23:59:59.9999999'",
    "'2024-3-1T12:30:15.123456Z'",
    "DATE '2024-03-31' - INTERVAL '1' MONTH",
    "TIMESTAMP '2024-02-29' + INTERVAL 1 DAY",
    "DATE '2024-02-29' + 1",
    "to_date('2024-03-01')",
    "DATE '0001-01-01'",
    "DATE '9999-12-31'",
]
STRINGS = ["''", "'a'", "'ab'", "'it''s'", "'é'", "'\\U0001F600'", '"b"', "'a' 'b'", "'\\uffff'", "'Stra\\u00dfe'"]
LITERALS: dict[str, list[str]] = {
    "i": [*NUMBERS, *DOUBLES],
    "l": [*NUMBERS, *DOUBLES],
    "d": [*NUMBERS, *DOUBLES, "'1.005'", "1e-300"],
    "big": [*NUMBERS, "12345678901234567890.0123456789", "1.0050000000"],
    "f": [*NUMBERS, *DOUBLES, "'0.1'", "16777216"],
    "db": [*NUMBERS, *DOUBLES, "'0.1'", "5e-324"],
    "s": STRINGS,
    "b": ["TRUE", "FALSE", "'yes'", "' F '"],
    "dt": INSTANTS,
    "ts": INSTANTS,
    "nt": INSTANTS,
    "bin": ["X''", "X'61'", "'ab'", "X'00FF'", "x'fF'"],
    "st.x": NUMBERS,
    "st.`y z`": STRINGS,
}
PATTERNS = [
    "'a%'",
    "'%'",
    "'a'",
    "''",
    "'a\\%%'",
    "'a\\_b'",
    "'_b'",
    "'%b%'",
    "'a%b'",
    "'a!%%' ESCAPE '!'",
    "'%\\n%'",
    "'日%'",
]
ROW_ONLY = [
    "CAST(i AS BIGINT) + 1 > l",
    "CAST(i AS BIGINT) * 2 - 7 <= l",
    "i / 4 > 0.5",
    "i % 3 = -1",
    "l % 7 <> 0",
    "d + 1.5 > big",
    "d * 2 = 2.02",
    "-d < 0",
    "f < db",
    "f = db",
    "db >= f",
    "db <=> f",
    "upper(s) = 'STRASSE'",
    "lower(s) = 'straße'",
    "length(s) > 1",
    "s || 'x' = 'ax'",
    "concat(s, i) = 'a1'",
    "trim(s) = 'x'",
    "ltrim(s) = 'x '",
    "substring(s, 2) = 'b'",
    "substring(s, -2, 1) = 'a'",
    "substring(s, 1, 1) = 'a'",
    "contains(s, '%')",
    "endswith(s, 'b')",
    "s ILIKE 'STRA%'",
    "s LIKE concat('a', '%')",
    "s LIKE 3",
    "s NOT ILIKE 3",
    "s LIKE DATE '2024-03-01'",
    "i LIKE 3 OR b LIKE TRUE OR s LIKE X'61'",
    "contains(s, 3)",
    "trim(3 FROM s) = ''",
    "abs(CAST(i AS BIGINT)) > 3",
    "abs(d) = 1.05",
    "floor(d) = -2",
    "ceil(big) >= 2",
    "round(d) = 4",
    "year(dt) = 2024 AND month(dt) = 3",
    "day(ts) = 1",
    "hour(ts) = 12",
    "date_trunc('MONTH', ts) = TIMESTAMP '2024-03-01'",
    "CAST(ts AS DATE) = dt",
    "ts + INTERVAL '1' DAY > nt",
    "dt + INTERVAL '1' MONTH >= DATE '2024-03-29'",
    "dt < ts",
    "nt = ts",
    "dt + 1 = DATE '2024-03-01'",
    "CASE WHEN i > 0 THEN d > 1 WHEN b THEN TRUE END",
    "CASE i WHEN 1 THEN 'one' WHEN 3 THEN 'three' ELSE s END = 'one'",
    "IF(b, i, l) > 2",
    "coalesce(i, l, 0) = 0",
    "coalesce(s, 'none') = 'none'",
    "nullif(i, 1) IS NULL",
    "(i > 0) = b",
    "(i > 0) IS NULL",
    "(b OR i > 0) IS NOT TRUE",
    "i <> 0 AND 12 / i > 3",
    "CASE WHEN i = 0 THEN FALSE ELSE 12 % i = 0 END",
    "i IN (l, 1, NULL)",
    "i BETWEEN l AND 100",
    "greatest(i, l, 3) = 3",
    "least(dt, DATE '2024-01-01') = DATE '1970-01-01'",
    "CAST(l AS STRING) = '3'",
    "CAST(d AS INT) = 3",
    "CAST(d AS DECIMAL(9, 1)) = 1.0",
    "CAST(b AS INT) = 1",
    "CAST(i AS BOOLEAN)",
    "CAST(db AS FLOAT) = f",
    "CAST(bin AS STRING) = 'ab' AND bin <> X'FF' AND bin <> X'00FF'",
    "st IS NULL",
    "isnan(f) <> isnan(db)",
    "NOT contains(s, '\\n') AND s RLIKE '^a'",
    "NOT contains(s, '\\n') AND s RLIKE 3",
    "i IS DISTINCT FROM l",
]
CONSTANTS = [
    "2147483647L + 1",
    "-2147483648",
    "-9223372036854775808",
    "9223372036854775808",
    "7 DIV 2",
    "-7 % 3",
    "1.50 * 2.5",
    "1.5 + 1",
    "0.1 + 0.2D",
    "1 / 4",
    "1e5",
    "1e5BD",
    "1.5F",
    ".5",
    "CAST('1.005' AS DECIMAL(9, 2))",
    "CAST(1.005 AS DECIMAL(9, 2))",
    "CAST(-1.5 AS INT)",
    "CAST(' 12 ' AS INT)",
    "CAST('+inf' AS DOUBLE)",
    "CAST('1d' AS DOUBLE)",
    "CAST('2024-03-01 12:30' AS TIMESTAMP)",
    "CAST('2024-03-01 12' AS TIMESTAMP)",
    "TIMESTAMP '2024-03-01 12:30:00GMT+1'",
    "TIMESTAMP '2024-03-01 12:30:00 +1:30'",
    "TIMESTAMP '2024-03-01T10:00:00.123456+05:30:15'",
    "TIMESTAMP '2024-03-01 10:00:00.1234567'",
    "TIMESTAMP '2021-03-28 02:30:00 Europe/Paris'",
    "TIMESTAMP '2021-10-31 02:30:00 Europe/Paris'",
    "TIMESTAMP_NTZ '2024-03-01 00:00:00+01:00'",
    "DATE '2024-03'",
    "DATE '2024-03-31' - INTERVAL '1-1' YEAR TO MONTH",
    "DATE '2024-03-31' + INTERVAL '3' HOURS",
    "DATE '2024-03-31' + INTERVAL 7 DAYS",
    "TIMESTAMP '2024-03-31' + INTERVAL '1 2:03:04' DAY TO SECOND",
    "TIMESTAMP '2024-03-31' + INTERVAL 1.5 SECONDS",
    "TIMESTAMP '2024-03-31' - INTERVAL 1 day 2 hours",
    "TIMESTAMP '2024-03-31' + 2 * INTERVAL 1 WEEK",
    "INTERVAL '-1' DAY + TIMESTAMP '2024-03-31'",
    "TIMESTAMP '2024-01-31 10:00:00' + INTERVAL 1 MONTH",
    "date_add(DATE '2024-03-01', 7)",
    "date_sub('2024-03-01', 7)",
    "add_months(DATE '2024-01-31', 1)",
    "to_timestamp('2024-03-01')",
    "'it''s'",
    "'a\\u00e9\\U0001F600\\101\\q\\%\\_\\n'",
    "X'1'",
]


def make_rows() -> pa.Table:
    """Every value of every pool, shuffled independently, with nulls."""
    draw = random.Random(3)
    count = 60
    columns = {}
    for field in ARROW:
        values = [None, *POOLS[field.name]]
        column = values * (count // len(values) + 1)
        draw.shuffle(column)
        columns[field.name] = pa.array(column[:count], field.type)
    return pa.table(columns, schema=ARROW)


def random_leaf(draw: random.Random) -> str:
    if draw.random() < 0.2:
        return draw.choice(ROW_ONLY)
    column = draw.choice(list(LITERALS))
    literals = LITERALS[column]
    literal = draw.choice([*literals, "NULL"])
    shown = column
    if column in ("i", "l") and draw.random() < 0.15:
        shown = draw.choice(["CAST({} AS BIGINT)", "CAST({} AS DOUBLE)", "CAST({} AS DECIMAL(22, 2))"]).format(column)
    if column == "dt" and draw.random() < 0.15:
        shown = "CAST(dt AS TIMESTAMP_NTZ)"
    op = draw.choice(["=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>"])
    negation = draw.choice(["", "NOT "])
    templates = [
        f"{shown} {op} {literal}",
        f"{literal} {op} {shown}",
        f"{shown} {negation}BETWEEN {draw.choice(literals)} AND {literal}",
        f"{shown} {negation}IN ({', '.join(draw.choices([*literals, 'NULL'], k=draw.randint(1, 3)))})",
        f"{shown} IS {negation}NULL",
        f"{shown} IS {negation}DISTINCT FROM {literal}",
    ]
    if column in ("s", "st.`y z`"):
        templates = [
            *templates,
            f"{column} {negation}LIKE {draw.choice(PATTERNS)}",
            f"startswith({column}, {literal})",
        ] * 2
    if column in ("f", "db", "i"):
        templates.append(f"isnan({column})")
    if column == "b":
        templates += ["b", f"b IS {negation}TRUE", f"b IS {negation}FALSE", "b = (1 < 2)"]
    return draw.choice(templates)


def random_predicate(draw: random.Random, depth: int = 2) -> str:
    if depth == 0 or draw.random() < 0.3:
        return random_leaf(draw)
    joiner = draw.choice([" AND ", " OR "])
    parts = [random_predicate(draw, depth - 1) for _ in range(draw.randint(2, 3))]
    text = joiner.join(f"({part})" for part in parts)
    return f"NOT ({text})" if draw.random() < 0.25 else text


@pytest.fixture
def interpreted(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark without code generation, which would compile hundreds of expressions for sixty rows."""
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield spark
    spark.conf.unset("spark.sql.codegen.factoryMode")


def test_random_predicates_select_the_rows_spark_selects(interpreted: SparkSession) -> None:
    rows = make_rows()
    draw = random.Random(20240301)
    predicates = [*ROW_ONLY, *(random_leaf(draw) for _ in range(400)), *(random_predicate(draw) for _ in range(150))]
    frame = interpreted.createDataFrame(rows)
    wrong = []
    for first in range(0, len(predicates), 120):
        batch = predicates[first : first + 120]
        answers = frame.selectExpr(*(f"({predicate}) AS p{n}" for n, predicate in enumerate(batch))).collect()
        for n, predicate in enumerate(batch):
            expected = [answer[n] for answer in answers]
            found = evaluate_rows(compile_predicate(predicate, SCHEMA).predicate, rows, SCHEMA).to_pylist()
            if found != expected:
                differing = [n for n, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1]]
                wrong.append((predicate, rows.slice(differing[0], 1).to_pylist(), expected[differing[0]]))
    assert not wrong


def test_constants_have_the_values_spark_gives_them(spark: SparkSession) -> None:
    """Each constant is compiled against a column of its own Spark type and must equal the canonical value."""
    frame = spark.range(1)
    types = frame.selectExpr(*(f"{constant} AS c{n}" for n, constant in enumerate(CONSTANTS))).schema.fields
    questions = []
    for constant, field in zip(CONSTANTS, types, strict=True):
        schema = Schema(NestedField(1, "c", iceberg_type(field.dataType.simpleString())))
        leaf = compile_predicate(f"c = {constant}", schema).predicate
        assert isinstance(leaf, Cmp), (constant, field.dataType, leaf)
        questions.append(f"{constant} = {sql_literal(leaf.column.type, leaf.value)}")
    answers = frame.selectExpr(*questions).collect()[0]
    assert [question for question, answer in zip(questions, answers, strict=True) if answer is not True] == []


def iceberg_type(name: str) -> PrimitiveType:
    if name.startswith("decimal"):
        precision, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
        return DecimalType(int(precision), int(scale))
    types: dict[str, PrimitiveType] = {
        "int": IntegerType(),
        "bigint": LongType(),
        "float": FloatType(),
        "double": DoubleType(),
        "string": StringType(),
        "binary": BinaryType(),
        "date": DateType(),
        "timestamp": TimestamptzType(),
        "timestamp_ntz": TimestampType(),
    }
    return types[name]

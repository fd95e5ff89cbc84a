"""PyIceberg expressions: the rows must be those PyIceberg's own row filter selects."""

from __future__ import annotations

import random
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from floeplan.errors import BadInputError, TypeMismatchError, UnknownColumnError
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.rows.evaluate import filter_rows
from tests.support.compiled import SCHEMA as WIDE

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", IntegerType()),
    NestedField(2, "i", IntegerType()),
    NestedField(3, "l", LongType()),
    NestedField(4, "f", FloatType()),
    NestedField(5, "db", DoubleType()),
    NestedField(6, "s", StringType()),
    NestedField(7, "b", BooleanType()),
    NestedField(8, "dt", DateType()),
    NestedField(9, "nt", TimestampType()),
    NestedField(10, "d", DecimalType(9, 2)),
    NestedField(11, "st", StructType(NestedField(12, "x", IntegerType()))),
)
NAN = float("nan")
ROWS: dict[str, list[Any]] = {
    "i": [None, 0, 1, -1, 2**31 - 1],
    "l": [None, 0, 1, -(2**63), 2**63 - 1],
    "f": [None, NAN, 0.0, 0.1, float("inf")],
    "db": [None, NAN, 1.0, 0.1, float("-inf")],
    "s": [None, "", "a", "ab", "b"],
    "b": [None, True, False, True, False],
    "dt": [None, date(1969, 12, 31), date(1970, 1, 1), date(2024, 3, 1), date(9999, 12, 31)],
    "nt": [None, datetime(1969, 12, 31, 23), datetime(2024, 3, 1), datetime(2024, 3, 1, 12), datetime(9999, 1, 1)],
    "d": [None, Decimal("0.00"), Decimal("1.01"), Decimal("-1.05"), Decimal("9999999.99")],
    "st": [None, {"x": None}, {"x": 1}, {"x": 2}, {"x": 3}],
}
LITERALS: dict[str, list[Any]] = {
    "i": [0, 1, 7],
    "l": [0, 1, 2**63 - 1],
    "f": [0.1, 0.0, 1.5],
    "db": [0.1, 1.0, 0.5],
    "s": ["a", "", "ab"],
    "b": [True, False],
    "dt": [date(1970, 1, 1), date(2024, 3, 1)],
    "nt": [datetime(2024, 3, 1), datetime(1970, 1, 1)],
    "d": [Decimal("1.01"), Decimal("0.00")],
    "st.x": [1, 2],
}


def table() -> pa.Table:
    columns = {name: column * 5 for name, column in ROWS.items()}
    draw = random.Random(1)
    for column in columns.values():
        draw.shuffle(column)
    arrow = pa.schema(
        [
            ("id", pa.int32()),
            ("i", pa.int32()),
            ("l", pa.int64()),
            ("f", pa.float32()),
            ("db", pa.float64()),
            ("s", pa.string()),
            ("b", pa.bool_()),
            ("dt", pa.date32()),
            ("nt", pa.timestamp("us")),
            ("d", pa.decimal128(9, 2)),
            ("st", pa.struct([("x", pa.int32())])),
        ]
    )
    return pa.table({"id": list(range(25)), **columns}, schema=arrow)


def every_leaf() -> list[BooleanExpression]:
    found: list[BooleanExpression] = [AlwaysTrue(), AlwaysFalse(), IsNaN("f"), NotNaN("f"), IsNaN("db"), NotNaN("db")]
    for name, values in LITERALS.items():
        found += [IsNull(name), NotNull(name), In(name, values), NotIn(name, values), In(name, values[:1])]
        comparisons = (EqualTo, NotEqualTo, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual)
        found += [kind(name, value) for kind in comparisons for value in values]
    return found + [kind("s", prefix) for kind in (StartsWith, NotStartsWith) for prefix in ("a", "ab")]


def random_trees(count: int) -> list[BooleanExpression]:
    draw = random.Random(7)
    leaves = every_leaf()

    def tree(depth: int) -> BooleanExpression:
        if depth == 0:
            return draw.choice(leaves)
        kind = draw.choice((And, Or, Not))
        return Not(tree(depth - 1)) if kind is Not else kind(tree(depth - 1), tree(depth - 1))

    return [tree(draw.randint(1, 4)) for _ in range(count)]


@pytest.mark.parametrize("make", [every_leaf, lambda: [Not(e) for e in every_leaf()], lambda: random_trees(300)])
def test_the_rows_are_those_of_pyiceberg(make: Any) -> None:
    rows = table()
    for expression in make():
        bound = bind(SCHEMA, expression, case_sensitive=True)
        expected = rows.filter(expression_to_pyarrow(bound, SCHEMA))["id"].to_pylist()
        for form in (expression, bound):
            predicate = compile_predicate(form, SCHEMA).predicate
            assert filter_rows(predicate, rows, SCHEMA)["id"].to_pylist() == expected, (form, str(predicate))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (EqualTo("i", 3_000_000_000), "i IN ()"),
        (LessThan("i", 3_000_000_000), "i NOT IN ()"),
        (GreaterThan("i", 3.5), "i > 3"),
        (EqualTo("d", Decimal("1.005")), "d IN ()"),
        (GreaterThanOrEqual("ts", "2024-03-01T00:00:00+00:00"), "ts >= TIMESTAMP '2024-03-01 00:00:00Z'"),
        (EqualTo("ts", datetime(2024, 3, 1)), "ts = TIMESTAMP '2024-03-01 00:00:00Z'"),
        (EqualTo("ts", 1_709_251_200_000_000), "ts = TIMESTAMP '2024-03-01 00:00:00Z'"),
        (EqualTo("dt", 19_783), "dt = DATE '2024-03-01'"),
        (LessThan("dt", datetime(2024, 3, 1, 12)), "dt <= DATE '2024-03-01'"),
        (EqualTo("tm", 1_000_000), "tm = TIME '00:00:01'"),
        (EqualTo("u", UUID(int=1)), "u = X'00000000000000000000000000000001'"),
        (EqualTo("u", str(UUID(int=1))), "u = X'00000000000000000000000000000001'"),
        (EqualTo("bin", b"x"), "bin = X'78'"),
        (EqualTo("fx", b"xy"), "fx IN ()"),
        (EqualTo("st.x", 1), "st.x = 1"),
        (EqualTo("a.b", 1), "`a.b` = 1"),
        (NotIn("i", {1, 2}), "i NOT IN (1, 2) OR i IS NULL"),
        (NotNaN("db"), "db IS NOT NULL AND NOT isnan(db)"),
        (GreaterThan("db", 1.0), "db > 1.0 AND NOT isnan(db)"),
        (StartsWith("s", ""), "s NOT IN ()"),
    ],
)
def test_literals_are_converted_to_the_column_type(expression: BooleanExpression, expected: str) -> None:
    assert str(compile_predicate(expression, WIDE).predicate) == expected


def test_a_long_chain_of_alternatives_is_flat() -> None:
    chain = Or(*(EqualTo("i", n) for n in range(800)))
    assert len(compile_predicate(chain, WIDE).predicate.children) == 800


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        (EqualTo("nope", 1), UnknownColumnError),
        (EqualTo("b", 1), TypeMismatchError),
        (EqualTo("i", "x"), BadInputError),
        (EqualTo("s", 5), TypeMismatchError),
        (StartsWith("i", "x"), TypeMismatchError),
        (IsNaN("i"), TypeMismatchError),
        (EqualTo("st", 1), TypeMismatchError),
    ],
)
def test_expressions_that_are_refused(expression: BooleanExpression, error: type[BadInputError]) -> None:
    with pytest.raises(error):
        compile_predicate(expression, WIDE)


def test_a_bound_expression_of_another_schema_is_refused() -> None:
    other = Schema(NestedField(77, "q", IntegerType()))
    with pytest.raises(UnknownColumnError, match="field id 77"):
        compile_predicate(bind(other, EqualTo("q", 1), case_sensitive=True), WIDE)

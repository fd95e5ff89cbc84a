"""The compiler against independent oracles.

Printed predicates compile back to the same rows, and every comparison of a column with a literal of another type is
verified by exact arithmetic on the two values.
"""

from __future__ import annotations

import math
import operator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from floeplan.errors import BadInputError
from floeplan.predicate.build import leaves
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.ir import BloomEq, BloomInList, InList, IrExpr
from floeplan.predicate.rows.evaluate import evaluate_rows as evaluate_arrow
from tests.support.oracles.datasets import datasets, predicates
from tests.support.oracles.rows import evaluate_row, evaluate_rows
from tests.support.oracles.values import decimal, values

pytestmark = pytest.mark.property

COMPARE = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NUMERIC = (
    IntegerType(),
    LongType(),
    DecimalType(9, 2),
    DecimalType(18, 18),
    DecimalType(38, 10),
    FloatType(),
    DoubleType(),
)
TEMPORAL = (DateType(), TimestampType(), TimestamptzType(), TimestampNanoType())
NANOS = {DateType: 86_400 * 10**9, TimestampType: 1000, TimestamptzType: 1000, TimestampNanoType: 1}
EPOCH = datetime(1970, 1, 1)


def is_sql(expr: IrExpr) -> bool:
    """Whether the printed form is SQL: bloom leaves and empty IN lists are not."""
    return not any(isinstance(leaf, BloomEq | BloomInList) or leaf == empty(leaf) for leaf in leaves(expr))


def empty(leaf: IrExpr) -> IrExpr | None:
    return InList(leaf.column, (), leaf.negated) if isinstance(leaf, InList) else None


@given(st.data())
def test_a_printed_predicate_compiles_to_the_same_rows(data: st.DataObject) -> None:
    drawn = data.draw(datasets(min_size=1))
    predicate = data.draw(predicates(drawn).filter(is_sql))
    result = compile_predicate(str(predicate), drawn.schema)
    assert result.errors == ()
    assert evaluate_rows(result.predicate, drawn.rows) == evaluate_rows(predicate, drawn.rows)


def spark_key(value: int | float | Decimal, *, as_double: bool) -> Any:
    """The values Spark compares: exact numbers, or doubles with NaN above everything."""
    if not as_double:
        return Fraction(value)
    rounded = float(value) if not isinstance(value, Decimal) else float(str(value))
    return (1, 0.0) if math.isnan(rounded) else (0, rounded)


@st.composite
def numeric_literals(draw: st.DrawFn, near: list[Any]) -> tuple[str, int | float | Decimal]:
    """A literal as SQL text and as a value: an integer, a decimal, or a double; often close to the data."""
    finite = [value for value in near if not isinstance(value, float) or math.isfinite(value)]
    base = (
        draw(st.sampled_from(finite))
        if finite and draw(st.booleans())
        else draw(st.integers(-(2**65), 2**65) | st.integers(-9, 9))
    )
    kind = draw(st.sampled_from(("integer", "decimal", "double")))
    if kind == "integer":
        whole = int(base) + draw(st.integers(-1, 1))
        assume(abs(whole) < 10**38)
        return str(whole), whole
    if kind == "decimal":
        scale = draw(st.integers(1, 12))
        number = decimal(int(Fraction(base) * 10**scale) + draw(st.integers(-1, 1)), scale)
        assume(len(number.as_tuple().digits) <= 38)
        return f"{number:f}", number
    value = math.nextafter(float(base), draw(st.sampled_from((-math.inf, math.inf, float(base)))))
    value = draw(st.sampled_from((value, value, math.nan, math.inf, -math.inf)))
    return f"CAST('{value!r}' AS DOUBLE)", value


@given(st.data())
@example(None)
def test_a_number_is_compared_as_spark_compares_it(data: st.DataObject | None) -> None:
    """Exactly, or as doubles if either side is one."""
    if data is None:
        check_number(LongType(), [2**53, 2**53 + 1, 2**53 + 2], "9007199254740993D", 9007199254740992.0, "=")
        return
    type_ = data.draw(st.sampled_from(NUMERIC))
    column = data.draw(st.lists(values(type_), min_size=1, max_size=6))
    text, value = data.draw(numeric_literals(column))
    check_number(type_, column, text, value, data.draw(st.sampled_from(sorted(COMPARE))))


def check_number(type_: PrimitiveType, column: list[Any], text: str, value: int | float | Decimal, op: str) -> None:
    as_double = isinstance(value, float) or isinstance(type_, FloatType | DoubleType)
    schema = Schema(NestedField(1, "x", type_))
    compiled = compile_predicate(f"x {op} {text}", schema).predicate
    listed = compile_predicate(f"x NOT IN ({text}, {text})", schema).predicate
    assert evaluate_row(compiled, {1: None}) is None
    for row in column:
        key, wanted = spark_key(row, as_double=as_double), spark_key(value, as_double=as_double)
        assert evaluate_row(compiled, {1: row}) is COMPARE[op](key, wanted), (row, str(compiled))
        assert evaluate_row(listed, {1: row}) is (key != wanted), (row, str(listed))


@st.composite
def instants(draw: st.DrawFn, near: list[int], unit: int) -> tuple[str, int]:
    """A date or timestamp literal, as SQL text and as nanoseconds."""
    close = [nanos for value in near if abs(nanos := value * unit) < 2**62]
    nanos = draw(st.sampled_from(close or [0])) + draw(st.integers(-2, 2)) * draw(
        st.sampled_from((1000, 86_400 * 10**9))
    )
    value = EPOCH + timedelta(microseconds=nanos // 1000)
    midnight = value.replace(hour=0, minute=0, second=0, microsecond=0)
    form = draw(st.sampled_from(("date", "timestamp", "zoned")))
    if form == "date":
        return f"DATE '{midnight.date()}'", (midnight - EPOCH) // timedelta(microseconds=1) * 1000
    exact = (value - EPOCH) // timedelta(microseconds=1) * 1000
    if form == "timestamp":
        return f"TIMESTAMP_NTZ '{value}'", exact
    hours = draw(st.integers(-18, 18))
    return f"TIMESTAMP '{value + timedelta(hours=hours)}{hours:+03d}:00'", exact


@given(st.data())
def test_instants_are_compared(data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from(TEMPORAL))
    unit = NANOS[type(type_)]
    column = data.draw(st.lists(values(type_) | st.integers(-1000, 1000), min_size=1, max_size=6))
    text, nanos = data.draw(instants(column, unit))
    op = data.draw(st.sampled_from(sorted(COMPARE)))
    compiled = compile_predicate(f"{text} {op} x", Schema(NestedField(1, "x", type_))).predicate
    for row in column:
        assert evaluate_row(compiled, {1: row}) is COMPARE[op](nanos, row * unit), (row, str(compiled))


@given(st.dates(date(50, 1, 1), date(9950, 1, 1)), st.integers(-400, 400), st.integers(-400, 400))
@example(date(2024, 1, 31), 1, 0)
def test_months_are_added_as_the_calendar_has_them(start: date, months: int, days: int) -> None:
    """The same day of the target month, or its last day; then whole days."""
    count = start.year * 12 + start.month - 1 + months
    year, month = divmod(count, 12)
    last = (date(year + month // 11, (month + 1) % 12 + 1, 1) - timedelta(days=1)).day
    moved = date(year, month + 1, min(start.day, last)) + timedelta(days=days)
    text = f"x = DATE '{start}' + INTERVAL '{months}' MONTH + INTERVAL '{days}' DAY"
    compiled = compile_predicate(text, Schema(NestedField(1, "x", DateType()))).predicate
    assert evaluate_row(compiled, {1: (moved - date(1970, 1, 1)).days}) is True


PATTERN = st.text("ab%_\\", max_size=5)


@given(st.lists(st.text("ab%_\\", max_size=4), max_size=6), PATTERN)
def test_like_matches_what_a_backtracking_matcher_matches(texts: list[str], pattern: str) -> None:
    schema = Schema(NestedField(1, "x", StringType()))
    escaped = pattern.replace("\\", "\\\\")
    try:
        compiled = compile_predicate(f"x LIKE '{escaped}'", schema).predicate
    except BadInputError:
        assert not well_formed(pattern)
        return
    answers = evaluate_arrow(compiled, pa.table({"x": pa.array(texts, pa.string())}), schema).to_pylist()
    assert answers == [matches(text, pattern) for text in texts]


def well_formed(pattern: str) -> bool:
    while pattern:
        if pattern[0] == "\\":
            if pattern[1:2] not in ("%", "_", "\\"):
                return False
            pattern = pattern[1:]
        pattern = pattern[1:]
    return True


def matches(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(matches(text[start:], pattern[1:]) for start in range(len(text) + 1))
    if pattern[0] == "\\":
        return text[:1] == pattern[1] and matches(text[1:], pattern[2:])
    return bool(text) and (pattern[0] == "_" or text[0] == pattern[0]) and matches(text[1:], pattern[1:])


@given(st.times())
def test_times_of_day_keep_their_microseconds(value: Any) -> None:
    micros = (datetime.combine(EPOCH.date(), value) - EPOCH) // timedelta(microseconds=1)
    schema = Schema(NestedField(1, "x", TimeType()))
    for text in (f"TIME '{value}'", f"'{value}'"):
        assert evaluate_row(compile_predicate(f"x = {text}", schema).predicate, {1: micros}) is True


@given(st.datetimes(), st.sampled_from((None, UTC)))
def test_python_datetimes_mean_what_their_text_means(value: datetime, zone: Any) -> None:
    schema = Schema(NestedField(1, "x", TimestamptzType()))
    by_value = compile_predicate(("x", "=", value.replace(tzinfo=zone)), schema).predicate
    assert by_value == compile_predicate(f"x = '{value}'", schema).predicate

"""Filters of REST clients: every form binds to the same leaves, and residuals are pieces of the filter."""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from pyiceberg import types as t
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, parse_transform

from floeplan.errors import BadInputError, TypeMismatchError, UnknownColumnError
from floeplan.partition.fields import bind_field
from floeplan.partition.lift import Exactness, lift
from floeplan.predicate.build import and_, conjuncts, has_opaque, negate, without_opaque
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import FALSE, TRUE, Cmp, CmpOp, Column, InList, IrExpr, IsNull, Opaque, Transformed
from floeplan.predicate.stats import ColumnStats, StatsTable
from floeplan.rest.expressions import Binder, CompiledFilter, FilterLimits, compile_filter
from floeplan.scan.report import expression_json
from tests.support.oracles.rest_filters import Client, matches

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    t.NestedField(1, "id", t.LongType()),
    t.NestedField(2, "s", t.StringType()),
    t.NestedField(3, "x", t.DoubleType()),
    t.NestedField(4, "f", t.FloatType()),
    t.NestedField(5, "d", t.DecimalType(9, 2)),
    t.NestedField(6, "day", t.DateType()),
    t.NestedField(7, "ts", t.TimestampType()),
    t.NestedField(8, "tz", t.TimestamptzType()),
    t.NestedField(9, "ns", t.TimestampNanoType()),
    t.NestedField(10, "clock", t.TimeType()),
    t.NestedField(11, "u", t.UUIDType()),
    t.NestedField(12, "bin", t.BinaryType()),
    t.NestedField(13, "fix", t.FixedType(2)),
    t.NestedField(14, "flag", t.BooleanType()),
    t.NestedField(15, "Nested", t.StructType(t.NestedField(16, "Field", t.IntegerType()))),
    t.NestedField(17, "items", t.ListType(18, t.IntegerType())),
)
BINDER = Binder((SCHEMA,))
MICROS = 1_705_539_723_000_000  # 2024-01-18T01:02:03


def compiled(filter_: Any, binder: Binder = BINDER) -> CompiledFilter:
    return compile_filter(filter_, binder)


def text(filter_: Any) -> str:
    return str(compiled(filter_).predicate)


def eq(term: Any, value: Any) -> dict[str, Any]:
    return {"type": "eq", "term": term, "value": value}


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("id", 5, "id = 5"),
        ("id", "5", "id = 5"),
        ("id", 5.5, "id IN ()"),
        ("id", 2**70, "id IN ()"),
        ("s", "it's", "s = 'it\\'s'"),
        ("x", 1, "x = 1.0"),
        ("x", "Infinity", "x = DOUBLE('inf')"),
        ("f", 0.1, "f = 0.10000000149011612"),
        ("d", "12.50", "d = 12.50"),
        ("d", 12, "d = 12.00"),
        ("d", "12.505", "d IN ()"),
        ("day", 19740, "day = DATE '2024-01-18'"),
        ("day", "2024-01-18", "day = DATE '2024-01-18'"),
        ("ts", MICROS, "ts = TIMESTAMP_NTZ '2024-01-18 01:02:03'"),
        ("ts", "2024-01-18T01:02:03", "ts = TIMESTAMP_NTZ '2024-01-18 01:02:03'"),
        ("ts", "2024-01-18T01:02:03+00:00", "ts = TIMESTAMP_NTZ '2024-01-18 01:02:03'"),
        ("tz", MICROS, "tz = TIMESTAMP '2024-01-18 01:02:03Z'"),
        ("tz", "2024-01-18T01:02:03", "tz = TIMESTAMP '2024-01-18 01:02:03Z'"),
        ("tz", "2024-01-18T02:02:03+01:00", "tz = TIMESTAMP '2024-01-18 01:02:03Z'"),
        ("ns", MICROS * 1000 + 1, "ns = TIMESTAMP_NTZ '2024-01-18 01:02:03.000000001'"),
        ("ns", "2024-01-18T01:02:03.000000001", "ns = TIMESTAMP_NTZ '2024-01-18 01:02:03.000000001'"),
        ("clock", 3_723_000_000, "clock = TIME '01:02:03'"),
        ("clock", "01:02:03", "clock = TIME '01:02:03'"),
        ("u", "00000000-0000-0000-0000-00000000000a", "u = X'0000000000000000000000000000000A'"),
        ("bin", "ab01", "bin = X'AB01'"),
        ("fix", "AB01", "fix = X'AB01'"),
        ("flag", True, "flag = TRUE"),
        ("Nested.Field", 5, "Nested.Field = 5"),
    ],
)
def test_literals_of_java_and_pyiceberg(column: str, value: Any, expected: str) -> None:
    assert text(eq(column, value)) == expected


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", True),
        ("id", "five"),
        ("id", "1.5x"),
        ("s", 5),
        ("flag", 1),
        ("day", "2024-01-18T00:00:00"),
        ("day", 1.5),
        ("day", "today"),
        ("ts", "now"),
        ("ts", "2024-01-18T01:02:03+01:00"),
        ("ts", True),
        ("d", "NaN"),
        ("d", "1e1000000"),
        ("d", "twelve"),
        ("u", "5"),
        ("bin", "not hex"),
        ("s", "\ud800"),
        ("id", None),
        ("id", [1]),
        ("id", {"type": "eq"}),
    ],
)
def test_unsuitable_literals_are_errors(column: str, value: Any) -> None:
    with pytest.raises(BadInputError):
        compiled(eq(column, value))


@pytest.mark.parametrize(
    "filter_",
    [
        eq("id", 5),
        eq({"type": "reference", "term": "id"}, 5),
        eq({"type": "reference", "name": "id"}, 5),
        eq({"type": "reference", "id": 1}, 5),
        eq("id", {"type": "literal", "value": 5}),
        {"type": "eq", "left": {"type": "reference", "name": "id"}, "right": 5},
        {
            "type": "eq",
            "left": {"type": "literal", "value": 5, "data-type": "long"},
            "right": {"type": "reference", "id": 1},
        },
        {"type": "not", "child": {"type": "not", "child": eq("id", 5)}},
        {"type": "and", "left": True, "right": eq("id", 5)},
        {"type": "or", "left": {"type": "false"}, "right": eq("id", 5)},
        {"type": "in", "child": {"type": "reference", "name": "id"}, "values": [5]},
        {"type": "in", "term": "id", "values": {"type": "literals", "values": [5], "data-type": "long"}},
        eq({"type": "transform", "transform": "identity", "term": "id"}, 5),
    ],
    ids=json.dumps,
)
def test_all_forms_of_one_filter(filter_: Any) -> None:
    assert text(filter_) == "id = 5"


def test_the_literal_may_stand_on_the_left() -> None:
    filter_ = {"type": "lt", "left": 5, "right": {"type": "reference", "name": "id"}}
    assert text(filter_) == "id > 5"
    assert text({"type": "not", "child": filter_}) == "id <= 5"


def test_constants() -> None:
    assert compiled(True).predicate == TRUE
    assert compiled({"type": "literal", "value": False}).predicate == FALSE
    assert compiled({"type": "not", "child": {"type": "true"}}).predicate == FALSE


@pytest.mark.parametrize("name", ["ID", "nested.field", "NESTED.Field"])
def test_names_without_case(name: str) -> None:
    with pytest.raises(UnknownColumnError):
        compiled(eq(name, 5))
    expected = "id = 5" if name == "ID" else "Nested.Field = 5"
    assert str(compiled(eq(name, 5), Binder((SCHEMA,), case_sensitive=False)).predicate) == expected


def test_names_that_the_schemas_disagree_about_answer_nothing() -> None:
    """``id`` was renamed and another column is called so now: the request does not say which schema is meant."""
    newer = Schema(t.NestedField(1, "key", t.LongType()), t.NestedField(19, "id", t.LongType()), schema_id=1)
    both = Binder((SCHEMA, newer))
    filter_ = {"type": "and", "left": eq("id", 5), "right": eq("key", 7)}
    found = compiled(filter_, both)
    assert str(without_opaque(found.predicate)) == "key = 7"
    assert json.loads(found.residual_json(found.predicate)) == filter_
    assert str(compiled(eq("s", "a"), both).predicate) == "s = 'a'"


@pytest.mark.parametrize(
    "filter_",
    [
        eq("_file", "x"),
        {"type": "not-null", "term": "_partition.day"},
        {"type": "not-null", "term": "Nested"},
        {"type": "is-null", "term": "items"},
        {"type": "eq", "left": {"type": "reference", "name": "id"}, "right": {"type": "reference", "name": "x"}},
        {"type": "eq", "left": {"type": "apply", "function": "f", "arguments": []}, "right": 5},
        eq({"type": "transform", "transform": "zorder", "term": "id"}, 5),
        eq({"type": "transform", "transform": "void", "term": "id"}, 5),
        {"type": "lt", "term": "f", "value": 1e300},
        eq("id", "7.5"),  # PyIceberg's decimals: it rounds them to whole numbers before it compares
        {"type": "in", "term": "id", "values": ["7.5", 8]},
    ],
    ids=json.dumps,
)
def test_what_statistics_cannot_answer_is_left_to_the_client(filter_: Any) -> None:
    found = compiled(filter_)
    assert isinstance(found.predicate, Opaque)
    assert json.loads(found.residual_json(found.predicate)) == filter_


def test_long_pieces_for_the_client_are_told_apart() -> None:
    values = [{"type": "in", "term": "_file", "values": [*map(str, range(500)), last]} for last in "ab"]
    found = compiled({"type": "and", "left": values[0], "right": values[1]})
    assert len(conjuncts(found.predicate)) == 2
    assert json.loads(found.residual_json(found.predicate)) == {"type": "and", "left": values[0], "right": values[1]}


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        ({"type": "not-eq", "term": "id", "value": 5}, "id != 5 OR (id IS NULL AND a null in id matches)"),
        ({"type": "not", "child": eq("id", 5)}, "id != 5 OR (id IS NULL AND a null in id matches)"),
        (
            {"type": "not-in", "term": "id", "values": [5, 6]},
            "id NOT IN (5, 6) OR (id IS NULL AND a null in id matches)",
        ),
        ({"type": "gt", "term": "x", "value": 5}, "x > 5.0 AND (NOT isnan(x) OR NaN in x matches)"),
        ({"type": "lt", "term": "x", "value": 5}, "x < 5.0"),
        (
            {"type": "not", "child": {"type": "gt", "term": "x", "value": 5}},
            "x <= 5.0 OR (isnan(x) AND NaN in x matches)",
        ),
        ({"type": "not-nan", "term": "x"}, "NOT isnan(x) AND (x IS NOT NULL OR a null in x matches)"),
        ({"type": "is-nan", "term": "x"}, "isnan(x)"),
        ({"type": "lt", "term": "x", "value": 0}, "x < 0.0 OR (x = 0.0 AND a zero in x matches)"),
        ({"type": "lt-eq", "term": "x", "value": 0}, "x <= 0.0"),
        ({"type": "eq", "term": "f", "value": -0.0}, "f = 0.0 AND (f != 0.0 OR a zero in f matches)"),
    ],
    ids=str,
)
def test_rows_that_clients_disagree_about_are_left_to_them(filter_: Any, expected: str) -> None:
    assert text(filter_) == expected


def test_residuals_are_the_pieces_that_are_not_proven() -> None:
    pieces = [eq("id", 5), {"type": "gt", "term": "x", "value": 1}, {"type": "not", "child": eq("s", "a")}]
    whole = {"type": "and", "left": {"type": "and", "left": pieces[0], "right": pieces[1]}, "right": pieces[2]}
    found = compiled(whole)
    parts = conjuncts(found.predicate)
    assert len(parts) == 4  # the comparison of a double is two conjuncts
    assert json.loads(found.residual_json(found.predicate)) == whole
    assert found.residual_json(TRUE) == "true"
    assert json.loads(found.residual_json(parts[2])) == pieces[1]
    assert json.loads(found.residual_json(and_(parts[1], parts[2]))) == pieces[1]
    assert json.loads(found.residual_json(parts[3])) == pieces[2]


def transform_term(transform: str, column: str) -> dict[str, Any]:
    return {"type": "transform", "transform": transform, "term": column}


def on_field(expr: IrExpr, transform: str, source: int) -> tuple[str, Exactness]:
    """A predicate lifted onto a partition field."""
    part = PartitionField(source, 1000, parse_transform(transform), "p")
    lifted = lift(expr, bind_field(part, {i: (SCHEMA.find_field(i).field_type,) for i in (1, 2, 6, 7)}))
    return str(lifted.expr), lifted.exactness


@pytest.mark.parametrize(
    ("filter_", "partition", "expected", "source"),
    [
        (eq(transform_term("bucket[4]", "id"), 3), "bucket[4]", "p = 3", None),
        ({"type": "lt", "term": transform_term("bucket[4]", "id"), "value": 2}, "bucket[4]", "p < 2", None),
        (eq(transform_term("truncate[10]", "id"), 20), "truncate[10]", "p = 20", "id >= 20 AND id < 30"),
        (eq(transform_term("truncate[2]", "s"), "ab"), "truncate[2]", "p = 'ab'", "s LIKE 'ab%'"),
        (
            eq(transform_term("day", "ts"), 19740),
            "day",
            "p = DATE '2024-01-18'",
            "ts >= TIMESTAMP_NTZ '2024-01-18 00:00:00' AND ts < TIMESTAMP_NTZ '2024-01-19 00:00:00'",
        ),
        (
            eq(transform_term("day", "ts"), "2024-01-18"),
            "day",
            "p = DATE '2024-01-18'",
            "ts >= TIMESTAMP_NTZ '2024-01-18 00:00:00' AND ts < TIMESTAMP_NTZ '2024-01-19 00:00:00'",
        ),
        (
            {"type": "gt", "term": transform_term("year", "day"), "value": 53},
            "year",
            "p > 53",
            "day >= DATE '2024-01-01'",
        ),
        ({"type": "not-null", "term": transform_term("month", "day")}, "month", "p IS NOT NULL", None),
    ],
    ids=str,
)
def test_transform_terms_prune_by_partition_and_by_source(
    filter_: Any, partition: str, expected: str, source: str | None
) -> None:
    found = compiled(filter_)
    ids = {"id": 1, "s": 2, "day": 6, "ts": 7}
    name = filter_["term"]["term"]
    assert on_field(found.predicate, partition, ids[name]) == (expected, Exactness.EXACT)
    if source is not None:
        assert isinstance(found.predicate, Transformed)
        assert str(found.predicate.source) == source
    assert json.loads(found.residual_json(found.predicate)) == filter_


def test_a_bucket_of_another_count_answers_nothing() -> None:
    found = compiled(eq(transform_term("bucket[4]", "id"), 3)).predicate
    assert on_field(found, "bucket[8]", 1)[1] is Exactness.CANNOT
    assert has_opaque(found.source) if isinstance(found, Transformed) else False


def test_labels_before_1970_are_compared_as_they_are_stored() -> None:
    """Engines do not evaluate such a condition on rows where the partition decides it: no wider label may be kept."""
    found = compiled(eq(transform_term("day", "ts"), -1)).predicate
    assert on_field(found, "day", 7) == ("p = DATE '1969-12-31'", Exactness.EXACT)


def test_transforms_in_reports() -> None:
    filter_ = {"type": "in", "term": transform_term("bucket[4]", "id"), "values": [1, 3]}
    predicate = compiled(filter_).predicate
    assert expression_json(predicate) == filter_
    assert expression_json(negate(predicate)) == filter_ | {"type": "not-in"}
    assert str(predicate) == "bucket[4](id) IN (1, 3)"


@pytest.mark.parametrize(
    "filter_",
    [
        None,
        [],
        "id = 5",
        5,
        {},
        {"type": "exists"},
        {"type": 5},
        {"type": "eq", "term": "id"},
        {"type": "eq", "value": 5},
        {"type": "eq", "term": 5, "value": 5},
        {"type": "eq", "term": None, "value": 5},
        {"type": "not-null", "term": None},
        {"type": "in", "child": None, "values": [5]},
        {"type": "eq", "left": None, "right": 5},
        {"type": "in", "term": "id", "values": 5},
        {"type": "and", "left": True},
        {"type": "not"},
        {"type": "starts-with", "term": "id", "value": "5"},
        {"type": "starts-with", "term": "s", "value": 5},
        {"type": "is-nan", "term": "id"},
        eq("nothing", 5),
        eq(transform_term("bucket[4]", "x"), 5),
        eq(transform_term("hour", "day"), 5),
        eq(transform_term("bucket[0]", "id"), 0),
        eq(transform_term("bucket[x]", "id"), 0),
        eq({"type": "transform", "transform": 5, "term": "id"}, 5),
        eq({"type": "reference", "id": 99}, 5),
        eq({"type": "reference", "id": True}, 5),
        eq(transform_term("bucket[4]", "id"), "x"),
    ],
    ids=json.dumps,
)
def test_malformed_filters_are_errors(filter_: Any) -> None:
    with pytest.raises(BadInputError):
        compiled(filter_)


def chain(kind: str, length: int) -> Any:
    filter_: Any = eq("id", 0)
    for number in range(1, length):
        filter_ = {"type": kind, "left": filter_, "right": eq("id", number)}
    return filter_


def test_long_chains_are_flat_and_deep_nesting_is_an_error() -> None:
    assert len(conjuncts(compiled(chain("and", 900)).predicate)) == 900
    assert text({"type": "not", "child": chain("or", 3)}).count("id != ") == 3
    deep: Any = eq("id", 0)
    for level in range(120):
        deep = {"type": "and" if level % 2 else "or", "left": deep, "right": eq("s", str(level))}
    with pytest.raises(BadInputError, match="nests more than 100 levels"):
        compiled(deep)
    nots: Any = eq("id", 0)
    for _ in range(901):
        nots = {"type": "not", "child": nots}
    assert text(nots).startswith("id != 0")


def test_limits() -> None:
    limits = FilterLimits(leaves=3, values=4)
    for filter_, message in (
        (chain("or", 4), "more than 3 predicates"),
        ({"type": "in", "term": "id", "values": list(range(5))}, "more than 4 values"),
    ):
        with pytest.raises(BadInputError, match=message):
            compile_filter(filter_, BINDER, limits)


def test_huge_lists_compile() -> None:
    predicate = compiled({"type": "in", "term": "id", "values": list(range(100_000))}).predicate
    assert isinstance(predicate, InList)
    assert len(predicate.values) == 100_000


def test_empty_lists() -> None:
    assert text({"type": "in", "term": "id", "values": []}) == "id IN ()"
    assert without_opaque(compiled({"type": "not-in", "term": "id", "values": []}).predicate) is not TRUE


def test_errors_name_the_column() -> None:
    with pytest.raises(TypeMismatchError, match="column day is date and cannot be compared with 'today'"):
        compiled(eq("day", "today"))


def test_equal_transforms_have_equal_text() -> None:
    assert {str(BucketTransform(4)), str(DayTransform())} == {"bucket[4]", "day"}
    assert Cmp(BINDER.find("id").column, CmpOp.EQ, 5) == compiled(eq("id", 5)).predicate  # type: ignore[union-attr, arg-type]
    assert IsNull(BINDER.find("d").column) == compiled({"type": "is-null", "term": "d"}).predicate  # type: ignore[union-attr, arg-type]
    assert compiled(eq("d", "12.50")).predicate.value == Decimal("12.50")  # type: ignore[attr-defined]


DOUBLES = (None, math.nan, -math.inf, -1.7976931348623157e308, -1.0, 0.0, 1.0, 1.7976931348623157e308, math.inf)
FLOATS = (None, math.nan, -math.inf, -3.4028234663852886e38, -1.0, 0.0, 1.0, 3.4028234663852886e38, math.inf)


def java_matches(node: Any, value: float | None) -> bool:
    """What Iceberg's Java evaluator answers for a row: null is below every number, and NaN above."""
    if isinstance(node, bool):
        return node
    match node["type"]:
        case "and":
            return java_matches(node["left"], value) and java_matches(node["right"], value)
        case "or":
            return java_matches(node["left"], value) or java_matches(node["right"], value)
        case "not":
            return not java_matches(node["child"], value)
        case "is-null":
            return value is None
        case "not-null":
            return value is not None
        case "is-nan":
            return value is not None and math.isnan(value)
        case "not-nan":
            return value is None or not math.isnan(value)
        case "in":
            return java_order(value) in [java_order(float(one)) for one in node["values"]]
        case "not-in":
            return java_order(value) not in [java_order(float(one)) for one in node["values"]]
    operators = {"lt": operator.lt, "lt-eq": operator.le, "gt": operator.gt, "gt-eq": operator.ge, "eq": operator.eq}
    compare = (operators | {"not-eq": operator.ne})[node["type"]]
    return bool(compare(java_order(value), java_order(float(node["value"]))))


def java_order(value: float | None) -> tuple[int, float, float]:
    """NaN is above every number, and -0.0 below 0.0."""
    if value is None:
        return (0, 0.0, 0.0)
    return (2, 0.0, 0.0) if math.isnan(value) else (1, value, math.copysign(1, value))


@pytest.mark.parametrize("kind", ["lt", "lt-eq", "gt", "gt-eq", "eq", "not-eq", "in", "not-in"])
@pytest.mark.parametrize("literal", [0.0, -0.0, 0])
@pytest.mark.parametrize("stored", [0.0, -0.0])
@pytest.mark.parametrize("negated", [False, True])
def test_zeros_of_either_sign(kind: str, literal: float, stored: float, negated: bool) -> None:
    """A file of one zero is kept if it matches for a client, and proven only if it matches for all."""

    def filter_(zero: float) -> Any:
        leaf = {"type": kind, "term": "x"} | ({"values": [zero, 1.5]} if kind.endswith("in") else {"value": zero})
        return {"type": "not", "child": leaf} if negated else leaf

    bounds = ColumnStats.exact(np.array([stored]), np.array([False]))
    answer = evaluate(compiled(filter_(literal)).predicate, StatsTable(1, {3: bounds}))
    in_java, in_sql = java_matches(filter_(literal), stored), java_matches(filter_(0.0), 0.0)
    assert bool(answer.keep[0]) >= (in_java or in_sql)
    assert bool(answer.all_match[0]) <= (in_java and in_sql)


def sent_back(filter_: Any) -> Any:
    """The residual of a file about which nothing is known, parsed as Java does: numbers only."""
    result = compiled(filter_)
    texts = dict.fromkeys(result.pieces.values())
    whole = [json.loads(text, parse_constant=lambda name: pytest.fail(name)) for text in texts]
    return functools.reduce(lambda left, right: {"type": "and", "left": left, "right": right}, whole)


@pytest.mark.parametrize(("column", "values"), [("x", DOUBLES), ("f", FLOATS)])
@pytest.mark.parametrize("infinity", ["Infinity", "-Infinity"])
@pytest.mark.parametrize("kind", ["lt", "lt-eq", "gt", "gt-eq", "eq", "not-eq"])
def test_residuals_express_infinity_by_finite_numbers(kind: str, infinity: str, column: str, values: Any) -> None:
    leaf = {"type": kind, "term": column, "value": infinity}
    filters = [leaf, {"type": "not", "child": leaf}, {"type": "or", "left": leaf, "right": eq(column, 1.0)}]
    for filter_ in filters:
        residual = sent_back(filter_)
        assert "Infinity" not in json.dumps(residual)
        matches = [java_matches(filter_, value) for value in values]
        assert [java_matches(residual, value) for value in values] == matches, filter_
        assert_equal_for_clients(filter_, residual, column, values)


@pytest.mark.parametrize("listed", [["Infinity"], ["-Infinity", 1.0, "Infinity"], [0.0, "Infinity"]])
@pytest.mark.parametrize("kind", ["in", "not-in"])
@pytest.mark.parametrize("negated", [False, True])
def test_lists_with_infinity_in_residuals(kind: str, listed: list[Any], negated: bool) -> None:
    leaf: Any = {"type": kind, "term": "x", "values": listed}
    filter_ = {"type": "not", "child": leaf} if negated else leaf
    residual = sent_back(filter_)
    assert "Infinity" not in json.dumps(residual)
    assert [java_matches(residual, value) for value in DOUBLES] == [java_matches(filter_, value) for value in DOUBLES]
    assert_equal_for_clients(filter_, residual, "x", DOUBLES)


@pytest.mark.parametrize("kind", ["starts-with", "not-starts-with"])
@pytest.mark.parametrize("negated", [False, True])
def test_nulls_keep_their_answer_in_ranges_of_prefixes(kind: str, negated: bool) -> None:
    """Java's readers skip row groups of nulls for a range, which rows without a prefix must not be lost to."""
    leaf: Any = {"type": kind, "term": "s", "value": "n"}
    filter_ = {"type": "not", "child": leaf} if negated else leaf
    residual = sent_back(filter_)
    assert "starts-with" not in json.dumps(residual)
    assert_equal_for_clients(filter_, residual, "s", [None, "", "m", "n", "nz", "o"])


def assert_equal_for_clients(filter_: Any, residual: Any, name: str, values: Sequence[Any]) -> None:
    """Whoever evaluates the residual finds the rows of the filter, nulls and NaN included."""
    column = Column(1, SCHEMA.find_type(name), (name,))
    for client in Client:
        found, expected = (
            [matches(one, {1: value}, {name: column}, client) for value in values] for one in (residual, filter_)
        )
        assert found == expected, f"{client}: {residual} for {filter_}"


@pytest.mark.parametrize("prefix", ["n", "a%", "é", "\U0001f600", "ab\ue000"])
@pytest.mark.parametrize("kind", ["starts-with", "not-starts-with"])
def test_residuals_express_prefixes_by_ranges(kind: str, prefix: str) -> None:
    """Java fails to test the prefix of a null partition value; of a range, it does not."""
    residual = sent_back({"type": kind, "term": "s", "value": prefix})
    residual = residual["left"] if kind == "not-starts-with" else residual  # the other side is for nulls
    low, high = residual["left"], residual["right"]
    texts = [
        *("", "a", "m", "n", "nn", "o", "é", "éa", "ê"),
        prefix,
        f"{prefix}z",
        f"z{prefix}",
        prefix[:-1],
        "\U0010ffff",
    ]
    compare = {"lt": lambda text, end: text < end, "gt-eq": lambda text, end: text >= end}
    join = all if residual["type"] == "and" else any
    found = [text for text in texts if join(compare[side["type"]](text, side["value"]) for side in (low, high))]
    assert found == [text for text in texts if text.startswith(prefix) == (kind == "starts-with")]


@pytest.mark.parametrize("prefix", ["a\uffff", "\U0010ffff", "\ud7ff"])
def test_prefixes_without_an_end_stay_as_they_are(prefix: str) -> None:
    leaf = {"type": "starts-with", "term": "s", "value": prefix}
    assert sent_back(leaf) == leaf


def test_the_text_infinity_stays_what_it_is_in_other_columns() -> None:
    filter_ = {"type": "or", "left": eq("s", "Infinity"), "right": {"type": "in", "term": "s", "values": ["-Infinity"]}}
    assert sent_back(filter_) == filter_
    with pytest.raises(TypeMismatchError):
        compiled({"type": "starts-with", "term": "x", "value": "Infinity"})


def test_repeated_conjuncts_are_bound_once_and_counted() -> None:
    binder, prefix = Binder((SCHEMA,)), {"type": "starts-with", "term": "s", "value": "ab"}
    first = compiled(eq("id", 5), binder)
    both = {"type": "and", "left": eq("id", 5), "right": prefix}
    for _ in range(2):
        again = compiled(both, binder)
        assert conjuncts(again.predicate)[0] is first.predicate
        fresh = compiled(both, Binder((SCHEMA,)))
        assert again.predicate == fresh.predicate
        assert again.residual_json(again.predicate) == fresh.residual_json(fresh.predicate)
    assert compiled({"type": "not", "child": eq("id", 5)}, binder).predicate != first.predicate
    assert compiled(eq("id", 6), binder).predicate != first.predicate
    with pytest.raises(BadInputError, match="more than 1 predicates"):
        compile_filter({"type": "and", "left": eq("id", 5), "right": eq("id", 5)}, binder, FilterLimits(leaves=1))
    with pytest.raises(BadInputError, match="where a predicate is expected"):
        compiled({"type": ["eq"], "term": "id", "value": 5}, binder)

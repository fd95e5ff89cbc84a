"""Rows conformed to the schema of a table: casts, defaults, and errors by column."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.errors import BadInputError, TypeMismatchError, UnknownColumnError
from floeplan.scan.projection import FIELD_ID, arrow_schema
from floeplan.write.conform import conform
from tests.support.tables import every_type as every_column

pytestmark = pytest.mark.unit

POINT = StructType(NestedField(5, "x", IntegerType(), required=True), NestedField(6, "y", StringType()))
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "kind", StringType(), required=True, initial_default="old", write_default="new"),
    NestedField(4, "point", POINT),
    NestedField(7, "path", ListType(8, StructType(NestedField(9, "x", LongType(), required=True)), True)),
    NestedField(10, "by_name", MapType(11, StringType(), 12, LongType(), False)),
)


def column(type_: PrimitiveType, data: pa.Array) -> list[Any]:
    schema = Schema(NestedField(1, "c", type_))
    conformed = conform(pa.table({"c": data}), schema)
    assert conformed.schema.equals(arrow_schema(schema))
    found: list[Any] = conformed.column(0).to_pylist()
    return found


@pytest.mark.parametrize(
    ("type_", "given"),
    [
        (LongType(), pa.array([1, None], pa.int8())),
        (IntegerType(), pa.array([2**31 - 1, None], pa.int64())),
        (DoubleType(), pa.array([1.5, None], pa.float32())),
        (DecimalType(20, 4), pa.array([Decimal("1.25"), None], pa.decimal128(9, 2))),
        (DecimalType(9, 2), pa.array([Decimal("1.25"), None], pa.decimal128(20, 2))),
        (StringType(), pa.array(["a", None], pa.string_view())),
        (StringType(), pa.array(["a", None]).dictionary_encode()),
        (BinaryType(), pa.array([b"abc", None], pa.binary(3))),
        (FixedType(3), pa.array([b"abc", None])),
        (UUIDType(), pa.array([bytes(16), None], pa.binary(16))),
        (UUIDType(), pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16), None], pa.binary(16)))),
        (DateType(), pa.array([0, None], pa.date64())),
        (TimeType(), pa.array([1, None], pa.time32("s"))),
        (TimestampType(), pa.array([1, None], pa.timestamp("s"))),
        (TimestampNanoType(), pa.array([1, None], pa.timestamp("us"))),
        (TimestamptzType(), pa.array([1, None], pa.timestamp("us", "Asia/Kolkata"))),
        (StringType(), pa.nulls(2)),
    ],
)
def test_values_stay_what_they_are_in_a_wider_type(type_: PrimitiveType, given: pa.Array) -> None:
    plain = given.dictionary_decode() if isinstance(given, pa.DictionaryArray) else given
    assert column(type_, given) == _shown(plain, type_)


def _shown(array: pa.Array, type_: PrimitiveType) -> list[Any]:
    if isinstance(type_, UUIDType) and not isinstance(array, pa.ExtensionArray):
        array = pa.ExtensionArray.from_storage(pa.uuid(), array)
    shown: list[Any] = array.to_pylist()
    return shown


@pytest.mark.parametrize(
    ("type_", "given"),
    [
        (IntegerType(), pa.array([2**31])),
        (LongType(), pa.array([2**64 - 1], pa.uint64())),
        (LongType(), pa.array(["1"])),
        (LongType(), pa.array([1.0])),
        (LongType(), pa.array([True])),
        (DoubleType(), pa.array([1])),
        (FloatType(), pa.array([1.5], pa.float64())),
        (DecimalType(9, 2), pa.array([Decimal("1.255")])),
        (DecimalType(3, 2), pa.array([Decimal("11.25")])),
        (StringType(), pa.array([1])),
        (StringType(), pa.array([b"a"])),
        (BinaryType(), pa.array(["a"])),
        (FixedType(3), pa.array([b"ab"])),
        (DateType(), pa.array([0], pa.timestamp("us"))),
        (TimestampType(), pa.array([1], pa.timestamp("ns"))),
        (TimestampType(), pa.array([0], pa.timestamp("us", "UTC"))),
        (TimestamptzType(), pa.array([0], pa.timestamp("us"))),
        (TimestampNanoType(), pa.array([2**62], pa.timestamp("us"))),
    ],
)
def test_values_that_would_change_are_refused(type_: PrimitiveType, given: pa.Array) -> None:
    with pytest.raises(TypeMismatchError, match=re.escape(f"column c is {type_}")):
        column(type_, given)


def rows(**more: Any) -> pa.Table:
    given: dict[str, Any] = {"id": pa.array([1, 2], pa.int32()), "kind": ["a", "b"]} | more
    return pa.table({name: data for name, data in given.items() if data is not None})


def test_columns_come_in_any_order_and_missing_ones_are_default_or_null() -> None:
    given = pa.table({"name": ["x", None], "id": [1, 2]})
    assert conform(given, SCHEMA).to_pylist() == [
        {"id": 1, "name": "x", "kind": "new", "point": None, "path": None, "by_name": None},
        {"id": 2, "name": None, "kind": "new", "point": None, "path": None, "by_name": None},
    ]


def test_a_field_id_counts_for_more_than_a_name() -> None:
    renamed = pa.field("title", pa.string(), metadata={FIELD_ID: "2"})
    given = pa.table([[1], ["x"], ["k"]], schema=pa.schema([("id", pa.int64()), renamed, ("kind", pa.string())]))
    assert conform(given, SCHEMA).column("name").to_pylist() == ["x"]


def test_nested_rows_are_brought_into_layout_wherever_they_start() -> None:
    given = rows(
        point=pa.array([{"y": "q", "x": 1}, None], pa.struct([("y", pa.string()), ("x", pa.int8())])),
        path=pa.array([[{"x": 1}, {"x": 2}], None], pa.list_(pa.struct([("x", pa.int32())]))),
        by_name=pa.array([[("a", 1), ("b", None)], []], pa.map_(pa.string(), pa.int32())),
    )
    whole = conform(given, SCHEMA)
    whole.validate(full=True)
    assert whole.to_pylist()[0]["point"] == {"x": 1, "y": "q"}
    assert whole.to_pylist()[0]["path"] == [{"x": 1}, {"x": 2}]
    assert whole.to_pylist()[0]["by_name"] == [("a", 1), ("b", None)]
    assert conform(given.slice(1), SCHEMA).to_pylist() == whole.to_pylist()[1:]


@pytest.mark.parametrize("length", [0, 1, 3])
def test_rows_in_layout_stay_as_they_are(length: int) -> None:
    given = every_column.rows().slice(0, length)
    conformed = conform(given, every_column.SCHEMA)
    assert repr(conformed.to_pylist()) == repr(given.to_pylist())
    assert conformed.schema.equals(given.schema, check_metadata=True)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (rows(id=None), BadInputError, "column id is required, and the 2 rows to be written do not have it"),
        (rows(id=[1, None]), BadInputError, "column id is required, and 1 of the rows to be written have null there"),
        (
            rows(nam=["x", "y"]),
            UnknownColumnError,
            "nam that the table does not have; its columns are id, name",
        ),
        (rows(point=[{"x": None}, None]), BadInputError, "column point.x is required"),
        (rows(point=[{"y": "a"}, None]), BadInputError, "column point.x is required"),
        (rows(point=[{"x": 1, "z": 1}] * 2), UnknownColumnError, "a column point.z that the table does not have"),
        (rows(point=[1, 2]), TypeMismatchError, "column point is"),
        (rows(path=[[None], []]), BadInputError, "column path.element is required"),
        (rows(path=[1, 2]), TypeMismatchError, "column path is"),
        (rows(by_name=[[1], []]), TypeMismatchError, "column by_name is"),
        (rows(path=[[{"x": "a"}], []]), TypeMismatchError, "column path.element.x is long"),
    ],
)
def test_what_does_not_fit_is_named(given: pa.Table, error: type[BadInputError], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        conform(given, SCHEMA)


def test_a_column_given_twice_is_refused() -> None:
    twice = pa.table([[1], [2]], names=["id", "id"])
    with pytest.raises(BadInputError, match="column id twice"):
        conform(twice, SCHEMA)


def test_a_required_field_may_be_absent_inside_of_a_null_struct() -> None:
    given = rows(point=pa.array([None, {"x": 1}], pa.struct([("x", pa.int32())])))
    conformed = conform(given, SCHEMA)
    assert conformed.column("point").to_pylist() == [None, {"x": 1, "y": None}]
    assert conformed.column("point").chunk(0).field(0).null_count == 0


@pytest.mark.parametrize("given", [rows(), rows(point=pa.nulls(2))])
def test_missing_structs_of_required_fields_can_be_written(given: pa.Table) -> None:
    point = conform(given, SCHEMA).column("point")
    assert point.to_pylist() == [None, None]
    assert point.chunk(0).field(0).null_count == 0

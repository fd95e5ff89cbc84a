"""Rows of old files projected to the current schema."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from floeplan.errors import CorruptFileError
from floeplan.scan.projection import arrow_schema, project

pytestmark = pytest.mark.unit


def column(field_id: int, name: str, type_: IcebergType, **options: Any) -> NestedField:
    return NestedField(field_id, name, type_, required=False, **options)


def file(*columns: tuple[int, str, pa.Array]) -> pa.Table:
    fields = [pa.field(name, array.type, metadata={"PARQUET:field_id": str(i)}) for i, name, array in columns]
    return pa.Table.from_arrays([array for _, _, array in columns], schema=pa.schema(fields))


def child(field_id: int, name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, metadata={"PARQUET:field_id": str(field_id)})


def test_columns_are_found_by_id_not_by_name() -> None:
    written = file((1, "a", pa.array([1, 2])), (2, "b", pa.array([3, 4])))
    schema = Schema(column(2, "a", LongType()), column(1, "b", LongType()))
    assert project(written, schema, {}, "f").to_pydict() == {"a": [3, 4], "b": [1, 2]}


def test_absent_column_is_partition_value_then_default_then_null() -> None:
    written = file((1, "a", pa.array([1, 2])))
    schema = Schema(
        column(2, "constant", StringType(), initial_default="unused"),
        column(3, "defaulted", LongType(), initial_default=7),
        column(4, "nothing", DoubleType()),
    )
    assert project(written, schema, {2: "eu"}, "f").to_pydict() == {
        "constant": ["eu", "eu"],
        "defaulted": [7, 7],
        "nothing": [None, None],
    }


def test_constant_does_not_replace_a_column_that_is_there() -> None:
    written = file((1, "a", pa.array(["x"])))
    assert project(written, Schema(column(1, "a", StringType())), {1: "eu"}, "f").to_pydict() == {"a": ["x"]}


def test_promoted_types_are_cast() -> None:
    written = file((1, "i", pa.array([1], pa.int32())), (2, "f", pa.array([1.5], pa.float32())))
    projected = project(written, Schema(column(1, "i", LongType()), column(2, "f", DoubleType())), {}, "f")
    assert projected.schema.types == [pa.int64(), pa.float64()]
    assert projected.to_pydict() == {"i": [1], "f": [1.5]}


def test_cast_that_loses_values_names_the_column() -> None:
    with pytest.raises(CorruptFileError, match=r"column i of part\.parquet cannot be read as long"):
        project(file((1, "i", pa.array([1.5]))), Schema(column(1, "i", LongType())), {}, "part.parquet")


def test_struct_fields_are_matched_by_id_and_parent_nulls_survive() -> None:
    type_ = pa.struct([child(2, "old", pa.int32()), child(3, "dropped", pa.string())])
    written = file((1, "s", pa.array([{"old": 1, "dropped": "x"}, None, {"old": None, "dropped": "y"}], type_)))
    schema = Schema(column(1, "s", StructType(column(4, "added", StringType()), column(2, "new", LongType()))))
    assert project(written, schema, {}, "f").column("s").to_pylist() == [
        {"added": None, "new": 1},
        None,
        {"added": None, "new": None},
    ]


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_lists_of_structs(offset: int) -> None:
    type_ = pa.list_(child(2, "element", pa.struct([child(3, "x", pa.int32())])))
    values = [[{"x": 1}, {"x": 2}], None, [], [{"x": None}]]
    written = file((1, "l", pa.array(values, type_).slice(offset)))
    element = StructType(column(3, "renamed", LongType()))
    schema = Schema(column(1, "l", ListType(element_id=2, element=element, element_required=False)))
    expected = [None if v is None else [{"renamed": e["x"]} for e in v] for v in values][offset:]
    assert project(written, schema, {}, "f").column("l").to_pylist() == expected


@pytest.mark.parametrize("offset", [0, 1])
def test_maps(offset: int) -> None:
    type_ = pa.map_(child(2, "key", pa.string()).with_nullable(False), child(3, "value", pa.int32()))
    values = [[("a", 1)], None, [("b", None), ("c", 3)]]
    written = file((1, "m", pa.array(values, type_).slice(offset)))
    schema = Schema(
        column(
            1, "m", MapType(key_id=2, key_type=StringType(), value_id=3, value_type=LongType(), value_required=False)
        )
    )
    assert project(written, schema, {}, "f").column("m").to_pylist() == values[offset:]


def test_uuids_and_dictionaries_are_read_as_the_table_has_them() -> None:
    dictionary = pa.array(["x", "y", "x"]).dictionary_encode()
    written = file((1, "u", pa.array([b"a" * 16] * 3, pa.binary(16))), (2, "s", dictionary))
    projected = project(written, Schema(column(1, "u", UUIDType()), column(2, "s", StringType())), {}, "f")
    assert (
        projected.schema.types == arrow_schema(Schema(column(1, "u", UUIDType()), column(2, "s", StringType()))).types
    )
    assert projected.column("s").to_pylist() == ["x", "y", "x"]


def test_empty_file_keeps_the_shape() -> None:
    written = file((1, "a", pa.array([], pa.int32())))
    projected = project(written, Schema(column(1, "a", LongType()), column(2, "b", StringType())), {}, "f")
    assert projected.num_rows == 0
    assert projected.column_names == ["a", "b"]


def test_schemas_are_converted_as_by_pyiceberg() -> None:
    primitives = [
        *(BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(9, 2), FixedType(7)),
        *(DateType(), TimeType(), TimestampType(), TimestamptzType(), TimestampNanoType(), TimestamptzNanoType()),
        *(StringType(), BinaryType(), UUIDType(), UnknownType()),
    ]
    fields = [NestedField(i, f"c{i}", type_, required=i % 3 == 0) for i, type_ in enumerate(primitives, 1)]
    points = ListType(101, StructType(NestedField(102, "x", DoubleType(), doc="metres")), element_required=True)
    mapping = MapType(103, StringType(), 104, points, value_required=False)
    schema = Schema(*fields, NestedField(100, "nested", mapping, doc="points by name"))
    assert arrow_schema(schema).equals(schema_to_pyarrow(schema), check_metadata=True)
    assert arrow_schema(Schema()).equals(schema_to_pyarrow(Schema()), check_metadata=True)

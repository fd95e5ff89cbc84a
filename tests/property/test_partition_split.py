"""Splitting rows by partition on whole columns equals splitting row by row."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestamptzType,
    UUIDType,
)

from floeplan.partition.fields import source_types
from floeplan.partition.key import PartitionKey
from floeplan.partition.transforms import apply, can_apply
from floeplan.partition.union import UnionPartitionType
from floeplan.scan.projection import arrow_schema
from floeplan.write.partitioning import sort_rows, split

pytestmark = pytest.mark.property

MICROS = st.integers(-(10**15), 10**15)
# Canonical values by type, the source of the Arrow data.
VALUES: dict[PrimitiveType, st.SearchStrategy[Any]] = {
    BooleanType(): st.booleans(),
    IntegerType(): st.integers(-100, 100) | st.integers(-(2**31) + 100, 2**31 - 1),
    LongType(): st.integers(-100, 100) | st.integers(-(2**63) + 100, 2**63 - 1),
    DoubleType(): st.floats() | st.sampled_from([0.0, -0.0, float("nan")]),
    DecimalType(9, 2): st.decimals(-1000, 1000, places=2),
    DecimalType(25, 1): st.decimals(-(10**20), 10**20, places=1),
    StringType(): st.text(st.sampled_from("aé😀"), max_size=4),
    BinaryType(): st.binary(max_size=3),
    UUIDType(): st.integers(0, 3).map(lambda n: uuid.UUID(int=n << 120).bytes),
    DateType(): st.integers(-1000, 1000),
    TimestamptzType(): MICROS,
    TimestampNanoType(): MICROS,
}
TRANSFORMS = (
    IdentityTransform(),
    TruncateTransform(3),
    BucketTransform(4),
    YearTransform(),
    MonthTransform(),
    DayTransform(),
    HourTransform(),
)


def arrow(type_: PrimitiveType, values: list[Any], wanted: pa.DataType) -> pa.Array:
    if isinstance(type_, UUIDType):
        return pa.ExtensionArray.from_storage(wanted, pa.array(values, pa.binary(16)))
    return pa.array(values, wanted)


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[PrimitiveType], list[list[Any]]]:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    rows = draw(st.integers(0, 25))
    return types, [draw(st.lists(st.none() | VALUES[t], min_size=rows, max_size=rows)) for t in types]


def table_of(types: list[PrimitiveType], data: list[list[Any]]) -> tuple[Schema, pa.Table]:
    """The columns and a row number."""
    named = [NestedField(at + 1, f"c{at}", type_) for at, type_ in enumerate(types)]
    schema = Schema(*named, NestedField(99, "row", LongType()))
    layout = arrow_schema(schema)
    arrays = [arrow(t, values, layout.field(at).type) for at, (t, values) in enumerate(zip(types, data, strict=True))]
    return schema, pa.table([*arrays, list(range(len(data[0])))], schema=layout)


@given(columns(), st.data())
def test_every_row_is_in_the_partition_of_its_values(
    given_columns: tuple[list[PrimitiveType], list[list[Any]]], data: st.DataObject
) -> None:
    types, values = given_columns
    schema, table = table_of(types, values)
    fields = []
    for at, type_ in enumerate(types):
        transform = data.draw(st.sampled_from([t for t in TRANSFORMS if can_apply(t, type_)]))
        fields.append(PartitionField(at + 1, 1000 + at, transform, f"p{at}"))
    union = UnionPartitionType.of([PartitionSpec(*fields, spec_id=3)], source_types(schema))
    expected: dict[PartitionKey, list[int]] = {}
    for row in range(table.num_rows):
        labels = [apply(f.transform, t, c[row]) for f, t, c in zip(fields, types, values, strict=True)]
        expected.setdefault(PartitionKey(3, tuple(labels)), []).append(row)
    parts = list(split(table, schema, union, 3)) if table.num_rows else []
    assert len(parts) == len(expected)
    assert {key: part.column("row").to_pylist() for key, part in parts} == expected


@given(columns(), st.data())
def test_sorted_rows_are_in_order_and_equal_ones_keep_theirs(
    given_columns: tuple[list[PrimitiveType], list[list[Any]]], data: st.DataObject
) -> None:
    types, values = given_columns
    schema, table = table_of(types, values)
    keys = [
        SortField(
            at + 1,
            data.draw(st.sampled_from([t for t in TRANSFORMS if can_apply(t, type_)])),
            data.draw(st.sampled_from(SortDirection)),
            data.draw(st.sampled_from(NullOrder)),
        )
        for at, type_ in enumerate(types)
    ]
    found = sort_rows(table, schema, SortOrder(*keys, order_id=1)).column("row").to_pylist()
    rows = list(range(table.num_rows))
    for key, type_, column in reversed(list(zip(keys, types, values, strict=True))):
        labels = [apply(key.transform, type_, value) for value in column]
        rows = _sorted(rows, labels, key)
    assert found == rows


def _sorted(rows: list[int], labels: list[Any], key: SortField) -> list[int]:
    """A stable sort by one key, also when descending."""
    present = [row for row in rows if labels[row] is not None]
    absent = [row for row in rows if labels[row] is None]
    present = sorted(present, key=lambda row: _order(labels[row]), reverse=key.direction is SortDirection.DESC)
    return absent + present if key.null_order is NullOrder.NULLS_FIRST else present + absent


def _order(value: Any) -> Any:
    """The sort key of a value: NaN last, -0.0 before 0.0, text by its bytes."""
    if isinstance(value, float):
        return (1,) if value != value else (0, value, 0 if str(value).startswith("-") else 1)
    return value.encode() if isinstance(value, str) else value

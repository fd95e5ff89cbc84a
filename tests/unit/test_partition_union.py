"""The union partition tuple: different fields are separate columns, equal fields share one."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg import transforms as pt
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestampType, UnknownType

from floeplan.errors import UnknownSpecError
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "region", StringType(), required=False),
    NestedField(2, "ts", TimestampType(), required=False),
    NestedField(3, "id", LongType(), required=False),
)
IDENTITY, DAY, MONTH, BUCKET, VOID = (
    pt.IdentityTransform(),
    pt.DayTransform(),
    pt.MonthTransform(),
    pt.BucketTransform(8),
    pt.VoidTransform(),
)
Place = tuple[int, int, Any, str]


def spec(spec_id: int, *fields: Place) -> PartitionSpec:
    return PartitionSpec(*(PartitionField(source, id_, t, name) for id_, source, t, name in fields), spec_id=spec_id)


def union(*specs: PartitionSpec) -> UnionPartitionType:
    return UnionPartitionType.of(specs, source_types(SCHEMA))


EVOLVED = (
    spec(0),
    spec(3, (1000, 1, IDENTITY, "region")),
    spec(4, (1001, 2, DAY, "ts_day"), (1002, 3, BUCKET, "id_bucket")),
    spec(7, (1003, 2, MONTH, "month"), (1000, 1, IDENTITY, "area")),
)


def test_fields_of_all_specs_by_id_with_the_newest_names() -> None:
    result = union(*reversed(EVOLVED))
    assert [(f.id, f.name, str(f.bound.column.type)) for f in result.fields] == [
        (1000, "area", "string"),
        (1001, "ts_day", "date"),
        (1002, "id_bucket", "int"),
        (1003, "month", "int"),
    ]
    assert [f.positions for f in result.fields] == [{3: 0, 7: 1}, {4: 0}, {4: 1}, {7: 0}]
    assert sorted(result.specs) == [0, 3, 4, 7]
    assert result.spec(0).unpartitioned
    assert [f.column.field_id for f in result.spec(7).fields] == [1003, 1000]
    assert [str(f.column) for f in result.spec(3).fields] == ["region"]


def test_ids_that_old_metadata_numbers_by_position_are_never_mixed() -> None:
    result = union(
        spec(0, (1000, 2, DAY, "ts_day"), (1001, 3, BUCKET, "id_bucket")),
        spec(1, (1000, 3, BUCKET, "id_bucket")),
        spec(2, (1000, 3, pt.BucketTransform(16), "id_bucket")),
        spec(3, (1000, 2, DAY, "day_again")),
    )
    assert [(f.id, f.field_id, str(f.bound.transform), f.positions) for f in result.fields] == [
        (1000, 1000, "day", {0: 0, 3: 0}),
        (1001, 1001, "bucket[8]", {0: 1}),
        (1002, 1000, "bucket[8]", {1: 0}),
        (1003, 1000, "bucket[16]", {2: 0}),
    ]
    assert [f.name for f in result.fields] == ["day_again", "id_bucket_1001", "id_bucket_1002", "id_bucket"]
    assert result.spec(1).fields[0].column.field_id == 1002
    assert result.spec(2).fields[0].column.field_id == 1003


def test_different_unknown_transforms_are_different_fields() -> None:
    result = union(
        spec(0, (1000, 3, pt.UnknownTransform("zorder"), "z")), spec(1, (1000, 3, pt.UnknownTransform("hilbert"), "z"))
    )
    assert [f.id for f in result.fields] == [1000, 1001]


def test_void_fields_are_no_columns_but_keep_their_place() -> None:
    result = union(spec(0, (1000, 2, DAY, "ts_day")), spec(1, (1000, 2, VOID, "ts_day"), (1001, 1, IDENTITY, "region")))
    assert [(f.id, f.positions) for f in result.fields] == [(1000, {0: 0}), (1001, {1: 1})]
    assert [f.is_void for f in result.spec(1).fields] == [True, False]
    assert not result.spec(1).unpartitioned


def test_fields_whose_source_was_dropped_are_kept() -> None:
    specs = [spec(0, (1000, 99, IDENTITY, "old"), (1001, 98, BUCKET, "b"))]
    result = UnionPartitionType.of(specs, source_types(SCHEMA))
    assert [f.bound.column.type for f in result.fields] == [UnknownType(), IntegerType()]
    history = Schema(NestedField(99, "old", StringType(), required=False), schema_id=7)
    found = UnionPartitionType.of(specs, source_types(SCHEMA, [history]))
    assert found.fields[0].bound.column.type == StringType()


def test_an_unknown_spec_is_named() -> None:
    with pytest.raises(UnknownSpecError, match=r"no partition spec 5; it has 0, 3, 4, 7"):
        union(*EVOLVED).spec(5)

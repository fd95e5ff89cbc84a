"""Projection of predicates to a spec: inclusive and strict, all fields of a source, sources by id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg import transforms as pt
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, IntegerType, LongType, NestedField, StringType, StructType, TimestampType

from floeplan.partition.fields import source_types
from floeplan.partition.union import SpecProjection, partition_answer
from floeplan.predicate.build import or_
from floeplan.predicate.ir import FALSE, NULL_PREDICATE, TRUE, And, Cmp, CmpOp, Column, IrExpr, IsNull, Not, Opaque, Or
from floeplan.predicate.stats import ColumnStats, StatsTable

pytestmark = pytest.mark.unit

DAY = 86_400_000_000
REGION, TS, ID, OTHER = (
    Column(1, StringType(), ("region",)),
    Column(2, TimestampType(), ("ts",)),
    Column(3, LongType(), ("id",)),
    Column(4, LongType(), ("other",)),
)


def schema(schema_id: int, **columns: tuple[int, IcebergType]) -> Schema:
    fields = [NestedField(field_id, name, type_, required=False) for name, (field_id, type_) in columns.items()]
    return Schema(*fields, schema_id=schema_id)


CURRENT = schema(
    0,
    region=(1, StringType()),
    ts=(2, TimestampType()),
    id=(3, LongType()),
    other=(4, LongType()),
    late=(9, LongType()),
)


def spec(*fields: tuple[str, int, Any], spec_id: int = 0) -> PartitionSpec:
    return PartitionSpec(
        *(PartitionField(source, 1000 + at, transform, name) for at, (name, source, transform) in enumerate(fields)),
        spec_id=spec_id,
    )


def projection(*fields: tuple[str, int, Any], schemas: tuple[Schema, ...] = (CURRENT,)) -> SpecProjection:
    return SpecProjection.of(spec(*fields), source_types(schemas[0], schemas))


BY_REGION_AND_DAY = projection(("region", 1, pt.IdentityTransform()), ("ts_day", 2, pt.DayTransform()))
IN_EU = Cmp(REGION, CmpOp.EQ, "eu")
FROM_DAY_5 = Cmp(TS, CmpOp.GE, 5 * DAY)


def both(expr: IrExpr, spec_: SpecProjection = BY_REGION_AND_DAY) -> tuple[str, str]:
    result = spec_.project(expr)
    return str(result.inclusive), str(result.strict)


def test_a_conjunction_is_projected_leaf_by_leaf() -> None:
    inclusive, strict = both(And((IN_EU, FROM_DAY_5, Cmp(OTHER, CmpOp.GT, 1))))
    assert inclusive == "region = 'eu' AND ts_day >= DATE '1970-01-06'"
    assert strict == "false"


def test_the_strict_projection_holds_where_every_row_matches() -> None:
    assert both(FROM_DAY_5)[1] == "ts_day IS NOT NULL AND ts_day > DATE '1970-01-05'"
    assert both(Cmp(TS, CmpOp.GE, 5 * DAY + 1))[1] == "ts_day IS NOT NULL AND ts_day > DATE '1970-01-06'"
    assert both(Cmp(TS, CmpOp.EQ, 5 * DAY))[1] == "false"
    assert both(Cmp(TS, CmpOp.NE, 5 * DAY))[1] == "ts_day IS NOT NULL AND ts_day != DATE '1970-01-06'"
    assert both(IsNull(TS))[1] == "ts_day IS NULL"


def test_a_disjunction_with_an_unprunable_side_is_true() -> None:
    assert both(or_(IN_EU, Cmp(OTHER, CmpOp.GT, 1)))[0] == "true"


def test_negations_are_pushed_to_the_leaves() -> None:
    inclusive, _ = both(Not(Or((IN_EU, FROM_DAY_5))))
    assert inclusive == "region != 'eu' AND ts_day <= DATE '1970-01-05'"
    assert both(Not(Cmp(REGION, CmpOp.NULL_SAFE_EQ, "eu")))[0] == "region IS NULL OR region != 'eu'"


def test_constants_and_opaque_pieces() -> None:
    assert both(TRUE) == ("true", "true")
    assert both(FALSE) == ("false", "false")
    assert both(NULL_PREDICATE) == ("false", "false")
    assert both(Not(NULL_PREDICATE)) == ("false", "false")
    opaque = Opaque("length(region) > 2", (1,), None)
    assert both(opaque) == ("true", "false")
    assert both(Not(opaque)) == ("true", "false")


def test_two_fields_on_one_source_both_take_part() -> None:
    two = projection(("id_bucket", 3, pt.BucketTransform(16)), ("id_trunc", 3, pt.TruncateTransform(16)))
    assert both(Cmp(ID, CmpOp.EQ, 34), two)[0] == "id_bucket = 3 AND id_trunc = 32"
    assert both(Cmp(ID, CmpOp.LT, 32), two) == (
        "id_bucket IS NOT NULL AND id_trunc <= 16",
        "id_trunc IS NOT NULL AND id_trunc < 32",
    )


def test_notes_describe_the_projection_of_every_leaf() -> None:
    mixed = projection(
        ("region", 1, pt.IdentityTransform()), ("b", 3, pt.BucketTransform(4)), ("v", 4, pt.VoidTransform())
    )
    expr = And((IN_EU, Cmp(ID, CmpOp.EQ, 7), Cmp(ID, CmpOp.GT, 7), Cmp(OTHER, CmpOp.EQ, 1), FROM_DAY_5))
    assert [str(note) for note in mixed.project(expr).notes] == [
        "region = 'eu': lifted exactly onto region",
        "id = 7: lifted conservatively onto b (the partition may contain other values)",
        "id > 7: cannot be lifted onto b (range over bucket)",
        "other = 1: cannot be lifted onto v (void)",
        "ts >= TIMESTAMP_NTZ '1970-01-06 00:00:00': no partition field on ts",
    ]


def test_a_renamed_source_is_found_by_its_id() -> None:
    renamed = schema(1, area=(1, StringType()))
    by_area = projection(("region", 1, pt.IdentityTransform()), schemas=(renamed, CURRENT))
    assert both(Cmp(Column(1, StringType(), ("area",)), CmpOp.EQ, "eu"), by_area)[0] == "region = 'eu'"


def test_a_column_added_again_under_an_old_name_is_another_column() -> None:
    again = schema(2, region=(7, StringType()))
    old = projection(("region", 1, pt.IdentityTransform()), schemas=(again, CURRENT))
    assert both(Cmp(Column(7, StringType(), ("region",)), CmpOp.EQ, "eu"), old) == ("true", "false")


def test_the_type_of_a_dropped_source_comes_from_a_historical_schema() -> None:
    now = schema(5, id=(3, LongType()))
    dropped = projection(
        ("region", 1, pt.IdentityTransform()), ("gone", 77, pt.IdentityTransform()), schemas=(now, CURRENT)
    )
    assert [str(field.column.type) for field in dropped.fields] == ["string", "unknown"]
    assert dropped.fields[1].obstacle == "source column is in no schema"


def test_the_newest_type_of_a_source_counts_and_the_older_ones_are_known() -> None:
    older, oldest = schema(1, id=(3, IntegerType())), schema(0, region=(1, StringType()))
    sources = source_types(schema(2, id=(3, LongType())), (oldest, older, schema(2, id=(3, LongType()))))
    assert sources == {3: (LongType(), IntegerType()), 1: (StringType(),)}
    back = source_types(older, (oldest, schema(2, id=(3, LongType()))))
    assert back[3] == (IntegerType(), LongType())


def test_nested_sources_are_found() -> None:
    nested = Schema(NestedField(1, "s", StructType(NestedField(2, "a", LongType(), required=False)), required=False))
    inner = SpecProjection.of(spec(("s.a", 2, pt.TruncateTransform(16))), source_types(nested))
    assert both(Cmp(Column(2, LongType(), ("s", "a")), CmpOp.LT, 16), inner)[0] == "`s.a` <= 0"


@pytest.mark.parametrize(
    ("fields", "unpartitioned"),
    [
        ((), True),
        ((("a", 1, pt.VoidTransform()), ("b", 2, pt.VoidTransform())), True),
        ((("a", 1, pt.VoidTransform()), ("b", 2, pt.DayTransform())), False),
        ((("a", 1, pt.UnknownTransform("zorder")),), False),
    ],
)
def test_a_spec_of_void_fields_is_unpartitioned(fields: tuple[Any, ...], unpartitioned: bool) -> None:
    assert projection(*fields).unpartitioned is unpartitioned


def day_partitions(days: list[int | None]) -> StatsTable:
    is_null = np.array([day is None for day in days])
    return StatsTable(len(days), {1001: ColumnStats.exact(np.array([day or 0 for day in days]), is_null)})


def test_the_result_of_a_leaf_distinguishes_true_false_and_null() -> None:
    tri = partition_answer(Cmp(TS, CmpOp.GE, 5 * DAY + 1), BY_REGION_AND_DAY.fields, day_partitions([4, 5, 6, None]))
    assert tri.may_true.tolist() == [False, True, True, False]
    assert tri.may_false.tolist() == [True, True, False, False]
    assert tri.may_null.tolist() == [False, False, False, True]
    assert tri.all_match.tolist() == [False, False, True, False]


def test_leaves_that_never_yield_null_do_not() -> None:
    tri = partition_answer(IsNull(TS), BY_REGION_AND_DAY.fields, day_partitions([4, None]))
    assert (tri.may_true.tolist(), tri.may_false.tolist()) == ([False, True], [True, False])
    assert not tri.may_null.any()


def test_without_a_usable_field_nothing_is_known() -> None:
    void = projection(("v", 3, pt.VoidTransform()))
    for leaf, fields in ((Cmp(ID, CmpOp.EQ, 1), void.fields), (Cmp(OTHER, CmpOp.EQ, 1), BY_REGION_AND_DAY.fields)):
        tri = partition_answer(leaf, fields, StatsTable(2, {1000: ColumnStats.all_null(np.ones(2, dtype=np.bool_))}))
        assert tri.may_true.all()
        assert tri.may_false.all()
        assert tri.may_null.all()


def test_all_fields_of_a_source_refine_the_answer() -> None:
    two = projection(("id_bucket", 3, pt.BucketTransform(16)), ("id_trunc", 3, pt.TruncateTransform(16)))
    no_nulls = np.zeros(3, dtype=np.bool_)
    stats = {
        1000: ColumnStats.exact(np.array([3, 4, 3]), no_nulls),
        1001: ColumnStats.exact(np.array([32, 32, 48]), no_nulls),
    }
    tri = partition_answer(Cmp(ID, CmpOp.EQ, 34), two.fields, StatsTable(3, stats))
    assert tri.may_true.tolist() == [True, False, False]


def test_ranges_of_manifest_summaries_are_answered_as_ranges() -> None:
    names = ColumnStats.from_counts(
        np.array([2, 2]), np.array([0, 1]), np.array([0, 0]), *(_bound(side) for side in (["a", "x"], ["f", "z"]))
    )
    tri = partition_answer(IN_EU, BY_REGION_AND_DAY.fields, StatsTable(2, {1000: names}))
    assert tri.may_true.tolist() == [True, False]
    assert tri.may_false.tolist() == [True, True]
    assert tri.may_null.tolist() == [False, True]


def _bound(values: list[str]) -> Any:
    from floeplan.predicate.stats import Bound

    return Bound(pa.array(values), np.ones(len(values), dtype=np.bool_))

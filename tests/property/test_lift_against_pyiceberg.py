"""Lifting against PyIceberg's projections: at least as tight, and correct where PyIceberg is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import expressions as pe
from pyiceberg import transforms as pt
from pyiceberg.expressions.visitors import expression_evaluator
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
)

from floeplan.partition.fields import BoundField, bind_field
from floeplan.partition.union import project
from floeplan.predicate.ir import Cmp, CmpOp, Column, InList, IrExpr, StartsWith
from tests.support.oracles.rows import evaluate_row
from tests.support.oracles.values import TRANSFORMS, decimal, iceberg_java, specified, toward_zero

pytestmark = pytest.mark.property

DAY, HOUR = 86_400_000_000, 3_600_000_000
ORDINARY: dict[PrimitiveType, st.SearchStrategy[Any]] = {
    IntegerType(): st.integers(-50, 50),
    LongType(): st.integers(-50, 50) | st.integers(-(10**12), 10**12),
    DateType(): st.integers(400, 900),
    TimestampType(): st.integers(400, 900).map(lambda days: days * DAY)
    | st.integers(400 * DAY, 900 * DAY)
    | st.integers(10_000, 10_050).map(lambda hours: hours * HOUR - 1),
    DecimalType(9, 2): st.integers(-500, 500).map(lambda unscaled: decimal(unscaled, 2)),
    StringType(): st.text("ab😀é", max_size=5),
    BinaryType(): st.binary(max_size=4),
}
CASES = [(t, type_) for t in TRANSFORMS for type_ in ORDINARY if t.can_transform(type_)]
THEIRS = {
    CmpOp.EQ: pe.EqualTo,
    CmpOp.NE: pe.NotEqualTo,
    CmpOp.LT: pe.LessThan,
    CmpOp.LE: pe.LessThanOrEqual,
    CmpOp.GT: pe.GreaterThan,
    CmpOp.GE: pe.GreaterThanOrEqual,
}


def field(transform: Any, type_: PrimitiveType) -> BoundField:
    return bind_field(PartitionField(source_id=1, field_id=1000, transform=transform, name="p"), {1: (type_,)})


def in_pyiceberg(leaf: IrExpr) -> Any:
    match leaf:
        case Cmp(_, op, value):
            return THEIRS[op]("x", value)
        case InList(_, values, negated):
            return pe.NotIn("x", values) if negated else pe.In("x", values)
        case StartsWith(_, prefix, negated):
            return pe.NotStartsWith("x", prefix) if negated else pe.StartsWith("x", prefix)
    raise AssertionError(leaf)


def theirs(leaf: IrExpr, transform: Any, type_: PrimitiveType, partition: Any, *, strict: bool = False) -> bool:
    """The result of PyIceberg's projection for one partition."""
    source = Schema(NestedField(1, "x", type_, required=False))
    bound = in_pyiceberg(leaf).bind(source)
    projected = transform.strict_project("p", bound) if strict else transform.project("p", bound)
    if projected is None:
        return not strict
    partition_schema = Schema(NestedField(1000, "p", transform.result_type(type_), required=False))
    return bool(expression_evaluator(partition_schema, projected, True)(Record(partition)))


def ours(leaf: IrExpr, transform: Any, type_: PrimitiveType, partition: Any, *, strict: bool = False) -> bool:
    result = project(leaf, [field(transform, type_)])
    return evaluate_row(result.strict if strict else result.inclusive, {1000: partition}) is True


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, PrimitiveType, IrExpr, Any]:
    transform, type_ = draw(st.sampled_from(CASES))
    x, value = Column(1, type_, ("x",)), ORDINARY[type_]
    kinds = [
        st.builds(Cmp, st.just(x), st.sampled_from(list(THEIRS)), value),
        st.builds(InList, st.just(x), st.lists(value, min_size=2, max_size=4, unique=True).map(tuple), st.booleans()),
    ]
    if isinstance(type_, StringType):
        kinds.append(st.builds(StartsWith, st.just(x), value, st.booleans()))
    leaf = draw(st.one_of(kinds))
    literals = [getattr(leaf, name) for name in ("value", "prefix") if hasattr(leaf, name)]
    near = st.sampled_from([*literals, *getattr(leaf, "values", ())])
    return transform, type_, leaf, specified(transform, type_, draw(near | value))


@given(cases())
def test_ours_is_at_least_as_tight_on_ordinary_partitions(case: tuple[Any, PrimitiveType, IrExpr, Any]) -> None:
    transform, type_, leaf, partition = case
    if ours(leaf, transform, type_, partition):
        assert theirs(leaf, transform, type_, partition)
    if theirs(leaf, transform, type_, partition, strict=True):
        assert ours(leaf, transform, type_, partition, strict=True)


def test_pyiceberg_loses_what_java_stores_one_day_early() -> None:
    """Iceberg Java writes 1969-12-31T00:00:00.999999 to day -2."""
    micros, day = -86_399_000_001, pt.DayTransform()
    stored = iceberg_java(day, TimestampType(), micros)
    leaf = Cmp(Column(1, TimestampType(), ("x",)), CmpOp.GE, -DAY)
    assert micros >= -DAY
    assert not theirs(leaf, day, TimestampType(), stored)
    assert ours(leaf, day, TimestampType(), stored)


@pytest.mark.parametrize("op", [CmpOp.LT, CmpOp.LE, CmpOp.EQ])
def test_pyiceberg_loses_what_old_java_stores_one_unit_late(op: CmpOp) -> None:
    """Rounded toward zero, hours before 1970 are one too high."""
    micros, hour = -2 * HOUR + 5, pt.HourTransform()
    stored = toward_zero(hour, TimestampType(), micros)
    leaf = Cmp(Column(1, TimestampType(), ("x",)), op, micros + (op is CmpOp.LT))
    assert not theirs(leaf, hour, TimestampType(), stored)
    assert ours(leaf, hour, TimestampType(), stored)


def test_pyiceberg_loses_integers_that_wrap_around_when_truncated() -> None:
    leaf = Cmp(Column(1, IntegerType(), ("x",)), CmpOp.LT, 20)
    stored = specified(pt.TruncateTransform(10), IntegerType(), -(2**31)) + 2**32
    assert not theirs(leaf, pt.TruncateTransform(10), IntegerType(), stored)
    assert ours(leaf, pt.TruncateTransform(10), IntegerType(), stored)


def test_pyiceberg_cannot_project_times_beyond_its_calendar() -> None:
    leaf = Cmp(Column(1, TimestampType(), ("x",)), CmpOp.LT, 2**62)
    with pytest.raises(OverflowError):
        theirs(leaf, pt.MonthTransform(), TimestampType(), 0)
    assert ours(leaf, pt.MonthTransform(), TimestampType(), 0)


def test_pyiceberg_proves_null_partitions_that_match_nothing() -> None:
    leaf = Cmp(Column(1, LongType(), ("x",)), CmpOp.NE, 5)
    assert theirs(leaf, pt.BucketTransform(4), LongType(), None, strict=True)
    assert not ours(leaf, pt.BucketTransform(4), LongType(), None, strict=True)


def test_ours_is_tighter_for_strings_shorter_than_the_width() -> None:
    """A partition value shorter than the width is the value itself, so != prunes and = proves."""
    two = pt.TruncateTransform(2)
    unequal, equal = (Cmp(Column(1, StringType(), ("x",)), op, "a") for op in (CmpOp.NE, CmpOp.EQ))
    assert theirs(unequal, two, StringType(), "a")
    assert not ours(unequal, two, StringType(), "a")
    assert not theirs(equal, two, StringType(), "a", strict=True)
    assert ours(equal, two, StringType(), "a", strict=True)


def test_the_fields_of_a_spec_project_as_in_pyiceberg() -> None:
    """The same spec read from metadata gives the same columns in the same order."""
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1007, transform="day", name="d"), spec_id=3)
    source = Schema(NestedField(1, "x", TimestampType(), required=False))
    (expected,) = spec.partition_type(source).fields
    bound = bind_field(spec.fields[0], {1: (TimestampType(),)})
    assert (bound.column.field_id, bound.column.type, bound.column.path) == (1007, expected.field_type, ("d",))

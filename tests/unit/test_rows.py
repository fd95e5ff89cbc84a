"""Row evaluation with edge cases of units, widths, layouts and missing columns."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
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

from floeplan.errors import TypeMismatchError, UnknownColumnError
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.ir import (
    NULL_PREDICATE,
    TRUE,
    And,
    Between,
    Cmp,
    CmpOp,
    Column,
    InList,
    IrExpr,
    IsNaN,
    IsNull,
    Not,
    Or,
    StartsWith,
)
from floeplan.predicate.rows.evaluate import evaluate_rows, filter_rows, matching_mask

pytestmark = pytest.mark.unit

EQ, NE, LT, LE, GT, GE, NULL_SAFE_EQ = CmpOp
NAN, INF = math.nan, math.inf
YEAR_9999_END = 253_402_300_800_000_000 - 1


def answers(expr: IrExpr, data: pa.Array) -> list[bool | None]:
    """Evaluate a predicate on its only column, with field id 1."""
    return evaluate_rows(expr, pa.table({"c": data}), lambda field_id: {1: data}[field_id]).to_pylist()


def named(parameter: object) -> str:
    return str(parameter.type if isinstance(parameter, pa.Array) else parameter)


def column(type_: PrimitiveType) -> Column:
    return Column(1, type_, ("c",))


DOUBLES = pa.array([NAN, INF, 1.0, 0.0, -0.0, -INF, None])


@pytest.mark.parametrize(
    ("leaf", "expected"),
    [
        (Cmp(column(DoubleType()), EQ, NAN), "TFFFFFN"),
        (Cmp(column(DoubleType()), NE, NAN), "FTTTTTN"),
        (Cmp(column(DoubleType()), LT, NAN), "FTTTTTN"),
        (Cmp(column(DoubleType()), LE, NAN), "TTTTTTN"),
        (Cmp(column(DoubleType()), GT, NAN), "FFFFFFN"),
        (Cmp(column(DoubleType()), GE, NAN), "TFFFFFN"),
        (Cmp(column(DoubleType()), NULL_SAFE_EQ, NAN), "TFFFFFF"),
        (Cmp(column(DoubleType()), GT, INF), "TFFFFFN"),
        (Cmp(column(DoubleType()), GT, 0.0), "TTTFFFN"),
        (Cmp(column(DoubleType()), GE, 0.0), "TTTTTFN"),
        (Cmp(column(DoubleType()), EQ, -0.0), "FFFTTFN"),
        (Cmp(column(DoubleType()), LT, 0.0), "FFFFFTN"),
        (Cmp(column(DoubleType()), NE, 1.0), "TTFTTTN"),
        (Cmp(column(DoubleType()), NULL_SAFE_EQ, 0.0), "FFFTTFF"),
        (Between(column(DoubleType()), 0.0, INF), "FTTTTFN"),
        (Between(column(DoubleType()), 0.0, NAN), "TTTTTFN"),
        (InList(column(DoubleType()), (0.0, 1.0)), "FFTTTFN"),
        (InList(column(DoubleType()), (-0.0, NAN)), "TFFTTFN"),
        (InList(column(DoubleType()), (NAN,), negated=True), "FTTTTTN"),
        (InList(column(DoubleType()), ()), "FFFFFFN"),
        (InList(column(DoubleType()), (), negated=True), "TTTTTTN"),
        (IsNaN(column(DoubleType())), "TFFFFFF"),
        (IsNaN(column(DoubleType()), negated=True), "FTTTTTT"),
        (IsNull(column(DoubleType())), "FFFFFFT"),
        (And((NULL_PREDICATE, IsNaN(column(DoubleType())))), "NFFFFFF"),
        (Or((NULL_PREDICATE, Not(IsNaN(column(DoubleType()))))), "NTTTTTT"),
    ],
    ids=str,
)
def test_nan_zeros_and_nulls_answer_as_in_spark(leaf: IrExpr, expected: str) -> None:
    assert "".join({True: "T", False: "F", None: "N"}[answer] for answer in answers(leaf, DOUBLES)) == expected


def test_nan_of_any_payload_is_nan() -> None:
    odd = pa.array(np.array([0x7FF8000000000001, 0xFFF0000000000001], dtype=np.uint64).view(np.float64))
    assert answers(InList(column(DoubleType()), (NAN,)), odd) == [True, True]
    assert answers(Cmp(column(DoubleType()), GT, INF), odd) == [True, True]


def stamps(unit: str, *counts: int, zone: str | None = None) -> pa.Array:
    return pa.array(counts, type=pa.int64()).view(pa.timestamp(unit, zone))


def test_a_literal_beyond_nanoseconds_compares_with_nanosecond_data() -> None:
    """Year 9999 in microseconds times 1,000 does not fit 64 bits; nothing may wrap around."""
    data = stamps("ns", 2**63 - 1, 0, -(2**63))
    wide = column(TimestampType())
    assert answers(Cmp(wide, LE, YEAR_9999_END), data) == [True, True, True]
    assert answers(Cmp(wide, GT, YEAR_9999_END), data) == [False, False, False]
    assert answers(Cmp(wide, EQ, YEAR_9999_END), data) == [False, False, False]
    assert answers(InList(wide, (YEAR_9999_END, 0)), data) == [False, True, False]
    assert answers(Between(wide, -YEAR_9999_END, YEAR_9999_END), data) == [True, True, True]


def test_coarse_data_that_overflows_the_unit_of_the_column_is_still_compared() -> None:
    data = stamps("us", YEAR_9999_END, 1, -YEAR_9999_END)
    fine = column(TimestampNanoType())
    assert answers(Cmp(fine, GT, 2**63 - 1), data) == [True, False, False]
    assert answers(Cmp(fine, EQ, 1000), data) == [False, True, False]
    assert answers(InList(fine, (1000, 1001)), data) == [False, True, False]
    assert answers(Cmp(fine, LT, -(2**63)), data) == [False, False, True]


def test_nanoseconds_between_two_microseconds_are_neither() -> None:
    data = stamps("ns", 999, 1000, 1001)
    assert answers(Cmp(column(TimestampType()), EQ, 1), data) == [False, True, False]
    assert answers(Cmp(column(TimestampType()), GT, 1), data) == [False, False, True]
    assert answers(InList(column(TimestampType()), (0, 1, 2)), data) == [False, True, False]


@pytest.mark.parametrize(
    ("type_", "data", "literal"),
    [
        (TimestamptzType(), stamps("us", 5_000_000, zone="Asia/Kolkata"), 5_000_000),
        (TimestampType(), stamps("s", 5), 5_000_000),
        (TimestampType(), stamps("ms", 5_000), 5_000_000),
        (TimestampType(), pa.array([1], pa.int32()).view(pa.date32()), 86_400_000_000),
        (DateType(), pa.array([86_400_000], pa.int64()).view(pa.date64()), 1),
        (TimeType(), pa.array([5], pa.int32()).view(pa.time32("s")), 5_000_000),
        (TimeType(), pa.array([5_000_000_000], pa.int64()).view(pa.time64("ns")), 5_000_000),
        (LongType(), pa.array([5], pa.uint8()), 5),
        (IntegerType(), pa.array([5], pa.int16()), 5),
        (LongType(), pa.array([5, 5], pa.int32()).dictionary_encode(), 5),
        (DecimalType(9, 2), pa.array([Decimal("5")], pa.decimal128(4, 0)), Decimal("5.00")),
        (DecimalType(9, 2), pa.array([Decimal("5.0000")], pa.decimal256(50, 4)), Decimal("5.00")),
        (StringType(), pa.array(["é"], pa.string_view()), "é"),
        (StringType(), pa.array(["é"], pa.large_string()), "é"),
        (StringType(), pa.array(["é".encode()]), "é"),
        (UUIDType(), pa.array([b"x" * 16], pa.binary(16)).cast(pa.uuid()), b"x" * 16),
        (UUIDType(), pa.array([b"x" * 16], pa.binary(16)), b"x" * 16),
        (FixedType(2), pa.array([b"xy"], pa.large_binary()), b"xy"),
        (BinaryType(), pa.array([b"xy"], pa.binary_view()), b"xy"),
        (DoubleType(), pa.array([5.0], pa.float16()), 5.0),
    ],
    ids=named,
)
def test_the_same_value_in_another_layout_is_the_same_value(type_: PrimitiveType, data: pa.Array, literal: Any) -> None:
    assert answers(Cmp(column(type_), EQ, literal), data)[0] is True
    assert answers(InList(column(type_), (literal,)), data)[0] is True
    assert answers(Cmp(column(type_), LT, literal), data)[0] is False
    assert answers(Cmp(column(type_), GE, literal), data)[0] is True


def test_unsigned_numbers_beyond_64_signed_bits_are_compared_as_numbers() -> None:
    data = pa.array([2**64 - 1, 0, None], type=pa.uint64())
    assert answers(Cmp(column(LongType()), GT, 2**63 - 1), data) == [True, False, None]
    assert answers(InList(column(LongType()), (-1, 0)), data) == [False, True, None]


def test_finer_decimals_than_the_column_are_not_rounded() -> None:
    data = pa.array([Decimal("1.005"), Decimal("1.000")], type=pa.decimal128(10, 3))
    assert answers(Cmp(column(DecimalType(9, 2)), GT, Decimal("1.00")), data) == [True, False]


def test_strings_are_ordered_by_their_bytes() -> None:
    data = pa.array(["\uffff", "\U00010000", "", None])
    assert answers(Cmp(column(StringType()), LT, "\U00010000"), data) == [True, False, True, None]
    assert answers(StartsWith(column(StringType()), ""), data) == [True, True, True, None]
    assert answers(StartsWith(column(StringType()), "\U00010000", negated=True), data) == [True, False, True, None]


@pytest.mark.parametrize(
    "listed", [(-(2**63), 5 - 2**63), (2**63 - 6, 2**63 - 1), (-3, 4), (-(2**63), 2**63 - 1), (7,)]
)
def test_integers_at_the_ends_of_their_range_are_found_in_lists(listed: tuple[int, ...]) -> None:
    numbers = [-(2**63), 5 - 2**63, -4, -3, 4, 7, 2**63 - 6, 2**63 - 1]
    found = answers(InList(column(LongType()), listed), pa.array([*numbers, None]))
    assert found == [*(number in listed for number in numbers), None]


def test_a_list_of_ten_thousand_values() -> None:
    listed = InList(column(LongType()), tuple(range(0, 20_000, 2)))
    assert answers(listed, pa.array([0, 1, 19_998, 20_000, None])) == [True, False, True, False, None]
    words = InList(column(StringType()), tuple(f"k{i}" for i in range(10_000)))
    assert answers(words, pa.array(["k9999", "k10000", None])) == [True, False, None]


NESTED = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "s", StructType(NestedField(3, "x", LongType()), NestedField(4, "t", StringType()))),
    NestedField(5, "l", ListType(6, LongType())),
    NestedField(7, "added", IntegerType(), initial_default=7),
    NestedField(8, "u", StructType(NestedField(9, "y", IntegerType(), initial_default=9))),
)
X = Column(3, LongType(), ("s", "x"))
STRUCT = pa.StructArray.from_arrays([pa.array([1, 2, 3])], names=["x"], mask=pa.array([False, True, False]))


def test_inside_a_null_struct_everything_is_null() -> None:
    table = pa.table({"s": STRUCT})
    assert evaluate_rows(Cmp(X, GT, 1), table, NESTED).to_pylist() == [False, None, True]
    assert evaluate_rows(Cmp(X, GT, 1), table.slice(1), NESTED).to_pylist() == [None, True]
    assert evaluate_rows(IsNull(X), table, NESTED).to_pylist() == [False, True, False]


def test_a_field_of_a_struct_the_data_does_not_have_is_null() -> None:
    missing = Column(4, StringType(), ("s", "t"))
    assert evaluate_rows(IsNull(missing), pa.table({"s": STRUCT}), NESTED).to_pylist() == [True, True, True]
    assert evaluate_rows(IsNull(missing), pa.table({"id": [1, 2]}), NESTED).to_pylist() == [True, True]


def test_a_column_added_with_a_default_has_it_in_older_data() -> None:
    added, nested = Column(7, IntegerType(), ("added",)), Column(9, IntegerType(), ("u", "y"))
    assert matching_mask(Cmp(added, EQ, 7), pa.table({"id": [1, 2]}), NESTED).tolist() == [True, True]
    empty = pa.StructArray.from_arrays([pa.array([0, 0])], names=["other"], mask=pa.array([False, True]))
    assert evaluate_rows(Cmp(nested, EQ, 9), pa.table({"u": empty}), NESTED).to_pylist() == [True, None]


def with_id(name: str, field_id: int) -> pa.Field:
    return pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(field_id)})


def test_a_field_id_counts_for_more_than_a_name() -> None:
    swapped = pa.table([[1, 1], [2, 2]], schema=pa.schema([with_id("other", 1), with_id("id", 99)]))
    ident = Column(1, LongType(), ("id",))
    assert matching_mask(Cmp(ident, EQ, 1), swapped, NESTED).tolist() == [True, True]
    only_another = pa.table([[2, 2]], schema=pa.schema([with_id("id", 99)]))
    assert matching_mask(IsNull(ident), only_another, NESTED).tolist() == [True, True]


def test_a_field_the_schema_does_not_have_is_an_error() -> None:
    for field_id in (42, 6):
        with pytest.raises(UnknownColumnError, match=f"field id {field_id}"):
            evaluate_rows(IsNull(Column(field_id, LongType(), ("gone",))), pa.table({"id": [1]}), NESTED)


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        (LongType(), pa.array(["5"])),
        (LongType(), pa.array([5.0])),
        (StringType(), pa.array([5])),
        (DoubleType(), pa.array([5])),
        (DateType(), stamps("us", 0)),
        (TimeType(), stamps("us", 0)),
        (DecimalType(9, 2), pa.array([5.0])),
    ],
    ids=named,
)
def test_data_of_another_kind_is_an_error_and_not_a_guess(type_: PrimitiveType, data: pa.Array) -> None:
    with pytest.raises(TypeMismatchError, match=f"column c is .* but its data is {data.type}".replace("[", r"\[")):
        answers(IsNull(column(type_)), data)


def test_rows_that_match_are_kept_in_order() -> None:
    table = pa.table({"id": [3, None, 1, 2]})
    assert filter_rows(Cmp(Column(1, LongType(), ("id",)), GE, 2), table, NESTED)["id"].to_pylist() == [3, 2]
    assert filter_rows(TRUE, table, NESTED) is table
    none = table.schema.empty_table()
    assert matching_mask(Cmp(Column(1, LongType(), ("id",)), GE, 2), none, NESTED).tolist() == []


# Opaque pieces, compiled from SQL that cannot be evaluated on statistics.


def from_sql(text: str, table: pa.Table) -> list[bool | None]:
    return evaluate_rows(compile_predicate(text, NESTED).predicate, table, NESTED).to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id <> 0 AND 10 / id > 2", [False, True, False, None]),
        ("id = 0 OR 10 / id > 2", [True, True, False, None]),
        ("NOT (id = 0 OR 10 / id > 2)", [False, False, True, None]),
        ("10 / id > 2 AND id <> 0 AND id IS NOT NULL", [False, True, False, False]),
    ],
)
def test_an_opaque_piece_is_not_evaluated_where_its_guard_decides(text: str, expected: list[bool | None]) -> None:
    assert from_sql(text, pa.table({"id": [0, 4, 5, None]})) == expected


def test_an_opaque_piece_sees_columns_in_the_type_of_the_schema() -> None:
    narrow = pa.table({"id": pa.array([2**31 - 1, 1], pa.int32()), "s": pa.array([{"x": 1}, None])})
    assert from_sql("id + 1 > 5", narrow) == [True, False]
    assert from_sql("id + s.x > 5", narrow) == [True, None]
    assert from_sql("s IS NULL", narrow) == [False, True]
    assert from_sql("added + 1 = 8", narrow) == [True, True], "the default of a column the data does not have"
    with pytest.raises(TypeMismatchError, match="column id is long, but its data is string"):
        from_sql("id + 1 > 5", pa.table({"id": ["x"]}))


@pytest.mark.parametrize("literal", [2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63, -(2**70)])
def test_32_bit_numbers_are_compared_with_literals_of_any_size(literal: int) -> None:
    known = [-(2**31), -1, 0, 2**31 - 1]
    table, column = pa.table({"id": pa.array([*known, None], pa.int32())}), Column(1, LongType(), ("id",))
    for op, holds in ((CmpOp.LT, int.__lt__), (CmpOp.EQ, int.__eq__), (CmpOp.GE, int.__ge__)):
        answer = evaluate_rows(Cmp(column, op, literal), table, Schema(NestedField(1, "id", LongType())))
        assert answer.to_pylist() == [*(holds(number, literal) for number in known), None]
    among = evaluate_rows(InList(column, (literal, -1), False), table, Schema(NestedField(1, "id", LongType())))
    assert among.to_pylist() == [*(number in (literal, -1) for number in known), None]


@pytest.mark.parametrize("type_", [pa.int32(), pa.int64()])
@pytest.mark.parametrize(
    "listed", [(5, 9, -3), (2**63 - 1, 2**63 - 5), (-(2**63), 4 - 2**63), (-(2**63) + 1,) * 2, (0, 2**63)]
)
def test_numbers_far_from_all_that_are_listed_are_not_among_them(type_: pa.DataType, listed: tuple[int, ...]) -> None:
    width = type_.bit_width - 1
    known = [-(2**width), 1 - 2**width, -4, -3, 5, 6, 9, 10, 2**width - 5, 2**width - 1]
    column, schema = Column(1, LongType(), ("id",)), Schema(NestedField(1, "id", LongType()))
    for rows in ([*known, None], known):
        answer = evaluate_rows(InList(column, listed), pa.table({"id": pa.array(rows, type_)}), schema)
        assert answer.to_pylist() == [None if number is None else number in listed for number in rows]


@pytest.mark.parametrize(
    "predicate",
    [
        *(Cmp(Column(1, StringType(), ("c",)), op, "b") for op in CmpOp),
        Between(Column(1, StringType(), ("c",)), "a", "b", True),
        InList(Column(1, StringType(), ("c",)), ("a", "é")),
        Not(InList(Column(1, StringType(), ("c",)), ("a", "é"))),
        StartsWith(Column(1, StringType(), ("c",)), "b"),
        IsNull(Column(1, StringType(), ("c",))),
        Not(IsNull(Column(1, StringType(), ("c",)))),
        IsNaN(Column(1, StringType(), ("c",))),
        Or((IsNull(Column(1, StringType(), ("c",))), Cmp(Column(1, StringType(), ("c",)), EQ, "a"))),
    ],
    ids=str,
)
def test_a_dictionary_has_the_answers_of_its_values(predicate: IrExpr) -> None:
    """Null indexes, a null in the dictionary, values that no row has, and chunks with different dictionaries."""
    first = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 2, 0, 2, 1, 0]), pa.array(["a", None, "b", "unused"]))
    second = pa.DictionaryArray.from_arrays(pa.array([1, 1, 0, None, 1, 1]), pa.array(["é", "bc"]))
    encoded = pa.chunked_array([first, second])
    plain = encoded.cast(pa.string())
    assert answers(predicate, encoded) == answers(predicate, plain)

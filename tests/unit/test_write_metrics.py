"""Metrics modes, and edge cases of bounds."""

from __future__ import annotations

import io
import math
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from floeplan.metadata.manifests.entries import STAT_MAPS
from floeplan.parquet.footer.footer import join_footers, read_footer
from floeplan.parquet.footer.statistics import Side
from floeplan.parquet.source import open_source
from floeplan.write.data_files import write_data_files
from floeplan.write.metrics import file_metrics, metrics_of_files, single_value
from floeplan.write.parquet_file import row_group_metrics
from floeplan.write.target import COUNTS, FULL, NONE, TRUNCATE_16, MetricsMode, MetricsModes
from tests.support.tables.layouts import target

pytestmark = pytest.mark.unit

NESTED = Schema(
    NestedField(1, "s", StructType(NestedField(5, "a", LongType()), NestedField(6, "b", LongType()))),
    NestedField(2, "x", LongType()),
    NestedField(3, "l", ListType(7, LongType(), False)),
    NestedField(4, "y", LongType()),
)
MODES = "write.metadata.metrics."


def modes(properties: dict[str, str], order: SortOrder | None = None) -> dict[int, MetricsMode]:
    found = MetricsModes.from_properties({MODES + name: value for name, value in properties.items()}, NESTED, order)
    return {field_id: found.of(field_id) for field_id in (2, 4, 5, 6, 7)}


def test_the_default_is_to_cut_after_16() -> None:
    assert modes({}) == dict.fromkeys((2, 4, 5, 6, 7), TRUNCATE_16)


def test_only_the_first_columns_of_a_wide_table_have_a_default() -> None:
    assert modes({"max-inferred-column-defaults": "3"}) == {2: TRUNCATE_16, 4: TRUNCATE_16, 5: TRUNCATE_16} | {
        6: NONE,
        7: NONE,
    }


def test_a_configured_default_applies_to_all_columns_and_a_column_property_wins() -> None:
    found = modes({"default": "counts", "max-inferred-column-defaults": "1", "column.s.b": "full", "column.x": "none"})
    assert found == {2: NONE, 4: COUNTS, 5: COUNTS, 6: FULL, 7: COUNTS}


@pytest.mark.parametrize("default", ["none", "counts"])
def test_columns_of_the_sort_order_have_bounds(default: str) -> None:
    keys = [(2, IdentityTransform()), (4, BucketTransform(4)), (5, IdentityTransform())]
    order = SortOrder(*(SortField(i, t, SortDirection.ASC, NullOrder.NULLS_FIRST) for i, t in keys), order_id=1)
    found = modes({"default": default, "column.s.a": "none"}, order)
    assert (found[2], found[4].bounds, found[5]) == (TRUNCATE_16, False, NONE)


@pytest.mark.parametrize(
    ("value", "width", "lower", "upper"),
    [
        ("abc", 3, "abc", "abc"),
        ("abcd", 3, "abc", "abd"),
        ("éé😀x", 3, "éé😀", "éé😁"),
        ("a\ud7ffx".encode("utf-16", "surrogatepass").decode("utf-16"), 2, "a\ud7ff", "a\ue000"),
        ("a\U0010ffffx", 2, "a\U0010ffff", "b"),
        ("\U0010ffff\U0010ffffx", 2, "\U0010ffff\U0010ffff", None),
        ("", 1, "", ""),
    ],
)
def test_text_is_cut_between_characters_and_raised_to_the_next_one(
    value: str, width: int, lower: str, upper: str | None
) -> None:
    assert single_value(StringType(), value, Side.LOWER, width) == lower.encode()
    assert single_value(StringType(), value, Side.UPPER, width) == (None if upper is None else upper.encode())
    assert single_value(StringType(), value, Side.UPPER, None) == value.encode()


@pytest.mark.parametrize(
    ("value", "lower", "upper"),
    [(b"ab", b"ab", b"ab"), (b"abc", b"ab", b"ac"), (b"a\xffc", b"a\xff", b"b"), (b"\xff\xff\xff", b"\xff\xff", None)],
)
def test_bytes_are_cut_and_raised(value: bytes, lower: bytes, upper: bytes | None) -> None:
    assert single_value(BinaryType(), value, Side.LOWER, 2) == lower
    assert single_value(BinaryType(), value, Side.UPPER, 2) == upper
    assert single_value(FixedType(3), b"abc", Side.UPPER, 2) == b"abc"


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_are_widened(zero: float) -> None:
    lower, upper = (single_value(DoubleType(), zero, side, None) for side in (Side.LOWER, Side.UPPER))
    assert lower is not None
    assert upper is not None
    assert math.copysign(1, from_bytes(DoubleType(), lower)) == -1
    assert math.copysign(1, from_bytes(DoubleType(), upper)) == 1


def stated(folder: Path, schema: Schema, *groups: dict[str, Any], **properties: str) -> dict[str, dict[int, Any]]:
    """The statistics of one file of several row groups."""
    place = target(folder, schema, **{"write.parquet.row-group-size-bytes": "1", **properties})
    entries = write_data_files(place, [pa.table(group, place.arrow_schema) for group in groups], file_name_token="t")
    (row,) = entries.table.to_pylist()
    return {name: {pair["key"]: pair["value"] for pair in row[name]} for name in STAT_MAPS}


FLOATS = Schema(NestedField(1, "f", DoubleType()))


@pytest.mark.parametrize(
    ("groups", "nulls", "nans", "bounds"),
    [
        ([[1.0, math.nan], [None, -2.0]], 1, 1, (-2.0, 1.0)),
        ([[math.nan], [5.0]], 0, 1, (5.0, 5.0)),
        ([[None], [5.0]], 1, 0, (5.0, 5.0)),
        ([[math.nan], [None]], 1, 1, None),
        ([[-math.inf], [math.inf]], 0, 0, (-math.inf, math.inf)),
    ],
)
def test_a_file_sums_up_its_row_groups(
    tmp_path: Path, groups: list[list[float | None]], nulls: int, nans: int, bounds: tuple[float, float] | None
) -> None:
    found = stated(tmp_path, FLOATS, *({"f": group} for group in groups))
    assert found["value_counts"] == {1: sum(map(len, groups))}
    assert found["null_value_counts"] == {1: nulls}
    assert found["nan_value_counts"] == {1: nans}
    ends = [from_bytes(DoubleType(), found[name][1]) for name in ("lower_bounds", "upper_bounds") if found[name]]
    assert ends == list(bounds or ())


def test_long_text_has_bounds_although_the_footer_has_none(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "t", StringType()))
    found = stated(tmp_path, schema, {"t": ["m" * 5000, "z" * 6000]}, {"t": ["b" * 20]}, {"t": ["c", None]})
    assert (found["lower_bounds"], found["upper_bounds"]) == ({1: b"b" * 16}, {1: b"z" * 15 + b"{"})
    whole = stated(tmp_path / "full", schema, {"t": ["m" * 5000]}, **{"write.metadata.metrics.default": "full"})
    assert whole["upper_bounds"] == {1: b"m" * 5000}


def test_nulls_of_structs_count_for_their_fields(tmp_path: Path) -> None:
    inner = StructType(NestedField(2, "a", StringType()), NestedField(3, "b", LongType(), required=True))
    found = stated(tmp_path, Schema(NestedField(1, "s", inner)), {"s": [None, {"a": None, "b": 1}, {"a": "x", "b": 2}]})
    assert found["null_value_counts"] == {2: 2, 3: 1}


def footer_of(table: pa.Table, **options: Any) -> Any:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema) as writer:
        if table.num_rows:
            writer.write_table(table, **options)
    return read_footer(open_source(sink.getvalue()))


def test_nan_counts_are_unknown_in_files_of_other_writers() -> None:
    field = pa.field("f", pa.float64(), metadata={"PARQUET:field_id": "1"})
    metrics = file_metrics(
        footer_of(pa.table([[1.0, math.nan]], schema=pa.schema([field]))), FLOATS, MetricsModes({}, FULL)
    )
    assert metrics.nan_value_counts == {}
    assert from_bytes(DoubleType(), metrics.upper_bounds[1]) == 1.0
    all_nan = footer_of(pa.table([[math.nan]], schema=pa.schema([field])))
    assert file_metrics(all_nan, FLOATS, MetricsModes({}, FULL)).lower_bounds == {}


def test_a_row_group_whose_bound_is_nan_leaves_the_file_without_that_bound() -> None:
    """Some writers state NaN when any value is NaN: the other values of the row group are not bounded."""
    field = pa.field("f", pa.float64(), metadata={"PARQUET:field_id": "1"})
    footer = footer_of(pa.table([[-5.0, math.nan]], schema=pa.schema([field])))
    footer._chunks[0] = footer.chunks(0)._replace(min_value=(struct.pack("<d", math.nan),))
    metrics = file_metrics(footer, FLOATS, MetricsModes({}, FULL))
    assert (metrics.lower_bounds, from_bytes(DoubleType(), metrics.upper_bounds[1])) == ({}, -5.0)


COLUMNS = {
    "n": (IntegerType(), pa.int32(), [3, None, -1, 7, None, None]),
    "f": (DoubleType(), pa.float64(), [1.5, math.nan, None, -0.0, math.nan, 2.5]),
    "t": (StringType(), pa.large_string(), ["b" * 20, "a", "é" * 5000, None, "zz", None]),
    "d": (DecimalType(20, 2), pa.decimal128(20, 2), [*map(Decimal, ("1.00", "-2.50", "3.00")), None, None, Decimal(9)]),
    "b": (BooleanType(), pa.bool_(), [True, None, False, True, True, None]),
    "s": (TimestampType(), pa.timestamp("us"), [5, 4, 3, 2, 1, None]),
}


@pytest.mark.parametrize("by_writer", [True, False], ids=["own", "other writer"])
def test_files_together_have_the_metrics_that_each_has_alone(by_writer: bool) -> None:
    """Including one without rows, one of several row groups, and row groups without values."""
    numbered = list(enumerate(COLUMNS.items(), start=1))
    schema = Schema(*(NestedField(number, name, type_) for number, (name, (type_, _, _)) in numbered))
    fields = [
        pa.field(name, type_, metadata={"PARQUET:field_id": str(number)}) for number, (name, (_, type_, _)) in numbered
    ]
    rows = pa.Table.from_arrays(
        [pa.array(values, type_) for _, type_, values in COLUMNS.values()], schema=pa.schema(fields)
    )
    tables, step = [rows.slice(0, 2), rows.slice(0, 0), rows, rows.slice(4), rows.slice(5)], 2
    footers = [footer_of(table, row_group_size=step) for table in tables]
    parts = [[table.slice(at, step) for at in range(0, table.num_rows, step)] for table in tables]
    groups = [[row_group_metrics(part) for part in table] if by_writer else [] for table in parts]
    modes = MetricsModes({}, TRUNCATE_16)
    alone = [file_metrics(footer, schema, modes, own) for footer, own in zip(footers, groups, strict=True)]
    counts, joined = [footer.num_row_groups for footer in footers], join_footers(footers)
    assert counts == [1, 0, 3, 1, 1]
    together = metrics_of_files(joined, counts, schema, modes, [group for own in groups for group in own])
    assert together == alone
    assert (alone[2].value_counts[1], alone[2].null_value_counts[1]) == (6, 3)
    assert alone[2].upper_bounds[3] == ("é" * 15 + "ê").encode() if by_writer else 3 not in alone[2].upper_bounds


def test_bounds_are_stated_in_the_type_of_the_table() -> None:
    fields = [
        pa.field("n", pa.int32(), metadata={"PARQUET:field_id": "1"}),
        pa.field("t", pa.timestamp("ms"), metadata={"PARQUET:field_id": "2"}),
    ]
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "t", TimestampType()))
    metrics = file_metrics(footer_of(pa.table([[7], [3]], schema=pa.schema(fields))), schema, MetricsModes({}, FULL))
    assert from_bytes(LongType(), metrics.lower_bounds[1]) == 7
    assert from_bytes(TimestampType(), metrics.lower_bounds[2]) == 3000
    other = Schema(NestedField(1, "n", StringType()), NestedField(3, "gone", IntegerType()))
    refused = file_metrics(footer_of(pa.table([[7], [3]], schema=pa.schema(fields))), other, MetricsModes({}, FULL))
    assert refused.lower_bounds == {}

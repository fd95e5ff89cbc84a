"""Row group statistics: each physical and logical type, and every case in which they must be ignored."""

from __future__ import annotations

import io
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.statistics import row_group_stats
from floeplan.parquet.source import BytesSource
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import ColumnStats
from tests.support.oracles.statistics import listed
from tests.support.parquet import forge

pytestmark = pytest.mark.unit

NO_ORDER = [b"\0"]
TOTAL_ORDER = [forge.encode_struct([(2, forge.STRUCT, forge.EMPTY_STRUCT)])]


def le(value: int, width: int = 4, signed: bool = True) -> bytes:
    return value.to_bytes(width, "little", signed=signed)


def stats_of(footer: ParquetFooter, type_: PrimitiveType) -> ColumnStats | None:
    return row_group_stats(footer, [Column(1, type_, ("x",))]).columns.get(1)


def forged(
    leaf: bytes, physical: int, stats: bytes, *, rows: int = 5, values: int | None = None, **options: Any
) -> ParquetFooter:
    column = forge.chunk(physical, rows if values is None else values, stats)
    return read_footer(BytesSource(forge.one_column(leaf, [(rows, column)], **options)))


def bounds(
    leaf: bytes, physical: int, low: bytes, high: bytes, type_: PrimitiveType, **options: Any
) -> tuple[Any, Any]:
    """The bounds from a minimum and a maximum; None if not used."""
    footer = forged(leaf, physical, forge.statistics(min_value=low, max_value=high, nulls=0), **options)
    stats = stats_of(footer, type_)
    assert stats is not None
    return listed(stats.lower)[0], listed(stats.upper)[0]


def plain(physical: int, **options: Any) -> bytes:
    return forge.element("x", physical, **options)


HALF = plain(7, length=2, logical=forge.logical(15))
SMALL_DECIMAL = plain(1, converted=5, precision=9, scale=2)
FIXED_DECIMAL = plain(7, length=5, converted=5, precision=10, scale=2)
LONG_DECIMAL = plain(7, length=20, converted=5, precision=38, scale=0)
ODD_DECIMAL = plain(7, length=17, converted=5, precision=38, scale=0)
UUID = plain(7, length=16, logical=forge.logical(14))
MILLIS = forge.timestamp_type(1)
NANOS = forge.timestamp_type(3, utc=False)
DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("leaf", "low", "high", "type_", "expected"),
    [
        (plain(0), b"\0", b"\1", BooleanType(), (0, 1)),
        (plain(1), le(-5), le(7), IntegerType(), (-5, 7)),
        (plain(1), le(-5), le(7), LongType(), (-5, 7)),
        (plain(1, logical=forge.integer_type(32, False)), le(5), b"\xff" * 4, LongType(), (5, 2**32 - 1)),
        (plain(1, logical=forge.integer_type(8, False)), le(5), le(200), IntegerType(), (5, 200)),
        (plain(2, logical=forge.integer_type(64, False)), le(5, 8), b"\xff" * 8, DecimalType(20, 0), (5, 2**64 - 1)),
        (plain(1, converted=6), le(-5), le(7), DateType(), (-5, 7)),
        (plain(1, converted=6), le(-1), le(2), TimestampType(), (-DAY, 2 * DAY)),
        (plain(1, converted=6), le(-1), le(2), TimestampNanoType(), (-DAY * 1000, 2 * DAY * 1000)),
        (plain(1, converted=7), le(3), le(4), TimeType(), (3000, 4000)),
        (plain(2, logical=MILLIS), le(-3, 8), le(4, 8), TimestamptzType(), (-3000, 4000)),
        (plain(2, logical=NANOS), le(-1001, 8), le(1001, 8), TimestampNanoType(), (-1001, 1001)),
        (plain(2, logical=NANOS), le(-1001, 8), le(1001, 8), TimestampType(), (-2, 2)),
        (plain(2, logical=NANOS), le(-2000, 8), le(2000, 8), TimestampType(), (-2, 2)),
        (plain(4), struct.pack("<f", -0.5), struct.pack("<f", 2.5), FloatType(), (-0.5, 2.5)),
        (plain(4), struct.pack("<f", 0.1), struct.pack("<f", math.inf), DoubleType(), (0.10000000149011612, math.inf)),
        (HALF, struct.pack("<e", -1.5), struct.pack("<e", 2), FloatType(), (-1.5, 2)),
        (SMALL_DECIMAL, le(-5), le(7), DecimalType(9, 2), (-5, 7)),
        (SMALL_DECIMAL, le(-5), le(7), DecimalType(30, 2), (Decimal("-0.05"), Decimal("0.07"))),
        (FIXED_DECIMAL, b"\xff" * 5, b"\0\0\0\1\0", DecimalType(10, 2), (-1, 256)),
        (LONG_DECIMAL, b"\xff" * 20, b"\0" * 19 + b"\7", DecimalType(38, 0), (-1, 7)),
        (plain(6, converted=5, precision=10, scale=2), b"\x80", b"\1\0", DecimalType(10, 2), (-128, 256)),
        (plain(6, converted=0), b"a", "é".encode(), StringType(), ("a", "é")),
        (plain(6), b"a", b"b", StringType(), ("a", "b")),
        (plain(6, converted=0), b"a", b"b", BinaryType(), (b"a", b"b")),
        (plain(6), b"", b"\xff", BinaryType(), (b"", b"\xff")),
        (plain(7, length=3), b"abc", b"b", FixedType(3), (b"abc", b"b")),
        (UUID, bytes(16), b"\xff" * 16, UUIDType(), (bytes(16), b"\xff" * 16)),
    ],
)
def test_bounds_of_every_stored_type(leaf: bytes, low: bytes, high: bytes, type_: PrimitiveType, expected: Any) -> None:
    physical = read_footer(BytesSource(forge.file([forge.root(1), leaf], []))).leaves[0].physical
    assert bounds(leaf, physical, low, high, type_) == expected


@pytest.mark.parametrize(
    ("leaf", "physical", "low", "high", "type_", "expected"),
    [
        (plain(1), 1, b"\0\0", le(7), IntegerType(), (None, 7)),
        (plain(1), 1, b"", b"", IntegerType(), (None, None)),
        (plain(0), 0, b"\0", b"\7", BooleanType(), (0, None)),
        (plain(2, logical=MILLIS), 2, le(-(2**62), 8), le(2**62, 8), TimestamptzType(), (None, None)),
        (LONG_DECIMAL, 7, b"\1" * 20, b"\1" * 20, DecimalType(38, 0), (None, None)),
        (ODD_DECIMAL, 7, b"\0" + b"\xff" * 16, b"\0" * 16 + b"\1", DecimalType(38, 0), (None, 1)),
        (plain(6, converted=5, precision=10, scale=2), 6, b"", b"\1", DecimalType(10, 2), (None, 1)),
        (plain(6, converted=0), 6, "aé".encode()[:2], "bé".encode()[:2], StringType(), ("a", None)),
        (plain(6, converted=0), 6, b"\xff", b"b", StringType(), ("", "b")),
        (plain(6, converted=0), 6, b"a\xed\xa0\x80", b"b", StringType(), ("a", "b")),
    ],
)
def test_what_cannot_be_decoded_is_no_bound(
    leaf: bytes, physical: int, low: bytes, high: bytes, type_: PrimitiveType, expected: Any
) -> None:
    assert bounds(leaf, physical, low, high, type_) == expected


NONE = (None, None)


@pytest.mark.parametrize("orders", [[], NO_ORDER, TOTAL_ORDER])
def test_bounds_without_the_standard_order_are_not_used(orders: list[bytes]) -> None:
    assert bounds(plain(6, converted=0), 6, b"a", b"b", StringType(), orders=orders) == NONE
    assert bounds(plain(1), 1, le(1), le(2), IntegerType(), orders=orders) == NONE


def test_int96_has_no_order() -> None:
    assert bounds(plain(3), 3, b"\1" * 12, b"\2" * 12, TimestamptzType()) == NONE


@pytest.mark.parametrize(
    ("leaf", "physical", "low", "high", "type_", "expected"),
    [
        (plain(1), 1, le(-1), le(2), IntegerType(), (-1, 2)),
        (plain(2), 2, le(-1, 8), le(2, 8), LongType(), (-1, 2)),
        (plain(5), 5, struct.pack("<d", 1), struct.pack("<d", 2), DoubleType(), (1, 2)),
        (plain(1, logical=forge.integer_type(32, False)), 1, le(1), le(2), LongType(), NONE),
        (plain(6, converted=0), 6, b"a", b"b", StringType(), NONE),
        (plain(7, length=3), 7, b"abc", b"abd", FixedType(3), NONE),
        (FIXED_DECIMAL, 7, bytes(5), bytes(5), DecimalType(10, 2), NONE),
    ],
)
def test_old_statistics_fields_are_used_only_where_their_order_was_never_in_doubt(
    leaf: bytes, physical: int, low: bytes, high: bytes, type_: PrimitiveType, expected: Any
) -> None:
    for orders in ([], None):
        footer = forged(leaf, physical, forge.statistics(old_min=low, old_max=high), orders=orders)
        stats = stats_of(footer, type_)
        assert stats is not None
        assert (listed(stats.lower)[0], listed(stats.upper)[0]) == expected


@pytest.mark.parametrize(
    ("writer", "text_used", "decimal_used"),
    [
        ("parquet-mr version 1.7.0 (build x)", False, False),
        ("parquet-mr version 1.8.1", False, False),
        ("parquet-mr version 1.10.0", True, True),
        ("parquet-mr version 1.17.0", True, True),
        ("parquet-cpp version 1.5.1-SNAPSHOT", True, False),
        ("parquet-cpp-arrow version 3.0.0", True, False),
        ("parquet-cpp-arrow version 26.0.0", True, True),
        ("another writer", True, True),
        ("", True, True),
    ],
)
def test_bounds_of_writers_with_a_wrong_byte_order_are_ignored(
    writer: str, text_used: bool, decimal_used: bool
) -> None:
    text = bounds(plain(6, converted=0), 6, b"a", b"b", StringType(), created_by=writer)
    assert (text == ("a", "b")) is text_used
    leaf = plain(7, length=2, converted=5, precision=4, scale=0)
    decimal = bounds(leaf, 7, b"\0\1", b"\0\2", DecimalType(4, 0), created_by=writer)
    assert (decimal == (1, 2)) is decimal_used
    assert bounds(plain(1), 1, le(1), le(2), IntegerType(), created_by=writer) == (1, 2)


def test_nan_bounds_are_no_bounds_and_nan_may_always_be_there() -> None:
    for low, high in ((math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan)):
        found = bounds(plain(5), 5, struct.pack("<d", low), struct.pack("<d", high), DoubleType())
        assert found == NONE
    stats = stats_of(forged(plain(5), 5, forge.statistics(nulls=0)), DoubleType())
    assert stats is not None
    assert stats.may_nan.all()
    integers = stats_of(forged(plain(1), 1, forge.statistics(nulls=0)), IntegerType())
    assert integers is not None
    assert not integers.may_nan.any()


@pytest.mark.parametrize(
    ("nulls", "may_null", "may_value"),
    [(None, True, True), (0, False, True), (2, True, True), (5, True, False), (6, True, True), (-1, True, True)],
)
def test_null_counts(nulls: int | None, may_null: bool, may_value: bool) -> None:
    stats = stats_of(forged(plain(1), 1, forge.statistics(nulls=nulls)), IntegerType())
    assert stats is not None
    assert (stats.may_null[0], stats.may_value[0]) == (may_null, may_value)


def test_a_required_column_has_no_nulls_for_any_count() -> None:
    stats = stats_of(forged(plain(1, repetition=forge.REQUIRED), 1, forge.statistics()), IntegerType())
    assert stats is not None
    assert not stats.may_null.any()


def test_a_chunk_that_does_not_have_a_value_per_row_is_unknown() -> None:
    lies = forge.statistics(min_value=le(1), max_value=le(2), nulls=0)
    stats = stats_of(forged(plain(1), 1, lies, values=4), IntegerType())
    assert stats is not None
    assert stats.may_null.all()
    assert (listed(stats.lower), listed(stats.upper)) == ([None], [None])


def test_a_column_that_is_not_in_the_file_is_null() -> None:
    footer = forged(plain(1), 1, forge.statistics(nulls=0))
    absent = row_group_stats(footer, [Column(9, StringType(), ("y",))]).columns[9]
    assert absent.may_null.all()
    assert not absent.may_value.any()


def test_a_group_requested_as_a_value_is_unknown() -> None:
    data = forge.file(
        [forge.root(1), forge.element("g", children=1, field_id=1), forge.element("x", 1, field_id=2)],
        [(5, [forge.chunk(1, 5)])],
    )
    assert stats_of(read_footer(BytesSource(data)), IntegerType()) is None


@pytest.mark.parametrize(
    ("leaf", "physical", "type_"),
    [
        (plain(5), 5, FloatType()),
        (plain(6, converted=0), 6, IntegerType()),
        (plain(1), 1, DateType()),
        (plain(1), 1, StringType()),
        (SMALL_DECIMAL, 1, DecimalType(9, 3)),
        (SMALL_DECIMAL, 1, DecimalType(8, 2)),
        (plain(7, length=12, converted=forge.INTERVAL), 7, FixedType(12)),
        (plain(1, repetition=forge.REPEATED), 1, IntegerType()),
    ],
)
def test_a_column_of_another_kind_than_wanted_is_unknown(leaf: bytes, physical: int, type_: PrimitiveType) -> None:
    assert stats_of(forged(leaf, physical, forge.statistics(nulls=0)), type_) is None


def test_empty_row_groups_hold_nothing() -> None:
    footer = forged(plain(1), 1, forge.statistics(), rows=0)
    table = row_group_stats(footer, [Column(1, IntegerType(), ("x",))])
    stats = table.columns[1]
    assert not table.nonempty.any()
    assert not (stats.may_null | stats.may_nan | stats.may_value).any()


def test_pyarrow_loses_nulls_of_structs_around_dictionaries() -> None:
    """Found by a random file: a null count of 0 although the enclosing struct is null."""
    child = pa.array(["a", "b"]).dictionary_encode()
    nested = pa.StructArray.from_arrays([child], names=["x"], mask=pa.array([True, False]))
    out = io.BytesIO()
    pq.write_table(pa.table({"s": nested}), out)
    footer = read_footer(BytesSource(out.getvalue()))
    assert footer.chunks(0).null_count.tolist() == [0]
    stats = row_group_stats(footer, [Column(2, StringType(), ("s", "x"))]).columns[2]
    assert stats.may_null.tolist() == [True]


def test_many_row_groups_at_once() -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"x": np.arange(1000)}), out, row_group_size=10)
    stats = stats_of(read_footer(BytesSource(out.getvalue())), LongType())
    assert stats is not None
    assert listed(stats.lower) == list(range(0, 1000, 10))
    assert listed(stats.upper) == list(range(9, 1000, 10))

"""Stripe statistics of every type: what they drop has no matching row, what they prove matches in every row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

import floeplan as fp
from floeplan.scan.model import ScanOptions
from tests.support.tables.layouts import Files, Layout
from tests.support.tables.other_formats import can_be_orc, write_rows

pytestmark = pytest.mark.property

EPOCH = datetime(1970, 1, 1)
FLOATS = st.sampled_from([math.nan, -0.0, 0.0, 1.5, -2.5, math.inf, -math.inf, 3.25])
TIMES = st.builds(
    lambda base, micros: base + timedelta(microseconds=micros),
    st.sampled_from([EPOCH, datetime(1969, 12, 30, 23, 59, 58), datetime(2024, 2, 29, 12), datetime(1700, 1, 1)]),
    st.integers(0, 3_000_000),
)
DATES = st.sampled_from([date(1500, 1, 1), date(1582, 10, 15), date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29)])


def decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(-(10**digits) + 1, 10**digits - 1).map(lambda n: Decimal(f"{n}e-{scale}"))


KINDS: tuple[tuple[PrimitiveType, st.SearchStrategy[Any]], ...] = (
    (BooleanType(), st.booleans()),
    (IntegerType(), st.integers(-3, 3)),
    (FloatType(), FLOATS),
    (DoubleType(), FLOATS),
    (StringType(), st.sampled_from(["", "a", "ab", "é", "😀"])),
    (DateType(), DATES),
    (TimestampType(), TIMES),
    (TimestamptzType(), TIMES),
    (DecimalType(9, 2), decimals(3, 2)),
    (DecimalType(38, 10), decimals(37, 10)),
    (TimeType(), TIMES.map(datetime.time)),
)
SCHEMA = Schema(*(NestedField(at, f"c{at}", type_, required=False) for at, (type_, _) in enumerate(KINDS, 1)))
LAYOUT = Layout(SCHEMA, (PartitionSpec(spec_id=0),))


def literal(type_: PrimitiveType, value: Any) -> str:
    match type_:
        case DateType():
            return f"DATE '{value}'"
        case TimestampType():
            return f"TIMESTAMP_NTZ '{value}'"
        case TimestamptzType():
            return f"TIMESTAMP '{value}+00:00'"
        case FloatType() | DoubleType():
            text = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN" if value != value else str(value))
            return f"CAST('{text}' AS {type_})"
        case StringType():
            return f"'{value}'"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def table_of(folder: Path, rows: Sequence[dict[str, Any]]) -> Table | None:
    """A table of one ORC file, if ORC stores every value."""
    arrow = pa.Table.from_pylist(list(rows), schema=schema_to_pyarrow(SCHEMA))
    if not can_be_orc(arrow):
        return None
    path, files = folder / "data.orc", Files(folder)
    write_rows(arrow, path)
    entry = {"file_path": str(path), "file_format": "ORC", "record_count": len(rows), "sequence_number": 1}
    files.entries.append(entry | {"file_size_in_bytes": path.stat().st_size})
    return files.table(LAYOUT)


@given(st.data())
def test_what_stripe_statistics_decide_is_right(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    row = st.fixed_dictionaries({f"c{at}": st.none() | values for at, (_, values) in enumerate(KINDS, 1)})
    rows = data.draw(st.lists(row, min_size=1, max_size=6))
    table = table_of(tmp_path_factory.mktemp("orc"), rows)
    if table is None:
        return
    for at in data.draw(st.lists(st.integers(1, len(KINDS)), min_size=2, max_size=2, unique=True)):
        type_, values = KINDS[at - 1]
        conditions = [f"c{at} IS NULL", f"c{at} IS NOT NULL"]
        if not isinstance(type_, TimeType):
            value = literal(type_, data.draw(values))
            operators = ("=", "<>") if isinstance(type_, BooleanType) else ("=", "<>", "<", "<=", ">", ">=")
            conditions += [f"c{at} {operator} {value}" for operator in operators]
        for where in conditions:
            whole, pruned = (
                fp.plan_scan(table, where, options=ScanOptions(report=False, cache=False, footers=footers))
                for footers in (False, True)
            )
            expected = [repr(one) for one in whole.to_arrow().to_pylist()]
            assert [repr(one) for one in pruned.to_arrow().to_pylist()] == expected, where
            assert pruned.count() == len(expected), where


@pytest.mark.parametrize(
    ("column", "values", "dropped", "kept"),
    [
        ("c1", [True, True], "c1 = false", "c1 = true"),
        ("c3", [1.5, 2.5], "c3 > 2.5", "c3 > 2"),
        ("c4", [1.5, 2.5], "c4 < 1.5", "c4 < 2"),
        ("c4", [-0.0, 0.0], "c4 > 0", "c4 >= 0"),
        ("c6", [date(2024, 2, 1), date(2024, 3, 1)], "c6 > DATE '2024-03-01'", "c6 >= DATE '2024-03-01'"),
        ("c7", [EPOCH, EPOCH], "c7 > TIMESTAMP_NTZ '1970-01-03'", "c7 > TIMESTAMP_NTZ '1970-01-01 12:00:00'"),
        ("c8", [EPOCH, EPOCH], "c8 > TIMESTAMP '1970-01-01 00:00:02Z'", "c8 > TIMESTAMP '1970-01-01 00:00:01Z'"),
        ("c9", [Decimal("1.25"), Decimal("-7.50")], "c9 < -7.5", "c9 <= -7.5"),
        ("c10", [Decimal("1e26"), Decimal("2e26")], "c10 > 200000000000000000000000000", "c10 > 1"),
        # With NaN, and before 1582, statistics decide nothing.
        ("c4", [1.5, math.nan], None, "c4 < 0"),
        ("c6", [date(1500, 1, 1)], None, "c6 > DATE '2024-03-01'"),
    ],
)
def test_stripes_are_dropped_by_statistics_of_these_types(
    tmp_path: Path, column: str, values: Sequence[Any], dropped: str | None, kept: str
) -> None:
    table = table_of(tmp_path, [{column: value} for value in values])
    assert table is not None
    assert fp.plan_scan(table, kept, options=ScanOptions(report=False)).summary.row_groups_kept == 1
    if dropped is not None:
        assert fp.plan_scan(table, dropped, options=ScanOptions(report=False)).summary.row_groups_kept == 0

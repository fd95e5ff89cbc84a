"""Entries of written files have exact counts and valid bounds, for any rows."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
)

from floeplan.metadata.manifests.entries import STAT_MAPS
from floeplan.write.data_files import write_data_files
from tests.support.tables.layouts import target

pytestmark = pytest.mark.property

DAY_ONE = date(1970, 1, 1)
EPOCH = datetime(1970, 1, 1)
CASES: dict[PrimitiveType, tuple[st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    BooleanType(): (st.booleans(), bool),
    IntegerType(): (st.integers(-(2**31), 2**31 - 1), int),
    DecimalType(9, 2): (st.decimals(-9_999_999, 9_999_999, places=2), Decimal),
    DecimalType(30, 3): (st.decimals(-(10**26), 10**26, places=3), Decimal),
    FloatType(): (st.floats(width=32), float),
    DoubleType(): (st.floats(), float),
    DateType(): (st.dates(), lambda day: (day - DAY_ONE).days),
    TimestampType(): (st.datetimes(), lambda at: (at - EPOCH) // timedelta(microseconds=1)),
    StringType(): (st.text(st.characters(codec="utf-8"), max_size=24) | st.just("\U0010ffff" * 20), str.encode),
    BinaryType(): (st.binary(max_size=24) | st.just(b"\xff" * 20), bytes),
    FixedType(4): (st.binary(min_size=4, max_size=4), bytes),
}


@given(st.data())
def test_counts_are_equal_and_values_within_bounds(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(CASES)), min_size=1, max_size=4))
    schema = Schema(*(NestedField(at + 1, f"c{at}", type_) for at, type_ in enumerate(types)))
    count = data.draw(st.integers(1, 12))
    columns = [data.draw(st.lists(st.none() | CASES[t][0], min_size=count, max_size=count)) for t in types]
    mode = data.draw(st.sampled_from(["truncate(1)", "truncate(16)", "full"]))
    with tempfile.TemporaryDirectory() as folder:
        place = target(
            Path(folder),
            schema,
            **{"write.metadata.metrics.default": mode, "write.parquet.row-group-size-bytes": "40"},
        )
        rows = pa.table(
            [pa.array(c, f.type) for c, f in zip(columns, place.arrow_schema, strict=True)], place.arrow_schema
        )
        parts = [rows.slice(0, count // 2), rows.slice(count // 2)]
        (entry,) = write_data_files(place, parts, file_name_token="t").table.to_pylist()
    stated = {name: {pair["key"]: pair["value"] for pair in entry[name]} for name in STAT_MAPS}
    for at, (type_, values) in enumerate(zip(types, columns, strict=True)):
        _check(type_, values, at + 1, stated)


def _check(type_: PrimitiveType, values: list[Any], key: int, stated: dict[str, dict[int, Any]]) -> None:
    present = [value for value in values if value is not None]
    nan = [value for value in present if isinstance(value, float) and math.isnan(value)]
    assert stated["value_counts"][key] == len(values)
    assert stated["null_value_counts"][key] == len(values) - len(present)
    assert stated["nan_value_counts"].get(key, 0) == len(nan)
    ordinary = [CASES[type_][1](value) for value in present if value == value]
    lower, upper = (_bound(type_, stated[name].get(key)) for name in ("lower_bounds", "upper_bounds"))
    assert (lower is None) == (not ordinary)
    assert upper is None or ordinary
    assert all(lower <= value for value in ordinary)
    if upper is not None:
        assert all(value <= upper for value in ordinary)
    elif ordinary:
        assert isinstance(type_, StringType | BinaryType)


def _bound(type_: PrimitiveType, raw: bytes | None) -> Any:
    if raw is None or isinstance(type_, StringType | BinaryType | FixedType):
        return raw
    return from_bytes(type_, raw)

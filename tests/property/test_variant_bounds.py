"""Bounds of shredded variants never drop a row that ``variant_get`` matches."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from floeplan.errors import EvaluationError, UnsupportedError
from floeplan.opaque_types import OpaqueType, accept_opaque_types
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.rows.evaluate import matching_mask
from floeplan.predicate.stats import ColumnStats, StatsTable
from floeplan.scan.variants import encoded_object, unshredded
from floeplan.write.metrics import _cut_text
from floeplan.write.variant_bounds import merged_bounds, serialized, variant_bounds

pytestmark = pytest.mark.property

accept_opaque_types()
SCHEMA = Schema(NestedField(1, "v", OpaqueType("variant")))
METADATA = b"\x11\x01\x00\x01a"
INTEGERS = st.integers(-130, 130) | st.integers(-(2**63), 2**63 - 1)
TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): INTEGERS,
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.decimal128(9, 2): st.decimals(-1000, 1000, places=2),
    pa.large_string(): st.text(max_size=4) | st.sampled_from(["7", "1.5", "x" * 20]),
    pa.date32(): st.integers(-100_000, 100_000),
    pa.timestamp("us", "UTC"): st.integers(-(2**40), 2**40),
    pa.timestamp("us"): st.integers(-(2**40), 2**40),
    pa.bool_(): st.booleans(),
}
LITERALS = {
    "int": ("7", "-1", "100", "1.5"),
    "bigint": ("7", "9223372036854775807", "0"),
    "double": ("7", "0.1D", "-0.0D", "1e300D"),
    "decimal(9, 2)": ("7", "1.25", "-999.99"),
    "string": ("'7'", "''", "'x'"),
    "date": ("DATE '1970-01-08'",),
    "timestamp": ("TIMESTAMP '1970-01-08 00:00:00'",),
    "timestamp_ntz": ("TIMESTAMP_NTZ '1970-01-08 00:00:00'",),
    "boolean": ("true",),
}
COMPARISONS = ("= {}", "!= {}", "< {}", "<= {}", "> {}", ">= {}", "<=> {}")
OPERATORS = (*COMPARISONS, "IN ({0}, {0})", "IS NULL", "BETWEEN {0} AND {0}")


def variants(type_: pa.DataType, values: list[Any], others: list[bytes | None]) -> pa.ChunkedArray:
    """Objects with a field ``a``: typed values, and encoded ones of other types."""
    stored = pa.array(values, pa.int64()).cast(type_) if pa.types.is_timestamp(type_) else pa.array(values, type_)
    typed = pa.concat_arrays([stored, pa.nulls(len(others), type_)])
    rest = pa.array([None] * len(values) + others, pa.large_binary())
    field = pa.StructArray.from_arrays([rest, typed], names=["value", "typed_value"])
    parts = [pa.repeat(METADATA, len(typed)), pa.nulls(len(typed), pa.large_binary())]
    below = pa.StructArray.from_arrays([field], names=["a"])
    return pa.chunked_array([pa.StructArray.from_arrays([*parts, below], names=["metadata", "value", "typed_value"])])


@st.composite
def files(draw: st.DrawFn) -> list[pa.ChunkedArray]:
    """Row groups of one file."""
    type_ = draw(st.sampled_from(list(TYPES)))
    texts = [encoded_object({"a": pa.scalar(one)})[-1 - len(one) :] for one in ("7", "x")]
    other = st.sampled_from([None, b"\x00", *texts])
    group = st.tuples(st.lists(st.none() | TYPES[type_], max_size=4), st.lists(other, max_size=1))
    return [variants(type_, *draw(group)) for _ in range(draw(st.integers(1, 2)))]


@given(groups=files(), data=st.data())
def test_no_matching_row_is_dropped(groups: list[pa.ChunkedArray], data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(list(LITERALS)))
    literal, operator = data.draw(st.sampled_from(LITERALS[target])), data.draw(st.sampled_from(OPERATORS))
    where = f"try_variant_get(v, '$.a', '{target}') {operator.format(literal)}"
    predicate = compile_predicate(data.draw(st.sampled_from([where, f"NOT ({where})"])), SCHEMA).predicate
    bounds = [variant_bounds(group) for group in groups]
    both = serialized(
        merged_bounds(bounds),
        lambda text, side: text if len(text) <= 2 else _cut_text(text, 2, side),
    )
    stored = tuple(pa.array([one], pa.large_binary()) for one in both or (None, None))
    may, none = np.ones(1, dtype=np.bool_), np.zeros(1, dtype=np.bool_)
    rows = sum(map(len, groups))
    stats = ColumnStats(may, none, may, stored=stored)  # type: ignore[arg-type]
    answer = evaluate(predicate, StatsTable(1, {1: stats}))
    whole = pa.concat_arrays([chunk for group in groups for chunk in group.chunks])
    parts = [pa.repeat(METADATA, rows), pa.array(unshredded(whole), pa.large_binary())]
    table = pa.table({"v": pa.StructArray.from_arrays(parts, names=["metadata", "value"])})
    try:
        matched = matching_mask(predicate, table, SCHEMA)
    except (UnsupportedError, EvaluationError):
        return
    assert answer.may_true[0] or not matched.any()
    assert not answer.all_match[0] or matched.all()


def test_bounds_drop_something() -> None:
    """The test above would pass without any pruning."""
    bounds = variant_bounds(variants(pa.decimal128(9, 2), [Decimal("1.25"), None], [b"\x00"]))
    both = serialized(bounds, lambda text, _: text)
    stored = tuple(pa.array([one], pa.large_binary()) for one in both or ())
    may = np.ones(1, dtype=np.bool_)
    stats = StatsTable(1, {1: ColumnStats(may, ~may, may, stored=stored)})  # type: ignore[arg-type]
    for where, kept in (("> 1.25", False), ("= 1.25", True), ("< 1", False), ("IN (1, 2)", False), ("IS NULL", True)):
        predicate = compile_predicate(f"v:a::decimal(9, 2) {where}", SCHEMA).predicate
        assert evaluate(predicate, stats).may_true[0] == kept, where

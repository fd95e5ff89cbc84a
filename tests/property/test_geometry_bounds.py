"""Boxes of geometries on rows, and bounds of files that never drop a row whose box intersects."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from floeplan.errors import BadInputError, EvaluationError, TypeMismatchError
from floeplan.opaque_types import OpaqueType, accept_opaque_types
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.geometries import Box, wkb_box
from floeplan.predicate.rows.evaluate import evaluate_rows
from floeplan.predicate.stats import ColumnStats, StatsTable

pytestmark = pytest.mark.property

accept_opaque_types()
SCHEMA = Schema(
    NestedField(1, "g", OpaqueType("geometry(OGC:CRS84)")), NestedField(2, "h", OpaqueType("geography(OGC:CRS84)"))
)
NUMBERS = st.integers(-5, 5).map(float) | st.floats(allow_infinity=False)
Points = list[tuple[float, ...]]


def encoded(kind: int, parts: Any, dimensions: int, order: str, ewkb: bool) -> bytes:
    """WKB of a point (1), line (2), polygon (3), or a collection (7) of geometries."""
    code = kind | (0, 0x80000000, 0xC0000000)[dimensions - 2] if ewkb else kind + (0, 1000, 3000)[dimensions - 2]
    head = struct.pack(f"{order}BI", "><".index(order), code | (0x20000000 if ewkb else 0))
    head += struct.pack(f"{order}I", 4326) if ewkb else b""

    def sequence(points: Points) -> bytes:
        return b"".join(struct.pack(f"{order}{dimensions}d", *point) for point in points)

    def counted(items: list[Any], data: bytes) -> bytes:
        return struct.pack(f"{order}I", len(items)) + data

    if kind == 1:
        return head + sequence(parts)
    if kind == 2:
        return head + counted(parts, sequence(parts))
    if kind == 3:
        return head + counted(parts, b"".join(counted(ring, sequence(ring)) for ring in parts))
    return head + counted(parts, b"".join(parts))


@st.composite
def geometries(draw: st.DrawFn, depth: int = 0) -> tuple[bytes, Points]:
    """A geometry and all its points."""
    dimensions, order, ewkb = draw(st.integers(2, 4)), draw(st.sampled_from("<>")), draw(st.booleans())
    points = st.lists(st.tuples(*[NUMBERS] * dimensions), max_size=4)
    kind = draw(st.sampled_from([1, 2, 3, 7] if depth < 2 else [1, 2, 3]))
    if kind == 7:
        inner = draw(st.lists(geometries(depth + 1), max_size=3))
        return encoded(7, [data for data, _ in inner], 2, order, ewkb), [one for _, some in inner for one in some]
    if kind == 3:
        rings = draw(st.lists(points, max_size=3))
        return encoded(3, rings, dimensions, order, ewkb), [one for ring in rings for one in ring]
    found = [draw(st.tuples(*[NUMBERS] * dimensions))] if kind == 1 else draw(points)
    return encoded(kind, found, dimensions, order, ewkb), found


def box_of(points: Points) -> Box | None:
    """The box by definition; ``None`` where an axis has no coordinate."""
    axes = [[point[axis] for point in points if not math.isnan(point[axis])] for axis in (0, 1)]
    return Box(min(axes[0]), min(axes[1]), max(axes[0]), max(axes[1])) if all(axes) else None


@given(rows=st.lists(st.none() | geometries(), min_size=1, max_size=4), box=st.tuples(*[st.integers(-6, 6)] * 4))
def test_boxes_of_rows_and_files(rows: list[tuple[bytes, Points] | None], box: tuple[int, ...]) -> None:
    where = f"ST_Intersects_Extent(g, ST_MakeEnvelope({', '.join(map(str, box))}))"
    predicate = compile_predicate(where, SCHEMA).predicate
    expected: list[bool | None] = []
    for row in rows:
        own = None if row is None else box_of(row[1])
        wanted = own is not None and own.x_min <= box[2] and box[0] <= own.x_max
        wanted = wanted and own is not None and own.y_min <= box[3] and box[1] <= own.y_max
        expected.append(None if row is None else wanted and box[0] <= box[2] and box[1] <= box[3])
    table = pa.table({"g": pa.array([None if row is None else row[0] for row in rows], pa.large_binary())})
    assert evaluate_rows(predicate, table, SCHEMA).to_pylist() == expected
    whole = [point for row in rows if row is not None for point in row[1]]
    bounds = box_of(whole)
    ends = (None, None) if bounds is None else ((bounds.x_min, bounds.y_min), (bounds.x_max, bounds.y_max))
    stored = [pa.array([None if end is None else struct.pack("<dd", *end)], pa.large_binary()) for end in ends]
    may = np.ones(1, dtype=np.bool_)
    stats = StatsTable(1, {1: ColumnStats(may, ~may, may, stored=(stored[0], stored[1]))})
    for answer, wanted in ((evaluate(predicate, stats), True), (~evaluate(predicate, stats), False)):
        assert answer.may_true[0] or wanted not in expected
    if bounds is not None and not bounds.intersects(Box(*map(float, box))):
        assert not evaluate(predicate, stats).may_true[0]


@pytest.mark.parametrize("lengths", [(16, 16), (24, 24), (32, 32), (16, 24)])
def test_bounds_of_every_length(lengths: tuple[int, int]) -> None:
    ends = [
        struct.pack("<4d", *values)[:length]
        for values, length in zip(((0, 0, 9, 9), (1, 1, 9, 9)), lengths, strict=True)
    ]
    may = np.ones(1, dtype=np.bool_)
    stored = [pa.array([end], pa.large_binary()) for end in ends]
    stats = StatsTable(1, {1: ColumnStats(may, ~may, may, stored=(stored[0], stored[1]))})
    for constant, kept in (("ST_Point(2, 0)", False), ("ST_Point(1, 0.5D)", True)):
        predicate = compile_predicate(f"st_intersects_extent({constant}, g)", SCHEMA).predicate
        assert evaluate(predicate, stats).may_true[0] == kept


@pytest.mark.parametrize("ends", [(b"", b""), (b"x" * 16, b"y" * 8), (struct.pack("<dd", math.nan, 0),) * 2])
def test_bounds_that_cannot_be_read_keep(ends: tuple[bytes, bytes]) -> None:
    may = np.ones(1, dtype=np.bool_)
    stored = [pa.array([end], pa.large_binary()) for end in ends]
    stats = StatsTable(1, {1: ColumnStats(may, ~may, may, stored=(stored[0], stored[1]))})
    predicate = compile_predicate("ST_Intersects_Extent(g, ST_Point(2, 0))", SCHEMA).predicate
    assert evaluate(predicate, stats).may_true[0]


@given(data=st.binary(max_size=60))
def test_other_bytes_are_refused(data: bytes) -> None:
    try:
        wkb_box(data)
    except BadInputError:
        table = pa.table({"g": pa.array([data], pa.large_binary())})
        predicate = compile_predicate("ST_Intersects_Extent(g, ST_Point(2, 0))", SCHEMA).predicate
        with pytest.raises(EvaluationError):
            evaluate_rows(predicate, table, SCHEMA)


def test_other_columns_are_refused() -> None:
    with pytest.raises(TypeMismatchError, match="column h is geography"):
        compile_predicate("ST_Intersects_Extent(h, ST_Point(2, 0))", SCHEMA)
    point = encoded(1, [(1.0, 2.0)], 2, "<", False)
    where = f"ST_Intersects_Extent(g, ST_GeomFromWKB(X'{point.hex()}'))"
    assert str(compile_predicate(f"NOT {where}", SCHEMA).prunable) == f"NOT ({where})"

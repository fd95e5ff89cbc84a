"""Bounding boxes of geometries: of WKB on rows, and of the bounds of a geometry column.

``ST_Intersects_Extent(g, box)`` is TRUE where the bounding box of a geometry and a constant box share a point, their
edges included, as in DuckDB: the first step of a spatial filter, whose second step is a geometry library's.

Rule: only X and Y are compared. A NaN coordinate bounds nothing, and a geometry without coordinates intersects nothing.
The bounds of a file are two points, the least and the greatest X and Y of all its geometries.

Fail-safe: bounds of another length, with NaN, or with a least above its greatest value are unknown. Geographies are not
compared: their edges are arcs, and their boxes may cross the antimeridian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from sqlglot import exp

from floeplan.errors import BadInputError
from floeplan.predicate.stats import ColumnStats, Tri

_COLLECTIONS = (4, 5, 6, 7)
_POLYGON, _POINT = 3, 1
_POINT_LENGTHS = (16, 24, 32)
"""Bytes of a bound: X and Y, with Z, with Z and M."""


@dataclass(frozen=True, slots=True)
class Box:
    """A bounding box; it is empty if a least value exceeds its greatest."""

    x_min: float
    y_min: float
    x_max: float
    y_max: float

    def intersects(self, other: Box) -> bool:
        """Whether two boxes share a point."""
        return (
            max(self.x_min, other.x_min) <= min(self.x_max, other.x_max)
            and max(self.y_min, other.y_min) <= min(self.y_max, other.y_max)
            and not self.is_empty
            and not other.is_empty
        )

    @property
    def is_empty(self) -> bool:
        """Whether the box has no point."""
        return not (self.x_min <= self.x_max and self.y_min <= self.y_max)


def wkb_box(data: bytes) -> Box:
    """The bounding box of a geometry in WKB, ISO's or with the flags of EWKB; other bytes raise ``BadInputError``."""
    least, greatest = [math.inf, math.inf], [-math.inf, -math.inf]
    reader = _Reader(data)
    for points in reader.geometry():
        for axis in (0, 1):
            values = points[:, axis]
            values = values[~np.isnan(values)]
            if len(values):
                least[axis] = min(least[axis], float(values.min()))
                greatest[axis] = max(greatest[axis], float(values.max()))
    if reader.at != len(data):
        raise BadInputError(f"{len(data) - reader.at} bytes follow the geometry")
    return Box(*least, *greatest)


class _Reader:
    """Reads WKB from its beginning."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def geometry(self, depth: int = 0) -> Iterator[np.ndarray]:
        """The coordinates of a geometry, one array per sequence of points."""
        if depth > 32 or self.at >= len(self.data) or self.data[self.at] > 1:
            raise BadInputError("there is no geometry")
        order = "><"[self.data[self.at]]
        self.at += 1
        code = self._count(order)
        number, flags = code & 0x0FFFFFFF, code >> 28
        number, dimensions = number % 1000, 2 + (0, 1, 1, 2)[number // 1000 % 4] + bool(flags & 8) + bool(flags & 4)
        if flags & 2:  # the SRID of EWKB
            self._count(order)
        if number == _POINT:
            yield self._points(order, 1, dimensions)
        elif number in _COLLECTIONS:
            for _ in range(self._count(order)):
                yield from self.geometry(depth + 1)
        elif number in (2, _POLYGON):
            for _ in range(self._count(order) if number == _POLYGON else 1):
                yield self._points(order, self._count(order), dimensions)
        else:
            raise BadInputError(f"the geometry type {number} is unknown")

    def _count(self, order: str) -> int:
        try:
            (number,) = struct.unpack_from(f"{order}I", self.data, self.at)
        except struct.error:
            raise BadInputError("the geometry is cut off") from None
        self.at += 4
        return int(number)

    def _points(self, order: str, count: int, dimensions: int) -> np.ndarray:
        end = self.at + 8 * count * dimensions
        if end > len(self.data):
            raise BadInputError("the geometry is cut off")
        found = np.frombuffer(self.data[self.at : end], dtype=f"{order}f8").reshape(count, dimensions)
        self.at = end
        return found


@dataclass(frozen=True, slots=True)
class BoxBounds:
    """Answers whether the boxes of geometries intersect a box, from the bounds of their column."""

    box: Box

    def answer(self, stats: ColumnStats) -> Tri:
        """What may occur among the rows of each container."""
        may_true = stats.may_value.copy()
        if self.box.is_empty:
            may_true[:] = False
        elif stats.stored is not None:
            pairs = zip(*(part.to_pylist() for part in stats.stored), strict=True)
            may_true &= np.array([self._may_intersect(low, high) for low, high in pairs], dtype=np.bool_)
        return Tri(may_true, stats.may_value, stats.may_null)

    def shown(self, stats: ColumnStats) -> str:
        """The box of the first container."""
        found = None if stats.stored is None else _stored_box(*(part[0].as_py() for part in stats.stored))
        return "unknown" if found is None else f"{found.x_min} {found.y_min} to {found.x_max} {found.y_max}"

    def _may_intersect(self, low: bytes | None, high: bytes | None) -> bool:
        found = _stored_box(low, high)
        return found is None or found.intersects(self.box)


def _stored_box(low: bytes | None, high: bytes | None) -> Box | None:
    """The box between two bounds; ``None`` if unknown."""
    if low is None or high is None or {len(low), len(high)} - set(_POINT_LENGTHS):
        return None
    found = Box(*struct.unpack_from("<dd", low), *struct.unpack_from("<dd", high))
    return None if found.is_empty else found


def find_extent(node: exp.Expr) -> tuple[int, Box] | None:
    """The field id and the box of ``ST_Intersects_Extent(column, constant)``, in either order."""
    if not isinstance(node, exp.Anonymous) or node.name.lower() != "st_intersects_extent" or len(node.expressions) != 2:
        return None
    column, constant = sorted(node.expressions, key=lambda one: not isinstance(one, exp.Placeholder))
    box = _constant_box(constant)
    return (int(column.this), box) if isinstance(column, exp.Placeholder) and box is not None else None


def _constant_box(node: exp.Expr) -> Box | None:
    """The box of ``ST_MakeEnvelope(x_min, y_min, x_max, y_max)``, ``ST_Point(x, y)`` or ``ST_GeomFromWKB(X'…')``."""
    name = node.name.lower() if isinstance(node, exp.Anonymous) else node.key
    arguments = node.expressions if isinstance(node, exp.Anonymous) else [node.this, node.args.get("expression")]
    if name == "st_geomfromwkb" and isinstance(arguments[0], exp.HexString):
        return wkb_box(bytes.fromhex(arguments[0].this))
    numbers = [_number(one) for one in arguments]
    if None in numbers or (name, len(numbers)) not in (("st_makeenvelope", 4), ("st_point", 2), ("stpoint", 2)):
        return None
    known = [number for number in numbers if number is not None]
    return Box(*known) if len(known) == 4 else Box(*known, *known)


def _number(node: exp.Expr | None) -> float | None:
    if isinstance(node, exp.Cast):
        return _number(node.this)
    if isinstance(node, exp.Neg):
        number = _number(node.this)
        return None if number is None else -number
    return float(node.this) if isinstance(node, exp.Literal) and not node.is_string else None


def intersects_extent(geometries: pa.Array, box: Box) -> pa.Array:
    """Whether the box of each geometry intersects a box; NULL for a null."""
    found = [None if one is None else wkb_box(one).intersects(box) for one in geometries.to_pylist()]
    return pa.array(found, pa.bool_())

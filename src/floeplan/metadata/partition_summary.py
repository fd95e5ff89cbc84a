"""What a manifest list says of the partition values of a manifest: is there a null, a NaN, and between which bounds.

Rule: bounds are in the order Iceberg Java compares partition values: text by code points, bytes unsigned, UUIDs as two
signed numbers, -0.0 before 0.0. Fail-safe: a field without ordinary values has no bounds and readers take it for all
null, so values of a type that cannot be written as bounds are an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import to_bytes
from pyiceberg.types import PrimitiveType, UUIDType

from floeplan.partition.transforms import from_physical


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """One field of a spec over the entries of a manifest."""

    contains_null: bool
    contains_nan: bool
    lower: bytes | None
    upper: bytes | None


def summarise_field(type_: PrimitiveType, values: pa.Array) -> FieldSummary:
    """The summary of a partition column."""
    ordinary = values.drop_null()
    contains_null = len(ordinary) < len(values)
    contains_nan = False
    if pa.types.is_floating(values.type):
        is_nan = pc.is_nan(ordinary)
        contains_nan = bool(pc.any(is_nan).as_py())
        ordinary = ordinary.filter(pc.invert(is_nan))
    if not len(ordinary):
        return FieldSummary(contains_null, contains_nan, None, None)
    lower, upper = _extremes(type_, ordinary)
    return FieldSummary(contains_null, contains_nan, _single_value(type_, lower), _single_value(type_, upper))


def _extremes(type_: PrimitiveType, values: pa.Array) -> tuple[Any, Any]:
    if isinstance(type_, UUIDType):
        halves = np.frombuffer(b"".join(pc.unique(values).to_pylist()), dtype=">i8").reshape(-1, 2)
        order = np.lexsort((halves[:, 1], halves[:, 0]))
        return halves[order[0]].tobytes(), halves[order[-1]].tobytes()
    if pa.types.is_floating(values.type):
        numbers = values.to_numpy(zero_copy_only=False)
        order = np.lexsort((~np.signbit(numbers), numbers))
        return float(numbers[order[0]]), float(numbers[order[-1]])
    ends = pc.min_max(values)
    return ends["min"].as_py(), ends["max"].as_py()


def _single_value(type_: PrimitiveType, value: Any) -> bytes:
    canonical: Any = from_physical(type_, value)
    return to_bytes(type_, canonical)

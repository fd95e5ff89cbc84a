"""The range of every partition function's output over a file, for all fields of the union tuple.

Rule: for a field of the file's own spec both ends are the partition value itself, whatever the function (bucket too)
and whatever statistics there are. For a field of another spec the ends are the function of the file's bounds, if it
keeps the order: bounds need not be tight, the range is only wider then. Fail-safe: everything else is null, unknown.
A range is about ordinary values; nulls and NaN are outside of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import IdentityTransform

from floeplan.metadata.assemble import partition_arrow_type
from floeplan.metadata.bounds import decode_bounds
from floeplan.metadata.decoder import Mask
from floeplan.metadata.entries import EntriesTable
from floeplan.partition.fields import BoundField
from floeplan.partition.transforms import apply_vector, integer_limits
from floeplan.partition.union import UnionField
from floeplan.predicate.stats import Bound, Vector, take, trusted

Bounds = Mapping[int, pa.Array]
"""Single-value bytes by field id of the column they bound."""


def partition_range(
    field: UnionField, entries: EntriesTable, values: pa.Array, lower: Bounds, upper: Bounds
) -> tuple[pa.Array, pa.Array]:
    """Both ends for every entry, in the physical domain; ``values`` is the field's column of the union tuple."""
    own = pa.array(np.isin(entries.spec_id, list(field.positions)))
    type_ = values.type
    ends = _from_bounds(field.bound, lower.get(field.bound.source_id), upper.get(field.bound.source_id))
    if ends is None:
        nothing = pa.nulls(len(values), type_)
        ends = nothing, nothing
    return pc.if_else(own, values, ends[0].cast(type_)), pc.if_else(own, values, ends[1].cast(type_))


def _from_bounds(field: BoundField, lower: pa.Array | None, upper: pa.Array | None) -> tuple[pa.Array, pa.Array] | None:
    if lower is None or upper is None or field.obstacle or not field.transform.preserves_order:
        return None
    low, high = trusted(*decode_bounds(field.source_type, lower, upper))
    if low is None or high is None:
        return None
    return _transformed(field, low), _transformed(field, high)


def _transformed(field: BoundField, bound: Bound) -> pa.Array:
    rows = np.flatnonzero(bound.valid)
    source = take(bound.values, rows)
    labels = apply_vector(field.transform, field.source_type, source)
    fitting = _fits(field, source, labels)
    places = np.full(len(bound.valid), -1, dtype=np.int64)
    places[rows[fitting]] = np.flatnonzero(fitting)
    values = pa.array(labels) if isinstance(labels, np.ndarray) else labels
    return values.cast(partition_arrow_type(field.column.type)).take(pa.array(places, mask=places < 0))


def _fits(field: BoundField, source: Vector, labels: Vector) -> Mask:
    """Whether a label is within its type; one above its source has wrapped around the smallest integer."""
    limits = integer_limits(field.column.type)
    if not isinstance(labels, np.ndarray) or limits is None:
        return np.ones(len(labels), dtype=np.bool_)
    fits = np.asarray((labels >= limits[0]) & (labels <= limits[1]))
    steps = field.column.type == field.source_type and not isinstance(field.transform, IdentityTransform)
    return fits & np.asarray(labels <= source) if steps else fits

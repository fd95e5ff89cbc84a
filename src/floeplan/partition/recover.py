"""Recover partition values of files under specs they were not written with, from column bounds.

Rule: every value of a file lies in [lower, upper]. An order-preserving transform maps all of them to one
partition value when T(lower) = T(upper), provided that nulls and NaN are known to be absent. That holds for strings as
well, truncated bounds included: strings between two that share their first W code points share them too. Any
transform, bucket included, is recovered from an interval of a single point. A file whose column is known to be all
null has the null partition, and a void field is null for every file.

A recovered value is the one the specification defines. A faulty writer (see ``floeplan.partition.lift``)
would have stored another one for some times before 1970, so recovered values state where a file belongs, not what such
a writer wrote.

Fail-safe: a value that is not proven is not recovered, and ``Obstacle`` states why. A zero of floating point is never
proven, because bounds do not tell -0.0 from 0.0, which are different partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import BinaryType, StringType

from floeplan.partition.fields import BoundField
from floeplan.partition.transforms import apply_vector, integer_limits
from floeplan.predicate.stats import ColumnStats, StatsTable, Vector, take, to_mask
from floeplan.vectors import Ints, Mask

_LAST_OF_SEVERAL = 0xBF
"""The highest last byte of a character of several bytes: the next character has another byte before it."""


class Obstacle(IntEnum):
    """Why a partition value could not be recovered; ``NONE`` where it was."""

    NONE = 0
    UNKNOWN_TRANSFORM = 1
    MISSING_STATS = 2
    NULLS = 3
    NAN = 4
    BUCKET = 5
    SPANS = 6
    TRUNCATED = 7
    OUT_OF_RANGE = 8


@dataclass(frozen=True, slots=True)
class Recovered:
    """One partition value per file; ``values`` are defined where ``recovered`` and not ``is_null``."""

    values: Vector
    is_null: Mask
    obstacle: npt.NDArray[np.int8]

    @property
    def recovered(self) -> Mask:
        """The files whose value is proven, null included."""
        return np.asarray(self.obstacle == Obstacle.NONE)


def recover_tuples(fields: Iterable[BoundField], stats: StatsTable) -> dict[int, Recovered]:
    """Recover every field from statistics by source column id; results by partition column id."""
    return {f.column.field_id: recover(f, stats.columns.get(f.source_id), stats.length) for f in fields}


def recover(field: BoundField, stats: ColumnStats | None, length: int) -> Recovered:
    """Recover one field for files whose source column has these statistics; ``None`` when nothing is known of it."""
    obstacle = np.full(length, Obstacle.MISSING_STATS, dtype=np.int8)
    nothing: Vector = np.zeros(length, dtype=np.int64)
    if field.is_void:
        return Recovered(nothing, np.ones(length, dtype=np.bool_), np.zeros_like(obstacle))
    is_null = np.zeros(length, dtype=np.bool_)
    if field.obstacle:
        return Recovered(nothing, is_null, np.full_like(obstacle, Obstacle.UNKNOWN_TRANSFORM))
    if stats is None:
        return Recovered(nothing, is_null, obstacle)
    is_null = stats.may_null & ~stats.may_value & ~stats.may_nan
    obstacle[stats.may_nan] = Obstacle.NAN
    obstacle[stats.may_null] = Obstacle.NULLS
    obstacle[is_null] = Obstacle.NONE
    if stats.lower is None or stats.upper is None:
        return Recovered(nothing, is_null, obstacle)
    clean = ~stats.may_null & ~stats.may_nan & stats.may_value & stats.lower.valid & stats.upper.valid
    rows = np.flatnonzero(clean)
    lower, upper = take(stats.lower.values, rows), take(stats.upper.values, rows)
    labels, found = _labels(field, lower, upper)
    obstacle[rows] = found
    return Recovered(_scatter(labels, rows, length), is_null, obstacle)


def _labels(field: BoundField, lower: Vector, upper: Vector) -> tuple[Vector, npt.NDArray[np.int8]]:
    """T(lower), and whether it is the label of the whole interval."""
    if isinstance(field.transform, BucketTransform):
        single = _equal(lower, upper)
        points = np.flatnonzero(single)
        labels = apply_vector(field.transform, field.source_type, take(lower, points))
        return _scatter(labels, points, len(lower)), np.where(single, Obstacle.NONE, Obstacle.BUCKET).astype(np.int8)
    labels = apply_vector(field.transform, field.source_type, lower)
    same = _equal(labels, apply_vector(field.transform, field.source_type, upper))
    obstacle = np.where(same, Obstacle.NONE, Obstacle.SPANS)
    if isinstance(field.source_type, StringType | BinaryType):
        obstacle[~same & _looks_truncated(lower, upper)] = Obstacle.TRUNCATED
    obstacle[~_fits(field, lower, labels)] = Obstacle.OUT_OF_RANGE
    return labels, obstacle.astype(np.int8)


def _equal(left: Vector, right: Vector) -> Mask:
    if isinstance(left, np.ndarray):
        equal = np.asarray(left == right)
        return equal & (left != 0) if left.dtype.kind == "f" else equal
    return to_mask(pc.equal(left, right))


def _fits(field: BoundField, lower: Vector, labels: Vector) -> Mask:
    """Whether a label is within its type; a truncated number above its source has wrapped around."""
    limits = integer_limits(field.column.type)
    if isinstance(labels, np.ndarray) and limits is not None:
        fits = np.asarray((labels >= limits[0]) & (labels <= limits[1]))
        truncated = field.column.type == field.source_type and not isinstance(field.transform, IdentityTransform)
        return fits & (labels <= lower) if truncated else fits
    if isinstance(labels, np.ndarray):
        return np.ones(len(labels), dtype=np.bool_)
    return to_mask(labels.is_valid())


def _looks_truncated(lower: pa.Array, upper: pa.Array) -> Mask:
    """Whether the upper bound is the lower one with its last byte incremented, as for a truncated long value.

    If it is not, the values of the file differ.
    """
    text = pa.types.is_string(lower.type) or pa.types.is_large_string(lower.type)
    size, cut = (pc.utf8_length, pc.utf8_slice_codeunits) if text else (pc.binary_length, pc.binary_slice)
    alike = pc.and_(pc.equal(size(lower), size(upper)), pc.equal(cut(lower, 0, -1), cut(upper, 0, -1)))
    low, high = _last_bytes(lower), _last_bytes(upper)
    raised = (high == low + 1) | (text & (low == _LAST_OF_SEVERAL))
    return np.asarray(to_mask(pc.and_(alike, pc.greater(size(lower), 1))) & raised)


def _last_bytes(values: pa.Array) -> Ints:
    """The last byte of every value; anything for one without bytes."""
    stored = values.cast(pa.large_binary())
    ends = np.frombuffer(stored.buffers()[1] or bytes(8), dtype=np.int64)[stored.offset + 1 :][: len(stored)]
    data = np.frombuffer(stored.buffers()[2] or b"\x00", dtype=np.uint8)
    return np.asarray(data[np.clip(ends - 1, 0, len(data) - 1)].astype(np.int64))


def _scatter(values: Vector, rows: Ints, length: int) -> Vector:
    """Values put back at their rows; zero or null elsewhere."""
    if isinstance(values, np.ndarray):
        result = np.zeros(length, dtype=values.dtype)
        result[rows] = values
        return result
    indices = np.zeros(length, dtype=np.int64)
    indices[rows] = np.arange(len(rows))
    absent = np.ones(length, dtype=np.bool_)
    absent[rows] = False
    return values.take(pa.array(indices, mask=absent))

"""Iceberg's partition transforms on canonical values and on vectors of them.

A transform is a step function: it maps every value to the label of the *unit* it lies in. Time transforms and numeric
truncation round toward minus infinity, on plain integers (days, microseconds, nanoseconds, unscaled decimals);
string truncation counts code points; bucket hashes with murmur3. Null maps to null, and only void maps a value to
null.

This module computes what the specification defines. ``floeplan.partition.lift`` accounts for what faulty
writers stored instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg import transforms as pt
from pyiceberg import types
from pyiceberg.utils.decimal import decimal_to_unscaled, unscaled_to_decimal

from floeplan import arrow_compute as pc
from floeplan.errors import UnsupportedError
from floeplan.predicate.literals import Value
from floeplan.predicate.stats import Vector
from floeplan.vectors import Ints

Transform: TypeAlias = pt.Transform[Any, Any]

Hashes: TypeAlias = npt.NDArray[np.uint32]

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_BLOCK = 4

_INT32 = (-(2**31), 2**31 - 1)
_INT64 = (-(2**63), 2**63 - 1)
_MICROS, _NANOS = (types.TimestampType, types.TimestamptzType), (types.TimestampNanoType, types.TimestamptzNanoType)
TIMESTAMPS = (*_MICROS, *_NANOS)
_HASHED_AS_INTEGERS = (types.IntegerType, types.LongType, types.DateType, types.TimeType, *_MICROS)
_HASHED_AS_BYTES = (types.StringType, types.BinaryType, types.FixedType, types.UUIDType)
_HOURS_PER_DAY = 24
_TICKS_PER_HOUR = {**dict.fromkeys(_MICROS, 3_600_000_000), **dict.fromkeys(_NANOS, 3_600_000_000_000)}
_CALENDAR = {pt.YearTransform: "datetime64[Y]", pt.MonthTransform: "datetime64[M]"}


@lru_cache(maxsize=256)
def can_apply(transform: Transform, source: types.PrimitiveType) -> bool:
    """Whether the values of a partition field are known to be the transform of its source."""
    if isinstance(transform, pt.VoidTransform) or isinstance(source, types.UnknownType):
        return False
    if isinstance(transform, pt.BucketTransform) and transform.num_buckets < 1:
        return False
    if isinstance(transform, pt.TruncateTransform) and transform.width < 1:
        return False
    return transform.can_transform(source)


@lru_cache(maxsize=256)
def result_type(transform: Transform, source: types.PrimitiveType) -> types.PrimitiveType:
    """The type of a partition value; unknown where it would be the source's type and that is not known."""
    result = transform.result_type(source)
    return result if isinstance(result, types.PrimitiveType) else types.UnknownType()


def integer_limits(type_: types.IcebergType) -> tuple[int, int] | None:
    """The smallest and largest value of a type that counts in integers (decimals unscaled), else ``None``."""
    match type_:
        case types.IntegerType() | types.DateType():
            return _INT32
        case types.LongType() | types.TimeType():
            return _INT64
        case types.TimestampType() | types.TimestamptzType() | types.TimestampNanoType() | types.TimestamptzNanoType():
            return _INT64
        case types.DecimalType():
            return 1 - 10**type_.precision, 10**type_.precision - 1
    return None


def to_integer(value: Value) -> int:
    """A canonical value of a type that counts in integers, as that integer."""
    return decimal_to_unscaled(value) if isinstance(value, Decimal) else int(value)


def from_physical(type_: types.PrimitiveType, value: Any) -> Value:
    """A value out of a vector in its canonical form: the inverse of ``floeplan.predicate.evaluate.physical``."""
    match type_:
        case types.BooleanType():
            return bool(value)
        case types.DecimalType() if not isinstance(value, Decimal):
            return unscaled_to_decimal(int(value), type_.scale)
        case types.FloatType() | types.DoubleType():
            return float(value)
    result: Value = value
    return result


def units(transform: Transform, source: types.PrimitiveType, values: Iterable[int]) -> list[int]:
    """The labels of the units that integers lie in, in exact integers: nothing wraps at the limits of a type."""
    match transform:
        case pt.TruncateTransform():
            return [value - value % transform.width for value in values]
        case pt.DayTransform() if isinstance(source, types.DateType):
            return list(values)
        case pt.DayTransform() | pt.HourTransform():  # a predicate has few values: NumPy would take longer
            hours = 1 if isinstance(transform, pt.HourTransform) else _HOURS_PER_DAY
            return [value // (_TICKS_PER_HOUR[type(source)] * hours) for value in values]
    labels: list[int] = _time_units(transform, source, np.fromiter(values, dtype=np.int64)).tolist()
    return labels


def buckets(transform: pt.BucketTransform[Any], source: types.PrimitiveType, values: Iterable[Value]) -> list[int]:
    """The buckets of canonical values."""
    bucket = transform.transform(source)
    return [label for label in map(bucket, values) if label is not None]


def apply(transform: Transform, source: types.PrimitiveType, value: Value | None) -> Value | None:
    """The partition value of one canonical source value."""
    if value is None or isinstance(transform, pt.VoidTransform):
        return None
    _require(transform, source)
    match transform:
        case pt.IdentityTransform():
            return value
        case pt.BucketTransform():
            return buckets(transform, source, [value])[0]
        case pt.TruncateTransform() if isinstance(value, str | bytes):
            return value[: transform.width]
        case pt.TruncateTransform() if isinstance(source, types.DecimalType):
            return unscaled_to_decimal(units(transform, source, [to_integer(value)])[0], source.scale)
    return units(transform, source, [to_integer(value)])[0]


def apply_vector(transform: Transform, source: types.PrimitiveType, values: Vector) -> Vector:
    """The partition values of a vector, in the vector domain of the result type.

    Integer truncation wraps within one width of the smallest 64-bit integer, as it does in Java; for narrower types
    the caller checks the limits. A decimal of more than 18 digits that truncation pushes out of its type becomes null.
    Buckets of decimals and nanoseconds, and truncation of such decimals, cost a Python step per *distinct* value;
    everything else is arithmetic on whole columns. For buckets there are no nulls.
    """
    _require(transform, source)
    match transform:
        case pt.IdentityTransform():
            return values
        case pt.TruncateTransform() if isinstance(source, types.StringType):
            return pc.utf8_slice_codeunits(values, 0, transform.width)
        case pt.TruncateTransform() if isinstance(source, types.BinaryType):
            return pc.binary_slice(values, 0, transform.width)
        case pt.TruncateTransform() if isinstance(values, np.ndarray):
            return values - values % transform.width
        case pt.TruncateTransform():
            wide: pa.Array = values
            encoded, type_ = wide.dictionary_encode(), wide.type
            labels = units(transform, source, map(to_integer, encoded.dictionary.to_pylist()))
            smallest = 1 - 10**type_.precision
            fitting = [unscaled_to_decimal(label, type_.scale) if label >= smallest else None for label in labels]
            return pa.array(fitting, type=type_).take(encoded.indices)
        case pt.BucketTransform():
            return _buckets_of_vector(transform, source, values)
    return _time_units(transform, source, np.asarray(values, dtype=np.int64))


def _require(transform: Transform, source: types.PrimitiveType) -> None:
    if not can_apply(transform, source):
        raise UnsupportedError(
            f"cannot apply transform {transform!r} to a column of type {source}",
            context={"transform": repr(transform), "type": str(source)},
        )


def _time_units(transform: Transform, source: types.PrimitiveType, values: Ints) -> Ints:
    """Units since 1970-01-01 by floor division; months and years by NumPy's proleptic Gregorian calendar."""
    if isinstance(transform, pt.HourTransform):
        return values // _TICKS_PER_HOUR[type(source)]
    days = values if isinstance(source, types.DateType) else values // (_TICKS_PER_HOUR[type(source)] * _HOURS_PER_DAY)
    if isinstance(transform, pt.DayTransform):
        return days
    return days.astype("datetime64[D]").astype(_CALENDAR[type(transform)]).astype(np.int64)


def _buckets_of_vector(transform: pt.BucketTransform[Any], source: types.PrimitiveType, values: Vector) -> Ints:
    if isinstance(values, np.ndarray) and isinstance(source, _HASHED_AS_INTEGERS):
        hashes = _hash_integers(values.astype(np.int64, copy=False))
    elif not isinstance(values, np.ndarray) and isinstance(source, _HASHED_AS_BYTES):
        hashes = _hash_bytes(values)
    else:
        if isinstance(values, np.ndarray):
            distinct, where = np.unique(values, return_inverse=True)
            listed = [from_physical(source, value) for value in distinct.tolist()]
        else:
            encoded = values.dictionary_encode()
            listed, where = encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)
        return np.array(buckets(transform, source, listed), dtype=np.int64)[where]
    return ((hashes & np.uint32(_INT32[1])) % np.uint32(transform.num_buckets)).astype(np.int64)


# Murmur3 (x86, 32 bits, seed 0) of whole columns: the hash of bucket partitions. Integers are hashed as eight
# little-endian bytes; strings and bytes as they are, all values of one length at a time.


def _hash_integers(values: npt.NDArray[np.int64]) -> Hashes:
    """The hash of each integer."""
    blocks = np.ascontiguousarray(values, dtype="<i8").view("<u4").reshape(-1, 2)
    return _finished(_mixed_in(_mixed_in(np.zeros(len(values), dtype=np.uint32), blocks[:, 0]), blocks[:, 1]), 8)


def _hash_bytes(values: pa.Array) -> Hashes:
    """The hash of each text or byte string; there are no nulls."""
    if not len(values):
        return np.zeros(0, dtype=np.uint32)
    raw = values.cast(pa.large_binary())
    _, offsets_buffer, data_buffer = raw.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[raw.offset : raw.offset + len(raw) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, dtype=np.uint8)
    lengths = np.diff(offsets)
    hashes = np.zeros(len(raw), dtype=np.uint32)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        hashes[rows] = _hash_matrix(data[offsets[:-1][rows][:, None] + np.arange(length)])
    return hashes


def _hash_matrix(matrix: npt.NDArray[np.uint8]) -> Hashes:
    """The hash of each row of bytes."""
    rows, length = matrix.shape
    whole = length - length % _BLOCK
    blocks = np.ascontiguousarray(matrix[:, :whole]).view("<u4")
    hashes = np.zeros(rows, dtype=np.uint32)
    for at in range(blocks.shape[1]):
        hashes = _mixed_in(hashes, blocks[:, at])
    if whole < length:
        tail = np.zeros((rows, _BLOCK), dtype=np.uint8)
        tail[:, : length - whole] = matrix[:, whole:]
        hashes = hashes ^ _mixed(tail.view("<u4")[:, 0])
    return _finished(hashes, length)


def _mixed(block: Hashes) -> Hashes:
    return _rotated(block * _C1, 15) * _C2


def _mixed_in(hashes: Hashes, block: Hashes) -> Hashes:
    return _rotated(hashes ^ _mixed(block), 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _rotated(values: Hashes, bits: int) -> Hashes:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))


def _finished(hashes: Hashes, length: int) -> Hashes:
    hashes = hashes ^ np.uint32(length)
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))

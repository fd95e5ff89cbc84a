"""Content statistics: typed bounds of a manifest, the maps of manifest entries, and their aggregation for a leaf.

Rule: a bound is stored in the type of its column and read as Iceberg's single-value bytes, which entries have, so that
statistics of trees and of manifests are evaluated by the same code. Types may have been promoted since.
Fail-safe: statistics of a type that the column never had are unknown, and unknown keeps the file. A leaf has a metric
only if all its files have it.

``tight_bounds`` is false wherever a column has statistics: manifest entries do not record it, and Iceberg 1.12.0 fails
on null.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.metadata.manifests.entries import ENTRY_TYPES
from floeplan.metadata.manifests.values import decode_values, fitting, fixed_width, list_array, to_logical
from floeplan.predicate.stats import to_mask
from floeplan.vectors import Ints, Mask, offsets_of, valid_mask, validity_bitmap

METRIC_OF_MAP = {
    "value_counts": "value_count",
    "null_value_counts": "null_value_count",
    "nan_value_counts": "nan_value_count",
    "lower_bounds": "lower_bound",
    "upper_bounds": "upper_bound",
}
"""The metric that holds the values of each map of statistics; ``column_sizes`` has none."""

_DECIMAL_BYTES = 16
_SIGN = 0x80


def fits_type(stored: pa.DataType, type_: PrimitiveType) -> bool:
    """Whether values of a stored type are values of a column: of its type, or of one it was promoted from."""
    kind = pa.types
    if isinstance(stored, pa.BaseExtensionType):
        stored = stored.storage_type
    match type_:
        case BooleanType():
            return bool(kind.is_boolean(stored))
        case IntegerType():
            return bool(kind.is_int32(stored))
        case LongType():
            return bool(kind.is_int32(stored) or kind.is_int64(stored))
        case FloatType():
            return bool(kind.is_float32(stored))
        case DoubleType():
            return bool(kind.is_floating(stored) and not kind.is_float16(stored))
        case DateType():
            return bool(kind.is_date32(stored))
        case TimeType():
            return bool(stored == pa.time64("us"))
        case TimestampType() | TimestampNanoType():
            return kind.is_date32(stored) or (_is_ticks(stored, type_) and stored.tz is None)
        case TimestamptzType() | TimestamptzNanoType():
            return _is_ticks(stored, type_) and stored.tz is not None
        case DecimalType():
            return bool(kind.is_decimal(stored) and stored.scale == type_.scale and stored.precision <= type_.precision)
        case StringType():
            return bool(kind.is_string(stored) or kind.is_large_string(stored))
        case BinaryType():
            return bool(kind.is_binary(stored) or kind.is_large_binary(stored))
        case FixedType():
            return bool(stored == pa.binary(len(type_)))
        case UUIDType():
            return bool(stored == pa.binary(16))
    return False


def _is_ticks(stored: pa.DataType, type_: PrimitiveType) -> bool:
    unit = "ns" if isinstance(type_, TimestampNanoType | TimestamptzNanoType) else "us"
    return bool(pa.types.is_timestamp(stored) and stored.unit == unit)


def single_values(type_: PrimitiveType, stored: pa.Array) -> pa.Array:
    """Typed values as Iceberg's single-value bytes; all null if the stored type does not fit the column's."""
    if not fits_type(stored.type, type_):
        return pa.nulls(len(stored), pa.large_binary())
    if isinstance(stored.type, pa.BaseExtensionType):
        stored = stored.storage
    kind = stored.type
    if pa.types.is_decimal(kind):
        return _decimal_bytes(stored.cast(pa.decimal128(38, kind.scale)))
    if not pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind):
        return stored.cast(pa.large_binary())
    valid = valid_mask(stored)
    if pa.types.is_boolean(kind):
        stored = stored.cast(pa.uint8())
    width = stored.type.bit_width // 8
    data = np.frombuffer(stored.buffers()[1] or b"", dtype=np.uint8)
    matrix = data[stored.offset * width : (stored.offset + len(stored)) * width].reshape(-1, width)
    return fixed_width(matrix, valid)


def _decimal_bytes(values: pa.Array) -> pa.Array:
    """Unscaled numbers in as few big-endian bytes as they need."""
    data = np.frombuffer(values.buffers()[1] or b"", dtype=np.uint8).reshape(-1, _DECIMAL_BYTES)
    matrix = data[values.offset : values.offset + len(values), ::-1]
    negative = matrix[:, :1] >= _SIGN
    # A leading byte can go if it only repeats the sign, and the byte behind it has the same sign.
    repeats = (matrix[:, :-1] == np.where(negative, 0xFF, 0)) & ((matrix[:, 1:] >= _SIGN) == negative)
    spare = np.logical_and.accumulate(repeats, axis=1).sum(axis=1)
    kept = np.arange(_DECIMAL_BYTES) >= spare[:, None]
    bitmap, nulls = validity_bitmap(valid_mask(values))
    buffers = [bitmap, pa.py_buffer(offsets_of(_DECIMAL_BYTES - spare)), pa.py_buffer(matrix[kept])]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers, nulls)


def typed_values(type_: PrimitiveType, raw: pa.Array) -> pa.Array | None:
    """Single-value bytes in the type of their column, null where they are not of it; none if it has no bounds."""
    bound = decode_values(type_, raw)
    return None if bound is None else to_logical(type_, fitting(type_, bound))


# --- the maps of manifest entries


def unpack_map(pairs: pa.Array) -> dict[int, pa.Array]:
    """A map per entry as a column for each key, null where a map does not have it; of a key twice the last counts."""
    items = pairs.flatten()
    keys = pc.struct_field(items, "key").to_numpy(zero_copy_only=False)
    values = pc.struct_field(items, "value")
    rows = pc.list_parent_indices(pairs).to_numpy()
    order = np.argsort(keys, kind="stable")
    found, starts = np.unique(keys[order], return_index=True)
    columns = {}
    for key, (start, end) in zip(found.tolist(), pairwise([*starts, len(order)]), strict=True):
        places = np.full(len(pairs), -1, dtype=np.int64)
        places[rows[order[start:end]]] = order[start:end]
        columns[key] = values.take(pa.array(places, mask=places < 0))
    return columns


def pack_map(name: str, columns: Mapping[int, pa.Array], is_empty: Mask) -> pa.Array:
    """The maps of columns by key, in the order of the keys; null where there is no value unless ``is_empty``."""
    type_ = ENTRY_TYPES[name]
    value_type = type_.value_type[1].type
    ids, length = np.array(sorted(columns), dtype=np.int32), len(is_empty)
    whole = [columns[int(key)].cast(value_type) for key in ids]
    there = np.stack([valid_mask(c) for c in whole], axis=1) if whole else np.zeros((length, 0), dtype=np.bool_)
    row, at = np.nonzero(there)
    counts = there.sum(axis=1)
    values = pa.concat_arrays(whole).take(pa.array(at * length + row)) if whole else pa.array([], value_type)
    items = pa.StructArray.from_arrays([pa.array(ids[at]), values], type=type_.value_type)
    return list_array(type_, counts, (counts > 0) | is_empty, items)


# --- aggregation


def aggregate(stats: pa.StructArray, records: Ints) -> pa.StructArray:
    """The statistics of a leaf from those of its files: one row of the same type.

    Counts are added up, bounds are the smallest and largest; a metric that one file lacks is null. So is one that
    evaluation would not trust for a file: counts if the value count is not the record count, bounds that are NaN or
    contradict each other. A file without ordinary values of a column needs no bounds of it. Bounds of UUIDs and fixed
    values are left out, because writers disagree on their order.
    """
    made = []
    for at, column in enumerate(stats.type):
        of_files = stats.field(at)
        metrics = {one.name: of_files.field(n) for n, one in enumerate(column.type)}
        counted = to_mask(pc.equal(metrics["value_count"], pa.array(records)))
        arrays = [
            _total(metrics[one.name], counted) if one.name.endswith("_count") else _end(one, metrics, counted)
            for one in column.type
        ]
        known = any(array.null_count == 0 for array in arrays)
        if known:
            loose = pa.array([False])
            arrays = [loose if one.name == "tight_bounds" else a for one, a in zip(column.type, arrays, strict=True)]
        made.append(pa.StructArray.from_arrays(arrays, fields=list(column.type), mask=pa.array([not known])))
    return pa.StructArray.from_arrays(made, fields=list(stats.type))


def _total(values: pa.Array, counted: Mask) -> pa.Array:
    """The sum of a count over all files, as an array of one row."""
    if values.null_count or not len(values) or not counted.all():
        return pa.nulls(1, values.type)
    return pa.repeat(pc.sum(values), 1).cast(values.type)


def _end(metric: pa.Field, metrics: Mapping[str, pa.Array], counted: Mask) -> pa.Array:
    """A bound over all files, as an array of one row; null where the column has none."""
    unknown, kind = pa.nulls(1, metric.type), metric.type
    if not metric.name.endswith("_bound") or isinstance(kind, pa.BaseExtensionType):
        return unknown
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_nested(kind):
        return unknown
    lower, upper, values = metrics["lower_bound"], metrics["upper_bound"], metrics[metric.name]
    nulls = metrics["null_value_count"]
    filled = pc.add(nulls, metrics["nan_value_count"]) if "nan_value_count" in metrics else nulls
    empty = counted & to_mask(pc.equal(filled, metrics["value_count"]))
    if (~empty & ~valid_mask(values)).any() or to_mask(pc.greater(lower, upper)).any():
        return unknown
    if pa.types.is_floating(kind) and any(to_mask(pc.is_nan(end)).any() for end in (lower, upper)):
        return unknown
    return pa.repeat(pc.min_max(values)["min" if metric.name == "lower_bound" else "max"], 1)

"""Physical vectors of entries as the Arrow types people and engines expect in a file, and back.

Rule: both directions are exact. Fail-safe: a value outside its type is an error, never a wrapped or cut one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    FloatType,
    IntegerType,
    NestedField,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)
from pyiceberg.utils.decimal import unscaled_to_decimal

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.manifests.assemble import partition_arrow_type
from floeplan.partition.transforms import integer_limits
from floeplan.predicate.stats import Bound
from floeplan.vectors import valid_mask, validity_bitmap


def parse_type(text: str) -> PrimitiveType:
    """The type of this name; unknown if no primitive type has it."""
    parsed = NestedField.model_validate({"id": 1, "name": "v", "type": text, "required": False}).field_type
    return parsed if isinstance(parsed, PrimitiveType) else UnknownType()


def logical_type(type_: PrimitiveType) -> pa.DataType:
    """The Arrow type of a column of this Iceberg type; null where the type is not known."""
    match type_:
        case BooleanType():
            return pa.bool_()
        case IntegerType():
            return pa.int32()
        case DateType():
            return pa.date32()
        case TimeType():
            return pa.time64("us")
        case TimestampType():
            return pa.timestamp("us")
        case TimestamptzType():
            return pa.timestamp("us", "UTC")
        case TimestampNanoType():
            return pa.timestamp("ns")
        case TimestamptzNanoType():
            return pa.timestamp("ns", "UTC")
        case FloatType():
            return pa.float32()
        case DecimalType():
            return pa.decimal128(type_.precision, type_.scale)
        case FixedType():
            return pa.binary(len(type_))
        case UUIDType():
            return pa.binary(16)
    return partition_arrow_type(type_)


def to_logical(type_: PrimitiveType, values: pa.Array) -> pa.Array:
    """A physical vector in its logical type."""
    wanted = logical_type(type_)
    try:
        match type_:
            case DecimalType() if pa.types.is_integer(values.type):
                return _scaled(values, wanted)
            case DateType():
                return values.cast(pa.int32()).cast(wanted)
            case FixedType() | UUIDType():
                return _fixed(values, wanted)
        return values if values.type == wanted else values.cast(wanted)
    except pa.ArrowInvalid as error:
        raise CorruptMetadataError(f"a value does not fit its type {type_}: {error}") from error


def fitting(type_: PrimitiveType, bound: Bound) -> pa.Array:
    """The values of a bound that its type can express, in the physical domain; the others are null."""
    values = bound.values if isinstance(bound.values, pa.Array) else pa.array(bound.values)
    fits = pa.array(bound.valid)
    limits = integer_limits(type_)
    if limits is not None:
        low, high = limits
        if pa.types.is_decimal(values.type) and isinstance(type_, DecimalType):
            low, high = (pa.scalar(unscaled_to_decimal(end, type_.scale), values.type) for end in limits)
        inside = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
        fits = pc.and_(fits, inside.fill_null(False))
    return pc.if_else(fits, values, pa.scalar(None, values.type))


def to_physical(type_: PrimitiveType, values: pa.Array) -> pa.Array:
    """The inverse of ``to_logical``."""
    wanted = partition_arrow_type(type_)
    match type_:
        case DecimalType() if pa.types.is_integer(wanted):
            return _unscaled(values)
        case DateType():
            return values.cast(pa.int32()).cast(wanted)
    return values if values.type == wanted else values.cast(wanted)


def _scaled(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Unscaled numbers as decimals: 64 bits and as many of their sign."""
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    halves = np.stack([numbers, numbers >> 63], axis=1)
    bitmap, nulls = validity_bitmap(valid_mask(values))
    wide = pa.Array.from_buffers(pa.decimal128(38, wanted.scale), len(values), [bitmap, pa.py_buffer(halves)], nulls)
    return wide.cast(wanted)


def _unscaled(values: pa.Array) -> pa.Array:
    halves = np.frombuffer(values.buffers()[1] or b"", dtype=np.int64)[: 2 * (values.offset + len(values))]
    numbers = np.ascontiguousarray(halves[2 * values.offset :: 2])
    bitmap, nulls = validity_bitmap(valid_mask(values))
    return pa.Array.from_buffers(pa.int64(), len(values), [bitmap, pa.py_buffer(numbers)], nulls)


def _fixed(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Bytes of one length; those of another length do not fit."""
    filled = values.cast(pa.large_binary()).fill_null(bytes(wanted.byte_width))
    offsets = np.frombuffer(filled.buffers()[1] or bytes(8), dtype=np.int64)[filled.offset :][: len(filled) + 1]
    if (np.diff(offsets) != wanted.byte_width).any():
        raise pa.ArrowInvalid(f"not {wanted.byte_width} bytes long")
    data = pa.py_buffer(filled.buffers()[2] or b"").slice(int(offsets[0]) if len(offsets) else 0)
    bitmap, nulls = validity_bitmap(valid_mask(values))
    return pa.Array.from_buffers(wanted, len(values), [bitmap, data], nulls)

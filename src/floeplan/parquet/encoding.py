"""A literal as the bytes a Parquet column stores for it: what bloom filters hash.

``None`` means that equality of rows is not equality of bytes: the value may be stored in more than one way (zeros and
NaN, decimals of variable length, nanoseconds read as microseconds), in none (a fraction of the stored unit), or the
column is not read as the literal's type. Nothing may be concluded then.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Literal

from pyiceberg.types import DecimalType, PrimitiveType

from floeplan.parquet.schema import Kind, LeafColumn, Physical
from floeplan.parquet.values import comparable, stored_tick, tick_of
from floeplan.predicate.literals import Value


def plain_encoding(leaf: LeafColumn, wanted: PrimitiveType, value: Value) -> bytes | None:
    """The one plain encoding of a canonical value of the wanted type in the leaf, or ``None``."""
    if not comparable(leaf, wanted):
        return None
    match leaf.physical:
        case Physical.INT32 | Physical.INT64:
            return _integer(leaf, wanted, value)
        case Physical.FLOAT | Physical.DOUBLE:
            return _float(value, "<f" if leaf.physical is Physical.FLOAT else "<d")
        case Physical.BYTE_ARRAY if leaf.annotation.kind is not Kind.DECIMAL:
            return _bytes(value)
        case Physical.FIXED_LEN_BYTE_ARRAY:
            return _fixed(leaf, value)
    return None


def _integer(leaf: LeafColumn, wanted: PrimitiveType, value: Value) -> bytes | None:
    if isinstance(value, Decimal) and isinstance(wanted, DecimalType):
        value = _unscaled(value, wanted.scale)
    if not isinstance(value, int):
        return None
    nanos = value * tick_of(wanted)
    if stored_tick(leaf) < tick_of(wanted) or nanos % stored_tick(leaf):
        return None
    width = 4 if leaf.physical is Physical.INT32 else 8
    return _to_bytes(nanos // stored_tick(leaf), width, "little", leaf.annotation.signed)


def _unscaled(value: Decimal, scale: int) -> int:
    """Exact at any number of digits, which arithmetic in the current decimal context is not."""
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    return -number if sign else number


def _to_bytes(value: int, width: int, order: Literal["little", "big"], signed: bool) -> bytes | None:
    try:
        return value.to_bytes(width, order, signed=signed)
    except OverflowError:
        return None


def _float(value: Value, format_: str) -> bytes | None:
    if not isinstance(value, float) or value == 0 or math.isnan(value):
        return None
    try:
        encoded = struct.pack(format_, value)
    except OverflowError:
        return None
    return encoded if struct.unpack(format_, encoded)[0] == value else None


def _bytes(value: Value) -> bytes | None:
    if isinstance(value, bytes):
        return value
    try:
        return value.encode("utf-8") if isinstance(value, str) else None
    except UnicodeEncodeError:
        return None


def _fixed(leaf: LeafColumn, value: Value) -> bytes | None:
    if isinstance(value, Decimal):
        return _to_bytes(_unscaled(value, leaf.annotation.scale), leaf.type_length, "big", signed=True)
    return value if isinstance(value, bytes) and len(value) == leaf.type_length else None

"""The hash that buckets are counted by, in Spark's own functions.

Iceberg and Spark both hash by Murmur3 of 32 bits, and differ in two things. Iceberg starts from 0, Spark from 42; but
Spark hashes a value starting from the hash of the one before it, and the hash of ``_FIRST`` is 0. Of text and bytes
Iceberg mixes what is left behind the last whole four bytes into the end of the hash, Spark does not; so Spark hashes
them filled up with zeros, and the end is undone and done again in arithmetic of 32 bits.

Every step is a projection of its own, so that no step is computed twice and Spark compiles them all into a few
operations a row: a Python function would cost as much as the shuffle itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyiceberg.types import (
    BinaryType,
    DateType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    UUIDType,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FIRST = -1693959553
_FOUR_BYTES, _ADDED, _TIMES = 4, 0xE6546B64, 5
"""How a block of bytes is mixed in last: rotate by 13 bits, multiply, add."""
_FINISH = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
"""Shifts and factors of the end, before another shift by 16."""


def with_hash(frame: DataFrame, column: str, source: IcebergType, name: str) -> DataFrame:
    """The rows with a column behind them: the hash of a column (SQL), null for null; without it where Spark has no way.

    Times are hashed in microseconds, which is all that Spark has of them; a UUID is 16 bytes when it is written.
    """
    match source:
        case IntegerType() | LongType():
            return _with(frame, name, _hash(column, f"CAST({column} AS BIGINT)"))
        case DateType():
            return _with(frame, name, _hash(column, f"CAST(unix_date({column}) AS BIGINT)"))
        case TimestampType() | TimestamptzType() | TimestampNanoType() | TimestamptzNanoType():
            return _with(frame, name, _hash(column, column))
        case StringType() | BinaryType() | FixedType() | UUIDType():
            return _with_hash_of_bytes(frame, column, name)
    return frame


def bucket_sql(hashed: str, buckets: int) -> str:
    """The bucket of a hash (SQL)."""
    return f"({hashed} & {2**31 - 1}) % {buckets}"


def _with_hash_of_bytes(frame: DataFrame, column: str, name: str) -> DataFrame:
    length = f"octet_length({column})"
    filling = f"substring(X'000000', 1, 3 - ({length} + 3) % {_FOUR_BYTES})"
    filled = f"{name}_filled"
    rows = _with(frame, filled, _hash(column, f"concat(CAST({column} AS BINARY), {filling})"))
    rows = _with(rows, name, f"CAST({filled} AS BIGINT)")
    for step in _unfilled(name, length):
        rows = _with(rows, name, step)
    return _with(rows, name, f"CAST(if({length} % {_FOUR_BYTES} = 0, {filled}, {name}) AS INT)").drop(filled)


def _unfilled(h: str, length: str) -> Iterator[str]:
    """From the hash of filled bytes to that of bytes: what comes after the last block is undone and done anew."""
    (shift, factor), (other_shift, other_factor) = _FINISH
    yield f"{h} ^ {_shifted(h, 16)}"
    yield _low(f"{h} * {_inverse(other_factor)}L")
    yield f"{h} ^ {_shifted(h, other_shift)} ^ {_shifted(h, 2 * other_shift)}"
    yield _low(f"{h} * {_inverse(factor)}L")
    yield f"{h} ^ {_shifted(h, shift)} ^ (({length} + 3) div {_FOUR_BYTES} * {_FOUR_BYTES})"
    yield _low(f"({h} - ({_signed(_ADDED)}L)) * {_inverse(_TIMES)}L")
    yield f"{_low(f'shiftleft({h}, 19) | {_shifted(h, 13)}')} ^ {length}"
    for by, times in _FINISH:
        yield f"{h} ^ {_shifted(h, by)}"
        yield _low(f"{h} * {_signed(times)}L")
    yield f"{h} ^ {_shifted(h, 16)}"


def _hash(column: str, value: str) -> str:
    return f"CASE WHEN {column} IS NOT NULL THEN hash({_FIRST}, {value}) END"


def _with(frame: DataFrame, name: str, value: str) -> DataFrame:
    from pyspark.sql import functions

    return frame.withColumn(name, functions.expr(value))


def _low(value: str) -> str:
    """The number that the lowest 32 bits are."""
    return f"shiftright(shiftleft({value}, 32), 32)"


def _shifted(h: str, by: int) -> str:
    """The lowest 32 bits, shifted down."""
    return f"shiftrightunsigned({h} & {2**32 - 1}L, {by})"


def _signed(bits: int) -> int:
    return bits - 2**32 if bits >= 2**31 else bits


def _inverse(factor: int) -> int:
    """The factor that undoes another; of two signed factors of 32 bits the product never leaves 64 bits."""
    return _signed(pow(factor, -1, 2**32))

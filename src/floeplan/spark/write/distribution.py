"""Distribute the rows of a DataFrame over tasks by the table property ``write.distribution-mode``.

``none`` leaves rows where they are, ``hash`` (the default of partitioned tables) puts the rows of a partition into one
task, ``range`` (the default of sorted tables) puts ranges of the sort order into tasks. Distribution determines the
number of files, never their rows: each task partitions its rows itself.

The distribution keys are computed for every row, so timestamps are compared as integers where possible: calendar
functions in the session's time zone would cost as much as reading the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
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

from floeplan.errors import InvalidOptionError
from floeplan.partition.transforms import Transform
from floeplan.spark.types import quoted, unused_name
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_HOUR, _DAY = 3_600_000_000, 86_400_000_000
"""In microseconds."""


class Distribution(StrEnum):
    """How rows are distributed over tasks before they are written."""

    NONE = "none"
    HASH = "hash"
    RANGE = "range"


def distributed(frame: DataFrame, target: WriteTarget) -> DataFrame:
    """The same rows, distributed over tasks by the table's distribution mode."""
    mode = _mode(target)
    if mode is Distribution.NONE:
        return frame
    rows, hashes = _with_hashes(frame, target)
    keys = _Keys(rows.columns, target, hashes)
    order, partition = keys.of_order(), keys.of_partition()
    match mode:
        case Distribution.HASH if partition:
            return rows.repartition(*partition).drop(*hashes.values())
        case Distribution.RANGE if order or partition:
            return rows.repartitionByRange(*(order or partition)).drop(*hashes.values())
    return frame


def _mode(target: WriteTarget) -> Distribution:
    name = "write.distribution-mode"
    text = target.properties.get(name)
    if text is not None:
        try:
            return Distribution(text.lower())
        except ValueError:
            raise InvalidOptionError(
                f"table property {name} is set to {text!r}, but must be none, hash or range", context={"property": name}
            ) from None
    if target.sort_order.fields:
        return Distribution.RANGE
    return Distribution.NONE if target.spec.unpartitioned else Distribution.HASH


def _with_hashes(frame: DataFrame, target: WriteTarget) -> tuple[DataFrame, dict[int, str]]:
    """Append the bucket hash of each bucketed column; returns the names of the hashes by field id.

    Columns that Spark cannot hash are left out.
    """
    by_id = [(field.source_id, field.transform) for field in target.spec.fields]
    by_id += [(field.source_id, field.transform) for field in target.sort_order.fields]
    keys = _Keys(frame.columns, target, {})
    prefix, rows, hashes = unused_name(frame.columns, "_hash"), frame, {}
    for source_id in sorted({source_id for source_id, of in by_id if isinstance(of, BucketTransform)}):
        column, name = keys.column(source_id), f"{prefix}_{source_id}"
        if column is not None:
            rows = with_hash(rows, column, target.schema.find_type(source_id), name)
            if name in rows.columns:
                hashes[source_id] = name
    return rows, hashes


@dataclass(frozen=True, slots=True)
class _Keys:
    """Distribution keys of rows with these columns; ``hashes`` are the names of bucket hashes by field id."""

    columns: Sequence[str]
    target: WriteTarget
    hashes: Mapping[int, str]

    def of_partition(self) -> list[Column]:
        """Expressions that are equal for rows of one partition; buckets that lack a hash are used only alone."""
        fields = [field for field in self.target.spec.fields if not field.is_void]
        known = [f for f in fields if f.source_id in self.hashes or not isinstance(f.transform, BucketTransform)]
        found = [self._expression(field.source_id, field.transform) for field in known or fields]
        return [column for column in found if column is not None]

    def of_order(self) -> list[Column]:
        """Expressions of the table's sort order."""
        fields = self.target.sort_order.fields
        found = [(field, self._expression(field.source_id, field.transform)) for field in fields]
        return [_ordered(column, field) for field, column in found if column is not None]

    def column(self, source_id: int) -> str | None:
        """A column as SQL; ``None`` when the rows do not have it."""
        name = self.target.schema.find_column_name(source_id)
        return None if name is None or name.split(".")[0] not in self.columns else quoted(*name.split("."))

    def _expression(self, source_id: int, transform: Transform) -> Column | None:
        """The transform of a column as a Spark expression; ``None`` when the rows do not have the column."""
        from pyspark.sql import functions

        column = self.column(source_id)
        if column is None or isinstance(transform, VoidTransform):
            return None
        if isinstance(transform, BucketTransform) and source_id in self.hashes:
            return functions.expr(bucket_sql(self.hashes[source_id], transform.num_buckets))
        return functions.expr(transform_sql(column, self.target.schema.find_type(source_id), transform))


def _ordered(column: Column, field: SortField) -> Column:
    first = field.null_order is NullOrder.NULLS_FIRST
    if field.direction is SortDirection.ASC:
        return column.asc_nulls_first() if first else column.asc_nulls_last()
    return column.desc_nulls_first() if first else column.desc_nulls_last()


def transform_sql(column: str, source: IcebergType, transform: Transform) -> str:
    """An expression that orders as the transform does; finer than the transform where Spark has no equivalent."""
    match transform, source:
        case TruncateTransform(width=width), StringType() | BinaryType():
            return f"substring({column}, 1, {width})"
        case TruncateTransform(width=width), IntegerType() | LongType():
            return _floored(column, width)
        case HourTransform(), TimestamptzType() | TimestamptzNanoType():
            return _floored(_microseconds(column), _HOUR)
        case HourTransform(), _:
            return f"CAST(unix_date(CAST({column} AS DATE)) AS BIGINT) * 24 + hour({column})"
        case DayTransform(), _:
            return _date(column, source)
        case MonthTransform(), _:
            return f"trunc({_date(column, source)}, 'MM')"
        case YearTransform(), _:
            return f"year({_date(column, source)})"
    return column


def _date(column: str, source: IcebergType) -> str:
    """The date in UTC, independent of the session's time zone."""
    if isinstance(source, TimestamptzType | TimestamptzNanoType):
        return f"date_from_unix_date(CAST({_floored(_microseconds(column), _DAY)} AS INT))"
    return column if isinstance(source, DateType) else f"CAST({column} AS DATE)"


def _microseconds(column: str) -> str:
    return f"unix_micros(CAST({column} AS TIMESTAMP))"


def _floored(value: str, width: int) -> str:
    """Floor division. Spark's ``div`` truncates toward zero, which is wrong for negative numbers (before 1970)."""
    return f"(({value}) div {width}L - CAST(({value}) % {width}L < 0 AS BIGINT))"


# Iceberg's bucket hash in Spark SQL functions. Both use 32-bit Murmur3, with two differences:
#
# - Iceberg's seed is 0, Spark's is 42. Spark's hash() of several values uses the hash of each as the seed of the next,
#   and the hash of _SEED_ZERO is 0.
# - For strings and binaries Iceberg mixes the 1 to 3 bytes after the last block of 4 as the reference implementation
#   does; Spark does not. So Spark hashes the bytes padded with zeros, and the last block and the finalizer are
#   inverted and applied again in 32-bit arithmetic.
#
# Each step is a projection, so that no step is computed twice and Spark compiles all of them into a few instructions
# per row; a Python function would cost as much as the shuffle.

_SEED_ZERO = -1693959553
_BLOCK, _BLOCK_ADDEND, _BLOCK_FACTOR = 4, 0xE6546B64, 5
"""How Murmur3 ends a block of bytes: rotate by 13 bits, multiply, add."""
_FINALIZER = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
"""Shifts and factors of Murmur3's finalizer, before a last shift by 16."""


def with_hash(frame: DataFrame, column: str, source: IcebergType, name: str) -> DataFrame:
    """Append Iceberg's bucket hash of a column (SQL), null for null; nothing for a type that Spark cannot hash.

    Nanosecond timestamps are hashed in microseconds, Spark's precision; a UUID is hashed as its 16 bytes.
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
    """The bucket of a hash, as SQL."""
    return f"({hashed} & {2**31 - 1}) % {buckets}"


def _with_hash_of_bytes(frame: DataFrame, column: str, name: str) -> DataFrame:
    length = f"octet_length({column})"
    padding = f"substring(X'000000', 1, 3 - ({length} + 3) % {_BLOCK})"
    padded = f"{name}_padded"
    rows = _with(frame, padded, _hash(column, f"concat(CAST({column} AS BINARY), {padding})"))
    rows = _with(rows, name, f"CAST({padded} AS BIGINT)")
    for step in _unpadded(name, length):
        rows = _with(rows, name, step)
    return _with(rows, name, f"CAST(if({length} % {_BLOCK} = 0, {padded}, {name}) AS INT)").drop(padded)


def _unpadded(h: str, length: str) -> Iterator[str]:
    """The steps from the hash of padded bytes to that of the bytes: invert the end of the hash, and apply it again."""
    (shift, factor), (other_shift, other_factor) = _FINALIZER
    yield f"{h} ^ {_shifted(h, 16)}"
    yield _low(f"{h} * {_inverse(other_factor)}L")
    yield f"{h} ^ {_shifted(h, other_shift)} ^ {_shifted(h, 2 * other_shift)}"
    yield _low(f"{h} * {_inverse(factor)}L")
    yield f"{h} ^ {_shifted(h, shift)} ^ (({length} + 3) div {_BLOCK} * {_BLOCK})"
    yield _low(f"({h} - ({_signed(_BLOCK_ADDEND)}L)) * {_inverse(_BLOCK_FACTOR)}L")
    yield f"{_low(f'shiftleft({h}, 19) | {_shifted(h, 13)}')} ^ {length}"
    for by, times in _FINALIZER:
        yield f"{h} ^ {_shifted(h, by)}"
        yield _low(f"{h} * {_signed(times)}L")
    yield f"{h} ^ {_shifted(h, 16)}"


def _hash(column: str, value: str) -> str:
    return f"CASE WHEN {column} IS NOT NULL THEN hash({_SEED_ZERO}, {value}) END"


def _with(frame: DataFrame, name: str, value: str) -> DataFrame:
    from pyspark.sql import functions

    return frame.withColumn(name, functions.expr(value))


def _low(value: str) -> str:
    """The lowest 32 bits as a signed number."""
    return f"shiftright(shiftleft({value}, 32), 32)"


def _shifted(h: str, by: int) -> str:
    """The lowest 32 bits, shifted right without sign."""
    return f"shiftrightunsigned({h} & {2**32 - 1}L, {by})"


def _signed(bits: int) -> int:
    return bits - 2**32 if bits >= 2**31 else bits


def _inverse(factor: int) -> int:
    """The inverse of a factor modulo 2**32; the product of two signed 32-bit factors fits 64 bits."""
    return _signed(pow(factor, -1, 2**32))

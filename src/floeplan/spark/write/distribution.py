"""Rows of a DataFrame spread over tasks as the table wants (``write.distribution-mode``).

Not at all, so that rows of a partition lie together (hash, the default of partitioned tables), or in ranges of the sort
order (range, the default of sorted tables). Distribution decides how many files there are, never which rows: each task
partitions its rows itself.

What rows are spread by is computed for each of them, so times are counted in whole numbers as far as that goes: a
calendar in the session's time zone would cost as much as reading the rows.
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
from floeplan.spark.filters import quoted, unlike
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# The hash that buckets are counted by, in Spark's own functions.
#
# Iceberg and Spark both hash by Murmur3 of 32 bits, and differ in two things. Iceberg starts from 0, Spark from 42; but
# Spark hashes a value starting from the hash of the one before it, and the hash of ``_FIRST`` is 0. Of text and bytes
# Iceberg mixes what is left behind the last whole four bytes into the end of the hash, Spark does not; so Spark hashes
# them filled up with zeros, and the end is undone and done again in arithmetic of 32 bits.
#
# Every step is a projection of its own, so that no step is computed twice and Spark compiles them all into a few
# operations a row: a Python function would cost as much as the shuffle itself.


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


# ---

_HOUR, _DAY = 3_600_000_000, 86_400_000_000
"""In microseconds."""


class Distribution(StrEnum):
    """How rows are spread over tasks before they are written."""

    NONE = "none"
    HASH = "hash"
    RANGE = "range"


def distributed(frame: DataFrame, target: WriteTarget) -> DataFrame:
    """The same rows, spread over tasks as the table wants."""
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
    """The rows with the hashes behind them that buckets are counted by, and their names by the column that is hashed.

    What Spark cannot hash is left out.
    """
    by_id = [(field.source_id, field.transform) for field in target.spec.fields]
    by_id += [(field.source_id, field.transform) for field in target.sort_order.fields]
    keys = _Keys(frame.columns, target, {})
    prefix, rows, hashes = unlike(frame.columns, "_hash"), frame, {}
    for source_id in sorted({source_id for source_id, of in by_id if isinstance(of, BucketTransform)}):
        column, name = keys.column(source_id), f"{prefix}_{source_id}"
        if column is not None:
            rows = with_hash(rows, column, target.schema.find_type(source_id), name)
            if name in rows.columns:
                hashes[source_id] = name
    return rows, hashes


@dataclass(frozen=True, slots=True)
class _Keys:
    """What rows are spread by: the columns they have, the table, and the names of hashes by the column hashed."""

    columns: Sequence[str]
    target: WriteTarget
    hashes: Mapping[int, str]

    def of_partition(self) -> list[Column]:
        """Expressions that are equal for rows of one partition; a bucket without its hash is left out unless alone."""
        fields = [field for field in self.target.spec.fields if not field.is_void]
        known = [f for f in fields if f.source_id in self.hashes or not isinstance(f.transform, BucketTransform)]
        found = [self._expression(field.source_id, field.transform) for field in known or fields]
        return [column for column in found if column is not None]

    def of_order(self) -> list[Column]:
        """Expressions in the sort order of the table."""
        fields = self.target.sort_order.fields
        found = [(field, self._expression(field.source_id, field.transform)) for field in fields]
        return [_ordered(column, field) for field, column in found if column is not None]

    def column(self, source_id: int) -> str | None:
        """A column in SQL, when the rows have it."""
        name = self.target.schema.find_column_name(source_id)
        return None if name is None or name.split(".")[0] not in self.columns else quoted(*name.split("."))

    def _expression(self, source_id: int, transform: Transform) -> Column | None:
        """The transform of a column in Spark's own functions; ``None`` when the rows do not have the column."""
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
    """An expression in the order of the transform, as fine as it or finer where Spark has nothing equal."""
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
    """The date in UTC, whatever the session's time zone."""
    if isinstance(source, TimestamptzType | TimestamptzNanoType):
        return f"date_from_unix_date(CAST({_floored(_microseconds(column), _DAY)} AS INT))"
    return column if isinstance(source, DateType) else f"CAST({column} AS DATE)"


def _microseconds(column: str) -> str:
    return f"unix_micros(CAST({column} AS TIMESTAMP))"


def _floored(value: str, width: int) -> str:
    """How many whole widths are below a number; Spark itself rounds those of negative numbers up."""
    return f"(({value}) div {width}L - CAST(({value}) % {width}L < 0 AS BIGINT))"

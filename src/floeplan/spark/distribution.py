"""Distribute the rows of a DataFrame over tasks by the table property ``write.distribution-mode``.

``none`` leaves rows where they are, ``hash`` (the default of partitioned tables) puts the rows of a partition into one
task, ``range`` (the default of sorted tables) puts ranges of the sort order into tasks. Distribution determines the
number of files, never their rows: each task partitions its rows itself.

The distribution keys are computed for every row, so timestamps are compared as integers where possible: calendar
functions in the session's time zone would cost as much as reading the rows.
"""

from __future__ import annotations

from pyiceberg import transforms
from pyiceberg import types as iceberg
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import BucketTransform, VoidTransform
from pyspark.sql import Column, DataFrame, functions

from floeplan.errors import InvalidOptionError
from floeplan.partition.transforms import Transform
from floeplan.spark.types import quoted, unused_name
from floeplan.write.target import WriteTarget

_HOUR, _DAY = 3_600_000_000, 86_400_000_000
"""In microseconds."""


def distributed(frame: DataFrame, target: WriteTarget) -> DataFrame:
    """The same rows, distributed over tasks by the table's distribution mode."""
    fields, order = [f for f in target.spec.fields if not f.is_void], target.sort_order.fields
    name = "write.distribution-mode"
    mode = target.properties.get(name, "range" if order else "none" if target.spec.unpartitioned else "hash")
    if mode.lower() not in ("none", "hash", "range"):
        raise InvalidOptionError(
            f"table property {name} is set to {mode!r}, but must be none, hash or range", context={"property": name}
        )
    if mode.lower() == "none":
        return frame

    def column_of(source_id: int) -> str | None:
        """A column as SQL; ``None`` when the rows do not have it."""
        path = (target.schema.find_column_name(source_id) or "").split(".")
        return quoted(*path) if path[0] in frame.columns else None

    # Append the bucket hash of each bucketed column that Spark can hash.
    sources = [(f.source_id, f.transform) for f in fields] + [(f.source_id, f.transform) for f in order]
    bucketed = {source_id for source_id, transform in sources if isinstance(transform, BucketTransform)}
    prefix, rows = unused_name(frame.columns, "_hash"), frame
    hashes: dict[int, str] = {}
    for source_id in sorted(bucketed):
        column, hashed = column_of(source_id), f"{prefix}_{source_id}"
        if column is not None:
            rows = with_hash(rows, column, target.schema.find_type(source_id), hashed)
            if hashed in rows.columns:
                hashes[source_id] = hashed

    def key_of(source_id: int, transform: Transform) -> Column | None:
        """The transform of a column as a Spark expression; ``None`` when the rows do not have the column."""
        column = column_of(source_id)
        if column is None or isinstance(transform, VoidTransform):
            return None
        if isinstance(transform, BucketTransform) and source_id in hashes:
            return functions.expr(bucket_sql(hashes[source_id], transform.num_buckets))
        return functions.expr(transform_sql(column, target.schema.find_type(source_id), transform))

    # Range distribution follows the sort order.
    keys = []
    for field in order if mode.lower() == "range" else ():
        if (key := key_of(field.source_id, field.transform)) is not None:
            direction = "asc" if field.direction is SortDirection.ASC else "desc"
            nulls = "first" if field.null_order is NullOrder.NULLS_FIRST else "last"
            keys.append(getattr(key, f"{direction}_nulls_{nulls}")())
    # Otherwise rows of one partition have equal keys; buckets that lack a hash are used only alone.
    if not keys:
        known = [f for f in fields if f.source_id in hashes or not isinstance(f.transform, BucketTransform)]
        found = [key_of(field.source_id, field.transform) for field in known or fields]
        keys = [key for key in found if key is not None]
    if not keys:
        return frame
    spread = rows.repartition(*keys) if mode.lower() == "hash" else rows.repartitionByRange(*keys)
    return spread.drop(*hashes.values())


def transform_sql(column: str, source: iceberg.IcebergType, transform: Transform) -> str:
    """An expression that orders as the transform does; finer than the transform where Spark has no equivalent."""
    match transform, source:
        case transforms.TruncateTransform(width=width), iceberg.StringType() | iceberg.BinaryType():
            return f"substring({column}, 1, {width})"
        case transforms.TruncateTransform(width=width), iceberg.IntegerType() | iceberg.LongType():
            return _floored(column, width)
        case transforms.HourTransform(), iceberg.TimestamptzType() | iceberg.TimestamptzNanoType():
            return _floored(_microseconds(column), _HOUR)
        case transforms.HourTransform(), _:
            return f"CAST(unix_date(CAST({column} AS DATE)) AS BIGINT) * 24 + hour({column})"
        case transforms.DayTransform(), _:
            return _date(column, source)
        case transforms.MonthTransform(), _:
            return f"trunc({_date(column, source)}, 'MM')"
        case transforms.YearTransform(), _:
            return f"year({_date(column, source)})"
    return column


def _date(column: str, source: iceberg.IcebergType) -> str:
    """The date in UTC, independent of the session's time zone."""
    if isinstance(source, iceberg.TimestamptzType | iceberg.TimestamptzNanoType):
        return f"date_from_unix_date(CAST({_floored(_microseconds(column), _DAY)} AS INT))"
    return column if isinstance(source, iceberg.DateType) else f"CAST({column} AS DATE)"


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


def with_hash(frame: DataFrame, column: str, source: iceberg.IcebergType, name: str) -> DataFrame:
    """Append Iceberg's bucket hash of a column (SQL), null for null; nothing for a type that Spark cannot hash.

    Nanosecond timestamps are hashed in microseconds, Spark's precision; a UUID is hashed as its 16 bytes.
    """
    match source:
        case iceberg.IntegerType() | iceberg.LongType():
            value = f"CAST({column} AS BIGINT)"
        case iceberg.DateType():
            value = f"CAST(unix_date({column}) AS BIGINT)"
        case iceberg.TimestampType() | iceberg.TimestamptzType():
            value = column
        case iceberg.TimestampNanoType() | iceberg.TimestamptzNanoType():
            value = column
        case iceberg.StringType() | iceberg.BinaryType() | iceberg.FixedType() | iceberg.UUIDType():
            return _with_hash_of_bytes(frame, column, name)
        case _:
            return frame
    return frame.withColumn(name, _hash(column, value))


def bucket_sql(hashed: str, buckets: int) -> str:
    """The bucket of a hash, as SQL."""
    return f"({hashed} & {2**31 - 1}) % {buckets}"


def _with_hash_of_bytes(frame: DataFrame, column: str, name: str) -> DataFrame:
    length, padded = f"octet_length({column})", f"{name}_padded"
    padding = f"substring(X'000000', 1, 3 - ({length} + 3) % {_BLOCK})"
    (shift, factor), (other_shift, other_factor) = _FINALIZER
    steps = [
        f"CAST({padded} AS BIGINT)",
        # Invert the finalizer and the last block of the hash of the padded bytes.
        f"{name} ^ {_shifted(name, 16)}",
        _low(f"{name} * {_inverse(other_factor)}L"),
        f"{name} ^ {_shifted(name, other_shift)} ^ {_shifted(name, 2 * other_shift)}",
        _low(f"{name} * {_inverse(factor)}L"),
        f"{name} ^ {_shifted(name, shift)} ^ (({length} + 3) div {_BLOCK} * {_BLOCK})",
        _low(f"({name} - ({_signed(_BLOCK_ADDEND)}L)) * {_inverse(_BLOCK_FACTOR)}L"),
        f"{_low(f'shiftleft({name}, 19) | {_shifted(name, 13)}')} ^ {length}",
    ]
    for by, times in _FINALIZER:  # and apply the finalizer again
        steps += [f"{name} ^ {_shifted(name, by)}", _low(f"{name} * {_signed(times)}L")]
    steps.append(f"{name} ^ {_shifted(name, 16)}")
    steps.append(f"CAST(if({length} % {_BLOCK} = 0, {padded}, {name}) AS INT)")
    rows = frame.withColumn(padded, _hash(column, f"concat(CAST({column} AS BINARY), {padding})"))
    for step in steps:
        rows = rows.withColumn(name, functions.expr(step))
    return rows.drop(padded)


def _hash(column: str, value: str) -> Column:
    return functions.expr(f"CASE WHEN {column} IS NOT NULL THEN hash({_SEED_ZERO}, {value}) END")


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

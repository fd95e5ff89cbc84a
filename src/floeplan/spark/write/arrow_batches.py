"""The size of the Arrow batches that carry rows to Python tasks: a number of rows, where no row is wide.

Spark ends a batch at a number of bytes, and computes the size of the whole batch after every row, which is a quarter of
the cost of appending a DataFrame. Here batches end after ``BATCH_ROWS`` rows instead. That bounds their size as long as
no row has more than ``MAX_ROW_BYTES`` bytes of strings and binaries. A wider row is sent as nulls with a flag; the task
that receives it raises ``WideRowError``, and all rows are sent again in batches of Spark's size. (A joined merge keeps
Spark's batches: the computation is 4 % of its cost, and repeating the join for one wide row would cost more.)

The batch size is a setting of the session, so the query runs in a copy of its session: other queries keep their
batches, and settings that change in the meantime are not lost.

Fail-safe: rows of unknown width (lists, maps and types not listed in ``FIXED_WIDTH``), sessions with a batch size of
their own, and Spark Connect, whose sessions cannot be copied, keep Spark's batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from floeplan.errors import FloeplanError
from floeplan.spark.jvm import with_settings
from floeplan.spark.types import quoted, unused_name
from floeplan.spark.write.small_frames import FIXED_WIDTH
from floeplan.tasks.shipping import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

BATCH_ROWS = 4096
MAX_ROW_BYTES = 32 * 1024
"""Bytes of strings and binaries in a row. The largest batch has 128 MiB, less than a writer of data files buffers."""

_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


class WideRowError(FloeplanError):
    """A row is too wide for batches of a fixed number of rows."""

    default_kind = "wide-row"
    default_retryable = True


def has_default_batch_size(spark: SparkSession) -> bool:
    """Whether the session sets no batch size of its own and can be copied."""
    return not is_connect(spark) and spark.conf.getAll.keys().isdisjoint(_SETTINGS)


def with_row_batches(frame: DataFrame) -> DataFrame:
    """The same query with batches of ``BATCH_ROWS`` rows; with Spark's batches if the session cannot be copied."""
    return with_settings(frame, _SETTINGS)


def flag_wide_rows(frame: DataFrame) -> DataFrame | None:
    """The rows with a last column that is true for wide ones; ``None`` when the width of rows is unknown."""
    unbounded = {field.name: _unbounded_values(quoted(field.name), field.dataType) for field in frame.schema.fields}
    lengths = []
    for values in unbounded.values():
        if values is None:
            return None
        lengths += [f"coalesce(CAST(octet_length({value}) AS BIGINT), 0)" for value in values]
    wide = f"{' + '.join(lengths)} > {MAX_ROW_BYTES}" if lengths else "false"
    columns = [
        f"if({wide}, NULL, {quoted(name)}) AS {quoted(name)}" if values else quoted(name)
        for name, values in unbounded.items()
    ]
    return frame.selectExpr(*columns, f"{wide} AS {quoted(unused_name(frame.columns, 'wide'))}")


def without_flag(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of a task without the last column of ``flag_wide_rows``.

    Raises:
        WideRowError: A row is wide.
    """
    for batch in batches:
        flag = batch.num_columns - 1
        if batch.column(flag).true_count:
            raise WideRowError(
                f"a row has more than {MAX_ROW_BYTES} bytes of strings", context={"bytes": MAX_ROW_BYTES}
            )
        yield batch.select(list(range(flag)))


def _unbounded_values(name: str, type_: DataType) -> list[str] | None:
    """The strings and binaries in a column, as SQL; ``None`` when it has other values of variable width."""
    from pyspark.sql.types import BinaryType, NullType, StringType, StructType

    match type_:
        case StringType() | BinaryType():
            return [name]
        case StructType(fields=fields):
            inner = [_unbounded_values(f"{name}.{quoted(field.name)}", field.dataType) for field in fields]
            return None if None in inner else [value for values in inner for value in values or ()]
    return [] if isinstance(type_, NullType) or type_.typeName() in FIXED_WIDTH else None

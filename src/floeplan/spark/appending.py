"""Writing the rows of a DataFrame as files of a table, inside the tasks that compute them.

Before that the rows are distributed as the table wants (``write.distribution-mode``): not at all, so that rows of a
partition lie together (hash, the default of partitioned tables), or in ranges of the sort order (range, the default of
sorted tables). Distribution decides how many files there are, never which rows: each task partitions its rows itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import BinaryType, DecimalType, StringType

from floeplan.dml import runner
from floeplan.dml.outcome import discard_entries
from floeplan.dml.runner import RESULT_SCHEMA, answer_batch, new_attempt, unpickled
from floeplan.errors import InvalidOptionError
from floeplan.metadata.entries import EntriesTable
from floeplan.partition.transforms import Transform
from floeplan.spark.shipping import ensure_package
from floeplan.spark.small_frames import collected
from floeplan.write.conform import conform
from floeplan.write.data_files import write_data_files
from floeplan.write.gather import at_once
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LARGE_BATCH_ROWS = 65_536
_BATCH_ROWS, _SPARKS_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch", "10000"
_TIMES = {YearTransform: "year", MonthTransform: "month", DayTransform: "day", HourTransform: "hour"}


class Distribution(StrEnum):
    """How rows are spread over tasks before they are written."""

    NONE = "none"
    HASH = "hash"
    RANGE = "range"


def write_frame(frame: DataFrame, target: WriteTarget) -> list[EntriesTable]:
    """Write the rows of a DataFrame; the entries of the files of each task.

    A DataFrame that surely is small is written by this process, with all rows of a partition in one file.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    conform(to_arrow_schema(frame.schema).empty_table(), target.stored_schema)
    small = collected(frame, runner.HERE_BYTES // 2)
    if small is not None:
        written = write_data_files(target, at_once(small.to_batches()), file_name_token=new_attempt(), sort=True)
        return [written] if len(written) else []
    ensure_package(frame.sparkSession)
    with large_batches(frame.sparkSession):
        answers = distributed(frame, target).mapInArrow(_writer(target), RESULT_SCHEMA).toArrow()
    found = unpickled(answers, partial(discard_entries, files=target.files))
    return [entries for entries in found if len(entries)]


@contextmanager
def large_batches(spark: SparkSession) -> Iterator[None]:
    """Rows come to tasks in batches of this size, within Spark's limit of bytes; a tenth of an append's CPU less.

    A session that was told of another size keeps it.
    """
    own = spark.conf.get(_BATCH_ROWS)
    if own != _SPARKS_BATCH_ROWS:
        yield
        return
    spark.conf.set(_BATCH_ROWS, str(LARGE_BATCH_ROWS))
    try:
        yield
    finally:
        spark.conf.set(_BATCH_ROWS, own)


def distributed(frame: DataFrame, target: WriteTarget) -> DataFrame:
    """The same rows, spread over tasks as the table wants."""
    order, keys = _sort_columns(frame, target), _partition_columns(frame, target)
    match _mode(target):
        case Distribution.HASH if keys:
            return frame.repartition(*keys)
        case Distribution.RANGE if order or keys:
            return frame.repartitionByRange(*(order or keys))
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


def _partition_columns(frame: DataFrame, target: WriteTarget) -> list[Column]:
    """Expressions that are equal for rows of equal partition; bucket fields add nothing unless they are alone."""
    fields = [field for field in target.spec.fields if not field.is_void]
    known = [field for field in fields if not isinstance(field.transform, BucketTransform)]
    found = [_expression(frame, target.schema, field.source_id, field.transform) for field in known or fields]
    return [column for column in found if column is not None]


def _sort_columns(frame: DataFrame, target: WriteTarget) -> list[Column]:
    found = [(field, _expression(frame, target.schema, field.source_id, field.transform)) for field in _sorted(target)]
    return [_ordered(column, field) for field, column in found if column is not None]


def _sorted(target: WriteTarget) -> tuple[SortField, ...]:
    return tuple(target.sort_order.fields)


def _ordered(column: Column, field: SortField) -> Column:
    first = field.null_order is NullOrder.NULLS_FIRST
    if field.direction is SortDirection.ASC:
        return column.asc_nulls_first() if first else column.asc_nulls_last()
    return column.desc_nulls_first() if first else column.desc_nulls_last()


def _expression(frame: DataFrame, schema: Schema, source_id: int, transform: Transform) -> Column | None:
    """The transform of a column in Spark's own functions; ``None`` when the rows do not have the column."""
    from pyspark.sql import functions

    name = schema.find_column_name(source_id)
    if name is None or name.split(".")[0] not in frame.columns:
        return None
    column, source = functions.col(".".join(f"`{part}`" for part in name.split("."))), schema.find_type(source_id)
    match transform:
        case IdentityTransform() | BucketTransform():
            return column
        case VoidTransform():
            return None
        case TruncateTransform(width=width) if isinstance(source, StringType | BinaryType):
            return functions.substring(column, 1, width)
        case TruncateTransform(width=width) if not isinstance(source, DecimalType):
            return functions.floor(column / width)
    unit = _TIMES.get(type(transform))
    return column if unit is None else functions.date_trunc(unit, column)


def _writer(target: WriteTarget) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = at_once(batches)
        yield answer_batch(0, lambda: write_data_files(target, rows, file_name_token=new_attempt(), sort=True))

    return run

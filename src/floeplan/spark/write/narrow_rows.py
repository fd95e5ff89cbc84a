"""Rows on their way to Python tasks in batches of so many rows, where no row is wide.

Spark ends a batch at a number of bytes, and counts the bytes of the whole batch after every row: a quarter of what
appending a DataFrame costs. Rule: batches end at a number of rows instead, which bounds them as long as no row has
more than ``WIDEST`` bytes of text; a wider row comes without its texts and with a mark, and the task that meets the
mark gives up, so that all rows can be sent again in Spark's way. (Of a joined merge the counting is 4 %; to join again
for the sake of a wide row would cost more than that is worth.)

How batches end is a setting of a session, so the query runs in a copy of its session: nothing else that goes on in the
session has batches that are bounded by rows alone, and nothing that is set there meanwhile is lost.

Fail-safe: rows whose width cannot be told (lists, maps and whatever else is not known to be of one width), sessions
that were told how large batches are, and those that cannot be copied (Spark Connect's) keep Spark's way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floeplan.errors import FloeplanError
from floeplan.spark.filters import quoted, unlike
from floeplan.spark.write.small_frames import ONE_WIDTH
from floeplan.tasks.shipping import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

BATCH_ROWS = 4096
WIDEST = 32 * 1024
"""Bytes of text in a row: the widest batch has 128 MiB, which is less than a writer of files holds."""

_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


class WideRowError(FloeplanError):
    """A row is too wide for batches that are bounded by rows."""

    default_kind = "wide-row"
    default_retryable = True


def marked(frame: DataFrame) -> DataFrame | None:
    """The rows with a mark behind them, true for those that are wide; ``None`` when that cannot be told."""
    texts = {field.name: _texts(quoted(field.name), field.dataType) for field in frame.schema.fields}
    lengths = []
    for inner in texts.values():
        if inner is None:
            return None
        lengths += [f"coalesce(CAST(octet_length({text}) AS BIGINT), 0)" for text in inner]
    wide = f"{' + '.join(lengths)} > {WIDEST}" if lengths else "false"
    columns = [
        f"if({wide}, NULL, {quoted(name)}) AS {quoted(name)}" if inner else quoted(name)
        for name, inner in texts.items()
    ]
    mark = quoted(unlike(frame.columns, "wide"))
    return frame.selectExpr(*columns, f"{wide} AS {mark}")


def narrow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in a task without their mark.

    Raises:
        WideRowError: A row is marked.
    """
    for batch in batches:
        mark = batch.num_columns - 1
        if batch.column(mark).true_count:
            raise WideRowError(f"a row has more than {WIDEST} bytes of text", context={"bytes": WIDEST})
        yield batch.select(list(range(mark)))


def is_free(spark: SparkSession) -> bool:
    """Whether a session leaves it to others how large batches are, and can be copied."""
    return not is_connect(spark) and spark.conf.getAll.keys().isdisjoint(_SETTINGS)


def in_batches_of_rows(frame: DataFrame) -> DataFrame:
    """The same query in a copy of its session, as that is now, where batches end at a number of rows.

    Spark does not document how to make either: where that fails it is the query itself, in batches of Spark's own.
    """
    session: Any = frame.sparkSession
    try:
        copied = session._jsparkSession.cloneSession()
        for name, value in _SETTINGS.items():
            copied.conf().set(name, value)
        datasets = session._jvm.org.apache.spark.sql.classic.Dataset
        return type(frame)(datasets.ofRows(copied, frame._jdf.queryExecution().analyzed()), session)
    except Exception:
        return frame


def _texts(name: str, type_: DataType) -> list[str] | None:
    """The values in a column that are as long as they like; ``None`` where others may be."""
    from pyspark.sql.types import BinaryType, NullType, StringType, StructType

    match type_:
        case StringType() | BinaryType():
            return [name]
        case StructType(fields=fields):
            inner = [_texts(f"{name}.{quoted(field.name)}", field.dataType) for field in fields]
            return None if None in inner else [text for texts in inner for text in texts or ()]
    return [] if isinstance(type_, NullType) or type_.typeName() in ONE_WIDTH else None

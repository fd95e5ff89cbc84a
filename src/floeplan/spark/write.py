"""Write the rows of a DataFrame as data files of a table, in the tasks that compute them.

Rows are first distributed by ``write.distribution-mode`` (``distribution``). A DataFrame that is certain to be small is
written by this process. Nothing here commits: the caller commits the entries that are returned.

Spark ends an Arrow batch at a number of bytes, and computes the size of the whole batch after every row, which is a
quarter of the cost of appending a DataFrame. Here batches end after ``BATCH_ROWS`` rows instead. That bounds their size
as long as no row has more than ``MAX_ROW_BYTES`` bytes of strings and binaries. A wider row is sent as nulls with a
flag; the task that receives it raises ``WideRowError``, and all rows are sent again in batches of Spark's size. (A
joined merge keeps Spark's batches: the computation is 4 % of its cost, and repeating the join for one wide row would
cost more.) The batch size is a setting of the session, so the query runs in a copy of its session: other queries keep
their batches, and settings that change in the meantime are not lost.

Decimals of up to 18 digits are sent as integers (``jvm.unscaled``), except those that rows are distributed by.

Fail-safe: a task reports the files it wrote through a Spark accumulator, which reaches the driver when the task ends,
even if the job fails later. The results of a failed job never arrive, so its files cannot be committed and are removed.
Files of tasks that were still running stay as orphans, as do all files of a failed job on Spark Connect, which has no
accumulators. Rows of unknown width (lists, maps and types not listed in ``FIXED_WIDTH``), sessions with a batch size of
their own, and Spark Connect, whose sessions cannot be copied, keep Spark's batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, DecimalType, NullType, StringType, StructType

from floeplan.errors import FloeplanError
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.spark.distribution import distributed
from floeplan.spark.jvm import FIXED_WIDTH, collect_if_small, unscaled, with_settings
from floeplan.spark.types import quoted, unused_name
from floeplan.tasks import runner
from floeplan.tasks.runner import RESULT_SCHEMA, load_results, new_attempt, result_batch
from floeplan.tasks.shipping import ensure_package, is_connect
from floeplan.tasks.worker import reusable
from floeplan.write.conform import conform
from floeplan.write.data_files import DataFileWriter, coalesce_batches, write_data_files
from floeplan.write.metrics import remove_written_files
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 4096
MAX_ROW_BYTES = 32 * 1024
"""Bytes of strings and binaries in a row. The largest batch has 128 MiB, less than a writer of data files buffers."""

BATCHES = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}
"""Settings of a query whose tasks receive batches of a number of rows."""
_Batches: TypeAlias = Iterable[pa.RecordBatch]


class ReportFiles(Protocol):
    """What tasks report their files with."""

    def __call__(self, entries: EntriesTable, others: Sequence[str] = ()) -> EntriesTable:
        """Report data files by their entries, and others by their paths; return the entries."""


class WideRowError(FloeplanError):
    """A row is too wide for batches of a fixed number of rows."""

    default_kind = "wide-row"
    default_retryable = True


def write_frame(frame: DataFrame, target: WriteTarget, keep: Callable[[EntriesTable], None]) -> None:
    """Write the rows of a DataFrame, and hand over the entries of the files of each task.

    A small DataFrame is written by this process, with all rows of a partition in one file.
    """

    def keep_files(entries: EntriesTable) -> None:
        if len(entries):
            keep(entries)

    # Check the columns before a job starts.
    conform(to_arrow_schema(frame.schema).empty_table(), target.stored_schema)
    small = collect_if_small(frame, runner.LOCAL_BYTES // 2)
    if small is not None:
        with DataFileWriter(target, file_name_token=new_attempt(), sort=True) as writer:
            for rows in coalesce_batches(small.to_batches()):
                writer.write(rows)
            keep_files(writer.finish())
        return
    spark = frame.sparkSession
    ensure_package(spark)
    flagged = flag_wide_rows(frame) if has_default_batch_size(spark) else None
    if flagged is not None:
        with suppress(WideRowError):
            _write_in_tasks(flagged, target, keep_files, row_batches=True)
            return
    _write_in_tasks(frame, target, keep_files, row_batches=False)


def has_default_batch_size(spark: SparkSession) -> bool:
    """Whether the session sets no batch size of its own and can be copied."""
    return not is_connect(spark) and spark.conf.getAll.keys().isdisjoint(BATCHES)


def _write_in_tasks(
    frame: DataFrame, target: WriteTarget, keep: Callable[[EntriesTable], None], *, row_batches: bool
) -> None:
    """Write rows in the tasks that compute them; with ``row_batches`` the last column flags wide rows."""
    sent, decimals = with_unscaled_decimals(frame, target)
    with removed_on_failure(frame.sparkSession, target.files) as report:

        def write(batches: _Batches) -> EntriesTable:
            tables = coalesce_batches(without_flag(batches) if row_batches else iter(batches))
            rows = (_with_decimals(table, decimals) for table in tables)
            return report(write_data_files(target, rows, file_name_token=new_attempt(), sort=True))

        @reusable
        def run(batches: _Batches) -> Iterator[pa.RecordBatch]:
            yield result_batch(0, partial(write, batches))

        query = distributed(sent, target).mapInArrow(run, RESULT_SCHEMA)
        results = (with_settings(query, BATCHES) if row_batches else query).toArrow()
        load_results(results, partial(remove_written_files, files=target.files), keep)


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
    match type_:
        case StringType() | BinaryType():
            return [name]
        case StructType(fields=fields):
            inner = [_unbounded_values(f"{name}.{quoted(field.name)}", field.dataType) for field in fields]
            return None if None in inner else [value for values in inner for value in values or ()]
    return [] if isinstance(type_, NullType) or type_.typeName() in FIXED_WIDTH else None


def with_unscaled_decimals(frame: DataFrame, target: WriteTarget) -> tuple[DataFrame, dict[str, pa.DataType]]:
    """The rows with unscaled values instead of decimals, except those they are distributed by, and their types."""
    sources = [field.source_id for field in target.spec.fields]
    sources += [field.source_id for field in target.sort_order.fields]
    keys = {(target.schema.find_column_name(source) or "").partition(".")[0] for source in sources}
    types = {
        field.name: pa.decimal128(field.dataType.precision, field.dataType.scale)
        for field in frame.schema.fields
        if isinstance(field.dataType, DecimalType) and field.dataType.precision <= 18 and field.name not in keys
    }
    sent = unscaled(frame, list(types)) if types else None
    return (frame, {}) if sent is None else (sent, types)


def _with_decimals(rows: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """The rows with decimals instead of their unscaled values."""
    for name, type_ in types.items():
        integers = rows.column(name).cast(pa.decimal128(19, 0))  # the same bytes as those of any scale
        chunks = [
            pa.Array.from_buffers(type_, len(chunk), chunk.buffers(), chunk.null_count, chunk.offset)
            for chunk in integers.chunks
        ]
        rows = rows.set_column(rows.schema.get_field_index(name), name, pa.chunked_array(chunks, type_))
    return rows


@contextmanager
def removed_on_failure(spark: SparkSession, files: TableFiles) -> Iterator[ReportFiles]:
    """Yield a function that tasks report their files with; when a job in this context fails, they are removed."""
    paths = None if is_connect(spark) else spark.sparkContext.accumulator([], _ListAccumulator())

    def report(entries: EntriesTable, others: Sequence[str] = ()) -> EntriesTable:
        if paths is not None:
            paths.add([*entries.path.to_pylist(), *others])
        return entries

    try:
        yield report
    except BaseException:
        files.remove([] if paths is None else paths.value)
        raise
    finally:
        if paths is not None:
            paths.value = []  # PySpark keeps accumulators for the lifetime of the process


class _ListAccumulator(AccumulatorParam[list[str]]):
    def zero(self, value: list[str]) -> list[str]:
        return []

    def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:  # noqa: N802
        return value1 + value2

"""``fp.incremental``: the rows appended or changed between two snapshots, as a DataFrame.

Appended rows are read as in every read. A changelog is computed in Python tasks: each reads the files that were added
or removed, and of other files only the rows that new deletes removed. Rows that a rewrite moved unchanged to another
file (carryovers) cancel out unless requested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType, MapType
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType

from floeplan.catalog import load_table
from floeplan.errors import UnsupportedError
from floeplan.parquet.prune.selection import RowSelection
from floeplan.predicate.compile import PredicateSource
from floeplan.scan.file_rows import FileRows, TableRows
from floeplan.scan.incremental import FileChange, plan_appends, plan_changes
from floeplan.scan.model import FileScan
from floeplan.scan.read import PlanReader
from floeplan.snapshot.reader import select
from floeplan.spark.read.columns import walk
from floeplan.spark.read.reader import ROWS_PER_BATCH, read_plan_of
from floeplan.spark.types import quoted, spark_schema, to_spark_arrow
from floeplan.tasks.shipping import ensure_package
from floeplan.tasks.worker import for_each_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INSERT, DELETE = "INSERT", "DELETE"
CHANGES_PER_TASK = 32
_LABELS = ("_change_type", "_change_ordinal", "_commit_snapshot_id")


def incremental(
    spark: SparkSession,
    table: Table | str,
    from_snapshot: int | None,
    to_snapshot: int | None = None,
    *,
    where: PredicateSource | None = None,
    columns: Sequence[str] | None = None,
    changelog: bool = False,
    carryovers: bool = False,
    catalog: str | Catalog | None = None,
) -> DataFrame:
    """Read the rows appended after one snapshot, up to and including another, or all inserted and deleted rows.

    Args:
        spark: A session, classic or Connect.
        table: A PyIceberg table, ``namespace.name``, or the path of a ``*.metadata.json``.
        from_snapshot: The first snapshot, exclusive. ``None`` returns all rows of the oldest snapshot that has not
            expired, then what was appended or changed after it.
        to_snapshot: The last snapshot, inclusive; by default the current one.
        where: The predicate; all rows when not given.
        columns: Columns to read; all when not given.
        changelog: Return every inserted and deleted row, with ``_change_type`` (``INSERT`` or ``DELETE``),
            ``_change_ordinal`` (0 for the first snapshot that changed rows) and ``_commit_snapshot_id``. Without it
            only the rows of append snapshots are returned.
        carryovers: Return also the rows that a rewrite deleted from one file and inserted into another unchanged.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.

    Raises:
        BadInputError: The first snapshot is not an ancestor of the last.
    """
    loaded = load_table(table, catalog)
    if not changelog:
        plan = plan_appends(loaded, from_snapshot, to_snapshot, where, columns)
        return read_plan_of(spark, plan).dataframe()
    selected = loaded.schema() if columns is None else select(loaded.schema(), columns)
    whole = selected if carryovers else loaded.schema()
    changes = plan_changes(loaded, from_snapshot, to_snapshot, where)
    stored, schema = TableRows.of(loaded, loaded.schema()), spark_schema(whole)
    shape = to_arrow_schema(schema)
    parts = [changes[i : i + CHANGES_PER_TASK] for i in range(0, len(changes), CHANGES_PER_TASK)]

    def batches(number: int) -> Iterator[pa.RecordBatch]:
        reader, files = PlanReader(stored, whole), FileRows(stored)
        for change in parts[number]:
            for kind, scan in _sides(change, files):
                rows = to_spark_arrow(reader.read(scan), shape)
                labels = (kind, pa.string()), (change.ordinal, pa.int32()), (change.snapshot_id, pa.int64())
                for name, (label, type_) in zip(_LABELS, labels, strict=True):
                    rows = rows.append_column(name, pa.repeat(pa.scalar(label, type_), rows.num_rows))
                yield from rows.to_batches(ROWS_PER_BATCH)

    for name, label_type in zip(_LABELS, (StringType(), IntegerType(), LongType()), strict=True):
        schema = schema.add(name, label_type)
    if parts:
        ensure_package(spark)
        frame = spark.range(0, len(parts), 1, len(parts)).mapInArrow(for_each_number(batches), schema)
    else:
        frame = spark.createDataFrame([], schema)
    if carryovers:
        return frame
    return _without_carryovers(frame, whole).select(*(quoted(field.name) for field in selected.fields), *_LABELS)


def _sides(change: FileChange, files: FileRows) -> Iterator[tuple[str, FileScan]]:
    """The rows of a file to read, each with their change type."""
    if change.before is None and change.after is not None:
        yield INSERT, change.after
    elif change.after is None and change.before is not None:
        yield DELETE, change.before
    elif change.before is not None and change.after is not None:
        before, after = _live_rows(change.before, files), _live_rows(change.after, files)
        yield DELETE, replace(change.before, row_selection=before.difference(after), deletes=())
        yield INSERT, replace(change.after, row_selection=after.difference(before), deletes=())


def _live_rows(file: FileScan, files: FileRows) -> RowSelection:
    """The rows of a file that no delete removes."""
    opened = files.open(file)
    selection = opened.undeleted(opened.planned())
    _, live = opened.read(Schema(), selection)
    return selection if live.all() else RowSelection.from_runs(selection.to_rows()[live], np.ones(int(live.sum())))


def _without_carryovers(frame: DataFrame, schema: Schema) -> DataFrame:
    """Cancel out, one for one, rows that a snapshot deleted and inserted with equal values in every column."""
    refuse_maps(schema)
    floats = [field for field in schema.fields if isinstance(field.field_type, FloatType | DoubleType)]
    keys = zip(schema.fields, exact_columns(schema), strict=True)
    names = [key.alias(f"__exact{field.field_id}") if field in floats else key for field, key in keys]
    kept = [F.first(F.col(quoted(field.name))).alias(field.name) for field in floats]
    net = F.sum(F.when(F.col("_change_type") == INSERT, 1).otherwise(-1)).alias("__net")
    grouped = frame.groupBy(*names, "_change_ordinal", "_commit_snapshot_id").agg(net, *kept)
    kind = F.when(F.col("__net") > 0, F.lit(INSERT)).otherwise(F.lit(DELETE))
    copies = F.explode(F.sequence(F.lit(1), F.abs("__net")))
    return grouped.where("__net <> 0").withColumn("_change_type", kind).withColumn("__copy", copies)


def refuse_maps(schema: Schema) -> None:
    """Refuse rows that Spark cannot compare.

    Raises:
        UnsupportedError: A column has maps.
    """
    for field in schema.fields:
        if any(isinstance(inner.field_type, MapType) for inner in walk(field)):
            raise UnsupportedError(
                f"rows with maps cannot be compared (column {field.name}); use fp.incremental with carryovers=True",
                context={"column": field.name},
            )


def exact_columns(schema: Schema) -> list[Column]:
    """The columns of a schema as keys to group rows by: Spark groups -0.0 with 0.0; as strings they differ."""
    columns = ((F.col(quoted(field.name)), field.field_type) for field in schema.fields)
    return [column.cast("string") if isinstance(kind, FloatType | DoubleType) else column for column, kind in columns]

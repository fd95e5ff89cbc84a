"""Read in Python tasks, for files that Spark's own reader cannot read: pyarrow decodes, Spark receives Arrow batches.

A task reads its files exactly as ``ScanPlan.to_arrow`` does: the same row groups and pages, deletes and residual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyspark.sql.pandas.types import to_arrow_schema

from floeplan.scan.file_rows import TableRows
from floeplan.scan.model import FileScan
from floeplan.scan.read import PlanReader
from floeplan.scan.scan_plan import ScanPlan
from floeplan.spark.types import spark_schema, to_spark_arrow
from floeplan.tasks.shipping import ensure_package
from floeplan.tasks.worker import for_each_number
from floeplan.vectors import Ints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BYTES_PER_TASK = 64 * 2**20
"""A Python task costs about 150 ms of CPU of its own, so tasks are few and large."""
ROWS_PER_BATCH = 65_536


def arrow_frame(spark: SparkSession, plan: ScanPlan, rows: Ints) -> DataFrame:
    """The matching rows of some files of a plan."""
    shares = share_files(plan, rows)
    if not shares:
        return spark.createDataFrame([], spark_schema(plan.schema))
    reading = FileReading(TableRows.of(plan.target.table, plan.target.schema), plan.schema)
    ensure_package(spark)
    task = for_each_number(lambda number: reading.batches(shares[number]))
    return spark.range(0, len(shares), 1, len(shares)).mapInArrow(task, spark_schema(plan.schema))


def share_files(plan: ScanPlan, rows: Ints) -> list[list[FileScan]]:
    """Split files into tasks of about ``BYTES_PER_TASK`` bytes, in their order."""
    ends = np.cumsum(plan.files.entries.ints("file_size_in_bytes")[rows])
    share_of = (ends - 1) // BYTES_PER_TASK
    cuts = np.flatnonzero(np.diff(share_of)) + 1
    return [[plan.files[int(row)] for row in part] for part in np.split(rows, cuts) if len(part)]


class FileReading:
    """Reads planned files into batches for Spark; pickled with each task."""

    def __init__(self, table: TableRows, schema: Schema) -> None:
        self._table, self._schema = table, schema

    def batches(self, files: Sequence[FileScan]) -> Iterator[pa.RecordBatch]:
        """The rows of files, one file after another."""
        reader = PlanReader(self._table, self._schema)
        shape = to_arrow_schema(spark_schema(self._schema))
        for file in files:
            yield from to_spark_arrow(reader.read(file), shape).to_batches(ROWS_PER_BATCH)

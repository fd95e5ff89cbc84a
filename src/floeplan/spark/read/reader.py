"""``fp.read``: a table as a Spark DataFrame.

Each file is read by Spark's own Parquet reader (``native``) or, where that is wrong (``reader_choice``), by Python
tasks (``FileReading``). Both return the same rows; ``ReadPlan.explain()`` shows the reader of each file and why.

Spark's reader resolves columns by field id only if the session says so: reading sets
``spark.sql.parquet.fieldId.read.enabled`` on the session, and it must stay on while the DataFrame is in use.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField
from pyspark.sql.pandas.types import to_arrow_schema

from floeplan.errors import InvalidOptionError, UnsupportedError
from floeplan.predicate.compile import PredicateSource
from floeplan.scan.file_rows import TableRows
from floeplan.scan.metadata_columns import metadata_columns_of
from floeplan.scan.model import FileScan, ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.scan.read import PlanReader
from floeplan.spark.planning import SparkPlanning
from floeplan.spark.read.native import Branch, NativeReading, columns_of, select
from floeplan.spark.read.reader_choice import FIELD_ID_CONF, ReaderChoice, choose_readers
from floeplan.spark.types import spark_schema, to_spark_arrow
from floeplan.tasks.shipping import ensure_package
from floeplan.tasks.worker import for_each_number
from floeplan.vectors import Ints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BYTES_PER_TASK = 64 * 2**20
"""A Python task costs about 150 ms of CPU of its own, so tasks are few and large."""
ROWS_PER_BATCH = 65_536
PATHS = ("auto", "native", "arrow")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading on Spark. None of them changes the rows."""

    path: Literal["auto", "native", "arrow"] = "auto"
    """``native`` requires Spark's reader (an error if it cannot read a file), ``arrow`` requires Python tasks."""
    scan: ScanOptions | None = None
    """Options of planning; by default footers are not read for ``native``, since Spark reads them."""

    def __post_init__(self) -> None:
        if self.path not in PATHS:
            raise InvalidOptionError(f"path is {self.path!r} but must be one of {', '.join(PATHS)}")


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How the files of a scan are read on Spark.

    Attributes:
        spark: The session.
        plan: The plan of the scan.
        branches: Files that Spark's own reader reads, grouped by treatment.
        choice: The reader of each file, and why.
    """

    spark: SparkSession
    plan: ScanPlan
    branches: tuple[Branch, ...]
    choice: ReaderChoice

    @property
    def route(self) -> ReaderChoice:
        """Deprecated name of ``choice``."""
        warnings.warn("ReadPlan.route is now ReadPlan.choice", DeprecationWarning, stacklevel=2)
        return self.choice

    def dataframe(self, schema: Schema | None = None) -> DataFrame:
        """The matching rows; nothing is read yet.

        With a schema the rows have its columns instead of the plan's; those that the plan does not read are null.
        """
        frames = []
        if self.branches:
            self.spark.conf.set(FIELD_ID_CONF, "true")
            native = NativeReading(self.spark, self.plan)
            frames += [native.frame(branch, schema) for branch in self.branches]
        if len(self.choice.arrow):
            shares = share_files(self.plan, self.choice.arrow)
            reading = FileReading.of(self.plan)
            task = for_each_number(lambda number: reading.batches(shares[number]))
            ensure_package(self.spark)
            rows = self.spark.range(0, len(shares), 1, len(shares)).mapInArrow(task, spark_schema(self.plan.schema))
            frames.append(rows if schema is None else select(rows, columns_of(self.plan, schema)))
        if not frames:
            return self.spark.createDataFrame([], spark_schema(schema or self.plan.schema))
        return reduce(lambda left, right: left.unionAll(right), frames)

    def count(self) -> int:
        """The number of matching rows, from metadata where possible."""
        return self.plan.count()

    def explain(self) -> str:
        """The reader of each file and why, then how the scan was planned."""
        lines = [f"{len(self.plan.files)} files to read"]
        lines += [f"  {len(branch.rows)} by Spark's Parquet reader: {branch.describe()}" for branch in self.branches]
        lines += [f"  {count} in Python tasks: {reason}" for reason, count in self.choice.reasons]
        return "\n".join([*lines, "", self.plan.explain()])

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "native": [{"files": len(branch.rows), "treatment": branch.describe()} for branch in self.branches],
            "arrow": [{"files": count, "reason": reason} for reason, count in self.choice.reasons],
            "plan": self.plan.to_dict(),
        }


def plan_read(
    spark: SparkSession,
    table: Table | str,
    where: PredicateSource | None = None,
    *,
    columns: Sequence[str] | None = None,
    snapshot_id: int | None = None,
    ref: str | None = None,
    as_of: datetime | None = None,
    options: ReadOptions | None = None,
    catalog: str | Catalog | None = None,
) -> ReadPlan:
    """Plan a read on Spark; the arguments are those of ``read``."""
    chosen = options or ReadOptions()
    scan = chosen.scan or ScanOptions(footers=chosen.path == "arrow")
    scan = replace(scan, planning=scan.planning or SparkPlanning(spark))
    plan = plan_scan(
        table, where, columns=columns, snapshot_id=snapshot_id, ref=ref, as_of=as_of, options=scan, catalog=catalog
    )
    return read_plan_of(spark, plan, chosen.path)


def read_plan_of(spark: SparkSession, plan: ScanPlan, path: str = "auto") -> ReadPlan:
    """Choose the readers of an existing plan."""
    if path == "arrow":
        rows = np.arange(len(plan.files))
        choice = ReaderChoice(rows[:0], rows, (("requested", len(rows)),) if len(rows) else ())
    else:
        choice = choose_readers(spark, plan)
    if path == "native" and len(choice.arrow):
        raise UnsupportedError(
            f"Spark's own reader cannot read {len(choice.arrow)} of {len(plan.files)} files: {choice.reasons[0][0]}; "
            "use path='auto'",
            context={"files": len(choice.arrow), "reason": choice.reasons[0][0]},
        )
    branches = NativeReading(spark, plan).branches(choice.native) if len(choice.native) else []
    return ReadPlan(spark, plan, tuple(branches), choice)


def read(
    spark: SparkSession,
    table: Table | str,
    where: PredicateSource | None = None,
    *,
    columns: Sequence[str] | None = None,
    snapshot_id: int | None = None,
    ref: str | None = None,
    as_of: datetime | None = None,
    options: ReadOptions | None = None,
    catalog: str | Catalog | None = None,
) -> DataFrame:
    """Read a table as a DataFrame: the matching rows that are not deleted.

    Args:
        spark: A session, classic or Connect. Its ``spark.sql.parquet.fieldId.read.enabled`` is switched on.
        table: A PyIceberg table, ``namespace.name``, or the path of a ``*.metadata.json``.
        where: Spark-SQL text, a PyIceberg expression, tuples or IR; every row when not given.
        columns: Columns to read; all when not given.
        snapshot_id: The snapshot to read; by default the current one.
        ref: A branch or tag to read.
        as_of: The time to read the table as of; UTC unless it has an offset.
        options: The reader, and options of planning.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.

    Raises:
        BadInputError: An unknown column, snapshot or ref, or an invalid predicate.
        UnsupportedError: Encrypted files, other formats than Parquet, or a type Spark does not have.
    """
    chosen = plan_read(
        spark,
        table,
        where,
        columns=columns,
        snapshot_id=snapshot_id,
        ref=ref,
        as_of=as_of,
        options=options,
        catalog=catalog,
    )
    return chosen.dataframe()


# Read in Python tasks, for files that Spark's own reader cannot read: pyarrow decodes, Spark receives Arrow batches.
#
# A task reads its files exactly as ``ScanPlan.to_arrow`` does: the same row groups and pages, deletes and residual.


def share_files(plan: ScanPlan, rows: Ints) -> list[list[FileScan]]:
    """Split files into tasks of about ``BYTES_PER_TASK`` bytes, in their order."""
    sizes = plan.files.entries.ints("file_size_in_bytes")[rows]
    return [[plan.files[int(row)] for row in rows[part]] for part in split_by_bytes(sizes, BYTES_PER_TASK)]


def split_by_bytes(sizes: Ints, most: int) -> list[Ints]:
    """The indexes of files of these sizes, in runs of about ``most`` bytes."""
    cuts = np.flatnonzero(np.diff((np.cumsum(sizes) - 1) // most)) + 1
    return [part for part in np.split(np.arange(len(sizes)), cuts) if len(part)]


class FileReading:
    """Reads planned files into batches for Spark; pickled with each task."""

    def __init__(self, table: TableRows, schema: Schema, filtered: tuple[NestedField, ...] = ()) -> None:
        self._table, self._schema, self._filtered = table, schema, filtered

    @staticmethod
    def of(plan: ScanPlan) -> FileReading:
        """For the files of a plan."""
        table = TableRows.of(plan.target.table, plan.target.schema)
        return FileReading(table, plan.schema, metadata_columns_of(plan.compiled.predicate, plan.target.metadata))

    def batches(self, files: Sequence[FileScan]) -> Iterator[pa.RecordBatch]:
        """The rows of files, one file after another."""
        reader = PlanReader(self._table, self._schema, self._filtered)
        shape = to_arrow_schema(spark_schema(self._schema))
        for file in files:
            yield from to_spark_arrow(reader.read(file), shape).to_batches(ROWS_PER_BATCH)

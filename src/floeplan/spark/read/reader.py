"""``read``: a plan as a Spark DataFrame.

Files go through Spark's own Parquet reader (``native``) or, where that cannot do it (``routing``), through Python
tasks (``arrow_path``); ``ReadPlan.explain()`` says which and why. Both give the same rows.

Spark looks for columns by field id only where the session says so: reading sets
``spark.sql.parquet.fieldId.read.enabled`` on the session, and it must stay on for as long as the DataFrame is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pyiceberg.table import Table

from floeplan.errors import InvalidOptionError, UnsupportedError
from floeplan.predicate.compile import PredicateSource
from floeplan.scan.options import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.scan_plan import ScanPlan
from floeplan.spark.read.arrow_path import arrow_frame
from floeplan.spark.read.native import Branch, NativeReading
from floeplan.spark.read.reader_choice import FIELD_ID_CONF, Route, route
from floeplan.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATHS = ("auto", "native", "arrow")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a table is read on Spark. None of it changes the rows."""

    path: Literal["auto", "native", "arrow"] = "auto"
    """``native`` insists on Spark's reader (an error says what it cannot do), ``arrow`` on Python tasks."""
    scan: ScanOptions | None = None
    """What planning may use; by default all but footers where Spark opens them itself."""

    def __post_init__(self) -> None:
        if self.path not in PATHS:
            raise InvalidOptionError(f"path is {self.path!r} but must be one of {', '.join(PATHS)}")


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How the files of a scan are read on Spark.

    Attributes:
        spark: The session.
        plan: The plan of the scan.
        branches: Groups of files that Spark's own reader reads, each in its way.
        route: Which files go which way, and why.
    """

    spark: SparkSession
    plan: ScanPlan
    branches: tuple[Branch, ...]
    route: Route

    def dataframe(self) -> DataFrame:
        """The matching rows; nothing is read yet."""
        schema = spark_schema(self.plan.schema)
        frames = []
        if self.branches:
            self.spark.conf.set(FIELD_ID_CONF, "true")
            native = NativeReading(self.spark, self.plan)
            frames += [native.frame(branch) for branch in self.branches]
        if len(self.route.arrow):
            frames.append(arrow_frame(self.spark, self.plan, self.route.arrow))
        if not frames:
            return self.spark.createDataFrame([], schema)
        return reduce(lambda left, right: left.unionAll(right), frames)

    def count(self) -> int:
        """The number of matching rows, from metadata where it can be."""
        return self.plan.count()

    def explain(self) -> str:
        """Which files are read which way and why, then how the scan was planned."""
        lines = [f"{len(self.plan.files)} files to read"]
        lines += [f"  {len(branch.rows)} by Spark's Parquet reader: {branch.describe()}" for branch in self.branches]
        lines += [f"  {count} in Python tasks: {reason}" for reason, count in self.route.reasons]
        return "\n".join([*lines, "", self.plan.explain()])

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "native": [{"files": len(branch.rows), "treatment": branch.describe()} for branch in self.branches],
            "arrow": [{"files": count, "reason": reason} for reason, count in self.route.reasons],
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
    options: ReadOptions | None = None,
) -> ReadPlan:
    """Plan a read on Spark; the arguments are those of ``read``."""
    chosen = options or ReadOptions()
    scan = chosen.scan or ScanOptions(footers=chosen.path == "arrow")
    plan = plan_scan(table, where, columns=columns, snapshot_id=snapshot_id, ref=ref, options=scan)
    return read_plan_of(spark, plan, chosen.path)


def read_plan_of(spark: SparkSession, plan: ScanPlan, path: str = "auto") -> ReadPlan:
    """How a plan that is already made is read."""
    found = _everything_in_tasks(plan) if path == "arrow" else route(spark, plan)
    if path == "native" and len(found.arrow):
        raise UnsupportedError(
            f"Spark's own reader cannot read {len(found.arrow)} of {len(plan.files)} files: {found.reasons[0][0]}; "
            "leave the path to be chosen",
            context={"files": len(found.arrow), "reason": found.reasons[0][0]},
        )
    branches = NativeReading(spark, plan).branches(found.native) if len(found.native) else []
    return ReadPlan(spark, plan, tuple(branches), found)


def _everything_in_tasks(plan: ScanPlan) -> Route:
    rows = np.arange(len(plan.files))
    return Route(rows[:0], rows, (("asked for", len(rows)),) if len(rows) else ())


def read(
    spark: SparkSession,
    table: Table | str,
    where: PredicateSource | None = None,
    *,
    columns: Sequence[str] | None = None,
    snapshot_id: int | None = None,
    ref: str | None = None,
    options: ReadOptions | None = None,
) -> DataFrame:
    """Read a table as a DataFrame: the rows that match and are not deleted.

    Args:
        spark: A session, classic or Connect. Its ``spark.sql.parquet.fieldId.read.enabled`` is switched on.
        table: A PyIceberg table, ``namespace.name``, or the path of a ``*.metadata.json``.
        where: Spark-SQL text, a PyIceberg expression, tuples or IR; every row when not given.
        columns: Columns to show; all when not given.
        snapshot_id: The snapshot to read; the current one when no choice is made.
        ref: A branch or tag to read.
        options: Which way to read, and what planning may use.

    Raises:
        BadInputError: An unknown column, snapshot or ref, or a predicate that cannot be meant.
        UnsupportedError: Encrypted files, other formats than Parquet, or a type Spark does not have.
    """
    chosen = plan_read(spark, table, where, columns=columns, snapshot_id=snapshot_id, ref=ref, options=options)
    return chosen.dataframe()

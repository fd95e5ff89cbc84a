"""``format("floeplan")``: a Python data source for batch and streaming, reading and writing.

It is for SQL (``CREATE TEMPORARY VIEW v USING floeplan OPTIONS (table 'db.t')``) and for pipelines that only know
formats. Rows pass through Python tasks, so ``fp.read`` is the faster way to read.

Filters are given as the option ``where``, not taken from the query: on Spark 4.1 a source that takes them
(``pushFilters``) makes later queries on the same DataFrame reuse the filtered partitions, and rows are lost.

Options: ``table`` (or the path of ``load``), ``catalog`` and ``catalog.<property>``, ``where``, ``columns``,
``snapshot-id``, ``ref``; for writing ``branch`` and ``overwrite-where``; for streams see
``floeplan.spark.source.streaming``.

Spark imports this module whenever it looks for data sources, so everything heavy is imported where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from floeplan.spark.source.batch import SourceOptions


def register(spark: SparkSession) -> None:
    """Make ``format("floeplan")`` known to a session that has not found it by itself."""
    spark.dataSource.register(FloeplanSource)


class FloeplanSource(DataSource):
    """The data source Spark is given."""

    @classmethod
    def name(cls) -> str:
        """What it is called in ``format(…)`` and ``USING …``."""
        return "floeplan"

    @property
    def _asked(self) -> SourceOptions:
        from floeplan.spark.source.batch import SourceOptions

        return SourceOptions(dict(self.options))

    def schema(self) -> StructType:
        """The columns that are shown."""
        from floeplan.snapshot.target import resolve_target, select
        from floeplan.spark.types import spark_schema

        asked = self._asked
        schema = resolve_target(asked.table(), snapshot_id=asked.number("snapshot-id"), ref=asked.get("ref")).schema
        return spark_schema(schema if asked.columns is None else select(schema, asked.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For a batch."""
        from floeplan.spark.source.batch import FloeplanReader

        _check_schema(schema, self.schema())
        return FloeplanReader(self._asked)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For a batch."""
        from floeplan.spark.source.batch import FloeplanWriter

        return FloeplanWriter(self._asked, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For a stream of appended rows."""
        from floeplan.spark.source.streaming import AppendStream

        _check_schema(schema, self.schema())
        return AppendStream(self._asked)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """For a stream into the table."""
        from floeplan.spark.source.streaming import StreamAppends

        return StreamAppends(self._asked, overwrite)


def _check_schema(asked: StructType, own: StructType) -> None:
    from floeplan.errors import TypeMismatchError

    if asked.simpleString() != own.simpleString():
        raise TypeMismatchError(
            f"the table is read as {own.simpleString()}, not as {asked.simpleString()}; "
            "give no schema, and choose columns with the option 'columns'"
        )

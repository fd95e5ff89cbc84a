"""``format("floeplan")``: a Python data source for batch and streaming, reading and writing.

It is for SQL (``CREATE TEMPORARY VIEW v USING floeplan OPTIONS (table 'db.t')``) and for pipelines that are configured
by format. Rows pass through Python tasks; ``fp.read`` is faster.

Filters are given as the option ``where``. The source does not implement ``pushFilters``: on Spark 4.1 a later query on
the same DataFrame reuses the filtered partitions, and loses rows.

Options: ``table`` (or the path of ``load``), ``catalog`` and ``catalog.<property>``, ``where``, ``columns``,
``snapshot-id``, ``ref``; for writing ``branch``, ``overwrite-where``, ``trust-lists`` and
``allow-late-equality-deletes``; for streams see ``floeplan.datasource.io``.

Spark imports this module whenever it looks up data sources, so heavy modules are imported where they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import datasource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from floeplan.datasource.io import SourceOptions


def register(spark: SparkSession) -> None:
    """Register ``format("floeplan")`` with a session that did not discover it."""
    spark.dataSource.register(FloeplanSource)


class FloeplanSource(datasource.DataSource):
    """The entry point of ``format("floeplan")``."""

    @classmethod
    def name(cls) -> str:
        """The name in ``format(…)`` and ``USING …``."""
        return "floeplan"

    @property
    def _source_options(self) -> SourceOptions:
        from floeplan.datasource.io import SourceOptions

        return SourceOptions(dict(self.options))

    def schema(self) -> StructType:
        """The columns of the table, or those of the option ``columns``."""
        from floeplan.snapshot.reader import resolve_target, select
        from floeplan.spark.types import spark_schema

        options = self._source_options
        target = resolve_target(options.table(), snapshot_id=options.number("snapshot-id"), ref=options.get("ref"))
        return spark_schema(target.schema if options.columns is None else select(target.schema, options.columns))

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """The reader of a batch."""
        from floeplan.datasource.io import FloeplanReader

        _check_schema(schema, self.schema())
        return FloeplanReader(self._source_options)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceArrowWriter:
        """The writer of a batch."""
        from floeplan.datasource.io import FloeplanWriter

        return FloeplanWriter(self._source_options, overwrite)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:  # noqa: N802
        """The reader of a stream of appended rows."""
        from floeplan.datasource.io import AppendStream

        _check_schema(schema, self.schema())
        return AppendStream(self._source_options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:  # noqa: N802
        """The writer of a stream."""
        from floeplan.datasource.io import StreamAppends

        return StreamAppends(self._source_options, overwrite)


def _check_schema(requested: StructType, own: StructType) -> None:
    from floeplan.errors import TypeMismatchError

    if requested.simpleString() != own.simpleString():
        raise TypeMismatchError(
            f"the table is read as {own.simpleString()}, not as {requested.simpleString()}; "
            "omit the schema, and select columns with the option 'columns'"
        )

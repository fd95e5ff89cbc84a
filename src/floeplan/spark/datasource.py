"""``format("floeplan")``: a Python data source for batch and streaming, reading and writing.

It is for SQL (``CREATE TEMPORARY VIEW v USING floeplan OPTIONS (table 'db.t')``) and for pipelines that only know
formats. Rows pass through Python tasks, so ``fp.read`` is the faster way to read.

Filters are given as the option ``where``, not taken from the query: on Spark 4.1 a source that takes them
(``pushFilters``) makes later queries on the same DataFrame reuse the filtered partitions, and rows are lost.

Options: ``table`` (or the path of ``load``), ``catalog`` and ``catalog.<property>``, ``where``, ``columns``,
``snapshot-id``, ``ref``; for writing ``branch`` and ``overwrite-where``; for streams see ``floeplan.spark.streaming``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from floeplan.catalog import load_table
from floeplan.dml.outcome import Commit, Outcome, commit_outcome, discard_entries, undone_on_failure
from floeplan.dml.overwrite import replace_matching
from floeplan.dml.runner import new_attempt
from floeplan.dml.target import Command, resolve
from floeplan.errors import InvalidOptionError, TypeMismatchError, UnknownOptionError
from floeplan.metadata.entries import EntriesTable
from floeplan.predicate.ir import TRUE
from floeplan.scan.file_rows import TableRows
from floeplan.scan.model import FileScan
from floeplan.scan.plan import plan_scan
from floeplan.scan.target import resolve_target, select
from floeplan.spark.arrow_path import FileReading, share_files
from floeplan.spark.types import spark_schema
from floeplan.write.data_files import write_data_files
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "floeplan"
STREAM_OPTIONS = ("start-snapshot-id", "streaming-skip-overwrite-snapshots", "query-id")
_OF_SPARK = ("checkpointlocation",)
_OPTIONS = ("table", "path", "catalog", "where", "columns", "snapshot-id", "ref", "branch", "overwrite-where")


def register(spark: SparkSession) -> None:
    """Make ``format("floeplan")`` known to a session that has not found it by itself."""
    spark.dataSource.register(FloeplanSource)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query says about the table it means."""

    given: Mapping[str, str]

    def __post_init__(self) -> None:
        known = {*_OPTIONS, *STREAM_OPTIONS, *_OF_SPARK}
        unknown = [name for name in self.given if name.lower() not in known and not _of_catalog(name)]
        if unknown:
            names = ", ".join((*_OPTIONS, *STREAM_OPTIONS))
            raise UnknownOptionError(
                f"format {NAME} has no option {unknown[0]!r}; it has {names} and catalog.<property>",
                context={"option": unknown[0]},
            )

    def get(self, name: str) -> str | None:
        """An option, whatever the case of its name."""
        return next((value for key, value in self.given.items() if key.lower() == name), None)

    def number(self, name: str) -> int | None:
        """An option that is a whole number."""
        text = self.get(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise InvalidOptionError(f"option {name} is {text!r} but must be a number") from None

    def flag(self, name: str) -> bool:
        """An option that is true or false."""
        return (self.get(name) or "false").lower() == "true"

    def table(self) -> Table:
        """The table, as it is now."""
        name = self.get("table") or self.get("path")
        if name is None:
            raise InvalidOptionError(f"format {NAME} needs the option 'table', or the name of a table to load")
        properties = {key[len("catalog.") :]: value for key, value in self.given.items() if _of_catalog(key)}
        catalog = self.get("catalog")
        return load_table(name, load_catalog(catalog, **properties) if properties else catalog)

    @property
    def columns(self) -> list[str] | None:
        """The columns to show; all when not given."""
        text = self.get("columns")
        return None if text is None else [name.strip() for name in text.split(",")]


def _of_catalog(name: str) -> bool:
    return name.lower().startswith("catalog.")


class FloeplanSource(DataSource):
    """The data source Spark is given."""

    @classmethod
    def name(cls) -> str:
        """What it is called in ``format(…)`` and ``USING …``."""
        return NAME

    @property
    def _asked(self) -> SourceOptions:
        return SourceOptions(dict(self.options))

    def schema(self) -> StructType:
        """The columns that are shown."""
        asked = self._asked
        schema = resolve_target(asked.table(), snapshot_id=asked.number("snapshot-id"), ref=asked.get("ref")).schema
        return spark_schema(schema if asked.columns is None else select(schema, asked.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For a batch."""
        _check_schema(schema, self.schema())
        return FloeplanReader(self._asked)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For a batch."""
        return FloeplanWriter(self._asked, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For a stream of appended rows."""
        from floeplan.spark.streaming import AppendStream

        _check_schema(schema, self.schema())
        return AppendStream(self._asked)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """For a stream into the table."""
        from floeplan.spark.streaming import StreamAppends

        return StreamAppends(self._asked, overwrite)


def _check_schema(asked: StructType, own: StructType) -> None:
    if asked.simpleString() != own.simpleString():
        raise TypeMismatchError(
            f"the table is read as {own.simpleString()}, not as {asked.simpleString()}; "
            "give no schema, and choose columns with the option 'columns'"
        )


class Share(InputPartition):
    """Files that one task reads."""

    def __init__(self, files: list[FileScan]) -> None:
        self.files = files


class FloeplanReader(DataSourceReader):
    """Plans a scan, and reads its files in tasks."""

    def __init__(self, asked: SourceOptions) -> None:
        self._plan = plan_scan(
            asked.table(),
            asked.get("where"),
            columns=asked.columns,
            snapshot_id=asked.number("snapshot-id"),
            ref=asked.get("ref"),
        )
        table = TableRows.of(self._plan.target.table, self._plan.target.schema)
        self._reading = FileReading(table, self._plan.schema)

    def partitions(self) -> list[Share]:
        """The files in shares."""
        shares = share_files(self._plan, np.arange(len(self._plan.files)))
        return [Share(files) for files in shares] or [Share([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a share."""
        assert isinstance(partition, Share)
        return self._reading.batches(partition.files)

    def __getstate__(self) -> dict[str, object]:
        """Tasks get what reading takes, not the plan."""
        return {"_reading": self._reading}


@dataclass
class WrittenFiles(WriterCommitMessage):
    """The files one task wrote."""

    entries: EntriesTable
    query_id: str | None = None


class FloeplanWriter(DataSourceArrowWriter):
    """Writes files in tasks, and commits those that came back."""

    def __init__(self, asked: SourceOptions, overwrite: bool) -> None:
        self._asked, self._overwrite = asked, overwrite
        self._target = WriteTarget.of(asked.table())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        return WrittenFiles(write_data_files(self._target, iterator, file_name_token=new_attempt(), sort=True))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the written files part of the table."""
        command = Command.OVERWRITE if self._overwrite else Command.APPEND
        target = resolve(self._asked.table(), command, branch=self._asked.get("branch"))
        outcome, how = Outcome(), Commit()
        with undone_on_failure(outcome, target):
            for entries in written(messages):
                outcome.insert(entries)
            if self._overwrite:
                how = replace_matching(target, self._asked.get("overwrite-where") or TRUE, outcome, None, True)
        commit_outcome(target, outcome, how)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the files of a job that failed."""
        for entries in written(messages):
            discard_entries(entries, self._target.io)


def written(messages: list[WriterCommitMessage | None]) -> Iterator[EntriesTable]:
    """The entries of the tasks that wrote anything."""
    for message in messages:
        if isinstance(message, WrittenFiles) and len(message.entries):
            yield message.entries

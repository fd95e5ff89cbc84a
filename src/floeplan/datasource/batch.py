"""Batch reads and writes of ``format("floeplan")``: tasks read and write files, the driver plans and commits.

Fail-safe: only files that tasks reported are committed; those of a failed job are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceReader, InputPartition, WriterCommitMessage

from floeplan.catalog import connect, load_table
from floeplan.dml.commit import ChangeBuilder, commit_changes, discard_on_failure
from floeplan.dml.overwrite import replace_matching
from floeplan.dml.target import Command, resolve
from floeplan.errors import InvalidOptionError, UnknownOptionError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.scan.file_rows import TableRows
from floeplan.scan.model import FileScan
from floeplan.scan.plan import plan_scan
from floeplan.spark.read.reader import FileReading, share_files
from floeplan.tasks.runner import new_attempt
from floeplan.write.data_files import write_data_files
from floeplan.write.metrics import remove_written_files
from floeplan.write.target import WriteTarget

NAME = "floeplan"
STREAM_OPTIONS = ("start-snapshot-id", "streaming-skip-overwrite-snapshots", "query-id")
_SPARK_OPTIONS = ("checkpointlocation",)
_OPTIONS = (
    "table",
    "path",
    "catalog",
    "where",
    "columns",
    "snapshot-id",
    "ref",
    "branch",
    "overwrite-where",
    "trust-lists",
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of ``format("floeplan")``; names match case-insensitively, as Spark lowercases them."""

    given: Mapping[str, str]

    def __post_init__(self) -> None:
        known = {*_OPTIONS, *STREAM_OPTIONS, *_SPARK_OPTIONS}
        unknown = [name for name in self.given if name.lower() not in known and not _is_catalog_property(name)]
        if unknown:
            names = ", ".join((*_OPTIONS, *STREAM_OPTIONS))
            raise UnknownOptionError(
                f"format {NAME} has no option {unknown[0]!r}; it has {names} and catalog.<property>",
                context={"option": unknown[0]},
            )

    def get(self, name: str) -> str | None:
        """The value of an option; ``None`` when it is not set."""
        return next((value for key, value in self.given.items() if key.lower() == name), None)

    def number(self, name: str) -> int | None:
        """An option as an integer."""
        text = self.get(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise InvalidOptionError(f"option {name} is {text!r} but must be a number") from None

    def flag(self, name: str) -> bool:
        """An option as a boolean; false when it is not set."""
        return (self.get(name) or "false").lower() == "true"

    def table(self) -> Table:
        """Load the current state of the table."""
        name = self.get("table") or self.get("path")
        if name is None:
            raise InvalidOptionError(f"format {NAME} needs the option 'table', or the name of a table to load")
        properties = {key[len("catalog.") :]: value for key, value in self.given.items() if _is_catalog_property(key)}
        catalog = self.get("catalog")
        if not properties:
            return load_table(name, catalog)
        return load_table(name, connect(catalog or Config().get_default_catalog_name(), properties))

    @property
    def columns(self) -> list[str] | None:
        """The columns to read; all when not given."""
        text = self.get("columns")
        return None if text is None else [name.strip() for name in text.split(",")]


def _is_catalog_property(name: str) -> bool:
    return name.lower().startswith("catalog.")


class FilesPartition(InputPartition):
    """The files that one task reads."""

    def __init__(self, files: list[FileScan]) -> None:
        self.files = files


class FloeplanReader(DataSourceReader):
    """Plans a scan on the driver, and reads its files in tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._plan = plan_scan(
            options.table(),
            options.get("where"),
            columns=options.columns,
            snapshot_id=options.number("snapshot-id"),
            ref=options.get("ref"),
        )
        table = TableRows.of(self._plan.target.table, self._plan.target.schema)
        self._reading = FileReading(table, self._plan.schema)

    def partitions(self) -> list[FilesPartition]:
        """The files of each task."""
        tasks = share_files(self._plan, np.arange(len(self._plan.files)))
        return [FilesPartition(files) for files in tasks] or [FilesPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        assert isinstance(partition, FilesPartition)
        return self._reading.batches(partition.files)

    def __getstate__(self) -> dict[str, object]:
        """Pickled without the plan: tasks need only the reader and their files."""
        return {"_reading": self._reading}


@dataclass
class WrittenFiles(WriterCommitMessage):
    """The files one task wrote."""

    entries: EntriesTable
    query_id: str | None = None


class FloeplanWriter(DataSourceArrowWriter):
    """Writes files in tasks, and commits those that the tasks reported."""

    def __init__(self, options: SourceOptions, overwrite: bool) -> None:
        self._options, self._overwrite = options, overwrite
        self._target = WriteTarget.of(options.table())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        return WrittenFiles(write_data_files(self._target, iterator, file_name_token=new_attempt(), sort=True))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the files of all tasks, as an append or an overwrite."""
        command = Command.OVERWRITE if self._overwrite else Command.APPEND
        trust = self._options.flag("trust-lists")
        target = resolve(self._options.table(), command, branch=self._options.get("branch"), trust_lists=trust)
        changes = ChangeBuilder()
        conflict_filter: IrExpr = TRUE
        with discard_on_failure(changes, target):
            for entries in written(messages):
                changes.insert(entries)
            if self._overwrite:
                where = self._options.get("overwrite-where") or TRUE
                conflict_filter = replace_matching(target, where, changes, None, True)
        commit_changes(target, changes, conflict_filter=conflict_filter)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the files of a job that failed."""
        for entries in written(messages):
            remove_written_files(entries, self._target.files)


def written(messages: list[WriterCommitMessage | None]) -> Iterator[EntriesTable]:
    """The entries of the tasks that wrote anything."""
    for message in messages:
        if isinstance(message, WrittenFiles) and len(message.entries):
            yield message.entries

"""Batches of ``format("floeplan")``: files are read and written by tasks, planned and committed by the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceReader, InputPartition, WriterCommitMessage

from floeplan.catalog import connect, load_table
from floeplan.dml.outcome import Commit, Outcome, commit_outcome, discard_on_failure
from floeplan.dml.overwrite import replace_matching
from floeplan.dml.target import Command, resolve
from floeplan.errors import InvalidOptionError, UnknownOptionError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.predicate.ir import TRUE
from floeplan.scan.file_rows import TableRows
from floeplan.scan.model import FileScan
from floeplan.scan.plan import plan_scan
from floeplan.spark.read.arrow_path import FileReading, share_files
from floeplan.tasks.runner import new_attempt
from floeplan.write.data_files import write_data_files
from floeplan.write.file_entries import remove_written_files
from floeplan.write.target import WriteTarget

# The options of ``format("floeplan")``: which table is meant, and which of its rows.


NAME = "floeplan"
STREAM_OPTIONS = ("start-snapshot-id", "streaming-skip-overwrite-snapshots", "query-id")
_OF_SPARK = ("checkpointlocation",)
_OPTIONS = ("table", "path", "catalog", "where", "columns", "snapshot-id", "ref", "branch", "overwrite-where")


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
        if not properties:
            return load_table(name, catalog)
        return load_table(name, connect(catalog or Config().get_default_catalog_name(), properties))

    @property
    def columns(self) -> list[str] | None:
        """The columns to show; all when not given."""
        text = self.get("columns")
        return None if text is None else [name.strip() for name in text.split(",")]


def _of_catalog(name: str) -> bool:
    return name.lower().startswith("catalog.")


# ---


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
        with discard_on_failure(outcome, target):
            for entries in written(messages):
                outcome.insert(entries)
            if self._overwrite:
                how = replace_matching(target, self._asked.get("overwrite-where") or TRUE, outcome, None, True)
        commit_outcome(target, outcome, how)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the files of a job that failed."""
        for entries in written(messages):
            remove_written_files(entries, self._target.files)


def written(messages: list[WriterCommitMessage | None]) -> Iterator[EntriesTable]:
    """The entries of the tasks that wrote anything."""
    for message in messages:
        if isinstance(message, WrittenFiles) and len(message.entries):
            yield message.entries

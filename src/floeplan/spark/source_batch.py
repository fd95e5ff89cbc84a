"""Batches of ``format("floeplan")``: files are read and written by tasks, planned and committed by the driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceReader, InputPartition, WriterCommitMessage

from floeplan.dml.outcome import Commit, Outcome, commit_outcome, discard_entries, undone_on_failure
from floeplan.dml.overwrite import replace_matching
from floeplan.dml.runner import new_attempt
from floeplan.dml.target import Command, resolve
from floeplan.metadata.entries import EntriesTable
from floeplan.predicate.ir import TRUE
from floeplan.scan.file_rows import TableRows
from floeplan.scan.model import FileScan
from floeplan.scan.plan import plan_scan
from floeplan.spark.arrow_path import FileReading, share_files
from floeplan.spark.source_options import SourceOptions
from floeplan.write.data_files import write_data_files
from floeplan.write.target import WriteTarget


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
            discard_entries(entries, self._target.files)


def written(messages: list[WriterCommitMessage | None]) -> Iterator[EntriesTable]:
    """The entries of the tasks that wrote anything."""
    for message in messages:
        if isinstance(message, WrittenFiles) and len(message.entries):
            yield message.entries

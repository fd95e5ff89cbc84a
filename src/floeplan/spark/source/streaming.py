"""Streams: appended rows by snapshot, and rows into a table exactly once.

Reading: an offset is the id of a snapshot. A batch holds the rows that the append snapshots after one offset, up to and
including another, added. A stream starts at the beginning of the table, or after ``start-snapshot-id``. A snapshot that
removes or replaces rows stops the stream, since a stream of appends cannot say so;
``streaming-skip-overwrite-snapshots`` goes on without. Compactions change no rows and are passed over.

Writing: each snapshot records the query and the number of the batch it holds. A batch that is there already, because
the query was stopped after the commit and before Spark noted it, is not committed again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from floeplan.dml.outcome import Commit, Outcome, commit_outcome
from floeplan.dml.target import Command, resolve
from floeplan.errors import InvalidOptionError, UnsupportedError
from floeplan.scan.file_rows import TableRows
from floeplan.scan.incremental import plan_appends, snapshots_between
from floeplan.snapshot.target import select
from floeplan.spark.read.arrow_path import FileReading, share_files
from floeplan.spark.source.batch import Share, SourceOptions, WrittenFiles, written
from floeplan.tasks.runner import new_attempt
from floeplan.write.data_files import write_data_files
from floeplan.write.file_entries import remove_written_files
from floeplan.write.target import WriteTarget

QUERY_ID, BATCH_ID = "floeplan.stream-query-id", "floeplan.stream-batch-id"
_SKIP = "streaming-skip-overwrite-snapshots"
_BEGINNING = 0
_QUERY_PROPERTY = "sql.streaming.queryId"
_HARMLESS = (Operation.APPEND, Operation.REPLACE)


class AppendStream(DataSourceStreamReader):
    """The rows that are appended to a table."""

    def __init__(self, asked: SourceOptions) -> None:
        self._asked = asked
        table = asked.table()
        schema = table.schema()
        shown = schema if asked.columns is None else select(schema, asked.columns)
        self._reading = FileReading(TableRows.of(table, schema), shown)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Where the stream starts."""
        return {"snapshot_id": self._asked.number("start-snapshot-id") or _BEGINNING}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        """The current snapshot."""
        return {"snapshot_id": self._asked.table().metadata.current_snapshot_id or _BEGINNING}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Share]:
        """The files appended between two offsets, in shares."""
        table, after, until = self._asked.table(), start["snapshot_id"] or None, end["snapshot_id"] or None
        if until is None or after == until:
            return []
        if not self._asked.flag(_SKIP):
            _refuse_changes(table, after, until)
        plan = plan_appends(table, after, until, self._asked.get("where"), self._asked.columns)
        return [Share(files) for files in share_files(plan, np.arange(len(plan.files)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a share."""
        assert isinstance(partition, Share)
        return self._reading.batches(partition.files)


def _refuse_changes(table: Table, after: int | None, until: int) -> None:
    for snapshot in snapshots_between(table, after, until):
        if snapshot.summary is None or snapshot.summary.operation not in _HARMLESS:
            what = "unknown" if snapshot.summary is None else snapshot.summary.operation.value
            raise UnsupportedError(
                f"snapshot {snapshot.snapshot_id} changes rows ({what}), which a stream of appends cannot show; "
                f"to go on without its changes set {_SKIP} to true",
                context={"snapshot_id": snapshot.snapshot_id, "operation": what},
            )


class StreamAppends(DataSourceStreamArrowWriter):
    """Appends every batch of a stream exactly once."""

    def __init__(self, asked: SourceOptions, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOptionError("a stream appends; output mode complete is not supported")
        self._asked = asked
        self._target = WriteTarget.of(asked.table())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        entries = write_data_files(self._target, iterator, file_name_token=new_attempt(), sort=True)
        return WrittenFiles(entries, self._asked.get("query-id") or _running_query())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, unless it is there already."""
        query_id = next((m.query_id for m in messages if isinstance(m, WrittenFiles) and m.query_id), None)
        if query_id is None:
            raise InvalidOptionError("the stream does not say which query it is; name it with the option 'query-id'")
        target = resolve(self._asked.table(), Command.APPEND, branch=self._asked.get("branch"))
        if _last_batch(target.table, target.branch, query_id) >= batchId:
            self.abort(messages, batchId)
            return
        outcome = Outcome()
        for entries in written(messages):
            outcome.insert(entries)
        noted = {_note(target.branch, query_id): str(batchId)}
        summary = {QUERY_ID: query_id, BATCH_ID: str(batchId)}
        commit_outcome(target, outcome, Commit(summary=summary, properties=noted))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove the files of a batch that is not committed."""
        for entries in written(messages):
            remove_written_files(entries, self._target.files)


def _running_query() -> str | None:
    """The id of the query a task works for; it stays the same when the query is started again."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(_QUERY_PROPERTY)


def _last_batch(table: Table, branch: str, query_id: str) -> int:
    """The number of the newest batch of a query on a branch; -1 when there is none.

    The snapshots of the branch tell it. When the one that did was expired, the table's note of it counts, which every
    batch sets with its snapshot. A snapshot that is there but no longer on the branch was taken back, and so its batch.
    """
    known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    ref = table.metadata.refs.get(branch)
    at = None if ref is None else ref.snapshot_id
    while at is not None and at in known:
        if (batch := _batch(known[at], query_id)) is not None:
            return batch
        at = known[at].parent_snapshot_id
    noted = int(table.properties.get(_note(branch, query_id), -1))
    return -1 if any(_batch(snapshot, query_id) == noted for snapshot in known.values()) else noted


def _batch(snapshot: Snapshot, query_id: str) -> int | None:
    """The batch of a query that a snapshot added."""
    told = {} if snapshot.summary is None else snapshot.summary.additional_properties
    return int(told[BATCH_ID]) if told.get(QUERY_ID) == query_id else None


def _note(branch: str, query_id: str) -> str:
    return f"floeplan.stream.{branch}.{query_id}"

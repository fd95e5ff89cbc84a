"""Streams of ``format("floeplan")``: read appended rows by snapshot, and write each batch exactly once.

Reading: an offset is a snapshot id. A batch has the rows added by the append snapshots after one offset, up to and
including the next. A stream starts at the beginning of the table, or after ``start-snapshot-id``. A snapshot that
deletes or overwrites rows fails the stream, which can only represent appends; ``streaming-skip-overwrite-snapshots``
skips it. Compactions change no rows and are skipped.

Writing: the summary of each snapshot records the query id and batch id. A batch that is already committed, because the
query stopped after the commit and before Spark's checkpoint, is not committed again.
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

from floeplan.datasource.batch import FilesPartition, SourceOptions, WrittenFiles, written
from floeplan.dml.commit import ChangeBuilder, commit_changes
from floeplan.dml.target import Command, resolve
from floeplan.errors import InvalidOptionError, UnsupportedError
from floeplan.scan.file_rows import TableRows
from floeplan.scan.incremental import plan_appends, snapshots_between
from floeplan.snapshot.reader import select
from floeplan.spark.read.reader import FileReading, share_files
from floeplan.tasks.runner import new_attempt
from floeplan.write.data_files import write_data_files
from floeplan.write.metrics import remove_written_files
from floeplan.write.target import WriteTarget

QUERY_ID, BATCH_ID = "floeplan.stream-query-id", "floeplan.stream-batch-id"
_SKIP = "streaming-skip-overwrite-snapshots"
_BEGINNING = 0
_QUERY_PROPERTY = "sql.streaming.queryId"
_WITHOUT_CHANGES = (Operation.APPEND, Operation.REPLACE)


class AppendStream(DataSourceStreamReader):
    """Reads the rows that are appended to a table."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        table = options.table()
        schema = table.schema()
        selected = schema if options.columns is None else select(schema, options.columns)
        self._reading = FileReading(TableRows.of(table, schema), selected)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """The offset at which the stream starts."""
        return {"snapshot_id": self._options.number("start-snapshot-id") or _BEGINNING}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        """The current snapshot."""
        return {"snapshot_id": self._options.table().metadata.current_snapshot_id or _BEGINNING}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[FilesPartition]:
        """The files appended between two offsets, by task."""
        table, after, until = self._options.table(), start["snapshot_id"] or None, end["snapshot_id"] or None
        if until is None or after == until:
            return []
        if not self._options.flag(_SKIP):
            _refuse_changes(table, after, until)
        plan = plan_appends(table, after, until, self._options.get("where"), self._options.columns)
        return [FilesPartition(files) for files in share_files(plan, np.arange(len(plan.files)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        assert isinstance(partition, FilesPartition)
        return self._reading.batches(partition.files)


def _refuse_changes(table: Table, after: int | None, until: int) -> None:
    for snapshot in snapshots_between(table, after, until):
        if snapshot.summary is None or snapshot.summary.operation not in _WITHOUT_CHANGES:
            what = "unknown" if snapshot.summary is None else snapshot.summary.operation.value
            raise UnsupportedError(
                f"snapshot {snapshot.snapshot_id} changes rows ({what}), which a stream of appends cannot represent; "
                f"to skip such snapshots set {_SKIP} to true",
                context={"snapshot_id": snapshot.snapshot_id, "operation": what},
            )


class StreamAppends(DataSourceStreamArrowWriter):
    """Appends every batch of a stream exactly once."""

    def __init__(self, options: SourceOptions, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOptionError("output mode complete is not supported; a stream appends")
        self._options = options
        self._target = WriteTarget.of(options.table())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        entries = write_data_files(self._target, iterator, file_name_token=new_attempt(), sort=True)
        return WrittenFiles(entries, self._options.get("query-id") or _running_query())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, unless it is committed already."""
        query_id = next((m.query_id for m in messages if isinstance(m, WrittenFiles) and m.query_id), None)
        if query_id is None:
            raise InvalidOptionError("Spark reported no query id for the stream; set the option 'query-id'")
        target = resolve(self._options.table(), Command.APPEND, branch=self._options.get("branch"))
        if _last_batch(target.table, target.branch, query_id) >= batchId:
            self.abort(messages, batchId)
            return
        changes = ChangeBuilder()
        for entries in written(messages):
            changes.insert(entries)
        properties = {_last_batch_property(target.branch, query_id): str(batchId)}
        summary = {QUERY_ID: query_id, BATCH_ID: str(batchId)}
        commit_changes(target, changes, summary=summary, properties=properties)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove the files of a batch that is not committed."""
        for entries in written(messages):
            remove_written_files(entries, self._target.files)


def _running_query() -> str | None:
    """The id of a task's streaming query, which is the same after a restart from its checkpoint."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(_QUERY_PROPERTY)


def _last_batch(table: Table, branch: str, query_id: str) -> int:
    """The id of the last committed batch of a query on a branch; -1 when there is none.

    It is in a snapshot summary of the branch. If that snapshot has expired, the table property that every batch sets
    with its snapshot applies. A batch whose snapshot exists but is no longer on the branch was rolled back.
    """
    known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    ref = table.metadata.refs.get(branch)
    ancestor = None if ref is None else ref.snapshot_id
    while ancestor is not None and ancestor in known:
        if (batch := _batch(known[ancestor], query_id)) is not None:
            return batch
        ancestor = known[ancestor].parent_snapshot_id
    recorded = int(table.properties.get(_last_batch_property(branch, query_id), -1))
    rolled_back = any(_batch(snapshot, query_id) == recorded for snapshot in known.values())
    return -1 if rolled_back else recorded


def _batch(snapshot: Snapshot, query_id: str) -> int | None:
    """The batch id of a query in a snapshot summary."""
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    return int(summary[BATCH_ID]) if summary.get(QUERY_ID) == query_id else None


def _last_batch_property(branch: str, query_id: str) -> str:
    return f"floeplan.stream.{branch}.{query_id}"

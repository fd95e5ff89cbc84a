"""Reads and writes of ``format("floeplan")``, batch and stream: tasks read and write, the driver plans and commits.

Streams read appended rows by snapshot. An offset is a snapshot id; a batch has the rows added by the append snapshots
after one offset, up to and including the next. A stream starts with all rows of the oldest snapshot that has not
expired, or after ``start-snapshot-id``. A later snapshot that deletes or overwrites rows fails the stream, which can
only represent appends; ``streaming-skip-overwrite-snapshots`` skips it. Compactions change no rows and are skipped.

Streams write each batch exactly once: the summary of each snapshot records the query id and batch id. A batch that is
already committed, because the query stopped after the commit and before Spark's checkpoint, is not committed again.

Fail-safe: only files that tasks reported are committed; those of a failed job are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.utils.config import Config
from pyspark import TaskContext
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import InputPartition, WriterCommitMessage

from floeplan.catalog import connect, load_table
from floeplan.dml.commit import ChangeBuilder, commit_changes, discard_on_failure
from floeplan.dml.overwrite import plan_replacement, replace_matching
from floeplan.dml.target import Command, resolve
from floeplan.errors import InvalidOptionError, UnknownOptionError, UnsupportedError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.scan.file_rows import TableRows
from floeplan.scan.incremental import plan_appends, snapshots_between
from floeplan.scan.model import FileScan
from floeplan.scan.plan import plan_scan
from floeplan.snapshot.reader import select
from floeplan.spark.read.reader import FileReading, share_files
from floeplan.tasks.runner import new_attempt
from floeplan.write.data_files import write_data_files
from floeplan.write.metrics import remove_written_files
from floeplan.write.target import WriteTarget

NAME = "floeplan"
STREAM_OPTIONS = ("start-snapshot-id", "streaming-skip-overwrite-snapshots", "query-id")
_READ_OPTIONS = ("table", "path", "catalog", "where", "columns", "snapshot-id", "ref")
_OPTIONS = (*_READ_OPTIONS, "branch", "overwrite-where", "trust-lists", "allow-late-equality-deletes")

QUERY_ID, BATCH_ID = "floeplan.stream-query-id", "floeplan.stream-batch-id"
_SKIP = "streaming-skip-overwrite-snapshots"
_BEGINNING = 0


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of ``format("floeplan")``; names match case-insensitively, as Spark lowercases them."""

    given: Mapping[str, str]

    def __post_init__(self) -> None:
        known = {*_OPTIONS, *STREAM_OPTIONS, "checkpointlocation"}  # the last one is Spark's own
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


class FloeplanReader(spark.DataSourceReader):
    """Plans a scan on the driver, and reads its files in tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._plan = plan_scan(
            options.table(),
            options.get("where"),
            columns=options.columns,
            snapshot_id=options.number("snapshot-id"),
            ref=options.get("ref"),
        )
        self._reading = FileReading.of(self._plan)

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


class FloeplanWriter(spark.DataSourceArrowWriter):
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
        target = resolve(
            self._options.table(),
            command,
            branch=self._options.get("branch"),
            trust_lists=self._options.flag("trust-lists"),
            allow_late_equality_deletes=self._options.flag("allow-late-equality-deletes"),
        )
        changes = ChangeBuilder()
        conflict_filter: IrExpr = TRUE
        with discard_on_failure(changes, target):
            for entries in written(messages):
                changes.insert(entries)
            if self._overwrite:
                where = self._options.get("overwrite-where") or TRUE
                plan = plan_replacement(target, where)
                replace_matching(target, where, plan, changes)
                conflict_filter = plan.compiled.predicate
            commit_changes(target, changes, conflict_filter=conflict_filter)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the files of a job that failed."""
        remove_aborted(messages, self._target)


def remove_aborted(messages: list[WriterCommitMessage | None], target: WriteTarget) -> None:
    """Remove the files of a job of which a task failed and sent no message.

    Spark also aborts after a commit that raised an error. The commit has removed the files then, or does not know
    whether the table has them.
    """
    if None in messages:
        _remove(messages, target)


def _remove(messages: list[WriterCommitMessage | None], target: WriteTarget) -> None:
    for entries in written(messages):
        remove_written_files(entries, target.files)


def written(messages: list[WriterCommitMessage | None]) -> Iterator[EntriesTable]:
    """The entries of the tasks that wrote anything."""
    for message in messages:
        if isinstance(message, WrittenFiles) and len(message.entries):
            yield message.entries


# Streams.


class AppendStream(spark.DataSourceStreamReader):
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
            chain = snapshots_between(table, after, until)
            for snapshot in chain[1:] if after is None else chain:  # all rows of the oldest snapshot are read
                if snapshot.summary is None or snapshot.summary.operation not in (Operation.APPEND, Operation.REPLACE):
                    what = "unknown" if snapshot.summary is None else snapshot.summary.operation.value
                    raise UnsupportedError(
                        f"snapshot {snapshot.snapshot_id} changes rows ({what}), which a stream of appends cannot "
                        f"represent; to skip such snapshots set {_SKIP} to true",
                        context={"snapshot_id": snapshot.snapshot_id, "operation": what},
                    )
        plan = plan_appends(table, after, until, self._options.get("where"), self._options.columns)
        return [FilesPartition(files) for files in share_files(plan, np.arange(len(plan.files)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        assert isinstance(partition, FilesPartition)
        return self._reading.batches(partition.files)


class StreamAppends(spark.DataSourceStreamArrowWriter):
    """Appends every batch of a stream exactly once."""

    def __init__(self, options: SourceOptions, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOptionError("output mode complete is not supported; a stream appends")
        self._options = options
        self._target = WriteTarget.of(options.table())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        entries = write_data_files(self._target, iterator, file_name_token=new_attempt(), sort=True)
        query_id = self._options.get("query-id") or None
        if query_id is None and (context := TaskContext.get()) is not None:
            query_id = context.getLocalProperty("sql.streaming.queryId")  # the same after a restart from a checkpoint
        return WrittenFiles(entries, query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, unless it is committed already."""
        query_id = next((m.query_id for m in messages if isinstance(m, WrittenFiles) and m.query_id), None)
        if query_id is None:
            _remove(messages, self._target)
            raise InvalidOptionError("Spark reported no query id for the stream; set the option 'query-id'")
        target = resolve(self._options.table(), Command.APPEND, branch=self._options.get("branch"))
        if _last_batch(target.table, target.branch, query_id) >= batchId:
            _remove(messages, self._target)
            return
        changes = ChangeBuilder()
        properties = {_last_batch_property(target.branch, query_id): str(batchId)}
        summary = {QUERY_ID: query_id, BATCH_ID: str(batchId)}
        with discard_on_failure(changes, target):
            for entries in written(messages):
                changes.insert(entries)
            commit_changes(target, changes, summary=summary, properties=properties)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove the files of a batch that failed."""
        remove_aborted(messages, self._target)


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

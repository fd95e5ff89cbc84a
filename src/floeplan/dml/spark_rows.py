"""Changes that Spark computes: conditions and values that only Spark can evaluate, and large joins.

::

    files ──read──► (file, position, columns) ──Spark: filter, join──► (file, position, clause, values) ──► sink

Python tasks read the columns that the expressions name. Spark chooses the clause of each row and computes new values.
After a join, Spark brings the rows of a file together again. A sink task reads the other columns of updated rows from
their files, so that unassigned values never pass through Spark and each file is read once, writes the new rows, and
deletes the old ones as in every other command. It returns manifest entries: no row and no position reaches the driver.

Fail-safe: all changes of a file are in one task, which counts rows that change twice; a file in two tasks is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyroaring import BitMap64
from pyspark.sql import functions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from floeplan.dml.assign import Assignment, Assignments, replace_value, top_fields
from floeplan.dml.row_task import DeletePositions, RowTask, RowTaskResult
from floeplan.errors import BadInputError, FloeplanError, TypeMismatchError
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.parquet.prune.selection import RowSelection
from floeplan.predicate.ir import path_text
from floeplan.scan.file_rows import FileRows, TableRows
from floeplan.spark.read.reader import split_by_bytes
from floeplan.spark.types import assignable, spark_schema, spark_type, to_spark_arrow
from floeplan.spark.write import ReportFiles, removed_on_failure
from floeplan.tasks.runner import RESULT_SCHEMA, load_results, new_attempt, result_batch
from floeplan.tasks.shipping import ensure_package
from floeplan.tasks.worker import report_errors, reraise_task_errors, reusable
from floeplan.write.data_files import FileTask, FullRowReader, write_data_files
from floeplan.write.metrics import remove_written_files
from floeplan.write.position_deletes import merge_positions
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FILE, POSITION, CLAUSE, VALUE = "_fp_file", "_fp_position", "_fp_clause", "_fp_value_"
_ZONE = "spark.sql.session.timeZone"
ROWS_PER_BATCH = 65_536
FILES_PER_TASK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class SparkClause:
    """A clause that Spark evaluates: it updates or inserts rows, or deletes them without assignments."""

    assignments: Assignments | None
    inserts: bool = False
    single: bool = True
    """Whether two source rows may not apply it to one target row."""


@dataclass(frozen=True, slots=True)
class TargetRows:
    """Files whose live rows become a DataFrame."""

    table: TableRows
    schema: Schema
    tasks: tuple[FileTask, ...]

    @staticmethod
    def of(table: Table, schema: Schema, tasks: Iterable[FileTask]) -> TargetRows:
        """Files of a table."""
        return TargetRows(TableRows.of(table, schema), schema, tuple(tasks))

    def frame(self, spark: SparkSession, columns: Iterable[int]) -> DataFrame:
        """File number, position and the columns that hold these fields."""
        wanted = top_fields(self.schema, columns)
        shape = to_arrow_schema(spark_schema(wanted))
        shares = split_by_bytes(np.array([task.file.file_size for task in self.tasks]), FILES_PER_TASK_BYTES)
        packs = [share.tolist() for share in shares] or [[]]
        table, tasks = self.table, self.tasks

        def live_rows(files: FileRows, number: int) -> pa.Table:
            opened = files.open(tasks[number].file)
            selection = opened.undeleted(opened.planned())
            rows, live = opened.read(wanted, selection)
            numbers = pa.repeat(pa.scalar(number, pa.int32()), len(live))
            shown = [numbers, pa.array(selection.to_rows()), *to_spark_arrow(rows, shape).columns]
            found = pa.table(shown, names=[FILE, POSITION, *shape.names])
            return found if live.all() else found.filter(pa.array(live))

        @reusable
        @report_errors
        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            files = FileRows(table)
            for batch in batches:
                for number in [number for pack in batch.column(0).to_pylist() for number in packs[pack]]:
                    yield from live_rows(files, number).to_batches(ROWS_PER_BATCH)

        ensure_package(spark)
        own = StructField(FILE, IntegerType()), StructField(POSITION, LongType())
        schema = StructType([*own, *spark_schema(wanted).fields])
        return spark.range(0, len(packs), 1, len(packs)).mapInArrow(read, schema)


def apply_clauses(
    frame: DataFrame,
    clause: Column,
    clauses: Sequence[SparkClause],
    rows: TargetRows,
    target: WriteTarget,
    keep: Callable[[SinkResult], None],
    *,
    copies: bool,
    joined: bool,
) -> None:
    """Compute clauses and values of a frame, change the files in sink tasks, and hand over what they wrote.

    Args:
        frame: The rows of ``TargetRows.frame`` and, after a join, columns of the other side.
        clause: The number of the clause that applies to a row; null for none.
        clauses: What the clauses do.
        rows: The files.
        target: Where new rows are written.
        keep: Called with the result of each task.
        copies: Whether files are written again without their changed rows, instead of deletes.
        joined: Whether rows of a file may be in several partitions of the frame.
    """
    values = _values(frame, clause, clauses, rows.schema)
    chosen = frame.select(FILE, POSITION, clause.alias(CLAUSE), *values).where(functions.col(CLAUSE).isNotNull())
    if joined:  # rows to insert have no file: those of a partition stay together
        chosen = chosen.repartition(functions.expr(f"coalesce({FILE}, -1 - spark_partition_id())"))
    discard = partial(SinkResult.discard, files=target.files)
    with reraise_task_errors(), removed_on_failure(frame.sparkSession, target.files) as report:

        @reusable
        def sink(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            decided = [batch for batch in batches if batch.num_rows]
            if decided:
                table = pa.Table.from_batches(decided)
                yield result_batch(0, partial(_write_decided, table, rows, target, clauses, copies, report))

        found = load_results(chosen.mapInArrow(sink, RESULT_SCHEMA).toArrow(), discard, keep)
        files = [path for part in found for path in part.files]
        if len(files) > len(set(files)):
            raise FloeplanError("two tasks changed one file; nothing is committed")


@contextmanager
def in_utc(spark: SparkSession) -> Iterator[None]:
    """Evaluate expressions in UTC, as planning does; the session's time zone is restored afterwards."""
    own = spark.conf.get(_ZONE)
    if own == "UTC":
        yield
        return
    spark.conf.set(_ZONE, "UTC")
    try:
        yield
    finally:
        spark.conf.set(_ZONE, str(own))


def first_clause(clauses: Sequence[tuple[int, str | None]]) -> Column:
    """The number of the first clause whose condition holds."""
    nothing = functions.lit(None).cast("int")
    pairs = [(number, functions.expr(text or "TRUE")) for number, text in clauses]
    return reduce(
        lambda rest, pair: functions.when(pair[1], functions.lit(pair[0])).otherwise(rest), reversed(pairs), nothing
    )


def _values(frame: DataFrame, clause: Column, clauses: Sequence[SparkClause], schema: Schema) -> list[Column]:
    """One column for each path that any clause assigns."""
    columns = []
    for at, items in enumerate(_assigned(clauses).values()):
        field_ = next(iter(items.values())).field
        type_ = spark_type(field_.field_type, field_.name)
        value = functions.lit(None).cast(type_)
        for number, item in items.items():
            text = item.value.expression.text
            given = frame.select(functions.expr(text)).schema.fields[0].dataType
            if not assignable(given, type_):
                raise TypeMismatchError(
                    f"{text} is {given.simpleString()} and cannot be stored in column {path_text(item.path)}, which is "
                    f"{type_.simpleString()}; write a cast",
                    context={"column": path_text(item.path)},
                )
            value = functions.when(clause == number, functions.expr(text).cast(type_)).otherwise(value)
        columns.append(value.alias(f"{VALUE}{at}"))
    return columns


def _assigned(clauses: Sequence[SparkClause]) -> dict[tuple[str, ...], dict[int, Assignment]]:
    """Assignments by path, then by clause."""
    found: dict[tuple[str, ...], dict[int, Assignment]] = {}
    for number, clause in enumerate(clauses):
        for item in () if clause.assignments is None else clause.assignments.items:
            found.setdefault(item.path, {})[number] = item
    return found


@dataclass(slots=True)
class SinkResult:
    """What a sink task wrote: new rows, and what became of the files of the old ones."""

    files: list[str]
    changed: RowTaskResult
    entries: EntriesTable | None = None
    updated: int = 0
    inserted: int = 0

    def discard(self, files: TableFiles) -> None:
        """Delete the files the task wrote."""
        self.changed.discard(files)
        remove_written_files(self.entries, files)


def _write_decided(
    decided: pa.Table,
    rows: TargetRows,
    target: WriteTarget,
    clauses: Sequence[SparkClause],
    copies: bool,
    report: ReportFiles,
) -> SinkResult:
    """Write the new rows of one task, and delete the old ones."""
    changed = decided.filter(pc.is_valid(decided[FILE]))
    files, positions = np.asarray(changed[FILE]), np.asarray(changed[POSITION])
    checked = np.isin(np.asarray(changed[CLAUSE]), [number for number, c in enumerate(clauses) if c.single])
    by_file, repeated = dict[int, BitMap64](), 0
    for number in np.unique(files).tolist():
        mine = files == number
        by_file[number] = merge_positions(positions[mine])
        repeated += int(checked[mine].any()) * (int(mine.sum()) - len(by_file[number]))
    if repeated:
        raise BadInputError(
            f"several source rows match one target row ({repeated} too many); make the source unique by its key",
            kind="ambiguous-merge",
        )
    tasks = {number: rows.tasks[number] for number in by_file}
    deletes = DeletePositions({tasks[number].file.path: found for number, found in by_file.items()})
    result = SinkResult(list(deletes.positions), RowTaskResult())
    paths = list(_assigned(clauses))
    whole = FullRowReader(target, FileRows(rows.table))

    def values(assignments: Assignments, mine: pa.Table) -> Iterator[tuple[tuple[str, ...], pa.Array]]:
        for item in assignments.items:
            yield item.path, mine[f"{VALUE}{paths.index(item.path)}"].combine_chunks()

    def new_rows() -> Iterator[pa.Table]:
        for number, clause in enumerate(clauses):
            mine = decided.filter(pc.equal(decided[CLAUSE], number))
            if clause.assignments is None or not mine.num_rows:
                continue
            if clause.inserts:
                result.inserted += mine.num_rows
                yield pa.table({path[0]: value for path, value in values(clause.assignments, mine)})
                continue
            # Updated rows are read at their positions, file by file, and get their new values.
            result.updated += mine.num_rows
            for file in pc.unique(mine[FILE]).to_pylist():
                of_file = mine.filter(pc.equal(mine[FILE], file)).sort_by(POSITION)
                at = np.asarray(of_file[POSITION])
                updated = whole.read_for_update(rows.tasks[file], RowSelection.from_runs(at, np.ones_like(at)))
                for path, value in values(clause.assignments, of_file):
                    updated = replace_value(updated, path, value)
                yield updated

    attempt = new_attempt()
    result.entries = report(write_data_files(target, new_rows(), file_name_token=attempt, sort=True))
    if tasks:
        task = RowTask(rows.table, target, deletes, copies)
        try:
            result.changed = task(list(tasks.values()), f"{attempt}-old")
        except BaseException:
            remove_written_files(result.entries, target.files)
            raise
        for written in (result.changed.added_data, result.changed.added_deletes):
            if written is not None:
                report(written)
    return result

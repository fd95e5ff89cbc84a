"""Changes that Spark computes: conditions and values that only Spark can evaluate, and large joins.

::

    files ──read──► (file, position, columns) ──Spark: filter, join──► (file, position, clause, values) ──► sink

Python tasks read the columns that the expressions name. Spark chooses the clause of each row and computes new values.
The sink tasks read the other columns of updated rows from their files, so that unassigned values never pass through
Spark, and write the new rows. They return positions and entries; the old rows are then deleted at their positions as in
every other command.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyroaring import BitMap64

from floeplan.dml.assign import Assignment, Assignments, replace_value, top_fields
from floeplan.errors import BadInputError, TypeMismatchError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.parquet.prune.selection import RowSelection
from floeplan.predicate.ir import path_text
from floeplan.scan.file_rows import FileRows, TableRows
from floeplan.spark.types import assignable, spark_schema, spark_type, to_spark_arrow
from floeplan.spark.write import ReportedFiles, removed_on_failure
from floeplan.tasks.runner import RESULT_SCHEMA, load_results, new_attempt, result_batch
from floeplan.tasks.shipping import ensure_package
from floeplan.tasks.worker import ArrowTask, report_errors, reraise_task_errors, reusable
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


@dataclass(slots=True)
class FoundRows:
    """What the sinks return: positions to delete by file, entries of new rows, and counts."""

    positions: dict[str, BitMap64] = field(default_factory=dict)
    entries: list[EntriesTable] = field(default_factory=list)
    updated: int = 0
    inserted: int = 0


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
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import IntegerType, LongType, StructField, StructType

        wanted = top_fields(self.schema, columns)
        own = [StructField(FILE, IntegerType()), StructField(POSITION, LongType())]
        shown = StructType([*own, *spark_schema(wanted).fields])
        batches_of_files = _file_batches(self.tasks)
        read = _reader(self, batches_of_files, wanted, to_arrow_schema(StructType(shown.fields[2:])))
        ensure_package(spark)
        return spark.range(0, len(batches_of_files), 1, len(batches_of_files)).mapInArrow(read, shown)


def apply_clauses(
    frame: DataFrame, clause: Column, clauses: Sequence[SparkClause], rows: TargetRows, target: WriteTarget
) -> FoundRows:
    """Compute clauses and values of a frame, and write the new rows in sink tasks."""
    values = _values(frame, clause, clauses, rows.schema)
    from pyspark.sql import functions

    chosen = frame.select(FILE, POSITION, clause.alias(CLAUSE), *values).where(functions.col(CLAUSE).isNotNull())
    with reraise_task_errors(), removed_on_failure(frame.sparkSession, target.files) as written:
        answers = chosen.mapInArrow(_sink(rows, target, tuple(clauses), written), RESULT_SCHEMA).toArrow()
    parts: list[_SinkResult] = load_results(answers, lambda part: remove_written_files(part.entries, target.files))
    found = FoundRows()
    for part in parts:
        found.entries += [] if part.entries is None else [part.entries]
        found.updated += part.updated
        found.inserted += part.inserted
        for number, positions in part.positions.items():
            path = rows.tasks[number].file.path
            found.positions[path] = found.positions.get(path, BitMap64()) | positions
    _check_single(parts, found, target)
    return found


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
    from pyspark.sql import functions

    nothing = functions.lit(None).cast("int")
    pairs = [(number, functions.expr(text or "TRUE")) for number, text in clauses]
    return reduce(
        lambda rest, pair: functions.when(pair[1], functions.lit(pair[0])).otherwise(rest), reversed(pairs), nothing
    )


def _check_single(parts: Sequence[_SinkResult], found: FoundRows, target: WriteTarget) -> None:
    once = sum(len(positions) for part in parts for positions in part.positions.values())
    twice = sum(part.repeated for part in parts) + once - sum(map(len, found.positions.values()))
    if twice:
        for entries in found.entries:
            remove_written_files(entries, target.files)
        raise BadInputError(
            f"several source rows match one target row ({twice} too many); make the source unique by its key",
            kind="ambiguous-merge",
        )


def _values(frame: DataFrame, clause: Column, clauses: Sequence[SparkClause], schema: Schema) -> list[Column]:
    """One column for each path that any clause assigns."""
    from pyspark.sql import functions

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


def _file_batches(tasks: Sequence[FileTask]) -> list[list[int]]:
    ends = np.cumsum([task.file.file_size for task in tasks])
    cuts = np.flatnonzero(np.diff((ends - 1) // FILES_PER_TASK_BYTES)) + 1
    return [part.tolist() for part in np.split(np.arange(len(tasks)), cuts) if len(part)] or [[]]


def _reader(rows: TargetRows, batches_of_files: Sequence[Sequence[int]], wanted: Schema, shape: pa.Schema) -> ArrowTask:
    @reusable
    @report_errors
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = FileRows(rows.table)
        for batch in batches:
            for number in [number for pack in batch.column(0).to_pylist() for number in batches_of_files[pack]]:
                yield from _live_rows(files, rows.tasks[number], number, wanted, shape).to_batches(ROWS_PER_BATCH)

    return read


def _live_rows(files: FileRows, task: FileTask, number: int, wanted: Schema, shape: pa.Schema) -> pa.Table:
    opened = files.open(task.file)
    selection = opened.undeleted(opened.planned())
    rows, live = opened.read(wanted, selection)
    shown = to_spark_arrow(rows, shape)
    own = [pa.repeat(pa.scalar(number, pa.int32()), len(live)), pa.array(selection.to_rows())]
    table = pa.table([*own, *shown.columns], names=[FILE, POSITION, *shape.names])
    return table if live.all() else table.filter(pa.array(live))


@dataclass(slots=True)
class _SinkResult:
    entries: EntriesTable | None = None
    positions: dict[int, BitMap64] = field(default_factory=dict)
    repeated: int = 0
    updated: int = 0
    inserted: int = 0


def _sink(rows: TargetRows, target: WriteTarget, clauses: tuple[SparkClause, ...], written: ReportedFiles) -> ArrowTask:
    @reusable
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decided = [batch for batch in batches if batch.num_rows]
        if decided:
            yield result_batch(0, partial(_Sink(rows, target, clauses, written).take, pa.Table.from_batches(decided)))

    return run


class _Sink:
    """Writes the new rows of one task and gathers the positions of the old ones."""

    def __init__(
        self, rows: TargetRows, target: WriteTarget, clauses: tuple[SparkClause, ...], written: ReportedFiles
    ) -> None:
        self.rows, self.target, self.clauses, self.written = rows, target, clauses, written
        self.paths = list(_assigned(clauses))
        self.whole = FullRowReader(target, FileRows(rows.table))
        self.result = _SinkResult()

    def take(self, decided: pa.Table) -> _SinkResult:
        """Write and collect all rows of this task."""
        self._gather(decided)
        if self.result.repeated:
            return self.result
        new = write_data_files(self.target, self._new_rows(decided), file_name_token=new_attempt(), sort=True)
        self.result.entries = self.written.add(new)
        return self.result

    def _gather(self, decided: pa.Table) -> None:
        changed = decided.filter(pc.is_valid(decided[FILE]))
        files, positions = np.asarray(changed[FILE]), np.asarray(changed[POSITION])
        clause = np.asarray(changed[CLAUSE])
        checked = np.isin(clause, [number for number, c in enumerate(self.clauses) if c.single])
        for number in np.unique(files).tolist():
            mine = files == number
            found = merge_positions(positions[mine])
            self.result.positions[number] = found
            self.result.repeated += int(checked[mine].any()) * (int(mine.sum()) - len(found))

    def _new_rows(self, decided: pa.Table) -> Iterator[pa.Table]:
        for number, clause in enumerate(self.clauses):
            mine = decided.filter(pc.equal(decided[CLAUSE], number))
            if clause.assignments is None or not mine.num_rows:
                continue
            if clause.inserts:
                self.result.inserted += mine.num_rows
                yield pa.table(dict(self._assigned_values(clause.assignments, mine)))
            else:
                self.result.updated += mine.num_rows
                yield from self._updated(clause.assignments, mine)

    def _updated(self, assignments: Assignments, decided: pa.Table) -> Iterator[pa.Table]:
        """The rows at these positions, file by file, with their new values."""
        for number in pc.unique(decided[FILE]).to_pylist():
            mine = decided.filter(pc.equal(decided[FILE], number)).sort_by(POSITION)
            positions = np.asarray(mine[POSITION])
            selection = RowSelection.from_runs(positions, np.ones_like(positions))
            rows = self.whole.read_for_update(self.rows.tasks[number], selection)
            for path, values in self._values_at(assignments, mine):
                rows = replace_value(rows, path, values)
            yield rows

    def _values_at(self, assignments: Assignments, decided: pa.Table) -> Iterator[tuple[tuple[str, ...], pa.Array]]:
        for item in assignments.items:
            yield item.path, decided[f"{VALUE}{self.paths.index(item.path)}"].combine_chunks()

    def _assigned_values(self, assignments: Assignments, decided: pa.Table) -> Iterator[tuple[str, pa.Array]]:
        for path, values in self._values_at(assignments, decided):
            yield path[0], values

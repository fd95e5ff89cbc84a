"""Running a merge: index the source, join it with the files in tasks, insert the unmatched rows, commit once.

The source is indexed by its key once and sent to the tasks; files that hold none of its keys are not opened. Spark
joins when Arrow cannot evaluate an expression, or when the source exceeds ``SHIPPED_ROWS`` or ``SHIPPED_BYTES``, or
``COLLECTED_BYTES`` if it is a DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from floeplan.dml.assign import arrow_evaluates, top_fields
from floeplan.dml.commit import ChangeBuilder, DmlResult, commit_changes, discard_on_failure
from floeplan.dml.delete_update import add_found_rows, file_tasks, plan_rows, refuse_moves, run_decision
from floeplan.dml.merge.compile import (
    CompiledMerge,
    Key,
    MergeCondition,
    MergeStatement,
    When,
    compile_merge,
    is_source,
    key_predicate,
    source_schema,
)
from floeplan.dml.merge.join import Joined, KeyIndex, MergeSource, Rows, common_key_type, key_values, true_mask
from floeplan.dml.row_task import rows_of
from floeplan.dml.sources import arrow_table, frame_rows, is_data_frame
from floeplan.dml.target import DmlTarget
from floeplan.errors import UnsupportedError
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.predicate.build import and_
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.predicate.names import Names
from floeplan.predicate.rows.arrow_columns import typed_columns_of
from floeplan.scan.plan import ScanPlan
from floeplan.scan.projection import arrow_schema
from floeplan.tasks.runner import run_tasks
from floeplan.write.data_files import FileTask, write_data_files
from floeplan.write.metrics import remove_written_files
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from floeplan.dml.spark_rows import SinkResult

_SOURCE = "_fp_source"
"""The name of the column that is TRUE in source rows."""
SHIPPED_ROWS, SHIPPED_BYTES = 5_000_000, 512 * 2**20
"""Larger sources are not sent to every task but joined by Spark, when there is a session."""
COLLECTED_BYTES = 128 * 2**20
"""A DataFrame with more bytes in the columns that the merge names is not collected but joined by Spark."""

INSERT_ROWS = 500_000
"""New rows that one task writes; fewer are written in this process."""


@dataclass(frozen=True, slots=True)
class PlannedMerge:
    """A merge whose clauses are compiled and whose files are planned.

    Attributes:
        spark: The session to join on, if any.
        given: The rows of the source: a DataFrame, or Arrow rows.
        source: The columns of the source.
        compiled: The condition and the clauses.
        indexed: The source by its keys, when the join runs in tasks; ``None`` when Spark joins.
        predicate: The rows of the table that may match.
        plan: Their files.
    """

    spark: SparkSession | None
    given: Any
    source: Schema
    compiled: CompiledMerge
    indexed: MergeSource | None
    predicate: IrExpr
    plan: ScanPlan


def plan_merge(target: DmlTarget, merge: MergeStatement) -> PlannedMerge:
    """Compile a merge and plan its files; nothing is written."""
    frame = merge.source if is_data_frame(merge.source) else None
    spark = frame.sparkSession if merge.spark is None and frame is not None else merge.spark

    # 1. Compile the condition and the clauses over the columns of both sides.
    rows: Any = None
    if frame is None:
        rows = arrow_table(merge.source, target.table.io, merge.arguments.get("catalog"))
        source = source_schema(rows.schema)
    else:
        from pyspark.sql.pandas.types import to_arrow_schema

        source = source_schema(to_arrow_schema(frame.schema))
    compiled = compile_merge(merge, target.schema, source)
    condition, needed = compiled.condition, top_fields(source, compiled.fields)

    # 2. Choose the join: in tasks with the source sent to them, or by Spark.
    in_arrow = arrow_evaluates((target.schema, source), compiled.conditions, compiled.assignments) and all(
        _joinable(target.schema, source, key) for key in condition.keys
    )
    if frame is not None and in_arrow:
        columns = needed.fields or source.fields[:1]  # at least one, so that rows can be counted
        quoted = [f"`{field.name.replace('`', '``')}`" for field in columns]
        rows = frame_rows(frame.select(*quoted), SHIPPED_ROWS, COLLECTED_BYTES)
    is_small = rows is not None and rows.num_rows <= SHIPPED_ROWS and rows.nbytes <= SHIPPED_BYTES
    on_spark = spark is not None and not (is_small and in_arrow)

    # 3. Plan the files that may hold matching rows.
    indexed = None
    predicate = condition.target_only
    if not on_spark:
        assert rows is not None, "only Spark joins a DataFrame that is not collected"
        indexed = _index(rows, needed, condition, target.schema)
        predicate = _key_predicate(indexed, condition, target.schema)
    if compiled.by_source:
        predicate = TRUE
    plan = plan_rows(target, predicate, spark)
    if changing := (*compiled.matched, *compiled.by_source):
        every = np.ones(len(plan.files), dtype=np.bool_)
        refuse_moves(target, plan.files, every, updates=any(when.assignments for when in changing))
    return PlannedMerge(spark, rows if frame is None else frame, source, compiled, indexed, predicate, plan)


def run_merge(target: DmlTarget, merge: MergeStatement) -> DmlResult:
    """Join, write and commit."""
    planned = plan_merge(target, merge)
    spark, compiled, indexed, plan = planned.spark, planned.compiled, planned.indexed, planned.plan
    changes = ChangeBuilder(planned=plan.files)
    with discard_on_failure(changes, target):
        chosen = file_tasks(plan.files, np.ones(len(plan.files), dtype=np.bool_))
        if indexed is None:
            assert spark is not None
            _join_on_spark(spark, planned, target, merge, chosen, partial(add_found_rows, changes))
        else:
            decision = Joined(target.schema, indexed, compiled.condition, compiled.matched, compiled.by_source)
            run_decision(target, chosen, decision, changes, spark)
            _insert_unmatched(target, indexed, compiled.not_matched, changes, spark)
        return commit_changes(
            target,
            changes,
            conflict_filter=planned.predicate,
            isolation=target.isolation,
            summary=merge.summary,
            options=merge.options,
        )


def _index(rows: pa.Table, needed: Schema, condition: MergeCondition, schema: Schema) -> MergeSource:
    """Index the source by its keys; of its columns only those that the merge names are kept."""
    if needed.fields:
        shape = pa.schema([field.remove_metadata() for field in arrow_schema(needed)])
        rows = rows.select([field.name for field in needed.fields]).cast(shape)
    else:
        rows = pa.table({"none": pa.nulls(rows.num_rows)})
    of_source = typed_columns_of(rows, needed)
    usable = true_mask(condition.source_only, rows.num_rows, of_source)
    types, keys = [], []
    for key in condition.keys:
        column = of_source(key.source)
        types.append(common_key_type(schema_to_pyarrow(schema.find_type(key.target)), column.type))
        keys.append(key_values(column, types[-1]))
    index = KeyIndex.build(keys, [key.null_safe for key in condition.keys], usable)
    return MergeSource(rows, needed, index, tuple(types))


def _key_predicate(source: MergeSource, condition: MergeCondition, schema: Schema) -> IrExpr:
    """What every target row that matches a source row satisfies."""
    parts = [condition.target_only]
    of_source = typed_columns_of(source.rows, source.schema)
    usable = pa.array(np.sort(source.index.order))
    for key, type_ in zip(condition.keys, source.key_types, strict=True):
        name = schema.find_column_name(key.target)
        is_primitive = isinstance(schema.find_type(key.target), PrimitiveType)
        if name is None or not is_primitive or key.null_safe or pa.types.is_floating(type_):
            continue
        column = Names(schema).find_id(key.target, name)
        if column is not None:
            parts.append(key_predicate(column, key_values(of_source(key.source).take(usable), type_)))
    return and_(*parts)


def _joinable(target: Schema, source: Schema, key: Key) -> bool:
    """Whether keys of these columns can be compared outside Spark."""
    try:
        common_key_type(*(schema_to_pyarrow(t) for t in (target.find_type(key.target), source.find_type(key.source))))
    except UnsupportedError:
        return False
    return True


def _insert_unmatched(
    target: DmlTarget, source: MergeSource, whens: Sequence[When], changes: ChangeBuilder, spark: SparkSession | None
) -> None:
    """Write the source rows that match no target row."""
    if not whens:
        return
    is_new = np.ones(source.rows.num_rows, dtype=np.bool_)
    is_new[rows_of(changes.matched_sources)] = False
    new = np.flatnonzero(is_new)
    parts = [new[at : at + INSERT_ROWS] for at in range(0, len(new), INSERT_ROWS)]
    task = partial(_write_unmatched, WriteTarget.of(target.table), source.rows, source.schema, whens)
    discard = partial(remove_written_files, files=TableFiles.of(target.table))
    run_tasks(task, parts, spark if len(parts) > 1 else None, discard=discard, keep=changes.insert)


def _write_unmatched(
    target: WriteTarget, rows: pa.Table, schema: Schema, whens: Sequence[When], parts: Sequence[Rows], attempt: str
) -> EntriesTable:
    """Write the source rows with these indexes, each by the first insert clause that applies."""

    def new_rows() -> Iterator[pa.Table]:
        for part in parts:
            left = rows.take(pa.array(part))
            for when in whens:
                mask = true_mask(when.condition, left.num_rows, typed_columns_of(left, schema))
                mine, left = left.filter(pa.array(mask)), left.filter(pa.array(~mask))
                if mine.num_rows and when.assignments is not None:
                    yield when.assignments.insert(mine.num_rows, typed_columns_of(mine, schema), target.arrow_schema)

    return write_data_files(target, new_rows(), file_name_token=attempt, sort=True)


def _join_on_spark(
    spark: SparkSession,
    planned: PlannedMerge,
    target: DmlTarget,
    merge: MergeStatement,
    chosen: Sequence[FileTask],
    keep: Callable[[SinkResult], None],
) -> None:
    """Join by Spark, for expressions only Spark can evaluate and for sources too large to send to every task."""
    from pyspark.sql import functions

    from floeplan.dml.spark_rows import FILE, SparkClause, TargetRows, apply_clauses, first_clause, in_utc
    from floeplan.spark.types import spark_schema

    given, compiled = planned.given, planned.compiled
    # Arrow rows keep exactly their types: timestamps without a zone stay without one.
    source = spark.createDataFrame(given, schema=spark_schema(planned.source)) if isinstance(given, pa.Table) else given
    # Clauses are numbered over all kinds; each kind names the columns of its own sides.
    names = compiled.names
    of_target, of_source = replace(names, source=Schema()), replace(names, schema=Schema())
    single = len(merge.matched) != 1 or compiled.matched[0] != When()  # a lone DELETE may apply twice to a row
    conditions: list[list[tuple[int, str | None]]] = []
    numbered: list[SparkClause] = []
    for texts, whens, seen, inserts, once in (
        (merge.matched, compiled.matched, names, False, single),
        (merge.by_source, compiled.by_source, of_target, False, True),
        (merge.not_matched, compiled.not_matched, of_source, True, True),
    ):
        conditions.append([])
        for text, when in zip(texts, whens, strict=True):
            condition = None if text.condition is None else seen.qualified(text.condition)
            conditions[-1].append((len(numbered), condition))
            assignments = None if when.assignments is None else when.assignments.map_text(seen.qualified)
            numbered.append(SparkClause(assignments, inserts, once))
    rows = TargetRows.of(target.table, target.schema, chosen)
    with in_utc(spark):
        left = rows.frame(spark, [i for i in compiled.fields if not is_source(i)]).alias(names.target_qualifiers[0])
        right = source.withColumn(_SOURCE, functions.lit(True)).alias(names.source_qualifiers[0])
        kinds = {(False, False): "inner", (True, False): "left", (False, True): "right", (True, True): "full"}
        how = kinds[bool(merge.by_source), bool(merge.not_matched)]
        joined = left.join(right, functions.expr(names.qualified(compiled.on)), how)
        in_target, in_source = functions.col(FILE).isNotNull(), functions.col(_SOURCE).isNotNull()
        matched, by_source, not_matched = map(first_clause, conditions)
        clause = functions.when(in_target & in_source, matched).when(in_target, by_source).otherwise(not_matched)
        writer = WriteTarget.of(target.table)
        apply_clauses(joined, clause, numbered, rows, writer, keep, copies=target.copies, joined=True)

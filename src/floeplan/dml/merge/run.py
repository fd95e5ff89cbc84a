"""Running a merge: index the source, join it with the files in tasks, insert the unmatched rows, commit once.

The source is indexed by its key once and sent to the tasks; files that hold none of its keys are not opened. Spark
joins when Arrow cannot evaluate an expression, or when the source exceeds ``SHIPPED_ROWS`` or ``SHIPPED_BYTES``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from floeplan.dml.assign import arrow_evaluates, top_fields
from floeplan.dml.commit import ChangeBuilder, DmlResult, commit_changes, discard_on_failure
from floeplan.dml.delete_update import apply_found_rows, run_decision
from floeplan.dml.merge.clauses import Clauses, MergeStatement, When, compile_clauses, condition_text
from floeplan.dml.merge.condition import (
    Key,
    MergeCondition,
    MergeNames,
    compile_condition,
    key_predicate,
    source_schema,
)
from floeplan.dml.merge.join import Joined, KeyIndex, MergeSource, Rows, common_key_type, key_values, true_mask
from floeplan.dml.planning import file_tasks, plan_rows
from floeplan.dml.row_task import rows_of
from floeplan.dml.sources import arrow_table, frame_rows, frame_schema, is_data_frame, source_frame
from floeplan.dml.target import DmlTarget
from floeplan.errors import UnsupportedError
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.predicate.build import and_, field_ids
from floeplan.predicate.ir import TRUE, Column, IrExpr
from floeplan.predicate.names import Names
from floeplan.predicate.rows.arrow_columns import typed_columns_of
from floeplan.scan.projection import arrow_schema
from floeplan.tasks.runner import run_tasks
from floeplan.write.data_files import write_data_files
from floeplan.write.metrics import remove_written_files
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHIPPED_ROWS, SHIPPED_BYTES = 5_000_000, 512 * 2**20
"""Larger sources are not sent to every task but joined by Spark, when there is a session."""

INSERT_ROWS = 500_000
"""New rows that one task writes; fewer are written in this process."""


def run_merge(target: DmlTarget, merge: MergeStatement) -> DmlResult:
    """Join, write and commit."""
    return _MergeRun(target, merge).run()


class _MergeRun:
    def __init__(self, target: DmlTarget, merge: MergeStatement) -> None:
        self.target, self.merge = target, merge
        self.spark: SparkSession | None = merge.spark
        if self.spark is None and is_data_frame(merge.source):
            self.spark = merge.source.sparkSession

    def run(self) -> DmlResult:
        """Join, write and commit."""
        given = self.merge.source
        frame = given if is_data_frame(given) else None
        rows: Any = arrow_table(given, self.target.table.io) if frame is None else None
        source = source_schema(rows.schema if frame is None else frame_schema(frame))
        names = MergeNames(self.target.schema, self.merge.case_sensitive, source, *self.merge.qualifiers)
        on = condition_text(self.merge.on, names)
        condition = compile_condition(on, names)
        clauses = compile_clauses(self.merge, self.target.schema, source)
        in_arrow = self._arrow_suffices(condition, clauses, source)
        if frame is not None and in_arrow:
            rows = frame_rows(frame.select(*_columns(condition, clauses, source)), SHIPPED_ROWS, SHIPPED_BYTES)
        if self.spark is not None and (rows is None or not in_arrow or not _can_be_shipped(rows)):
            ready = frame if frame is not None else source_frame(self.spark, rows, source)
            return self._run_on_spark(ready, names, on, condition, clauses)
        needed = top_fields(source, _fields(condition, clauses))
        rows = _only(rows, needed)
        return self._run(self._indexed(rows, needed, condition), condition, clauses)

    def _arrow_suffices(self, condition: MergeCondition, clauses: Clauses, source: Schema) -> bool:
        conditions = [condition.target_only, condition.source_only, condition.pairs]
        conditions += [when.condition for when in clauses.all]
        schemas = (self.target.schema, source)
        return arrow_evaluates(schemas, conditions, [when.assignments for when in clauses.all]) and all(
            _joinable(self.target.schema, source, key) for key in condition.keys
        )

    def _run_on_spark(
        self, source: DataFrame, names: MergeNames, on: str, condition: MergeCondition, clauses: Clauses
    ) -> DmlResult:
        from floeplan.dml.merge.on_spark import SparkMerge
        from floeplan.dml.spark_rows import TargetRows

        assert self.spark is not None
        predicate = TRUE if clauses.by_source else condition.target_only
        plan = plan_rows(self.target, predicate, self.spark)
        changes = ChangeBuilder(planned=plan.files)
        with discard_on_failure(changes, self.target):
            chosen = file_tasks(plan.files, np.ones(len(plan.files), dtype=np.bool_))
            join = SparkMerge(self.merge, clauses, names, on, _fields(condition, clauses))
            rows = TargetRows.of(self.target.table, self.target.schema, chosen)
            found = join.run(self.spark, source, rows, WriteTarget.of(self.target.table))
            apply_found_rows(self.target, chosen, found, changes, self.spark)
        return self._commit(changes, predicate)

    def _commit(self, changes: ChangeBuilder, predicate: IrExpr) -> DmlResult:
        return commit_changes(
            self.target,
            changes,
            conflict_filter=predicate,
            isolation=self.target.isolation,
            summary=self.merge.summary,
            options=self.merge.options,
        )

    def _indexed(self, rows: pa.Table, schema: Schema, condition: MergeCondition) -> MergeSource:
        of_source = typed_columns_of(rows, schema)
        usable = true_mask(condition.source_only, rows.num_rows, of_source)
        types, keys = [], []
        for key in condition.keys:
            column = of_source(key.source)
            types.append(common_key_type(_type_of(self.target.schema, key.target), column.type))
            keys.append(key_values(column, types[-1]))
        index = KeyIndex.build(keys, [key.null_safe for key in condition.keys], usable)
        return MergeSource(rows, schema, index, tuple(types))

    def _run(self, source: MergeSource, condition: MergeCondition, clauses: Clauses) -> DmlResult:
        predicate = TRUE if clauses.by_source else self._key_predicate(source, condition)
        plan = plan_rows(self.target, predicate, self.spark)
        changes = ChangeBuilder(planned=plan.files)
        with discard_on_failure(changes, self.target):
            chosen = file_tasks(plan.files, np.ones(len(plan.files), dtype=np.bool_))
            decision = Joined(self.target.schema, source, condition, clauses.matched, clauses.by_source)
            run_decision(self.target, chosen, decision, changes, self.spark)
            for entries in self._inserted(source, clauses.not_matched, changes):
                changes.insert(entries)
        return self._commit(changes, predicate)

    def _key_predicate(self, source: MergeSource, condition: MergeCondition) -> IrExpr:
        """What every target row that matches a source row satisfies."""
        parts = [condition.target_only]
        of_source = typed_columns_of(source.rows, source.schema)
        usable = pa.array(np.sort(source.index.order))
        for key, type_ in zip(condition.keys, source.key_types, strict=True):
            column = _column(self.target.schema, key.target)
            if column is not None and not key.null_safe and not pa.types.is_floating(type_):
                parts.append(key_predicate(column, key_values(of_source(key.source).take(usable), type_)))
        return and_(*parts)

    def _inserted(self, source: MergeSource, whens: Sequence[When], changes: ChangeBuilder) -> list[EntriesTable]:
        """Write the source rows that match no target row."""
        if not whens:
            return []
        is_new = np.ones(source.rows.num_rows, dtype=np.bool_)
        is_new[rows_of(changes.matched_sources)] = False
        new = np.flatnonzero(is_new)
        parts = [new[at : at + INSERT_ROWS] for at in range(0, len(new), INSERT_ROWS)]
        task = InsertRows(WriteTarget.of(self.target.table), source.rows, source.schema, tuple(whens))
        spark = self.spark if len(parts) > 1 else None
        return run_tasks(
            task, parts, spark, discard=partial(remove_written_files, files=TableFiles.of(self.target.table))
        )


@dataclass(frozen=True, slots=True)
class InsertRows:
    """Writes source rows by the first insert clause that applies."""

    target: WriteTarget
    rows: pa.Table
    schema: Schema
    whens: tuple[When, ...]

    def __call__(self, parts: Sequence[Rows], attempt: str) -> EntriesTable:
        """Write the source rows with these indexes."""
        return write_data_files(self.target, self._new_rows(parts), file_name_token=attempt, sort=True)

    def _new_rows(self, parts: Sequence[Rows]) -> Iterator[pa.Table]:
        for part in parts:
            left = self.rows.take(pa.array(part))
            for when in self.whens:
                mask = true_mask(when.condition, left.num_rows, typed_columns_of(left, self.schema))
                mine, left = left.filter(pa.array(mask)), left.filter(pa.array(~mask))
                if mine.num_rows and when.assignments is not None:
                    resolve = typed_columns_of(mine, self.schema)
                    yield when.assignments.insert(mine.num_rows, resolve, self.target.arrow_schema)


def _fields(condition: MergeCondition, clauses: Clauses) -> frozenset[int]:
    """All fields of both sides that a merge names."""
    expressions = [
        condition.target_only,
        condition.source_only,
        condition.pairs,
        *(when.condition for when in clauses.all),
    ]
    found = {field_id for expr in expressions for field_id in field_ids(expr)}
    found |= {field_id for key in condition.keys for field_id in (key.target, key.source)}
    return frozenset(found.union(*(when.assignments.field_ids for when in clauses.all if when.assignments)))


def _columns(condition: MergeCondition, clauses: Clauses, source: Schema) -> list[str]:
    """The source columns that a merge names, quoted; at least one, so that rows can be counted."""
    named = top_fields(source, _fields(condition, clauses)).fields or source.fields[:1]
    return [f"`{field.name.replace('`', '``')}`" for field in named]


def _only(rows: pa.Table, needed: Schema) -> pa.Table:
    """Some columns of the source, cast to the types of their schema."""
    if not needed.fields:
        return pa.table({"none": pa.nulls(rows.num_rows)})
    shape = pa.schema([field.remove_metadata() for field in arrow_schema(needed)])
    return rows.select([field.name for field in needed.fields]).cast(shape)


def _can_be_shipped(rows: pa.Table) -> bool:
    return bool(rows.num_rows <= SHIPPED_ROWS and rows.nbytes <= SHIPPED_BYTES)


def _joinable(target: Schema, source: Schema, key: Key) -> bool:
    """Whether keys of these columns can be compared outside Spark."""
    try:
        common_key_type(_type_of(target, key.target), _type_of(source, key.source))
    except UnsupportedError:
        return False
    return True


def _type_of(schema: Schema, field_id: int) -> pa.DataType:
    return schema_to_pyarrow(schema.find_type(field_id))


def _column(schema: Schema, field_id: int) -> Column | None:
    """A primitive column; ``None`` for nested types."""
    type_ = schema.find_type(field_id)
    name = schema.find_column_name(field_id)
    if not isinstance(type_, PrimitiveType) or name is None:
        return None
    return Names(schema).find_id(field_id, name)

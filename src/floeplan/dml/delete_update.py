"""DELETE and UPDATE of the rows that match a predicate.

Files that cannot match are not opened, and files of which every row is deleted are removed by metadata alone. Tasks
evaluate the others with Arrow; what only Spark can evaluate is evaluated by Spark, and its rows are changed the same
way.

Fail-safe: without a Spark session, an expression that Arrow cannot evaluate exactly is an error and nothing is done.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from pyiceberg.table import Table

from floeplan.dml.assign import (
    Assignments,
    SubqueryCondition,
    arrow_evaluates,
    compile_assignments,
    planned,
    statement_timestamp,
    with_timestamp,
)
from floeplan.dml.commit import ChangeBuilder, DmlResult, commit_changes, discard_on_failure
from floeplan.dml.planning import drop_proven, file_tasks, plan_rows, weights
from floeplan.dml.row_task import Clause, Decision, DeletePositions, Matching, RowTask, RowTaskResult
from floeplan.dml.target import Command, DmlTarget, Mode, resolve
from floeplan.metadata.files import TableFiles
from floeplan.predicate.build import field_ids
from floeplan.predicate.compile import PredicateSource
from floeplan.predicate.names import Names
from floeplan.scan.file_rows import TableRows
from floeplan.scan.scan_plan import ScanPlan
from floeplan.tasks.runner import run_tasks
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.change import IsolationLevel
from floeplan.write.data_files import FileTask
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from floeplan.dml.spark_rows import FoundRows


def delete(
    table: Table | str | os.PathLike[str],
    where: PredicateSource | SubqueryCondition,
    *,
    spark: SparkSession | None = None,
    branch: str | None = None,
    mode: Mode | str | None = None,
    isolation: IsolationLevel | str | None = None,
    case_sensitive: bool = True,
    trust_lists: bool = False,
    summary: Mapping[str, str] | None = None,
    options: CommitOptions | None = None,
) -> DmlResult:
    """Delete the rows for which a predicate is TRUE.

    Args:
        table: A PyIceberg table or ``namespace.name``.
        where: The predicate; ``"TRUE"`` deletes all rows. Subqueries are for SQL text (``fp.sql``).
        spark: A session; small changes need none.
        branch: The branch to change instead of ``main``.
        mode: ``copy-on-write`` or ``merge-on-read``; the table's ``write.delete.mode`` when not given.
        isolation: ``serializable`` or ``snapshot``; the table's ``write.delete.isolation-level`` when not given.
        case_sensitive: Whether column names must match exactly.
        trust_lists: Change rows even when the manifest list has fewer files than the snapshot summary counts.
        summary: Further properties of the snapshot.
        options: How the commit is retried.

    Returns:
        The result; ``snapshot_id`` is ``None`` when no row matched and nothing was committed.
    """
    target = resolve(table, Command.DELETE, branch=branch, mode=mode, isolation=isolation, trust_lists=trust_lists)
    where = with_timestamp(where, statement_timestamp())
    plan = plan_rows(target, planned(where), spark, case_sensitive)
    changes = ChangeBuilder(planned=plan.files)
    decided = not isinstance(where, SubqueryCondition)
    proven = drop_proven(plan.files, changes) if decided else np.zeros(len(plan.files), dtype=np.bool_)
    with discard_on_failure(changes, target):
        change_matching(target, where, plan, file_tasks(plan.files, ~proven), changes, spark)
    conflict_filter, level = plan.compiled.predicate, target.isolation
    return commit_changes(
        target, changes, conflict_filter=conflict_filter, isolation=level, summary=summary, options=options
    )


def update(
    table: Table | str | os.PathLike[str],
    set: Mapping[str, object],
    where: PredicateSource | SubqueryCondition = "TRUE",
    *,
    spark: SparkSession | None = None,
    branch: str | None = None,
    mode: Mode | str | None = None,
    isolation: IsolationLevel | str | None = None,
    case_sensitive: bool = True,
    trust_lists: bool = False,
    summary: Mapping[str, str] | None = None,
    options: CommitOptions | None = None,
) -> DmlResult:
    """Update the rows for which a predicate is TRUE.

    Args:
        table: A PyIceberg table or ``namespace.name``.
        set: New values by column or struct field: SQL text over the old row, or a Python value other than a string.
        where: The predicate; all rows when not given.
        spark: A session; small changes need none.
        branch: The branch to change instead of ``main``.
        mode: ``copy-on-write`` or ``merge-on-read``; the table's ``write.update.mode`` when not given.
        isolation: ``serializable`` or ``snapshot``; the table's ``write.update.isolation-level`` when not given.
        case_sensitive: Whether column names must match exactly.
        trust_lists: Change rows even when the manifest list has fewer files than the snapshot summary counts.
        summary: Further properties of the snapshot.
        options: How the commit is retried.
    """
    target = resolve(table, Command.UPDATE, branch=branch, mode=mode, isolation=isolation, trust_lists=trust_lists)
    timestamp = statement_timestamp()
    where = with_timestamp(where, timestamp)
    values = {name: with_timestamp(value, timestamp) for name, value in set.items()}
    assignments = compile_assignments(values, target.schema, Names(target.schema, case_sensitive))
    plan = plan_rows(target, planned(where), spark, case_sensitive)
    changes = ChangeBuilder(planned=plan.files)
    everything = np.ones(len(plan.files), dtype=np.bool_)
    with discard_on_failure(changes, target):
        change_matching(target, where, plan, file_tasks(plan.files, everything), changes, spark, assignments)
    conflict_filter, level = plan.compiled.predicate, target.isolation
    return commit_changes(
        target, changes, conflict_filter=conflict_filter, isolation=level, summary=summary, options=options
    )


def change_matching(
    target: DmlTarget,
    where: PredicateSource | SubqueryCondition,
    plan: ScanPlan,
    chosen: list[FileTask],
    changes: ChangeBuilder,
    spark: SparkSession | None,
    assignments: Assignments | None = None,
) -> None:
    """Delete the rows of these files that match the plan's predicate, or update them."""
    if not chosen:
        return
    if not _needs_spark(target, where, plan, assignments) or spark is None:
        run_decision(target, chosen, Matching(target.schema, Clause(assignments)), changes, spark)
        return
    from floeplan.dml.spark_rows import SparkClause, TargetRows, apply_clauses, first_clause, in_utc

    writer, rows = WriteTarget.of(target.table), TargetRows.of(target.table, target.schema, chosen)
    fields = {*field_ids(plan.compiled.predicate), *(() if assignments is None else assignments.field_ids)}
    clauses = [SparkClause(assignments)]
    with in_utc(spark):
        if isinstance(where, SubqueryCondition):
            frame, holds = where.matching(rows.frame(spark, fields | where.columns(target.schema))), "TRUE"
        else:
            frame, holds = rows.frame(spark, fields), str(where)
        found = apply_clauses(frame, first_clause([(0, holds)]), clauses, rows, writer)
    apply_found_rows(target, chosen, found, changes, spark)


def _needs_spark(
    target: DmlTarget, where: PredicateSource | SubqueryCondition, plan: ScanPlan, assignments: Assignments | None
) -> bool:
    """Whether only Spark can evaluate the expressions; it takes SQL text only."""
    if isinstance(where, SubqueryCondition):
        return True
    return isinstance(where, str) and not arrow_evaluates((target.schema,), (plan.compiled.predicate,), (assignments,))


def apply_found_rows(
    target: DmlTarget, chosen: list[FileTask], found: FoundRows, changes: ChangeBuilder, spark: SparkSession | None
) -> None:
    """Delete the rows that Spark found, and add the files of new rows it wrote."""
    changes.data += [entries for entries in found.entries if len(entries)]
    changes.rewrote |= found.updated > 0
    changed = [work for work in chosen if work.file.path in found.positions]
    run_decision(target, changed, DeletePositions(found.positions), changes, spark)
    changes.rows_deleted -= found.updated
    changes.rows_updated += found.updated
    changes.rows_inserted += found.inserted


def run_decision(
    target: DmlTarget, chosen: list[FileTask], decision: Decision, changes: ChangeBuilder, spark: SparkSession | None
) -> None:
    """Run a decision over files in tasks."""
    task = RowTask(TableRows.of(target.table, target.schema), WriteTarget.of(target.table), decision, target.copies)
    description = f"floeplan {target.command} on {'.'.join(target.table.name())}"
    discard = partial(RowTaskResult.discard, files=TableFiles.of(target.table))
    loads = weights(chosen, _work_fraction(target, decision, chosen[0]) if chosen else 1)
    changes.add(run_tasks(task, chosen, spark, weights=loads, description=description, discard=discard))


def _work_fraction(target: DmlTarget, decision: Decision, task: FileTask) -> float:
    """The work for a file, as a fraction of reading and writing all of it; reading alone is about half.

    A merge-on-read delete reads only the columns of the decision.
    """
    if target.copies:
        return 1
    if any(clause.assignments for clause in decision.clauses):
        return 0.5
    return 0.5 * len(decision.fields(task.file)) / len(target.schema.field_ids)

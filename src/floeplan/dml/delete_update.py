"""DELETE and UPDATE of the rows that match a predicate, and what other commands share with them: planning and running.

Files that cannot match are not opened. A file of which every row is deleted is removed without opening it when its live
rows can be counted from metadata: it has no deletes, or a single deletion vector. Tasks evaluate the others with Arrow;
what only Spark can evaluate is evaluated by Spark, and its rows are changed the same way.

Fail-safe: without a Spark session, an expression that Arrow cannot evaluate exactly is an error and nothing is done. So
is a manifest list that may be truncated, unless ``trust_lists`` is set, and rows that would leave the spec of a live
writer of equality deletes, unless ``allow_late_equality_deletes`` is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from floeplan.dml.assign import (
    Assignments,
    SubqueryCondition,
    arrow_evaluates,
    compile_assignments,
    statement_timestamp,
    with_timestamp,
)
from floeplan.dml.commit import ChangeBuilder, DmlResult, commit_changes, discard_on_failure
from floeplan.dml.row_task import Decision, Matching, RowTask, RowTaskResult
from floeplan.dml.target import Command, DmlTarget, Mode, resolve
from floeplan.metadata.delete_index import DeleteFileId, DeleteKind
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable, partition_column
from floeplan.metadata.manifests.reader import find_truncation
from floeplan.predicate.build import field_ids
from floeplan.predicate.compile import PredicateSource
from floeplan.predicate.names import Names
from floeplan.predicate.stats import TriState
from floeplan.scan.file_rows import TableRows
from floeplan.scan.model import PlannedFiles, ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.spark.planning import SparkPlanning
from floeplan.tasks.runner import run_tasks
from floeplan.text import parse_count
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.change import IsolationLevel
from floeplan.transaction.equality_writers import find_live_writer, refuse_live_writers
from floeplan.vectors import Mask
from floeplan.write.data_files import FileTask
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from floeplan.dml.spark_rows import SinkResult

SMALL_FILE_BYTES = 8 * 1024 * 1024
OPENING_BYTES = 512 * 1024
"""Bytes that could be read and written in the time it takes to open a file and find its deletes."""


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
    allow_late_equality_deletes: bool = False,
    summary: Mapping[str, str] | None = None,
    options: CommitOptions | None = None,
    catalog: str | Catalog | None = None,
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
        allow_late_equality_deletes: Move rows to the default spec even when a writer may go on adding equality deletes
            under their old one.
        summary: Further properties of the snapshot.
        options: How the commit is retried.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.

    Returns:
        The result; ``snapshot_id`` is ``None`` when no row matched and nothing was committed.
    """
    target = resolve(
        table,
        Command.DELETE,
        branch=branch,
        mode=mode,
        isolation=isolation,
        trust_lists=trust_lists,
        allow_late_equality_deletes=allow_late_equality_deletes,
        catalog=catalog,
    )
    where = with_timestamp(where, statement_timestamp())
    return _change(target, where, None, spark, case_sensitive, summary, options)


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
    allow_late_equality_deletes: bool = False,
    summary: Mapping[str, str] | None = None,
    options: CommitOptions | None = None,
    catalog: str | Catalog | None = None,
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
        allow_late_equality_deletes: Move rows to the default spec even when a writer may go on adding equality deletes
            under their old one.
        summary: Further properties of the snapshot.
        options: How the commit is retried.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.
    """
    target = resolve(
        table,
        Command.UPDATE,
        branch=branch,
        mode=mode,
        isolation=isolation,
        trust_lists=trust_lists,
        allow_late_equality_deletes=allow_late_equality_deletes,
        catalog=catalog,
    )
    timestamp = statement_timestamp()
    where = with_timestamp(where, timestamp)
    values = {name: with_timestamp(value, timestamp) for name, value in set.items()}
    assignments = compile_assignments(values, target.schema, Names(target.schema, case_sensitive))
    return _change(target, where, assignments, spark, case_sensitive, summary, options)


def _change(
    target: DmlTarget,
    where: PredicateSource | SubqueryCondition,
    assignments: Assignments | None,
    spark: SparkSession | None,
    case_sensitive: bool,
    summary: Mapping[str, str] | None,
    options: CommitOptions | None,
) -> DmlResult:
    """Plan, change and commit: an update with assignments, a delete without."""
    implied = where.implied if isinstance(where, SubqueryCondition) else where
    plan = plan_rows(target, implied, spark, case_sensitive)
    changes = ChangeBuilder(planned=plan.files)
    whole = np.zeros(len(plan.files), dtype=np.bool_)
    # Updated rows are read, and files are planned with what a condition with subqueries implies, which is not enough.
    if assignments is None and implied is where:
        whole = plan.files.states == TriState.TRUE
    refuse_moves(target, plan.files, ~whole, updates=assignments is not None)
    proven = drop_files(plan.files, whole, changes)
    with discard_on_failure(changes, target):
        change_matching(target, where, plan, file_tasks(plan.files, ~proven), changes, spark, assignments)
        return commit_changes(
            target,
            changes,
            conflict_filter=plan.compiled.predicate,
            isolation=target.isolation,
            summary=summary,
            options=options,
        )


# Planning: the files whose rows a command must read, and those it removes by metadata alone.


def plan_rows(
    target: DmlTarget,
    where: PredicateSource | None,
    spark: SparkSession | None,
    case_sensitive: bool = True,
    recover: bool = False,
) -> ScanPlan:
    """Plan the files that may hold rows to change; ``recover`` reads what proves their partitions under other specs.

    Raises:
        CorruptMetadataError: The manifest list may be truncated and is not trusted.
    """
    # Tasks open every planned file, and reading the columns of a small one is as fast as reading its page index:
    # footers and page indexes save more than they cost only where files are large.
    summary = None if target.snapshot is None else target.snapshot.summary
    total, files = (
        None if summary is None else parse_count(summary[name]) for name in ("total-files-size", "total-data-files")
    )
    footers = total is None or files is None or total >= SMALL_FILE_BYTES * files
    planning = None if spark is None else SparkPlanning(spark)
    options = ScanOptions(
        footers=footers, page_index=footers, report=False, planning=planning, recover=recover, all_deletes=True
    )
    plan = plan_scan(target.table, where, ref=target.ref, case_sensitive=case_sensitive, options=options)
    # Copy-on-write would write rows back whose delete file a truncated list has lost, and a merge insert rows again.
    if target.snapshot is not None and not target.trust_lists:
        truncated = find_truncation(target.snapshot, plan.totals.manifests)
        if truncated is not None:
            raise truncated.error("rows whose delete files it does not list would be written back")
    return plan


def refuse_moves(target: DmlTarget, files: PlannedFiles, changed: Mask, *, updates: bool) -> None:
    """Refuse to write rows of changed files under the default spec while a writer adds equality deletes under theirs.

    Rows are written when they are updated and, by copy-on-write, when they stay in a file of which others are deleted.

    Args:
        target: The table, the command and its mode.
        files: The planned files.
        changed: The files of which rows change but not all are deleted.
        updates: Whether rows are updated, or only deleted.

    Raises:
        UnsupportedError: There is a live writer of equality deletes under the spec of a changed file.
    """
    default = target.table.metadata.default_spec_id
    specs = np.unique(files.entries.spec_id[changed]).tolist() if updates or target.copies else []
    if target.allow_late_equality_deletes or not set(specs) - {default}:
        return
    writer = find_live_writer(target.table.metadata, target.snapshot, target.table.io, specs, default)
    if writer is not None:
        fix = f"stop it, {target.command} and start it again"
        # Format 1 has no equality deletes, so that merge-on-read is possible wherever there is such a writer.
        instead = "" if updates else ", or use mode=merge-on-read, which leaves the other rows where they are"
        refuse_live_writers([writer.warning(fix + instead)])


def drop_files(files: PlannedFiles, whole: Mask, changes: ChangeBuilder) -> Mask:
    """Remove those of the files whose live rows can be counted without reading; returns which."""
    vector_only = np.zeros(len(files), dtype=np.bool_)
    single = np.flatnonzero(files.matches.counts == 1)
    kinds = files.delete_kinds[files.matches.deletes[files.matches.offsets[single]]]
    vector_only[single] = kinds == DeleteKind.VECTOR
    counted = (files.matches.counts == 0) | vector_only
    proven: Mask = whole & counted & (files.entries.record_count >= 0)
    changes.removed_data.update(files.entries.path.filter(pa.array(proven)).to_pylist())
    changes.rows_deleted += int(files.entries.record_count[proven].sum())
    vectors = files.deletes.take(files.matches.deletes[files.matches.offsets[:-1][proven & vector_only]])
    changes.rows_deleted -= int(vectors.record_count.sum())
    offsets = vectors.ints("content_offset").tolist()
    changes.removed_deletes.update(map(DeleteFileId, vectors.path.to_pylist(), offsets))
    return proven


def file_tasks(files: PlannedFiles, chosen: Mask) -> list[FileTask]:
    """Tasks for the chosen files, each with the spec, partition and path of its file."""
    rows = np.flatnonzero(chosen)
    entries = files.entries.take(rows)
    names = ["spec_id", "file_path", *(partition_column(key) for key in entries.partition_types)]
    located = EntriesTable(entries.table.select(names), entries.partition_types)
    first = entries.array("first_row_id").to_pylist() if "first_row_id" in entries else [None] * len(rows)
    return [FileTask(file, located.take(np.array([at])), first[at]) for at, file in enumerate(files.take(rows))]


# Running: the rows of the planned files that change.


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
    # Spark evaluates what only Spark can; it takes SQL text only.
    predicate, needs_spark = plan.compiled.predicate, isinstance(where, SubqueryCondition)
    if isinstance(where, str):
        needs_spark = not arrow_evaluates((target.schema,), (predicate,), (assignments,))
    if not needs_spark or spark is None:
        run_decision(target, chosen, Matching(target.schema, assignments), changes, spark)
        return
    from floeplan.dml.spark_rows import SparkClause, TargetRows, apply_clauses, first_clause, in_utc

    writer, rows = WriteTarget.of(target.table), TargetRows.of(target.table, target.schema, chosen)
    fields = {*field_ids(predicate), *(() if assignments is None else assignments.field_ids)}
    clauses = [SparkClause(assignments)]
    with in_utc(spark):
        if isinstance(where, SubqueryCondition):
            frame, holds = where.matching(rows.frame(spark, fields | where.columns(target.schema))), "TRUE"
        else:
            frame, holds = rows.frame(spark, fields), str(where)
        clause, joined = first_clause([(0, holds)]), isinstance(where, SubqueryCondition)
        keep = partial(add_found_rows, changes)
        apply_clauses(frame, clause, clauses, rows, writer, keep, copies=target.copies, joined=joined)


def add_found_rows(changes: ChangeBuilder, found: SinkResult) -> None:
    """Add what a task wrote for the rows that Spark found."""
    changes.opened = True
    changes.add(found.changed)
    if found.entries is not None and len(found.entries):
        changes.data.append(found.entries)
    changes.rewrote |= found.updated > 0
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
    # The work for a file, as a fraction of reading and writing all of it; reading alone is about half, and a
    # merge-on-read delete reads only the columns of the decision.
    fraction = 1.0 if target.copies or not chosen else 0.5
    if fraction < 1 and not any(decision.clauses):
        fraction *= len(decision.fields(chosen[0].file)) / len(target.schema.field_ids)
    loads = weights(chosen, fraction)
    changes.opened = True
    run_tasks(task, chosen, spark, weights=loads, description=description, discard=discard, keep=changes.add)


def weights(chosen: list[FileTask], fraction: float) -> list[float]:
    """Bytes of work for each file: a fraction of its size, and opening it."""
    return [task.file.file_size * fraction + OPENING_BYTES for task in chosen]

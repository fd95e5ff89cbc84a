"""OVERWRITE: rows are replaced by others in one commit, those that match a predicate or whole partitions.

A predicate need not follow files: those of which every row matches are dropped by metadata, the others lose the rows
that match. A dynamic overwrite replaces the partitions that the new rows lie in, in the sense of the default spec: rows
written under other specs that lie in the same partitions are replaced too. ``same_spec_only`` leaves those alone, as
Spark does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from floeplan.dml.append import write_rows
from floeplan.dml.changing import change_matching, run_decision
from floeplan.dml.outcome import Commit, Outcome, commit_outcome, undone_on_failure
from floeplan.dml.partitions import InPartitions, PartitionSet, place_files
from floeplan.dml.planning import drop_files, drop_proven, plan_rows, works
from floeplan.dml.result import DmlResult
from floeplan.dml.target import Command, DmlTarget, Mode, resolve
from floeplan.errors import BadInputError
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.compile import PredicateSource
from floeplan.predicate.ir import TRUE
from floeplan.transaction.change import IsolationLevel
from floeplan.transaction.entry_tables import concat_entries
from floeplan.transaction.exchange import CommitOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def overwrite(
    table: Table | str | os.PathLike[str],
    data: object,
    where: PredicateSource | None = None,
    *,
    dynamic: bool = False,
    same_spec_only: bool = False,
    spark: SparkSession | None = None,
    branch: str | None = None,
    mode: Mode | str | None = None,
    isolation: IsolationLevel | str | None = None,
    case_sensitive: bool = True,
    summary: Mapping[str, str] | None = None,
    options: CommitOptions | None = None,
) -> DmlResult:
    """Replace rows.

    Args:
        table: A PyIceberg table or ``namespace.name``.
        data: The new rows: Arrow data in any wrapping, a Spark DataFrame, or paths of Parquet files.
        where: The rows to replace; all when not given and the overwrite is not dynamic.
        dynamic: Replace the partitions that the new rows lie in.
        same_spec_only: Of a dynamic overwrite: leave files of other specs alone.
        spark: A session to work with; a DataFrame brings its own.
        branch: The branch to change instead of ``main``.
        mode: How rows of partly matching files go; the table's ``write.delete.mode`` when not given.
        isolation: ``serializable`` or ``snapshot``; when not given, rows that others add meanwhile are not looked at.
        case_sensitive: Whether column names must match exactly.
        summary: Further properties of the snapshot.
        options: How the commit is retried.
    """
    if dynamic and where is not None:
        raise BadInputError("a dynamic overwrite replaces partitions; give a predicate or dynamic, not both")
    if same_spec_only and not dynamic:
        raise BadInputError("same_spec_only is an option of dynamic overwrites")
    target = resolve(table, Command.OVERWRITE, branch=branch, mode=mode, isolation=isolation)
    outcome = Outcome()
    level = None if isolation is None else target.isolation
    with undone_on_failure(outcome, target):
        for entries in write_rows(target, data, spark):
            outcome.insert(entries)
        if dynamic:
            how = _replace_partitions(target, outcome, same_spec_only, spark)
        else:
            how = replace_matching(target, TRUE if where is None else where, outcome, spark, case_sensitive)
    return commit_outcome(target, outcome, replace(how, isolation=level, summary=summary or {}, options=options))


def replace_matching(
    target: DmlTarget, where: PredicateSource, outcome: Outcome, spark: SparkSession | None, case_sensitive: bool
) -> Commit:
    """Let the rows that match go, by metadata where that can be."""
    plan = plan_rows(target, where, spark, case_sensitive)
    outcome.planned = plan.files
    proven = drop_proven(plan.files, outcome)
    change_matching(target, where, plan, works(plan.files, ~proven), outcome, spark)
    return Commit(plan.compiled.predicate)


def _replace_partitions(
    target: DmlTarget, outcome: Outcome, same_spec_only: bool, spark: SparkSession | None
) -> Commit:
    metadata = target.table.metadata
    union = UnionPartitionType.of_table(metadata)
    new = concat_entries(outcome.data, union)
    plan = plan_rows(target, None, spark, recover=True)
    files, spec_id = plan.files, metadata.default_spec_id
    outcome.planned = files
    partitions = PartitionSet.of(union, new, spec_id)
    considered = (files.entries.spec_id == spec_id) | (not same_spec_only)
    placed = place_files(partitions, files.entries, source_types(metadata.schema(), metadata.schemas))
    dropped = drop_files(files, placed.whole & considered, outcome)
    asked = works(files, (placed.whole | placed.perhaps) & considered & ~dropped)
    if asked and len(new):
        run_decision(target, asked, InPartitions(target.schema, partitions), outcome, spark)
    return Commit(partitions=new)

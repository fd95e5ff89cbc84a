"""OVERWRITE: replace the rows that match a predicate, or whole partitions, in one commit.

Files of which every row matches the predicate are removed by metadata; matching rows of the others are deleted. A
dynamic overwrite replaces the partitions of the new rows in the default spec, including rows in the same partitions
that were written under other specs. ``same_spec_only`` keeps those, as Spark does.

A file of another spec lies in a partition when the values of the default spec's fields are known for the whole file:
stored, because its own spec has the same field, or proven by its column bounds. Otherwise its rows are checked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from floeplan.dml.append import write_rows
from floeplan.dml.commit import ChangeBuilder, DmlResult, commit_changes, discard_on_failure
from floeplan.dml.delete_update import change_matching, drop_files, file_tasks, plan_rows, refuse_moves, run_decision
from floeplan.dml.row_task import Decision, RowChanges
from floeplan.dml.target import Command, DmlTarget, Mode, resolve
from floeplan.errors import BadInputError
from floeplan.metadata.manifests.entries import EntriesTable, concat_entries, partition_column
from floeplan.metadata.manifests.stats import file_stats
from floeplan.metadata.manifests.values import number_array, partition_arrow_type
from floeplan.partition.fields import BoundField, SourceTypes, source_types
from floeplan.partition.key import partition_codes
from floeplan.partition.recover import recover
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.compile import PredicateSource
from floeplan.predicate.ir import TRUE, Column
from floeplan.predicate.stats import TriState
from floeplan.scan.file_rows import PlannedRows
from floeplan.scan.model import FileScan
from floeplan.scan.plan import ScanPlan
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.change import REPLACES_PARTITIONS, IsolationLevel
from floeplan.vectors import Mask
from floeplan.write.partitioning import partition_values

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
    trust_lists: bool = False,
    allow_late_equality_deletes: bool = False,
    summary: Mapping[str, str] | None = None,
    options: CommitOptions | None = None,
    catalog: str | Catalog | None = None,
) -> DmlResult:
    """Replace rows.

    Args:
        table: A PyIceberg table or ``namespace.name``.
        data: The new rows: Arrow data, a Spark DataFrame, or paths of Parquet files.
        where: The rows to replace; all when not given and the overwrite is not dynamic.
        dynamic: Replace the partitions that the new rows lie in.
        same_spec_only: Of a dynamic overwrite: leave files of other specs alone.
        spark: A session to work with; a DataFrame brings its own.
        branch: The branch to change instead of ``main``.
        mode: How rows of partly matching files are deleted; the table's ``write.delete.mode`` when not given.
        isolation: ``serializable`` or ``snapshot``; when not given, rows that others add concurrently are not checked.
        case_sensitive: Whether column names must match exactly.
        trust_lists: Change rows even when the manifest list has fewer files than the snapshot summary counts.
        allow_late_equality_deletes: Move rows to the default spec even when a writer may go on adding equality deletes
            under their old one.
        summary: Further properties of the snapshot.
        options: How the commit is retried.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.
    """
    if dynamic and where is not None:
        raise BadInputError("a dynamic overwrite replaces partitions; give a predicate or dynamic, not both")
    if same_spec_only and not dynamic:
        raise BadInputError("same_spec_only is an option of dynamic overwrites")
    target = resolve(
        table,
        Command.OVERWRITE,
        branch=branch,
        mode=mode,
        isolation=isolation,
        trust_lists=trust_lists,
        allow_late_equality_deletes=allow_late_equality_deletes,
        catalog=catalog,
    )
    replaced: PredicateSource = TRUE if where is None else where
    placed = PlacedFiles.of(target, same_spec_only, spark) if dynamic else None
    plan = plan_replacement(target, replaced, spark, case_sensitive) if placed is None else placed.plan
    changes, partitions = ChangeBuilder(), None
    with discard_on_failure(changes, target):
        write_rows(target, data, changes, spark)
        if placed is None:
            replace_matching(target, replaced, plan, changes, spark)
        else:
            partitions = placed.replace_partitions(target, changes, spark)
            if not changes.rewrote and not changes.deletes:  # such a snapshot can be cherry-picked
                summary = {REPLACES_PARTITIONS: "true", **(summary or {})}
        return commit_changes(
            target,
            changes,
            conflict_filter=plan.compiled.predicate,
            partitions=partitions,
            isolation=None if isolation is None else target.isolation,
            summary=summary,
            options=options,
        )


def plan_replacement(
    target: DmlTarget, where: PredicateSource, spark: SparkSession | None = None, case_sensitive: bool = True
) -> ScanPlan:
    """Plan the files that may hold matching rows."""
    plan = plan_rows(target, where, spark, case_sensitive)
    refuse_moves(target, plan.files, plan.files.states != TriState.TRUE, updates=False)
    return plan


def replace_matching(
    target: DmlTarget,
    where: PredicateSource,
    plan: ScanPlan,
    changes: ChangeBuilder,
    spark: SparkSession | None = None,
) -> None:
    """Delete the matching rows, whole files by metadata."""
    changes.planned = plan.files
    proven = drop_files(plan.files, plan.files.states == TriState.TRUE, changes)
    change_matching(target, where, plan, file_tasks(plan.files, ~proven), changes, spark)


# Dynamic overwrites: the partitions of the new rows, and the files and rows that lie in them.


@dataclass(frozen=True, slots=True)
class PlacedFiles:
    """The files of a table with their partitions in the default spec.

    Attributes:
        plan: The plan of all files.
        columns: Partition tuples in the default spec, by union field id.
        known: Whether all rows of a file are known to lie in that partition.
        considered: Whether the overwrite may replace rows of a file.
    """

    plan: ScanPlan
    columns: Mapping[int, pa.Array]
    known: Mask
    considered: Mask

    @classmethod
    def of(cls, target: DmlTarget, same_spec_only: bool, spark: SparkSession | None) -> PlacedFiles:
        """Plan all files and place them."""
        metadata = target.table.metadata
        union, sources = UnionPartitionType.of_table(metadata), source_types(metadata.schema(), metadata.schemas)
        plan = plan_rows(target, None, spark, recover=True)
        entries, spec_id = plan.files.entries, metadata.default_spec_id
        columns, known = {}, np.ones(len(entries), dtype=np.bool_)
        for field in _partition_fields(union, spec_id):
            columns[field.column.field_id], proven = _partition_value(field, union, entries, sources)
            known &= proven
        considered = (entries.spec_id == spec_id) | (not same_spec_only)
        refuse_moves(target, plan.files, ~known & considered, updates=False)
        return cls(plan, columns, known, considered)

    def replace_partitions(self, target: DmlTarget, changes: ChangeBuilder, spark: SparkSession | None) -> EntriesTable:
        """Delete the rows in the partitions of the new files; returns the new entries, whose partitions to validate."""
        files, metadata = self.plan.files, target.table.metadata
        union = UnionPartitionType.of_table(metadata)
        new = concat_entries(changes.data, union)
        changes.planned = files
        partitions = PartitionSet.of(union, new, metadata.default_spec_id)
        whole = self.known & partitions.holds(self.columns, len(files)) & self.considered
        dropped = drop_files(files, whole, changes)
        chosen = file_tasks(files, (whole | (~self.known & self.considered)) & ~dropped)
        if chosen and len(new):
            run_decision(target, chosen, InPartitions(target.schema, partitions), changes, spark)
        return new


def _partition_fields(union: UnionPartitionType, spec_id: int) -> tuple[BoundField, ...]:
    """The fields that make a partition tuple of a spec."""
    return tuple(field for field in union.spec(spec_id).fields if not field.is_void)


def _partition_value(
    field: BoundField, union: UnionPartitionType, entries: EntriesTable, sources: SourceTypes
) -> tuple[pa.Array, Mask]:
    """The value of one partition field for each file, and where it is known: stored, or proven by bounds."""
    key = field.column.field_id
    having = [i for i in union.specs if any(key == other.column.field_id for other in _partition_fields(union, i))]
    stored = np.isin(entries.spec_id, having)
    source = Column(field.source_id, sources[field.source_id][0], (str(field.source_id),))
    found = recover(field, file_stats(entries, [source]).columns.get(field.source_id), len(entries))
    usable, values = found.recovered & ~found.is_null, found.values
    if isinstance(values, np.ndarray):
        values = number_array(values, usable)
    else:
        values = pc.if_else(pa.array(usable), values, pa.scalar(None, values.type))
    type_ = partition_arrow_type(field.column.type)
    of_entry = entries.array(partition_column(key)).cast(type_)
    return pc.if_else(pa.array(stored), of_entry, values.cast(type_)), stored | found.recovered


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """Partitions of one spec, as columns of their tuples by union field id."""

    union: UnionPartitionType
    spec_id: int
    columns: Mapping[int, pa.Array]
    count: int

    @classmethod
    def of(cls, union: UnionPartitionType, entries: EntriesTable, spec_id: int) -> PartitionSet:
        """The partitions of files of one spec."""
        keys = [field.column.field_id for field in _partition_fields(union, spec_id)]
        return cls(union, spec_id, {key: entries.array(partition_column(key)) for key in keys}, len(entries))

    @property
    def fields(self) -> tuple[BoundField, ...]:
        """The fields that make a tuple."""
        return _partition_fields(self.union, self.spec_id)

    def holds(self, columns: Mapping[int, pa.Array], rows: int) -> Mask:
        """Whether each tuple of the same fields is one of these partitions."""
        both = {key: pa.concat_arrays([column, columns[key].cast(column.type)]) for key, column in self.columns.items()}
        codes = partition_codes(self.union, np.full(self.count + rows, self.spec_id, dtype=np.int64), both)
        return np.isin(codes[self.count :], codes[: self.count])


@dataclass(frozen=True, slots=True)
class InPartitions(Decision):
    """Deletes the rows that lie in given partitions."""

    schema: Schema
    partitions: PartitionSet

    def fields(self, file: FileScan) -> frozenset[int]:
        """The sources of the partition fields."""
        return frozenset(field.source_id for field in self.partitions.fields)

    def decide(self, file: FileScan, planned: PlannedRows) -> RowChanges:
        """Compute the partitions of the rows and compare them."""
        rows, fields = planned.undeleted(), self.partitions.fields
        columns = {field.column.field_id: partition_values(rows, self.schema, field) for field in fields}
        inside = self.partitions.holds(columns, planned.live_count)
        return RowChanges.one_clause(planned.undeleted_positions(np.flatnonzero(inside)))

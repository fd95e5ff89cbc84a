"""Iceberg's procedure ``create_changelog_view``: a temporary view of the rows that changed between two snapshots.

Rule: rows that a snapshot only moved to another file do not appear. *Updates* are a deleted and an inserted row with
the same identifier in one snapshot. *Net changes* are what is left when rows that were inserted and deleted again
cancel out over all snapshots, with the ordinal and snapshot of the first change that is left.

Fail-safe: two deleted rows with one identifier in one snapshot fail the query, because updates cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

from floeplan.errors import BadInputError, UnknownColumnError
from floeplan.scan.incremental import snapshots_between
from floeplan.spark.incremental import DELETE, INSERT, exact_columns, incremental, refuse_maps
from floeplan.spark.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UPDATE_BEFORE, UPDATE_AFTER = "UPDATE_BEFORE", "UPDATE_AFTER"


@dataclass(frozen=True, slots=True)
class Span:
    """From which snapshot, exclusive, to which, inclusive; ``None`` for the whole history. Ids or milliseconds."""

    start: int | None = None
    end: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None

    def __post_init__(self) -> None:
        for name, one, other in (("start", self.start, self.start_ms), ("end", self.end, self.end_ms)):
            if one is not None and other is not None:
                raise BadInputError(f"{name}-snapshot-id and {name}-timestamp exclude each other")
        if self.start_ms is not None and self.end_ms is not None and self.start_ms > self.end_ms:
            raise BadInputError(f"start-timestamp {self.start_ms} is after end-timestamp {self.end_ms}")

    def snapshots(self, table: Table) -> tuple[int | None, int | None]:
        """The ids; the same one twice if no snapshot is between them."""
        current = table.metadata.current_snapshot_id
        start, end, nothing = self.start, self.end, (current, current)
        if self.start_ms is not None and (start := _newest(table, self.start_ms)) is None:
            oldest = next(iter(snapshots_between(table, None, None)), None)
            if oldest is not None and oldest.parent_snapshot_id is not None:
                raise BadInputError(f"the snapshots before start-timestamp {self.start_ms} have expired")
        if self.end_ms is not None and (end := _newest(table, self.end_ms)) is None:
            return nothing
        return start, end


def _newest(table: Table, at_ms: int) -> int | None:
    """The newest ancestor of the current snapshot that is not after a time."""
    lineage = ancestors_of(table.current_snapshot(), table.metadata)
    return next((one.snapshot_id for one in lineage if one.timestamp_ms <= at_ms), None)


def create_changelog_view(
    spark: SparkSession,
    table: Table,
    view: str,
    span: Span,
    *,
    updates: bool,
    identifiers: Sequence[str],
    net_changes: bool,
) -> None:
    """Create or replace the view; the arguments are those of Iceberg's procedure.

    Raises:
        BadInputError: The arguments exclude each other, or updates are to be found without identifiers.
    """
    schema = table.schema()
    if updates and net_changes:
        raise BadInputError("net_changes and compute_updates exclude each other")
    if updates and not identifiers:
        raise BadInputError("compute_updates needs identifier_columns, because the table has no identifier fields")
    names = {field.name: field for field in schema.fields}
    for name in identifiers:
        if name not in names:
            raise UnknownColumnError(f"identifier_columns: the table has no column {name}", context={"column": name})
    start, end = span.snapshots(table)
    refuse_maps(schema)
    # As in Iceberg, a row that was moved to another file counts as deleted and inserted among the net changes.
    rows = incremental(spark, table, start, end, changelog=True, carryovers=net_changes)
    if updates:
        rows = _with_updates(rows, Schema(*(names[name] for name in identifiers)))
    elif net_changes:
        rows = _net_changes(rows, schema)
    rows.createOrReplaceTempView(view)


def _with_updates(rows: DataFrame, identifier: Schema) -> DataFrame:
    """Label the deleted and the inserted row of one identifier as an update; further inserted rows stay inserted."""
    of_identifier = Window.partitionBy(*exact_columns(identifier), "_change_ordinal")
    is_delete = F.col("_change_type") == DELETE
    deletes = F.count(F.when(is_delete, 1)).over(of_identifier)
    inserts = F.count(F.when(~is_delete, 1)).over(of_identifier)
    place = F.row_number().over(of_identifier.orderBy("_change_type"))  # deleted rows come first
    columns = ", ".join(field.name for field in identifier.fields)
    ambiguous = f"updates cannot be computed: a snapshot deletes several rows with the same {columns}"
    kind = (
        F.when(deletes > 1, F.raise_error(F.lit(ambiguous)).cast("string"))
        .when(is_delete & (inserts > 0), UPDATE_BEFORE)
        .when(~is_delete & (deletes == 1) & (place == 2), UPDATE_AFTER)
        .otherwise(F.col("_change_type"))
    )
    return rows.withColumn("_change_type", kind)


def _net_changes(rows: DataFrame, schema: Schema) -> DataFrame:
    """Cancel out inserted and deleted rows that are equal; what is left is labelled as the first change after that."""
    equal = Window.partitionBy(*exact_columns(schema))
    in_order = equal.orderBy("_change_ordinal", "_change_type")
    step = F.when(F.col("_change_type") == INSERT, 1).otherwise(-1)
    counted = rows.withColumns(
        {
            "__net": F.sum(step).over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)),
            "__place": F.row_number().over(in_order),
            "__total": F.sum(step).over(equal),
        }
    )
    cancelled = F.max(F.when(F.col("__net") == 0, F.col("__place")).otherwise(0)).over(equal)
    first = counted.withColumn("__cancelled", cancelled).where("__total <> 0 AND __place = __cancelled + 1")
    copies = first.withColumn("__copy", F.explode(F.sequence(F.lit(1), F.abs("__total"))))
    return copies.select(*(quoted(name) for name in rows.columns))

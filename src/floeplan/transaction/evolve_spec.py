"""Partition evolution: add, drop, replace and rename partition fields.

Rule: each attempt derives the new spec from the newest table and requires that no other writer has changed the default
spec or assigned a partition field id since; otherwise the same changes are applied to the newer table. A spec that the
table already has is reused.

Fail-safe: a change that no longer fits the newer table is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AssertDefaultSpecId,
    AssertLastAssignedPartitionId,
    AssertTableUUID,
    SetDefaultSpecUpdate,
    TableUpdate,
)

from floeplan.catalog import refreshed
from floeplan.display import Displayed
from floeplan.errors import UnsupportedError
from floeplan.partition.evolution import AddField, SpecChange, drop_all, evolved_spec
from floeplan.transaction.catalog_commit import CatalogCommit, CommitOptions, UpdatesAndRequirements


@dataclass(frozen=True, slots=True, repr=False)
class EvolveResult(Displayed):
    """The result of a partition evolution.

    Attributes:
        spec: The spec with the changes.
        previous_spec_id: The default spec before.
        is_default: Whether it is the default spec now.
        is_new: Whether the table did not have it before.
        snapshot_id: The current snapshot; partition evolution adds none.
        attempts: Commit attempts; 0 when there was nothing to commit.
        table: The table with the spec.
    """

    spec: PartitionSpec
    previous_spec_id: int
    is_default: bool
    is_new: bool
    snapshot_id: int | None
    attempts: int
    table: Table

    def to_dict(self) -> dict[str, Any]:
        """The JSON document: the keys of every DML result, and the spec."""
        nothing = ("rows_deleted", "rows_inserted", "rows_updated", "data_files_added", "data_files_removed")
        return {
            "operation": "alter",
            "mode": "metadata",
            "snapshot_id": self.snapshot_id,
            **dict.fromkeys((*nothing, "delete_files_added", "delete_files_removed"), 0),
            "manifests_written": [],
            "attempts": self.attempts,
            "spec_id": self.spec.spec_id,
            "previous_spec_id": self.previous_spec_id,
            "is_default": self.is_default,
            "is_new": self.is_new,
            "spec": [
                {"name": f.name, "transform": str(f.transform), "source_id": f.source_id, "field_id": f.field_id}
                for f in self.spec.fields
            ],
        }


def evolve_spec(
    table: Table, changes: Iterable[SpecChange], *, default: bool = True, options: CommitOptions | None = None
) -> EvolveResult:
    """Add, drop, replace and rename partition fields of the default spec.

    Args:
        table: A table of a catalog.
        changes: Applied in this order, all or none.
        default: Whether the result becomes the default spec; otherwise it is only added to the table.
        options: How to commit.

    Raises:
        BadInputError: The changes do not fit the table.
        CommitConflictError: Other writers changed the partitioning at every attempt.
    """
    update = _SpecUpdate(tuple(changes), default)
    commit = CatalogCommit(table, update, options or CommitOptions())  # refuses a read-only table
    table = refreshed(table)
    updates, _ = update.build(table)
    if updates:
        table = commit.run()
    spec_id = update.spec.spec_id
    return EvolveResult(
        spec=table.specs()[spec_id],
        previous_spec_id=update.before.default_spec_id,
        is_default=table.metadata.default_spec_id == spec_id,
        is_new=spec_id not in update.before.specs(),
        snapshot_id=update.before.current_snapshot_id,
        attempts=commit.attempts if updates else 0,
        table=table,
    )


def add_spec(table: Table, fields: Iterable[AddField], *, options: CommitOptions | None = None) -> EvolveResult:
    """Add a spec of these fields to the table without making it the default.

    Fields that the default spec also has keep their position in it; the others follow in the order given.

    Raises:
        UnsupportedError: The table has format 1, where a spec beside the default would block its next change.
    """
    changes: tuple[SpecChange, ...] = (*drop_all(table.metadata), *fields)
    if table.metadata.format_version < 2 and evolved_spec(table.metadata, changes).spec_id not in table.specs():
        raise UnsupportedError(
            "format 1 numbers the partition fields of all specs consecutively, so a spec that is not the default would "
            "block every later change of the default; upgrade the table to format 2",
            context={"table": ".".join(table.name())},
        )
    return evolve_spec(table, changes, default=False, options=options)


@dataclass(slots=True)
class _SpecUpdate:
    """The changes, and the spec that the last attempt derived from them."""

    changes: tuple[SpecChange, ...]
    default: bool
    before: TableMetadata = field(init=False)
    spec: PartitionSpec = field(init=False)

    def build(self, table: Table) -> UpdatesAndRequirements:
        before = self.before = table.metadata
        spec = self.spec = evolved_spec(before, self.changes)
        updates: tuple[TableUpdate, ...] = ()
        if spec.spec_id not in before.specs():
            updates = (AddPartitionSpecUpdate(spec=spec),)
        if self.default and spec.spec_id != before.default_spec_id:
            updates = (*updates, SetDefaultSpecUpdate.model_validate({"spec-id": spec.spec_id}))
        requirements = (
            AssertTableUUID(uuid=before.table_uuid),
            AssertLastAssignedPartitionId.model_validate({"last-assigned-partition-id": before.last_partition_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": before.default_spec_id}),
        )
        return updates, requirements

    def is_committed(self, metadata: TableMetadata) -> bool:
        # ``evolve_spec`` has called ``build`` before the commit starts.
        if metadata.specs().get(self.spec.spec_id) != self.spec:
            return False
        return not self.default or metadata.default_spec_id == self.spec.spec_id

"""Committing another partitioning: the changed spec is derived from the table as it is at each try.

Rule: the commit demands that nobody else changed the default spec or assigned a field id meanwhile; if somebody did,
the same changes are made to what the table is then. A spec the table already has is made the default, or simply left.

Fail-safe: a change that no longer fits the newer table is refused as it would have been at first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import StaticTable, Table
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
from floeplan.errors import BadInputError, UnsupportedError
from floeplan.partition.evolution import AddField, SpecChange, drop_all, evolved_spec
from floeplan.transaction.catalog_commit import CatalogCommit, CommitOptions, Proposal


@dataclass(frozen=True, slots=True)
class EvolveResult:
    """What became of the partitioning.

    Attributes:
        spec: The spec the changes led to.
        previous_spec_id: The default spec before.
        is_default: Whether new data is written with it.
        is_new: Whether the table did not have it before.
        snapshot_id: The current snapshot, which a change of the partitioning does not touch.
        attempts: How often committing was tried; 0 when there was nothing to commit.
        table: The table as it is now.
    """

    spec: PartitionSpec
    previous_spec_id: int
    is_default: bool
    is_new: bool
    snapshot_id: int | None
    attempts: int
    table: Table

    def to_dict(self) -> dict[str, Any]:
        """The JSON document: the keys every changing statement has, and the spec."""
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
        changes: Made in their order, all or none.
        default: Whether the result becomes the default spec; otherwise the table only knows it.
        options: How the commit is made.

    Raises:
        BadInputError: The changes do not fit the table.
        CommitConflictError: Others kept changing the partitioning until the tries were used up.
    """
    if isinstance(table, StaticTable):
        raise BadInputError(
            "a table opened by its metadata file is read-only; name it as namespace.name in its catalog",
            context={"table": table.metadata_location},
        )
    table = refreshed(table)
    intent = _Evolve(tuple(changes), default)
    if not intent.propose(table).updates:
        return intent.result(table, attempts=0)
    exchange = CatalogCommit(table, intent, options or CommitOptions())
    return intent.result(exchange.run(), attempts=exchange.attempts)


def add_spec(table: Table, fields: Iterable[AddField], *, options: CommitOptions | None = None) -> EvolveResult:
    """Let the table know a spec of these fields without making it the default.

    Fields the default spec has as well keep their place in it; the others follow in the order given.

    Raises:
        UnsupportedError: The table has format 1, where a spec beside the default would block the next change of it.
    """
    changes: tuple[SpecChange, ...] = (*drop_all(table.metadata), *fields)
    if table.metadata.format_version < 2 and evolved_spec(table.metadata, changes).spec_id not in table.specs():
        raise UnsupportedError(
            "format 1 numbers the partition fields of all specs in one row, so a spec that is not the default would "
            "block every later change of the default; upgrade the table to format 2",
            context={"table": ".".join(table.name())},
        )
    return evolve_spec(table, changes, default=False, options=options)


class _Evolve:
    """The changes, and what they led to when they were last proposed."""

    def __init__(self, changes: tuple[SpecChange, ...], default: bool) -> None:
        self._changes = changes
        self._default = default
        self._before: TableMetadata | None = None
        self._spec: PartitionSpec | None = None

    def propose(self, table: Table) -> Proposal:
        before = self._before = table.metadata
        spec = self._spec = evolved_spec(before, self._changes)
        updates: tuple[TableUpdate, ...] = ()
        if spec.spec_id not in before.specs():
            updates = (AddPartitionSpecUpdate(spec=spec),)
        if self._default and spec.spec_id != before.default_spec_id:
            updates = (*updates, SetDefaultSpecUpdate.model_validate({"spec-id": spec.spec_id}))
        requirements = (
            AssertTableUUID(uuid=before.table_uuid),
            AssertLastAssignedPartitionId.model_validate({"last-assigned-partition-id": before.last_partition_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": before.default_spec_id}),
        )
        return Proposal(requirements, updates)

    def is_committed(self, metadata: TableMetadata) -> bool:
        spec = self._spec
        if spec is None or metadata.specs().get(spec.spec_id) != spec:
            return False
        return not self._default or metadata.default_spec_id == spec.spec_id

    def result(self, table: Table, *, attempts: int) -> EvolveResult:
        assert self._spec is not None
        assert self._before is not None
        spec_id = self._spec.spec_id
        return EvolveResult(
            spec=table.specs()[spec_id],
            previous_spec_id=self._before.default_spec_id,
            is_default=table.metadata.default_spec_id == spec_id,
            is_new=spec_id not in self._before.specs(),
            snapshot_id=self._before.current_snapshot_id,
            attempts=attempts,
            table=table,
        )

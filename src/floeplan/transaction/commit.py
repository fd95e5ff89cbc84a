"""``commit_change``: a change becomes a snapshot of a branch, or nothing happens.

::

    refreshed ─► validated ─► manifests-written ─► list-written ─► before-commit ─► committed ─► cleaned
        ▲                                                               │
        └───────────────── another writer was faster ◄─────────────────┘

Rule: the snapshot id is chosen once, so that every attempt is the same commit, and finding the id in the table means
that it succeeded. Each attempt is validated against, and derived from, the newest head of the branch.

Fail-safe: files are removed only when it is certain that nobody refers to them: after success those of earlier
attempts, after a definite failure all that were written for the commit. After a lost answer everything stays.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    TableUpdate,
    ValidatableTableRequirement,
    update_table_metadata,
)

from floeplan.errors import (
    BadInputError,
    CommitConflictError,
    CommitStateUnknownError,
    FloeplanError,
    UnknownSnapshotError,
)
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.partition.union import UnionPartitionType
from floeplan.snapshot.target import branch_head
from floeplan.transaction.catalog_commit import CatalogCommit, CommitOptions, Proposal
from floeplan.transaction.change import Check, ConflictValidation, Operation, SnapshotChange
from floeplan.transaction.history import committed_entries
from floeplan.transaction.manifests import ManifestWritten
from floeplan.transaction.preconditions import check_compatible
from floeplan.transaction.producer import Produced, SnapshotProducer
from floeplan.transaction.refs import moved_branch, set_ref_update, table_and_ref
from floeplan.transaction.validation import SHOWN_FILES, ValidationContext, validate

# Removing files that nobody refers to.
#
# Fail-safe: a file that lies outside the table's locations or cannot be removed is left; an orphan costs storage,
# and the
# outcome of the commit is certain by then.


_PATHS = EntryColumns(frozenset({"snapshot_id"}), partition=False)


def remove_files(paths: Iterable[str], table: Table) -> tuple[str, ...]:
    """Remove files of a table as far as possible; returns those that are gone."""
    return TableFiles.of(table).remove(paths)


def unused_files(change: SnapshotChange, metadata: TableMetadata, start: int | None, io: FileIO) -> set[str]:
    """The data and delete files a change adds, without those that a snapshot has.

    They can be in use although the change failed: it may have been committed before, when the answer was lost. They
    were written after the change was planned, so no snapshot up to the starting one has them.
    """
    added = [files for files in (change.added_data, change.added_deletes) if files is not None]
    paths = {path for files in added for path in files.path.to_pylist()}
    first = None if start is None else metadata.snapshot_by_id(start)
    older = {snapshot.snapshot_id for snapshot in ancestors_of(first, metadata)}
    newer = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in older]
    union = UnionPartitionType.of_table(metadata)
    for content in (DATA, DELETES):
        paths -= set(committed_entries(newer, content, union, _PATHS, io).entries.path.to_pylist())
    return paths


# ---

_NO_CHECKS = ConflictValidation()
_DEFAULTS = CommitOptions()


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit did.

    Attributes:
        snapshot_id: The new snapshot.
        attempts: How many times the catalog was asked.
        summary: The summary of the snapshot, its operation included.
        manifests_written: Manifests the snapshot added; none if an earlier call had committed it.
        table: The table with the snapshot.
    """

    snapshot_id: int
    attempts: int
    summary: dict[str, str]
    manifests_written: tuple[ManifestWritten, ...]
    table: Table


def commit_change(
    table: Table,
    change: SnapshotChange,
    *,
    branch: str = MAIN_BRANCH,
    validation: ConflictValidation = _NO_CHECKS,
    options: CommitOptions = _DEFAULTS,
    extra_updates: tuple[TableUpdate, ...] = (),
    extra_requirements: tuple[ValidatableTableRequirement, ...] = (),
    producer: Callable[..., SnapshotProducer] = SnapshotProducer,
) -> CommitResult:
    """Commit a change to a branch.

    Args:
        table: The table as the change was planned on.
        change: Files to add and to remove.
        branch: Where to commit.
        validation: What must not have happened since the change was planned.
        options: How to commit.
        extra_updates: Changes of the table's metadata that are made in the same commit, before the snapshot.
        extra_requirements: What must hold for those.
        producer: What makes the snapshot of the change.

    Raises:
        CommitConflictError: Another writer's commit stands against the change, or won every race.
        CommitStateUnknownError: The change may have been committed; nothing was removed.
        CommitError: The catalog refused the commit.
        BadInputError: The branch is a tag, or is not there.
    """
    intent = _SnapshotIntent(table, change, branch, validation, options, extra_updates, extra_requirements, producer)
    exchange = CatalogCommit(table, intent, options)
    try:
        committed = exchange.run()
    except Exception as error:
        _clean_after_failure(error, exchange, intent)
        raise
    options.step("committed")
    snapshot = committed.metadata.snapshot_by_id(intent.snapshot_id)
    assert snapshot is not None, "the table has the snapshot"
    produced = intent.produced.get(snapshot.manifest_list)
    written = () if produced is None else produced.manifests_written
    if options.clean:
        needed = {snapshot.manifest_list, *(manifest.path for manifest in written)}
        remove_files(set(intent.producer.written) - needed, table)
        options.step("cleaned")
    return CommitResult(
        snapshot_id=intent.snapshot_id,
        attempts=exchange.attempts,
        summary=_summary(snapshot),
        manifests_written=written,
        table=committed,
    )


@dataclass(slots=True)
class _SnapshotIntent:
    """The snapshot of one change on one branch."""

    table: Table
    change: SnapshotChange
    branch: str
    validation: ConflictValidation
    options: CommitOptions
    extra_updates: tuple[TableUpdate, ...]
    extra_requirements: tuple[ValidatableTableRequirement, ...]
    make: Callable[..., SnapshotProducer]
    produced: dict[str, Produced] = field(default_factory=dict)
    validated_until: int | None = None
    producer: SnapshotProducer = field(init=False)

    def __post_init__(self) -> None:
        snapshot_id = self.options.snapshot_id or _new_snapshot_id(self.table.metadata)
        self.producer = self.make(self.change, snapshot_id, self.table.io, on_step=self.options.step)

    @property
    def snapshot_id(self) -> int:
        return self.producer.snapshot_id

    def is_committed(self, metadata: TableMetadata) -> bool:
        return metadata.snapshot_by_id(self.snapshot_id) is not None

    def propose(self, table: Table) -> Proposal:
        metadata = table.metadata
        at = branch_head(metadata, self.branch)
        head = self._head(metadata, at)
        check_compatible(self.change, self.table.metadata, metadata)
        head_id = None if head is None else head.snapshot_id
        validate(ValidationContext.of(metadata, head_id, self.change, self.validation, table.io, self.validated_until))
        self.validated_until = head_id
        self.options.step("validated")
        produced = self.producer.produce(_with_updates(metadata, self.extra_updates), head)
        self.produced[produced.manifest_list] = produced
        if Check.REMOVED_FILES_EXIST in self.validation.checks or self.change.operation is Operation.REPLACE:
            _check_nothing_missing(self.change, produced)
        return self._proposal(table, at, produced.snapshot)

    def _head(self, metadata: TableMetadata, at: int | None) -> Snapshot | None:
        """The snapshot to follow: the branch's newest, or main's for a branch that is to be created."""
        if at is None and self.branch != MAIN_BRANCH:
            if not self.options.create_branch:
                known = ", ".join(sorted(metadata.refs)) or "none"
                raise UnknownSnapshotError(
                    f"table has no branch {self.branch}; it has: {known}", context={"ref": self.branch}
                )
            at = branch_head(metadata, MAIN_BRANCH)
            if at is None:
                raise BadInputError(
                    f"cannot create branch {self.branch}: the table has no snapshot yet, commit to {MAIN_BRANCH} first",
                    context={"ref": self.branch},
                )
        return None if at is None else metadata.snapshot_by_id(at)

    def _proposal(self, table: Table, at: int | None, snapshot: Snapshot) -> Proposal:
        metadata = table.metadata
        requirements: list[ValidatableTableRequirement] = [*table_and_ref(metadata, self.branch, at)]
        requirements += self.extra_requirements
        if self.change.added_data is not None:
            schema_id = {"current-schema-id": metadata.current_schema_id}
            requirements.append(AssertCurrentSchemaId.model_validate(schema_id))
        if isinstance(table.catalog, MetastoreCatalog):
            requirements.append(_AssertNextSequenceNumber(sequence_number=metadata.next_sequence_number()))
        move = set_ref_update(self.branch, moved_branch(metadata, self.branch, snapshot.snapshot_id))
        return Proposal(tuple(requirements), (*self.extra_updates, AddSnapshotUpdate(snapshot=snapshot), move))


class _AssertNextSequenceNumber(ValidatableTableRequirement):
    """No snapshot was added, to whatever branch, since the table was refreshed.

    Catalogs that apply updates in this process ask for it: they do not all refuse a sequence number that was given away
    to another branch meanwhile, and two snapshots with one number make deletes miss their data.
    """

    type: Literal["assert-next-sequence-number"] = "assert-next-sequence-number"
    sequence_number: int

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None or base_metadata.next_sequence_number() != self.sequence_number:
            raise CommitFailedException("another snapshot was added to the table")


def _new_snapshot_id(metadata: TableMetadata) -> int:
    """A random positive number no snapshot of the table has."""
    while True:
        snapshot_id = uuid.uuid4().int & ((1 << 63) - 1)
        if metadata.snapshot_by_id(snapshot_id) is None:
            return snapshot_id


def _with_updates(metadata: TableMetadata, updates: tuple[TableUpdate, ...]) -> TableMetadata:
    return update_table_metadata(metadata, updates) if updates else metadata


def _check_nothing_missing(change: SnapshotChange, produced: Produced) -> None:
    """Files the table never had, or that went without leaving a trace in its history."""
    missing = sorted({*produced.missing_data, *(file.path for file in produced.missing_deletes)})
    if missing:
        raise CommitConflictError(
            f"this {change.operation} removes {len(missing)} files that the table does not have, such as {missing[0]}; "
            "run the operation again",
            context={"check": Check.REMOVED_FILES_EXIST.name, "files": missing[:SHOWN_FILES]},
        )


def _clean_after_failure(error: Exception, exchange: CatalogCommit, intent: _SnapshotIntent) -> None:
    """Remove what was written if nobody can refer to it; otherwise the error says that it must stay, and why."""
    if isinstance(error, CommitStateUnknownError):
        error.context["snapshot_id"] = intent.snapshot_id
    refused = not isinstance(error, FloeplanError) or error.safe_to_clean
    if not (refused and exchange.settled):
        if isinstance(error, FloeplanError):
            error.safe_to_clean = False
        return
    if intent.options.clean:
        remove_files(intent.producer.written, intent.table)
        if intent.options.owns_files:
            _remove_own_files(exchange.newest, intent)


def _remove_own_files(newest: Table, intent: _SnapshotIntent) -> None:
    """As far as the table can be asked whether it has them; the failure itself is what the caller is to hear of."""
    with suppress(Exception):
        start = intent.validation.starting_snapshot_id
        remove_files(unused_files(intent.change, newest.metadata, start, newest.io), newest)


def _summary(snapshot: Snapshot) -> dict[str, str]:
    if snapshot.summary is None:
        return {}
    return {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}

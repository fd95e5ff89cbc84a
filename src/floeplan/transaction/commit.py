"""``commit_change``: a change becomes a snapshot of a branch, or nothing happens.

::

    refreshed ─► validated ─► manifests-written ─► list-written ─► before-commit ─► committed ─► cleaned
        ▲                                                               │
        └───────────── another writer committed first ◄────────────────┘

Rule: the snapshot id is chosen once, so every attempt is the same commit, and finding the id in the table means that it
succeeded. Each attempt is validated against, and based on, the newest head of the branch.

Fail-safe: a file is deleted only when it is certain that no snapshot refers to it: after success the files of earlier
attempts, after a definite failure everything written for the commit. When the commit state is unknown, all files stay.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
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
from floeplan.snapshot.reader import branch_head
from floeplan.transaction.catalog_commit import CatalogCommit, CommitOptions, UpdatesAndRequirements
from floeplan.transaction.change import Check, ConflictValidation, Operation, SnapshotChange, check_compatible
from floeplan.transaction.manifests import ManifestWritten
from floeplan.transaction.producer import ProducedSnapshot, SnapshotProducer
from floeplan.transaction.validation import MAX_NAMED_FILES, ValidationContext, committed_entries, validate

_PATHS = EntryColumns(frozenset({"snapshot_id"}), partition=False)
_NO_CHECKS = ConflictValidation()
_DEFAULTS = CommitOptions()


@dataclass(frozen=True, slots=True)
class CommitResult:
    """A committed snapshot.

    Attributes:
        snapshot_id: The new snapshot.
        attempts: Commit attempts.
        summary: The snapshot summary, including its operation.
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
    producer: Callable[..., SnapshotProducer] = SnapshotProducer,
) -> CommitResult:
    """Commit a change to a branch.

    Args:
        table: The table as the change was planned on.
        change: Files to add and to remove.
        branch: The branch to commit to.
        validation: What must not have happened since the change was planned.
        options: Retries and cleaning.
        extra_updates: Metadata updates of the same commit, applied before the snapshot.
        producer: Makes the snapshot of the change.

    Raises:
        CommitConflictError: A concurrent commit conflicts with the change, or other writers were faster every time.
        CommitStateUnknownError: The change may have been committed; no file was deleted.
        CommitError: The catalog rejected the commit.
        BadInputError: The branch is a tag, or does not exist.
    """
    update = _SnapshotUpdate(table, change, branch, validation, options, extra_updates, producer)
    commit = CatalogCommit(table, update, options)
    try:
        committed = commit.run()
    except Exception as error:
        _clean_after_failure(error, commit, update)
        raise
    options.step("committed")
    snapshot = committed.metadata.snapshot_by_id(update.snapshot_id)
    assert snapshot is not None, "the table has the snapshot"
    produced = update.produced.get(snapshot.manifest_list)
    written = () if produced is None else produced.manifests_written
    if options.clean:
        needed = {snapshot.manifest_list, *(manifest.path for manifest in written)}
        TableFiles.of(table).remove(set(update.producer.written) - needed)
        options.step("cleaned")
    stated = snapshot.summary
    return CommitResult(
        snapshot_id=update.snapshot_id,
        attempts=commit.attempts,
        summary={} if stated is None else {"operation": stated.operation.value, **stated.additional_properties},
        manifests_written=written,
        table=committed,
    )


@dataclass(slots=True)
class _SnapshotUpdate:
    """The pending update that adds the snapshot of one change to one branch."""

    table: Table
    change: SnapshotChange
    branch: str
    validation: ConflictValidation
    options: CommitOptions
    extra_updates: tuple[TableUpdate, ...]
    make_producer: Callable[..., SnapshotProducer]
    produced: dict[str, ProducedSnapshot] = field(default_factory=dict)
    validated_until: int | None = None
    producer: SnapshotProducer = field(init=False)

    def __post_init__(self) -> None:
        snapshot_id = self.options.snapshot_id or self.table.metadata.new_snapshot_id()
        self.producer = self.make_producer(self.change, snapshot_id, self.table.io, on_step=self.options.step)

    @property
    def snapshot_id(self) -> int:
        return self.producer.snapshot_id

    def is_committed(self, metadata: TableMetadata) -> bool:
        return metadata.snapshot_by_id(self.snapshot_id) is not None

    def build(self, table: Table) -> UpdatesAndRequirements:
        """Validate the change against the newest head, and write the manifests and the list of its snapshot."""
        metadata = table.metadata
        at = branch_head(metadata, self.branch)
        parent = self._parent(metadata, at)
        parent_id = None if parent is None else parent.snapshot_id
        check_compatible(self.change, self.table.metadata, metadata)
        validate(ValidationContext(metadata, parent_id, self.change, self.validation, table.io, self.validated_until))
        # Snapshots up to here need no second look when another writer commits first.
        self.validated_until = parent_id
        self.options.step("validated")

        base = update_table_metadata(metadata, self.extra_updates) if self.extra_updates else metadata
        produced = self.producer.produce(base, parent)
        self.produced[produced.snapshot.manifest_list] = produced
        missing = sorted({*produced.missing_data, *(file.path for file in produced.missing_deletes)})
        required = Check.REMOVED_FILES_EXIST in self.validation.checks or self.change.operation is Operation.REPLACE
        if required and missing:  # files the table never had, or that disappeared without a trace in its history
            raise CommitConflictError(
                f"this {self.change.operation} removes {len(missing)} files that the table does not have, such as "
                f"{missing[0]}; run the operation again",
                context={"check": Check.REMOVED_FILES_EXIST.name, "files": missing[:MAX_NAMED_FILES]},
            )

        requirements: list[ValidatableTableRequirement] = [*table_and_ref(metadata, self.branch, at)]
        if self.change.added_data is not None:
            schema_id = {"current-schema-id": metadata.current_schema_id}
            requirements.append(AssertCurrentSchemaId.model_validate(schema_id))
        if isinstance(table.catalog, MetastoreCatalog):
            requirements.append(_AssertNextSequenceNumber(sequence_number=metadata.next_sequence_number()))
        move = set_ref_update(self.branch, moved_branch(metadata, self.branch, self.snapshot_id))
        return (*self.extra_updates, AddSnapshotUpdate(snapshot=produced.snapshot), move), tuple(requirements)

    def _parent(self, metadata: TableMetadata, at: int | None) -> Snapshot | None:
        """The newest snapshot of the branch, or of main for a branch that is created."""
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


class _AssertNextSequenceNumber(ValidatableTableRequirement):
    """No snapshot was added to any branch since the table was refreshed.

    Catalogs that apply updates in this process need it: not all of them reject a sequence number that another branch
    has taken concurrently, and with two snapshots of one number deletes would not apply to their data.
    """

    type: Literal["assert-next-sequence-number"] = "assert-next-sequence-number"
    sequence_number: int

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None or base_metadata.next_sequence_number() != self.sequence_number:
            raise CommitFailedException("another snapshot was added to the table")


def _clean_after_failure(error: Exception, commit: CatalogCommit, update: _SnapshotUpdate) -> None:
    """Delete the written files if no snapshot can refer to them; otherwise the error says that they must stay."""
    if isinstance(error, CommitStateUnknownError):
        error.context["snapshot_id"] = update.snapshot_id
    rejected = not isinstance(error, FloeplanError) or error.safe_to_clean
    if not (rejected and commit.is_settled):
        if isinstance(error, FloeplanError):
            error.safe_to_clean = False
        return
    if update.options.clean:
        TableFiles.of(update.table).remove(update.producer.written)
        if update.options.owns_files:
            # The caller must see the failure itself, not that the table cannot be read to clean up.
            with suppress(Exception):
                TableFiles.of(commit.newest).remove(_unreferenced_files(update, commit.newest))


def _unreferenced_files(update: _SnapshotUpdate, table: Table) -> set[str]:
    """The data and delete files a change adds, without those that a snapshot refers to.

    A failed change may still have been committed by an earlier call whose response was lost. Its files were written
    after planning, so only snapshots newer than the starting one can refer to them.
    """
    metadata, start = table.metadata, update.validation.starting_snapshot_id
    added = [files for files in (update.change.added_data, update.change.added_deletes) if files is not None]
    paths = {path for files in added for path in files.path.to_pylist()}
    first = None if start is None else metadata.snapshot_by_id(start)
    older = {snapshot.snapshot_id for snapshot in ancestors_of(first, metadata)}
    newer = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in older]
    for content in (DATA, DELETES):
        paths -= set(committed_entries(newer, content, metadata, _PATHS, table.io).entries.path.to_pylist())
    return paths


def table_and_ref(
    metadata: TableMetadata, name: str, snapshot_id: int | None
) -> tuple[AssertTableUUID, AssertRefSnapshotId]:
    """Require that the table is the same and the ref unchanged; ``None`` means that the ref does not exist."""
    is_at = AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": snapshot_id})
    return AssertTableUUID(uuid=metadata.table_uuid), is_at


def set_ref_update(name: str, ref: SnapshotRef) -> SetSnapshotRefUpdate:
    """The update that creates or replaces a ref."""
    return SetSnapshotRefUpdate.model_validate({"ref-name": name, **ref.model_dump(by_alias=True)})


def moved_branch(metadata: TableMetadata, branch: str, snapshot_id: int) -> SnapshotRef:
    """A branch moved to a snapshot, keeping its retention."""
    ref = metadata.refs.get(branch)
    if ref is None:
        return SnapshotRef.model_validate({"snapshot-id": snapshot_id, "type": SnapshotRefType.BRANCH})
    return ref.model_copy(update={"snapshot_id": snapshot_id})

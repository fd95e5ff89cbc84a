"""Committing a DML command: everything it adds and removes becomes one snapshot, and the command's result.

Rule: a command that changes nothing commits nothing. The conflict checks are those of the command and its isolation
level (``transaction.change.required_checks``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyiceberg.table.update import SetPropertiesUpdate
from pyroaring import BitMap64

from floeplan.catalog import update_to_commit
from floeplan.display import Displayed
from floeplan.dml.row_task import RowTaskResult
from floeplan.dml.target import Command, DmlTarget
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable, concat_entries
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.scan.model import PlannedFiles
from floeplan.transaction.catalog_commit import CommitOptions, delay_interrupt
from floeplan.transaction.change import (
    Check,
    ConflictValidation,
    IsolationLevel,
    Operation,
    SnapshotChange,
    removed_entry_hints,
    required_checks,
)
from floeplan.transaction.commit import CommitResult, commit_change
from floeplan.write.metrics import remove_written_files

_CONTENT_NAMES = {DATA: "data", DELETES: "deletes"}


@dataclass(frozen=True, slots=True)
class ManifestSummary:
    """A manifest the commit wrote."""

    path: str
    spec_id: int
    content: str
    entries: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True, repr=False)
class DmlResult(Displayed):
    """The result of an append, delete, update, merge or overwrite.

    Attributes:
        operation: The command.
        mode: ``copy-on-write`` or ``merge-on-read``; of an append ``merge-append`` or ``fast-append``; ``metadata``
            when no data file was opened or written.
        snapshot_id: The committed snapshot; ``None`` when no row changed and nothing was committed.
        rows_deleted: Live rows deleted.
        rows_inserted: Rows inserted.
        rows_updated: Rows updated.
        data_files_added: Data files the snapshot added.
        data_files_removed: Data files the snapshot removed.
        delete_files_added: Position delete files and deletion vectors added.
        delete_files_removed: Delete files replaced, removed with their data file, or left without one.
        manifests_written: The manifests of the commit.
        attempts: Commit attempts; 0 when nothing was committed.
    """

    operation: str
    mode: str
    snapshot_id: int | None
    rows_deleted: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    data_files_added: int = 0
    data_files_removed: int = 0
    delete_files_added: int = 0
    delete_files_removed: int = 0
    manifests_written: tuple[ManifestSummary, ...] = ()
    attempts: int = 0

    @property
    def committed(self) -> bool:
        """Whether there is a new snapshot."""
        return self.snapshot_id is not None

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return asdict(self) | {"manifests_written": [manifest.to_dict() for manifest in self.manifests_written]}


@dataclass(slots=True)
class ChangeBuilder:
    """Collects what the snapshot of a command adds and removes, and the row counts of its result.

    Attributes:
        data: Entries of new data files.
        deletes: Entries of new delete files.
        removed_data: Paths of removed data files.
        removed_deletes: Removed delete files.
        referenced: Data files the new deletes refer to.
        matched_sources: Of a merge, the source rows that matched a target row.
        rewrote: Whether rows of removed files live on in new files.
        opened: Whether any data file was opened or written.
        merge_manifests: Whether the commit may merge small manifests.
        planned: The files the command was planned on; they tell the commit which manifests hold the removed files.
        handed_over: Whether the new files belong to the commit, which removes them unless its state is unknown.
    """

    data: list[EntriesTable] = field(default_factory=list)
    deletes: list[EntriesTable] = field(default_factory=list)
    removed_data: set[str] = field(default_factory=set)
    removed_deletes: set[DeleteFileId] = field(default_factory=set)
    referenced: set[str] = field(default_factory=set)
    rows_deleted: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    matched_sources: BitMap64 = field(default_factory=BitMap64)
    rewrote: bool = False
    opened: bool = False
    merge_manifests: bool = True
    planned: PlannedFiles | None = None
    handed_over: bool = False

    def add(self, result: RowTaskResult) -> None:
        """Add the result of a row task."""
        if result.added_data is not None and len(result.added_data):
            self.data.append(result.added_data)
            self.rewrote = True
        if result.added_deletes is not None and len(result.added_deletes):
            self.deletes.append(result.added_deletes)
        self.removed_data.update(result.removed_data)
        self.removed_deletes.update(result.removed_deletes)
        self.referenced.update(result.referenced)
        self.rows_deleted += result.rows_deleted
        self.rows_updated += result.rows_updated
        self.matched_sources |= result.matched_sources

    def insert(self, entries: EntriesTable) -> None:
        """Add files of new rows."""
        self.opened = True
        if len(entries):
            self.register(entries)

    def register(self, entries: EntriesTable) -> None:
        """Add existing files."""
        self.data.append(entries)
        self.rows_inserted += int(entries.record_count.sum())

    @property
    def is_empty(self) -> bool:
        """Whether the table does not change."""
        return not (self.data or self.deletes or self.removed_data or self.removed_deletes)

    def build(self, target: DmlTarget, summary: Mapping[str, str]) -> SnapshotChange:
        """The change to commit; its operation follows from what it does, as in Iceberg."""
        union = UnionPartitionType.of_table(target.table.metadata)
        operation = Operation.APPEND
        if self.deletes or self.removed_data or self.removed_deletes:
            operation = Operation.OVERWRITE if self.data else Operation.DELETE
        hints = None
        if self.planned is not None:
            hints = removed_entry_hints(self.planned, self.removed_data, self.removed_deletes)
        return SnapshotChange(
            operation=operation,
            added_data=concat_entries(self.data, union) if self.data else None,
            added_deletes=concat_entries(self.deletes, union) if self.deletes else None,
            removed_data=frozenset(self.removed_data),
            removed_deletes=frozenset(self.removed_deletes),
            removed_entries=hints,
            planned_on=target.snapshot_id,
            merge_manifests=self.merge_manifests,
            drop_dangling_deletes=bool(self.removed_data),
            summary=summary,
        )

    def result(self, target: DmlTarget, committed: CommitResult | None = None) -> DmlResult:
        """The result of the command."""
        mode = target.mode.value
        if not self.opened:
            mode = "metadata"
        elif target.command is Command.APPEND:
            mode = "merge-append" if self.merge_manifests else "fast-append"
        manifests = () if committed is None else committed.manifests_written
        return DmlResult(
            operation=target.command.value,
            mode=mode,
            snapshot_id=None if committed is None else committed.snapshot_id,
            rows_deleted=self.rows_deleted,
            rows_inserted=self.rows_inserted,
            rows_updated=self.rows_updated,
            data_files_added=sum(map(len, self.data)),
            data_files_removed=len(self.removed_data),
            delete_files_added=sum(map(len, self.deletes)),
            delete_files_removed=0 if committed is None else int(committed.summary.get("removed-delete-files", 0)),
            manifests_written=tuple(
                ManifestSummary(m.path, m.spec_id, _CONTENT_NAMES[m.content], m.entries) for m in manifests
            ),
            attempts=0 if committed is None else committed.attempts,
        )


@contextmanager
def discard_on_failure(changes: ChangeBuilder, target: DmlTarget) -> Iterator[None]:
    """Delete the new files when an error or an interrupt ends the block before they are handed over to the commit.

    The block ends with the commit: between two blocks, an interrupt would leave the files behind.
    """
    try:
        yield
    except BaseException:
        for entries in () if changes.handed_over else (*changes.data, *changes.deletes):
            remove_written_files(entries, TableFiles.of(target.table))
        raise


def commit_changes(
    target: DmlTarget,
    changes: ChangeBuilder,
    *,
    conflict_filter: IrExpr = TRUE,
    partitions: EntriesTable | None = None,
    isolation: IsolationLevel | None = None,
    summary: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
    options: CommitOptions | None = None,
    owns_files: bool = True,
) -> DmlResult:
    """Commit the changes, if there are any.

    Args:
        target: The table and the command.
        changes: What the command adds and removes.
        conflict_filter: The rows the changes depend on.
        partitions: Entries whose partitions are all the changes depend on.
        isolation: ``None`` ignores rows that others add.
        summary: Further properties of the snapshot summary.
        properties: Table properties to set in the same commit.
        options: Retries and cleaning.
        owns_files: Whether the new files were written for this command, and are deleted when it fails.
    """
    if changes.is_empty:
        return changes.result(target)
    checks = required_checks(target.command.value, target.mode.value, isolation)
    if target.command is not Command.APPEND:
        # Deletes that others add for a removed file matter only when rows of that file live on in new files.
        checks -= {Check.NO_NEW_DELETES_FOR_REMOVED}
        if changes.rewrote and changes.removed_data:
            checks |= {Check.NO_NEW_DELETES_FOR_REMOVED}
    change = changes.build(target, summary or {})
    with delay_interrupt():
        changes.handed_over = True
        committed = commit_change(
            target.table,
            change,
            branch=target.branch,
            validation=ConflictValidation(
                starting_snapshot_id=target.snapshot_id,
                checks=checks,
                conflict_filter=conflict_filter,
                referenced_data_files=frozenset(changes.referenced),
                partitions=partitions,
            ),
            options=replace(options or CommitOptions(), owns_files=owns_files),
            extra_updates=(SetPropertiesUpdate(updates=dict(properties)),) if properties else (),
        )
    update_to_commit(target.table, committed.table)
    return changes.result(target, committed)

"""Everything a change adds and removes, gathered from metadata and from tasks, and committed as one snapshot.

Rule: what adds nothing and removes nothing is not committed. The operation of the snapshot follows from what it does,
as Iceberg names it. The checks are those of the command and its isolation level (``transaction.recipes``); that others
added deletes for a removed file matters only when rows of it live on in new files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.table.update import SetPropertiesUpdate
from pyroaring import BitMap64

from floeplan.catalog import update_to_commit
from floeplan.dml.row_task import RowTaskResult
from floeplan.dml.target import Command, DmlTarget
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.metadata.manifests.new_entries import concat_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.scan.model import PlannedFiles
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.change import (
    Check,
    ConflictValidation,
    IsolationLevel,
    Operation,
    SnapshotChange,
    removed_entry_hints,
    required_checks,
)
from floeplan.transaction.commit import commit_change
from floeplan.write.file_entries import remove_written_files

# What a change did, in numbers.


@dataclass(frozen=True, slots=True)
class ManifestSummary:
    """A manifest the commit wrote."""

    path: str
    spec_id: int
    content: str
    entries: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"path": self.path, "spec_id": self.spec_id, "content": self.content, "entries": self.entries}


@dataclass(frozen=True, slots=True)
class DmlResult:
    """One append, delete, update, merge or overwrite.

    Attributes:
        operation: The command.
        mode: ``copy-on-write`` or ``merge-on-read``, of an append ``merge-append`` or ``fast-append``; ``metadata``
            when no data file was opened or written.
        snapshot_id: The snapshot that was committed; ``None`` when nothing had to change, so nothing was committed.
        rows_deleted: Live rows that are gone.
        rows_inserted: New rows.
        rows_updated: Rows with new values.
        data_files_added: Data files in the new snapshot that were not there.
        data_files_removed: Data files that left the table.
        delete_files_added: Position delete files and deletion vectors added.
        delete_files_removed: Those that were replaced or went with their data file.
        manifests_written: The manifests of the commit.
        attempts: How often committing was tried; 0 when nothing was committed.
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
        return {
            "operation": self.operation,
            "mode": self.mode,
            "snapshot_id": self.snapshot_id,
            "rows_deleted": self.rows_deleted,
            "rows_inserted": self.rows_inserted,
            "rows_updated": self.rows_updated,
            "data_files_added": self.data_files_added,
            "data_files_removed": self.data_files_removed,
            "delete_files_added": self.delete_files_added,
            "delete_files_removed": self.delete_files_removed,
            "manifests_written": [manifest.to_dict() for manifest in self.manifests_written],
            "attempts": self.attempts,
        }


# ---

_CONTENT = {DATA: "data", DELETES: "deletes"}


@dataclass(slots=True)
class Outcome:
    """What is to be committed, and the numbers of it."""

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
    """The files the change was planned on: they tell the commit where to look for what is removed."""

    def add(self, results: Iterable[RowTaskResult]) -> None:
        """Take in what tasks did."""
        self.opened = True
        for result in results:
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
        """Take in files of new rows."""
        self.opened = True
        if len(entries):
            self.register(entries)

    def register(self, entries: EntriesTable) -> None:
        """Take in files that are there already."""
        self.data.append(entries)
        self.rows_inserted += int(entries.record_count.sum())

    @property
    def nothing(self) -> bool:
        """Whether the table stays as it is."""
        return not (self.data or self.deletes or self.removed_data or self.removed_deletes)

    @property
    def operation(self) -> Operation:
        """As Iceberg names what the snapshot does."""
        if not (self.deletes or self.removed_data or self.removed_deletes):
            return Operation.APPEND
        return Operation.OVERWRITE if self.data else Operation.DELETE


@dataclass(frozen=True, slots=True)
class Commit:
    """How an outcome is committed.

    Attributes:
        conflict_filter: Rows the change depends on.
        partitions: Entries whose (spec, tuple)s are all the change depends on.
        isolation: ``None`` takes no notice of rows others add.
        summary: Further properties of the snapshot.
        properties: Properties of the table that are set in the same commit.
        options: Retries and cleaning.
        owns_files: Whether the new files were written for this change, and go when it fails.
    """

    conflict_filter: IrExpr = TRUE
    partitions: EntriesTable | None = None
    isolation: IsolationLevel | None = None
    summary: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    options: CommitOptions | None = None
    owns_files: bool = True


def discard_result(result: RowTaskResult, files: TableFiles) -> None:
    """Remove what a task wrote."""
    remove_written_files(result.added_data, files)
    remove_written_files(result.added_deletes, files)


@contextmanager
def discard_on_failure(outcome: Outcome, target: DmlTarget) -> Iterator[None]:
    """When an error ends the work before anything is committed, the files written for it go."""
    try:
        yield
    except BaseException:
        for entries in (*outcome.data, *outcome.deletes):
            remove_written_files(entries, TableFiles.of(target.table))
        raise


def commit_outcome(target: DmlTarget, outcome: Outcome, how: Commit) -> DmlResult:
    """Commit, if there is anything to commit."""
    if outcome.nothing:
        return _result(target, outcome)
    union = UnionPartitionType.of_table(target.table.metadata)
    data = concat_entries(outcome.data, union) if outcome.data else None
    deletes = concat_entries(outcome.deletes, union) if outcome.deletes else None
    change = SnapshotChange(
        operation=outcome.operation,
        added_data=data,
        added_deletes=deletes,
        removed_data=frozenset(outcome.removed_data),
        removed_deletes=frozenset(outcome.removed_deletes),
        removed_entries=None
        if outcome.planned is None
        else removed_entry_hints(outcome.planned, outcome.removed_data, outcome.removed_deletes),
        planned_on=None if target.snapshot is None else target.snapshot.snapshot_id,
        merge_manifests=outcome.merge_manifests,
        summary=how.summary,
    )
    validation = ConflictValidation(
        starting_snapshot_id=None if target.snapshot is None else target.snapshot.snapshot_id,
        checks=_checks(target, outcome, how),
        conflict_filter=how.conflict_filter,
        referenced_data_files=frozenset(outcome.referenced),
        partitions=how.partitions,
    )
    options = replace(how.options or CommitOptions(), owns_files=how.owns_files)
    also = (SetPropertiesUpdate(updates=dict(how.properties)),) if how.properties else ()
    done = commit_change(
        target.table, change, branch=target.branch, validation=validation, options=options, extra_updates=also
    )
    update_to_commit(target.table, done.table)
    written = tuple(ManifestSummary(m.path, m.spec_id, _CONTENT[m.content], m.entries) for m in done.manifests_written)
    return _result(target, outcome, done.snapshot_id, written, done.attempts)


def _checks(target: DmlTarget, outcome: Outcome, how: Commit) -> frozenset[Check]:
    checks = required_checks(target.command.value, target.mode.value, how.isolation)
    rewritten = {Check.NO_NEW_DELETES_FOR_REMOVED}
    if target.command is Command.APPEND:
        return checks
    return checks | rewritten if outcome.rewrote and outcome.removed_data else checks - rewritten


def _result(
    target: DmlTarget,
    outcome: Outcome,
    snapshot_id: int | None = None,
    manifests: tuple[ManifestSummary, ...] = (),
    attempts: int = 0,
) -> DmlResult:
    return DmlResult(
        operation=target.command.value,
        mode=_mode(target, outcome),
        snapshot_id=snapshot_id,
        rows_deleted=outcome.rows_deleted,
        rows_inserted=outcome.rows_inserted,
        rows_updated=outcome.rows_updated,
        data_files_added=sum(map(len, outcome.data)),
        data_files_removed=len(outcome.removed_data),
        delete_files_added=sum(map(len, outcome.deletes)),
        delete_files_removed=len(outcome.removed_deletes),
        manifests_written=manifests,
        attempts=attempts,
    )


def _mode(target: DmlTarget, outcome: Outcome) -> str:
    if not outcome.opened:
        return "metadata"
    if target.command is Command.APPEND:
        return "merge-append" if outcome.merge_manifests else "fast-append"
    return target.mode.value

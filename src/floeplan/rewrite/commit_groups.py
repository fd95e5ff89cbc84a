"""Committing rewritten groups: one REPLACE snapshot of any subset of the groups.

::

    groups ─► what others committed since the plan ─► groups that can no longer be committed are dropped
                          │
                          └─► concurrent deletes carried over ─► one REPLACE commit
                                        ▲                                │
                                        └─ others changed the same files ┘

Rule: each round checks the newest head, and conflict validation starts from that head, so nothing between plan and
commit is missed. New files get the data sequence number of the planned snapshot: equality deletes that were applied do
not apply to them again, newer ones do. Newer position deletes of replaced files are mapped to the new files.

Fail-safe: a group whose files were removed, or whose concurrent deletes cannot be carried over, fails alone. After a
refused commit its files are removed; when the commit state is unknown, all files stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floeplan.errors import CommitConflictError, CommitError, CorruptMetadataError, FloeplanError
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable, concat_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.carry_deletes import CarriedDeletes, ConcurrentChanges, DeleteCarrier, files_at
from floeplan.rewrite.plan.model import GroupFailure, RewriteDataFilesPlan
from floeplan.rewrite.run.group import GroupResult
from floeplan.snapshot.reader import branch_head
from floeplan.tasks.runner import new_attempt
from floeplan.text import counted
from floeplan.transaction.catalog_commit import CommitOptions, Retries, RetryPolicy
from floeplan.transaction.change import Check, ConflictValidation, Operation, SnapshotChange, removed_entry_hints
from floeplan.transaction.commit import CommitResult, commit_change
from floeplan.transaction.validation import MAX_NAMED_FILES, has_expired_snapshots
from floeplan.write.metrics import remove_written_files
from floeplan.write.target import WriteTarget

_CHECKS = frozenset({Check.REMOVED_FILES_EXIST, Check.NO_NEW_DELETES_FOR_REMOVED})


@dataclass(frozen=True, slots=True)
class CommittedGroups:
    """The result of one commit; ``snapshot_id`` is ``None`` when no group could be committed."""

    snapshot_id: int | None = None
    groups: tuple[GroupResult, ...] = ()
    failures: tuple[GroupFailure, ...] = ()
    delete_files_removed: int = 0
    deletes_carried: int = 0


@dataclass(frozen=True, slots=True)
class _CommitState:
    """What can be committed on one head.

    Attributes:
        concurrent: What others committed up to that head.
        groups: Groups that can be committed.
        failures: Groups that can no longer be committed.
        added: The new files, with their data sequence number.
        carried: Concurrent deletes for them.
    """

    concurrent: ConcurrentChanges
    groups: tuple[GroupResult, ...]
    failures: tuple[GroupFailure, ...]
    added: EntriesTable
    carried: CarriedDeletes

    @property
    def removed_data(self) -> frozenset[str]:
        return frozenset(path for group in self.groups for path in group.removed_data)


@dataclass(slots=True)
class CommitManager:
    """Commits groups of one plan.

    Attributes:
        plan: The plan.
        branch: The branch it was made on.
        options: Commit and retry options.
        results_expected: Results to commit in total if nothing fails.
    """

    plan: RewriteDataFilesPlan
    branch: str = MAIN_BRANCH
    options: CommitOptions = field(default_factory=CommitOptions)
    results_expected: int = 0
    _results_committed: int = 0

    def commit(self, results: Sequence[GroupResult]) -> CommittedGroups:
        """Commit groups together, except those that can no longer be committed, whose files are removed.

        Raises:
            CommitConflictError: Other writers changed the same files in every round; the new files are removed.
            CommitStateUnknownError: The groups may have been committed; their files stay.
        """
        pending, failures = tuple(results), list[GroupFailure]()
        table = self.plan.target.table
        policy = self.options.retry or RetryPolicy.for_commits(table.metadata.properties)
        rounds = Retries(policy, self.options.timing)
        while pending:
            state = self._check_head(pending, table)
            failures += state.failures
            pending = state.groups
            done = self._commit(state) if pending else None
            if done is not None:
                self._results_committed += len(pending)
                return CommittedGroups(
                    snapshot_id=done.snapshot_id,
                    groups=pending,
                    failures=tuple(failures),
                    delete_files_removed=int(done.summary.get("removed-delete-files", 0)),
                    deletes_carried=state.carried.rows,
                )
            if pending and not rounds.again():
                self._discard(pending)
                raise CommitConflictError(
                    f"gave up committing {counted(len(pending), 'rewritten group')} after "
                    f"{counted(rounds.attempts, 'round')}: other writers changed the same files each time; "
                    "run the rewrite again",
                    context={"table": self.plan.target.name, "attempts": rounds.attempts},
                )
        return CommittedGroups(failures=tuple(failures))

    def _check_head(self, groups: Sequence[GroupResult], table: Table) -> _CommitState:
        """Check which groups can be committed on the newest head; removes their files when that fails."""
        try:
            now = _reload(table)
            start = self.plan.target.snapshot
            try:
                concurrent = ConcurrentChanges.of(
                    now, branch_head(now.metadata, self.branch), None if start is None else start.snapshot_id
                )
            except CorruptMetadataError as missing:
                if not has_expired_snapshots(_reload(table).metadata, now.metadata):
                    raise
                name = self.plan.target.name
                raise CommitConflictError(
                    f"snapshots of {name} expired while checking for concurrent commits; run the rewrite again",
                    context={"table": name},
                ) from missing
            carrier = DeleteCarrier.of(self.plan.files, concurrent, keeps_sequence_number=self._keeps_sequence_number)
            gone = frozenset(concurrent.removed_data.to_pylist())
            kept, failures, carried = list[GroupResult](), list[GroupFailure](), CarriedDeletes()
            for group in groups:
                try:
                    _check_not_removed(group, gone)
                    carried.add(carrier.carry(group, self._with_planned_sequence_number(group.added)))
                except FloeplanError as error:
                    failures.append(GroupFailure(group.group_id, error, group.bytes))
                    self._discard([group])
                else:
                    kept.append(group)
            union = UnionPartitionType.of_table(now.metadata)
            added = self._with_planned_sequence_number(concat_entries([group.added for group in kept], union))
            return _CommitState(concurrent, tuple(kept), tuple(failures), added, carried)
        except BaseException:
            self._discard(groups)
            raise

    def _commit(self, state: _CommitState) -> CommitResult | None:
        """Commit; ``None`` when another writer changed the same files after the check.

        Files are removed only after errors that are ``safe_to_clean``: after others the table may refer to them.
        """
        concurrent = state.concurrent
        deletes = None
        try:
            deletes = state.carried.write(WriteTarget.of(concurrent.table), state.added, new_attempt())
            return commit_change(
                concurrent.table,
                self._change(state, deletes),
                branch=self.branch,
                validation=self._validation(state),
                options=replace(self.options, owns_files=False),
            )
        except FloeplanError as error:
            again = isinstance(error, CommitConflictError) and "check" in error.context
            if error.safe_to_clean:
                remove_written_files(deletes, TableFiles.of(concurrent.table))
                self._discard(() if again else state.groups)
            if again and error.safe_to_clean:
                return None
            raise

    def _change(self, state: _CommitState, deletes: EntriesTable | None) -> SnapshotChange:
        removed, concurrent = state.removed_data, state.concurrent
        gone: set[DeleteFileId] = {delete for group in state.groups for delete in group.removed_deletes}
        gone |= state.carried.replaced
        gone -= concurrent.removed_deletes
        summary = {"floeplan.operation": "rewrite"}
        if self.plan.run is not None:  # with which an interrupted rewrite-all is continued
            left = max(0, self.results_expected - self._results_committed - len(state.groups))
            summary |= self.plan.run.summary(left, begun=self._results_committed > 0)
        start = self.plan.target.snapshot
        return SnapshotChange(
            operation=Operation.REPLACE,
            added_data=state.added,
            added_deletes=deletes,
            removed_data=removed,
            removed_deletes=frozenset(gone),
            removed_entries=removed_entry_hints(self.plan.files, removed, gone),
            planned_on=None if start is None else start.snapshot_id,
            drop_dangling_deletes=self.plan.options.remove_dangling_deletes,
            summary=summary,
        )

    def _validation(self, state: _CommitState) -> ConflictValidation:
        """The required checks from the checked head on; for files that change their spec also new equality deletes."""
        old = files_at(self.plan.files.entries, state.removed_data)
        checks, partitions = _CHECKS, None
        if self.plan.output_spec_id is not None and (old.spec_id != self.plan.output_spec_id).any():
            checks |= {Check.NO_NEW_DELETES}
            union = UnionPartitionType.of_table(state.concurrent.table.metadata)
            partitions = concat_entries([old, state.added], union)
        return ConflictValidation(starting_snapshot_id=state.concurrent.head, checks=checks, partitions=partitions)

    @property
    def _keeps_sequence_number(self) -> bool:
        return self.plan.options.use_starting_sequence_number and self.plan.target.metadata.format_version > 1

    def _with_planned_sequence_number(self, added: EntriesTable) -> EntriesTable:
        """Give new files the data sequence number of the planned snapshot, as Iceberg does by default."""
        start = self.plan.target.snapshot
        if not self._keeps_sequence_number or start is None or start.sequence_number is None:
            return added
        numbers = pa.array(np.full(len(added), start.sequence_number, dtype=np.int64))
        at = added.table.schema.get_field_index("sequence_number")
        return EntriesTable(added.table.set_column(at, "sequence_number", numbers), added.partition_types)

    def _discard(self, groups: Sequence[GroupResult]) -> None:
        for group in groups:
            group.discard(TableFiles.of(self.plan.target.table))


def _reload(table: Table) -> Table:
    try:
        return table.catalog.load_table(table.name())
    except Exception as error:
        name = ".".join(table.name())
        raise CommitError(
            f"cannot load table {name} to commit to it: {type(error).__name__}: {error}",
            context={"table": name},
            retryable=True,
        ) from error


def _check_not_removed(group: GroupResult, gone: frozenset[str]) -> None:
    """Refuse to replace a removed file: its rows may be in another file now, or be deleted."""
    missing = sorted(gone.intersection(group.removed_data))
    if missing:
        raise CommitConflictError(
            f"another writer removed {missing[0]} while group {group.group_id} was being rewritten; "
            "run the rewrite again",
            context={"group_id": group.group_id, "files": missing[:MAX_NAMED_FILES], "file_count": len(missing)},
        )

"""Committing rewritten groups: replacements that keep the age of rows, of any subset of the groups.

::

    groups ─► what others did since the plan ─► groups that cannot be committed any more drop out
                          │
                          └─► newer deletes carried over, dangling deletes found ─► one REPLACE commit
                                        ▲                                                │
                                        └────── others touched the same files ◄──────────┘

Rule: each round judges the newest head and is valid from that head on, so nothing between plan and commit goes unseen.
New files have the sequence number of the snapshot the plan was made on: equality deletes that were applied do not meet
them again, newer ones do.

Fail-safe: a group whose files left the table, or whose newer deletes cannot be carried over, fails alone. A refused
commit leaves the table as it was and its files are removed; after a lost answer everything stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floeplan.errors import CommitConflictError, CommitError, CorruptMetadataError, FloeplanError
from floeplan.metadata.delete_index import DeleteFileId, DeleteKind
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.metadata.manifests.new_entries import concat_entries
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.commit.remap import Carried, DeleteCarrier, Since, is_among
from floeplan.rewrite.plan.model import RewriteDataFilesPlan
from floeplan.rewrite.result import GroupFailure
from floeplan.rewrite.run.group_task import GroupResult
from floeplan.scan.model import PlannedFiles
from floeplan.snapshot.deletes import ScanDeletes, match
from floeplan.snapshot.reader import SnapshotReader
from floeplan.snapshot.target import branch_head
from floeplan.tasks.runner import new_attempt
from floeplan.text import counted
from floeplan.transaction.catalog_commit import CommitOptions, Retries, RetryPolicy
from floeplan.transaction.change import Check, ConflictValidation, Operation, SnapshotChange, removed_entry_hints
from floeplan.transaction.commit import CommitResult, commit_change
from floeplan.transaction.filter_manifests import may_hold
from floeplan.transaction.history import has_expired_snapshots
from floeplan.transaction.validation import MAX_NAMED_FILES
from floeplan.vectors import Ints
from floeplan.write.file_entries import remove_written_files
from floeplan.write.target import WriteTarget

# Delete files that apply to nothing any more once a rewrite is committed.
#
# Rule: only deletes that applied to a replaced file are asked about. One is dangling when the delete index matches it
# with no data file that stays: neither by partition, nor, of a delete for the whole table, anywhere. Files that this
# rewrite added are younger than the deletes it applied, and position deletes cannot name them.
#
# Fail-safe: the index never says too little, so a delete that may still apply stays; and what others commit
# meanwhile is
# younger than these deletes, or replaces files they already met.


_SHARED = (DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION, DeleteKind.POSITION_PARTITION)


def dangling_deletes(
    planned: PlannedFiles, since: Since, removed: pa.Array, added_before: frozenset[str]
) -> frozenset[DeleteFileId]:
    """Deletes of several files that apply to none any more.

    Args:
        planned: The files of the plan, with the deletes that were applied to them.
        since: What others did since; its head is what the rewrite will be committed on.
        removed: Paths of the data files to be replaced.
        added_before: Files that earlier commits of this rewrite added.
    """
    union = UnionPartitionType.of_table(since.table.metadata)
    asked = _applied(planned, since, removed)
    if not len(asked) or since.head is None:
        return frozenset()
    deletes = ScanDeletes.of(planned.deletes.take(asked), union)
    staying = _live_data(since.table, since.head, deletes, union)
    gone = pa.concat_arrays([removed, pa.array(sorted(added_before), removed.type)])
    data = staying.filter(~is_among(staying.path, gone))
    metadata = since.table.metadata
    met = match(data, deletes, union, source_types(metadata.schema(), metadata.schemas)).deletes
    free = np.setdiff1d(np.arange(len(asked)), met)
    return frozenset(DeleteFileId(path) for path in deletes.entries.path.take(pa.array(free)).to_pylist())


def _applied(planned: PlannedFiles, since: Since, removed: pa.Array) -> Ints:
    """Deletes of several files that were applied to a replaced file, and are still there."""
    matches = planned.matches
    of_match = np.repeat(is_among(planned.entries.path, removed), matches.counts)
    rows = np.unique(matches.deletes[of_match])
    rows = rows[np.isin(planned.delete_kinds[rows], _SHARED)]
    if not len(rows):
        return rows
    left = is_among(
        planned.deletes.take(rows).path,
        pa.array(sorted({file.path for file in since.removed_deletes}), pa.large_string()),
    )
    return np.asarray(rows[~left])


def _live_data(table: Table, head: int, deletes: ScanDeletes, union: UnionPartitionType) -> EntriesTable:
    """Data files that some of the deletes may apply to."""
    snapshot = table.metadata.snapshot_by_id(head)
    assert snapshot is not None, "the head of a branch is there"
    reader = SnapshotReader.open(table, snapshot)
    manifests = reader.manifests
    asked = (manifests.content == DATA) & (manifests.min_sequence_number <= deletes.entries.sequence_number.max())
    if not (deletes.kinds == DeleteKind.EQUALITY_GLOBAL).any():
        asked &= may_hold(manifests, union, deletes.entries)
    columns = EntryColumns(frozenset(), stats=deletes.key_columns)
    return reader.entries(np.flatnonzero(asked), columns)


# ---

_CHECKS = frozenset({Check.REMOVED_FILES_EXIST, Check.NO_NEW_DELETES_FOR_REMOVED})


@dataclass(frozen=True, slots=True)
class CommittedGroups:
    """What one commit did; ``snapshot_id`` is ``None`` when no group was left to commit."""

    snapshot_id: int | None = None
    groups: tuple[GroupResult, ...] = ()
    failures: tuple[GroupFailure, ...] = ()
    delete_files_removed: int = 0
    deletes_carried: int = 0


@dataclass(frozen=True, slots=True)
class _Round:
    """Groups as they stand before one head.

    Attributes:
        since: What others did up to that head.
        groups: Groups that can be committed.
        failures: Groups that cannot be any more.
        added: New files of the former, with their age.
        carried: Deletes of others for them.
    """

    since: Since
    groups: tuple[GroupResult, ...]
    failures: tuple[GroupFailure, ...]
    added: EntriesTable
    carried: Carried

    @property
    def removed_data(self) -> frozenset[str]:
        return frozenset(path for group in self.groups for path in group.removed_data)


@dataclass(slots=True)
class CommitManager:
    """Commits groups of one plan.

    Attributes:
        plan: The plan.
        branch: The branch it was made on.
        options: Retries, and who is told of steps.
        results_expected: Results to commit in total if nothing fails.
    """

    plan: RewriteDataFilesPlan
    branch: str = MAIN_BRANCH
    options: CommitOptions = field(default_factory=CommitOptions)
    results_expected: int = 0
    _results_committed: int = 0
    _added: set[str] = field(default_factory=set)

    def commit(self, results: Sequence[GroupResult]) -> CommittedGroups:
        """Commit groups together, without those that cannot be committed any more; the files of these are removed.

        Raises:
            CommitConflictError: Other writers were faster every time; the files of all groups are removed.
            CommitStateUnknownError: The groups may have been committed; their files stay.
        """
        pending, failures = tuple(results), list[GroupFailure]()
        table = self.plan.target.table
        policy = self.options.retry or RetryPolicy.for_commits(table.metadata.properties)
        rounds = Retries(policy, self.options.timing)
        while pending:
            judged = self._judge(pending, table)
            failures += judged.failures
            pending = judged.groups
            done = self._commit(judged) if pending else None
            if done is not None:
                return self._committed(judged, done, failures)
            if pending and not rounds.again():
                self._discard(pending)
                raise CommitConflictError(
                    f"gave up committing {counted(len(pending), 'rewritten group')} after "
                    f"{counted(rounds.attempts, 'round')}: other writers changed the same files each time; "
                    "run the rewrite again",
                    context={"table": self.plan.target.name, "attempts": rounds.attempts},
                )
        return CommittedGroups(failures=tuple(failures))

    def _judge(self, groups: Sequence[GroupResult], table: Table) -> _Round:
        """Look at the newest head: groups that can still be committed, and what goes with them."""
        try:
            return self._judged(groups, table)
        except BaseException:
            self._discard(groups)
            raise

    def _judged(self, groups: Sequence[GroupResult], table: Table) -> _Round:
        now = _newest(table)
        start = self.plan.target.snapshot
        try:
            since = Since.of(now, branch_head(now.metadata, self.branch), None if start is None else start.snapshot_id)
        except CorruptMetadataError as missing:
            if has_expired_snapshots(_newest(table).metadata, now.metadata):
                raise _expired_meanwhile(self.plan.target.name) from missing
            raise
        carrier = DeleteCarrier.of(self.plan.files, since, keeps_age=self._keeps_age)
        gone = frozenset(since.removed_data.to_pylist())
        kept, failures, carried = list[GroupResult](), list[GroupFailure](), Carried()
        for group in groups:
            try:
                _refuse_removed(group, gone)
                carried.add(carrier.carry(group, self._aged(group.added)))
            except FloeplanError as error:
                failures.append(GroupFailure(group.group_id, error, group.bytes))
                self._discard([group])
            else:
                kept.append(group)
        union = UnionPartitionType.of_table(now.metadata)
        added = self._aged(concat_entries([group.added for group in kept], union))
        return _Round(since, tuple(kept), tuple(failures), added, carried)

    def _commit(self, judged: _Round) -> CommitResult | None:
        """Commit; ``None`` when another writer touched the same files after they were judged.

        Only an error that says so lets files go: after any other it is not known whether the table refers to them.
        """
        since = judged.since
        deletes = None
        try:
            deletes = judged.carried.write(WriteTarget.of(since.table), judged.added, new_attempt())
            return commit_change(
                since.table,
                self._change(judged, deletes),
                branch=self.branch,
                validation=self._validation(judged),
                options=replace(self.options, owns_files=False),
            )
        except FloeplanError as error:
            again = isinstance(error, CommitConflictError) and "check" in error.context
            if error.safe_to_clean:
                remove_written_files(deletes, TableFiles.of(since.table))
                self._discard(() if again else judged.groups)
            if again and error.safe_to_clean:
                return None
            raise

    def _change(self, judged: _Round, deletes: EntriesTable | None) -> SnapshotChange:
        removed, since = judged.removed_data, judged.since
        gone: set[DeleteFileId] = {delete for group in judged.groups for delete in group.removed_deletes}
        gone |= judged.carried.replaced
        if self.plan.options.remove_dangling_deletes:
            paths = pa.array(sorted(removed), pa.large_string())
            gone |= dangling_deletes(self.plan.files, since, paths, frozenset(self._added))
        gone -= since.removed_deletes
        start = self.plan.target.snapshot
        return SnapshotChange(
            operation=Operation.REPLACE,
            added_data=judged.added,
            added_deletes=deletes,
            removed_data=removed,
            removed_deletes=frozenset(gone),
            removed_entries=removed_entry_hints(self.plan.files, removed, gone),
            planned_on=None if start is None else start.snapshot_id,
            summary=self._statement(judged),
        )

    def _statement(self, judged: _Round) -> dict[str, str]:
        """What the snapshot says of the run, so that the next one can take it up."""
        if self.plan.run is None:
            return {}
        left = max(0, self.results_expected - self._results_committed - len(judged.groups))
        return self.plan.run.summary(left, begun=self._results_committed > 0)

    def _validation(self, judged: _Round) -> ConflictValidation:
        """Nothing may have happened since the head that was judged; to what moves, not even by equality."""
        entries = self.plan.files.entries
        old = entries.filter(is_among(entries.path, pa.array(sorted(judged.removed_data), pa.large_string())))
        checks, partitions = _CHECKS, None
        if self.plan.output_spec_id is not None and (old.spec_id != self.plan.output_spec_id).any():
            checks |= {Check.NO_NEW_DELETES}
            partitions = concat_entries([old, judged.added], UnionPartitionType.of_table(judged.since.table.metadata))
        return ConflictValidation(starting_snapshot_id=judged.since.head, checks=checks, partitions=partitions)

    @property
    def _keeps_age(self) -> bool:
        return self.plan.options.use_starting_sequence_number and self.plan.target.metadata.format_version > 1

    def _aged(self, added: EntriesTable) -> EntriesTable:
        """New files with the sequence number of the snapshot the plan was made on."""
        start = self.plan.target.snapshot
        if not self._keeps_age or start is None or start.sequence_number is None:
            return added
        ages = pa.array(np.full(len(added), start.sequence_number, dtype=np.int64))
        at = added.table.schema.get_field_index("sequence_number")
        return EntriesTable(added.table.set_column(at, "sequence_number", ages), added.partition_types)

    def _committed(self, judged: _Round, done: CommitResult, failures: Sequence[GroupFailure]) -> CommittedGroups:
        self._added |= set(judged.added.path.to_pylist())
        self._results_committed += len(judged.groups)
        return CommittedGroups(
            snapshot_id=done.snapshot_id,
            groups=judged.groups,
            failures=tuple(failures),
            delete_files_removed=int(done.summary.get("removed-delete-files", 0)),
            deletes_carried=judged.carried.rows,
        )

    def _discard(self, groups: Sequence[GroupResult]) -> None:
        for group in groups:
            remove_written_files(group.added, TableFiles.of(self.plan.target.table))


def _newest(table: Table) -> Table:
    try:
        return table.catalog.load_table(table.name())
    except Exception as error:
        name = ".".join(table.name())
        raise CommitError(
            f"cannot load table {name} to commit to it: {type(error).__name__}: {error}",
            context={"table": name},
            retryable=True,
        ) from error


def _expired_meanwhile(name: str) -> CommitConflictError:
    return CommitConflictError(
        f"snapshots of {name} were expired while it was looked for what others have committed; run the rewrite again",
        context={"table": name},
    )


def _refuse_removed(group: GroupResult, gone: frozenset[str]) -> None:
    """A file that another writer removed cannot be replaced: its rows may live on elsewhere, or be deleted."""
    missing = sorted(gone.intersection(group.removed_data))
    if missing:
        raise CommitConflictError(
            f"another writer removed {missing[0]} while group {group.group_id} was being rewritten; "
            "run the rewrite again",
            context={"group_id": group.group_id, "files": missing[:MAX_NAMED_FILES], "file_count": len(missing)},
        )

"""What others committed to a branch since a change was planned.

Rule: the history of a branch is the chain of parents of its head, down to the starting snapshot. What a snapshot did is
in the manifests that it added itself.

Fail-safe: a chain that does not reach the starting snapshot (expired, or the branch was rolled back or replaced) is a
conflict. A snapshot without an operation may have done anything, and the entries of a manifest without a snapshot id
are checked one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from floeplan.errors import CommitConflictError
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import (
    UNKNOWN,
    ManifestListTable,
    concat_manifest_lists,
)
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.snapshot.reader import read_manifest_lists
from floeplan.transaction.change import Operation
from floeplan.vectors import Ints, Mask


def snapshots_since(metadata: TableMetadata, head: int | None, start: int | None) -> tuple[Snapshot, ...]:
    """The snapshots from the head of a branch, newest first, down to the starting snapshot, which is not included.

    Raises:
        CommitConflictError: The chain of parents does not reach the starting snapshot.
    """
    unseen = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    found: list[Snapshot] = []
    at = head
    while at is not None and at != start and at in unseen:
        found.append(unseen.pop(at))
        at = found[-1].parent_snapshot_id
    if at != start:
        raise CommitConflictError(
            f"cannot determine what was committed since snapshot {start}: the history of snapshot {head} does not "
            "reach it, because it was expired or the branch was rolled back or replaced; run the operation again",
            context={"starting_snapshot_id": start, "head_snapshot_id": head},
        )
    return tuple(found)


def has_expired_snapshots(now: TableMetadata, then: TableMetadata) -> bool:
    """Whether snapshots expired since: files that only they referred to may have been deleted."""
    known = {snapshot.snapshot_id for snapshot in now.snapshots}
    return any(snapshot.snapshot_id not in known for snapshot in then.snapshots)


def operation_of(snapshot: Snapshot) -> Operation | None:
    """The operation of a snapshot; ``None`` without a summary."""
    return None if snapshot.summary is None else Operation(snapshot.summary.operation.value)


def with_operations(snapshots: Sequence[Snapshot], operations: Collection[Operation]) -> list[Snapshot]:
    """The snapshots with one of these operations, or without one."""
    return [s for s in snapshots if (operation := operation_of(s)) is None or operation in operations]


@dataclass(frozen=True, slots=True)
class Committed:
    """Entries that snapshots wrote; ``snapshot`` is the index of each entry's snapshot."""

    entries: EntriesTable
    snapshots: tuple[Snapshot, ...]
    snapshot: Ints

    def filter(self, keep: Mask) -> Committed:
        """The entries where the mask is true."""
        return Committed(self.entries.filter(keep), self.snapshots, self.snapshot[keep])


def committed_entries(
    snapshots: Sequence[Snapshot], content: int, union: UnionPartitionType, columns: EntryColumns, io: FileIO
) -> Committed:
    """The entries, of any status, in the data or delete manifests that these snapshots added."""
    lists = _own_manifests(snapshots, content, io)
    manifests = concat_manifest_lists(lists) if lists else ManifestListTable.empty()
    entries = read_entries(manifests, union, columns, io=io)
    manifest = entries.ints("manifest")
    writer = np.repeat(np.arange(len(lists)), [len(part) for part in lists])[manifest]
    ids = np.array([snapshot.snapshot_id for snapshot in snapshots], dtype=np.int64)
    own = (manifests.added_snapshot_id[manifest] != UNKNOWN) | (entries.ints("snapshot_id") == ids[writer])
    committed = Committed(entries, tuple(snapshots), writer)
    return committed if own.all() else committed.filter(own)


def _own_manifests(snapshots: Sequence[Snapshot], content: int, io: FileIO) -> list[ManifestListTable]:
    """For each snapshot the manifests it added, or may have added."""
    own = []
    for snapshot, listed in zip(snapshots, read_manifest_lists(snapshots, io), strict=True):
        written = np.isin(listed.added_snapshot_id, [snapshot.snapshot_id, UNKNOWN])
        own.append(listed.take(np.flatnonzero(written & (listed.content == content))))
    return own

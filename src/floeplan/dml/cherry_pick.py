"""CHERRYPICK: commit the changes of a snapshot that a branch does not have, such as a staged append, to that branch.

Rule: as in Iceberg, a child of the branch's head becomes its head (a fast-forward), and of any other snapshot that
appended rows the data files are appended. The new snapshot records ``source-snapshot-id`` and, of a write-audit-publish
commit, ``published-wap-id``. The files keep their spec and partition.

Fail-safe: a snapshot that was picked before, or whose files the branch has already, is refused, also when a concurrent
commit picks it: the commit is repeated from the start whenever another writer has added data.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from floeplan.catalog import update_to_commit
from floeplan.display import Displayed
from floeplan.dml.target import Command, DmlTarget, resolve
from floeplan.errors import BadInputError, CommitConflictError, UnknownSnapshotError, UnsupportedError
from floeplan.metadata.manifests.entries import (
    ENTRY_TYPES,
    WHOLE,
    EntriesTable,
    EntryColumns,
    Status,
    new_entries,
    partition_column,
)
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.partition.union import UnionPartitionType
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.catalog_commit import CommitOptions, delay_interrupt
from floeplan.transaction.change import Check, ConflictValidation, Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from floeplan.transaction.refs import fast_forward
from floeplan.transaction.validation import committed_entries

_SOURCE, _STAGED, _PUBLISHED = "source-snapshot-id", "wap.id", "published-wap-id"
_INHERITED = ("snapshot_id", "sequence_number", "file_sequence_number", "first_row_id")
"""What a data file gets from the snapshot that adds it."""
_PATHS = EntryColumns(frozenset(), partition=False)
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, repr=False)
class CherryPickResult(Displayed):
    """The result of a cherry-pick.

    Attributes:
        source_snapshot_id: The snapshot that was picked.
        branch: The branch that has its changes now.
        snapshot_id: The head of the branch; the source itself after a fast-forward.
        fast_forward: Whether the branch was moved to the source, without a new snapshot.
        data_files_added: Data files that the branch did not have.
        rows_inserted: Their rows.
        dry_run: Whether nothing was changed; then there is no new snapshot.
    """

    source_snapshot_id: int
    branch: str
    snapshot_id: int | None
    fast_forward: bool
    data_files_added: int
    rows_inserted: int
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {"operation": "cherrypick"} | asdict(self)


def cherry_pick(
    table: Table | str | os.PathLike[str],
    snapshot_id: int,
    *,
    branch: str | None = None,
    dry_run: bool = False,
    options: CommitOptions | None = None,
    catalog: str | Catalog | None = None,
) -> CherryPickResult:
    """Commit the changes of a snapshot to a branch.

    Args:
        table: A PyIceberg table or ``namespace.name``.
        snapshot_id: A snapshot that appended rows, or a child of the branch's head.
        branch: The branch to change instead of ``main``.
        dry_run: Make all checks and change nothing.
        options: How the commit is retried.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.

    Raises:
        UnknownSnapshotError: The table has no such snapshot.
        BadInputError: The branch has its changes already.
        UnsupportedError: It changed rows in another way than by appending them, and its parent is not the head.
        CommitConflictError: Other writers were faster every time.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        target = resolve(table, Command.APPEND, branch=branch, catalog=catalog)
        try:
            return _pick(target, _source(target, snapshot_id), dry_run, options or CommitOptions())
        except CommitConflictError:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _source(target: DmlTarget, snapshot_id: int) -> Snapshot:
    """The snapshot to pick, which the branch must not have yet."""
    metadata = target.table.metadata
    source = metadata.snapshot_by_id(snapshot_id)
    if source is None:
        raise UnknownSnapshotError(f"table has no snapshot {snapshot_id}", context={"snapshot_id": snapshot_id})
    staged = _property(source, _STAGED)
    for known in ancestors_of(target.snapshot, metadata):
        picked = str(snapshot_id) in (str(known.snapshot_id), _property(known, _SOURCE))
        if picked or (staged is not None and staged in (_property(known, _STAGED), _property(known, _PUBLISHED))):
            raise BadInputError(
                f"{target.branch} has the changes of snapshot {snapshot_id} already, by snapshot {known.snapshot_id}",
                kind="already-picked",
                context={"snapshot_id": snapshot_id, "branch": target.branch},
            )
    return source


def _pick(target: DmlTarget, source: Snapshot, dry_run: bool, options: CommitOptions) -> CherryPickResult:
    moves = source.parent_snapshot_id == target.snapshot_id
    operation = None if source.summary is None else source.summary.operation.value
    if not moves and operation != Operation.APPEND:
        raise UnsupportedError(
            f"snapshot {source.snapshot_id} is not an append ({operation or 'unknown operation'}) and its parent is "
            f"not the head of {target.branch}: run the change that made it again",
            context={"snapshot_id": source.snapshot_id, "operation": operation},
        )
    added = _added_files(target, source)
    counts = len(added), int(added.record_count.sum())
    if dry_run:
        return CherryPickResult(source.snapshot_id, target.branch, None, moves, *counts, dry_run=True)
    if moves:
        try:
            moved = fast_forward(target.table, target.branch, source.snapshot_id, options=options)
        except BadInputError as error:  # another writer has moved the branch: begin again
            raise CommitConflictError(error.message, context=error.context) from error
        update_to_commit(target.table, moved)
        return CherryPickResult(source.snapshot_id, target.branch, source.snapshot_id, True, *counts)
    summary = {_SOURCE: str(source.snapshot_id)}
    if (staged := _property(source, _STAGED)) is not None:
        summary[_PUBLISHED] = staged
    with delay_interrupt():
        committed = commit_change(
            target.table,
            SnapshotChange(Operation.APPEND, added_data=added, summary=summary),
            branch=target.branch,
            validation=ConflictValidation(target.snapshot_id, frozenset({Check.NO_NEW_DATA})),
            options=options,
        )
    update_to_commit(target.table, committed.table)
    return CherryPickResult(source.snapshot_id, target.branch, committed.snapshot_id, False, *counts)


def _added_files(target: DmlTarget, source: Snapshot) -> EntriesTable:
    """The data files that a snapshot added, as files to add; the branch must have none of them."""
    metadata, io = target.table.metadata, target.table.io
    found = committed_entries([source], DATA, metadata, EntryColumns(WHOLE), io).entries
    found = found.filter(found.status == Status.ADDED)
    head = SnapshotReader.open(target.table, target.snapshot)
    there = head.entries(head.manifest_rows(DATA), _PATHS).path
    both = found.path.filter(pc.is_in(found.path, value_set=there.cast(found.path.type)))
    if len(both):
        raise BadInputError(
            f"{target.branch} has data file {both[0]} of snapshot {source.snapshot_id} already",
            kind="already-picked",
            context={"snapshot_id": source.snapshot_id, "file": str(both[0])},
        )
    names = [name for name in ENTRY_TYPES if name in found and name not in _INHERITED]
    names += [partition_column(key) for key in found.partition_types]
    columns: dict[str, pa.Array] = {name: found.array(name) for name in names}
    return new_entries(columns, UnionPartitionType.of_table(metadata), found.partition_types)


def _property(snapshot: Snapshot, name: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)

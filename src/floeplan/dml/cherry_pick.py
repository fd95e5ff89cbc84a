"""CHERRYPICK: commit the changes of a snapshot that a branch does not have, such as a staged append, to that branch.

Rule: as in Iceberg, a child of the branch's head becomes its head (a fast-forward). Of any other snapshot that appended
rows the data files are appended, and of a dynamic overwrite (``replace-partitions``) they replace the files that it
removed, if its parent is an ancestor of the branch and its partitions have not changed since. The new snapshot records
``source-snapshot-id`` and, of a write-audit-publish commit, ``published-wap-id``. Files keep their spec and partition.

Fail-safe: a snapshot that was picked before, or whose files the branch has already, is refused, also when a concurrent
commit picks it: the commit is repeated from the start whenever another writer has added data. Files of other specs that
were added since may lie in the partitions of an overwrite, so it is refused, where Iceberg compares each spec alone.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
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
from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import (
    ENTRY_TYPES,
    WHOLE,
    EntriesTable,
    EntryColumns,
    Status,
    new_entries,
    partition_column,
)
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.catalog_commit import CommitOptions, delay_interrupt
from floeplan.transaction.change import (
    REPLACES_PARTITIONS,
    Check,
    ConflictValidation,
    Operation,
    SnapshotChange,
    delete_file_id,
    entry_keys,
)
from floeplan.transaction.commit import commit_change
from floeplan.transaction.refs import fast_forward
from floeplan.transaction.validation import ValidationContext, committed_entries, operation_of, validate

_SOURCE, _STAGED, _PUBLISHED = "source-snapshot-id", "wap.id", "published-wap-id"
_INHERITED = ("snapshot_id", "sequence_number", "file_sequence_number", "first_row_id")
"""What a data file gets from the snapshot that adds it."""
_PATHS = EntryColumns(frozenset({"snapshot_id"}), partition=False)
_NO_NEW_DATA = frozenset({Check.NO_NEW_DATA})
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
        data_files_removed: Data files that the branch does not have any more.
        dry_run: Whether nothing was changed; then there is no new snapshot.
    """

    source_snapshot_id: int
    branch: str
    snapshot_id: int | None
    fast_forward: bool
    data_files_added: int
    rows_inserted: int
    data_files_removed: int = 0
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
        snapshot_id: A snapshot that appended rows or replaced partitions, or a child of the branch's head.
        branch: The branch to change instead of ``main``.
        dry_run: Make all checks and change nothing.
        options: How the commit is retried.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.

    Raises:
        UnknownSnapshotError: The table has no such snapshot.
        BadInputError: The branch has its changes already.
        UnsupportedError: It changed rows in another way and its parent is not the head, or it replaced partitions that
            the branch has changed since.
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
    operation, replaces = operation_of(source), _property(source, REPLACES_PARTITIONS) == "true"
    if not moves and (operation is None or (operation is not Operation.APPEND and not replaces)):
        raise UnsupportedError(
            f"snapshot {source.snapshot_id} is neither an append nor a dynamic overwrite "
            f"({operation or 'unknown operation'}) and its parent is not the head of {target.branch}: "
            "run the change that made it again",
            context={"snapshot_id": source.snapshot_id, "operation": None if operation is None else operation.value},
        )
    files = _changed_files(target, source)
    counts = len(files.added), int(files.added.record_count.sum()), len(files.removed)
    if replaces and not moves:
        _check_partitions(target, source, files)
    if dry_run:
        return CherryPickResult(source.snapshot_id, target.branch, None, moves, *counts, dry_run=True)
    if moves:
        try:
            moved = fast_forward(target.table, target.branch, source.snapshot_id, options=options)
        except BadInputError as error:  # another writer has moved the branch: begin again
            raise CommitConflictError(error.message, context=error.context) from error
        update_to_commit(target.table, moved)
        return CherryPickResult(source.snapshot_id, target.branch, source.snapshot_id, True, *counts)
    summary = {_SOURCE: str(source.snapshot_id)} | ({REPLACES_PARTITIONS: "true"} if replaces else {})
    if (staged := _property(source, _STAGED)) is not None:
        summary[_PUBLISHED] = staged
    with delay_interrupt():
        committed = commit_change(
            target.table,
            files.change(operation or Operation.APPEND, summary),
            branch=target.branch,
            validation=files.validation if replaces else ConflictValidation(target.snapshot_id, _NO_NEW_DATA),
            options=options,
        )
    update_to_commit(target.table, committed.table)
    return CherryPickResult(source.snapshot_id, target.branch, committed.snapshot_id, False, *counts)


@dataclass(frozen=True, slots=True)
class _ChangedFiles:
    """The data files that a snapshot added, as files to add, and removed; the branch must have none of the former.

    ``deletes`` are the delete files of the branch that apply to one removed file only.
    """

    parent_id: int | None
    added: EntriesTable
    removed: frozenset[str]
    deletes: frozenset[DeleteFileId]
    validation: ConflictValidation = field(init=False)
    """Of a dynamic overwrite: its partitions must be as its parent had them."""

    def __post_init__(self) -> None:
        checks = _NO_NEW_DATA | {Check.REMOVED_FILES_EXIST}
        found = ConflictValidation(self.parent_id, checks, partitions=self.added)
        object.__setattr__(self, "validation", found)

    def change(self, operation: Operation, summary: dict[str, str]) -> SnapshotChange:
        """The same files as a change of another snapshot."""
        return SnapshotChange(
            operation,
            added_data=self.added,
            removed_data=self.removed,
            removed_deletes=self.deletes,
            drop_dangling_deletes=bool(self.removed),
            summary=summary,
        )


def _check_partitions(target: DmlTarget, source: Snapshot, files: _ChangedFiles) -> None:
    """Refuse a dynamic overwrite of partitions that the branch has changed since."""
    metadata, io, parent = target.table.metadata, target.table.io, source.parent_snapshot_id
    context = {"snapshot_id": source.snapshot_id, "parent_snapshot_id": parent, "branch": target.branch}
    deletes = committed_entries([source], DELETES, metadata, _PATHS, io).entries
    if (deletes.status == Status.ADDED).any():
        raise UnsupportedError(
            f"snapshot {source.snapshot_id} replaced partitions and also added delete files: run it again on "
            f"{target.branch}",
            context=context,
        )
    if parent is not None and parent not in {known.snapshot_id for known in ancestors_of(target.snapshot, metadata)}:
        raise UnsupportedError(
            f"snapshot {source.snapshot_id} replaced partitions of snapshot {parent}, which is not in the history of "
            f"{target.branch}: run the overwrite again",
            context=context,
        )
    change = files.change(Operation.OVERWRITE, {})
    try:
        validate(ValidationContext(metadata, target.snapshot_id, change, files.validation, io))
    except CommitConflictError as error:
        raise UnsupportedError(
            f"{target.branch} has changed the partitions that snapshot {source.snapshot_id} replaced, in snapshot "
            f"{error.context.get('snapshot_id')}: run the overwrite again",
            context=context | error.context,
        ) from error


def _changed_files(target: DmlTarget, source: Snapshot) -> _ChangedFiles:
    """The data files of a snapshot; those that it added must not be in the branch."""
    metadata, io = target.table.metadata, target.table.io
    committed = committed_entries([source], DATA, metadata, EntryColumns(WHOLE), io).entries
    removed = committed.filter(
        (committed.status == Status.DELETED) & (committed.ints("snapshot_id") == source.snapshot_id)
    )
    found = committed.filter(committed.status == Status.ADDED)
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
    added = new_entries(columns, UnionPartitionType.of_table(metadata), found.partition_types)
    gone: frozenset[DeleteFileId] = frozenset()
    if len(removed):
        deletes = head.deletes().entries
        deletes = deletes.filter(to_mask(pc.is_in(deletes.delete_targets(), value_set=removed.path)))
        gone = frozenset(map(delete_file_id, entry_keys(deletes).to_pylist()))
    return _ChangedFiles(source.parent_snapshot_id, added, frozenset(removed.path.to_pylist()), gone)


def _property(snapshot: Snapshot, name: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)

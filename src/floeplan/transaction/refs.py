"""Creating, moving and dropping branches and tags.

Rule: commits move a branch and never a tag; ``main`` is always a branch and cannot be dropped. The new state of a ref
is decided on the newest table, and the commit requires that the ref has not changed since.

Fail-safe: a rollback goes to an ancestor and a fast-forward to a descendant; everything else needs ``set_current`` or
``replace=True``, which may leave snapshots unreferenced. A dry run makes the same checks and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.table.update import RemoveSnapshotRefUpdate

from floeplan.errors import BadInputError, UnknownSnapshotError
from floeplan.snapshot.reader import branch_head
from floeplan.transaction.catalog_commit import CatalogCommit, CommitOptions, UpdatesAndRequirements
from floeplan.transaction.commit import moved_branch, set_ref_update, table_and_ref

_Decide: TypeAlias = Callable[[TableMetadata], SnapshotRef | None]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long to keep a ref and the snapshots of a branch; ``None`` is the table's default.

    The names are those of PyIceberg's ``SnapshotRef``.
    """

    max_ref_age_ms: int | None = None
    max_snapshot_age_ms: int | None = None
    min_snapshots_to_keep: int | None = None


def create_branch(
    table: Table,
    name: str,
    snapshot_id: int | None = None,
    *,
    replace: bool = False,
    retention: Retention | None = None,
    dry_run: bool = False,
    options: CommitOptions | None = None,
) -> Table:
    """Create a branch at a snapshot, by default the current one."""
    return _create(table, name, SnapshotRefType.BRANCH, snapshot_id, replace, retention, dry_run, options)


def create_tag(
    table: Table,
    name: str,
    snapshot_id: int | None = None,
    *,
    replace: bool = False,
    retention: Retention | None = None,
    dry_run: bool = False,
    options: CommitOptions | None = None,
) -> Table:
    """Tag a snapshot, by default the current one."""
    return _create(table, name, SnapshotRefType.TAG, snapshot_id, replace, retention, dry_run, options)


def drop_branch(table: Table, name: str, *, dry_run: bool = False, options: CommitOptions | None = None) -> Table:
    """Drop a branch; its snapshots stay until they expire."""
    return _commit(table, name, lambda now: _dropped(now, name, SnapshotRefType.BRANCH), dry_run, options)


def drop_tag(table: Table, name: str, *, dry_run: bool = False, options: CommitOptions | None = None) -> Table:
    """Drop a tag."""
    return _commit(table, name, lambda now: _dropped(now, name, SnapshotRefType.TAG), dry_run, options)


def fast_forward(
    table: Table, branch: str, to: str | int, *, dry_run: bool = False, options: CommitOptions | None = None
) -> Table:
    """Move a branch forward to the snapshot of another ref, or to a snapshot; its head must be an ancestor of it."""

    def decide(now: TableMetadata) -> SnapshotRef:
        target = _snapshot_id(now, to) if isinstance(to, int) else _existing(now, to).snapshot_id
        head = branch_head(now, branch)
        if head is not None and head not in _lineage(now, target):
            raise BadInputError(
                f"cannot fast-forward {branch} to {to}: snapshot {head} is not an ancestor of {target}",
                context={"branch": branch, "to": to},
            )
        return moved_branch(now, branch, target)

    return _commit(table, branch, decide, dry_run, options)


def rollback_to(
    table: Table,
    snapshot_id: int,
    *,
    branch: str = MAIN_BRANCH,
    dry_run: bool = False,
    options: CommitOptions | None = None,
) -> Table:
    """Move a branch back to one of its ancestors."""

    def decide(now: TableMetadata) -> SnapshotRef:
        head = branch_head(now, branch)
        if head is None or snapshot_id not in _lineage(now, head):
            raise BadInputError(
                f"cannot roll back {branch} to snapshot {snapshot_id}: it is not an ancestor of {head}; `floeplan "
                "snapshots` lists them",
                context={"branch": branch, "snapshot_id": snapshot_id},
            )
        return moved_branch(now, branch, snapshot_id)

    return _commit(table, branch, decide, dry_run, options)


def set_current(
    table: Table,
    snapshot_id: int,
    *,
    branch: str = MAIN_BRANCH,
    dry_run: bool = False,
    options: CommitOptions | None = None,
) -> Table:
    """Move a branch to any snapshot of the table."""

    def decide(now: TableMetadata) -> SnapshotRef:
        branch_head(now, branch)
        return moved_branch(now, branch, _snapshot_id(now, snapshot_id))

    return _commit(table, branch, decide, dry_run, options)


def _commit(table: Table, name: str, decide: _Decide, dry_run: bool, options: CommitOptions | None) -> Table:
    if dry_run:
        decide(table.metadata)  # raises as the commit would
        return table
    return CatalogCommit(table, _RefUpdate(name, decide), options or CommitOptions()).run()


@dataclass(slots=True)
class _RefUpdate:
    """Sets a ref to what ``decide`` returns for the newest table; ``None`` drops it."""

    name: str
    decide: _Decide
    proposed: list[SnapshotRef | None] = field(default_factory=list)

    def build(self, table: Table) -> UpdatesAndRequirements:
        metadata = table.metadata
        target = self.decide(metadata)
        self.proposed.append(target)
        current = metadata.refs.get(self.name)
        requirements = table_and_ref(metadata, self.name, None if current is None else current.snapshot_id)
        drop = RemoveSnapshotRefUpdate.model_validate({"ref-name": self.name})
        return (drop if target is None else set_ref_update(self.name, target),), requirements

    def is_committed(self, metadata: TableMetadata) -> bool:
        return bool(self.proposed) and metadata.refs.get(self.name) == self.proposed[-1]


def _create(
    table: Table,
    name: str,
    kind: SnapshotRefType,
    snapshot_id: int | None,
    replace: bool,
    retention: Retention | None,
    dry_run: bool,
    options: CommitOptions | None,
) -> Table:
    def decide(now: TableMetadata) -> SnapshotRef:
        target = now.current_snapshot_id if snapshot_id is None else snapshot_id
        if target is None:
            raise BadInputError(f"cannot create {name}: the table has no snapshot yet", context={"ref": name})
        known = now.refs.get(name)
        if known is not None and known.snapshot_ref_type is not kind:
            raise BadInputError(
                f"{name} is a {known.snapshot_ref_type}, not a {kind}: choose another name", context={"ref": name}
            )
        if known is not None and not replace:
            raise BadInputError(
                f"{kind} {name} exists already, at snapshot {known.snapshot_id}; replace it or drop it",
                context={"ref": name},
            )
        kept = asdict(retention or Retention())
        return SnapshotRef.model_validate({"snapshot-id": _snapshot_id(now, target), "type": kind, **kept})

    if not name.strip():
        raise BadInputError(f"the name of the {kind} is empty", context={"ref": name})
    return _commit(table, name, decide, dry_run, options)


def _dropped(now: TableMetadata, name: str, kind: SnapshotRefType) -> None:
    if name == MAIN_BRANCH:
        raise BadInputError("main cannot be dropped", context={"ref": name})
    found = _existing(now, name).snapshot_ref_type
    if found is not kind:
        raise BadInputError(f"{name} is a {found}, not a {kind}", context={"ref": name})


def _existing(now: TableMetadata, name: str) -> SnapshotRef:
    if name not in now.refs:
        known = ", ".join(sorted(now.refs)) or "none"
        raise UnknownSnapshotError(f"table has no branch or tag {name}; it has: {known}", context={"ref": name})
    return now.refs[name]


def _snapshot_id(now: TableMetadata, snapshot_id: int) -> int:
    """The id, which a snapshot of the table must have."""
    if now.snapshot_by_id(snapshot_id) is None:
        raise UnknownSnapshotError(f"table has no snapshot {snapshot_id}", context={"snapshot_id": snapshot_id})
    return snapshot_id


def _lineage(now: TableMetadata, snapshot_id: int) -> set[int]:
    return {snapshot.snapshot_id for snapshot in ancestors_of(now.snapshot_by_id(snapshot_id), now)}

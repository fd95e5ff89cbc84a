"""``expire_snapshots``: expire old snapshots, and delete the files that only they refer to.

Rule: a branch keeps its snapshots that are newer than the limit, and at least ``retain_last``. A tag keeps its
    snapshot, and a snapshot that no branch or tag refers to is kept while it is newer than the limit. A branch or tag
    with limits of its own uses those; ``main`` is never dropped.

Fail-safe: nothing expires while the manifest list of a remaining snapshot may be truncated: older snapshots have what
it lost. The catalog commits the expiry first; only then are files deleted: those of the expired snapshots that no
snapshot of the table, as the catalog then has it, refers to. Files outside the table's locations stay. A table whose
files may belong to others (``gc.enabled=false``) is refused. Nothing is done unless ``dry_run`` is off.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow.compute as pc
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update import (
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableUpdate,
    ValidatableTableRequirement,
)

from floeplan.catalog import load_table
from floeplan.errors import FloeplanError, InvalidOptionError, UnsupportedError
from floeplan.maintain.reachable import SnapshotFiles
from floeplan.metadata.files import TableFiles, TableLocations
from floeplan.text import counted, parse_count
from floeplan.transaction.catalog_commit import CatalogCommit, CommitOptions, UpdatesAndRequirements
from floeplan.transaction.refs import table_and_ref

_MAX_AGE, _MIN_KEPT, _MAX_REF_AGE = (
    ("history.expire.max-snapshot-age-ms", 5 * 24 * 3600 * 1000),
    ("history.expire.min-snapshots-to-keep", 1),
    ("history.expire.max-ref-age-ms", 2**63 - 1),
)


@dataclass(frozen=True, slots=True)
class ExpireResult:
    """What expired and was deleted, or would be.

    Attributes:
        snapshots_before: Snapshots of the table before.
        snapshots_after: And after.
        expired: Ids of the expired snapshots.
        refs_removed: Branches and tags that expired.
        data_files: Data and delete files that were removed.
        manifests: Manifests that were removed.
        manifest_lists: Manifest lists that were removed.
        removed: All removed files.
        not_removed: Files that could not be removed (``remove-orphans`` finds them), or that lie outside the locations
            of the table.
        dry_run: Whether nothing was done.
    """

    snapshots_before: int
    snapshots_after: int
    expired: tuple[int, ...]
    refs_removed: tuple[str, ...]
    data_files: int
    manifests: int
    manifest_lists: int
    removed: tuple[str, ...]
    not_removed: tuple[str, ...]
    dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def expire_snapshots(
    table: Table | str,
    *,
    older_than_ms: int | None = None,
    retain_last: int | None = None,
    dry_run: bool = True,
    trust_lists: bool = False,
    now_ms: int | None = None,
    commit: CommitOptions | None = None,
) -> ExpireResult:
    """Expire old snapshots and delete unreferenced files.

    Args:
        table: The table, or its name.
        older_than_ms: Snapshots made before this time, in milliseconds since 1970, are old; five days ago, or what the
            table's ``history.expire.max-snapshot-age-ms`` says, when not given.
        retain_last: Snapshots of a branch to keep regardless of their age.
        dry_run: Only report what would be done.
        trust_lists: Go on where a manifest list has fewer files than the summary of its snapshot counts.
        now_ms: The current time.
        commit: Commit and retry options.
    """
    loaded = load_table(table)
    _check(loaded.metadata, retain_last)
    now = int(time.time() * 1000) if now_ms is None else now_ms
    rule = _Rule(now, older_than_ms, retain_last)
    expiry = rule.apply(loaded.metadata)
    kept = [s for s in loaded.metadata.snapshots if s.snapshot_id not in expiry.snapshot_ids]
    if dry_run:
        files = _Files.of(loaded, loaded.metadata, expiry, kept, trust_lists=trust_lists)
        return files.result(loaded, expiry, len(kept), dry_run=True)
    if expiry.snapshot_ids and not trust_lists:
        SnapshotFiles.of(kept, loaded.io, trust_lists=False)  # refuses lists that may be truncated
    update = _ExpireUpdate(rule)
    committed = CatalogCommit(loaded, update, commit or CommitOptions()).run()
    before, expiry = update.proposed[-1]
    try:
        files = _Files.of(committed, before, expiry, committed.metadata.snapshots, trust_lists=trust_lists)
    except FloeplanError as error:
        raise _files_unknown(expiry, error) from error
    return files.result(committed, expiry, len(committed.metadata.snapshots), dry_run=False)


def _files_unknown(expiry: _Expiry, error: FloeplanError) -> FloeplanError:
    return FloeplanError(
        f"{counted(len(expiry.snapshot_ids), 'snapshot')} were expired, but their files could not be determined: "
        f"{error.message}; remove-orphans will find them",
        kind=error.kind,
        context=error.context,
        committed=True,
    )


def _check(metadata: TableMetadata, retain_last: int | None) -> None:
    if retain_last is not None and retain_last < 1:
        raise InvalidOptionError("at least one snapshot must be retained", context={"retain_last": retain_last})
    refuse_shared_files(metadata, "expire snapshots")


def refuse_shared_files(metadata: TableMetadata, what: str) -> None:
    """Refuse to delete files of a table with ``gc.enabled=false``: other tables may use them."""
    if metadata.properties.get("gc.enabled", "true").lower() == "false":
        raise UnsupportedError(
            f"cannot {what}: gc.enabled is false, so its files may belong to other tables",
            context={"property": "gc.enabled"},
        )


@dataclass(frozen=True, slots=True)
class _Expiry:
    """Snapshots and refs to expire."""

    snapshot_ids: frozenset[int]
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Rule:
    """Which snapshots are old."""

    now_ms: int
    older_than_ms: int | None
    retain_last: int | None

    def apply(self, metadata: TableMetadata) -> _Expiry:
        limit = self._limit(metadata, None)
        refs = {name: ref for name, ref in metadata.refs.items() if self._keeps_ref(metadata, name, ref)}
        kept: set[int] = set()
        led_to: set[int] = set()
        for ref in refs.values():
            lineage = list(ancestors_of(metadata.snapshot_by_id(ref.snapshot_id), metadata))
            if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
                led_to |= {snapshot.snapshot_id for snapshot in lineage}
                kept |= self._of_branch(metadata, ref, lineage)
            else:
                kept.add(ref.snapshot_id)
        loose = [s for s in metadata.snapshots if s.snapshot_id not in led_to and s.timestamp_ms >= limit]
        kept |= {snapshot.snapshot_id for snapshot in loose}
        gone = frozenset(s.snapshot_id for s in metadata.snapshots) - kept
        return _Expiry(gone, tuple(sorted(metadata.refs.keys() - refs.keys())))

    def _keeps_ref(self, metadata: TableMetadata, name: str, ref: SnapshotRef) -> bool:
        snapshot = metadata.snapshot_by_id(ref.snapshot_id)
        if name == MAIN_BRANCH or snapshot is None:
            return name == MAIN_BRANCH
        longest = ref.max_ref_age_ms or _number(metadata, *_MAX_REF_AGE)
        return self.now_ms - snapshot.timestamp_ms <= longest

    def _of_branch(self, metadata: TableMetadata, ref: SnapshotRef, lineage: list[Snapshot]) -> set[int]:
        least = ref.min_snapshots_to_keep or self.retain_last or _number(metadata, *_MIN_KEPT)
        limit = self._limit(metadata, ref.max_snapshot_age_ms)
        young = next((at for at, s in enumerate(lineage) if s.timestamp_ms < limit), len(lineage))
        return {snapshot.snapshot_id for snapshot in lineage[: max(young, least)]}

    def _limit(self, metadata: TableMetadata, max_age_ms: int | None) -> int:
        if max_age_ms is not None:
            return self.now_ms - max_age_ms
        return self.now_ms - _number(metadata, *_MAX_AGE) if self.older_than_ms is None else self.older_than_ms


def _number(metadata: TableMetadata, name: str, default: int) -> int:
    text = metadata.properties.get(name, str(default))
    number = parse_count(text)
    if number is None:
        raise InvalidOptionError(
            f"table property {name} is {text!r}, which is not a number", context={"property": name}
        )
    return number


@dataclass(slots=True)
class _ExpireUpdate:
    """Snapshots forgotten by the newest table; ``proposed`` has the metadata each proposal was made on."""

    rule: _Rule
    proposed: list[tuple[TableMetadata, _Expiry]] = field(default_factory=list)

    def build(self, table: Table) -> UpdatesAndRequirements:
        metadata = table.metadata
        expiry = self.rule.apply(metadata)
        self.proposed.append((metadata, expiry))
        requirements: list[ValidatableTableRequirement] = []
        for name, ref in metadata.refs.items():
            requirements += table_and_ref(metadata, name, ref.snapshot_id)
        if isinstance(table.catalog, MetastoreCatalog):
            requirements.append(_AssertSameRefs(names=sorted(metadata.refs)))
        drops = [RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in expiry.refs]
        updates: list[TableUpdate] = [*drops]
        if expiry.snapshot_ids:
            ids = {"snapshot-ids": sorted(expiry.snapshot_ids)}
            updates.append(RemoveSnapshotsUpdate.model_validate(ids))
        return tuple(updates), tuple(requirements)

    def is_committed(self, metadata: TableMetadata) -> bool:
        expiry = self.proposed[-1][1] if self.proposed else self.rule.apply(metadata)
        if not self.proposed and not expiry.snapshot_ids and not expiry.refs:
            self.proposed.append((metadata, expiry))
        there = any(metadata.snapshot_by_id(snapshot_id) for snapshot_id in expiry.snapshot_ids)
        return bool(self.proposed) and not there and not metadata.refs.keys() & set(expiry.refs)


class _AssertSameRefs(ValidatableTableRequirement):
    """No branch or tag was created meanwhile: it may lead to a snapshot that is about to be forgotten."""

    type: Literal["assert-same-refs"] = "assert-same-refs"
    names: list[str]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None or sorted(base_metadata.refs) != self.names:
            raise CommitFailedException("a branch or tag was created or dropped")


@dataclass(frozen=True, slots=True)
class _Files:
    """The files that only expired snapshots refer to."""

    content: tuple[str, ...]
    manifests: tuple[str, ...]
    lists: tuple[str, ...]
    statistics: tuple[str, ...]

    @classmethod
    def of(
        cls, table: Table, before: TableMetadata, expiry: _Expiry, kept: list[Snapshot], *, trust_lists: bool
    ) -> _Files:
        gone = [snapshot for snapshot in before.snapshots if snapshot.snapshot_id in expiry.snapshot_ids]
        if not gone:
            return cls((), (), (), ())
        staying = SnapshotFiles.of(kept, table.io, trust_lists=trust_lists)
        leaving = SnapshotFiles.of(gone, table.io, trust_lists=True).without(staying)
        content = leaving.content(before, table.io, live=True)
        needed = staying.content(table.metadata, table.io, live=True)
        free = content.filter(pc.invert(pc.is_in(content, value_set=needed)))
        statistics = {
            one.statistics_path
            for one in (*before.statistics, *before.partition_statistics)
            if one.snapshot_id in expiry.snapshot_ids
        }
        return cls(
            tuple(sorted(free.to_pylist())),
            tuple(sorted(leaving.manifest_paths)),
            tuple(sorted(leaving.lists)),
            tuple(sorted(statistics)),
        )

    def result(self, table: Table, expiry: _Expiry, after: int, *, dry_run: bool) -> ExpireResult:
        """Delete the files, unless it is a dry run."""
        wanted = (*self.content, *self.statistics, *self.manifests, *self.lists)
        locations = TableLocations.of(table.metadata)
        removed = tuple(filter(locations.hold, wanted)) if dry_run else TableFiles.of(table).remove(wanted)
        gone = set(removed)
        return ExpireResult(
            snapshots_before=after + len(expiry.snapshot_ids),
            snapshots_after=after,
            expired=tuple(sorted(expiry.snapshot_ids)),
            refs_removed=expiry.refs,
            data_files=len(gone & set(self.content)),
            manifests=len(gone & set(self.manifests)),
            manifest_lists=len(gone & set(self.lists)),
            removed=removed,
            not_removed=tuple(path for path in wanted if path not in gone),
            dry_run=dry_run,
        )

"""``expire_snapshots``: expire old snapshots, and delete the files that only they refer to.

Rule: a branch keeps its snapshots that are newer than the limit, and at least ``retain_last``. A tag keeps its
snapshot, and a snapshot that no branch or tag refers to is kept while it is newer than the limit. A branch or tag with
its own limits uses those; ``main`` is never dropped.

Fail-safe: nothing expires while the manifest list of a remaining snapshot may be truncated: older snapshots have what
it lost. The catalog commits the expiry first; only then are files deleted: those of the expired snapshots that no
snapshot of the table, as the catalog then has it, refers to. Files outside the table's locations stay. A table whose
files may belong to others (``gc.enabled=false``) is refused. Nothing is done unless ``dry_run`` is off.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update import (
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableUpdate,
    ValidatableTableRequirement,
    _apply_table_update,
    _TableMetadataUpdateContext,
)

from floeplan.catalog import load_table
from floeplan.display import Displayed
from floeplan.errors import FloeplanError, InvalidOptionError, UnsupportedError
from floeplan.metadata.files import TableFiles, TableLocations
from floeplan.metadata.manifests.entries import Content, EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import ManifestListTable, concat_manifest_lists
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.snapshot.reader import read_manifest_lists
from floeplan.text import counted, parse_count
from floeplan.times import limit_ms
from floeplan.transaction.catalog_commit import CatalogCommit, CommitOptions, UpdatesAndRequirements
from floeplan.transaction.commit import table_and_ref


@dataclass(frozen=True, slots=True, repr=False)
class ExpireResult(Displayed):
    """What expired and was deleted, or would be.

    Attributes:
        snapshots_before: Snapshots of the table before.
        snapshots_after: And after.
        expired: Ids of the expired snapshots.
        refs_removed: Branches and tags that expired.
        data_files: Data and delete files that were removed.
        position_delete_files: Those of them with position deletes or deletion vectors.
        equality_delete_files: Those of them with equality deletes.
        manifests: Manifests that were removed.
        manifest_lists: Manifest lists that were removed.
        statistics_files: Statistics files that were removed.
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
    position_delete_files: int = 0
    equality_delete_files: int = 0
    statistics_files: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def expire_snapshots(
    table: Table | str,
    *,
    older_than: datetime | timedelta | None = None,
    older_than_ms: int | None = None,
    retain_last: int | None = None,
    dry_run: bool = True,
    trust_lists: bool = False,
    now_ms: int | None = None,
    commit: CommitOptions | None = None,
    catalog: str | Catalog | None = None,
) -> ExpireResult:
    """Expire old snapshots and delete unreferenced files.

    Args:
        table: The table, or its name.
        older_than: Snapshots made before this time, or older than this age, are old; by default
            ``history.expire.max-snapshot-age-ms`` of the table, or 5 days ago.
        older_than_ms: The same as milliseconds since 1970.
        retain_last: Snapshots of a branch to keep regardless of their age.
        dry_run: Only report what would be done.
        trust_lists: Continue if a manifest list has fewer files than its snapshot summary reports.
        now_ms: The current time.
        commit: Commit and retry options.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.
    """
    loaded = load_table(table, catalog)
    if retain_last is not None and retain_last < 1:
        raise InvalidOptionError(
            f"retain_last is {retain_last} but must be at least 1", context={"retain_last": retain_last}
        )
    refuse_shared_files(loaded.metadata, "expire snapshots")
    now = int(time.time() * 1000) if now_ms is None else now_ms
    if older_than is not None:
        if older_than_ms is not None:
            raise InvalidOptionError("older_than and older_than_ms exclude each other: give one of them")
        older_than_ms = limit_ms(older_than, now)
    rule = _Rule(now, older_than_ms, retain_last)
    expiry = rule.apply(loaded.metadata)
    kept = [s for s in loaded.metadata.snapshots if s.snapshot_id not in expiry.snapshot_ids]
    if dry_run:
        files = _files_to_delete(loaded, loaded.metadata, expiry, kept, trust_lists=trust_lists)
        locations = TableLocations.of(loaded.metadata)
        return _result(expiry, len(kept), files, tuple(filter(locations.hold, chain(*files.values()))), dry_run=True)
    if expiry.snapshot_ids and not trust_lists:
        SnapshotFiles.of(loaded, kept, trust_lists=False)  # refuses lists that may be truncated
    update = _ExpireUpdate(rule)
    committed = CatalogCommit(loaded, update, commit or CommitOptions()).run()
    before, expiry = update.proposed[-1]
    kept = committed.metadata.snapshots
    try:
        files = _files_to_delete(committed, before, expiry, kept, trust_lists=trust_lists)
    except FloeplanError as error:
        raise FloeplanError(
            f"{counted(len(expiry.snapshot_ids), 'snapshot')} were expired, but their files could not be determined: "
            f"{error.message}; remove-orphans will find them",
            kind=error.kind,
            context=error.context,
            committed=True,
        ) from error
    removed = TableFiles.of(committed).remove(chain(*files.values()))
    return _result(expiry, len(kept), files, removed, dry_run=False)


def snapshots_to_expire(table: Table, *, older_than_ms: int | None = None, retain_last: int | None = None) -> int:
    """How many snapshots would expire now, by default by the table's own settings; reads no file."""
    refuse_shared_files(table.metadata, "expire snapshots")
    return len(_Rule(int(time.time() * 1000), older_than_ms, retain_last).apply(table.metadata).snapshot_ids)


def _result(
    expiry: _Expiry, after: int, files: Mapping[str, Sequence[str]], removed: tuple[str, ...], *, dry_run: bool
) -> ExpireResult:
    gone = set(removed)
    counts = {kind: len(gone.intersection(paths)) for kind, paths in files.items()}
    return ExpireResult(
        snapshots_before=after + len(expiry.snapshot_ids),
        snapshots_after=after,
        expired=tuple(sorted(expiry.snapshot_ids)),
        refs_removed=expiry.refs,
        data_files=sum(counts[kind.name] for kind in Content),
        position_delete_files=counts[Content.POSITION_DELETES.name],
        equality_delete_files=counts[Content.EQUALITY_DELETES.name],
        manifests=counts["manifests"],
        manifest_lists=counts["manifest lists"],
        statistics_files=counts["statistics"],
        removed=removed,
        not_removed=tuple(path for path in chain(*files.values()) if path not in gone),
        dry_run=dry_run,
    )


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
        limit = self.older_than_ms
        if limit is None:
            limit = self.now_ms - _number(metadata, "history.expire.max-snapshot-age-ms", 5 * 24 * 3600 * 1000)
        expired_refs: list[str] = []
        kept: set[int] = set()
        on_branches: set[int] = set()
        for name, ref in metadata.refs.items():
            snapshot = metadata.snapshot_by_id(ref.snapshot_id)
            # A ref expires by the age of its snapshot; main never does.
            if name != MAIN_BRANCH:
                most = ref.max_ref_age_ms or _number(metadata, "history.expire.max-ref-age-ms", 2**63 - 1)
                if snapshot is None or self.now_ms - snapshot.timestamp_ms > most:
                    expired_refs.append(name)
                    continue
            if ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
                kept.add(ref.snapshot_id)
                continue
            # A branch keeps the snapshots from its head to the first old one, and at least `least` of them.
            lineage = list(ancestors_of(snapshot, metadata))
            on_branches |= {ancestor.snapshot_id for ancestor in lineage}
            least = ref.min_snapshots_to_keep or self.retain_last
            least = least or _number(metadata, "history.expire.min-snapshots-to-keep", 1)
            own_limit = limit if ref.max_snapshot_age_ms is None else self.now_ms - ref.max_snapshot_age_ms
            young = next((at for at, s in enumerate(lineage) if s.timestamp_ms < own_limit), len(lineage))
            kept |= {ancestor.snapshot_id for ancestor in lineage[: max(young, least)]}
        # Snapshots that no branch contains, such as staged ones, are kept while they are newer than the limit.
        for snapshot in metadata.snapshots:
            if snapshot.snapshot_id not in on_branches and snapshot.timestamp_ms >= limit:
                kept.add(snapshot.snapshot_id)
        expired = frozenset(snapshot.snapshot_id for snapshot in metadata.snapshots) - kept
        return _Expiry(expired, tuple(sorted(expired_refs)))


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
    """Removes snapshots from the newest table; ``proposed`` has the metadata that each attempt was made on."""

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
            # PyIceberg drops the statistics of a removed snapshot, but not its partition statistics.
            left = {snapshot.snapshot_id for snapshot in metadata.snapshots} - expiry.snapshot_ids
            gone = sorted({one.snapshot_id for one in metadata.partition_statistics} - left)
            updates += [RemovePartitionStatisticsUpdate.model_validate({"snapshot-id": at}) for at in gone]
            ids = {"snapshot-ids": sorted(expiry.snapshot_ids)}
            updates.append(_RemoveSnapshots.model_validate(ids))
        return tuple(updates), tuple(requirements)

    def is_committed(self, metadata: TableMetadata) -> bool:
        expiry = self.proposed[-1][1] if self.proposed else self.rule.apply(metadata)
        if not self.proposed and not expiry.snapshot_ids and not expiry.refs:
            self.proposed.append((metadata, expiry))
        there = any(metadata.snapshot_by_id(snapshot_id) for snapshot_id in expiry.snapshot_ids)
        return bool(self.proposed) and not there and not metadata.refs.keys() & set(expiry.refs)


class _AssertSameRefs(ValidatableTableRequirement):
    """No branch or tag was created concurrently: it may refer to a snapshot that is about to expire."""

    type: Literal["assert-same-refs"] = "assert-same-refs"
    names: list[str]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None or sorted(base_metadata.refs) != self.names:
            raise CommitFailedException("a branch or tag was created or dropped")


class _RemoveSnapshots(RemoveSnapshotsUpdate):
    """PyIceberg's update, which leaves gaps in the snapshot log."""


@_apply_table_update.register(_RemoveSnapshots)
def _(update: _RemoveSnapshots, base: TableMetadata, context: _TableMetadataUpdateContext) -> TableMetadata:
    """Remove what precedes a gap too, as Iceberg does: ``AS OF`` would read an older snapshot than was current."""
    updated: TableMetadata = _apply_table_update.dispatch(RemoveSnapshotsUpdate)(update, base, context)
    left, log = {snapshot.snapshot_id for snapshot in updated.snapshots}, base.snapshot_log
    first = max((at + 1 for at, entry in enumerate(log) if entry.snapshot_id not in left), default=0)
    return updated.model_copy(update={"snapshot_log": log[first:]})


def _files_to_delete(
    table: Table, before: TableMetadata, expiry: _Expiry, kept: list[Snapshot], *, trust_lists: bool
) -> dict[str, list[str]]:
    """The files that only expired snapshots refer to, by kind."""
    expired = [snapshot for snapshot in before.snapshots if snapshot.snapshot_id in expiry.snapshot_ids]
    staying = SnapshotFiles.of(table, kept if expired else (), trust_lists=trust_lists)
    leaving = SnapshotFiles.of(table, expired, trust_lists=True).without(staying)
    entries = leaving.entries(before, table.io, live=True)
    needed = staying.entries(table.metadata, table.io, live=True).path.unique()
    unneeded = pc.invert(pc.is_in(entries.path, value_set=needed))
    statistics = {
        one.statistics_path
        for one in (*before.statistics, *before.partition_statistics)
        if one.snapshot_id in expiry.snapshot_ids
    }
    return {
        **{
            kind.name: sorted(
                entries.path.filter(pc.and_(unneeded, pa.array(entries.content == kind))).unique().to_pylist()
            )
            for kind in Content
        },
        "statistics": sorted(statistics),
        "manifests": sorted(leaving.manifest_paths),
        "manifest lists": sorted(leaving.lists),
    }


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """Files that some snapshots refer to.

    Fail-safe: a manifest that cannot be read is an error: without it, what is reachable cannot be determined. So is a
    manifest list with fewer files than its snapshot counts, unless the caller trusts it: what it may have lost would
    be removed.

    Attributes:
        lists: Manifest lists.
        manifests: Manifests, each once, however many snapshots list it.
    """

    lists: frozenset[str]
    manifests: ManifestListTable

    @classmethod
    def of(cls, table: Table, snapshots: Iterable[Snapshot], *, trust_lists: bool) -> SnapshotFiles:
        """The manifest lists and manifests of snapshots of a table.

        Raises:
            CorruptMetadataError: A list that is not trusted has fewer files than its snapshot counts.
        """
        by_location = {snapshot.manifest_list: snapshot for snapshot in snapshots}
        locations = sorted(by_location)
        risk = None if trust_lists else "files that it does not list would be deleted"
        chosen = [by_location[location] for location in locations]
        lists = read_manifest_lists(chosen, table.io, table_location=table.metadata.location, risk=risk)
        listed = concat_manifest_lists(lists) if lists else ManifestListTable.empty()
        first = np.unique(listed.path.dictionary_encode().indices.to_numpy(), return_index=True)[1]
        return cls(frozenset(locations), listed.take(np.sort(first)))

    @property
    def manifest_paths(self) -> frozenset[str]:
        """The manifests by their paths."""
        return frozenset(self.manifests.path.to_pylist())

    def without(self, others: SnapshotFiles) -> SnapshotFiles:
        """What only these snapshots refer to."""
        known = others.manifest_paths
        rows = [row for row, path in enumerate(self.manifests.path.to_pylist()) if path not in known]
        return SnapshotFiles(self.lists - others.lists, self.manifests.take(np.array(rows, dtype=np.int64)))

    def entries(self, metadata: TableMetadata, io: FileIO, *, live: bool) -> EntriesTable:
        """Data and delete files in the manifests; with ``live`` without DELETED entries."""
        union = UnionPartitionType.of_table(metadata)
        return read_entries(self.manifests, union, EntryColumns(frozenset(), partition=False), io=io, live=live)


def reachable_files(table: Table, *, trust_lists: bool) -> pa.Array:
    """Every file that the loaded table refers to, in its snapshots or directly in its metadata."""
    metadata = table.metadata
    files = SnapshotFiles.of(table, metadata.snapshots, trust_lists=trust_lists)
    named = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    named |= {one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics)}
    content = files.entries(metadata, table.io, live=False).path.unique()
    return pa.concat_arrays(
        [content, pa.array(sorted(named | files.lists | files.manifest_paths), content.type)]
    ).unique()

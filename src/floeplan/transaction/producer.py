"""Producing the snapshot of a change: manifests, manifest list and the snapshot itself, without a catalog.

::

    change ─► added files ──────────► one manifest per spec ─┐
      │       head's manifests ─────► filtered ──────────────┼─► merged ─► manifest list ─► Snapshot
      └─────► removed files ─────────────┘                   │
                                  untouched manifests ───────┘

Rule: manifests that need not change are listed as they are, without reading them. The snapshot id stays the same: when
another writer commits first, ``produce`` is called again with the newer head and writes only what differs.

Fail-safe: an invalid change is refused before the first file is written, and no snapshot refers to the written files
until the commit. ``written`` names them all.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation as SummaryOperation
from pyiceberg.table.snapshots import Snapshot, Summary

from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import Content, EntriesTable
from floeplan.metadata.manifests.list_writer import EncodedList, ListedSnapshot, write_manifest_list
from floeplan.metadata.manifests.manifest_list import (
    DATA,
    DELETES,
    ManifestListTable,
    concat_manifest_lists,
    read_manifest_list,
)
from floeplan.metadata.manifests.new_entries import concat_entries, no_entries, with_status
from floeplan.metadata.manifests.reader import find_truncation
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask
from floeplan.text import parse_count
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.filter_manifests import (
    FilesToRemove,
    Filtered,
    ManifestFilter,
    hinted_manifests,
    live_manifests,
    removed_keys,
)
from floeplan.transaction.manifests import (
    ManifestMerger,
    ManifestWritten,
    MergeOptions,
    SnapshotManifests,
    TableShape,
    with_spec_ids,
)
from floeplan.transaction.preconditions import validate_change, validate_replacement
from floeplan.vectors import Ints, Mask

_log = logging.getLogger(__name__)

# The snapshot summary, with the property names of Iceberg Java.
#
# Rule: zero counts are left out, except those of changed partitions and manifests; totals are the parent's plus
# what was added minus what was removed. Fail-safe: a total that the parent lacks, or that would become negative, is
# left out; without a parent, totals start at zero.


_COUNTED = {
    "files-size": ("added-files-size", "removed-files-size"),
    "data-files": ("added-data-files", "deleted-data-files"),
    "equality-delete-files": ("added-equality-delete-files", "removed-equality-delete-files"),
    "position-delete-files": ("added-position-delete-files", "removed-position-delete-files"),
    "dvs": ("added-dvs", "removed-dvs"),
    "delete-files": ("added-delete-files", "removed-delete-files"),
    "records": ("added-records", "deleted-records"),
    "position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}
"""The property names of added and removed counts."""

_TOTALS = ("records", "files-size", "data-files", "delete-files", "position-deletes", "equality-deletes")


def change_counts(added: EntriesTable, removed: EntriesTable, union: UnionPartitionType) -> dict[str, str]:
    """Counts of added and removed files and rows, and of changed partitions."""
    found: dict[str, str] = {}
    for side, entries in enumerate((added, removed)):
        found |= {_COUNTED[what][side]: str(number) for what, number in _counts(entries).items() if number > 0}
    both = concat_entries([added, removed], union)
    codes = partition_codes(union, both.spec_id, both.partition_columns())
    return found | {"changed-partition-count": str(len(np.unique(codes)))}


def manifest_counts(created: int, kept: int, replaced: int) -> dict[str, str]:
    """Counts of new manifests, kept manifests, and manifests of the parent that were replaced."""
    counts = {"manifests-created": created, "manifests-kept": kept, "manifests-replaced": replaced}
    return {name: str(count) for name, count in counts.items()}


def running_totals(changed: Mapping[str, str], parent: Mapping[str, str] | None) -> dict[str, str]:
    """Totals after a change; ``parent`` is the parent's summary, ``None`` without a parent."""
    found = {}
    for what in _TOTALS:
        name = f"total-{what}"
        before = 0 if parent is None else parse_count(parent.get(name))
        if before is not None:
            added, removed = (int(changed.get(side, 0)) for side in _COUNTED[what])
            if before + added >= removed:
                found[name] = str(before + added - removed)
    return found


def _counts(entries: EntriesTable) -> dict[str, int]:
    content, records = entries.content, entries.record_count
    is_data, is_equality = content == Content.DATA, content == Content.EQUALITY_DELETES
    is_position = content == Content.POSITION_DELETES
    is_vector = is_position & to_mask(pc.equal(entries.array("file_format"), "PUFFIN"))
    return {
        "files-size": int(_sizes(entries, is_vector).sum()),
        "data-files": _count(is_data),
        "equality-delete-files": _count(is_equality),
        "position-delete-files": _count(is_position & ~is_vector),
        "dvs": _count(is_vector),
        "delete-files": _count(~is_data),
        "records": int(records[is_data].sum()),
        "position-deletes": int(records[is_position].sum()),
        "equality-deletes": int(records[is_equality].sum()),
    }


def _sizes(entries: EntriesTable, is_vector: Mask) -> Ints:
    """File sizes; deletion vectors share a file, so each counts its own bytes."""
    whole = entries.ints("file_size_in_bytes")
    return np.where(is_vector, entries.ints("content_size_in_bytes", missing=0), whole)


def _count(mask: Mask) -> int:
    return int(np.count_nonzero(mask))


# Producing the snapshot.


@dataclass(frozen=True, slots=True)
class ProducedSnapshot:
    """A snapshot ready to commit.

    Attributes:
        snapshot: The snapshot for the catalog.
        manifests: Its manifest list.
        manifests_written: The manifests this snapshot added.
        written: Every file written so far for the change, by all attempts.
        removed: Entries of the removed files, including those the change implies.
        missing_data: Data files to remove that the head does not have.
        missing_deletes: Delete files to remove that the head does not have.
    """

    snapshot: Snapshot
    manifests: ManifestListTable
    manifests_written: tuple[ManifestWritten, ...]
    written: tuple[str, ...]
    removed: EntriesTable
    missing_data: frozenset[str]
    missing_deletes: frozenset[DeleteFileId]


@dataclass(slots=True)
class SnapshotProducer:
    """Produces the snapshot of one change, again for each head that a commit is attempted on.

    Attributes:
        change: What the snapshot adds and removes.
        snapshot_id: Its id, the same for all attempts.
        io: Where metadata files are read and written; local files need none.
        commit_uuid: The prefix of written file names.
        now_ms: The clock.
        on_step: Called when the manifests, and then the list, of an attempt are written.
    """

    change: SnapshotChange
    snapshot_id: int
    io: FileIO | None = None
    commit_uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000)
    on_step: Callable[[str], None] = lambda _: None
    _writer: SnapshotManifests = field(init=False)
    _filters: tuple[ManifestFilter, ManifestFilter] = field(init=False)
    _merger: ManifestMerger = field(init=False)
    _added: dict[tuple[object, ...], list[ManifestListTable]] = field(default_factory=dict)
    _lists: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._writer = SnapshotManifests(self.snapshot_id, self.commit_uuid, self.io)
        self._filters = ManifestFilter(self._writer), ManifestFilter(self._writer)
        self._merger = ManifestMerger(self._writer)

    @property
    def written(self) -> tuple[str, ...]:
        """Every file written so far, by all attempts."""
        return *self._writer.written, *self._lists

    def produce(self, metadata: TableMetadata, head: Snapshot | None) -> ProducedSnapshot:
        """The snapshot that follows ``head``, the newest of its branch; ``None`` for a table or branch without one."""
        shape, options = TableShape.of(metadata), MergeOptions.of(metadata.properties)
        added = self._added_entries(shape)
        validate_change(self.change, added, shape)
        listed = ManifestListTable.empty() if head is None else read_manifest_list(head.manifest_list, self.io)
        truncated = None if head is None else find_truncation(head, listed)
        if truncated is not None and self.change.operation is Operation.APPEND:
            # An append reads no rows, so it can go on; its totals still count the lost files.
            _log.warning("%s; the new snapshot has only the files it lists", truncated.message)
        new = self._added_manifests(added, shape, options)
        data, deletes = self._filtered(listed, new, shape, head)
        removed = concat_entries([data.removed, deletes.removed], shape.union)
        if not len(data.missing):  # otherwise the commit reports a conflict
            validate_replacement(self.change, added, removed)
        manifests = concat_manifest_lists([*new[DATA], data.manifests, *new[DELETES], deletes.manifests])
        if options.enabled and self.change.merge_manifests:
            manifests = self._merger.merge(manifests, shape, options)
        self.on_step("manifests-written")
        location = shape.location_of(f"snap-{self.snapshot_id}-{len(self._lists)}-{self.commit_uuid}.avro")
        self._lists.append(location)
        listing = _listed_snapshot(self.snapshot_id, metadata, head)
        encoded = write_manifest_list(location, manifests, listing, io=self.io)
        self.on_step("list-written")
        counts = manifest_counts(*_manifest_counts(listed, encoded.manifests, self.snapshot_id))
        changed = change_counts(added, removed, shape.union)
        return ProducedSnapshot(
            snapshot=self._snapshot(metadata, head, listing, location, encoded, changed | counts),
            manifests=encoded.manifests,
            manifests_written=self._manifests_written(encoded.manifests),
            written=self.written,
            removed=removed,
            missing_data=frozenset(key.partition("\0")[0] for key in data.missing.to_pylist()),
            missing_deletes=frozenset(map(delete_file_id, deletes.missing.to_pylist())),
        )

    def _added_entries(self, shape: TableShape) -> EntriesTable:
        given = [files for files in (self.change.added_data, self.change.added_deletes) if files is not None]
        added = with_spec_ids(concat_entries(given, shape.union))
        return with_status(added, added.status, np.full(len(added), self.snapshot_id))

    def _added_manifests(
        self, added: EntriesTable, shape: TableShape, options: MergeOptions
    ) -> dict[int, list[ManifestListTable]]:
        """Manifests of new files by content; written once and reused by later attempts."""
        write = {DATA: self._writer.write_added_data_manifests, DELETES: self._writer.write_delete_manifest}
        found = {}
        for content, write_added in write.items():
            files = added.filter((added.content == 0) == (content == DATA))
            key = content, shape.key
            if key not in self._added:
                self._added[key] = write_added(files, shape, options.target_bytes) if len(files) else []
            found[content] = self._added[key]
        return found

    def _filtered(
        self,
        listed: ManifestListTable,
        new: dict[int, list[ManifestListTable]],
        shape: TableShape,
        head: Snapshot | None,
    ) -> tuple[Filtered, Filtered]:
        """Remove files from data manifests, then from delete manifests.

        Deletion vectors of removed data files, and deletes older than all data, are removed too.
        """
        nothing = no_entries(shape.union)
        hints = _usable_hints(self.change.removed_entries, shape) or nothing
        is_data = hints.content == 0
        keys = removed_keys(self.change)
        planned = self._planned_on(listed, shape.metadata, head)
        of_data, of_deletes = (listed.take(np.flatnonzero(listed.content == kind)) for kind in (DATA, DELETES))
        removing = FilesToRemove(keys[0], hints.filter(is_data), nothing)
        data = self._filters[DATA].apply(of_data, removing, shape, hinted_manifests(planned, removing.hints))
        vectors_of = data.removed if shape.metadata.format_version > 2 else nothing
        oldest = _oldest_data([*new[DATA], data.manifests], shape.metadata)
        removing = FilesToRemove(keys[1], hints.filter(~is_data), vectors_of, oldest)
        deletes = self._filters[DELETES].apply(of_deletes, removing, shape, hinted_manifests(planned, removing.hints))
        return data, deletes

    def _planned_on(
        self, listed: ManifestListTable, metadata: TableMetadata, head: Snapshot | None
    ) -> ManifestListTable | None:
        """The manifest list that the removed files were planned from, if it still exists."""
        if self.change.planned_on is None or self.change.removed_entries is None:
            return None
        if head is not None and head.snapshot_id == self.change.planned_on:
            return listed
        snapshot = metadata.snapshot_by_id(self.change.planned_on)
        return None if snapshot is None else read_manifest_list(snapshot.manifest_list, self.io)

    def _snapshot(
        self,
        metadata: TableMetadata,
        head: Snapshot | None,
        listing: ListedSnapshot,
        location: str,
        encoded: EncodedList,
        changed: dict[str, str],
    ) -> Snapshot:
        parent = None if head is None else dict(head.summary.additional_properties) if head.summary else {}
        properties = dict(self.change.summary) | changed | running_totals(changed, parent)
        first, after = listing.first_row_id, encoded.next_row_id
        stated = {
            "snapshot-id": self.snapshot_id,
            "parent-snapshot-id": listing.parent_snapshot_id,
            "sequence-number": listing.sequence_number,
            "timestamp-ms": max(self.now_ms(), _newest_timestamp(metadata)),
            "manifest-list": location,
            "summary": Summary(SummaryOperation(self.change.operation.value), **properties),
            "schema-id": metadata.current_schema_id,
            "first-row-id": first,
            "added-rows": None if first is None or after is None else after - first,
        }
        return Snapshot.model_validate(stated)

    def _manifests_written(self, manifests: ManifestListTable) -> tuple[ManifestWritten, ...]:
        rows = np.flatnonzero(manifests.added_snapshot_id == self.snapshot_id)
        found = zip(
            manifests.path.take(pa.array(rows)).to_pylist(),
            manifests.spec_id[rows].tolist(),
            manifests.content[rows].tolist(),
            strict=True,
        )
        return tuple(ManifestWritten(p, spec, content, len(self._writer.written[p])) for p, spec, content in found)


def _newest_timestamp(metadata: TableMetadata) -> int:
    """The latest timestamp of the table; another writer's clock may be ahead of ours."""
    logged = (entry.timestamp_ms for entry in metadata.snapshot_log)
    return max(metadata.last_updated_ms, max(logged, default=0))


def _listed_snapshot(snapshot_id: int, metadata: TableMetadata, head: Snapshot | None) -> ListedSnapshot:
    version = metadata.format_version
    first_row_id = (metadata.next_row_id or 0) if metadata.format_version == 3 else None
    parent = None if head is None else head.snapshot_id
    return ListedSnapshot(version, snapshot_id, parent, metadata.next_sequence_number(), first_row_id)


def _manifest_counts(before: ManifestListTable, after: ManifestListTable, snapshot_id: int) -> tuple[int, int, int]:
    """Manifests created, kept, and live ones of the head that were replaced."""
    created = int((after.added_snapshot_id == snapshot_id).sum())
    kept = len(after) - created
    return created, kept, int(live_manifests(before).sum()) - kept


def _oldest_data(manifests: list[ManifestListTable], metadata: TableMetadata) -> int:
    """The smallest data sequence number of the table; of its last snapshot if it has no data."""
    oldest = concat_manifest_lists(manifests).min_sequence_number
    assigned = oldest[oldest >= 0]
    if not len(oldest) or not len(assigned):
        return int(metadata.next_sequence_number()) - 1 if metadata.format_version > 1 else 0
    return int(assigned.min())


def _usable_hints(hints: EntriesTable | None, shape: TableShape) -> EntriesTable | None:
    """Hints that fit the table's partition fields; where those changed, only the spec ids are used."""
    if hints is None:
        return None
    if hints.partition_types == {f.id: f.bound.column.type for f in shape.union.fields}:
        return hints
    plain = [name for name in hints.table.schema.names if not name.startswith("partition.")]
    return EntriesTable(hints.table.select(plain), {})


def delete_file_id(key: str) -> DeleteFileId:
    """The delete file of a key of ``entry_keys``."""
    path, _, offset = key.partition("\0")
    return DeleteFileId(path, int(offset) if offset else None)

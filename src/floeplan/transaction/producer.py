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
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.snapshots import Operation as SummaryOperation
from pyiceberg.table.snapshots import Snapshot, Summary

from floeplan.metadata.delete_index import DeleteFileId
from floeplan.metadata.manifests.entries import Content, EntriesTable, concat_entries, no_entries, with_status
from floeplan.metadata.manifests.list_writer import EncodedList, ListedSnapshot, write_manifest_list
from floeplan.metadata.manifests.manifest_list import (
    DATA,
    DELETES,
    ManifestListTable,
    concat_manifest_lists,
    read_manifest_list,
)
from floeplan.metadata.manifests.reader import find_truncation
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask
from floeplan.snapshot.reader import SnapshotReader
from floeplan.text import parse_count
from floeplan.transaction.change import (
    Operation,
    SnapshotChange,
    delete_file_id,
    entry_keys,
    removed_keys,
    validate_change,
    validate_replacement,
)
from floeplan.transaction.dangling import dangling_deletes
from floeplan.transaction.equality_writers import MOVED_FROM_SPECS, REPLACED_SPECS
from floeplan.transaction.filter_manifests import FilesToRemove, Filtered, ManifestFilter, live_manifests
from floeplan.transaction.manifests import (
    ManifestMerger,
    ManifestWritten,
    MergeOptions,
    SnapshotManifests,
    TableShape,
    with_spec_ids,
)

_log = logging.getLogger(__name__)

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
"""The property names of added and removed counts in a snapshot summary, as Iceberg Java writes them."""

_TOTALS = ("records", "files-size", "data-files", "delete-files", "position-deletes", "equality-deletes")


ManifestsByContent: TypeAlias = dict[int, list[ManifestListTable]]
"""Rows of the manifest list for ``DATA`` and for ``DELETES``."""


@dataclass(frozen=True, slots=True)
class ProducedSnapshot:
    """A snapshot ready to commit.

    Attributes:
        snapshot: The snapshot for the catalog.
        manifests_written: The manifests this snapshot added.
        written: Every file written so far for the change, by all attempts.
        removed: Entries of the removed files, including those the change implies.
        missing_data: Data files to remove that the head does not have.
        missing_deletes: Delete files to remove that the head does not have.
    """

    snapshot: Snapshot
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
        given = [files for files in (self.change.added_data, self.change.added_deletes) if files is not None]
        added = with_spec_ids(concat_entries(given, shape.union))
        added = with_status(added, added.status, np.full(len(added), self.snapshot_id))
        validate_change(self.change, added, shape)

        listed = ManifestListTable.empty() if head is None else self._list(head, metadata)
        truncated = None if head is None else find_truncation(head, listed)
        if truncated is not None and self.change.operation is Operation.APPEND:
            # An append reads no rows, so it can continue; its totals still count the lost files.
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
        listing = ListedSnapshot(
            metadata.format_version,
            self.snapshot_id,
            None if head is None else head.snapshot_id,
            metadata.next_sequence_number(),
            (metadata.next_row_id or 0) if isinstance(metadata, TableMetadataV3) else None,
        )
        encoded = write_manifest_list(location, manifests, listing, io=self.io)
        self.on_step("list-written")

        after = encoded.manifests
        is_new = after.added_snapshot_id == self.snapshot_id
        created, kept = int(is_new.sum()), int((~is_new).sum())
        replaced = int(live_manifests(listed).sum()) - kept
        counts = {"manifests-created": created, "manifests-kept": kept, "manifests-replaced": replaced}
        changed = change_counts(added, removed, shape.union) | {name: str(number) for name, number in counts.items()}
        parent = None if head is None else dict(head.summary.additional_properties) if head.summary else {}
        moved = moved_specs(added, removed)
        properties = dict(self.change.summary) | moved | changed | running_totals(changed, parent)
        summary = Summary(SummaryOperation(self.change.operation.value), **properties)
        paths = after.path.filter(pa.array(is_new)).to_pylist()
        written = zip(paths, after.spec_id[is_new].tolist(), after.content[is_new].tolist(), strict=True)
        return ProducedSnapshot(
            snapshot=self._snapshot(metadata, listing, location, encoded, summary),
            manifests_written=tuple(ManifestWritten(*row, len(self._writer.written[row[0]])) for row in written),
            written=self.written,
            removed=removed,
            missing_data=frozenset(key.partition("\0")[0] for key in data.missing.to_pylist()),
            missing_deletes=frozenset(map(delete_file_id, deletes.missing.to_pylist())),
        )

    def _list(self, snapshot: Snapshot, metadata: TableMetadata) -> ManifestListTable:
        return read_manifest_list(snapshot.manifest_list, self.io, table_location=metadata.location)

    def _added_manifests(self, added: EntriesTable, shape: TableShape, options: MergeOptions) -> ManifestsByContent:
        """Manifests of new files by content; written once and reused by later attempts."""
        found = {}
        for content in (DATA, DELETES):
            key = content, shape.key
            if key not in self._added:
                files = added.filter((added.content == Content.DATA) == (content == DATA))
                self._added[key] = self._writer.write_added_manifests(files, content, shape, options.target_bytes)
            found[content] = self._added[key]
        return found

    def _filtered(
        self, listed: ManifestListTable, new: ManifestsByContent, shape: TableShape, head: Snapshot | None
    ) -> tuple[Filtered, Filtered]:
        """Remove files from data manifests, then from delete manifests.

        Deletion vectors of removed data files, and deletes older than all data, are removed too, and dangling deletes
        if the change says so.
        """
        metadata, nothing = shape.metadata, no_entries(shape.union)
        hints = self.change.removed_entries or nothing
        if hints.partition_types != {f.id: f.bound.column.type for f in shape.union.fields}:
            # The table's partition fields have changed since: only the spec ids are used.
            plain = [name for name in hints.table.schema.names if not name.startswith("partition.")]
            hints = EntriesTable(hints.table.select(plain), {})
        # The manifests that the removed files were planned from, if their list still exists.
        planned = metadata.snapshot_by_id(self.change.planned_on) if self.change.planned_on is not None else None
        planned_list = ManifestListTable.empty()
        if planned is not None and self.change.removed_entries is not None:
            same = head is not None and head.snapshot_id == planned.snapshot_id
            planned_list = listed if same else self._list(planned, metadata)

        keys, is_data = removed_keys(self.change), hints.content == 0
        of_data, of_deletes = (listed.take(np.flatnonzero(listed.content == kind)) for kind in (DATA, DELETES))
        removing = FilesToRemove(keys[0], hints.filter(is_data), nothing)
        data = self._filters[DATA].apply(of_data, removing, shape, hinted_manifests(planned_list, removing.hints))

        vectors_of = data.removed if metadata.format_version > 2 else nothing
        # The smallest data sequence number of the table; that of its last snapshot if it has no data.
        numbers = concat_manifest_lists([*new[DATA], data.manifests]).min_sequence_number
        assigned = numbers[numbers >= 0]
        last = int(metadata.next_sequence_number()) - 1 if metadata.format_version > 1 else 0
        oldest = int(assigned.min()) if len(assigned) else last
        dangling = nothing
        if self.change.drop_dangling_deletes and head is not None and find_truncation(head, listed) is None:
            reader = SnapshotReader(metadata, head, listed, shape.union, self.io)
            # A rewrite has matched all deletes with their data files anyway: it can afford to compare keys.
            by_keys, added = self.change.operation is Operation.REPLACE, self.change.added_data
            dangling = dangling_deletes(reader, removed=data.removed.path, added=added, by_keys=by_keys)
        gone = pc.unique(pa.concat_arrays([keys[1], entry_keys(dangling)]))
        removing = FilesToRemove(gone, hints.filter(~is_data), vectors_of, oldest)
        first = [hinted_manifests(planned_list, removing.hints), hinted_manifests(listed, dangling)]
        return data, self._filters[DELETES].apply(of_deletes, removing, shape, pa.concat_arrays(first))

    def _snapshot(
        self, metadata: TableMetadata, listing: ListedSnapshot, location: str, encoded: EncodedList, summary: Summary
    ) -> Snapshot:
        # Another writer's clock may be ahead of ours.
        logged = [entry.timestamp_ms for entry in metadata.snapshot_log]
        first, after = listing.first_row_id, encoded.next_row_id
        stated = {
            "snapshot-id": self.snapshot_id,
            "parent-snapshot-id": listing.parent_snapshot_id,
            "sequence-number": listing.sequence_number,
            "timestamp-ms": max([self.now_ms(), metadata.last_updated_ms, *logged]),
            "manifest-list": location,
            "summary": summary,
            "schema-id": metadata.current_schema_id,
            "first-row-id": first,
            "added-rows": None if first is None or after is None else after - first,
        }
        return Snapshot.model_validate(stated)


def change_counts(added: EntriesTable, removed: EntriesTable, union: UnionPartitionType) -> dict[str, str]:
    """Counts of added and removed files and rows, without zeros, and of changed partitions."""
    found: dict[str, str] = {}
    for side, entries in enumerate((added, removed)):
        content, records = entries.content, entries.record_count
        is_data, is_equality = content == Content.DATA, content == Content.EQUALITY_DELETES
        is_position = content == Content.POSITION_DELETES
        is_vector = is_position & to_mask(pc.equal(entries.array("file_format"), "PUFFIN"))
        # Deletion vectors share a file, so each counts its own bytes.
        own_bytes, file_bytes = entries.ints("content_size_in_bytes", missing=0), entries.ints("file_size_in_bytes")
        counts = {
            "files-size": np.where(is_vector, own_bytes, file_bytes).sum(),
            "data-files": is_data.sum(),
            "equality-delete-files": is_equality.sum(),
            "position-delete-files": (is_position & ~is_vector).sum(),
            "dvs": is_vector.sum(),
            "delete-files": (~is_data).sum(),
            "records": records[is_data].sum(),
            "position-deletes": records[is_position].sum(),
            "equality-deletes": records[is_equality].sum(),
        }
        found |= {_COUNTED[what][side]: str(int(number)) for what, number in counts.items() if number > 0}
    both = concat_entries([added, removed], union)
    codes = partition_codes(union, both.spec_id, both.partition_columns())
    return found | {"changed-partition-count": str(len(np.unique(codes)))}


def moved_specs(added: EntriesTable, removed: EntriesTable) -> dict[str, str]:
    """The specs that rows left, if the change moves rows between specs, and those of all replaced rows.

    Rows leave a file that is removed, or that gets position deletes. Later equality deletes under these specs do not
    apply to the moved rows; ``doctor`` looks for them.
    """
    before, after = (np.unique(files.spec_id[files.content == Content.DATA]) for files in (removed, added))
    before = np.union1d(before, added.spec_id[added.content == Content.POSITION_DELETES])
    left = np.setdiff1d(before, after)
    if not len(left) or not len(after):
        return {}
    return {MOVED_FROM_SPECS: ",".join(map(str, left)), REPLACED_SPECS: ",".join(map(str, before))}


def running_totals(changed: Mapping[str, str], parent: Mapping[str, str] | None) -> dict[str, str]:
    """Totals after a change: the parent's plus what was added minus what was removed; from 0 without a parent.

    A total that the parent's summary lacks, or that would become negative, is left out.
    """
    found = {}
    for what in _TOTALS:
        name = f"total-{what}"
        before = 0 if parent is None else parse_count(parent.get(name))
        if before is not None:
            added, removed = (int(changed.get(side, 0)) for side in _COUNTED[what])
            if before + added >= removed:
                found[name] = str(before + added - removed)
    return found


def hinted_manifests(planned: ManifestListTable, hints: EntriesTable) -> pa.Array:
    """The manifests that hints were planned from."""
    if "manifest" not in hints:
        return pa.array([], pa.large_string())
    rows = np.unique(hints.ints("manifest"))
    return planned.path.take(pa.array(rows[(rows >= 0) & (rows < len(planned))]))

"""Manifests of format 1 to 3 from a metadata tree (``floeplan entries --layout v3``): the way back from ``convert``.

Rule: every live file becomes an entry with the snapshot, sequence numbers, row ids, partition tuple and statistics that
the tree has for it, and every deletion vector becomes a delete file. A manifest has files of one spec, all with row ids
or all without, because a manifest list gives ids to all files of a manifest or to none.

The manifests have the format of the table, and format 3 in a table of format 4, whose fields are those of format 3. A
snapshot from before an upgrade to format 3 has no row ids, and its manifests stay in format 2.
Nothing is lost but what the result names: manifests do not record whether bounds are tight or how long values are on
average, and the tree does not know the size of a deletion vector's file. A map of statistics without entries comes back
as none, which means the same.
Fail-safe: a deletion vector or row id that the table's format has no place for is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from floeplan.errors import BadInputError
from floeplan.format4 import FORMAT, manifest_suffix
from floeplan.metadata.files import local_path
from floeplan.metadata.manifests.entries import WHOLE, EntriesTable, EntryColumns, Status, with_status
from floeplan.metadata.manifests.list_writer import ListedSnapshot, write_manifest_list
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable, concat_manifest_lists
from floeplan.metadata.manifests.writer import write_manifest
from floeplan.metadata.v4 import fields as ids
from floeplan.metadata.v4.manifest_file import ManifestFile
from floeplan.metadata.v4.row_entries import live_rows
from floeplan.metadata.v4.tree import MetadataTree
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask

_NOT_HELD = {ids.TIGHT: "whether bounds are tight", ids.AVERAGE_SIZE: "average sizes of values"}
"""Metrics that manifests have no place for."""


@dataclass(frozen=True, slots=True)
class ManifestsSummary:
    """What was written.

    Attributes:
        manifest_list: The manifest list.
        manifests: The manifests it lists.
        snapshot_id: The snapshot.
        format_version: The format of the manifests.
        entries: Data files, and delete files with deletion vectors.
        bytes: The size of all files.
        lost: What the tree has and manifests have no place for.
    """

    manifest_list: str
    manifests: tuple[str, ...]
    snapshot_id: int
    format_version: int
    entries: int
    bytes: int
    lost: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the command."""
        return {
            "manifest_list": self.manifest_list,
            "manifests": list(self.manifests),
            "snapshot_id": self.snapshot_id,
            "format_version": self.format_version,
            "entries": self.entries,
            "bytes": self.bytes,
            "lost": list(self.lost),
        }


def write_manifests(
    table: Table, tree: MetadataTree, folder: str, snapshot: Snapshot | None, *, io: FileIO | None = None
) -> ManifestsSummary:
    """Write the manifest list and manifests of a tree into a folder; the table and the tree are only read.

    Args:
        table: The table.
        tree: The tree.
        folder: Path or URI of the folder; every call writes new files.
        snapshot: The snapshot of the table that the tree holds.
        io: Where the files go; local files need none.
    """
    if snapshot is None:
        raise BadInputError("the table has no snapshot that a manifest list could belong to")
    metadata = table.metadata
    tree.check(metadata, snapshot.snapshot_id)
    path = local_path(folder)
    base = folder.rstrip("/") if path is None else f"file://{os.path.abspath(path)}"
    version = min(metadata.format_version, FORMAT - 1 if snapshot.first_row_id is not None else 2)
    lost = set(_not_held(tree))
    written = write_manifests_from_tree(
        tree, metadata, base, snapshot_id=snapshot.snapshot_id, format_version=version, io=io, lost=lost
    )
    location = f"{base}/snap-{snapshot.snapshot_id}-{uuid4()}.avro"
    number = (snapshot.sequence_number or 0) if version > 1 else 0
    # Lists of format 3 give row ids to every data manifest without them; no file has these ids yet.
    first_row_id = getattr(metadata, "next_row_id", None) if version > 2 else None
    listed = ListedSnapshot(version, snapshot.snapshot_id, snapshot.parent_snapshot_id, number, first_row_id)
    encoded = write_manifest_list(location, written, listed, io=io)
    name, *manifests = (local_path(one) or one for one in (location, *written.path.to_pylist()))
    return ManifestsSummary(
        manifest_list=name,
        manifests=tuple(manifests),
        snapshot_id=snapshot.snapshot_id,
        format_version=version,
        entries=int((written.added_files + written.existing_files).sum()),
        bytes=len(encoded.data) + int(written.length.sum()),
        lost=tuple(sorted(lost)),
    )


def write_manifests_from_tree(
    tree: MetadataTree,
    metadata: TableMetadata,
    folder: str,
    *,
    snapshot_id: int,
    format_version: int | None = None,
    io: FileIO | None = None,
    lost: set[str] | None = None,
) -> ManifestListTable:
    """Write the live files of a tree as manifests, by leaf and spec; deletion vectors become delete files.

    Files that ``snapshot_id`` added stay added, all others become existing ones with the snapshot and the sequence
    numbers they have. The rows returned are for ``write_manifest_list``. ``lost`` collects what they cannot hold.
    """
    union = UnionPartitionType.of_table(metadata)
    specs = {spec.spec_id: spec for spec in metadata.partition_specs}
    version = format_version or metadata.format_version
    name, written = uuid4(), list[ManifestListTable]()
    for row in range(len(tree.manifests)):
        content = int(tree.manifests.content[row])
        entries = tree.read_entries(tree.manifests, union, EntryColumns(WHOLE), rows=np.array([row])).live()
        if lost is not None:
            lost.update(_unknown_of_vectors(entries, metadata))
        added_by = entries.ints("snapshot_id")
        status = np.where(added_by == snapshot_id, Status.ADDED, Status.EXISTING)
        for part in _parts(with_status(entries, status, added_by)):
            listed = write_manifest(
                f"{folder.rstrip('/')}/{name}-m{len(written)}.{manifest_suffix(version)}",
                part,
                specs[int(part.spec_id[0])],
                metadata.schema(),
                union=union,
                format_version=version,
                content=content,
                snapshot_id=snapshot_id,
                io=io,
            )
            if content == DATA and part.valid("first_row_id").all():
                # Readers ignore the row ids of entries whose manifest has none.
                listed = replace(listed, first_row_id=part.ints("first_row_id")[:1])
            written.append(listed)
    return concat_manifest_lists(written) if written else ManifestListTable.empty()


def _parts(entries: EntriesTable) -> Iterator[EntriesTable]:
    """Entries of one spec, with row ids or without."""
    kinds = entries.spec_id * 2 + entries.valid("first_row_id")
    for kind in np.unique(kinds).tolist():
        yield entries.filter(kinds == kind)


def _unknown_of_vectors(entries: EntriesTable, metadata: TableMetadata) -> Iterator[str]:
    """What a tree does not know of deletion vectors and an entry has."""
    vectors = entries.filter(to_mask(pc.equal(entries.array("file_format"), "PUFFIN")))
    if len(vectors):
        yield "file sizes of deletion vectors"
        known = {one.snapshot_id for one in metadata.snapshots}
        if set(vectors.ints("snapshot_id").tolist()) - known:
            yield "sequence numbers of deletion vectors whose snapshot is expired"


def _not_held(tree: MetadataTree) -> Iterator[str]:
    """What root and leaves have and manifests have no place for."""
    if tree.removed:
        yield "files that were deleted or replaced"
    for file in tree.files():
        yield from _not_held_of(file)


def _not_held_of(file: ManifestFile) -> Iterator[str]:
    status = ids.TRACKING, ids.STATUS
    metrics = {path: path[2] - path[1] for path in file.found if path[0] == ids.CONTENT_STATS and len(path) == 3}
    wanted = [path for path, offset in metrics.items() if offset in _NOT_HELD]
    rows = file.read([status, *wanted])
    live = live_rows(rows.ints(status))
    if not live.all():
        yield "files that were deleted or replaced"
    for path in wanted:
        array, found = rows.array(path), rows.valid(path)
        if array is not None and pa.types.is_boolean(array.type):
            found = to_mask(array)  # readers of manifests take bounds for not tight: only tight ones are lost
        if found[live].any():
            yield _NOT_HELD[metrics[path]]

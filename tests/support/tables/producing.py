"""A table without a catalog, for producing snapshots: metadata in memory, metadata files in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, update_table_metadata
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from floeplan.metadata.manifests.entries import WHOLE, EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import ManifestListTable, read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.producer import ProducedSnapshot, SnapshotProducer
from tests.support.tables.layouts import Layout

FIRST_ID = 100


@dataclass
class Line:
    """One branch of a generated table; every commit updates ``metadata``."""

    layout: Layout
    metadata: TableMetadata

    @classmethod
    def start(cls, layout: Layout, folder: Path, properties: Mapping[str, str] | None = None) -> Line:
        """A table without snapshots."""
        document = layout.metadata(folder, folder / "none", 0)
        document |= {"snapshots": [], "refs": {}, "current-snapshot-id": None, "last-sequence-number": 0}
        document |= {"properties": dict(properties or {})}
        return cls(layout, TableMetadataUtil.parse_obj(document))

    @property
    def head(self) -> Snapshot | None:
        return self.metadata.current_snapshot()

    def producer(self, change: SnapshotChange) -> SnapshotProducer:
        return SnapshotProducer(change, FIRST_ID + len(self.metadata.snapshots), now_ms=lambda: 1_800_000_000_000)

    def produce(self, change: SnapshotChange) -> ProducedSnapshot:
        return self.producer(change).produce(self.metadata, self.head)

    def commit(self, change: SnapshotChange) -> ProducedSnapshot:
        produced = self.produce(change)
        self.accept(produced)
        return produced

    def accept(self, produced: ProducedSnapshot) -> None:
        """Add a snapshot to the metadata, as a catalog does."""
        ref: dict[str, Any] = {"ref-name": "main", "type": "branch", "snapshot-id": produced.snapshot.snapshot_id}
        updates = (AddSnapshotUpdate(snapshot=produced.snapshot), SetSnapshotRefUpdate(**ref))
        self.metadata = update_table_metadata(self.metadata, updates)

    def manifests(self) -> ManifestListTable:
        return ManifestListTable.empty() if self.head is None else read_manifest_list(self.head.manifest_list)

    def entries(self) -> EntriesTable:
        """All entries of the head, including deleted entries."""
        return read_entries(self.manifests(), self.layout.union, EntryColumns(WHOLE))

    def entry_values(self, *names: str) -> dict[str, Any]:
        """The values of these columns of the live entries, by path."""
        live = self.entries().live().table
        columns = zip(*(live.column(name).to_pylist() for name in names), strict=True)
        values = [row[0] for row in columns] if len(names) == 1 else list(columns)
        return dict(zip(live.column("file_path").to_pylist(), values, strict=True))

    def live(self) -> set[str]:
        return set(self.entries().live().path.to_pylist())


def superseded(produced: ProducedSnapshot) -> set[str]:
    """Written files that the snapshot does not use: left by other attempts or merged into other manifests."""
    return set(produced.written) - {produced.snapshot.manifest_list, *(m.path for m in produced.manifests_written)}


def new_files(layout: Layout, rows: Sequence[dict[str, Any]]) -> EntriesTable:
    """New files as writers return them, without values that a snapshot assigns."""
    return layout.entries([{"snapshot_id": None} | row for row in rows])


SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    schema_id=0,
)
SPECS = (
    PartitionSpec(spec_id=0),
    PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=1),
    PartitionSpec(PartitionField(1, 1001, BucketTransform(8), "id_bucket"), spec_id=2),
)
V1, V2, V3 = (Layout(SCHEMA, SPECS, version) for version in (1, 2, 3))


def data(path: str, spec_id: int = 0, **more: Any) -> dict[str, Any]:
    where: dict[str, Any] = {1: {"partition.1000": "eu"}, 2: {"partition.1001": 3}}.get(spec_id, {})
    return {"file_path": path, "spec_id": spec_id, **where, **more}


def positions(path: str, target: str, spec_id: int = 0, **more: Any) -> dict[str, Any]:
    return data(path, spec_id, content=1, record_count=2, referenced_data_file=target, **more)


def vector(path: str, offset: int, target: str, spec_id: int = 0) -> dict[str, Any]:
    more = {"file_format": "PUFFIN", "content_offset": offset, "content_size_in_bytes": 40}
    return positions(path, target, spec_id, **more)


def appending(layout: Layout, *rows: dict[str, Any], **more: Any) -> SnapshotChange:
    return SnapshotChange(Operation.APPEND, added_data=new_files(layout, rows), **more)


def removing(*paths: str, **more: Any) -> SnapshotChange:
    return SnapshotChange(Operation.DELETE, removed_data=frozenset(paths), **more)


def deleting(layout: Layout, *rows: dict[str, Any], **more: Any) -> SnapshotChange:
    return SnapshotChange(Operation.DELETE, added_deletes=new_files(layout, rows), **more)

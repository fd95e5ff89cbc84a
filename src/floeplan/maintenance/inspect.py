"""``inspect_table``: what a table is made of: specs, schemas, snapshots, files by spec, deletes and sizes.

Only metadata is read: the manifest list and the manifests of one snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from floeplan.catalog import load_table
from floeplan.display import Displayed
from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, DELETES
from floeplan.partition.key import partition_codes
from floeplan.snapshot.passes import ScanDeletes
from floeplan.snapshot.reader import SnapshotReader, branch_head

STEPS = tuple(2**power for power in range(10, 35, 2))
"""Upper ends of the classes of file sizes, in bytes: 1 KiB to 16 GiB."""


@dataclass(frozen=True, slots=True)
class SpecFiles:
    """The live data files of one spec."""

    spec_id: int
    files: int
    rows: int
    bytes: int
    partitions: int
    manifests: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, repr=False)
class Inspection(Displayed):
    """What a table is made of.

    Attributes:
        table: Its name, or its metadata location.
        format_version: The format version.
        location: Where its files are.
        specs: All partition specs, oldest first.
        schemas: All schemas, oldest first.
        snapshots: All snapshots, newest first.
        refs: Branches and tags.
        files_by_spec: Data files of the snapshot.
        delete_files: Delete files of each kind.
        sizes: Bytes of data, deletes and manifests, and data files by their size.
    """

    table: str
    format_version: int
    location: str
    specs: tuple[Mapping[str, Any], ...]
    schemas: tuple[Mapping[str, Any], ...]
    snapshots: tuple[Mapping[str, Any], ...]
    refs: Mapping[str, Mapping[str, Any]]
    files_by_spec: tuple[SpecFiles, ...]
    delete_files: Mapping[str, int]
    sizes: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        found = {name: getattr(self, name) for name in self.__slots__}
        lists = {name: list(getattr(self, name)) for name in ("specs", "schemas", "snapshots")}
        return found | lists | {"files_by_spec": [files.to_dict() for files in self.files_by_spec]}


def inspect_table(table: Table | str, *, branch: str = MAIN_BRANCH, catalog: str | Catalog | None = None) -> Inspection:
    """Summarize a table and the head of one of its branches."""
    loaded = load_table(table, catalog)
    head = SnapshotReader.of_branch(loaded, branch)
    data = head.entries(head.manifest_rows(DATA), EntryColumns(frozenset()))
    return inspect_files(loaded, head, data, head.deletes(), branch=branch)


def inspect_files(
    loaded: Table, head: SnapshotReader, data: EntriesTable, deletes: ScanDeletes, *, branch: str = MAIN_BRANCH
) -> Inspection:
    """As ``inspect_table``, from live entries that were already read."""
    metadata = loaded.metadata
    oldest_first = sorted(metadata.snapshots, key=lambda one: (one.timestamp_ms, one.sequence_number or 0))
    kinds = {
        "position": (DeleteKind.POSITION_FILE, DeleteKind.POSITION_PARTITION),
        "vectors": (DeleteKind.VECTOR,),
        "equality": (DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION),
    }
    counts = {name: int(np.count_nonzero(np.isin(deletes.kinds, some))) for name, some in kinds.items()}
    return Inspection(
        table=".".join(loaded.name()),
        format_version=metadata.format_version,
        location=metadata.location,
        specs=tuple(_spec(spec, metadata) for spec in metadata.partition_specs),
        schemas=tuple(_schema(schema, metadata.current_schema_id) for schema in metadata.schemas),
        snapshots=tuple(_snapshot(one, branch_head(metadata, branch)) for one in reversed(oldest_first)),
        refs={
            name: {"snapshot_id": ref.snapshot_id, "type": str(ref.snapshot_ref_type)}
            for name, ref in metadata.refs.items()
        },
        files_by_spec=tuple(_files(head, data, spec_id) for spec_id in np.unique(data.spec_id).tolist()),
        delete_files=counts | {"rows": int(deletes.entries.record_count.sum())},
        sizes=_sizes(head, data, deletes),
    )


def _spec(spec: PartitionSpec, metadata: TableMetadata) -> dict[str, Any]:
    fields = [
        {
            "field_id": field.field_id,
            "name": field.name,
            "transform": str(field.transform),
            "source_id": field.source_id,
            "source": metadata.schema().find_column_name(field.source_id),
        }
        for field in spec.fields
    ]
    text = ", ".join(f"{field['transform']}({field['source'] or field['source_id']})" for field in fields)
    return {
        "spec_id": spec.spec_id,
        "spec": text or "unpartitioned",
        "default": spec.spec_id == metadata.default_spec_id,
        "fields": fields,
    }


def _schema(schema: Schema, current: int) -> dict[str, Any]:
    columns = [
        {"id": field.field_id, "name": field.name, "type": str(field.field_type), "required": field.required}
        for field in schema.fields
    ]
    return {"schema_id": schema.schema_id, "current": schema.schema_id == current, "columns": columns}


def _snapshot(snapshot: Snapshot, head: int | None) -> dict[str, Any]:
    summary = snapshot.summary
    return {
        "snapshot_id": snapshot.snapshot_id,
        "parent_snapshot_id": snapshot.parent_snapshot_id,
        "sequence_number": snapshot.sequence_number,
        "timestamp_ms": snapshot.timestamp_ms,
        "current": snapshot.snapshot_id == head,
        "operation": None if summary is None else summary.operation.value,
        "summary": {} if summary is None else dict(summary.additional_properties),
    }


def _files(head: SnapshotReader, data: EntriesTable, spec_id: int) -> SpecFiles:
    own = data.filter(data.spec_id == spec_id)
    return SpecFiles(
        spec_id=spec_id,
        files=len(own),
        rows=int(own.record_count.sum()),
        bytes=int(own.ints("file_size_in_bytes").sum()),
        partitions=len(np.unique(partition_codes(head.union, own.spec_id, own.partition_columns()))),
        manifests=len(np.unique(own.ints("manifest"))),
    )


def _sizes(head: SnapshotReader, data: EntriesTable, deletes: ScanDeletes) -> dict[str, Any]:
    sizes = data.ints("file_size_in_bytes")
    manifests = np.concatenate([head.manifest_rows(DATA), head.manifest_rows(DELETES)])
    # The histogram has the classes from the first to the last one with files.
    places = np.minimum(np.searchsorted(np.array(STEPS), sizes), len(STEPS) - 1)
    files = np.bincount(places, minlength=len(STEPS)).tolist()
    classes = range(int(places.min()), int(places.max()) + 1) if len(places) else range(0)
    return {
        "data_bytes": int(sizes.sum()),
        "delete_bytes": int(deletes.entries.ints("file_size_in_bytes").sum()),
        "manifest_bytes": int(head.manifests.length[manifests].sum()),
        "manifests": len(manifests),
        "data_manifests": int(np.count_nonzero(head.manifests.content == DATA)),
        "delete_manifests": int(np.count_nonzero(head.manifests.content == DELETES)),
        "smallest": int(sizes.min()) if len(sizes) else 0,
        "median": int(np.median(sizes)) if len(sizes) else 0,
        "largest": int(sizes.max()) if len(sizes) else 0,
        "histogram": [{"up_to_bytes": STEPS[at], "files": files[at]} for at in classes],
    }

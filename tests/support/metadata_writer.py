"""Writes the metadata of a table that has no data: manifests, a manifest list and a metadata file, format v2.

Planning reads nothing else, so a table of any size can be made in a minute. Everything is deterministic: the same calls
give the same bytes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from floeplan.metadata.manifests.entries import Content, Status, partition_column
from floeplan.metadata.manifests.list_writer import ListedSnapshot, write_manifest_list
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable, concat_manifest_lists
from floeplan.metadata.manifests.new_entries import ENTRY_TYPES, new_entries
from floeplan.metadata.manifests.writer import write_manifest
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType

FIRST_SNAPSHOT_ID = 1_000_000
_FORMAT: Final = 2
_TIMESTAMP_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A data file that need not exist; ``bounds`` are Iceberg's single-value bytes by field id."""

    path: str
    partition: tuple[Any, ...]
    record_count: int
    file_size: int
    bounds: Mapping[int, tuple[bytes, bytes]]
    deleted: bool = False


@dataclass(slots=True)
class MetadataWriter:
    """Collects manifests, each as if a commit of its own had written it; ``finish`` makes the table."""

    root: Path
    schema: Schema
    specs: Sequence[PartitionSpec]
    codec: str = "deflate"
    _listed: list[ManifestListTable] = field(default_factory=list)
    _union: UnionPartitionType = field(init=False)

    def __post_init__(self) -> None:
        self._union = UnionPartitionType.of(self.specs, source_types(self.schema))

    def add_manifest(self, spec_id: int, files: Sequence[FileEntry]) -> None:
        """Write a manifest of files of one spec."""
        spec = next(spec for spec in self.specs if spec.spec_id == spec_id)
        sequence_number = len(self._listed) + 1
        written = write_manifest(
            self._new(f"{sequence_number:06d}-m0.avro").as_uri(),
            new_entries(_columns(files, spec, sequence_number), self._union),
            spec,
            self.schema,
            union=self._union,
            format_version=_FORMAT,
            content=DATA,
            snapshot_id=FIRST_SNAPSHOT_ID + sequence_number,
            codec=self.codec,
        )
        number = np.array([sequence_number])
        self._listed.append(replace(written, sequence_number=number, min_sequence_number=number))

    def finish(self) -> Path:
        """Write the manifest list, newest manifest first, and the metadata file, whose path is returned."""
        last = len(self._listed)
        snapshot_id = FIRST_SNAPSHOT_ID + last
        manifest_list = self._new(f"snap-{snapshot_id}.avro")
        manifests = concat_manifest_lists(self._listed[::-1])
        snapshot = ListedSnapshot(_FORMAT, snapshot_id, None, last)
        write_manifest_list(manifest_list.as_uri(), manifests, snapshot, codec=self.codec)
        path = self._new("v1.metadata.json")
        path.write_text(json.dumps(self._metadata(snapshot_id, manifest_list)))
        return path

    def _new(self, name: str) -> Path:
        """A metadata file to be written; one that an earlier run has left is removed."""
        path = self.root / "metadata" / name
        path.unlink(missing_ok=True)
        return path

    def _metadata(self, snapshot_id: int, manifest_list: Path) -> dict[str, Any]:
        last = len(self._listed)
        snapshot = {
            "snapshot-id": snapshot_id,
            "sequence-number": last,
            "timestamp-ms": _TIMESTAMP_MS,
            "manifest-list": manifest_list.as_uri(),
            "summary": {"operation": "append"},
            "schema-id": self.schema.schema_id,
        }
        return {
            "format-version": _FORMAT,
            "table-uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, self.root.name)),
            "location": self.root.as_uri(),
            "last-sequence-number": last,
            "last-updated-ms": _TIMESTAMP_MS,
            "last-column-id": self.schema.highest_field_id,
            "schemas": [json.loads(self.schema.model_dump_json())],
            "current-schema-id": self.schema.schema_id,
            "partition-specs": [json.loads(spec.model_dump_json()) for spec in self.specs],
            "default-spec-id": self.specs[-1].spec_id,
            "last-partition-id": max((item.field_id for spec in self.specs for item in spec.fields), default=999),
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "snapshots": [snapshot],
            "current-snapshot-id": snapshot_id,
            "refs": {"main": {"snapshot-id": snapshot_id, "type": "branch"}},
        }


def _columns(files: Sequence[FileEntry], spec: PartitionSpec, sequence_number: int) -> dict[str, pa.Array]:
    """The files as columns of entries; the sequence number of a deleted file is its own, others inherit it."""
    own = [sequence_number if file.deleted else None for file in files]
    columns = {
        "spec_id": [spec.spec_id] * len(files),
        "status": [(Status.DELETED if file.deleted else Status.ADDED).value for file in files],
        "sequence_number": own,
        "file_sequence_number": own,
        "content": [Content.DATA.value] * len(files),
        "file_path": [file.path for file in files],
        "file_format": ["PARQUET"] * len(files),
        "record_count": [file.record_count for file in files],
        "file_size_in_bytes": [file.file_size for file in files],
        "split_offsets": [[4]] * len(files),
        "sort_order_id": [0] * len(files),
        "column_sizes": [[(key, file.file_size * key % 999_983) for key in file.bounds] for file in files],
        "value_counts": [[(key, file.record_count) for key in file.bounds] for file in files],
        "null_value_counts": [[(key, 0) for key in file.bounds] for file in files],
        "nan_value_counts": [[(key, 0) for key in file.bounds] for file in files],
        "lower_bounds": [[(key, lower) for key, (lower, _) in file.bounds.items()] for file in files],
        "upper_bounds": [[(key, upper) for key, (_, upper) in file.bounds.items()] for file in files],
    }
    made = {name: pa.array(values, ENTRY_TYPES[name]) for name, values in columns.items()}
    for position, item in enumerate(spec.fields):
        made[partition_column(item.field_id)] = pa.array([file.partition[position] for file in files])
    return made

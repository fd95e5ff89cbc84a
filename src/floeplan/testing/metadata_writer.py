"""Writes the metadata of a table that has no data: manifests, a manifest list and a metadata file, format v2.

Planning reads nothing else, so a table of any size can be made in a minute. Everything is deterministic: the same calls
give the same bytes, save for the sync markers of the Avro files.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import fastavro
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestEntryStatus,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

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
    _listed: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.root / "metadata").mkdir(parents=True, exist_ok=True)

    def add_manifest(self, spec_id: int, files: Sequence[FileEntry]) -> None:
        """Write a manifest of files of one spec."""
        spec = next(spec for spec in self.specs if spec.spec_id == spec_id)
        sequence_number = len(self._listed) + 1
        path = self.root / "metadata" / f"{sequence_number:06d}-m0.avro"
        metadata = {
            "schema": self.schema.model_dump_json(),
            "partition-spec": json.dumps([json.loads(item.model_dump_json()) for item in spec.fields]),
            "partition-spec-id": str(spec_id),
            "format-version": str(_FORMAT),
            "content": "data",
        }
        names = [item.name for item in spec.fields]
        records = [_entry(file, names, sequence_number) for file in files]
        size = self._write(path, self._entry_schema(spec), records, metadata)
        self._listed.append(self._listing(path, size, spec, files, sequence_number))

    def finish(self) -> Path:
        """Write the manifest list, newest manifest first, and the metadata file, whose path is returned."""
        snapshot_id = FIRST_SNAPSHOT_ID + len(self._listed)
        manifest_list = self.root / "metadata" / f"snap-{snapshot_id}.avro"
        list_schema = AvroSchemaConversion().iceberg_to_avro(MANIFEST_LIST_FILE_SCHEMAS[_FORMAT], "manifest_file")
        self._write(manifest_list, list_schema, self._listed[::-1], {"format-version": str(_FORMAT)})
        path = self.root / "metadata" / "v1.metadata.json"
        path.write_text(json.dumps(self._metadata(snapshot_id, manifest_list)))
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

    def _entry_schema(self, spec: PartitionSpec) -> Any:
        data_file = data_file_with_partition(spec.partition_type(self.schema), _FORMAT)
        entry = manifest_entry_schema_with_data_file(_FORMAT, data_file)
        return AvroSchemaConversion().iceberg_to_avro(entry, "manifest_entry")

    def _write(self, path: Path, schema: Any, records: list[dict[str, Any]], metadata: dict[str, str]) -> int:
        buffer = BytesIO()
        fastavro.writer(buffer, schema, records, codec=self.codec, sync_interval=64_000, metadata=metadata)
        return path.write_bytes(buffer.getvalue())

    def _listing(
        self, path: Path, size: int, spec: PartitionSpec, files: Sequence[FileEntry], sequence_number: int
    ) -> dict[str, Any]:
        deleted = [file for file in files if file.deleted]
        types = [item.field_type for item in spec.partition_type(self.schema).fields]
        return {
            "manifest_path": path.as_uri(),
            "manifest_length": size,
            "partition_spec_id": spec.spec_id,
            "content": 0,
            "sequence_number": sequence_number,
            "min_sequence_number": sequence_number,
            "added_snapshot_id": FIRST_SNAPSHOT_ID + sequence_number,
            "added_files_count": len(files) - len(deleted),
            "existing_files_count": 0,
            "deleted_files_count": len(deleted),
            "added_rows_count": sum(file.record_count for file in files if not file.deleted),
            "existing_rows_count": 0,
            "deleted_rows_count": sum(file.record_count for file in deleted),
            "partitions": [_summary(types[at], [file.partition[at] for file in files]) for at in range(len(types))],
            "key_metadata": None,
        }


def _entry(file: FileEntry, partition_names: Sequence[str], sequence_number: int) -> dict[str, Any]:
    fields = list(file.bounds)
    return {
        "status": (ManifestEntryStatus.DELETED if file.deleted else ManifestEntryStatus.ADDED).value,
        "snapshot_id": FIRST_SNAPSHOT_ID + sequence_number,
        "sequence_number": sequence_number if file.deleted else None,
        "file_sequence_number": sequence_number if file.deleted else None,
        "data_file": {
            "content": 0,
            "file_path": file.path,
            "file_format": "PARQUET",
            "partition": dict(zip(partition_names, file.partition, strict=True)),
            "record_count": file.record_count,
            "file_size_in_bytes": file.file_size,
            "column_sizes": [{"key": item, "value": file.file_size * item % 999_983} for item in fields],
            "value_counts": [{"key": item, "value": file.record_count} for item in fields],
            "null_value_counts": [{"key": item, "value": 0} for item in fields],
            "nan_value_counts": [{"key": item, "value": 0} for item in fields],
            "lower_bounds": [{"key": item, "value": bounds[0]} for item, bounds in file.bounds.items()],
            "upper_bounds": [{"key": item, "value": bounds[1]} for item, bounds in file.bounds.items()],
            "key_metadata": None,
            "split_offsets": [4],
            "equality_ids": None,
            "sort_order_id": 0,
        },
    }


def _summary(type_: Any, values: Sequence[Any]) -> dict[str, Any]:
    present = [value for value in values if value is not None]
    assert isinstance(type_, PrimitiveType)
    return {
        "contains_null": len(present) < len(values),
        "contains_nan": False,
        "lower_bound": to_bytes(type_, min(present)) if present else None,
        "upper_bound": to_bytes(type_, max(present)) if present else None,
    }

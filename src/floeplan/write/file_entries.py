"""Converts written files to a columnar ``EntriesTable`` of manifest entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.types import PrimitiveType, UnknownType

from floeplan.errors import UnsupportedError
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.assemble import partition_arrow_type
from floeplan.metadata.manifests.entries import STAT_MAPS, Content, EntriesTable, Status, partition_column
from floeplan.metadata.manifests.new_entries import ENTRY_TYPES, new_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.write.metrics import FileMetrics
from floeplan.write.partitioning import FilePartition


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A new data or delete file; fields that do not apply to its content are ``None``."""

    path: str
    partition: FilePartition
    record_count: int
    size: int
    content: Content = Content.DATA
    format: str = "PARQUET"
    metrics: FileMetrics | None = None
    split_offsets: Sequence[int] | None = None
    sort_order_id: int | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size: int | None = None


def added_entries(
    files: Sequence[FileEntry],
    union: UnionPartitionType,
    partition_types: Mapping[int, PrimitiveType] | None = None,
) -> EntriesTable:
    """Entries with status ADDED; snapshot id and sequence numbers are null, to be inherited from the commit."""
    plain = {
        "spec_id": [file.partition.key.spec_id for file in files],
        "status": [int(Status.ADDED)] * len(files),
        "content": [int(file.content) for file in files],
        "file_path": [file.path for file in files],
        "file_format": [file.format for file in files],
        "record_count": [file.record_count for file in files],
        "file_size_in_bytes": [file.size for file in files],
        "split_offsets": [file.split_offsets for file in files],
        "sort_order_id": [file.sort_order_id for file in files],
        "referenced_data_file": [file.referenced_data_file for file in files],
        "content_offset": [file.content_offset for file in files],
        "content_size_in_bytes": [file.content_size for file in files],
    }
    columns = {name: pa.array(values, ENTRY_TYPES[name]) for name, values in plain.items()}
    for name in STAT_MAPS:
        columns[name] = pa.array([_pairs(file.metrics, name) for file in files], ENTRY_TYPES[name])
    types = {field.id: field.bound.column.type for field in union.fields} | dict(partition_types or {})
    for field_id, type_ in types.items():
        values = [file.partition.values.get(field_id) for file in files]
        columns[partition_column(field_id)] = _partition_values(values, field_id, type_)
    return new_entries(columns, union, types)


def _partition_values(values: Sequence[Any], field_id: int, type_: PrimitiveType) -> pa.Array:
    # The source column of the field is in no schema any more, so its type and the encoding of its values are unknown.
    if isinstance(type_, UnknownType) and any(value is not None for value in values):
        raise UnsupportedError(
            f"the source column of partition field {field_id} is in no schema of the table, so its values cannot be "
            "written; write to a spec without it",
            context={"field-id": field_id},
        )
    return pa.array(values, partition_arrow_type(type_))


def _pairs(metrics: FileMetrics | None, name: str) -> list[dict[str, Any]] | None:
    if metrics is None:
        return None
    return [{"key": key, "value": value} for key, value in sorted(metrics.maps()[name].items())]


def remove_written_files(entries: EntriesTable | None, files: TableFiles) -> None:
    """Remove written files that will not be committed; a file that cannot be removed remains as an orphan."""
    if entries is not None:
        files.remove(entries.path.to_pylist())

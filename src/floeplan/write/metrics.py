"""The manifest entry of a written file, with its column metrics.

Sizes and counts come from the Parquet footer, or from the writer where the footer lacks them or has them wrong
(``RowGroupMetrics``). Bounds are the minimum and maximum over row groups, without NaN, truncated to the table's metrics
mode: a lower bound is cut; an upper bound is cut and its last character incremented, and left out if none can be.
Floating-point zeros become -0.0 in lower and +0.0 in upper bounds. Columns inside of lists and maps have only a size.

Fail-safe: if one row group with values has no bound, neither does the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, DecimalType, DoubleType, FloatType, PrimitiveType, StringType, UnknownType

from floeplan.errors import UnsupportedError
from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import (
    ENTRY_TYPES,
    STAT_MAPS,
    Content,
    EntriesTable,
    Status,
    new_entries,
    partition_column,
)
from floeplan.metadata.manifests.values import partition_arrow_type
from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.statistics import Side, comparable, decode_bound, usable_statistics
from floeplan.partition.transforms import from_physical
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import Bound
from floeplan.schemas import fields_by_id
from floeplan.vectors import Mask
from floeplan.write.parquet_file import RowGroupMetrics
from floeplan.write.partitioning import FilePartition
from floeplan.write.target import MetricsModes

_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """Metrics by field id, named as in a manifest entry; bounds in Iceberg's single-value serialization."""

    column_sizes: dict[int, int] = field(default_factory=dict)
    value_counts: dict[int, int] = field(default_factory=dict)
    null_value_counts: dict[int, int] = field(default_factory=dict)
    nan_value_counts: dict[int, int] = field(default_factory=dict)
    lower_bounds: dict[int, bytes] = field(default_factory=dict)
    upper_bounds: dict[int, bytes] = field(default_factory=dict)


def file_metrics(
    footer: ParquetFooter,
    schema: Schema,
    modes: MetricsModes,
    groups: Sequence[RowGroupMetrics] = (),
    leaves: Mapping[int, LeafColumn] | None = None,
) -> FileMetrics:
    """The metrics of a file.

    Args:
        footer: The file's footer.
        schema: The table's schema; columns that it does not have are left out.
        modes: The metrics mode of each column.
        groups: The writer's metrics of each row group; empty for files of other writers.
        leaves: The file's leaf for each field id; the footer's own mapping by default.
    """
    metrics = FileMetrics()
    for field_id, leaf in (footer.leaf_by_id if leaves is None else leaves).items():
        field, mode = fields_by_id(schema).get(field_id), modes.of(field_id)
        if field is None or not isinstance(field.field_type, PrimitiveType) or not mode.counts:
            continue
        type_, chunks = field.field_type, footer.chunks(leaf)
        metrics.column_sizes[field_id] = int(chunks.total_compressed_size.sum())
        if leaf.max_rep:
            continue
        # Nulls and NaN in each row group, by the writer or else by the footer; -1 where unknown.
        usable = usable_statistics(footer, chunks)
        is_float = isinstance(type_, FloatType | DoubleType)
        nulls = np.zeros_like(chunks.num_values) if leaf.max_def == 0 else usable.null_count
        nans = np.full(footer.num_row_groups, -1 if is_float else 0, dtype=np.int64)
        if groups:
            nulls = np.array([group.null_counts.get(field_id, -1) for group in groups], dtype=np.int64)
        if groups and is_float:
            nans = np.array([group.nan_counts.get(field_id, -1) for group in groups], dtype=np.int64)
        metrics.value_counts[field_id] = int(chunks.num_values.sum())
        if (nulls >= 0).all():
            metrics.null_value_counts[field_id] = int(nulls.sum())
        if is_float and (nans >= 0).all():
            metrics.nan_value_counts[field_id] = int(nans.sum())
        if not mode.bounds or not comparable(leaf, type_):
            continue
        # Row groups that may have values other than null and NaN.
        ordinary = (nulls < 0) | (chunks.num_values > nulls + np.maximum(nans, 0))
        long_bounds = [group.long_bounds.get(field_id) for group in groups]
        for side, raw, found in (
            (Side.LOWER, usable.lower, metrics.lower_bounds),
            (Side.UPPER, usable.upper, metrics.upper_bounds),
        ):
            value = _extreme(type_, side, decode_bound(leaf, type_, raw, side), ordinary, long_bounds)
            bound = None if value is None else single_value(type_, value, side, mode.width)
            if bound is not None:
                found[field_id] = bound
    return metrics


def _extreme(
    type_: PrimitiveType, side: Side, bound: Bound, ordinary: Mask, long_bounds: Sequence[tuple[Any, Any] | None]
) -> Any:
    """The minimum or maximum of the row groups' bounds; ``None`` unless every row group with values has one."""
    covered = bound.valid | ~ordinary
    for number, pair in enumerate(long_bounds):
        covered[number] |= pair is not None
    if not covered.all():
        return None
    seen = [pair[0 if side is Side.LOWER else 1] for pair in long_bounds if pair is not None]
    values = bound.values if isinstance(bound.values, pa.Array) else pa.array(bound.values)
    values = values.filter(pa.array(bound.valid & ordinary))
    if len(values):
        seen.append(from_physical(type_, (pc.min if side is Side.LOWER else pc.max)(values).as_py()))
    if not seen:
        return None
    return min(seen) if side is Side.LOWER else max(seen)


def single_value(type_: PrimitiveType, value: Any, side: Side, width: int | None) -> bytes | None:
    """Serialize a canonical value as a bound, truncated to ``width``; ``None`` if there is no upper bound."""
    match type_:
        case StringType():
            text = value if width is None or len(value) <= width else _cut_text(value, width, side)
            return None if text is None else text.encode()
        case BinaryType():
            if width is None or len(value) <= width:
                return bytes(value)
            if side is Side.LOWER:
                return bytes(value[:width])
            raisable = value[:width].rstrip(b"\xff")
            return raisable[:-1] + bytes([raisable[-1] + 1]) if raisable else None
        case FloatType() | DoubleType() if value == 0:
            return to_bytes(type_, -0.0 if side is Side.LOWER else 0.0)
        case DecimalType():
            return to_bytes(type_, value)
    return value if isinstance(value, bytes) else to_bytes(type_, value)


def _cut_text(value: str, width: int, side: Side) -> str | None:
    """The first characters: as an upper bound with the last one raised that can be."""
    kept = value[:width]
    if side is Side.LOWER:
        return kept
    for at in range(len(kept) - 1, -1, -1):
        point = ord(kept[at]) + 1
        point = _SURROGATES.stop if point in _SURROGATES else point
        if point <= _LAST_CODE_POINT:
            return kept[:at] + chr(point)
    return None


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
    files: Sequence[FileEntry], union: UnionPartitionType, partition_types: Mapping[int, PrimitiveType] | None = None
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
        maps = [None if file.metrics is None else sorted(getattr(file.metrics, name).items()) for file in files]
        columns[name] = pa.array(maps, ENTRY_TYPES[name])
    types = {field.id: field.bound.column.type for field in union.fields} | dict(partition_types or {})
    for field_id, type_ in types.items():
        values = [file.partition.values.get(field_id) for file in files]
        if isinstance(type_, UnknownType) and any(value is not None for value in values):
            # The type of the source column, and with it the encoding of its values, is unknown.
            raise UnsupportedError(
                f"the source column of partition field {field_id} is in no schema of the table, so its values cannot "
                "be written; write to a spec without it",
                context={"field-id": field_id},
            )
        columns[partition_column(field_id)] = pa.array(values, partition_arrow_type(type_))
    return new_entries(columns, union, types)


def remove_written_files(entries: EntriesTable | None, files: TableFiles) -> None:
    """Remove written files that will not be committed; a file that cannot be removed remains as an orphan."""
    if entries is not None:
        files.remove(entries.path.to_pylist())

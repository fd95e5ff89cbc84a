"""The column metrics of a data file in its manifest entry.

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
from floeplan.metadata.manifests.assemble import partition_arrow_type
from floeplan.metadata.manifests.entries import STAT_MAPS, Content, EntriesTable, Status, partition_column
from floeplan.metadata.manifests.new_entries import ENTRY_TYPES, new_entries
from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.statistics import Side, comparable, decode_bound, usable_statistics
from floeplan.partition.transforms import from_physical
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import Bound
from floeplan.schemas import fields_by_id
from floeplan.vectors import Ints, Mask
from floeplan.write.parquet_file import RowGroupMetrics
from floeplan.write.partitioning import FilePartition
from floeplan.write.target import MetricsMode, MetricsModes

_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """Metrics by field id; bounds in Iceberg's single-value serialization."""

    column_sizes: dict[int, int] = field(default_factory=dict)
    value_counts: dict[int, int] = field(default_factory=dict)
    null_value_counts: dict[int, int] = field(default_factory=dict)
    nan_value_counts: dict[int, int] = field(default_factory=dict)
    lower_bounds: dict[int, bytes] = field(default_factory=dict)
    upper_bounds: dict[int, bytes] = field(default_factory=dict)

    def maps(self) -> dict[str, dict[int, Any]]:
        """The metrics by their field names in a manifest entry."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


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
        type_ = fields_by_id(schema)[field_id].field_type if field_id in fields_by_id(schema) else None
        if isinstance(type_, PrimitiveType):
            _add(metrics, footer, leaf, _Column(field_id, type_, modes.of(field_id), groups))
    return metrics


@dataclass(frozen=True, slots=True)
class _Column:
    field_id: int
    type: PrimitiveType
    mode: MetricsMode
    groups: Sequence[RowGroupMetrics]

    @property
    def is_float(self) -> bool:
        """Whether the column may have NaN."""
        return isinstance(self.type, FloatType | DoubleType)

    def nulls(self, in_footer: Ints) -> Ints:
        """Nulls in each row group, -1 where unknown."""
        seen = [group.null_counts.get(self.field_id, -1) for group in self.groups]
        return np.array(seen, dtype=np.int64) if seen else in_footer

    def nans(self, groups: int) -> Ints:
        """NaN in each row group, -1 where unknown."""
        if not self.is_float:
            return np.zeros(groups, dtype=np.int64)
        seen = [group.nan_counts.get(self.field_id, -1) for group in self.groups]
        return np.array(seen or [-1] * groups, dtype=np.int64)


def _add(metrics: FileMetrics, footer: ParquetFooter, leaf: LeafColumn, column: _Column) -> None:
    chunks, key = footer.chunks(leaf), column.field_id
    if not column.mode.counts:
        return
    metrics.column_sizes[key] = int(chunks.total_compressed_size.sum())
    if leaf.max_rep:
        return
    usable = usable_statistics(footer, chunks)
    nulls = column.nulls(np.zeros_like(chunks.num_values) if leaf.max_def == 0 else usable.null_count)
    nans = column.nans(footer.num_row_groups)
    metrics.value_counts[key] = int(chunks.num_values.sum())
    if (nulls >= 0).all():
        metrics.null_value_counts[key] = int(nulls.sum())
    if column.is_float and (nans >= 0).all():
        metrics.nan_value_counts[key] = int(nans.sum())
    if not column.mode.bounds or not comparable(leaf, column.type):
        return
    # Row groups that may have values other than null and NaN.
    ordinary = (nulls < 0) | (chunks.num_values > nulls + np.maximum(nans, 0))
    for side, raw, found in (
        (Side.LOWER, usable.lower, metrics.lower_bounds),
        (Side.UPPER, usable.upper, metrics.upper_bounds),
    ):
        value = _reduced(column, side, decode_bound(leaf, column.type, raw, side), ordinary)
        bound = None if value is None else single_value(column.type, value, side, column.mode.width)
        if bound is not None:
            found[key] = bound


def _reduced(column: _Column, side: Side, bound: Bound, ordinary: Mask) -> Any:
    """The minimum or maximum of the row groups' bounds; ``None`` unless every row group with values has one."""
    at = 0 if side is Side.LOWER else 1
    seen = [group.long_bounds[column.field_id][at] for group in column.groups if column.field_id in group.long_bounds]
    covered = bound.valid.copy()
    for number, group in enumerate(column.groups):
        covered[number] |= column.field_id in group.long_bounds
    if not (covered | ~ordinary).all():
        return None
    values = bound.values if isinstance(bound.values, pa.Array) else pa.array(bound.values)
    values = values.filter(pa.array(bound.valid & ordinary))
    if len(values):
        extreme = (pc.min if side is Side.LOWER else pc.max)(values).as_py()
        seen.append(from_physical(column.type, extreme))
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
            return bytes(value) if width is None or len(value) <= width else _cut_bytes(value, width, side)
        case FloatType() | DoubleType() if value == 0:
            return to_bytes(type_, -0.0 if side is Side.LOWER else 0.0)
        case DecimalType():
            return to_bytes(type_, value)
    return value if isinstance(value, bytes) else to_bytes(type_, value)


def _cut_text(value: str, width: int, side: Side) -> str | None:
    kept = value[:width]
    if side is Side.LOWER:
        return kept
    for at in range(len(kept) - 1, -1, -1):
        point = ord(kept[at]) + 1
        point = _SURROGATES.stop if point in _SURROGATES else point
        if point <= _LAST_CODE_POINT:
            return kept[:at] + chr(point)
    return None


def _cut_bytes(value: bytes, width: int, side: Side) -> bytes | None:
    kept = value[:width]
    if side is Side.LOWER:
        return kept
    raisable = kept.rstrip(b"\xff")
    return raisable[:-1] + bytes([raisable[-1] + 1]) if raisable else None


# Converts written files to a columnar ``EntriesTable`` of manifest entries.


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

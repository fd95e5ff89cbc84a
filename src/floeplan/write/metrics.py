"""The manifest entry of a written file, with its column metrics.

Sizes and counts come from the Parquet footer, or from the writer where the footer lacks them or has them wrong
(``RowGroupMetrics``). Bounds are the minimum and maximum over row groups, without NaN, truncated to the table's metrics
mode: a lower bound is cut; an upper bound is cut and its last character incremented, and left out if none can be.
Floating-point zeros become -0.0 in lower and +0.0 in upper bounds. Columns inside of lists and maps have only a size.

Fail-safe: if one row group with values has no bound, neither does the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
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
from floeplan.opaque_types import is_variant
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
from floeplan.write.target import MetricsModes
from floeplan.write.variant_bounds import merged_bounds, serialized

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
    return metrics_of_files(footer, [footer.num_row_groups], schema, modes, groups, leaves)[0]


def metrics_of_files(
    footer: ParquetFooter,
    group_counts: Sequence[int],
    schema: Schema,
    modes: MetricsModes,
    groups: Sequence[RowGroupMetrics] = (),
    leaves: Mapping[int, LeafColumn] | None = None,
) -> list[FileMetrics]:
    """The metrics of files of one schema. For small files, this costs a tenth of computing them file by file.

    Args:
        footer: The joined footers of the files (``join_footers``).
        group_counts: The number of row groups of each file.
        schema: The table's schema; columns that it does not have are left out.
        modes: The metrics mode of each column.
        groups: The writer's metrics of each row group; empty for files of other writers.
        leaves: The leaf for each field id; the footer's own mapping by default.
    """
    files = [FileMetrics() for _ in group_counts]
    stops = np.cumsum(group_counts, dtype=np.int64)
    file_of_group = np.repeat(np.arange(len(files)), group_counts).tolist()

    def totals(numbers: Ints) -> list[int | None]:
        """The sum over the row groups of each file; ``None`` where one is unknown, which is negative."""
        sums = np.diff(np.append(0, np.cumsum(numbers))[stops], prepend=0).tolist()
        unknown = {file_of_group[at] for at in np.flatnonzero(numbers < 0).tolist()}
        return [None if file in unknown else total for file, total in enumerate(sums)]

    def record(name: str, field_id: int, values: Iterable[int | bytes | None]) -> None:
        for file, value in zip(files, values, strict=True):
            if value is not None:
                getattr(file, name)[field_id] = value

    for field_id, leaf in (footer.leaf_by_id if leaves is None else leaves).items():
        field, mode = fields_by_id(schema).get(field_id), modes.of(field_id)
        if field is None or not isinstance(field.field_type, PrimitiveType) or not mode.counts:
            continue
        type_, chunks = field.field_type, footer.chunks(leaf)
        record("column_sizes", field_id, totals(chunks.total_compressed_size))
        if leaf.max_rep:
            continue
        # Nulls and NaN in each row group, by the writer or else by the footer; -1 where unknown.
        usable = usable_statistics(footer, chunks)
        nulls = np.zeros_like(chunks.num_values) if leaf.max_def == 0 else usable.null_count
        if groups:
            nulls = np.array([group.null_counts.get(field_id, -1) for group in groups], dtype=np.int64)
        record("value_counts", field_id, totals(chunks.num_values))
        record("null_value_counts", field_id, totals(nulls))
        nans = np.zeros_like(nulls)
        if isinstance(type_, FloatType | DoubleType):
            nans = np.full_like(nulls, -1)
            if groups:
                nans = np.array([group.nan_counts.get(field_id, -1) for group in groups], dtype=np.int64)
            record("nan_value_counts", field_id, totals(nans))
        if not mode.bounds or not comparable(leaf, type_):
            continue
        # Row groups that may have values other than null and NaN.
        ordinary = (nulls < 0) | (chunks.num_values > nulls + np.maximum(nans, 0))
        long_values = [(group, one.long_bounds.get(field_id)) for group, one in enumerate(groups)]
        for at, side in enumerate((Side.LOWER, Side.UPPER)):
            known = {group: values[at] for group, values in long_values if values is not None}
            bound = decode_bound(leaf, type_, (usable.lower, usable.upper)[at], side)
            known |= _known_bounds(type_, bound, ordinary)
            extremes = _extremes(side, known, np.flatnonzero(ordinary).tolist(), file_of_group)
            written = {file: single_value(type_, value, side, mode.width) for file, value in extremes.items()}
            record(f"{side}_bounds", field_id, map(written.get, range(len(files))))
    for field in schema.fields:
        mode = modes.of(field.field_id)
        if is_variant(field.field_type) and mode.bounds and all(field.field_id in group.variants for group in groups):
            made = [
                _variant_bounds(groups[start:stop], field.field_id, mode.width) for start, stop in pairwise([0, *stops])
            ]
            for at, side in enumerate(Side):
                record(f"{side}_bounds", field.field_id, [both and both[at] for both in made])
    return files


def _variant_bounds(groups: Sequence[RowGroupMetrics], field_id: int, width: int | None) -> tuple[bytes, bytes] | None:
    bounds = merged_bounds(group.variants[field_id] for group in groups)
    return serialized(
        bounds, lambda text, side: text if width is None or len(text) <= width else _cut_text(text, width, side)
    )


def _known_bounds(type_: PrimitiveType, bound: Bound, ordinary: Mask) -> dict[int, Any]:
    """The canonical values of the bounds that row groups have, by row group."""
    valid = bound.valid & ordinary
    if isinstance(bound.values, np.ndarray) and bound.values.dtype.kind == "f":
        valid &= ~np.isnan(bound.values)  # the bound of some writers when any value is NaN
    chosen = np.flatnonzero(valid)
    values = bound.values.take(pa.array(chosen) if isinstance(bound.values, pa.Array) else chosen)
    return {group: from_physical(type_, value) for group, value in zip(chosen.tolist(), values.tolist(), strict=True)}


def _extremes(
    side: Side, known: Mapping[int, Any], ordinary: Iterable[int], file_of_group: Sequence[int]
) -> dict[int, Any]:
    """The minimum or maximum of each file of which every row group with values has one."""
    choose = min if side is Side.LOWER else max
    found: dict[int, Any] = {}
    unknown = set()
    for group in ordinary:
        file = file_of_group[group]
        if group in known:
            found[file] = choose(found[file], known[group]) if file in found else known[group]
        else:
            unknown.add(file)
    return {file: value for file, value in found.items() if file not in unknown}


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
        columns[name] = _map_array(name, [file.metrics for file in files])
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


def _map_array(name: str, metrics: Sequence[FileMetrics | None]) -> pa.Array:
    """A map of each file by field id; not made of a tuple per value, which the garbage collector would look at."""
    maps = [{} if one is None else getattr(one, name) for one in metrics]
    type_ = ENTRY_TYPES[name]
    keys = [key for one in maps for key in sorted(one)]
    values = [one[key] for one in maps for key in sorted(one)]
    pairs = [pa.array(keys, type_.value_type[0].type), pa.array(values, type_.value_type[1].type)]
    items = pa.StructArray.from_arrays(pairs, fields=list(type_.value_type))
    offsets = pa.array(np.cumsum([0, *map(len, maps)]), pa.int64())
    absent = pa.array([one is None for one in metrics], pa.bool_())
    return pa.LargeListArray.from_arrays(offsets, items, type=type_, mask=absent)


def remove_written_files(entries: EntriesTable | None, files: TableFiles) -> None:
    """Remove written files that will not be committed; a file that cannot be removed remains as an orphan."""
    if entries is not None:
        files.remove(entries.path.to_pylist())

"""The statistics of a data file as its manifest entry states them.

Sizes and counts come from the Parquet footer; what it does not tell, or not right, from the writer. Bounds are the
smallest and largest of the row groups' bounds without NaN, cut to the width the table wants: a lower bound is cut, an
upper bound is cut and raised in its last place, skipping what is no character, and left out when nothing is above it.
Zeros of floating point are widened to -0.0 and +0.0. Of columns inside lists and maps only the size is stated.

Fail-safe: a row group whose values have no bounds leaves the file without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, DecimalType, DoubleType, FloatType, PrimitiveType, StringType

from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.values import Side, comparable, decode_bound, usable_statistics
from floeplan.partition.transforms import from_physical
from floeplan.predicate.stats import Bound
from floeplan.schemas import fields_by_id
from floeplan.write.options import MetricsMode, MetricsModes
from floeplan.write.parquet_file import RowGroupMetrics

Counts: TypeAlias = npt.NDArray[np.int64]

_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """Statistics by field id; bounds in Iceberg's single-value form."""

    column_sizes: dict[int, int] = field(default_factory=dict)
    value_counts: dict[int, int] = field(default_factory=dict)
    null_value_counts: dict[int, int] = field(default_factory=dict)
    nan_value_counts: dict[int, int] = field(default_factory=dict)
    lower_bounds: dict[int, bytes] = field(default_factory=dict)
    upper_bounds: dict[int, bytes] = field(default_factory=dict)

    def maps(self) -> dict[str, dict[int, Any]]:
        """By the names of the columns of entries."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def file_metrics(
    footer: ParquetFooter,
    schema: Schema,
    modes: MetricsModes,
    groups: Sequence[RowGroupMetrics] = (),
    leaves: Mapping[int, LeafColumn] | None = None,
) -> FileMetrics:
    """The statistics of a file.

    Args:
        footer: The file's footer.
        schema: The table's schema; columns it does not have are left out.
        modes: What the table wants of each column.
        groups: What the writer saw of each row group; nothing for files of others.
        leaves: The file's leaf for each field id; the footer's own mapping when not given.
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
        """Whether NaN has to be thought of."""
        return isinstance(self.type, FloatType | DoubleType)

    def nulls(self, claimed: Counts) -> Counts:
        """Nulls in each row group, -1 where that is not known."""
        seen = [group.null_counts.get(self.field_id, -1) for group in self.groups]
        return np.array(seen, dtype=np.int64) if seen else claimed

    def nans(self, groups: int) -> Counts:
        """NaN in each row group, -1 where nobody counted."""
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
    claims = usable_statistics(footer, chunks)
    nulls = column.nulls(np.zeros_like(chunks.num_values) if leaf.max_def == 0 else claims.null_count)
    nans = column.nans(footer.num_row_groups)
    metrics.value_counts[key] = int(chunks.num_values.sum())
    if (nulls >= 0).all():
        metrics.null_value_counts[key] = int(nulls.sum())
    if column.is_float and (nans >= 0).all():
        metrics.nan_value_counts[key] = int(nans.sum())
    if not column.mode.bounds or not comparable(leaf, column.type):
        return
    ordinary = (nulls < 0) | (chunks.num_values > nulls + np.maximum(nans, 0))
    for side, raw, found in (
        (Side.LOWER, claims.lower, metrics.lower_bounds),
        (Side.UPPER, claims.upper, metrics.upper_bounds),
    ):
        value = _reduced(column, side, decode_bound(leaf, column.type, raw, side), ordinary)
        bound = None if value is None else single_value(column.type, value, side, column.mode.width)
        if bound is not None:
            found[key] = bound


def _reduced(column: _Column, side: Side, bound: Bound, ordinary: npt.NDArray[np.bool_]) -> Any:
    """The smallest or largest of the row groups' bounds; ``None`` unless every row group with values has one."""
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
    """A canonical value as a bound: cut where too wide, widened where zeros differ; ``None`` if there is none."""
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

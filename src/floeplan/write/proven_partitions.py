"""Partition values of existing files, proven by their statistics or taken from their paths.

A partition field has one value for a whole file if its transform maps both bounds to it and the file has no nulls, or
if all rows are null. ``name=value`` folders fill in where statistics prove nothing, and must not contradict them.

Fail-safe: an unproven value, a contradiction, and a folder whose value cannot be parsed as the field's type are errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import unquote_plus

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.transforms import HourTransform, IdentityTransform, MonthTransform, YearTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
)

from floeplan.errors import UnsupportedError
from floeplan.metadata.manifests.assemble import partition_arrow_type
from floeplan.metadata.manifests.entries import EntriesTable, partition_column
from floeplan.metadata.manifests.stats import file_stats
from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.statistics import Side
from floeplan.partition.fields import BoundField
from floeplan.partition.recover import Obstacle, Recovered, recover
from floeplan.predicate.ir import Column
from floeplan.schemas import fields_by_id
from floeplan.write.metrics import FileMetrics, file_metrics, single_value
from floeplan.write.options import FULL, MetricsModes
from floeplan.write.target import WriteTarget

_WHY = {
    Obstacle.UNKNOWN_TRANSFORM: "its transform is unknown",
    Obstacle.MISSING_STATS: "the file has no bounds for it",
    Obstacle.NULLS: "it may have nulls",
    Obstacle.NAN: "it may have NaN",
    Obstacle.BUCKET: "only a single value proves a bucket",
    Obstacle.SPANS: "its values span several partitions",
    Obstacle.TRUNCATED: "its bounds are truncated",
    Obstacle.OUT_OF_RANGE: "the partition value is out of the range of its type",
}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An existing file: its footer, and its leaf for each field id of the table."""

    path: str
    footer: ParquetFooter
    leaves: Mapping[int, LeafColumn]


def with_proven_partitions(
    entries: EntriesTable, files: Sequence[SourceFile], target: WriteTarget, hive: bool
) -> EntriesTable:
    """Return the entries with their partition tuples in the target's spec.

    Raises:
        UnsupportedError: A partition value is not proven, or path and statistics contradict each other.
    """
    table = entries.table
    for field in target.spec.fields:
        if field.is_void or not files:
            continue
        proven = recover(field, _statistics(field, files, target.schema), len(files))
        values = [_value(field, file, proven, row, hive) for row, file in enumerate(files)]
        name = partition_column(field.column.field_id)
        column = pa.array(values, partition_arrow_type(field.column.type))
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return EntriesTable(table, entries.partition_types)


def _statistics(field: BoundField, files: Sequence[SourceFile], schema: Schema) -> Any:
    """The files' statistics of the source column of a field; ``None`` if the table no longer has it."""
    source = fields_by_id(schema).get(field.source_id)
    if source is None or not isinstance(source.field_type, PrimitiveType):
        return None
    found = [_metrics(field.source_id, source.field_type, file, schema) for file in files]
    key = field.source_id
    columns = {
        "record_count": pa.array([file.footer.num_rows for file in files], pa.int64()),
        f"lower.{key}": pa.array([m.lower_bounds.get(key) for m in found], pa.large_binary()),
        f"upper.{key}": pa.array([m.upper_bounds.get(key) for m in found], pa.large_binary()),
        f"null_count.{key}": pa.array([m.null_value_counts.get(key) for m in found], pa.int64()),
        f"nan_count.{key}": pa.array([m.nan_value_counts.get(key) for m in found], pa.int64()),
        f"value_count.{key}": pa.array([m.value_counts.get(key) for m in found], pa.int64()),
    }
    column = Column(key, source.field_type, (source.name,))
    return file_stats(EntriesTable(pa.table(columns), {}), [column]).columns.get(key)


def _metrics(key: int, type_: PrimitiveType, file: SourceFile, schema: Schema) -> FileMetrics:
    """Untruncated metrics of one column; a column that is not in the file is its initial default or null."""
    if key in file.leaves:
        return file_metrics(file.footer, schema, MetricsModes({}, FULL), leaves={key: file.leaves[key]})
    rows, default = file.footer.num_rows, schema.find_field(key).initial_default
    if default is None:
        return FileMetrics(value_counts={key: rows}, null_value_counts={key: rows}, nan_value_counts={key: 0})
    lower, upper = (single_value(type_, default, side, None) for side in (Side.LOWER, Side.UPPER))
    bounds = [{} if bound is None else {key: bound} for bound in (lower, upper)]
    return FileMetrics({}, {key: rows}, {key: 0}, {key: 0}, *bounds)


def _value(field: BoundField, file: SourceFile, proven: Recovered, row: int, hive: bool) -> Any:
    """The partition value of one file, in the vector domain of the field's type."""
    stated = _hive_value(field, file.path) if hive else None
    from_path = field.source_id not in file.leaves and isinstance(field.transform, IdentityTransform)
    if stated is not None and (from_path or not proven.recovered[row]):
        return stated.value
    if not proven.recovered[row]:
        raise _refused(field, file, _WHY[Obstacle(int(proven.obstacle[row]))])
    value = None if proven.is_null[row] else _scalar(proven.values[row])
    if stated is not None and stated.value != value:
        raise _refused(field, file, f"its path has {stated.value!r}, but its statistics have {value!r}")
    return value


def _scalar(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value.item() if isinstance(value, np.generic) else value


def _refused(field: BoundField, file: SourceFile, why: str) -> UnsupportedError:
    name = field.column.path[0]
    return UnsupportedError(
        f"{file.path} cannot be proven to be in one partition: field {name} is {field.transform} of field id "
        f"{field.source_id}, and {why}; append its rows instead",
        context={"file": file.path, "field": name},
    )


# Hive-style folders, in the human-readable form of Iceberg's transforms: days and dates as ``2024-03-01``, hours as
# ``2024-03-01-07``, months as ``2024-03``, years as ``2024``.

_NULLS = ("null", "__HIVE_DEFAULT_PARTITION__")
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class _HiveValue:
    """A value from a path, in the vector domain of the field's type."""

    value: Any


def _hive_value(field: BoundField, path: str) -> _HiveValue | None:
    """The value of a field; ``None`` when no folder has its name."""
    name = field.column.path[0]
    for folder in path.split("/")[:-1]:
        label, equals, text = folder.partition("=")
        if equals and unquote_plus(label) == name:
            if text in _NULLS:
                return _HiveValue(None)
            text = unquote_plus(text)
            try:
                return _HiveValue(_parse(field, text))
            except (ValueError, InvalidOperation):
                raise UnsupportedError(
                    f"the folder {name}={text} of {path} is not a value of type {field.column.type}",
                    context={"file": path, "field": name, "value": text},
                ) from None
    return None


def _parse(field: BoundField, text: str) -> Any:
    match field.transform, field.column.type:
        case YearTransform(), _:
            return int(text) - _EPOCH.year
        case MonthTransform(), _:
            first = date.fromisoformat(f"{text}-01")
            return (first.year - _EPOCH.year) * 12 + first.month - 1
        case HourTransform(), _:
            day, _, hour = text.rpartition("-")
            if not 0 <= int(hour) < 24:
                raise ValueError(text)
            return (date.fromisoformat(day) - _EPOCH).days * 24 + int(hour)
        case _, DateType():
            return (date.fromisoformat(text) - _EPOCH).days
        case _, BooleanType():
            return ("false", "true").index(text)
        case _, IntegerType() | LongType():
            return int(text)
        case _, FloatType() | DoubleType():
            return float(text)
        case _, DecimalType() as type_:
            value = Decimal(text)
            unscaled = value.scaleb(type_.scale)
            if unscaled != int(unscaled):
                raise ValueError(text)
            return int(unscaled) if type_.precision <= 18 else value
        case _, StringType():
            return text
    raise ValueError(text)

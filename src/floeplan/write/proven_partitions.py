"""The partition of files that others wrote, proven by their statistics or stated by their paths.

A field has one value for a whole file when its transform sends every value the file can hold to it: bounds that share
the value with nulls known absent, or a column that is null throughout. What a path states fills in where statistics
prove nothing, and must not contradict what they prove.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from floeplan.parquet.footer.values import Side
from floeplan.partition.fields import BoundField
from floeplan.partition.recover import Obstacle, Recovered, recover
from floeplan.predicate.ir import Column
from floeplan.schemas import fields_by_id
from floeplan.write.metrics import FileMetrics, file_metrics, single_value
from floeplan.write.options import FULL, MetricsModes
from floeplan.write.target import WriteTarget

# Partition values out of ``name=value`` folders.
#
# A folder counts for the partition field of its name. Values are read as they are written for people: days and dates as
# ``2024-03-01``, hours as ``2024-03-01-07``, months as ``2024-03``, years as ``2024``.
#
# Fail-safe: a folder whose value cannot be read as the field's type is an error, never another value.


_NULLS = ("null", "__HIVE_DEFAULT_PARTITION__")
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class HiveValue:
    """What a path says of a field, in the vector domain of its type."""

    value: Any


def hive_value(field: BoundField, path: str) -> HiveValue | None:
    """The value of a field, or ``None`` when no folder has its name."""
    name = field.column.path[0]
    for folder in path.split("/")[:-1]:
        label, equals, text = folder.partition("=")
        if equals and unquote_plus(label) == name:
            return HiveValue(None if text in _NULLS else _read(field, unquote_plus(text), path))
    return None


def _read(field: BoundField, text: str, path: str) -> Any:
    try:
        return _reader(field)(text)
    except (ValueError, InvalidOperation):
        name = field.column.path[0]
        raise UnsupportedError(
            f"the folder {name}={text} of {path} is no value of type {field.column.type}",
            context={"file": path, "field": name, "value": text},
        ) from None


def _reader(field: BoundField) -> Callable[[str], Any]:
    match field.transform, field.column.type:
        case YearTransform(), _:
            return lambda text: int(text) - _EPOCH.year
        case MonthTransform(), _:
            return _months
        case HourTransform(), _:
            return _hours
        case _, DateType():
            return _days
        case _, BooleanType():
            return lambda text: ("false", "true").index(text)
        case _, IntegerType() | LongType():
            return int
        case _, FloatType() | DoubleType():
            return float
        case _, DecimalType() as type_:
            return lambda text: _decimal(type_, text)
        case _, StringType():
            return str
    return _unreadable


def _unreadable(text: str) -> Any:
    raise ValueError(text)


def _days(text: str) -> int:
    return (date.fromisoformat(text) - _EPOCH).days


def _months(text: str) -> int:
    first = date.fromisoformat(f"{text}-01")
    return (first.year - _EPOCH.year) * 12 + first.month - 1


def _hours(text: str) -> int:
    day, _, hour = text.rpartition("-")
    if not 0 <= int(hour) < 24:
        raise ValueError(text)
    return _days(day) * 24 + int(hour)


def _decimal(type_: DecimalType, text: str) -> Any:
    value = Decimal(text)
    unscaled = value.scaleb(type_.scale)
    if unscaled != int(unscaled):
        raise ValueError(text)
    return int(unscaled) if type_.precision <= 18 else value


# ---

_WHY = {
    Obstacle.UNKNOWN_TRANSFORM: "nothing is known of its transform",
    Obstacle.MISSING_STATS: "the file has no bounds of it",
    Obstacle.NULLS: "it may have nulls",
    Obstacle.NAN: "it may have NaN",
    Obstacle.BUCKET: "a bucket is proven by a single value only",
    Obstacle.SPANS: "its values span several partitions",
    Obstacle.TRUNCATED: "its bounds are cut off",
    Obstacle.OUT_OF_RANGE: "the partition value is beyond its type",
}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to import: its footer, and its leaf for each field id of the table."""

    path: str
    footer: ParquetFooter
    leaves: Mapping[int, LeafColumn]


def with_proven_partitions(
    entries: EntriesTable, files: Sequence[SourceFile], target: WriteTarget, hive: bool
) -> EntriesTable:
    """The entries with the tuple of the target's spec.

    Raises:
        UnsupportedError: A partition value is not proven, or two sources contradict each other.
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
    """What the files say of the source of a field; ``None`` where the table no longer has it."""
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
    """Whole bounds of one column; one that the file does not have is its default, or null, in every row."""
    if key in file.leaves:
        return file_metrics(file.footer, schema, MetricsModes({}, FULL), leaves={key: file.leaves[key]})
    rows, default = file.footer.num_rows, schema.find_field(key).initial_default
    if default is None:
        return FileMetrics(value_counts={key: rows}, null_value_counts={key: rows}, nan_value_counts={key: 0})
    lower, upper = (single_value(type_, default, side, None) for side in (Side.LOWER, Side.UPPER))
    bounds = [{} if bound is None else {key: bound} for bound in (lower, upper)]
    return FileMetrics({}, {key: rows}, {key: 0}, {key: 0}, *bounds)


def _value(field: BoundField, file: SourceFile, proven: Recovered, row: int, hive: bool) -> Any:
    """The value of one file in the vector domain of the field's type."""
    stated = hive_value(field, file.path) if hive else None
    from_path = field.source_id not in file.leaves and isinstance(field.transform, IdentityTransform)
    if stated is not None and (from_path or not proven.recovered[row]):
        return stated.value
    if not proven.recovered[row]:
        raise _refused(field, file, _WHY[Obstacle(int(proven.obstacle[row]))])
    value = None if proven.is_null[row] else _scalar(proven.values[row])
    if stated is not None and stated.value != value:
        raise _refused(field, file, f"its path says {stated.value!r} and its statistics {value!r}")
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

"""Registers existing Parquet files as data files of a table, without reading or rewriting their rows.

The partition of a file must be proven: a partition field has one value for a whole file if its transform maps both
bounds to it and the file has no nulls, or if all rows are null. If the caller trusts them, ``name=value`` folders of
the path fill in where statistics prove nothing; they must not contradict the statistics. Columns are resolved by the
file's field ids, or by the table's name mapping if the file has none.

Fail-safe: a file whose partition is not proven, whose columns may not be those of the table, or which the table already
has is an error that names it, and no file is registered.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import unquote_plus

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.transforms import HourTransform, IdentityTransform, MonthTransform, YearTransform

from floeplan.errors import BadInputError, TypeMismatchError, UnsupportedError
from floeplan.format4 import FORMAT
from floeplan.metadata.files import local_path
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns, partition_column
from floeplan.metadata.manifests.stats import file_stats
from floeplan.metadata.manifests.values import partition_arrow_type
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.schema import LeafColumn
from floeplan.parquet.footer.statistics import Side
from floeplan.parquet.source import open_source
from floeplan.partition.fields import BoundField
from floeplan.partition.key import PartitionKey
from floeplan.partition.recover import Obstacle, Recovered, recover
from floeplan.predicate.ir import Column
from floeplan.schemas import fields_by_id, mapped_field_ids
from floeplan.snapshot.reader import SnapshotReader
from floeplan.write.metrics import FileEntry, FileMetrics, added_entries, file_metrics, single_value
from floeplan.write.partitioning import FilePartition
from floeplan.write.target import FULL, MetricsModes, WriteTarget

_THREADS = 16
_HIVE_NULLS = ("null", "__HIVE_DEFAULT_PARTITION__")
_EPOCH = date(1970, 1, 1)
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
class _SourceFile:
    """An existing file: its footer, and its leaf for each field id of the table."""

    path: str
    footer: ParquetFooter
    leaves: Mapping[int, LeafColumn]


def existing_file_entries(
    table: Table, paths: Iterable[str | os.PathLike[str]], *, spec_id: int | None = None, hive_partitions: bool = False
) -> EntriesTable:
    """Manifest entries for existing Parquet files, in the given order.

    Args:
        table: The table.
        paths: Their locations.
        spec_id: The spec they are partitioned by; the table's default spec by default.
        hive_partitions: Take partition values from ``name=value`` folders if statistics do not prove them, and the
            values of identity fields for columns that the files do not have.
    """
    target = WriteTarget.of(table, spec_id=spec_id)
    names = [os.fspath(path) for path in paths]
    scheme = "file://" if target.format_version >= FORMAT else ""  # without one, format 4 takes it for a relative path
    locations = [
        path if "://" in path or path.startswith("file:") else scheme + os.path.abspath(path) for path in names
    ]
    _refuse_duplicates(table, locations)
    mapping = table.name_mapping()
    # All names that a field has had, by field id.
    columns: dict[int, set[str]] = {}
    for schema in table.metadata.schemas:
        for field_id in fields_by_id(schema):
            columns.setdefault(field_id, set()).add(schema.find_column_name(field_id) or "")
    with ThreadPoolExecutor(_THREADS, "floeplan-import") as pool:
        files = list(pool.map(lambda path: _open(path, target, mapping, columns, hive_partitions), locations))
    unplaced = FilePartition(PartitionKey(target.spec_id, None), {})
    entries = [
        FileEntry(
            path=file.path,
            partition=unplaced,
            record_count=file.footer.num_rows,
            size=file.footer.file_size,
            metrics=file_metrics(file.footer, target.schema, target.metrics_modes, leaves=file.leaves),
            split_offsets=file.footer.chunks(0).start.tolist() if file.footer.leaves else None,
        )
        for file in files
    ]
    added = added_entries(entries, target.union)
    # Fill in the partition tuples, field by field.
    placed = added.table
    for field in target.spec.fields:
        if field.is_void or not files:
            continue
        proven = recover(field, _statistics(field, files, target.schema), len(files))
        values = [_value(field, file, proven, row, hive_partitions) for row, file in enumerate(files)]
        name = partition_column(field.column.field_id)
        column = pa.array(values, partition_arrow_type(field.column.type))
        placed = placed.set_column(placed.schema.get_field_index(name), name, column)
    return EntriesTable(placed, added.partition_types)


def _refuse_duplicates(table: Table, locations: Sequence[str]) -> None:
    spellings: dict[str, str] = {}
    for location in locations:
        if location in spellings:
            raise BadInputError(f"{location} is listed twice", context={"file": location})
        local = local_path(location)
        known_as = (location,) if local is None else (local, f"file:{local}", f"file://{local}")
        spellings |= dict.fromkeys(known_as, location)
    snapshot = table.current_snapshot()
    if snapshot is None or not locations:
        return
    live = SnapshotReader.open(table, snapshot).entries(None, EntryColumns(frozenset({"file_path"}), partition=False))
    known = live.path.filter(pc.is_in(live.path, pa.array(list(spellings), live.path.type)))
    if len(known):
        found = spellings[known[0].as_py()]
        raise BadInputError(f"{found} is already a file of the table", context={"file": found})


def _open(
    path: str, target: WriteTarget, mapping: NameMapping | None, names: Mapping[int, set[str]], hive: bool
) -> _SourceFile:
    """Read the footer and resolve the file's columns; a file that does not fit the table is an error."""
    footer = read_footer(open_source(path, target.io))
    if footer.has_field_ids:
        # The file's own field ids: each must have had the same name in the table.
        for field_id in fields_by_id(footer.schema):
            name, known = footer.schema.find_column_name(field_id), names.get(field_id, set())
            if name not in known:
                raise UnsupportedError(
                    f"column {name} of {path} has field id {field_id}, which in the table is "
                    f"{' or '.join(sorted(known)) or 'no column'}; the file was written for another table",
                    context={"file": path, "column": name, "field-id": field_id},
                )
        leaves = dict(footer.leaf_by_id)
    else:
        ids = mapped_field_ids(mapping, path)
        found = {leaf: footer.schema.find_column_name(leaf.field_id) or "" for leaf in footer.leaves}
        leaves = {ids[name]: leaf for leaf, name in found.items() if name in ids}
    # Required columns must be in the file, or be the source of an identity partition field.
    constant = {f.source_id for f in target.spec.fields if hive and isinstance(f.transform, IdentityTransform)}
    for field in target.stored_schema.fields:
        must = field.required and field.initial_default is None and isinstance(field.field_type, iceberg.PrimitiveType)
        if must and field.field_id not in leaves and field.field_id not in constant:
            raise BadInputError(
                f"column {field.name} is required, and {path} does not have it",
                context={"file": path, "column": field.name},
            )
    # The types of columns must be the table's, or promote to them by the schema evolution rules.
    for field_id, leaf in leaves.items():
        wanted = fields_by_id(target.schema).get(field_id)
        if wanted is not None and not _reads_as(leaf.type, wanted.field_type):
            raise TypeMismatchError(
                f"column {leaf} of {path} is {leaf.type}, which cannot be read as {wanted.field_type}",
                context={"file": path, "column": str(leaf), "type": str(wanted.field_type), "found": str(leaf.type)},
            )
    return _SourceFile(path, footer, leaves)


def _reads_as(stored: iceberg.PrimitiveType | None, wanted: iceberg.IcebergType) -> bool:
    match stored, wanted:
        case (iceberg.IntegerType(), iceberg.LongType()) | (iceberg.FloatType(), iceberg.DoubleType()):
            return True
        case iceberg.DecimalType(), iceberg.DecimalType():
            return stored.scale == wanted.scale and stored.precision <= wanted.precision
        case iceberg.FixedType(), iceberg.UUIDType():
            return len(stored) == 16
    return stored == wanted


def _statistics(field: BoundField, files: Sequence[_SourceFile], schema: Schema) -> Any:
    """The files' statistics of the source column of a field; ``None`` if the table no longer has it."""
    source = fields_by_id(schema).get(field.source_id)
    if source is None or not isinstance(source.field_type, iceberg.PrimitiveType):
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


def _metrics(key: int, type_: iceberg.PrimitiveType, file: _SourceFile, schema: Schema) -> FileMetrics:
    """Untruncated metrics of one column; a column that is not in the file is its initial default or null."""
    if key in file.leaves:
        return file_metrics(file.footer, schema, MetricsModes({}, FULL), leaves={key: file.leaves[key]})
    rows, default = file.footer.num_rows, schema.find_field(key).initial_default
    if default is None:
        return FileMetrics(value_counts={key: rows}, null_value_counts={key: rows}, nan_value_counts={key: 0})
    lower, upper = (single_value(type_, default, side, None) for side in (Side.LOWER, Side.UPPER))
    bounds = [{} if bound is None else {key: bound} for bound in (lower, upper)]
    return FileMetrics({}, {key: rows}, {key: 0}, {key: 0}, *bounds)


def _value(field: BoundField, file: _SourceFile, proven: Recovered, row: int, hive: bool) -> Any:
    """The partition value of one file, in the vector domain of the field's type."""
    stated = _hive_values(field, file.path) if hive else []
    from_path = field.source_id not in file.leaves and isinstance(field.transform, IdentityTransform)
    if stated and (from_path or not proven.recovered[row]):
        return stated[0]
    if not proven.recovered[row]:
        raise _refused(field, file, _WHY[Obstacle(int(proven.obstacle[row]))])
    value: Any = None if proven.is_null[row] else proven.values[row]
    if isinstance(value, pa.Scalar | np.generic):
        value = value.as_py() if isinstance(value, pa.Scalar) else value.item()
    if stated and stated[0] != value:
        raise _refused(field, file, f"its path has {stated[0]!r}, but its statistics have {value!r}")
    return value


def _refused(field: BoundField, file: _SourceFile, why: str) -> UnsupportedError:
    name = field.column.path[0]
    return UnsupportedError(
        f"{file.path} cannot be proven to be in one partition: field {name} is {field.transform} of field id "
        f"{field.source_id}, and {why}; append its rows instead",
        context={"file": file.path, "field": name},
    )


def _hive_values(field: BoundField, path: str) -> list[Any]:
    """The value of the first folder with the field's name, in the vector domain of its type; empty without one."""
    name = field.column.path[0]
    for folder in path.split("/")[:-1]:
        label, equals, text = folder.partition("=")
        if equals and unquote_plus(label) == name:
            if text in _HIVE_NULLS:
                return [None]
            text = unquote_plus(text)
            try:
                return [_parse(field, text)]
            except (ValueError, InvalidOperation):
                raise UnsupportedError(
                    f"the folder {name}={text} of {path} is not a value of type {field.column.type}",
                    context={"file": path, "field": name, "value": text},
                ) from None
    return []


def _parse(field: BoundField, text: str) -> Any:
    """Parse the human-readable form of Iceberg's transforms.

    Days and dates are ``2024-03-01``, hours ``2024-03-01-07``, months ``2024-03``, years ``2024``.
    """
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
        case _, iceberg.DateType():
            return (date.fromisoformat(text) - _EPOCH).days
        case _, iceberg.BooleanType():
            return ("false", "true").index(text)
        case _, iceberg.IntegerType() | iceberg.LongType():
            return int(text)
        case _, iceberg.FloatType() | iceberg.DoubleType():
            return float(text)
        case _, iceberg.DecimalType() as type_:
            value = Decimal(text)
            unscaled = value.scaleb(type_.scale)
            if unscaled != int(unscaled):
                raise ValueError(text)
            return int(unscaled) if type_.precision <= 18 else value
        case _, iceberg.StringType():
            return text
    raise ValueError(text)

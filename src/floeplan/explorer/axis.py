"""Where files stand in time: the time of their first row, in bins of a calendar unit.

Rule: a file's time is the lower bound of the table's time column, else its partition value on that column. A table
without such a column, or whose files do not tell, has its commits for an axis: sequence numbers in even bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform, YearTransform
from pyiceberg.types import (
    DateType,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

from floeplan.metadata.decoder import Ints, Mask
from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.entry_columns import partition_column
from floeplan.metadata.stats import file_stats
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import Column
from floeplan.predicate.names import leaf_columns

MOST_BINS = 160
NO_TIME = -1

_HOUR, _DAY = 3_600_000_000, 86_400_000_000
_TIMES = (DateType, TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)
_UNITS = {YearTransform: "Y", MonthTransform: "M", DayTransform: "D", HourTransform: "h", IdentityTransform: ""}


@dataclass(frozen=True, slots=True)
class Axis:
    """Bins of files: ``bins`` has a number for every file, ``NO_TIME`` where nothing is known; ``labels`` name them."""

    kind: str
    title: str
    unit: str
    labels: tuple[str, ...]
    bins: Ints


def time_column(metadata: TableMetadata, schema: Schema) -> Column | None:
    """The column that tells time: the source of a time partition, of the newest spec that has one; else the first."""
    newest_first = sorted(metadata.partition_specs, key=lambda spec: spec.spec_id, reverse=True)
    for spec in [metadata.spec(), *newest_first]:
        for field in spec.fields:
            column = _time_field(schema, field.source_id)
            if column is not None:
                return column
    return next((column for field in schema.fields if (column := _time_field(schema, field.field_id))), None)


def file_times(entries: EntriesTable, column: Column, union: UnionPartitionType) -> tuple[Ints, Mask]:
    """Microseconds since 1970 of every file's first row, and where they are known."""
    times, known = np.zeros(len(entries), dtype=np.int64), np.zeros(len(entries), dtype=np.bool_)
    for field in union.fields:
        unit = _UNITS.get(type(field.bound.transform))
        if field.bound.source_id == column.field_id and unit is not None:
            there = entries.valid(partition_column(field.id))
            values = entries.ints(partition_column(field.id), missing=0)[there]
            moments = values.astype(f"datetime64[{unit}]") if unit else _micros(column.type, values)
            times[there] = moments.astype("datetime64[us]").astype(np.int64)
            known |= there
    stats = file_stats(entries, [column]).columns.get(column.field_id)
    if stats is not None and stats.lower is not None:
        valid = stats.lower.valid
        times[valid] = _micros(column.type, np.asarray(stats.lower.values)[valid])
        known |= valid
    return times, known


def axis_of(entries: EntriesTable, column: Column | None, union: UnionPartitionType) -> Axis:
    """The axis of a table's files."""
    if column is not None and len(entries):
        times, known = file_times(entries, column, union)
        if known.any():
            return _calendar(".".join(column.path), times, known, _finest(column, union))
    return _commits(entries.sequence_number)


def _time_field(schema: Schema, field_id: int) -> Column | None:
    column = leaf_columns(schema).get(field_id)
    return column if column is not None and isinstance(column.type, _TIMES) else None


def _micros(type_: PrimitiveType, values: Ints) -> Ints:
    if isinstance(type_, DateType):
        return values * _DAY
    return values // 1000 if isinstance(type_, TimestampNanoType | TimestamptzNanoType) else values


_CALENDAR: tuple[tuple[str, str, int, int], ...] = (
    ("hour", "h", 1, 0),
    ("6 hours", "h", 6, 0),
    ("day", "D", 1, 0),
    ("week", "D", 7, 3),
    ("month", "M", 1, 0),
    ("quarter", "M", 3, 0),
    ("year", "Y", 1, 0),
    ("decade", "Y", 10, 0),
)
"""Name, unit of numpy, how many of them make a bin, and where the first bin begins: weeks begin on Mondays."""


def _finest(column: Column, union: UnionPartitionType) -> int:
    """The first calendar unit worth a bin: none is finer than the finest partition by time."""
    units = {
        _UNITS.get(type(field.bound.transform), "")
        for field in union.fields
        if field.bound.source_id == column.field_id
    }
    known = [at for at, (_, code, many, _) in enumerate(_CALENDAR) if code in units and many == 1]
    return min(known, default=2 if isinstance(column.type, DateType) else 0)


def _calendar(title: str, times: Ints, known: Mask, finest: int) -> Axis:
    """The finest calendar unit in which all files fit."""
    moments = times.astype("datetime64[us]")
    for name, code, many, shift in _CALENDAR[finest:]:
        numbers = (moments.astype(f"datetime64[{code}]").astype(np.int64) + shift) // many
        first, last = int(numbers[known].min()), int(numbers[known].max())
        if last - first < MOST_BINS:
            starts = np.arange(first, last + 1) * many - shift
            return Axis("time", title, name, _labels(starts, code, many), np.where(known, numbers - first, NO_TIME))
    width = (last - first) // MOST_BINS + 1
    starts = np.arange(first, last + 1, width) * many - shift
    bins = np.where(known, (numbers - first) // width, NO_TIME)
    return Axis("time", title, f"{width * many} years", _labels(starts, code, many), bins)


def _labels(starts: Ints, code: str, many: int) -> tuple[str, ...]:
    if code == "M" and many == 3:
        return tuple(f"{1970 + month // 12} Q{month % 12 // 3 + 1}" for month in starts.tolist())
    minutes = ":00" if code == "h" else ""
    return tuple(f"{str(label).replace('T', ' ')}{minutes}" for label in starts.astype(f"datetime64[{code}]"))


def _commits(sequence: Ints) -> Axis:
    """Even bins of sequence numbers."""
    if not len(sequence):
        return Axis("commits", "sequence number", "commit", (), sequence)
    first, last = int(sequence.min()), int(sequence.max())
    width = (last - first) // MOST_BINS + 1
    starts = range(first, last + 1, width)
    unit = "commit" if width == 1 else f"{width} commits"
    return Axis("commits", "sequence number", unit, tuple(map(str, starts)), (sequence - first) // width)

"""The map of a table: lanes of partitions over time; a cell is all files of one lane and time bin.

A lane is a partition of one spec without its time field. If there are too many lanes, neighbours are combined, so that
the map of 400,000 files is as small as that of 4,000.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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

from floeplan.metadata.manifests.entries import EntriesTable, partition_column
from floeplan.metadata.manifests.stats import file_stats
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import Column
from floeplan.predicate.names import leaf_columns
from floeplan.scan.projection import PartitionNames
from floeplan.vectors import Ints, Mask

# The time axis. The time of a file is the lower bound of the table's time column, else its partition value on that
# column. A table without either uses data sequence numbers.

MOST_BINS = 160
NO_TIME = -1

_HOUR, _DAY = 3_600_000_000, 86_400_000_000
_TIMES = (DateType, TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)
_UNITS = {YearTransform: "Y", MonthTransform: "M", DayTransform: "D", HourTransform: "h", IdentityTransform: ""}


@dataclass(frozen=True, slots=True)
class Axis:
    """The bin of each file in ``bins``, ``NO_TIME`` if unknown, and the ``labels`` of the bins."""

    kind: str
    title: str
    unit: str
    labels: tuple[str, ...]
    bins: Ints


def time_column(metadata: TableMetadata, schema: Schema) -> Column | None:
    """The source column of a time partition field, of the newest spec that has one; else the first time column."""
    newest_first = sorted(metadata.partition_specs, key=lambda spec: spec.spec_id, reverse=True)
    for spec in [metadata.spec(), *newest_first]:
        for field in spec.fields:
            column = _time_field(schema, field.source_id)
            if column is not None:
                return column
    return next((column for field in schema.fields if (column := _time_field(schema, field.field_id))), None)


def file_times(entries: EntriesTable, column: Column, union: UnionPartitionType) -> tuple[Ints, Mask]:
    """The lower bound of the time of each file in microseconds since 1970, and where it is known."""
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
"""Name, NumPy unit, units per bin, and shift of the first bin: weeks begin on Mondays."""


def _finest(column: Column, union: UnionPartitionType) -> int:
    """The finest calendar unit to use: that of the finest time partition field."""
    units = {
        _UNITS.get(type(field.bound.transform), "")
        for field in union.fields
        if field.bound.source_id == column.field_id
    }
    known = [at for at, (_, code, many, _) in enumerate(_CALENDAR) if code in units and many == 1]
    return min(known, default=2 if isinstance(column.type, DateType) else 0)


def _calendar(title: str, times: Ints, known: Mask, finest: int) -> Axis:
    """An axis of the finest calendar unit with at most ``MOST_BINS`` bins."""
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


MOST_LANES = 48


@dataclass(frozen=True, slots=True)
class Lane:
    """Partitions of one spec that share a row of the map."""

    label: str
    spec_id: int
    partitions: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"label": self.label, "spec_id": self.spec_id, "partitions": self.partitions}


@dataclass(frozen=True, slots=True)
class TableMap:
    """Lanes, bins and non-empty cells; ``cell_of`` is the cell of each file."""

    axis: Axis
    lanes: tuple[Lane, ...]
    cell_lane: Ints
    cell_bin: Ints
    cell_of: Ints
    sums: Mapping[str, Ints]

    def sum_by_cell(self, values: Ints) -> Ints:
        """Sum a number per file by cell."""
        return _sums(self.cell_of, len(self.cell_lane), values)

    def files_in(self, lane: int, time_bin: int) -> Ints:
        """The files of one cell."""
        cell = np.flatnonzero((self.cell_lane == lane) & (self.cell_bin == time_bin))
        return np.flatnonzero(np.isin(self.cell_of, cell))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as columns."""
        axis = self.axis
        return {
            "axis": {"kind": axis.kind, "title": axis.title, "unit": axis.unit, "labels": list(axis.labels)},
            "lanes": [lane.to_dict() for lane in self.lanes],
            "cells": {"lane": self.cell_lane.tolist(), "bin": self.cell_bin.tolist()}
            | {name: values.tolist() for name, values in self.sums.items()},
            "untimed": int(np.count_nonzero(axis.bins == NO_TIME)),
        }


def draw_map(
    entries: EntriesTable, union: UnionPartitionType, axis: Axis, time_id: int | None, deletes: Ints
) -> TableMap:
    """The map of some files.

    Args:
        entries: The files, with their partition tuples.
        union: The partition fields of the table.
        axis: The time bins of the files.
        time_id: The time column, whose partition fields are left out of the lanes.
        deletes: Delete files that apply to each file.
    """
    lane_of, lanes = _lanes(entries, union, time_id)
    width = len(axis.labels) + 1
    keys, cell_of = np.unique(lane_of * width + axis.bins + 1, return_inverse=True)
    numbers = {
        "files": np.ones(len(entries), dtype=np.int64),
        "bytes": entries.ints("file_size_in_bytes"),
        "rows": entries.record_count,
        "deletes": deletes,
    }
    sums = {name: _sums(cell_of, len(keys), values) for name, values in numbers.items()}
    return TableMap(axis, lanes, keys // width, keys % width - 1, cell_of, sums)


def _sums(cell_of: Ints, cells: int, values: Ints) -> Ints:
    return np.bincount(cell_of, weights=values, minlength=cells).astype(np.int64)


def _lanes(entries: EntriesTable, union: UnionPartitionType, time_id: int | None) -> tuple[Ints, tuple[Lane, ...]]:
    """The lane of each file: partitions ordered by spec and values, combined if there are too many."""
    if not len(entries):
        return np.zeros(0, dtype=np.int64), ()
    apart = {field.id for field in union.fields if field.bound.source_id != time_id}
    columns = {key: values for key, values in entries.partition_columns().items() if key in apart}
    codes = partition_codes(union, entries.spec_id, columns)
    first = np.zeros(int(codes.max()) + 1, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    samples = entries.take(first)
    order = _order(samples, sorted(columns))
    specs = samples.spec_id[order]
    lane_of_rank = _fold(specs)
    lane_of_code = np.zeros(len(order), dtype=np.int64)
    lane_of_code[order] = lane_of_rank
    starts = np.flatnonzero(np.diff(lane_of_rank, prepend=-1))
    ends = np.append(starts[1:], len(order)) - 1
    labels = _Labels(samples, union, apart)
    lanes = tuple(
        Lane(labels.between(int(order[low]), int(order[high])), int(specs[low]), int(high - low + 1))
        for low, high in zip(starts, ends, strict=True)
    )
    return lane_of_code[codes], lanes


def _order(samples: EntriesTable, keys: list[int]) -> Ints:
    """Ranks by spec, then by partition values."""
    usable = [partition_column(key) for key in keys if not pa.types.is_null(samples.array(partition_column(key)).type)]
    table = pa.table({name: samples.array(name) for name in ["spec_id", *usable]})
    indices = pc.sort_indices(table, [(name, "ascending") for name in table.column_names])
    return np.asarray(indices.to_numpy()).astype(np.int64)


def _fold(specs: Ints) -> Ints:
    """Assign ordered partitions to lanes; each spec gets a proportional number of lanes, at least one."""
    found, counts = np.unique(specs, return_counts=True)
    total, lanes, start = len(specs), np.zeros(len(specs), dtype=np.int64), 0
    for spec_id, count in zip(found.tolist(), counts.tolist(), strict=True):
        room = count if total <= MOST_LANES else max(1, min(count, MOST_LANES * count // total))
        lanes[specs == spec_id] = start + np.arange(count) * room // count
        start += room
    return lanes


@dataclass(frozen=True, slots=True)
class _Labels:
    """Labels of lanes: a partition without its time field, or a range of partitions."""

    samples: EntriesTable
    union: UnionPartitionType
    apart: set[int]

    def between(self, low: int, high: int) -> str:
        if low == high:
            return self._label(low)
        return f"{self._label(low)} … {self._label(high)}"

    def _label(self, row: int) -> str:
        entry = self.samples.table.slice(row, 1).to_pylist()[0]
        spec = self.union.spec(entry["spec_id"])
        shown = PartitionNames(self.union, self.samples.partition_types).readable(spec.spec_id, entry)
        names = [field.column.path[0] for field in spec.fields if field.column.field_id in self.apart]
        own = [f"{name}={shown[name]}" for name in names]
        return ", ".join(own) or ("unpartitioned" if spec.unpartitioned else "time only")

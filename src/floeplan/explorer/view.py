"""The current snapshot of a table with the manifest entries of its files, read once for all pages; and their map.

Only metadata is read. A view is immutable; a newer snapshot is another view.

The map draws lanes of partitions over time; a cell is all files of one lane and time bin. A lane is a partition of one
spec without its time field. If there are too many lanes, neighbours are combined, so that the map of 400,000 files is
as small as that of 4,000. The time of a file is the lower bound of the table's time column, else its partition value on
that column. A table without either uses data sequence numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table import Table
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

from floeplan.errors import UnknownFileError
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns, partition_column
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.metadata.manifests.stats import file_stats
from floeplan.partition.fields import SourceTypes, source_types
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import Column
from floeplan.predicate.names import leaf_columns
from floeplan.scan.projection import PartitionNames
from floeplan.snapshot.passes import ScanDeletes, match
from floeplan.snapshot.reader import ScanTarget, SnapshotReader, resolve_target
from floeplan.vectors import Ints, Mask

MOST_BINS = 160
MOST_LANES = 48
NO_TIME = -1

_NAMES = frozenset({"snapshot_id", "key_metadata", "first_row_id", "sort_order_id"})
_FILE = ("file_path", "file_format", "spec_id", "record_count", "file_size_in_bytes", "sequence_number", "snapshot_id")
_DAY = 86_400_000_000
_TIMES = (DateType, TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)
_UNITS = {YearTransform: "Y", MonthTransform: "M", DayTransform: "D", HourTransform: "h", IdentityTransform: ""}
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


@dataclass(frozen=True)
class TableView:
    """The files of a table's current snapshot, and the map of them."""

    target: ScanTarget
    reader: SnapshotReader
    sources: SourceTypes
    time: Column | None
    deletes: ScanDeletes
    files: EntriesTable
    delete_counts: Ints

    @classmethod
    def of(cls, table: Table) -> TableView:
        """Read the metadata of a table."""
        target = resolve_target(table)
        reader = SnapshotReader.open(table, target.snapshot, cache=True)
        sources = source_types(target.schema, target.metadata.schemas)
        time = _time_column(target.metadata, target.schema)
        deletes = reader.deletes()
        stats = deletes.key_columns | (frozenset() if time is None else {time.field_id})
        files = reader.entries(reader.manifest_rows(DATA), EntryColumns(_NAMES, stats=stats))
        counts = match(files, deletes, reader.union, sources).counts
        return cls(target, reader, sources, time, deletes, files, counts)

    @property
    def union(self) -> UnionPartitionType:
        """The union of the partition fields of all specs."""
        return self.reader.union

    @property
    def name(self) -> str:
        """The name of the table."""
        return self.target.name

    @property
    def table(self) -> Table:
        """The loaded table."""
        return self.target.table

    @cached_property
    def map(self) -> TableMap:
        """Partitions over time."""
        axis = _axis(self.files, self.time, self.union)
        # Partition fields of the time column are left out of the lanes: the axis shows them.
        time_id = self.time.field_id if self.time is not None and axis.kind == "time" else None
        lane_of, lanes = _lanes(self.files, self.union, time_id)
        width = len(axis.labels) + 1
        keys, cell_of = np.unique(lane_of * width + axis.bins + 1, return_inverse=True)
        empty = TableMap(axis, lanes, keys // width, keys % width - 1, cell_of, {})
        numbers = {
            "files": np.ones(len(self.files), dtype=np.int64),
            "bytes": self.files.ints("file_size_in_bytes"),
            "rows": self.files.record_count,
            "deletes": self.delete_counts,
        }
        return replace(empty, sums={name: empty.sum_by_cell(values) for name, values in numbers.items()})

    @cached_property
    def _ordinals(self) -> tuple[Ints, Ints]:
        """Files by manifest and ordinal: sorted keys, and the row of each."""
        keys = _ordinal_keys(self.files)
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    def rows_of(self, entries: EntriesTable) -> Ints:
        """The rows of entries that a plan of the same snapshot kept."""
        keys, order = self._ordinals
        return order[np.searchsorted(keys, _ordinal_keys(entries))]

    def row_of_path(self, path: str) -> int:
        """The row of a data file.

        Raises:
            UnknownFileError: The snapshot has no such file.
        """
        row: int = pc.index(self.files.path, pa.scalar(path, self.files.path.type)).as_py()
        if row < 0:
            raise UnknownFileError(f"the current snapshot has no data file {path}", context={"file": path})
        return row

    def file_facts(self, rows: Ints) -> list[dict[str, Any]]:
        """Documents of a few files."""
        names = PartitionNames(self.union, self.files.partition_types)
        picked = self.files.take(rows).table.to_pylist()
        return [
            {name: entry[name] for name in _FILE}
            | {"partition": names.readable(entry["spec_id"], entry), "deletes": count}
            for entry, count in zip(picked, self.delete_counts[rows].tolist(), strict=True)
        ]

    def with_statistics(self, row: int, field_ids: frozenset[int]) -> EntriesTable:
        """One file with the statistics of some columns, read from its manifest."""
        manifest, ordinal = int(self.files.ints("manifest")[row]), int(self.files.ints("ordinal")[row])
        columns = EntryColumns(_NAMES, stats=field_ids)
        entries = self.reader.entries(np.array([manifest]), columns)
        return entries.filter(entries.ints("ordinal") == ordinal)


def _ordinal_keys(entries: EntriesTable) -> Ints:
    """One number per entry: its manifest and its ordinal in it."""
    return (entries.ints("manifest") << 32) | entries.ints("ordinal")


@dataclass(frozen=True, slots=True)
class Axis:
    """The bin of each file in ``bins``, ``NO_TIME`` if unknown, and the ``labels`` of the bins."""

    kind: str
    title: str
    unit: str
    labels: tuple[str, ...]
    bins: Ints


@dataclass(frozen=True, slots=True)
class Lane:
    """Partitions of one spec that share a row of the map."""

    label: str
    spec_id: int
    partitions: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}


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
        return np.bincount(self.cell_of, weights=values, minlength=len(self.cell_lane)).astype(np.int64)

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


def _time_column(metadata: TableMetadata, schema: Schema) -> Column | None:
    """The source column of a time partition field, of the newest spec that has one; else the first time column."""
    times = {i: column for i, column in leaf_columns(schema).items() if isinstance(column.type, _TIMES)}
    newest_first = sorted(metadata.partition_specs, key=lambda spec: spec.spec_id, reverse=True)
    sources = [field.source_id for spec in (metadata.spec(), *newest_first) for field in spec.fields]
    return next((times[i] for i in (*sources, *(field.field_id for field in schema.fields)) if i in times), None)


def _axis(entries: EntriesTable, column: Column | None, union: UnionPartitionType) -> Axis:
    """The time bins of some files; bins of sequence numbers if no time is known."""
    if column is not None and len(entries):
        times, known = _file_times(entries, column, union)
        if known.any():
            # The finest calendar unit to use is that of the finest time partition field with values.
            fields = [field for field in union.fields if field.bound.source_id == column.field_id]
            used = [field.bound for field in fields if entries.valid(partition_column(field.id)).any()]
            units = {_UNITS.get(type(field.transform), "") for field in used}
            usual = [at for at, (_, code, many, _) in enumerate(_CALENDAR) if code in units and many == 1]
            finest = min(usual, default=2 if isinstance(column.type, DateType) else 0)
            return _calendar(".".join(column.path), times, known, finest)
    sequence = entries.sequence_number
    if not len(sequence):
        return Axis("commits", "sequence number", "commit", (), sequence)
    first, last = int(sequence.min()), int(sequence.max())
    width = (last - first) // MOST_BINS + 1
    unit = "commit" if width == 1 else f"{width} commits"
    labels = tuple(map(str, range(first, last + 1, width)))
    return Axis("commits", "sequence number", unit, labels, (sequence - first) // width)


def _file_times(entries: EntriesTable, column: Column, union: UnionPartitionType) -> tuple[Ints, Mask]:
    """The lower bound of the time of each file in microseconds since 1970, and where it is known."""
    times, known = np.zeros(len(entries), dtype=np.int64), np.zeros(len(entries), dtype=np.bool_)
    for field in union.fields:
        unit = _UNITS.get(type(field.bound.transform))
        if field.bound.source_id == column.field_id and unit is not None:
            there = entries.valid(partition_column(field.id))
            values = entries.ints(partition_column(field.id), missing=0)[there]
            starts = values.astype(f"datetime64[{unit}]") if unit else _micros(column.type, values)
            times[there] = starts.astype("datetime64[us]").astype(np.int64)
            known |= there
    stats = file_stats(entries, [column]).columns.get(column.field_id)
    if stats is not None and stats.lower is not None:
        valid = stats.lower.valid
        times[valid] = _micros(column.type, np.asarray(stats.lower.values)[valid])
        known |= valid
    return times, known


def _micros(type_: PrimitiveType, values: Ints) -> Ints:
    if isinstance(type_, DateType):
        return values * _DAY
    return values // 1000 if isinstance(type_, TimestampNanoType | TimestamptzNanoType) else values


def _calendar(title: str, times: Ints, known: Mask, finest: int) -> Axis:
    """An axis of the finest calendar unit with at most ``MOST_BINS`` bins."""
    starts_us = times.astype("datetime64[us]")
    for name, code, many, shift in _CALENDAR[finest:]:
        numbers = (starts_us.astype(f"datetime64[{code}]").astype(np.int64) + shift) // many
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


def _lanes(entries: EntriesTable, union: UnionPartitionType, time_id: int | None) -> tuple[Ints, tuple[Lane, ...]]:
    """The lane of each file: partitions ordered by spec and values, combined if there are too many."""
    if not len(entries):
        return np.zeros(0, dtype=np.int64), ()
    apart = {field.id for field in union.fields if field.bound.source_id != time_id}
    columns = {key: values for key, values in entries.partition_columns().items() if key in apart}
    codes = partition_codes(union, entries.spec_id, columns)
    # One file of each partition, ordered by spec and then by partition values.
    first = np.zeros(int(codes.max()) + 1, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    samples = entries.take(first)
    names = ["spec_id", *map(partition_column, sorted(columns))]
    keys = pa.table({name: samples.array(name) for name in names if not pa.types.is_null(samples.array(name).type)})
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]).to_numpy().astype(np.int64)
    specs = samples.spec_id[order]
    lane_of_rank = _fold(specs)
    lane_of_code = np.zeros(len(order), dtype=np.int64)
    lane_of_code[order] = lane_of_rank
    # The label of a lane is its partition, or its first and last one.
    partitions = PartitionNames(union, samples.partition_types)

    def label(row: int) -> str:
        entry = samples.table.slice(row, 1).to_pylist()[0]
        spec = union.spec(entry["spec_id"])
        shown = partitions.readable(spec.spec_id, entry)
        own = [field.column.path[0] for field in spec.fields if field.column.field_id in apart]
        return ", ".join(f"{name}={shown[name]}" for name in own) or (
            "unpartitioned" if spec.unpartitioned else "time only"
        )

    starts = np.flatnonzero(np.diff(lane_of_rank, prepend=-1)).tolist()
    lanes = []
    for low, end in zip(starts, [*starts[1:], len(order)], strict=True):
        ends = dict.fromkeys((int(order[low]), int(order[end - 1])))
        lanes.append(Lane(" … ".join(map(label, ends)), int(specs[low]), end - low))
    return lane_of_code[codes], tuple(lanes)


def _fold(specs: Ints) -> Ints:
    """Assign ordered partitions to lanes; each spec gets a proportional number of lanes, at least one."""
    found, counts = np.unique(specs, return_counts=True)
    total, lanes, start = len(specs), np.zeros(len(specs), dtype=np.int64), 0
    for spec_id, count in zip(found.tolist(), counts.tolist(), strict=True):
        room = count if total <= MOST_LANES else max(1, min(count, MOST_LANES * count // total))
        lanes[specs == spec_id] = start + np.arange(count) * room // count
        start += room
    return lanes

"""Two large metadata-only tables; small tables of the second kind can have real files.

``write_evolved_archive``: events whose partition spec changed twice, identity(region) → day(ts) + bucket(8, id) →
month(ts), for measuring planning. ``write_artemis_archive``: telemetry of many missions, one partition per mission and
day, one manifest per commit, to show the pruning pyramid of the three passes.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlparse
from urllib.request import url2pathname

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, MonthTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType, TimestamptzType

from floeplan.metadata.manifests.entries import ENTRY_TYPES, Content, Status, new_entries, partition_column
from floeplan.metadata.manifests.list_writer import ListedSnapshot, write_manifest_list
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable, concat_manifest_lists
from floeplan.metadata.manifests.writer import write_manifest
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType

# Write manifests, a manifest list and a metadata file (format 2) of a table without data files. Planning reads nothing
# else. The output is deterministic.


FIRST_SNAPSHOT_ID = 1_000_000
_FORMAT: Final = 2
_TIMESTAMP_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A data file that need not exist; ``bounds`` are Iceberg's single-value bytes by field id."""

    path: str
    partition: tuple[Any, ...]
    record_count: int
    file_size: int
    bounds: Mapping[int, tuple[bytes, bytes]]
    deleted: bool = False


@dataclass(slots=True)
class MetadataWriter:
    """Collects manifests, each from its own commit; ``finish`` writes the table."""

    root: Path
    schema: Schema
    specs: Sequence[PartitionSpec]
    codec: str = "deflate"
    _listed: list[ManifestListTable] = field(default_factory=list)
    _union: UnionPartitionType = field(init=False)

    def __post_init__(self) -> None:
        self._union = UnionPartitionType.of(self.specs, source_types(self.schema))

    def add_manifest(self, spec_id: int, files: Sequence[FileEntry]) -> None:
        """Write a manifest of files of one spec."""
        spec = next(spec for spec in self.specs if spec.spec_id == spec_id)
        sequence_number = len(self._listed) + 1
        written = write_manifest(
            self._new(f"{sequence_number:06d}-m0.avro").as_uri(),
            new_entries(_columns(files, spec, sequence_number), self._union),
            spec,
            self.schema,
            union=self._union,
            format_version=_FORMAT,
            content=DATA,
            snapshot_id=FIRST_SNAPSHOT_ID + sequence_number,
            codec=self.codec,
        )
        number = np.array([sequence_number])
        self._listed.append(replace(written, sequence_number=number, min_sequence_number=number))

    def finish(self) -> Path:
        """Write the manifest list, newest manifest first, and the metadata file; returns its path."""
        last = len(self._listed)
        snapshot_id = FIRST_SNAPSHOT_ID + last
        manifest_list = self._new(f"snap-{snapshot_id}.avro")
        manifests = concat_manifest_lists(self._listed[::-1])
        snapshot = ListedSnapshot(_FORMAT, snapshot_id, None, last)
        write_manifest_list(manifest_list.as_uri(), manifests, snapshot, codec=self.codec)
        path = self._new("v1.metadata.json")
        path.write_text(json.dumps(self._metadata(snapshot_id, manifest_list)))
        return path

    def _new(self, name: str) -> Path:
        """The path of a new metadata file; an existing file is removed."""
        path = self.root / "metadata" / name
        path.unlink(missing_ok=True)
        return path

    def _metadata(self, snapshot_id: int, manifest_list: Path) -> dict[str, Any]:
        last = len(self._listed)
        snapshot = {
            "snapshot-id": snapshot_id,
            "sequence-number": last,
            "timestamp-ms": _TIMESTAMP_MS,
            "manifest-list": manifest_list.as_uri(),
            "summary": {"operation": "append"},
            "schema-id": self.schema.schema_id,
        }
        return {
            "format-version": _FORMAT,
            "table-uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, self.root.name)),
            "location": self.root.as_uri(),
            "last-sequence-number": last,
            "last-updated-ms": _TIMESTAMP_MS,
            "last-column-id": self.schema.highest_field_id,
            "schemas": [json.loads(self.schema.model_dump_json())],
            "current-schema-id": self.schema.schema_id,
            "partition-specs": [json.loads(spec.model_dump_json()) for spec in self.specs],
            "default-spec-id": self.specs[-1].spec_id,
            "last-partition-id": max((item.field_id for spec in self.specs for item in spec.fields), default=999),
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "snapshots": [snapshot],
            "current-snapshot-id": snapshot_id,
            "refs": {"main": {"snapshot-id": snapshot_id, "type": "branch"}},
        }


def _columns(files: Sequence[FileEntry], spec: PartitionSpec, sequence_number: int) -> dict[str, pa.Array]:
    """The files as entry columns; deleted files have an explicit sequence number, others inherit it."""
    own = [sequence_number if file.deleted else None for file in files]
    columns = {
        "spec_id": [spec.spec_id] * len(files),
        "status": [(Status.DELETED if file.deleted else Status.ADDED).value for file in files],
        "sequence_number": own,
        "file_sequence_number": own,
        "content": [Content.DATA.value] * len(files),
        "file_path": [file.path for file in files],
        "file_format": ["PARQUET"] * len(files),
        "record_count": [file.record_count for file in files],
        "file_size_in_bytes": [file.file_size for file in files],
        "split_offsets": [[4]] * len(files),
        "sort_order_id": [0] * len(files),
        "column_sizes": [[(key, file.file_size * key % 999_983) for key in file.bounds] for file in files],
        "value_counts": [[(key, file.record_count) for key in file.bounds] for file in files],
        "null_value_counts": [[(key, 0) for key in file.bounds] for file in files],
        "nan_value_counts": [[(key, 0) for key in file.bounds] for file in files],
        "lower_bounds": [[(key, lower) for key, (lower, _) in file.bounds.items()] for file in files],
        "upper_bounds": [[(key, upper) for key, (_, upper) in file.bounds.items()] for file in files],
    }
    made = {name: pa.array(values, ENTRY_TYPES[name]) for name, values in columns.items()}
    for position, item in enumerate(spec.fields):
        made[partition_column(item.field_id)] = pa.array([file.partition[position] for file in files])
    return made


# ---

EVENTS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType()),
    NestedField(3, "ts", TimestamptzType()),
    NestedField(4, "amount", DoubleType()),
    NestedField(5, "note", StringType()),
    NestedField(6, "user_id", LongType()),
    NestedField(7, "session", StringType()),
    NestedField(8, "score", DoubleType()),
    schema_id=0,
)
EVENT_SPECS = (
    PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=0),
    PartitionSpec(
        PartitionField(3, 1001, DayTransform(), "ts_day"),
        PartitionField(1, 1002, BucketTransform(8), "id_bucket"),
        spec_id=1,
    ),
    PartitionSpec(PartitionField(3, 1003, MonthTransform(), "ts_month"), spec_id=2),
)
REGIONS = ("ap", "au", "br", "ca", "eu", "in", "uk", "us")
EVENTS_START = date(2021, 1, 1)
EVENT_DAYS = 1200

TELEMETRY = Schema(
    NestedField(1, "mission_id", StringType(), required=True),
    NestedField(2, "sample_timestamp_ns", TimestampType(), required=True),
    NestedField(3, "payload_id", LongType()),
    NestedField(4, "sensor_kind", StringType()),
    NestedField(5, "panel_voltage", DoubleType()),
    schema_id=0,
)
TELEMETRY_SPEC = PartitionSpec(
    PartitionField(1, 1000, IdentityTransform(), "mission_id"),
    PartitionField(2, 1001, DayTransform(), "sample_day"),
    spec_id=0,
)
TELEMETRY_START = date(2022, 1, 1)
ROW_GROUPS, ROWS_PER_ROW_GROUP = 8, 10
SENSORS = ("gyro", "magnetometer", "panel", "thermal")

_EPOCH = date(1970, 1, 1)
_MICROS_PER_DAY = 86_400_000_000


def write_evolved_archive(root: Path, manifests: int = 4000, entries: int = 100, days: int = EVENT_DAYS) -> Path:
    """Write the events table; returns the path of its metadata file.

    Manifests are in time order; each spec has a third of them. ``amount`` is independent of time: one file in 100 may
    hold values in any interval of 10 out of the range 0 to 1000. One entry in 200 is of a deleted file.
    """
    writer = MetadataWriter(root, EVENTS, EVENT_SPECS)
    micros_per_manifest = days * _MICROS_PER_DAY // manifests
    start = _days(EVENTS_START) * _MICROS_PER_DAY
    numbers = np.random.default_rng(4)
    for manifest in range(manifests):
        spec_id = min(3 * manifest // manifests, 2)
        first = start + manifest * micros_per_manifest
        seeds = numbers.integers(0, 2**62, (entries, 3)).tolist()
        writer.add_manifest(
            spec_id,
            [
                _event_file(root, spec_id, manifest * entries + at, first, micros_per_manifest * at // entries, some)
                for at, some in enumerate(seeds)
            ],
        )
    return writer.finish()


def _event_file(root: Path, spec_id: int, number: int, start: int, elapsed: int, seeds: list[int]) -> FileEntry:
    seed, second, third = seeds
    region = REGIONS[number % len(REGIONS)]
    low = start + elapsed
    high = min(low + 600_000_000, (low // _MICROS_PER_DAY + 1) * _MICROS_PER_DAY - 1)
    day = low // _MICROS_PER_DAY
    amount = float(seed % 1000)
    partition: tuple[str | int, ...]
    match spec_id:
        case 0:
            partition, folder = (region,), f"region={region}"
        case 1:
            partition, folder = (day, seed % 8), f"ts_day={_date(day)}/id_bucket={seed % 8}"
        case _:
            month = (_date(day).year - 1970) * 12 + _date(day).month - 1
            partition, folder = (month,), f"ts_month={month}"
    return FileEntry(
        path=f"{root.as_uri()}/data/{folder}/{number:08d}-{seed:016x}{second:016x}.parquet",
        partition=partition,
        record_count=10_000 + seed % 5_000,
        file_size=1_000_000 + seed % 900_000,
        bounds={
            1: (struct.pack("<q", seed % 10**9), struct.pack("<q", seed % 10**9 + 10**6)),
            2: (region.encode(), region.encode()),
            3: (struct.pack("<q", low), struct.pack("<q", high)),
            4: (struct.pack("<d", amount), struct.pack("<d", amount + 0.5)),
            5: (f"note {seed % 977:013d}".encode(), f"note {seed % 977 + 20:013d}".encode()),
            6: (struct.pack("<q", second), struct.pack("<q", second + third % 10**9)),
            7: (f"{seed:016x}".encode(), f"{max(seed, third):016x}".encode()),
            8: (struct.pack("<d", second / 1e9), struct.pack("<d", second / 1e9 + third / 1e12)),
        },
        deleted=number % 200 == 199,
    )


def write_artemis_archive(
    root: Path,
    missions: int = 40,
    days: int = 1000,
    files_per_partition: int = 7,
    missions_per_commit: int = 10,
    real_files: bool = False,
) -> Path:
    """Write the telemetry table; returns the path of its metadata file.

    Every day has one commit per group of missions, sorted by name. One file of each partition is committed a day late,
    so a week of one mission is in eight manifests. Real files have a few rows in eight row groups, sorted by voltage.
    """
    writer = MetadataWriter(root, TELEMETRY, [TELEMETRY_SPEC])
    names = mission_names(missions)
    groups = [names[at : at + missions_per_commit] for at in range(0, missions, missions_per_commit)]
    start = _days(TELEMETRY_START)
    for day in range(days):
        for group in groups:
            on_time = [(mission, start + day, at) for mission in group for at in range(files_per_partition - 1)]
            late = [(mission, start + day - 1, files_per_partition - 1) for mission in group if day > 0]
            files = [_telemetry_file(root, *which) for which in sorted(on_time + late)]
            writer.add_manifest(0, [_with_rows(file) for file in files] if real_files else files)
    return writer.finish()


def mission_names(missions: int) -> list[str]:
    """The mission names, sorted."""
    return sorted(f"apollo-{number}" for number in range(1, missions + 1))


def _telemetry_file(root: Path, mission: str, day: int, at: int) -> FileEntry:
    low = day * _MICROS_PER_DAY + at * 3_600_000_000
    voltage = 24.0 + (day * 31 + at * 7) % 60 / 10
    sensor = SENSORS[at % len(SENSORS)].encode()
    return FileEntry(
        path=f"{root.as_uri()}/data/mission_id={mission}/sample_day={_date(day)}/{at:05d}.parquet",
        partition=(mission, day),
        record_count=1_000_000,
        file_size=128_000_000 + day * 1000 + at,
        bounds={
            1: (mission.encode(), mission.encode()),
            2: (struct.pack("<q", low), struct.pack("<q", low + 3_600_000_000 * 4)),
            3: (struct.pack("<q", at * 100), struct.pack("<q", at * 100 + 99)),
            4: (sensor, sensor),
            5: (struct.pack("<d", voltage), struct.pack("<d", voltage + 1.5)),
        },
    )


def _with_rows(file: FileEntry) -> FileEntry:
    """Write the file; its rows are within its bounds, except that the voltage has its own range."""
    rows = ROW_GROUPS * ROWS_PER_ROW_GROUP
    (mission, _), (first, last), (payload, _), (sensor, _), (seed, _) = file.bounds.values()
    low, high = struct.unpack("<qq", first + last)
    times = np.linspace(low, high, rows).astype(np.int64)
    highest = 28.6 + struct.unpack("<d", seed)[0] % 1.0
    voltages = np.linspace(24.0, highest, rows)
    columns = {
        "mission_id": [mission.decode()] * rows,
        "sample_timestamp_ns": pa.array(times).cast(pa.timestamp("us")),
        "payload_id": struct.unpack("<q", payload)[0] + np.arange(rows),
        "sensor_kind": [sensor.decode()] * rows,
        "panel_voltage": voltages,
    }
    path = Path(url2pathname(urlparse(file.path).path))
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns).cast(schema_to_pyarrow(TELEMETRY))
    pq.write_table(table, path, row_group_size=ROWS_PER_ROW_GROUP)
    bounds = dict(file.bounds) | {5: (struct.pack("<d", 24.0), struct.pack("<d", highest))}
    return replace(file, record_count=rows, file_size=path.stat().st_size, bounds=bounds)


def _days(day: date) -> int:
    return (day - _EPOCH).days


def _date(days: int) -> date:
    return _EPOCH + timedelta(days=days)

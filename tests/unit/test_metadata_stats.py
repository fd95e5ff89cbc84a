"""Statistics of manifests and entries: known values, and nothing else."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform, VoidTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType

from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import parse_manifest_list, read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.stats import file_stats, manifest_stats, partition_stats
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import ColumnStats
from tests.support.tables.manifests import Writer, write_manifests

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "region", StringType()),
    NestedField(3, "ts", TimestampType()),
    NestedField(4, "v", DoubleType()),
)
REGION = PartitionField(2, 1000, IdentityTransform(), "region")
DAY = PartitionField(3, 1001, DayTransform(), "day")
V = PartitionField(4, 1002, IdentityTransform(), "v")
UNION = UnionPartitionType.of(
    [
        PartitionSpec(REGION, spec_id=0),
        PartitionSpec(DAY, REGION, spec_id=1),
        PartitionSpec(V, PartitionField(2, 1000, VoidTransform(), "region"), spec_id=2),
    ],
    source_types(SCHEMA),
)
WRITER = Writer()


def flags(stats: ColumnStats) -> list[str]:
    """The kinds of values that each container may hold: null, NaN, value."""
    masks = (stats.may_null, stats.may_nan, stats.may_value)
    return ["".join(c for c, may in zip("nNv", row, strict=True) if may) for row in zip(*masks, strict=True)]


def lowers(stats: ColumnStats) -> list[Any]:
    assert stats.lower is not None
    values = stats.lower.values
    found = values.tolist() if isinstance(values, np.ndarray) else values.to_pylist()
    return [value if valid else None for value, valid in zip(found, stats.lower.valid, strict=True)]


def summary(null: bool = False, nan: bool | None = False, low: bytes | None = None) -> dict[str, Any]:
    return {"contains_null": null, "contains_nan": nan, "lower_bound": low, "upper_bound": low}


def test_summaries_are_found_by_spec_and_position() -> None:
    day = struct.pack("<i", 19_000)
    listed = [
        {"partition_spec_id": 0, "partitions": [summary(low=b"eu")]},
        {"partition_spec_id": 1, "partitions": [summary(low=day), summary(null=True)]},
        {"partition_spec_id": 2, "partitions": [summary(low=struct.pack("<d", 1.5)), summary(null=True)]},
        {"partition_spec_id": 0, "partitions": []},
        {"partition_spec_id": 1, "partitions": [summary(low=b"bad"), summary(null=True, low=b"us")]},
    ]
    manifests = parse_manifest_list(WRITER.manifest_list([row | {"manifest_path": "m"} for row in listed]), "l")
    stats = manifest_stats(manifests, UNION.fields)
    region, day_stats, v = (stats.columns[field_id] for field_id in (1000, 1001, 1002))
    assert flags(region) == ["v", "n", "nNv", "nNv", "nv"]
    assert lowers(region) == ["eu", None, None, None, "us"]
    assert flags(day_stats) == ["nNv", "v", "nNv", "nNv", "v"]
    assert lowers(day_stats) == [None, 19_000, None, None, None]
    assert flags(v) == ["nNv", "nNv", "v", "nNv", "nNv"]


def test_a_float_summary_without_bounds_is_all_null_only_when_nan_is_known_absent() -> None:
    cases = [
        summary(null=True, nan=None),
        summary(null=True, nan=True),
        summary(null=True, nan=False),
        summary(nan=True),
    ]
    listed = [{"manifest_path": "m", "partition_spec_id": 2, "partitions": [case, summary()]} for case in cases]
    stats = manifest_stats(parse_manifest_list(WRITER.manifest_list(listed), "l"), UNION.fields)
    assert flags(stats.columns[1002]) == ["nNv", "nNv", "n", "Nv"]


def entries(tmp_path: Path, *rows: dict[str, Any], stats: frozenset[int] = frozenset()) -> EntriesTable:
    fields = {
        0: [WRITER.field("region", 1000, "string")],
        1: [WRITER.field("day", 1001, "int"), WRITER.field("region", 1000, "string")],
        2: [WRITER.field("v", 1002, "double"), WRITER.field("region", 1000, "string")],
    }
    manifests = []
    for row in rows:
        spec_id = row.pop("spec_id", 0)
        row.setdefault("partition", dict.fromkeys((item["name"] for item in fields[spec_id]), None))
        data = WRITER.manifest([WRITER.entry(**row)], fields[spec_id], spec_id)
        manifests.append((data, {"partition_spec_id": spec_id}))
    return read_entries(read_manifest_list(write_manifests(tmp_path, manifests)), UNION, EntryColumns(stats=stats))


def test_partition_values_are_exact_and_unknown_under_other_specs(tmp_path: Path) -> None:
    table = entries(
        tmp_path,
        {"partition": {"region": "eu"}},
        {"partition": {"region": None}},
        {"spec_id": 1, "partition": {"day": 7, "region": "us"}},
        {"spec_id": 2, "partition": {"v": float("nan"), "region": None}},
        {"spec_id": 2, "partition": {"v": 0.5, "region": None}, "record_count": 0},
    )
    stats = partition_stats(table, UNION.fields)
    assert flags(stats.columns[1000]) == ["v", "n", "v", "nNv", "nNv"]
    assert lowers(stats.columns[1000]) == ["eu", None, "us", None, None]
    assert flags(stats.columns[1001]) == ["nNv", "nNv", "v", "nNv", "nNv"]
    assert lowers(stats.columns[1001]) == [None, None, 7, None, None]
    assert flags(stats.columns[1002]) == ["nNv", "nNv", "nNv", "N", "v"]
    assert lowers(stats.columns[1002]) == [None, None, None, None, 0.5]
    assert stats.nonempty.tolist() == [True, True, True, True, False]


def test_counts_and_bounds_of_files(tmp_path: Path) -> None:
    def bounds(low: float, high: float) -> dict[str, Any]:
        return {"lower_bounds": {4: struct.pack("<d", low)}, "upper_bounds": {4: struct.pack("<d", high)}}

    nothing_missing = {"null_value_counts": {4: 0}, "nan_value_counts": {4: 0}}
    table = entries(
        tmp_path,
        {**bounds(1, 2), **nothing_missing, "value_counts": {4: 10}},
        {**bounds(1, 2), "null_value_counts": {4: 0}},
        {**bounds(1, 2), **nothing_missing, "value_counts": {4: 25}},
        {"null_value_counts": {4: 10}, "nan_value_counts": {4: 0}},
        {**bounds(1, float("nan")), **nothing_missing},
        {**bounds(3, 2), **nothing_missing},
        {},
        {**bounds(1, 2), "record_count": -1, "null_value_counts": {4: 0}, "nan_value_counts": {4: 0}},
        stats=frozenset({1, 4}),
    )
    column = Column(4, DoubleType(), ("v",))
    stats = file_stats(table, [column, Column(1, LongType(), ("id",)), Column(9, LongType(), ("unread",))])
    assert flags(stats.columns[4]) == ["v", "Nv", "nNv", "n", "v", "v", "nNv", "v"]
    assert lowers(stats.columns[4]) == [1.0, 1.0, 1.0, None, None, None, None, 1.0]
    assert set(flags(stats.columns[1])) == {"nv"}
    assert 9 not in stats.columns

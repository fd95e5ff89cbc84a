"""Random tables for metadata trees: every type, evolved specs, statistics that prune, deletes of all kinds."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.metadata.manifests.entries import EntryColumns
from floeplan.metadata.v4.commits import ScratchTree, TreeOptions
from floeplan.metadata.v4.tree import MetadataTree
from floeplan.metadata.v4.writer import Vectors
from floeplan.partition.transforms import from_physical
from tests.support.tables.layouts import SNAPSHOT_ID, Layout

LOCATION = "file:///table"
GONE = 30
NESTED = StructType(NestedField(18, "x", LongType()), NestedField(19, "tags", ListType(20, LongType())))
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "ts", TimestamptzType()),
    NestedField(4, "price", DecimalType(9, 2)),
    NestedField(5, "wide", DecimalType(38, 3)),
    NestedField(6, "key", UUIDType()),
    NestedField(7, "d", DoubleType()),
    NestedField(8, "f", FloatType()),
    NestedField(9, "bin", BinaryType()),
    NestedField(10, "code", FixedType(2)),
    NestedField(11, "flag", BooleanType()),
    NestedField(12, "day", DateType()),
    NestedField(13, "clock", TimeType()),
    NestedField(14, "ns", TimestampNanoType()),
    NestedField(15, "n", IntegerType()),
    NestedField(16, "at", TimestampType()),
    NestedField(17, "s", NESTED),
    schema_id=2,
)
OLDER = Schema(*SCHEMA.fields, NestedField(GONE, "gone", StringType()), schema_id=1)
FIELDS = [
    PartitionField(2, 1000, IdentityTransform(), "name"),
    PartitionField(3, 1001, DayTransform(), "ts_day"),
    PartitionField(1, 1002, BucketTransform(4), "id.bucket"),
    PartitionField(4, 1003, TruncateTransform(100), "price"),
    PartitionField(6, 1004, IdentityTransform(), "key"),
    PartitionField(15, 1005, IdentityTransform(), "n"),
    PartitionField(GONE, 1006, IdentityTransform(), "gone"),
]
SPECS = (
    PartitionSpec(spec_id=0),
    PartitionSpec(FIELDS[0], FIELDS[1], spec_id=1),
    PartitionSpec(FIELDS[2], FIELDS[3], FIELDS[4], spec_id=3),
    PartitionSpec(FIELDS[6], FIELDS[5], spec_id=4),
    PartitionSpec(PartitionField(2, 1000, VoidTransform(), "old_name"), FIELDS[1], spec_id=5),
    PartitionSpec(
        PartitionField(3, 1001, DayTransform(), "when"),
        PartitionField(18, 1007, TruncateTransform(2), "s.x_trunc"),
        spec_id=6,
    ),
)
"""Fields are renamed and replaced by void, and sources are dropped and nested."""

PREDICATES = [
    None,
    "id = 3",
    "id > 5 AND name = 'b'",
    "name IS NULL",
    "d <= 1.0 OR f > 2.0",
    "NOT (n = 2)",
    "ts >= TIMESTAMP '1970-01-02 00:00:00+00:00'",
    "price < 1.50",
    "wide >= 0.002",
    "day = DATE '1970-01-04'",
    "s.x BETWEEN 2 AND 4",
    "flag",
    "name LIKE 'a%' AND isnan(d)",
    "at < TIMESTAMP_NTZ '1970-01-03 00:00:00'",
]
"""Predicates over columns of many types; the values of ``small`` are around their literals."""


def layout(version: int = 3) -> Layout:
    return Layout(SCHEMA, SPECS, version=version, older_schemas=(OLDER,))


def small(type_: PrimitiveType) -> st.SearchStrategy[Any]:
    """Values in the physical domain, few enough that files overlap."""
    match type_:
        case StringType():
            return st.sampled_from(["a", "ab", "b", "é", ""])
        case BinaryType():
            return st.sampled_from([b"", b"a", b"\xff"])
        case FixedType():
            return st.sampled_from([b"aa", b"ab"])
        case UUIDType():
            return st.sampled_from([bytes(16), b"\x80" + bytes(15), b"a" * 16])
        case FloatType() | DoubleType():
            return st.sampled_from([0.0, -0.0, 1.0, 2.5, float("nan"), float("inf")])
        case BooleanType():
            return st.integers(0, 1)
        case DecimalType() if type_.precision > 18:
            return st.decimals(-3, 3, places=type_.scale)
        case DateType() | IntegerType() | LongType():
            return st.integers(-2, 6)
        case TimestampNanoType():
            return st.integers(-1, 6).map(lambda day: day * 86_400_000_000_000)
        case TimeType():
            return st.integers(0, 6)
        case DecimalType():
            return st.integers(-300, 300)
    return st.integers(-1, 6).map(lambda day: day * 86_400_000_000)


def primitives() -> dict[int, PrimitiveType]:
    """The columns that can have bounds."""
    fields = {**{f.field_id: f.field_type for f in OLDER.fields}, 18: LongType()}
    return {key: type_ for key, type_ in fields.items() if isinstance(type_, PrimitiveType)}


def single_value(type_: PrimitiveType, value: Any) -> bytes:
    if isinstance(type_, FloatType | DoubleType):
        return struct.pack("<f" if isinstance(type_, FloatType) else "<d", value)
    return bytes(value) if isinstance(value, bytes) else to_bytes(type_, from_physical(type_, value))


@st.composite
def files(draw: st.DrawFn, number: int, version: int) -> dict[str, Any]:
    """A data file with its partition tuple and some statistics, which may contradict each other."""
    spec = draw(st.sampled_from(SPECS))
    row: dict[str, Any] = {
        "spec_id": spec.spec_id,
        "file_path": draw(st.sampled_from([f"{LOCATION}/data/f{number} é.parquet", f"s3://elsewhere/f{number}"])),
        "record_count": draw(st.sampled_from([0, 10, 10, 10])),
        "status": draw(st.sampled_from([0, 1, 1, 2])),
        "snapshot_id": draw(st.sampled_from([SNAPSHOT_ID, 3])),
        "key_metadata": draw(st.none() | st.just(b"k")),
        "split_offsets": draw(st.none() | st.just([4, 90])),
        "sort_order_id": draw(st.none() | st.just(0)),
    }
    row["sequence_number"] = row["file_sequence_number"] = draw(st.integers(1, 9)) if version > 1 else 0
    if version > 2:
        row["first_row_id"] = draw(st.none() | st.integers(0, 100))
    for field in layout().union.fields:
        if spec.spec_id in field.positions:
            row[f"partition.{field.id}"] = draw(st.none() | small(field.bound.column.type))
    chosen = draw(st.lists(st.sampled_from(sorted(primitives())), max_size=6, unique=True))
    row |= {name: {} for name in ("lower_bounds", "upper_bounds", "value_counts", "null_value_counts")}
    row["nan_value_counts"] = {}
    for key in chosen:
        type_ = primitives()[key]
        for side in ("lower_bounds", "upper_bounds"):
            if draw(st.integers(0, 4)):
                row[side][key] = single_value(type_, draw(small(type_)))
        row["value_counts"][key] = draw(st.sampled_from([10, 10, row["record_count"]]))
        row["null_value_counts"][key] = draw(st.sampled_from([0, 0, 10, 3]))
        if isinstance(type_, FloatType | DoubleType):
            row["nan_value_counts"][key] = draw(st.sampled_from([0, 0, 2]))
    return row


@st.composite
def tables(draw: st.DrawFn) -> tuple[Layout, list[dict[str, Any]]]:
    """Entries of a table: data files, and in format 2 and 3 delete files of all kinds."""
    version = draw(st.sampled_from([1, 2, 3, 4]))
    rows = [draw(files(number, version)) for number in range(draw(st.integers(0, 8)))]
    data = list(rows)
    for number, file in enumerate(data if version > 1 else ()):
        shared = {name: value for name, value in file.items() if name == "spec_id" or name.startswith("partition.")}
        shared |= {"sequence_number": 9, "file_sequence_number": 9, "file_path": f"{LOCATION}/data/d{number}"}
        match draw(st.sampled_from(["", "", "equality", "position", "vector"])):
            case "equality":
                rows.append(shared | {"content": 2, "equality_ids": [1]})
            case "position":
                rows.append(shared | {"content": 1})
            case "vector" if version > 2 and file["status"] != 2:
                place = {"content_offset": 4 * number, "content_size_in_bytes": 40, "record_count": 2}
                target = {"content": 1, "file_format": "PUFFIN", "referenced_data_file": file["file_path"]}
                rows.append(shared | place | target | {"file_size_in_bytes": 40})
    return layout(version), rows


def located(folder: Path, layout: Layout, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with paths below the folder of their table."""
    uri = f"file://{folder}"
    moved = []
    for row in rows:
        names = ("file_path", "referenced_data_file")
        moved.append(row | {name: row[name].replace(LOCATION, uri) for name in names if name in row})
    return moved


class TreeModel:
    """A scratch tree, and the files that it must have with the snapshot of each vector."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.layout = Layout(
            Schema(NestedField(1, "id", LongType()), NestedField(2, "region", StringType())),
            (PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=0),),
            version=4,
        )
        self.table = self.layout.write_table(folder / "table", self.layout.entries([]))
        self.tree = ScratchTree(self.table.metadata, str(folder / "scratch"), TreeOptions(**options))
        self.files: dict[str, int | None] = {}

    def append(self, *names: str) -> None:
        rows = []
        for name in names:
            low = len(self.files) * 10
            bounds = {"lower_bounds": {1: struct.pack("<q", low)}, "upper_bounds": {1: struct.pack("<q", low + 9)}}
            counts = {"value_counts": {1: 10}, "null_value_counts": {1: 0}, "partition.1000": name[0]}
            rows.append({"file_path": f"{self.table.location()}/{name}"} | bounds | counts)
            self.files[name] = None
        self.tree.append(self.layout.entries(rows))

    def delete(self, *names: str) -> None:
        for name in names:
            del self.files[name]
        self.tree.delete(names)

    def set_vectors(self, *names: str) -> None:
        self.files |= {name: len(self.tree.commits) + 1 for name in names}
        count = len(names)
        location = pa.array([f"{self.table.location()}/v{n}.puffin" for n in range(count)], pa.large_string())
        numbers = pa.array([4] * count, pa.int64())
        nothing = pa.nulls(count, pa.large_binary())
        self.tree.set_vectors(names, Vectors(location, numbers, numbers, numbers, nothing, numbers))

    def check(self) -> MetadataTree:
        """The tree has the files of the model, once each, with their vectors."""
        tree = MetadataTree(self.tree.root, self.table.metadata)
        entries = tree.read_entries(tree.manifests, tree.types.union, EntryColumns()).live()
        prefix = f"{self.table.location()}/"
        data = entries.filter(entries.content == 0)
        found = [path.removeprefix(prefix) for path in data.path.to_pylist()]
        assert sorted(found) == sorted(self.files)
        deletes = entries.filter(entries.content == 1)
        targets = [path.removeprefix(prefix) for path in deletes.array("referenced_data_file").to_pylist()]
        by_target = dict(zip(targets, deletes.ints("snapshot_id").tolist(), strict=True))
        assert by_target == {name: at for name, at in self.files.items() if at is not None}
        first = data.array("first_row_id").to_pylist()
        assert len(set(first)) == len(first)
        return tree

"""Random entries round trip through manifests and the root manifest."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
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
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from floeplan.metadata.avro.encoder import load_encoder
from floeplan.metadata.files import read_file
from floeplan.metadata.manifests.entries import STAT_MAPS, WHOLE, EntryColumns
from floeplan.metadata.manifests.list_writer import ListedSnapshot, encode_manifest_list
from floeplan.metadata.manifests.manifest_list import DATA, parse_manifest_list, read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.stats import manifest_stats, partition_stats
from floeplan.metadata.root import RootManifest
from floeplan.metadata.root_writer import write_root
from tests.support.tables.layouts import SEQUENCE_NUMBER, SNAPSHOT_ID, Layout, rows_of

pytestmark = pytest.mark.property

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "region", StringType()),
    NestedField(3, "ts", TimestamptzType()),
    NestedField(4, "price", DecimalType(9, 2)),
    NestedField(5, "wide", DecimalType(38, 3)),
    NestedField(6, "key", UUIDType()),
    NestedField(7, "v", DoubleType()),
    NestedField(8, "f", FloatType()),
    NestedField(9, "bin", BinaryType()),
    NestedField(10, "code", FixedType(2)),
    NestedField(11, "flag", BooleanType()),
    NestedField(12, "day", DateType()),
    NestedField(13, "clock", TimeType()),
    NestedField(14, "ns", TimestampNanoType()),
    NestedField(15, "n", IntegerType()),
)
FIELDS = [
    PartitionField(2, 1000, IdentityTransform(), "region"),
    PartitionField(3, 1001, DayTransform(), "ts_day"),
    PartitionField(1, 1002, BucketTransform(4), "id.bucket"),
    PartitionField(4, 1003, TruncateTransform(100), "price"),
    PartitionField(5, 1004, IdentityTransform(), "wide"),
    PartitionField(6, 1005, IdentityTransform(), "key"),
    PartitionField(7, 1006, IdentityTransform(), "v"),
    PartitionField(8, 1007, IdentityTransform(), "f"),
    PartitionField(9, 1008, TruncateTransform(1), "bin"),
    PartitionField(10, 1009, IdentityTransform(), "code"),
    PartitionField(11, 1010, IdentityTransform(), "flag"),
    PartitionField(12, 1011, MonthTransform(), "month"),
    PartitionField(13, 1012, IdentityTransform(), "clock"),
    PartitionField(14, 1013, HourTransform(), "ns_hour"),
    PartitionField(15, 1014, IdentityTransform(), "n"),
    PartitionField(15, 1015, VoidTransform(), "n_gone"),
]
int32, int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
DOMAINS: dict[type[PrimitiveType], st.SearchStrategy[Any]] = {
    LongType: int64,
    StringType: st.text(max_size=3),
    DateType: int32,
    IntegerType: int32,
    UUIDType: st.binary(min_size=16, max_size=16),
    DoubleType: st.floats(),
    FloatType: st.floats(width=32),
    BinaryType: st.binary(max_size=2),
    FixedType: st.binary(min_size=2, max_size=2),
    BooleanType: st.integers(0, 1),
    TimeType: st.integers(0, 86_399_999_999),
}


def values(type_: PrimitiveType) -> st.SearchStrategy[Any]:
    if isinstance(type_, DecimalType):
        small = st.integers(1 - 10**type_.precision, 10**type_.precision - 1)
        return small if type_.precision <= 18 else st.decimals(-(10**20), 10**20, places=type_.scale)
    return DOMAINS[type(type_)]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    specs = [PartitionSpec(spec_id=0)]
    for spec_id in draw(st.lists(st.integers(1, 9), max_size=3, unique=True)):
        chosen = draw(st.lists(st.sampled_from(FIELDS), max_size=4, unique_by=lambda field: field.field_id))
        specs.append(PartitionSpec(*chosen, spec_id=spec_id))
    return Layout(SCHEMA, tuple(specs), version=draw(st.sampled_from([1, 2, 3, 4])))


keys = st.sampled_from([1, 2, 3, 4, 14, 900, 2_147_483_546])
maps = {
    name: st.none() | st.dictionaries(keys, st.binary(max_size=9) if name.endswith("_bounds") else int64, max_size=4)
    for name in STAT_MAPS
}


@st.composite
def rows(draw: st.DrawFn, layout: Layout, number: int) -> dict[str, Any]:
    row: dict[str, Any] = {name: draw(found) for name, found in maps.items()}
    row["spec_id"] = draw(st.sampled_from([spec.spec_id for spec in layout.specs]))
    for field in layout.union.fields:
        if row["spec_id"] in field.positions:
            row[f"partition.{field.id}"] = draw(st.none() | values(field.bound.column.type))
    row["file_path"] = f"file:{number} {draw(st.text(max_size=5))}"
    row["record_count"], row["file_size_in_bytes"] = draw(st.integers(0, 2**40)), draw(int64)
    row["key_metadata"] = draw(st.none() | st.binary(max_size=4))
    row["split_offsets"] = draw(st.none() | st.lists(int64, max_size=3))
    row["sort_order_id"] = draw(st.none() | int32)
    row["status"] = draw(st.sampled_from([0, 1, 2]))
    row["snapshot_id"] = draw(st.sampled_from([SNAPSHOT_ID, 3]))
    if layout.version > 1:
        row["content"] = draw(st.sampled_from([0, 0, 1, 2]))
        row["sequence_number"], row["file_sequence_number"] = draw(int64), draw(st.none() | int64)
        row["equality_ids"] = draw(st.none() | st.lists(int32, max_size=3))
        row["referenced_data_file"] = draw(st.none() | st.text(max_size=3).map(lambda text: f"file:{text}"))
        if row["status"] == 1 and row["snapshot_id"] == SNAPSHOT_ID and draw(st.booleans()):
            row["sequence_number"] = row["file_sequence_number"] = None
    if layout.version > 2:
        row["content_offset"], row["content_size_in_bytes"] = draw(st.none() | int64), draw(st.none() | int64)
        row["first_row_id"] = draw(st.none() | st.integers(0, 2**50))
    return row


@st.composite
def tables(draw: st.DrawFn) -> tuple[Layout, list[dict[str, Any]]]:
    layout = draw(layouts())
    return layout, [draw(rows(layout, number)) for number in range(draw(st.integers(0, 6)))]


def expected(layout: Layout, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries a reader must see: with inherited sequence numbers; row ids are checked elsewhere."""
    seen = []
    for row in found:
        sequence = SEQUENCE_NUMBER if layout.version > 1 else 0
        inherits = row.get("sequence_number") is None
        own = row.get("file_sequence_number")
        may = layout.version == 1 or row["status"] == 1
        seen.append(
            row
            | {
                "sequence_number": sequence if inherits else row["sequence_number"],
                "file_sequence_number": sequence if own is None and may else own,
            }
        )
    return seen


def without(found: dict[str, dict[str, Any]], *names: str) -> dict[str, dict[str, Any]]:
    return {key: {n: v for n, v in row.items() if n not in names} for key, row in found.items()}


@given(tables())
def test_manifests_read_as_they_were_written(table: tuple[Layout, list[dict[str, Any]]]) -> None:
    layout, found = table
    entries = layout.entries(found)
    with tempfile.TemporaryDirectory() as folder:
        listed = layout.write(Path(folder), entries)
        again = layout.write(Path(folder), entries, encoder=load_encoder(True))
        for compiled, python in zip(listed.path.to_pylist(), again.path.to_pylist(), strict=True):
            assert read_file(compiled) == read_file(python)
        first = 5 if layout.version > 2 else None
        snapshot = ListedSnapshot(layout.version, SNAPSHOT_ID, None, SEQUENCE_NUMBER, first)
        encoded = encode_manifest_list(listed, snapshot)
        assert encoded.data == encode_manifest_list(listed, snapshot, encoder=load_encoder(True)).data
        manifests = parse_manifest_list(encoded.data, "")
        if layout.version == 1:
            assert manifests.sequence_number.tolist() == [0] * len(manifests)
        read = read_entries(manifests, layout.union, EntryColumns(WHOLE))
    wanted = rows_of(layout.entries(expected(layout, found)))
    assert without(rows_of(read), "first_row_id") == without(wanted, "first_row_id")
    given_ids = {row["file_path"]: row.get("first_row_id") for row in found}
    is_data = manifests.content[read.ints("manifest")] == DATA
    for path, content, row_id in zip(
        read.path.to_pylist(), is_data.tolist(), read.array("first_row_id").to_pylist(), strict=True
    ):
        if content and given_ids[path] is not None:
            assert row_id == given_ids[path]
    check_summaries(layout, manifests, read)


def check_summaries(layout: Layout, manifests: Any, read: Any) -> None:
    """Every entry is within the summary of its manifest."""
    stated, held = manifest_stats(manifests, layout.union.fields), partition_stats(read, layout.union.fields)
    at = read.ints("manifest")
    for field_id, entry in held.columns.items():
        manifest = stated.columns[field_id]
        for flag in ("may_null", "may_nan", "may_value"):
            assert (getattr(manifest, flag)[at] | ~getattr(entry, flag)).all()
        for row in np.flatnonzero(entry.lower.valid if entry.lower is not None else []):
            value = entry.lower.values[row]
            for bound, outside in ((manifest.lower, lambda a, b: a > b), (manifest.upper, lambda a, b: a < b)):
                if bound is not None and bound.valid[at[row]]:
                    assert not outside(plain(bound.values[at[row]]), plain(value))


def plain(value: Any) -> Any:
    return value.as_py() if hasattr(value, "as_py") else value


@settings(max_examples=max(settings.default.max_examples // 3, 1))
@given(tables(), st.integers(1, 4))
def test_a_root_manifest_holds_what_the_manifests_hold(
    table: tuple[Layout, list[dict[str, Any]]], row_group: int
) -> None:
    layout, found = table
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = layout.write_table(folder / "table", layout.entries(found))
        snapshot = written.current_snapshot()
        live = read_entries(read_manifest_list(snapshot.manifest_list), layout.union, EntryColumns(WHOLE)).live()
        summary = write_root(written, str(folder / "root.parquet"), snapshot, row_group_entries=row_group)
        root = RootManifest(str(folder / "root.parquet"))
        again = root.read_entries(root.manifests, layout.union, EntryColumns(WHOLE))
        again.table.validate(full=True)
        assert {f.name: f.type for f in again.table.schema} == {f.name: f.type for f in live.table.schema}
        assert rows_of(again) == rows_of(live)
        assert summary.entries == len(live)
        for group in range(len(root.manifests)):
            part = again.filter(again.ints("manifest") == group)
            assert set(part.spec_id) == {root.manifests.spec_id[group]}
            assert len(set(part.content == 0)) == 1
            assert len(part) <= row_group

"""Written manifests and manifest lists, read by fastavro, PyIceberg and Floeplan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import read_manifest_list as pyiceberg_manifest_list
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    DoubleType,
    LongType,
    NestedField,
    UUIDType,
)

from floeplan.errors import CorruptMetadataError, FloeplanError, UnsupportedError
from floeplan.metadata.avro.decoder import AvroReader
from floeplan.metadata.avro.encoder import load_encoder
from floeplan.metadata.manifests.entries import ALL_COLUMNS, WHOLE, EntryColumns
from floeplan.metadata.manifests.list_writer import ListedSnapshot, encode_manifest_list
from floeplan.metadata.manifests.manifest_list import DATA, UNKNOWN, concat_manifest_lists, parse_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.metadata.manifests.writer import write_manifest
from tests.support.tables.every_type import EVERY_TYPE, TYPES, VALUES, typed_row
from tests.support.tables.layouts import SEQUENCE_NUMBER, SNAPSHOT_ID, Layout, rows_of

pytestmark = pytest.mark.unit

SIMPLE = Layout(
    Schema(NestedField(1, "id", LongType()), NestedField(2, "v", DoubleType()), NestedField(3, "key", UUIDType())),
    (
        PartitionSpec(spec_id=0),
        PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "v"), spec_id=1),
        PartitionSpec(PartitionField(3, 1001, IdentityTransform(), "key"), spec_id=2),
        PartitionSpec(PartitionField(1, 1002, BucketTransform(4), "bucket"), spec_id=4),
    ),
)


def avro(path: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    with open(path, "rb") as file:
        reader = fastavro.reader(file)
        return dict(reader.metadata), list(reader)


def written(layout: Layout, folder: Path, rows: list[dict[str, Any]], **options: Any) -> tuple[Any, list[Any]]:
    return avro(layout.write(folder, layout.entries(rows), **options).path[0].as_py())


def test_partition_values_of_every_type_are_read_by_fastavro(tmp_path: Path) -> None:
    header, (entry, empty) = written(TYPES, tmp_path, [typed_row(), {"spec_id": 3}])
    found = dict(zip(VALUES, map(str, entry["data_file"]["partition"].values()), strict=False))
    logical = {
        "key": str(VALUES["key"][1]),
        "key2": str(VALUES["key2"][1]),
        "day": "1969-12-31",
        "time": "00:00:00.000001",
        "ts": "1969-12-31 23:59:59.999999+00:00",
        "tstz": "1970-01-01 00:00:00.000007+00:00",
    }
    assert found == {name: str(expected) for name, (_, _, expected) in VALUES.items()} | logical
    assert set(empty["data_file"]["partition"].values()) == {None}
    record = json.loads(header["avro.schema"])["fields"][4]["type"]["fields"][3]["type"]
    fields = {field["field-id"]: field for field in record["fields"]}
    assert record["name"] == "r102"
    assert (fields[1000]["name"], fields[1001]["name"]) == ("a_x20flag", "_1st")
    assert fields[1003]["type"][1] == {
        "type": "fixed", "name": "decimal_9_2", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2
    }  # fmt: skip
    assert fields[1004]["type"][1] == fields[1003]["type"][1] | {"name": fields[1004]["type"][1]["name"]}
    assert fields[1012]["type"][1] == {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}
    defined = [field["type"][1]["name"] for field in fields.values() if "name" in field["type"][1]]
    assert len(set(defined)) == len(defined)
    assert fields[1100]["type"] == ["null", "int"]


def test_partition_values_of_every_type_are_read_by_pyiceberg(tmp_path: Path) -> None:
    known = PartitionSpec(*(field for field in EVERY_TYPE.fields if field.name != "ns"), spec_id=3)
    layout = replace(TYPES, version=2, specs=(TYPES.specs[0], known))
    table = layout.write_table(
        tmp_path / "t", layout.entries([{k: v for k, v in typed_row().items() if k != "partition.1018"}])
    )
    io = PyArrowFileIO()
    (manifest,) = pyiceberg_manifest_list(io.new_input(table.current_snapshot().manifest_list))
    (entry,) = manifest.fetch_manifest_entry(io)
    expected = [value for name, (_, _, value) in VALUES.items() if name != "ns"]
    assert [repr(value) for value in entry.data_file.partition] == [*map(repr, expected), "None"]
    assert (entry.sequence_number, entry.snapshot_id) == (SEQUENCE_NUMBER, SNAPSHOT_ID)


@pytest.mark.parametrize("codec", ["deflate", "zstandard", "snappy", "null"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_many_blocks_in_every_codec(tmp_path: Path, version: int, codec: str) -> None:
    layout = replace(SIMPLE, version=version)
    rows = [{"file_path": f"{n:0200d}", "lower_bounds": {1: bytes(100)}} for n in range(900)]
    entries = layout.entries(rows)
    path = layout.write(tmp_path, entries, codec=codec).path[0].as_py()
    data = Path(path).read_bytes()
    reader = AvroReader()
    header = reader.header(data, path)
    assert header.codec == codec
    assert header.metadata["format-version"] == str(version).encode()
    assert ("content" in header.metadata) == (version > 1)
    blocks = list(reader.blocks(data, header, path))
    assert len(blocks) > 3
    assert sum(block.count for block in blocks) == 900
    again = layout.write(tmp_path, entries, codec=codec, encoder=load_encoder(True)).path[0].as_py()
    assert Path(again).read_bytes() == data


def test_an_unknown_codec_or_version_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"lz77.*deflate"):
        written(SIMPLE, tmp_path, [{}], codec="lz77")
    with pytest.raises(UnsupportedError, match="format version 9"):
        written(replace(SIMPLE, version=9), tmp_path, [{}])


def test_null_values_are_inherited_and_others_are_kept(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"snapshot_id": None},
        {"sequence_number": 4},
        {"status": 0, "snapshot_id": 3, "sequence_number": 2, "file_sequence_number": 2},
        {"status": 2, "sequence_number": 1},
    ]
    listed = SIMPLE.write(tmp_path, SIMPLE.entries(rows))
    _, found = avro(listed.path[0].as_py())
    assert [entry["sequence_number"] for entry in found] == [None, 4, 2, 1]
    assert [entry["snapshot_id"] for entry in found] == [SNAPSHOT_ID, SNAPSHOT_ID, 3, SNAPSHOT_ID]
    assert (listed.sequence_number[0], listed.min_sequence_number[0]) == (UNKNOWN, 2)
    data = encode_manifest_list(listed, ListedSnapshot(2, SNAPSHOT_ID, None, 8)).data
    again = read_entries(parse_manifest_list(data, ""), SIMPLE.union)
    assert again.sequence_number.tolist() == [8, 4, 2, 1]


@pytest.mark.parametrize(
    "row",
    [{"status": 0}, {"status": 2}, {"status": 1, "snapshot_id": SNAPSHOT_ID - 1}],
    ids=["existing", "deleted", "added by another snapshot"],
)
def test_a_file_that_may_not_inherit_needs_a_sequence_number(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(CorruptMetadataError, match=r"f0\.parquet .* no sequence number"):
        written(SIMPLE, tmp_path, [row])
    assert list(tmp_path.iterdir()) == []
    layout = replace(SIMPLE, version=1)
    assert len(written(layout, tmp_path, [row])[1]) == 1


@pytest.mark.parametrize(
    ("version", "row", "message"),
    [
        (1, {"content": 1, "status": 1}, "format 1 has no delete files"),
        (1, {"equality_ids": [1]}, "format 1 does not have equality_ids"),
        (1, {"referenced_data_file": "a"}, "referenced_data_file"),
        (2, {"first_row_id": 1}, "format 2 does not have first_row_id"),
        (2, {"content": 1, "content_offset": 1}, "content_offset"),
    ],
)
def test_values_the_format_version_lacks_are_refused(
    tmp_path: Path, version: int, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        written(replace(SIMPLE, version=version), tmp_path, [row])
    assert list(tmp_path.iterdir()) == []


def test_a_value_of_another_length_than_its_type_is_refused(tmp_path: Path) -> None:
    for column in ("partition.1011", "partition.1012"):
        with pytest.raises(CorruptMetadataError, match=r"not have .* bytes"):
            written(TYPES, tmp_path, [typed_row(**{column: b"ab"})])
    assert list(tmp_path.iterdir()) == []


def test_entries_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "m.avro")
    options = {"union": SIMPLE.union, "format_version": 2, "content": DATA, "snapshot_id": SNAPSHOT_ID}

    def write(rows: list[dict[str, Any]]) -> None:
        write_manifest(path, SIMPLE.entries(rows), SIMPLE.spec(0), SIMPLE.schema, **options)

    with pytest.raises(CorruptMetadataError, match="spec 0 cannot contain entries of another spec"):
        write([{}, {"spec_id": 1}])
    with pytest.raises(CorruptMetadataError, match="either data files or delete files"):
        write([{}, {"content": 1}])
    write([{}])
    with pytest.raises(FloeplanError, match="exists already"):
        write([{}])


def test_entries_that_were_not_read_whole_are_refused(tmp_path: Path) -> None:
    table = SIMPLE.write_table(tmp_path / "t", SIMPLE.entries([{}]))
    listed = parse_manifest_list(Path(table.current_snapshot().manifest_list).read_bytes(), "")
    for names, missing in ((ALL_COLUMNS, "lower_bounds"), (WHOLE - {"key_metadata"}, "key_metadata")):
        entries = read_entries(listed, SIMPLE.union, EntryColumns(names))
        with pytest.raises(CorruptMetadataError, match=rf"without .*{missing}.*read all columns of them"):
            SIMPLE.write(tmp_path, entries)


def test_a_key_without_a_value_is_left_out(tmp_path: Path) -> None:
    rows = [{"lower_bounds": {1: None, 2: b"x"}}, {"lower_bounds": {}}, {}, {"lower_bounds": {1: b"y", 3: None}}]
    _, found = written(SIMPLE, tmp_path, rows)
    assert [entry["data_file"]["lower_bounds"] for entry in found] == [
        [{"key": 2, "value": b"x"}],
        [],
        None,
        [{"key": 1, "value": b"y"}],
    ]


def test_everything_an_entry_can_hold_is_written(tmp_path: Path) -> None:
    layout = replace(SIMPLE, version=3)
    row = {
        "content": 1,
        "file_format": "PUFFIN",
        "key_metadata": b"\x00key",
        "split_offsets": [4, 99],
        "equality_ids": [1, 2],
        "sort_order_id": 3,
        "referenced_data_file": "d.parquet",
        "content_offset": 4,
        "content_size_in_bytes": 50,
        "column_sizes": {1: 9},
        "nan_value_counts": {},
        "upper_bounds": {2_147_483_546: b"z", 1: b""},
    }
    entries = layout.entries([row, {"content": 2}])
    table = layout.write_table(tmp_path / "t", entries)
    listed = parse_manifest_list(Path(table.current_snapshot().manifest_list).read_bytes(), "")
    again = read_entries(listed, layout.union, EntryColumns(WHOLE))
    inherited = dict.fromkeys(("sequence_number", "file_sequence_number"), repr(SEQUENCE_NUMBER))
    assert rows_of(again) == {key: found | inherited for key, found in rows_of(entries).items()}


def summary(folder: Path, spec_id: int, column: str, values: list[Any]) -> tuple[Any, ...]:
    rows = [{"spec_id": spec_id, column: value} for value in values]
    found = SIMPLE.write(folder, SIMPLE.entries(rows)).summaries
    nan = {0: False, 1: True}[int(found.contains_nan[0])]
    return bool(found.contains_null[0]), nan, found.lower[0].as_py(), found.upper[0].as_py()


def test_partition_summaries_know_nulls_nan_and_both_zeros(tmp_path: Path) -> None:
    def double(value: float) -> bytes:
        return np.float64(value).tobytes()

    column, nan = "partition.1000", float("nan")
    assert summary(tmp_path, 1, column, [1.0, nan, None]) == (True, True, double(1.0), double(1.0))
    assert summary(tmp_path, 1, column, [0.0, -0.0]) == (False, False, double(-0.0), double(0.0))
    assert summary(tmp_path, 1, column, [-0.0, -1.0]) == (False, False, double(-1.0), double(-0.0))
    assert summary(tmp_path, 1, column, [nan, nan]) == (False, True, None, None)
    assert summary(tmp_path, 1, column, [None, 2.0, 3.0]) == (True, False, double(2.0), double(3.0))


def test_uuids_are_ordered_as_java_orders_them(tmp_path: Path) -> None:
    low, high = b"\x80" + bytes(15), b"\x7f" + bytes(15)
    late = b"\x7f" + bytes(7) + b"\x80" + bytes(7)
    assert summary(tmp_path, 2, "partition.1001", [high, low]) == (False, False, low, high)
    assert summary(tmp_path, 2, "partition.1001", [high, late]) == (False, False, late, high)


LISTED = ListedSnapshot(3, SNAPSHOT_ID, 5, SEQUENCE_NUMBER, 1000)


def test_row_ids_are_given_to_data_manifests_that_have_none(tmp_path: Path) -> None:
    layout = replace(SIMPLE, version=3)
    rows: list[dict[str, Any]] = [
        {"record_count": 7},
        {"record_count": 5, "status": 0, "sequence_number": 1},
        {"record_count": 100, "status": 2, "sequence_number": 1},
        {"spec_id": 1, "record_count": 3},
        {"spec_id": 1, "content": 1, "record_count": 50},
        {"spec_id": 4, "record_count": 2},
    ]
    listed = layout.write(tmp_path, layout.entries(rows))
    older = replace(listed, first_row_id=np.where(listed.spec_id == 4, 20, UNKNOWN))
    encoded = encode_manifest_list(older, LISTED)
    again = parse_manifest_list(encoded.data, "")
    expected = {(0, 0): 1000, (1, 0): 1012, (1, 1): UNKNOWN, (4, 0): 20}
    found = zip(again.spec_id.tolist(), again.content.tolist(), strict=True)
    assert dict(zip(found, again.first_row_id.tolist(), strict=True)) == expected
    assert encoded.next_row_id == 1015
    data = read_entries(again, layout.union, rows=np.flatnonzero(again.spec_id == 0))
    assert data.table.column("first_row_id").to_pylist() == [1000, 1007, None]
    with pytest.raises(CorruptMetadataError, match="next row id"):
        encode_manifest_list(older, replace(LISTED, first_row_id=None))


def test_a_list_keeps_what_older_lists_say(tmp_path: Path) -> None:
    new = SIMPLE.write(tmp_path, SIMPLE.entries([{}, {"spec_id": 1, "partition.1000": 1.0}]))
    old = replace(new, sequence_number=np.array([3, 2]), min_sequence_number=np.array([1, 2]))
    old = replace(old, added_snapshot_id=np.array([4, 5]))
    snapshot = ListedSnapshot(2, SNAPSHOT_ID, 5, SEQUENCE_NUMBER)
    again = parse_manifest_list(encode_manifest_list(concat_manifest_lists([new, old]), snapshot).data, "")
    assert again.sequence_number.tolist() == [9, 9, 3, 2]
    assert again.min_sequence_number.tolist() == [9, 9, 1, 2]
    assert again.added_snapshot_id.tolist() == [SNAPSHOT_ID, SNAPSHOT_ID, 4, 5]
    assert again.summaries.offsets.tolist() == [0, 0, 1, 1, 2]


def test_inconsistent_lists_are_refused(tmp_path: Path) -> None:
    listed = SIMPLE.write(tmp_path, SIMPLE.entries([{}]))
    snapshot = ListedSnapshot(2, SNAPSHOT_ID, None, SEQUENCE_NUMBER)
    with pytest.raises(CorruptMetadataError, match=r"m0.*not added by this snapshot"):
        encode_manifest_list(listed, replace(snapshot, snapshot_id=1))
    unknown = replace(listed, existing_files=np.array([UNKNOWN]))
    with pytest.raises(CorruptMetadataError, match="no file counts"):
        encode_manifest_list(unknown, snapshot)
    data = encode_manifest_list(unknown, ListedSnapshot(1, SNAPSHOT_ID, None, 0)).data
    assert parse_manifest_list(data, "").existing_files.tolist() == [UNKNOWN]
    with pytest.raises(CorruptMetadataError, match="encrypted"):
        encode_manifest_list(replace(listed, has_key_metadata=np.array([True])), snapshot)
    with pytest.raises(UnsupportedError, match="format 1 has no delete"):
        encode_manifest_list(replace(listed, content=np.array([1])), replace(snapshot, format_version=1))

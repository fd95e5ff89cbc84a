"""Manifests as columns: every format version, both decoders, inheritance, and damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, VoidTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FixedType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    UUIDType,
)

from floeplan.errors import CorruptMetadataError, UnsupportedError
from floeplan.metadata.avro.decoder import load_decoder
from floeplan.metadata.manifests.entries import POSITION_DELETE_PATH, EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from tests.support.tables.manifests import COMPRESS, Writer, recode, write_manifests

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "region", StringType()),
    NestedField(3, "ts", TimestampType()),
    NestedField(4, "price", DecimalType(9, 2)),
    NestedField(5, "big", DecimalType(30, 4)),
    NestedField(6, "key", UUIDType()),
    NestedField(7, "v", DoubleType()),
)
UNPARTITIONED = UnionPartitionType.of([PartitionSpec(spec_id=0)], {})
DECODERS = [pytest.param(load_decoder(pure), id="python" if pure else "compiled") for pure in (False, True)]


def union(*specs: PartitionSpec) -> UnionPartitionType:
    return UnionPartitionType.of(specs, source_types(SCHEMA))


def read(
    path: str, partition: UnionPartitionType = UNPARTITIONED, columns: EntryColumns | None = None, **more: Any
) -> EntriesTable:
    return read_entries(read_manifest_list(path), partition, columns or EntryColumns(), **more)


def test_the_compiled_decoder_is_installed() -> None:
    """Without it the other tests of this file would compare the Python decoder with itself."""
    assert load_decoder(False).__module__.endswith("_avro_decode")


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("codec", sorted(COMPRESS))
def test_every_version_and_codec_gives_the_same_entries(
    tmp_path: Path, version: int, codec: str, decoder: type
) -> None:
    writer = Writer(version=version, codec=codec)
    entries = [writer.entry(f"f{n}.parquet", record_count=n, split_offsets=[4, 4 + n]) for n in range(50)]
    path = write_manifests(tmp_path, [(writer.manifest(entries), {})], writer)
    table = read(path, decoder=decoder).table
    assert table.column("file_path").to_pylist() == [f"f{n}.parquet" for n in range(50)]
    assert table.column("record_count").to_pylist() == list(range(50))
    assert table.column("split_offsets").to_pylist() == [[4, 4 + n] for n in range(50)]
    assert table.column("ordinal").to_pylist() == list(range(50))
    assert set(table.column("sequence_number").to_pylist()) == {0 if version == 1 else 7}
    assert set(table.column("snapshot_id").to_pylist()) == {70}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("null_first", [True, False])
def test_unknown_fields_are_skipped_and_unions_may_have_any_order(
    tmp_path: Path, null_first: bool, decoder: type
) -> None:
    writer = Writer(version=3, null_first=null_first, extra_fields=True)
    entry = writer.entry(
        content=1,
        first_row_id=5,
        referenced_data_file="d.parquet",
        content_offset=44,
        content_size_in_bytes=55,
        sort_order_id=3,
        key_metadata=b"k",
        equality_ids=[1, 2],
        lower_bounds={1: b"low", 9: b"no"},
        null_value_counts={1: 0},
    )
    path = write_manifests(tmp_path, [(writer.manifest([entry, writer.entry("b")]), {})], writer)
    columns = EntryColumns(stats=frozenset({1}), sizes=frozenset({1}))
    first, second = read(path, columns=columns, decoder=decoder).table.to_pylist()
    assert first["referenced_data_file"] == "d.parquet"
    assert (first["content_offset"], first["content_size_in_bytes"], first["sort_order_id"]) == (44, 55, 3)
    assert (first["key_metadata"], first["equality_ids"], first["content"]) == (b"k", [1, 2], 1)
    assert (first["lower.1"], first["upper.1"], first["null_count.1"]) == (b"low", None, 0)
    assert "lower.9" not in first
    assert second["file_path"] == "b"
    assert all(second[name] is None for name in ("content_offset", "equality_ids", "lower.1", "column_size.1"))
    assert second["key_metadata"] is None


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("with_lengths", [True, False])
@pytest.mark.parametrize("values", [[b"abc", None, b"\x06bc"], [None, None], [b"\x06\x06\x06"] * 3])
def test_fixed_values_may_have_a_length_that_the_schema_does_not_mention(
    tmp_path: Path, values: list[bytes | None], with_lengths: bool, decoder: type
) -> None:
    """Iceberg Java writes them this way; other writers follow the schema."""
    writer = Writer()
    types = {"type": "fixed", "size": 3, "name": "fixed_3"}, "fixed_3"
    fields = [writer.field(f"p{at}", 1000 + at, "bytes" if with_lengths else avro) for at, avro in enumerate(types)]
    tuples = [{"p0": value, "p1": value} for value in values]
    data = writer.manifest([writer.entry(partition=pair, record_count=6) for pair in tuples], fields)
    if with_lengths:
        schema = json.dumps(writer.entry_schema([writer.field(f"p{at}", 1000 + at, t) for at, t in enumerate(types)]))
        data = recode(data, "null", schema)
    identities = [PartitionField(8 + at, 1000 + at, IdentityTransform(), f"p{at}") for at in range(2)]
    sources = {8 + at: (FixedType(3),) for at in range(2)}
    both = UnionPartitionType.of([PartitionSpec(*identities, spec_id=0)], sources)
    table = read(write_manifests(tmp_path, [(data, {})], writer), both, decoder=decoder).table
    assert table.column("partition.1000").to_pylist() == table.column("partition.1001").to_pylist() == values
    assert table.column("record_count").to_pylist() == [6] * len(values)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_partition_tuple_is_the_union_over_specs(tmp_path: Path, decoder: type) -> None:
    writer = Writer()
    day = PartitionField(3, 1001, DayTransform(), "day")
    specs = [
        PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=0),
        PartitionSpec(PartitionField(2, 1000, VoidTransform(), "region"), day, spec_id=3),
        PartitionSpec(
            PartitionField(4, 1002, IdentityTransform(), "price"),
            PartitionField(5, 1003, IdentityTransform(), "big"),
            PartitionField(6, 1004, IdentityTransform(), "key"),
            PartitionField(7, 1005, IdentityTransform(), "v"),
            spec_id=5,
        ),
    ]
    fixed = {"type": "fixed", "logicalType": "decimal", "precision": 9, "scale": 2, "size": 4, "name": "d9"}
    wide = {"type": "fixed", "logicalType": "decimal", "precision": 30, "scale": 4, "size": 13, "name": "d30"}
    uuid = {"type": "fixed", "size": 16, "name": "uuid_fixed"}
    of_spec = {
        0: [writer.field("region", 1000, "string")],
        3: [writer.field("region", 1000, "string"), writer.field("day", 1001, {"type": "int", "logicalType": "date"})],
        5: [
            writer.field("price", 1002, fixed | {"logicalType": "none"}),
            writer.field("big", 1003, wide | {"logicalType": "none"}),
            writer.field("key", 1004, uuid),
            writer.field("v", 1005, "float"),
        ],
    }
    values = {
        0: [{"region": "eu"}, {"region": None}],
        3: [{"region": None, "day": 19000}],
        5: [
            {
                "price": (-125).to_bytes(4, "big", signed=True),
                "big": (-(10**29)).to_bytes(13, "big", signed=True),
                "key": bytes(range(16)),
                "v": float("nan"),
            },
            {"price": None, "big": None, "key": None, "v": None},
        ],
    }
    manifests = [
        (
            writer.manifest([writer.entry(partition=value) for value in values[spec]], of_spec[spec], spec),
            {"partition_spec_id": spec},
        )
        for spec in (5, 0, 3)
    ]
    entries = read(write_manifests(tmp_path, manifests), union(*specs), decoder=decoder)
    rows = entries.table.to_pylist()
    assert [row["spec_id"] for row in rows] == [5, 5, 0, 0, 3]
    assert [row["manifest"] for row in rows] == [0, 0, 1, 1, 2]
    assert [row["ordinal"] for row in rows] == [0, 1, 0, 1, 0]
    assert [row["partition.1000"] for row in rows] == [None, None, "eu", None, None]
    assert [row["partition.1001"] for row in rows] == [None, None, None, None, 19000]
    assert rows[0]["partition.1002"] == -125
    assert str(rows[0]["partition.1003"]) == "-10000000000000000000000000.0000"
    assert rows[0]["partition.1004"] == bytes(range(16))
    assert np.isnan(rows[0]["partition.1005"])
    assert rows[1]["partition.1002"] is None
    assert entries.partition_types[1003] == DecimalType(30, 4)


def test_one_partition_field_id_with_two_meanings_gives_two_columns(tmp_path: Path) -> None:
    writer = Writer(version=1)
    specs = [
        PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=0),
        PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket"), spec_id=1),
    ]
    manifests = [
        (writer.manifest([writer.entry(partition={"region": "eu"})], [writer.field("region", 1000, "string")]), {}),
        (
            writer.manifest([writer.entry(partition={"id_bucket": 3})], [writer.field("id_bucket", 1000, "int")]),
            {"partition_spec_id": 1},
        ),
    ]
    entries = read(write_manifests(tmp_path, manifests, writer), union(*specs))
    assert entries.array("partition.1000").to_pylist() == ["eu", None]
    assert entries.array("partition.1001").to_pylist() == [None, 3]


def test_a_source_no_schema_knows_is_typed_by_the_manifest(tmp_path: Path) -> None:
    writer = Writer()
    spec = PartitionSpec(
        PartitionField(99, 1000, IdentityTransform(), "gone"),
        PartitionField(98, 1001, IdentityTransform(), "unwritten"),
        spec_id=0,
    )
    fields = [
        writer.field("gone", 1000, {"type": "int", "logicalType": "date"}),
        writer.field("unwritten", 1001, "null", optional=False),
    ]
    data = writer.manifest([writer.entry(partition={"gone": 3, "unwritten": None})], fields)
    entries = read(write_manifests(tmp_path, [(data, {})]), union(spec))
    assert entries.array("partition.1000").to_pylist() == [3]
    assert str(entries.partition_types[1000]) == "date"
    assert entries.array("partition.1001").type == pa.null()


def test_sequence_numbers_are_inherited_by_added_files_only(tmp_path: Path) -> None:
    writer = Writer()
    entries = [
        writer.entry("added"),
        writer.entry("kept", status=0, sequence_number=3, file_sequence_number=2, snapshot_id=30),
        writer.entry("old writer", status=0, sequence_number=3),
        writer.entry("gone", status=2, sequence_number=4, file_sequence_number=4),
    ]
    table = read(write_manifests(tmp_path, [(writer.manifest(entries), {})])).table
    assert table.column("sequence_number").to_pylist() == [7, 3, 3, 4]
    assert table.column("file_sequence_number").to_pylist() == [7, 2, None, 4]
    assert table.column("snapshot_id").to_pylist() == [70, 30, 70, 70]


@pytest.mark.parametrize("status", [0, 2])
def test_a_file_that_was_not_added_needs_its_own_sequence_number(tmp_path: Path, status: int) -> None:
    writer = Writer()
    path = write_manifests(tmp_path, [(writer.manifest([writer.entry(status=status)]), {})])
    with pytest.raises(
        CorruptMetadataError, match=r"m0.avro has 1 EXISTING or DELETED entries without a sequence number"
    ):
        read(path)


def test_entries_from_before_sequence_numbers_have_zero(tmp_path: Path) -> None:
    writer = Writer(version=1)
    manifests = [(writer.manifest([writer.entry(status=0), writer.entry(status=2)]), {"sequence_number": 0})]
    assert read(write_manifests(tmp_path, manifests, Writer(version=2))).sequence_number.tolist() == [0, 0]


def test_first_row_ids_run_over_the_files_that_lack_one(tmp_path: Path) -> None:
    writer = Writer(version=3)
    entries = [
        writer.entry("a", status=0, sequence_number=1, first_row_id=500, record_count=1),
        writer.entry("b", record_count=50),
        writer.entry("c", status=2, sequence_number=1, record_count=1000),
        writer.entry("d", record_count=25),
        writer.entry("e", status=0, sequence_number=1, record_count=5),
        writer.entry("f", record_count=1),
    ]
    data = writer.manifest(entries)
    manifests = [
        (data, {"first_row_id": 1000}),
        (data, {"first_row_id": None}),
        (data, {"first_row_id": 2000, "content": 1}),
        (data, {"first_row_id": 9000}),
    ]
    path = write_manifests(tmp_path, manifests, writer)
    ids = read(path, rows=np.array([3, 0, 1, 2])).array("first_row_id").to_pylist()
    assert ids[:6] == [500, 9000, None, 9050, 9075, 9080]
    assert ids[6:12] == [500, 1000, None, 1050, 1075, 1080]
    assert ids[12:] == [None] * 12


def test_formats_are_in_capitals_and_deleted_entries_can_be_left_out(tmp_path: Path) -> None:
    writer = Writer()
    entries = [writer.entry("a", file_format="parquet"), writer.entry("b", status=2, sequence_number=1)]
    table = read(write_manifests(tmp_path, [(writer.manifest(entries), {})]))
    assert table.array("file_format").to_pylist() == ["PARQUET", "PARQUET"]
    assert table.live().path.to_pylist() == ["a"]


def test_the_target_of_a_delete_is_its_reference_or_the_only_path_it_holds(tmp_path: Path) -> None:
    writer = Writer(version=3)

    def bounds(low: bytes, high: bytes) -> dict[str, Any]:
        return {"lower_bounds": {POSITION_DELETE_PATH: low}, "upper_bounds": {POSITION_DELETE_PATH: high}}

    entries = [
        writer.entry("dv", content=1, referenced_data_file="x", **bounds(b"a", b"b")),
        writer.entry("one", content=1, **bounds(b"y", b"y")),
        writer.entry("many", content=1, **bounds(b"y", b"z")),
        writer.entry("equality", content=2, **bounds(b"y", b"y")),
        writer.entry("nothing known", content=1),
    ]
    path = write_manifests(tmp_path, [(writer.manifest(entries), {"content": 1})], writer)
    table = read(path, columns=EntryColumns(stats=frozenset({POSITION_DELETE_PATH})))
    assert table.delete_targets().to_pylist() == ["x", "y", None, None, None]
    assert read(path).delete_targets().to_pylist() == ["x", None, None, None, None]


def test_only_requested_columns_are_read(tmp_path: Path) -> None:
    writer = Writer()
    path = write_manifests(tmp_path, [(writer.manifest([writer.entry()]), {})])
    names = read(path, columns=EntryColumns(names=frozenset({"sort_order_id"}))).table.column_names
    assert "sort_order_id" in names
    assert not {"split_offsets", "equality_ids", "first_row_id", "key_metadata"} & set(names)


def test_no_manifests_and_empty_manifests_give_empty_tables(tmp_path: Path) -> None:
    writer = Writer()
    nothing = read(write_manifests(tmp_path, []))
    assert len(nothing) == 0
    empty = read(write_manifests(tmp_path, [(writer.manifest([]), {})]), columns=EntryColumns(stats=frozenset({1})))
    assert len(empty.live()) == 0
    assert nothing.table.schema.equals(read(write_manifests(tmp_path, [(writer.manifest([]), {})])).table.schema)


def test_an_unknown_spec_is_named(tmp_path: Path) -> None:
    writer = Writer()
    path = write_manifests(tmp_path, [(writer.manifest([writer.entry()]), {"partition_spec_id": 9})])
    with pytest.raises(CorruptMetadataError, match=r"m0.avro .* partition spec 9, the table has only 0"):
        read(path)


def test_a_partition_field_the_manifest_lacks_is_not_read_as_null(tmp_path: Path) -> None:
    writer = Writer()
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=0)
    path = write_manifests(tmp_path, [(writer.manifest([writer.entry()]), {})])
    with pytest.raises(CorruptMetadataError, match=r"lacks partition.1000"):
        read(path, union(spec))


def test_a_partition_value_of_another_kind_is_refused(tmp_path: Path) -> None:
    writer = Writer()
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=0)
    data = writer.manifest([writer.entry(partition={"region": 3})], [writer.field("region", 1000, "int")])
    with pytest.raises(CorruptMetadataError, match="'region' with a type that does not fit string"):
        read(write_manifests(tmp_path, [(data, {})]), union(spec))


def test_an_encrypted_manifest_is_refused(tmp_path: Path) -> None:
    writer = Writer()
    path = write_manifests(tmp_path, [(writer.manifest([writer.entry()]), {"key_metadata": b"key"})])
    with pytest.raises(UnsupportedError, match=r"m0.avro is encrypted"):
        read(path)


def test_a_manifest_shorter_than_listed_is_damaged(tmp_path: Path) -> None:
    """Truncated between two blocks, the file would be readable and its last entries lost."""
    writer = Writer()
    data = writer.manifest([writer.entry()])
    path = write_manifests(tmp_path, [(data, {"manifest_length": len(data) + 1, "added_files_count": 2})])
    with pytest.raises(CorruptMetadataError, match=rf"m0.avro is damaged at byte {len(data)}"):
        read(path)


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    writer = Writer()
    path = write_manifests(tmp_path, [(writer.manifest([writer.entry()]), {})])
    (tmp_path / "m0.avro").unlink()
    with pytest.raises(CorruptMetadataError, match=r"m0.avro does not exist"):
        read(path)


def test_an_unknown_codec_is_named(tmp_path: Path) -> None:
    data = Writer(codec="null").manifest([]).replace(b"\x08null", b"\x08lzma", 1)
    with pytest.raises(UnsupportedError, match=r"m0.avro is compressed with 'lzma'; supported codecs are deflate"):
        read(write_manifests(tmp_path, [(data, {})]))

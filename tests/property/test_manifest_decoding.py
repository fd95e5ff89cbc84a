"""Random manifests against fastavro, both decoders against each other, and damaged files."""

from __future__ import annotations

import io
import tracemalloc
from dataclasses import fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from floeplan.errors import FloeplanError
from floeplan.metadata.avro.decoder import AvroReader, load_decoder
from floeplan.metadata.manifests.entries import EntryColumns
from floeplan.metadata.manifests.manifest_list import parse_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.fields import source_types
from floeplan.partition.union import UnionPartitionType
from tests.support.tables.manifests import MAP_IDS, Writer, recode

pytestmark = pytest.mark.property

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "region", StringType()), NestedField(3, "v", DoubleType())
)
SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "region"), PartitionField(3, 1001, IdentityTransform(), "v"), spec_id=0
)
UNION = UnionPartitionType.of([SPEC], source_types(SCHEMA))
COLUMNS = EntryColumns(stats=frozenset({1, 3, 70_000}), sizes=frozenset({1}))
COMPILED, PYTHON = load_decoder(False), load_decoder(True)

longs = st.integers(-(2**63), 2**63 - 1)
maybe_longs = st.none() | longs
keys = st.sampled_from([1, 2, 3, 4, 70_000, 2**31 - 1])
writers = st.builds(
    Writer,
    version=st.sampled_from([1, 2, 3]),
    codec=st.sampled_from(["null", "deflate", "gzip", "snappy", "zstandard"]),
    null_first=st.booleans(),
    extra_fields=st.booleans(),
    sync_interval=st.sampled_from([1, 100, 100_000]),
)
data_files = st.fixed_dictionaries(
    {
        "record_count": longs,
        "file_size_in_bytes": longs,
        "content": st.sampled_from([0, 1, 2]),
        "partition": st.fixed_dictionaries({"region": st.none() | st.text(max_size=5), "v": st.none() | st.floats()}),
    },
    optional={
        "key_metadata": st.none() | st.binary(max_size=4),
        "split_offsets": st.none() | st.lists(longs, max_size=4),
        "equality_ids": st.none() | st.lists(st.integers(1, 9), max_size=3),
        "sort_order_id": st.none() | st.integers(0, 5),
        "first_row_id": maybe_longs,
        "referenced_data_file": st.none() | st.text(max_size=9),
        "content_offset": maybe_longs,
        "content_size_in_bytes": maybe_longs,
    }
    | {
        name: st.dictionaries(keys, st.binary(max_size=9) if ids[3] == "bytes" else longs)
        for name, ids in MAP_IDS.items()
    },
)
entries = st.tuples(st.text(max_size=12), st.sampled_from([0, 1, 2]), longs, data_files)


def partition_fields(writer: Writer) -> list[dict[str, Any]]:
    return [writer.field("region", 1000, "string"), writer.field("v", 1001, "double")]


def encode(writer: Writer, found: list[Any]) -> bytes:
    rows = [writer.entry(path, status=status, sequence_number=seq, **values) for path, status, seq, values in found]
    return writer.manifest(rows, partition_fields(writer))


FOLDER = TemporaryDirectory()


def decode(data: bytes, decoder: type, sequence_number: int = 7) -> pa.Table:
    """Always with the same manifest name, so that messages can be compared."""
    manifest = Path(FOLDER.name, "m.avro")
    manifest.write_bytes(data)
    listed = {"manifest_path": str(manifest), "manifest_length": len(data)}
    listed |= {"first_row_id": 100, "sequence_number": sequence_number}
    manifests = parse_manifest_list(Writer(version=3).manifest_list([listed]), "l.avro", decoder=decoder)
    return read_entries(manifests, UNION, COLUMNS, decoder=decoder).table


@given(writers, st.lists(entries, max_size=6))
def test_columns_hold_what_fastavro_reads(writer: Writer, found: list[Any]) -> None:
    data = encode(writer, found)
    manifest_sequence = 0 if writer.version == 1 else 7
    compiled, python = (decode(data, decoder, manifest_sequence) for decoder in (COMPILED, PYTHON))
    compiled.validate(full=True)
    assert same(compiled, python)
    expected = list(fastavro.reader(io.BytesIO(recode(data, "null"))))
    for row, entry in zip(compiled.to_pylist(), expected, strict=True):
        file = entry["data_file"]
        assert row["status"] == entry["status"]
        assert row["sequence_number"] == entry.get("sequence_number", 0)
        for name in ("file_path", "record_count", "file_size_in_bytes", "split_offsets", "sort_order_id"):
            assert row[name] == file[name]
        for name in ("equality_ids", "referenced_data_file", "content_offset", "content_size_in_bytes"):
            assert row[name] == file.get(name)
        assert row["content"] == file.get("content", 0)
        assert row["key_metadata"] == file["key_metadata"]
        assert row["partition.1000"] == file["partition"]["region"]
        assert repr(row["partition.1001"]) == repr(file["partition"]["v"])
        for prefix, name in NAMES.items():
            values = {item["key"]: item["value"] for item in file[name] or []}
            assert [row[f"{prefix}.{key}"] for key in (1, 3, 70_000)] == [values.get(key) for key in (1, 3, 70_000)]
        sizes = {item["key"]: item["value"] for item in file["column_sizes"] or []}
        assert row["column_size.1"] == sizes.get(1)


NAMES = {
    "value_count": "value_counts",
    "null_count": "null_value_counts",
    "nan_count": "nan_value_counts",
    "lower": "lower_bounds",
    "upper": "upper_bounds",
}


def same(left: pa.Table, right: pa.Table) -> bool:
    """Equal, NaN included."""
    return left.schema.equals(right.schema) and repr(left.to_pylist()) == repr(right.to_pylist())


def outcome(data: bytes, decoder: type) -> tuple[str, Any]:
    try:
        return "table", repr(decode(data, decoder).to_pylist())
    except FloeplanError as error:
        return "error", error.message


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A manifest with flipped bits, truncated, or with a piece replaced by the bytes of a huge length."""
    writer = draw(writers)
    data = bytearray(encode(writer, draw(st.lists(entries, min_size=1, max_size=3))))
    reader = AvroReader()
    body = reader.header(bytes(data), "m").size
    spot = st.integers(0, len(data) - 1) | st.integers(body, len(data) - 1)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(spot)
        match draw(st.sampled_from(["flip", "cut", "huge", "noise"])):
            case "flip":
                data[at : at + 1] = bytes([b ^ (1 << draw(st.integers(0, 7))) for b in data[at : at + 1]])
            case "cut":
                del data[at:]
            case "huge":
                data[at : at + 9] = b"\xff" * draw(st.integers(1, 12)) + b"\x01"
            case "noise":
                data[at : at + 4] = draw(st.binary(max_size=8))
    return bytes(data)


@given(damaged())
@example(b"")
@example(b"Obj\x01")
@example(b"Obj\x01" + b"\xff" * 9 + b"\x01")
def test_damaged_manifests_give_a_clear_error_or_the_same_table(data: bytes) -> None:
    tracemalloc.start()
    try:
        python = outcome(data, PYTHON)
        assert outcome(data, COMPILED) == python
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


@given(st.data())
def test_damaged_blocks_behind_an_intact_header(choices: st.DataObject) -> None:
    """Without compression every flip reaches the decoder itself."""
    writer = Writer(version=choices.draw(st.sampled_from([1, 2, 3])), codec="null", sync_interval=10**6)
    data = bytearray(encode(writer, choices.draw(st.lists(entries, min_size=1, max_size=3))))
    reader = AvroReader()
    body = reader.header(bytes(data), "m").size + 16
    for _ in range(choices.draw(st.integers(1, 4))):
        data[choices.draw(st.integers(body, len(data) - 17))] = choices.draw(st.integers(0, 255))
    assert outcome(bytes(data), PYTHON) == outcome(bytes(data), COMPILED)


def plain(value: Any) -> Any:
    """A table of columns as lists, to be compared."""
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    return value if isinstance(value, str) else value.tolist()


@given(st.binary(max_size=40), st.integers(0, 2000), st.sampled_from([1, 2, 3]))
def test_damaged_manifest_lists(noise: bytes, at: int, version: int) -> None:
    summary = {"contains_null": True, "contains_nan": None, "lower_bound": b"a", "upper_bound": None}
    listed = [{"manifest_path": f"m{n}", "partitions": [summary] * n} for n in range(4)]
    data = Writer(version=version, codec="null").manifest_list(listed)
    at = min(at, len(data))
    data = data[:at] + noise + data[at + len(noise) :]
    found = []
    for decoder in (COMPILED, PYTHON):
        try:
            found.append(str(plain(parse_manifest_list(data, "l.avro", decoder=decoder))))
        except FloeplanError as error:
            found.append(error.message)
    assert found[0] == found[1]

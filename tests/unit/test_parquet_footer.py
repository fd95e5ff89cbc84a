"""Footers: one request, every type, field ids, and clear errors."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floeplan.errors import CorruptFileError, UnsupportedError
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.thrift import BINARY, I32, I64, LIST, STRUCT, encode_struct
from floeplan.parquet.prune.pruner import Pruner
from floeplan.parquet.read.reader import read_selected
from floeplan.parquet.source import BytesSource
from tests.support.parquet import forge

pytestmark = pytest.mark.unit


LEAF = forge.element("a", forge.INT32)


def footer_of(data: bytes, **options: Any) -> ParquetFooter:
    return read_footer(BytesSource(data, "a.parquet"), **options)


def written(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def forged(*leaves: bytes) -> ParquetFooter:
    """The footer of a file without rows."""
    return footer_of(forge.file([forge.root(len(leaves)), *leaves], []))


@pytest.mark.parametrize(
    ("arrow", "iceberg"),
    [
        (pa.bool_(), "boolean"),
        (pa.int8(), "int"),
        (pa.int16(), "int"),
        (pa.int32(), "int"),
        (pa.int64(), "long"),
        (pa.uint8(), "int"),
        (pa.uint16(), "int"),
        (pa.uint32(), "long"),
        (pa.uint64(), "decimal(20, 0)"),
        (pa.float16(), "float"),
        (pa.float32(), "float"),
        (pa.float64(), "double"),
        (pa.decimal128(9, 2), "decimal(9, 2)"),
        (pa.decimal128(38, 10), "decimal(38, 10)"),
        (pa.date32(), "date"),
        (pa.time32("ms"), "time"),
        (pa.time64("us"), "time"),
        (pa.time64("ns"), "time"),
        (pa.timestamp("ms"), "timestamp"),
        (pa.timestamp("us"), "timestamp"),
        (pa.timestamp("us", "UTC"), "timestamptz"),
        (pa.timestamp("ns"), "timestamp_ns"),
        (pa.timestamp("ns", "UTC"), "timestamptz_ns"),
        (pa.string(), "string"),
        (pa.large_string(), "string"),
        (pa.json_(), "string"),
        (pa.binary(), "binary"),
        (pa.binary(7), "fixed[7]"),
        (pa.uuid(), "uuid"),
        (pa.null(), "int"),
    ],
)
def test_arrow_types(arrow: pa.DataType, iceberg: str) -> None:
    footer = footer_of(written(pa.schema([("x", arrow)]).empty_table()))
    assert str(footer.schema.find_field("x").field_type) == iceberg


@pytest.mark.parametrize(
    ("leaf", "iceberg"),
    [
        (forge.element("x", forge.INT96), "timestamptz"),
        (forge.element("x", forge.INT64, converted=forge.TIMESTAMP_MILLIS), "timestamptz"),
        (forge.element("x", forge.INT64, logical=forge.timestamp_type(1, utc=False)), "timestamp"),
        (forge.element("x", forge.INT32, converted=forge.UINT_32), "long"),
        (forge.element("x", forge.BYTE_ARRAY, converted=forge.UTF8), "string"),
        (forge.element("x", forge.BYTE_ARRAY, converted=forge.DECIMAL, precision=12, scale=3), "decimal(12, 3)"),
        (forge.element("x", forge.BYTE_ARRAY), "binary"),
        (forge.element("x", forge.FIXED, length=4), "fixed[4]"),
    ],
)
def test_annotations_of_old_writers(leaf: bytes, iceberg: str) -> None:
    assert str(forged(leaf).schema.find_field("x").field_type) == iceberg


@pytest.mark.parametrize(
    "leaf",
    [
        forge.element("x", forge.FIXED, length=12, converted=forge.INTERVAL),
        forge.element("x", forge.BYTE_ARRAY, logical=forge.logical(17)),
        forge.element("x", forge.BYTE_ARRAY, logical=forge.logical(99)),
        forge.element("x", forge.FIXED, length=40, converted=forge.DECIMAL, precision=76, scale=3),
        forge.element("x", forge.INT64, logical=encode_struct([(8, STRUCT, encode_struct([]))])),
    ],
)
def test_what_iceberg_has_no_type_for_is_left_out(leaf: bytes) -> None:
    footer = forged(leaf, forge.element("y", forge.INT32))
    assert [field.name for field in footer.schema.fields] == ["y"]
    assert [leaf.type is None for leaf in footer.leaves] == [True, False]


def test_nested_fields_have_ids_by_position() -> None:
    inner = pa.struct([("b", pa.int32()), ("c", pa.list_(pa.string()))])
    table = pa.schema([("a", inner), ("m", pa.map_(pa.string(), pa.int64())), ("z", pa.int8())]).empty_table()
    footer = footer_of(written(table))
    assert not footer.has_field_ids
    assert {str(leaf): (leaf.field_id, leaf.max_def, leaf.max_rep) for leaf in footer.leaves} == {
        "a.b": (2, 2, 0),
        "a.c.list.element": (4, 4, 1),
        "m.key_value.key": (6, 2, 1),
        "m.key_value.value": (7, 3, 1),
        "z": (8, 1, 0),
    }
    assert [(field.field_id, str(field.field_type)) for field in footer.schema.fields] == [
        (1, "struct<2: b: optional int, 3: c: optional list<string>>"),
        (5, "map<string, long>"),
        (8, "int"),
    ]
    assert footer.schema.find_field(4).name == "element"


def test_ids_of_the_file_are_used_when_all_fields_have_one() -> None:
    def field(name: str, type_: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, type_, metadata={"PARQUET:field_id": str(number)})

    full = pa.schema([field("a", pa.struct([field("b", pa.int32(), 12)]), 30), field("c", pa.string(), 7)])
    footer = footer_of(written(full.empty_table()))
    assert footer.has_field_ids
    assert {leaf.field_id: str(leaf) for leaf in footer.leaves} == {12: "a.b", 7: "c"}
    assert footer.columns.field_ids == {30, 12, 7}
    partly = pa.schema([field("a", pa.int32(), 30), pa.field("c", pa.string())])
    assert [leaf.field_id for leaf in footer_of(written(partly.empty_table())).leaves] == [1, 2]
    twice = pa.schema([field("a", pa.int32(), 30), field("c", pa.string(), 30)])
    assert [leaf.field_id for leaf in footer_of(written(twice.empty_table())).leaves] == [1, 2]


def test_lists_of_old_writers() -> None:
    elements = [
        forge.root(3),
        forge.element("two_level", children=1, converted=forge.LIST_TYPE),
        forge.element("array", forge.INT32, repetition=forge.REPEATED),
        forge.element("of_structs", children=1, converted=forge.LIST_TYPE),
        forge.element("of_structs_tuple", repetition=forge.REPEATED, children=1),
        forge.element("x", forge.INT64),
        forge.element("bare", forge.INT32, repetition=forge.REPEATED),
    ]
    footer = footer_of(forge.file(elements, []))
    assert [str(field.field_type) for field in footer.schema.fields] == [
        "list<int>",
        "list<struct<5: x: optional long>>",
    ]
    assert [leaf.max_rep for leaf in footer.leaves] == [1, 1, 1]


def test_row_groups_and_chunks_are_columns_of_numbers() -> None:
    table = pa.table({"a": pa.array([1, None, 3, 4, 5]), "b": ["x", "y", "z", "x", "y"]})
    footer = footer_of(written(table, row_group_size=2, write_page_index=True))
    assert footer.num_rows == 5
    assert footer.row_group_rows.tolist() == [2, 2, 1]
    assert footer.first_rows.tolist() == [0, 2, 4]
    assert footer.created_by.startswith("parquet-cpp-arrow")
    meta = pq.read_metadata(io.BytesIO(written(table, row_group_size=2, write_page_index=True)))
    for leaf in footer.leaves:
        chunks = footer.chunks(leaf)
        theirs = [meta.row_group(i).column(leaf.index) for i in range(3)]
        assert chunks.num_values.tolist() == [one.num_values for one in theirs]
        assert chunks.data_page_offset.tolist() == [one.data_page_offset for one in theirs]
        assert chunks.start.tolist() == [one.dictionary_page_offset for one in theirs]
        assert chunks.total_compressed_size.tolist() == [one.total_compressed_size for one in theirs]
        assert chunks.null_count.tolist() == [one.statistics.null_count for one in theirs]
        assert (chunks.offset_index_length > 0).all()
        assert (chunks.column_index_length > 0).all()
        assert (chunks.bloom_offset == -1).all()


def test_the_footer_takes_one_request_or_two() -> None:
    data = written(pa.table({f"column {i}": [i] for i in range(100)}))
    source = BytesSource(data)
    read_footer(source)
    assert (source.counters.requests, source.counters.round_trips) == (1, 1)
    source = BytesSource(data)
    assert len(read_footer(source, tail=100).leaves) == 100
    assert (source.counters.requests, source.counters.round_trips) == (2, 2)
    assert source.counters.bytes < len(data)


def test_only_requested_columns_are_decoded() -> None:
    footer = footer_of(written(pa.table({f"c{i}": [i] for i in range(3000)})))
    footer.chunks(5)
    assert len(footer._chunks) == 1


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "does not end with the magic number"),
        (b"PAR1PAR1", "does not end with the magic number"),
        (b"text, not a Parquet file", "does not end with the magic number"),
        (b"PAR1" + (2**31).to_bytes(4, "little") + b"PAR1", r"length is 2147483648 bytes in a file of 12"),
        (forge.sealed(b"\0"), "list of schema is missing"),
        (forge.sealed(b""), "ends in the middle"),
        (forge.file([], []), "the schema is empty"),
        (forge.file([forge.root(2), forge.element("a", forge.INT32)], []), "has 2 children"),
        (forge.file([forge.root(0), forge.element("a", forge.INT32)], []), "belong to no field"),
        (forge.file([forge.root(1), forge.element("a", 99)], []), "99 is not a valid Physical"),
        (forge.file([forge.root(1), encode_struct([(4, BINARY, b"a")])], []), "neither a type nor fields"),
        (forge.file([forge.root(1), encode_struct([(1, I32, 1), (4, BINARY, b"\xc3(")])], []), "is not UTF-8"),
        (
            forge.one_column(forge.element("a", forge.INT32), [(3, forge.chunk(forge.INT32, 3))], rows=9),
            "9 rows in total",
        ),
        (forge.file([forge.root(1), forge.element("a", forge.INT32)], [(3, [])]), "0 columns instead of 1"),
        (forge.one_column(forge.element("a", forge.INT32), [(-3, forge.chunk(forge.INT32, 3))]), "invalid number"),
    ],
)
def test_a_broken_footer_is_named(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptFileError, match=rf"a\.parquet.*{problem}"):
        footer_of(data)


@pytest.mark.parametrize(
    ("chunk", "problem"),
    [
        (forge.chunk(forge.INT64, 3), "another type"),
        (encode_struct([(2, I32, 4)]), "no metadata"),
        (encode_struct([(3, STRUCT, encode_struct([(1, I32, forge.INT32), (5, BINARY, b"x")]))]), "not an integer"),
    ],
)
def test_a_broken_chunk_is_named_when_its_column_is_requested(chunk: bytes, problem: str) -> None:
    footer = footer_of(forge.one_column(forge.element("a", forge.INT32), [(3, chunk)]))
    with pytest.raises(CorruptFileError, match=rf"column a.*{problem}"):
        footer.chunks(0)


@pytest.mark.parametrize(
    ("kind", "encodings", "pages"),
    [
        (STRUCT, [encode_struct([(1, I32, 0), (2, I32, 8), (3, I32, 7)])], 7),
        (STRUCT, [encode_struct([(1, I32, 0), (2, I32, 0), (3, I32, 7)])], 0),
        (STRUCT, [encode_struct([(1, I32, 0), (2, I32, 8), (3, I64, 2**62)])] * 4, -1),
        (STRUCT, [encode_struct([(1, I32, 0)])], -1),
        (STRUCT, [], -1),
        (BINARY, [b"", b"\0\0\2"], -1),
        (LIST, [(I32, [])], -1),
        (I32, [3], -1),
    ],
)
def test_unusable_encoding_stats_are_ignored(kind: int, encodings: list[Any], pages: int) -> None:
    chunk = forge.chunk(forge.INT32, 3, inside=[(13, LIST, (kind, encodings))])
    footer = footer_of(forge.one_column(LEAF, [(3, chunk)]))
    assert footer.chunks(0).dictionary_pages.tolist() == [pages]


def test_encrypted_files_are_refused_with_a_clear_error() -> None:
    plain = forge.file([forge.root(1), forge.element("a", forge.INT32)], [])
    with pytest.raises(UnsupportedError, match="footer is encrypted"):
        footer_of(plain[:-4] + b"PARE")
    signed = forge.file([forge.root(1), forge.element("a", forge.INT32)], [], extra=[(8, STRUCT, b"\0")])
    with pytest.raises(UnsupportedError, match="encrypted with a plain footer"):
        footer_of(signed)
    column = forge.chunk(forge.INT32, 3, outside=[(8, STRUCT, b"\0")])
    with pytest.raises(UnsupportedError, match="column a is encrypted"):
        footer_of(forge.one_column(forge.element("a", forge.INT32), [(3, column)])).chunks(0)


def test_indexes_outside_the_file_are_absent() -> None:
    outside = [(4, forge.I64, 10**12), (5, forge.I32, 50), (6, forge.I64, -5), (7, forge.I32, 50)]
    column = forge.chunk(forge.INT32, 3, outside=outside, inside=[(14, forge.I64, 2**62), (15, forge.I32, 99)])
    chunks = footer_of(forge.one_column(forge.element("a", forge.INT32), [(3, column)])).chunks(0)
    for places in (chunks.offset_index_offset, chunks.column_index_offset, chunks.bloom_offset, chunks.bloom_length):
        assert places.tolist() == [-1]


def test_a_schema_deeper_than_any_reader_needs_is_refused() -> None:
    chain = [forge.root(1), *[forge.element("g", children=1)] * 100, forge.element("x", forge.INT32)]
    with pytest.raises(CorruptFileError, match="nests deeper"):
        footer_of(forge.file(chain, []))


def test_a_million_claimed_row_groups_cost_nothing() -> None:
    wide = [forge.root(2000), *[forge.element("x", forge.INT32)] * 2000]
    empty_groups = forge.LIST, (forge.STRUCT, [b"\0"] * 1_000_000)
    data = forge.sealed(encode_struct([(2, forge.LIST, (forge.STRUCT, wide)), (3, forge.I64, 0), (4, *empty_groups)]))
    with pytest.raises(CorruptFileError, match="1000000 row groups with 2000 columns"):
        footer_of(data)


def test_a_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": np.arange(10)}), path)
    from floeplan.parquet.source import open_source

    assert read_footer(open_source(path)).num_rows == 10


def test_ambiguous_column_names_are_refused() -> None:
    source = BytesSource(written(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])))
    footer = read_footer(source)
    with pytest.raises(UnsupportedError, match=r"<memory> has columns with the same name .* x: 1 and 2"):
        Pruner("x = 1").prune(footer)
    assert read_selected(source, footer, [2]).to_pydict() == {"x": [2]}


def test_the_parts_of_a_variant_need_no_field_ids() -> None:
    """Iceberg gives an id to the group alone; parts without an id in any other group make all ids unusable."""
    parts = [forge.element(name, forge.BYTE_ARRAY, repetition=forge.REQUIRED) for name in ("metadata", "value")]
    for annotation, usable in ((forge.logical(16), True), (None, False)):
        group = forge.element("v", children=2, field_id=2, logical=annotation)
        chunks = [forge.chunk(physical, 1) for physical in (forge.INT64, forge.BYTE_ARRAY, forge.BYTE_ARRAY)]
        leaf = forge.element("id", forge.INT64, field_id=1)
        footer = read_footer(BytesSource(forge.file([forge.root(2), leaf, group, *parts], [(1, chunks)])))
        assert footer.has_field_ids is usable
        assert [leaf.field_id for leaf in footer.leaves] == ([1, -3, -4] if usable else [1, 3, 4])

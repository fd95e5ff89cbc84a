"""Reading whole row groups: when it is used, equal results, and fetched bytes."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from floeplan.errors import CorruptFileError, UnknownFileError
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.thrift import I32, STRUCT, encode_struct
from floeplan.parquet.prune.selection import RowSelection
from floeplan.parquet.read import decoder, reader
from floeplan.parquet.read.reader import LONGEST_GAP, read_row_groups, read_selected, selects_most_pages
from floeplan.parquet.source import ByteSource, BytesSource, LocalSource, Range
from tests.support.parquet.files import shown

pytestmark = pytest.mark.unit

ROWS, GROUP = 20_000, 5_000
NUMBERS = np.arange(ROWS)
TABLE = pa.table(
    {
        "id": NUMBERS,
        "name": [f"name {number % 97}" for number in range(ROWS)],
        "place": pa.array([{"x": n, "tags": ["a"] * (n % 3)} if n % 5 else None for n in range(ROWS)]),
        "price": pa.array(NUMBERS).cast(pa.decimal128(21, 2)),
    }
)


class CountedBytes(BytesSource):
    """Records every requested range."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.requested: list[list[Range]] = []

    def read_ranges(self, ranges: Any) -> list[memoryview]:
        self.requested.append(list(ranges))
        return super().read_ranges(ranges)


def written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=GROUP, max_rows_per_page=500, write_page_index=True)
    return sink.getvalue().to_pybytes()


FILE = written(TABLE)
SOME = RowSelection.from_mask(NUMBERS % 20 != 7)
"""One row in twenty is not wanted: every page has wanted rows."""
FEW = ROWS // 16
"""The longest gap whose pages are read with the others."""


def kept(selection: RowSelection) -> bool:
    return selects_most_pages(read_footer(BytesSource(FILE)), selection)


def test_row_groups_are_read_whole_when_few_pages_could_be_left_out() -> None:
    assert kept(RowSelection.all_rows(ROWS))
    assert kept(SOME)
    assert kept(RowSelection.from_runs([GROUP], [GROUP])), "whole row groups that are not wanted at all do not count"
    assert kept(RowSelection.from_runs([0, 100 + FEW], [100, ROWS - 100 - FEW]))
    assert kept(RowSelection.from_rows(NUMBERS[:: LONGEST_GAP + 1])), "no gap may cover a page"


def test_one_long_gap_between_scattered_rows_does_not_lead_to_reading_pages() -> None:
    rows = NUMBERS[::100]
    assert kept(RowSelection.from_rows(rows[(rows < 8000) | (rows > 8000 + LONGEST_GAP)]))


def test_pages_are_read_when_enough_can_be_left_out() -> None:
    assert not kept(RowSelection.from_runs([0, 101 + FEW], [100, ROWS - 101 - FEW]))
    assert not kept(RowSelection.from_runs([0], [ROWS - FEW - 1]))
    assert not kept(RowSelection.from_runs([LONGEST_GAP + 1], [GROUP]))
    assert not kept(RowSelection.from_rows(NUMBERS[:: LONGEST_GAP + 2]))
    assert not kept(RowSelection.none())


@pytest.mark.parametrize("columns", [["id"], ["name", "id"], ["place"], ["place.tags", "price"], ["place.x"]])
@pytest.mark.parametrize(
    "rows", [RowSelection.all_rows(ROWS), SOME, SOME.intersect(RowSelection.from_runs([5_000], [10_000]))]
)
def test_rows_read_whole_are_the_rows_read_by_pages(rows: RowSelection, columns: list[str]) -> None:
    source = BytesSource(FILE)
    footer = read_footer(source)
    paged = read_selected(source, footer, columns, rows)
    dense = read_row_groups(source, footer, columns, rows)
    assert dense.select(paged.column_names).to_pylist() == paged.to_pylist()


def test_the_wanted_columns_are_fetched_together_and_once() -> None:
    source = CountedBytes(FILE)
    footer = read_footer(source)
    table = read_row_groups(source, footer, ["id", "price"], RowSelection.all_rows(ROWS))
    assert table.num_rows == ROWS
    chunks = [footer.chunks(0), footer.chunks(len(footer.leaves) - 1)]
    wanted = {(int(c.start[g]), int(c.total_compressed_size[g])) for c in chunks for g in range(4)}
    assert set(source.requested[0]) == wanted
    assert all(set(requested).isdisjoint(wanted) for requested in source.requested[1:])


def test_large_files_are_read_some_row_groups_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    source = CountedBytes(FILE)
    footer = read_footer(source)
    monkeypatch.setattr(reader, "WAVE_BYTES", int(footer.chunks(0).total_compressed_size.max()))
    assert read_row_groups(source, footer, ["id"], SOME).column("id").to_pylist() == SOME.to_rows().tolist()
    assert len([requested for requested in source.requested if len(requested) == 1 and requested[0][1] > 10_000]) >= 4


def test_pages_that_cannot_be_decoded_are_named() -> None:
    source = BytesSource(FILE)
    footer = read_footer(source)
    start = int(footer.chunks(0).start[0])
    broken = FILE[:start] + b"\xff" * 64 + FILE[start + 64 :]
    with pytest.raises(CorruptFileError, match="cannot be decoded"):
        read_row_groups(BytesSource(broken), footer, ["id"], RowSelection.all_rows(ROWS))


@pytest.mark.parametrize("rows", [RowSelection.all_rows(ROWS), SOME])
def test_a_local_file_is_read_by_the_decoders_themselves(rows: RowSelection, tmp_path: Path) -> None:
    path = tmp_path / "a # %20 file.parquet"
    path.write_bytes(FILE)
    source = LocalSource(path)
    footer = read_footer(source)
    fetched = source.counters.bytes
    expected = read_row_groups(BytesSource(FILE), footer, ["id", "place.x"], rows)
    assert read_row_groups(source, footer, ["place.x"], rows) == expected.select(["place"])
    assert source.counters.bytes == fetched, "pyarrow reads a nested column"
    assert read_row_groups(source, footer, ["id", "place.x"], rows) == expected


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_row_groups_of_a_local_file_do_not_share_memory(tmp_path: Path, compression: str) -> None:
    """Each chunk is read into the same memory, of which decoded numbers, text and dictionaries are copies."""
    table = pa.table({"id": NUMBERS, "text": [f"t{n}" for n in range(ROWS)], "few": [f"é{n % 7}" for n in range(ROWS)]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=ROWS // 4, compression=compression, use_dictionary=["few"])
    source = LocalSource(path)
    for keep in (True, False):
        found = decoder.decode_row_groups(source, read_footer(source), [0, 1, 2], np.arange(4), keep_dictionaries=keep)
        assert found.cast(table.schema).to_pydict() == table.to_pydict()


def test_a_missing_local_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone.parquet"
    path.write_bytes(FILE)
    source = LocalSource(path)
    footer = read_footer(source)
    path.unlink()
    with pytest.raises(UnknownFileError, match=r"gone\.parquet: no such file"):
        read_row_groups(source, footer, ["place"], SOME)


@pytest.mark.parametrize("rows", [RowSelection.all_rows(ROWS), SOME])
def test_text_with_a_dictionary_is_decoded_by_its_indexes(rows: RowSelection) -> None:
    """Nulls, an empty dictionary, a column that falls back to plain pages, a name with a dot, and binary."""
    texts = pa.table(
        {
            "few": [None if n % 11 == 0 else f"é{n % 5}" for n in range(ROWS)],
            "id": NUMBERS,
            "none": pa.nulls(ROWS, pa.string()),
            "many": [f"text {n}" for n in range(ROWS)],
            "a.b": [f"x{n % 3}" for n in range(ROWS)],
            "bytes": pa.array([b"%d" % (n % 3) for n in range(ROWS)]),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(texts, sink, row_group_size=GROUP, dictionary_pagesize_limit=10_000, store_schema=False)
    source = BytesSource(sink.getvalue().to_pybytes())
    footer = read_footer(source)
    names = texts.column_names
    expected = texts.filter(pa.array(rows.to_mask(ROWS)))
    expanded = read_row_groups(source, footer, [name for name in names if name != "a.b"], rows)
    assert expanded.to_pylist() == expected.drop_columns("a.b").to_pylist()
    assert expanded.schema.field("few").type == expanded.schema.field("many").type == pa.large_string()
    kept_as_stored = read_row_groups(source, footer, ["few", "many"], rows, keep_dictionaries=True)
    assert pa.types.is_dictionary(kept_as_stored.schema.field("few").type)
    assert kept_as_stored.schema.field("many").type == pa.large_string()
    assert kept_as_stored.to_pylist() == expected.select(["few", "many"]).to_pylist()


FLAT = pa.table(
    {
        "int": pa.array(NUMBERS % 1000 - 500, pa.int32()),
        "long": NUMBERS * 2**40 - 2**50,
        "float": pa.array(np.where(NUMBERS % 7 == 0, np.nan, -0.0), pa.float32()),
        "double": NUMBERS / 3,
        "date": pa.array(NUMBERS - 10_000, pa.int32()).cast(pa.date32()),
        "ts": pa.array(NUMBERS - 10_000).cast(pa.timestamp("us")),
        "tz": pa.array(NUMBERS - 10_000).cast(pa.timestamp("us", "UTC")),
        "small": pa.array([Decimal(n - 10_000) / 100 for n in range(ROWS)], pa.decimal128(9, 2)),
        "large": pa.array([Decimal((n - 10_000) * 10**11) for n in range(ROWS)], pa.decimal128(18, 0)),
        "few": [("ap", "é", "", "a text of more than sixteen bytes")[n % 4] for n in range(ROWS)],
        "many": ["x" * (n % 40) + str(n) for n in range(ROWS)],
        "bytes": pa.array([b"\xff" * (n % 20) for n in range(ROWS)]),
    }
)
"""Flat columns; some are distinct enough to fall back to plain pages."""
REQUIRED = FLAT.cast(pa.schema([field.with_nullable(False) for field in FLAT.schema]))
NULLS = pa.table(
    {
        name: pc.if_else(pa.array((NUMBERS + at) % 5 == 0), pa.scalar(None, column.type), column)
        for at, (name, column) in enumerate(zip(FLAT.column_names, FLAT.columns, strict=True))
    }
)


def flat_file(table: pa.Table, **options: Any) -> tuple[BytesSource, bytes]:
    fields = [field.with_metadata({"PARQUET:field_id": str(at)}) for at, field in enumerate(table.schema, start=1)]
    sink = pa.BufferOutputStream()
    settings = {"row_group_size": GROUP, "max_rows_per_page": 900, "dictionary_pagesize_limit": 20_000}
    settings |= {"store_schema": False, "store_decimal_as_integer": True, "compression": "zstd"} | options
    pq.write_table(table.cast(pa.schema(fields)), sink, **settings)
    data = sink.getvalue().to_pybytes()
    return BytesSource(data), data


@pytest.mark.parametrize("table", [FLAT, REQUIRED, NULLS], ids=["optional", "required", "nulls"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize(("codec", "version"), [("none", "1.0"), ("zstd", "1.0"), ("snappy", "2.0"), ("zstd", "2.0")])
def test_flat_columns_are_decoded_as_pyarrow_does(
    table: pa.Table, dictionary: bool, codec: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, data = flat_file(table, use_dictionary=dictionary, compression=codec, data_page_version=version)
    footer = read_footer(source)
    expected = pq.ParquetFile(pa.BufferReader(data), binary_type=pa.large_binary()).read()
    left: set[str] = set()
    by_pyarrow = decoder._decode_with_pyarrow

    def counted(source: ByteSource, footer: ParquetFooter, leaves: Any, *rest: Any, **named: Any) -> Any:
        left.update(footer.leaves[leaf].path[0] for leaf in leaves)
        return by_pyarrow(source, footer, leaves, *rest, **named)

    monkeypatch.setattr(decoder, "_decode_with_pyarrow", counted)
    for rows in (RowSelection.all_rows(ROWS), SOME, SOME.intersect(RowSelection.from_runs([5_000], [10_000]))):
        found = read_row_groups(source, footer, table.column_names, rows)
        found.validate(full=True)
        assert found.schema.equals(expected.schema, check_metadata=False)
        assert [field.metadata for field in found.schema] == [field.metadata for field in expected.schema]
        assert shown(found) == shown(expected.filter(pa.array(rows.to_mask(ROWS))))
    assert left == (set(table.column_names) if codec == "snappy" else set())


@pytest.mark.parametrize("rows", [RowSelection.all_rows(ROWS), SOME])
def test_rows_that_are_not_kept_are_left_out(rows: RowSelection) -> None:
    """In flat columns, with nulls and without, and in nested ones, with row groups of which nothing is kept."""
    table = FLAT.append_column("nulls", pa.array([n if n % 3 else None for n in range(ROWS)]))
    table = table.append_column("list", pa.array([[n] * (n % 3) for n in range(ROWS)]))
    source, data = flat_file(table)
    numbers = rows.to_rows()
    kept = (numbers % 4 == 1) & (numbers // GROUP != 2)
    found = read_row_groups(source, read_footer(source), table.column_names, rows, kept=kept)
    expected = pq.ParquetFile(pa.BufferReader(data), binary_type=pa.large_binary()).read()
    assert shown(found) == shown(expected.take(pa.array(numbers[kept])))


@pytest.mark.parametrize("entries", [1, 2, 200, 500, 1_000, 5_000, 50_000, 66_000])
@pytest.mark.parametrize("nulls", [False, True])
def test_dictionary_indexes_of_any_width_are_decoded(entries: int, nulls: bool) -> None:
    """Indexes of 0 to 17 bits, for numbers, short texts and texts of which some are long."""
    count = max(entries, 1_003)
    numbers = np.random.default_rng(entries).permutation(np.arange(count) % entries)
    missing = np.arange(count) % 7 == 3 if nulls else np.zeros(count, dtype=np.bool_)
    long = ["x" * 30 if n == 0 else f"é{n}" for n in numbers.tolist()]
    table = pa.table(
        {
            "number": pa.array(numbers, mask=missing),
            "short": pa.array([str(n) for n in numbers.tolist()], mask=missing),
            "long": pa.array(long, mask=missing),
        }
    )
    source, _ = flat_file(table, row_group_size=count, max_rows_per_page=700, dictionary_pagesize_limit=1 << 30)
    footer, everything = read_footer(source), RowSelection.all_rows(count)
    for kept in (None, np.arange(count) % 20 != 7, np.arange(count) % 4 == 1):
        flat = decoder.FlatColumns(source, footer, np.zeros(1, dtype=np.int64), {}, kept)
        expected = table if kept is None else table.filter(pa.array(kept))
        for leaf, name in enumerate(table.column_names):
            for keep_dictionaries in (False, True):
                found = flat.decode(leaf, keep_dictionaries=keep_dictionaries)
                assert found is not None, "not left to pyarrow"
                found[1].validate(full=True)
                assert found[1].to_pylist() == expected.column(name).to_pylist()
    assert read_row_groups(source, footer, table.column_names, everything).to_pylist() == table.to_pylist()


def test_an_index_beyond_the_dictionary_is_an_error() -> None:
    """Whether its row is kept or not: four entries of two bits each become three."""
    names = ["ap", "af", "eu", "us"] * 25
    source, data = flat_file(pa.table({"name": names}), compression="none", row_group_size=100)
    footer = read_footer(source)
    start = int(footer.chunks(0).start[0])
    entry = data.index(b"\x02\0\0\0us", start)
    # The last entry is removed: a page of three, and fill bytes of the same size in an unknown field of its header.
    header = encode_struct(
        [(1, I32, 2), (2, I32, 18), (3, I32, 18), (7, STRUCT, encode_struct([(1, I32, 3), (2, I32, 0)]))]
    )
    fill = entry + 6 - start - len(header) - 18
    assert fill >= 6
    header = header[:-1] + bytes([0x18, fill - 2]) + b"." * (fill - 2) + b"\0"
    damaged = data[:start] + header + data[entry - 18 : entry] + data[entry + 6 :]
    assert len(damaged) == len(data)
    for kept in (None, np.arange(100) % 4 == 0):
        for keep_dictionaries in (False, True):
            flat = decoder.FlatColumns(BytesSource(damaged), footer, np.zeros(1, dtype=np.int64), {}, kept)
            assert flat.decode(0, keep_dictionaries=keep_dictionaries) is None
    for keep_dictionaries in (False, True):
        with pytest.raises(CorruptFileError, match="beyond the dictionary"):
            read_row_groups(
                BytesSource(damaged),
                footer,
                ["name"],
                RowSelection.all_rows(100),
                keep_dictionaries=keep_dictionaries,
            )


def test_text_of_a_small_part_is_not_held_by_a_large_buffer() -> None:
    source, _ = flat_file(FLAT, row_group_size=ROWS)
    footer, groups = read_footer(source), np.zeros(1, dtype=np.int64)
    leaf = FLAT.column_names.index("many")
    for kept, most in ((None, 1.6), (NUMBERS % 20 != 7, 1.6), (NUMBERS % 4 == 1, 1.1)):
        found = decoder.FlatColumns(source, footer, groups, {}, kept).decode(leaf)
        assert found is not None
        text = found[1].chunk(0).buffers()[2]
        held = text if text.parent is None else text.parent
        assert held.size <= most * text.size + 64


def test_columns_of_no_kept_row_have_their_types() -> None:
    source, _ = flat_file(FLAT)
    footer = read_footer(source)
    nothing = np.zeros(ROWS, dtype=np.bool_)
    found = read_row_groups(source, footer, FLAT.column_names, RowSelection.all_rows(ROWS), kept=nothing)
    assert found.num_rows == 0
    assert found.schema == read_row_groups(source, footer, FLAT.column_names, SOME).schema


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_damaged_page_is_an_error_or_has_all_rows(codec: str) -> None:
    """No damage leads to another number of rows, and none to another error."""
    source, data = flat_file(FLAT, compression=codec)
    footer, random = read_footer(source), np.random.default_rng(1)
    for _ in range(20):
        damaged = bytearray(data)
        damaged[int(random.integers(4, footer.footer_start))] ^= int(random.integers(1, 256))
        with suppress(CorruptFileError):
            found = read_row_groups(BytesSource(bytes(damaged)), footer, FLAT.column_names, RowSelection.all_rows(ROWS))
            assert found.num_rows == ROWS

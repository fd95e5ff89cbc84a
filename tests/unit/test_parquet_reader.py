"""Reading exactly the requested rows: which bytes are fetched, and wrong indexes."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from floeplan.errors import CorruptFileError, UnknownColumnError
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.page_index import read_page_indexes
from floeplan.parquet.footer.thrift import BINARY, I64
from floeplan.parquet.prune.selection import RowSelection
from floeplan.parquet.read import reader
from floeplan.parquet.read.decoder import decode_row_groups, decoders
from floeplan.parquet.read.pages import WORTH_THREADS, plan_leaf, read_leaves
from floeplan.parquet.read.projection import project
from floeplan.parquet.read.reader import read, read_selected
from floeplan.parquet.source import REMOTE_GAP, BaseSource, BytesSource, FileIOSource, Range, open_source
from tests.support.parquet import forge

pytestmark = pytest.mark.unit


class RemoteBytes(BaseSource):
    """Bytes in a remote store; records every fetched range."""

    def __init__(self, data: bytes) -> None:
        super().__init__("remote.parquet", gap=REMOTE_GAP)
        self.data = data
        self.fetched: list[Range] = []

    def _fetch_suffix(self, length: int) -> tuple[bytes, int]:
        return self.data[-length:], len(self.data)

    def _fetch(self, offset: int, length: int) -> bytes:
        self.fetched.append((offset, length))
        return self.data[offset : offset + length]

    def touched(self, footer: ParquetFooter, column: str) -> bool:
        """Whether any page of a column was fetched."""
        leaf = next(leaf for leaf in footer.leaves if str(leaf) == column)
        chunks = footer.chunks(leaf)
        ends = chunks.start + chunks.total_compressed_size
        return any(
            offset < end and offset + length > start
            for offset, length in self.fetched
            for start, end in zip(chunks.start, ends, strict=True)
        )


def written(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **({"write_page_index": True} | options))
    return sink.getvalue().to_pybytes()


def footer_of(file: bytes) -> ParquetFooter:
    return read_footer(BytesSource(file))


ROWS = 200_000
RANDOM = np.random.default_rng(3)
TABLE = pa.table(
    {
        "id": np.arange(ROWS),
        "key": RANDOM.permutation(ROWS),
        "flag": np.arange(ROWS) % 2 == 0,
        "heavy": RANDOM.integers(0, 1 << 62, ROWS),
        "heavier": pa.array(RANDOM.integers(0, 1 << 62, ROWS)).cast(pa.string()),
    }
)
FILE = written(TABLE, row_group_size=100_000, max_rows_per_page=1_000, use_dictionary=False, compression="none")


def test_a_point_lookup_takes_three_round_trips_and_one_page_per_column() -> None:
    source = RemoteBytes(FILE)
    result = read(source, "id = 123456")
    assert result.table.to_pylist() == TABLE.slice(123_456, 1).to_pylist()
    assert result.round_trips <= 3
    pages = sum(length for _, length in source.fetched)
    assert pages < 1_000 * 70 + 5 * 100 * 60


def test_heavy_columns_are_read_only_where_rows_matched() -> None:
    key = int(TABLE["key"][150_000].as_py())
    source = RemoteBytes(FILE)
    result = read(source, f"key = {key}")
    assert result.table.to_pylist() == TABLE.slice(150_000, 1).to_pylist()
    size = footer_of(FILE).chunks(1).total_compressed_size.sum()
    assert sum(length for _, length in source.fetched) < size + 300_000
    assert result.round_trips == 3, "the tail, the predicate, and the rest"


def test_small_columns_are_fetched_with_the_predicate(monkeypatch: pytest.MonkeyPatch) -> None:
    key = int(TABLE["key"][150_000].as_py())
    monkeypatch.setattr(reader, "REMOTE_ROUND_TRIP_BYTES", len(FILE))
    source = RemoteBytes(FILE)
    assert read(source, f"key = {key}").table.num_rows == 1
    assert source.counters.round_trips == 2


def test_nothing_more_is_read_when_no_row_matched() -> None:
    source = RemoteBytes(FILE)
    assert read(source, "key > 100 AND key < 101").table.num_rows == 0
    result = read(RemoteBytes(FILE), "key + 0 = -5")
    assert result.table.num_rows == 0
    assert result.table.schema.names == TABLE.schema.names


def test_the_predicate_column_is_not_read_where_metadata_proved_it() -> None:
    source = RemoteBytes(FILE)
    result = read(source, "id >= 100000", ["flag"])
    assert result.table["flag"].to_pylist() == TABLE["flag"][100_000:].to_pylist()
    assert not source.touched(footer_of(FILE), "id")


def test_only_undecided_rows_are_evaluated() -> None:
    source = RemoteBytes(FILE)
    result = read(source, "id >= 99500", ["flag"])
    assert result.table.num_rows == 100_500
    assert source.touched(footer_of(FILE), "id")
    assert sum(length for _, length in source.fetched) < 120_000


@pytest.mark.parametrize("columns", [None, ["flag", "id"], ["heavier"], []])
@pytest.mark.parametrize("where", ["id BETWEEN 99990 AND 100010", "flag AND id < 5", "id < 0", "TRUE"])
def test_columns_and_predicates_are_independent(where: str, columns: list[str] | None) -> None:
    expected = TABLE.filter(
        {
            "id BETWEEN 99990 AND 100010": (pa.compute.field("id") >= 99990) & (pa.compute.field("id") <= 100010),
            "flag AND id < 5": pa.compute.field("flag") & (pa.compute.field("id") < 5),
            "id < 0": pa.compute.field("id") < 0,
            "TRUE": pa.compute.scalar(True),
        }[where]
    )
    got = read(FILE, where, columns).table
    assert got.equals(expected if columns is None else expected.select(columns))
    assert got.num_rows == expected.num_rows


def test_a_file_without_page_index_is_read_by_row_groups() -> None:
    plain = written(TABLE, row_group_size=50_000, write_page_index=False)
    source = RemoteBytes(plain)
    result = read(source, "id = 60000")
    assert result.table.to_pylist() == TABLE.slice(60_000, 1).to_pylist()
    assert result.prune.row_groups == (1,)
    assert "column id: no page index" in result.prune.notes


def test_waves_bound_what_is_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(TABLE, row_group_size=20_000)
    monkeypatch.setattr(reader, "WAVE_BYTES", 100_000)
    source = RemoteBytes(file)
    assert read(source, "id >= 15000").table.equals(TABLE.slice(15_000))
    assert source.counters.round_trips >= 10
    limited = RemoteBytes(file)
    assert read(limited, "id >= 15000", limit=10).table.equals(TABLE.slice(15_000, 10))
    assert limited.counters.bytes < source.counters.bytes / 4


def test_few_pages_of_many_row_groups_are_one_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(TABLE, row_group_size=20_000, max_rows_per_page=100, use_dictionary=False)
    monkeypatch.setattr(reader, "WAVE_BYTES", 300_000)
    source = RemoteBytes(file)
    assert read(source, f"id IN ({', '.join(str(i) for i in range(7, ROWS, 20_000))})").table.num_rows == 10
    assert source.counters.round_trips <= 3


def test_a_dictionary_that_the_wanted_pages_do_not_use_is_not_fetched() -> None:
    file = written(TABLE.select(["id", "heavy"]), max_rows_per_page=1_000, dictionary_pagesize_limit=200_000)
    footer = footer_of(file)
    chunks = footer.chunks(1)
    assert 0 < chunks.dictionary_pages[0] < 100
    dictionary = int(chunks.data_page_offset[0] - chunks.start[0])
    source = RemoteBytes(file)
    assert read(source, "id = 199000", ["heavy"]).table.to_pylist() == [{"heavy": TABLE["heavy"][199_000].as_py()}]
    assert sum(length for _, length in source.fetched) < dictionary
    early = RemoteBytes(file)
    assert read(early, "id = 1000", ["heavy"]).table.to_pylist() == [{"heavy": TABLE["heavy"][1_000].as_py()}]
    assert sum(length for _, length in early.fetched) > dictionary


def decode_with(file: bytes, column: str, rows: RowSelection, **wrong: Any) -> tuple[list[Any], BaseSource]:
    """Decode a column with wrong values in its page index or chunk metadata."""
    source = RemoteBytes(file)
    footer = read_footer(source)
    leaf = next(leaf for leaf in footer.leaves if leaf.path[0] == column)
    if "dictionary_pages" in wrong:
        footer.chunks(leaf)
        footer._chunks[leaf.index] = footer.chunks(leaf)._replace(dictionary_pages=wrong.pop("dictionary_pages"))
    index = replace(read_page_indexes(source, footer, [leaf], range(footer.num_row_groups))[leaf.index], **wrong)
    field = project(footer, [column])[0]
    plans = [plan_leaf(footer, leaf, rows, index)]
    return read_leaves(source, footer, plans, {leaf.index: field.layout})[leaf.index].to_pylist(), source


def test_a_dictionary_skipped_by_mistake_is_fetched_later() -> None:
    file = written(pa.table({"s": [f"v{i % 7}" for i in range(5_000)]}), max_rows_per_page=100)
    wanted = RowSelection.from_runs([250, 4_000], [3, 1])
    values, _ = decode_with(file, "s", wanted, dictionary_pages=np.zeros(1, dtype=np.int64))
    assert values == [f"v{i % 7}" for i in (250, 251, 252, 4_000)]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("lie", ["first_row", "row_count", "offset", "size"])
@pytest.mark.parametrize("column", ["n", "l"])
def test_a_wrong_offset_index_is_detected(lie: str, version: str, column: str) -> None:
    rows = 3_000
    table = pa.table({"n": np.arange(rows), "l": [[i] * (i % 3) for i in range(rows)]})
    file = written(table, max_rows_per_page=100, use_dictionary=False, data_page_version=version, compression="none")
    footer = footer_of(file)
    leaf = next(leaf for leaf in footer.leaves if leaf.path[0] == column)
    truth = read_page_indexes(BytesSource(file), footer, [leaf], [0])[leaf.index]
    lies = {
        "first_row": {"first_row": truth.first_row + (np.arange(len(truth.offset)) > 3) * 5},
        "row_count": {"row_count": truth.row_count + 1},
        "offset": {"offset": truth.offset + 4},
        "size": {"size": truth.size - 4},
    }[lie]
    wanted = RowSelection.from_runs([410], [5])
    if lie == "first_row":
        lies["row_count"] = np.diff(lies["first_row"], append=rows)
        wanted = RowSelection.from_runs([350], [100])
    expected = table[column].slice(int(wanted.starts[0]), wanted.row_count).to_pylist()
    if column == "l" and lie in ("first_row", "row_count") and version == "1.0":
        with pytest.raises(CorruptFileError, match="rows instead of"):
            decode_with(file, column, wanted, **lies)
    else:
        assert decode_with(file, column, wanted, **lies)[0] == expected


def test_damaged_pages_are_an_error_that_names_the_column() -> None:
    file = bytearray(written(pa.table({"a": ["x" * 50] * 5_000}), compression="zstd", use_dictionary=False))
    file[60:90] = bytes(30)
    with pytest.raises(CorruptFileError, match="column a"):
        read(bytes(file), "TRUE")


def test_columns_are_named_by_name_path_or_field_id() -> None:
    struct = pa.array([{"a": i, "b": {"c": str(i), "D": i}} for i in range(10)])
    table = pa.table({"s": struct, "x.y": pa.array(range(10)), "z": pa.array(range(10))})
    file = written(table)
    footer, source = footer_of(file), BytesSource(file)
    first = RowSelection.from_runs([0], [1])
    assert read_selected(source, footer, ["s.b.c", "z"], first).to_pylist() == [{"s": {"b": {"c": "0"}}, "z": 0}]
    assert read_selected(source, footer, ["x.y"], first).to_pylist() == [{"x.y": 0}]
    assert read_selected(source, footer, ["s.b.D", "s.a"], first).to_pylist() == [{"s": {"a": 0, "b": {"D": 0}}}]
    ids = {leaf.path: leaf.field_id for leaf in footer.leaves}
    assert read_selected(source, footer, [ids["z",]], first).to_pylist() == [{"z": 0}]
    assert read_selected(source, footer, [], first).num_rows == 1
    with pytest.raises(UnknownColumnError, match="did you mean z"):
        project(footer, ["zz"])
    with pytest.raises(UnknownColumnError):
        project(footer, ["Z"])
    assert project(footer, ["Z"], case_sensitive=False)[0].leaves[0].path == ("z",)


def test_a_struct_path_fetches_nothing_beside_it() -> None:
    struct = pa.array([{"light": i, "heavy": str(i) * 30} for i in range(5_000)])
    file = written(pa.table({"s": struct}), use_dictionary=False, compression="none")
    source, footer = RemoteBytes(file), footer_of(file)
    assert read(source, "s.light = 77", ["s.light"]).table.to_pylist() == [{"s": {"light": 77}}]
    assert source.touched(footer, "s.light")
    assert not source.touched(footer, "s.heavy")


def test_arrow_types_round_trip() -> None:
    table = pa.table(
        {
            "d": pa.array(["a", "b", None] * 100).dictionary_encode(),
            "ls": pa.array(["x", None, "z"] * 100, pa.large_string()),
            "t": pa.array([1, 2, None] * 100, pa.timestamp("ns", "Europe/Berlin")),
            "du": pa.array([1, None, 3] * 100, pa.duration("ms")),
            "u": pa.array([b"0" * 16, None, b"1" * 16] * 100, pa.uuid()),
            "h": pa.array([1.5, None, 2.5] * 100, pa.float16()),
            "m": pa.array(
                [[("k", {"a": 1, "b": [2]})], None, []] * 100,
                pa.map_(pa.string(), pa.struct([("a", pa.int8()), ("b", pa.list_(pa.int64()))])),
            ),
            "f": pa.array(
                [[{"a": 1, "b": 2}], None, [{"a": 3, "b": None}]] * 100,
                pa.list_(pa.struct([("a", pa.int8()), ("b", pa.int64())]), 1),
            ),
        }
    )
    file = written(table, max_rows_per_page=10, write_batch_size=1)
    wanted = pa.array(np.arange(300) % 7 == 0)
    source = BytesSource(file)
    got = read_selected(source, read_footer(source), None, RowSelection.from_mask(np.arange(300) % 7 == 0))
    assert got.equals(pq.read_table(pa.BufferReader(file)).filter(wanted))


def test_int96_timestamps_far_outside_nanoseconds_are_right() -> None:
    instants = [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59), datetime(9999, 12, 31), None] * 50
    file = written(pa.table({"t": pa.array(instants, pa.timestamp("us"))}), use_deprecated_int96_timestamps=True)
    result = read(file, "t >= TIMESTAMP '9999-01-01 00:00:00'")
    assert result.table["t"].to_pylist() == [datetime(9999, 12, 31)] * 50
    assert read(file, "t IS NULL").table.num_rows == 50


def test_field_ids_that_only_some_fields_have_mean_nothing() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "2"}), pa.field("b", pa.int64())])
    file = written(pa.table({"a": range(10), "b": range(100, 110)}).cast(schema))
    assert read(file, "a = 3").table.to_pylist() == [{"a": 3, "b": 103}]
    assert read(file, "b = 103").table.to_pylist() == [{"a": 3, "b": 103}]


def test_a_table_schema_reads_through_renames_and_missing_columns() -> None:
    schema = pa.schema([pa.field("old", pa.int32(), metadata={"PARQUET:field_id": "7"})])
    file = written(pa.table({"old": pa.array(range(10), pa.int32())}).cast(schema))
    wanted = Schema(NestedField(7, "n", LongType()), NestedField(8, "new", LongType(), initial_default=4))
    assert read(file, "n = 3 AND new = 4", schema=wanted).table.to_pylist() == [{"old": 3}]
    assert read(file, "new IS NULL", schema=wanted).table.num_rows == 0


def test_any_location_a_file_io_opens_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(FILE)
    result = read(FileIOSource(str(path), PyArrowFileIO()), "id = 5", ["key"])
    assert result.table["key"].to_pylist() == [TABLE["key"][5].as_py()]


def test_decimals_and_unsigned_integers_keep_their_order() -> None:
    """Stored as INT32, INT64 and FIXED_LEN_BYTE_ARRAY, and as unsigned integers."""
    cents = [Decimal(i) / 100 for i in range(-500, 500)]
    columns = {f"d{p}": pa.array(cents, pa.decimal128(p, 2)) for p in (7, 15, 30)}
    columns |= {"u4": pa.array([2**32 - 1 - i for i in range(1000)], pa.uint32())}
    columns |= {"u8": pa.array([2**64 - 1 - i for i in range(1000)], pa.uint64())}
    for as_integer in (False, True):
        layout = {"row_group_size": 100, "max_rows_per_page": 10, "write_batch_size": 10}
        file = written(pa.table(columns), store_decimal_as_integer=as_integer, **layout)
        for name in ("d7", "d15", "d30"):
            result = read(file, f"{name} >= 4.5 AND {name} < 4.6", [name])
            assert result.table[name].to_pylist() == [Decimal(i) / 100 for i in range(450, 460)]
            assert result.prune.rows_selected == 10
        assert read(file, f"u4 > {2**32 - 11}", ["u4"]).table.num_rows == 10
        assert read(file, f"u8 > {2**64 - 11}", ["u8"]).table.num_rows == 10


def test_strings_above_any_truncated_bound_are_found() -> None:
    high, highest = "\uffff" * 40, "\U0010ffff" * 40
    values = [high + str(i) for i in range(100)] + [highest, "a", ""]
    file = written(pa.table({"s": values}), row_group_size=20, max_rows_per_page=5)
    assert read(file, "s LIKE '\uffff%'").table.num_rows == 100
    assert read(file, f"s = '{high}42'").table.num_rows == 1
    assert read(file, f"s >= '{highest}'").table.num_rows == 1


def test_a_chunk_of_nothing_but_nan_is_kept_for_nan() -> None:
    """pyarrow writes an offset index and no column index for it."""
    f = [float(i) for i in range(100)] + [float("nan")] * 100 + [None] * 100
    file = written(pa.table({"f": f, "n": range(300)}), row_group_size=100, max_rows_per_page=10, write_batch_size=10)
    assert read(file, "f > 95", ["n"]).table["n"].to_pylist() == [96, 97, 98, 99, *range(100, 200)]
    assert read(file, "isnan(f)", ["n"]).table.num_rows == 100
    assert read(file, "f <= 95", ["n"]).table.num_rows == 96
    assert read(file, "f = DOUBLE('NaN')", ["n"]).table.num_rows == 100
    assert read(file, "f IS NULL", ["n"]).prune.row_groups == (2,)


def test_zero_has_two_signs_and_is_one_number() -> None:
    file = written(pa.table({"f": [-0.0] * 10 + [0.0] * 10 + [1.0] * 10}), row_group_size=10)
    assert read(file, "f = 0.0").table.num_rows == 20
    assert read(file, "f >= 0.0 AND f < 0.5").table.num_rows == 20
    assert read(file, "f < 0.0").table.num_rows == 0


def test_sources_can_be_read_one_after_the_other() -> None:
    """The cost of a read does not include earlier reads of the source."""
    source = RemoteBytes(FILE)
    first, second = read(source, "id = 5"), read(source, "id = 5")
    assert first.bytes_read + second.bytes_read == source.counters.bytes
    assert second.bytes_read < first.bytes_read


def rewritten(
    table: pa.Table, *, rows: int | None = None, inside: Iterable[Any] = (), created_by: str = "forge", short: int = 0
) -> bytes:
    """A file of one string column with another footer; chunks are said to be ``short`` bytes shorter."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none", use_dictionary=True)
    chunk = pq.read_metadata(sink).row_group(0).column(0)
    end = chunk.dictionary_page_offset + chunk.total_compressed_size
    return forge.file(
        [forge.root(1), forge.element("s", forge.BYTE_ARRAY, converted=forge.UTF8, field_id=1)],
        [
            (
                table.num_rows,
                [
                    forge.chunk(
                        forge.BYTE_ARRAY,
                        table.num_rows,
                        offset=chunk.dictionary_page_offset,
                        size=chunk.total_compressed_size - short,
                        inside=inside,
                    )
                ],
            )
        ],
        rows=rows,
        created_by=created_by,
        body=sink.getvalue()[4:end],
    )


@pytest.mark.parametrize(
    "quirk",
    [
        {"rows": 0},
        {"inside": [(11, I64, 0)]},
        {"inside": [(11, I64, 0), (15, BINARY, b"not the length of a bloom filter")]},
        {"created_by": "parquet-mr", "short": 14},
        {"created_by": "parquet-mr version 1.2.8 (build 1)", "short": 14},
    ],
    ids=["no total", "dictionary offset 0", "other use of a field", "no version", "PARQUET-816"],
)
def test_quirks_of_real_writers_do_not_hide_rows(quirk: dict[str, Any]) -> None:
    table = pa.table({"s": ["one", "two", "two", None] * 25})
    data = rewritten(table, **quirk)
    assert read(data).table.column("s").to_pylist() == table.column("s").to_pylist()
    assert read(data, "s = 'one'").table.num_rows == 25


def test_a_total_that_is_neither_zero_nor_right_is_refused() -> None:
    with pytest.raises(CorruptFileError, match="7 rows in total, but 100"):
        read(rewritten(pa.table({"s": ["one", "two"] * 50}), rows=7))


def test_a_malformed_dictionary_concerns_only_its_column(tmp_path: Path) -> None:
    table = pa.table({"id": range(100), "s": ["one", "two"] * 50})
    path = tmp_path / "f.parquet"
    pq.write_table(table, path, compression="none", use_dictionary=["s"])
    chunk = pq.read_metadata(path).row_group(0).column(1)
    data = bytearray(path.read_bytes())
    data[chunk.dictionary_page_offset : chunk.data_page_offset] = bytes(
        chunk.data_page_offset - chunk.dictionary_page_offset
    )
    path.write_bytes(data)
    assert read(path, "id < 10", ["id"]).table.num_rows == 10
    with pytest.raises(CorruptFileError, match="column s"):
        read(path, "id < 10")


@pytest.mark.parametrize("busy", [False, True])
def test_threads_share_the_columns_of_a_large_file(tmp_path: Path, busy: bool) -> None:
    """Also while other files keep all threads busy; a damaged column is an error whichever thread decodes it."""
    numbers = np.random.default_rng(1).integers(0, 1 << 60, (4, 300_000))
    rows = pa.table({f"c{at}": column for at, column in enumerate(numbers)})
    place = tmp_path / "large.parquet"
    pq.write_table(rows, place, compression="zstd", use_dictionary=False)
    source = open_source(str(place))
    footer = read_footer(source)
    assert sum(int(footer.chunks(leaf).total_compressed_size.sum()) for leaf in range(4)) > WORTH_THREADS
    groups, free = np.arange(footer.num_row_groups), threading.Event()
    blocked = [decoders().submit(free.wait) for _ in range(os.cpu_count() or 1)] if busy else []
    try:
        assert decode_row_groups(source, footer, range(4), groups) == rows
        for leaf in range(4):
            data = bytearray(place.read_bytes())
            chunk = footer.chunk_location(footer.leaves[leaf], 0)
            data[chunk.start + 60 : chunk.start + 4000] = bytes(3940)
            damaged = tmp_path / f"damaged-{leaf}.parquet"
            damaged.write_bytes(data)
            with pytest.raises(CorruptFileError):
                decode_row_groups(open_source(str(damaged)), footer, range(4), groups)
    finally:
        free.set()
    assert all(one.result() for one in blocked)

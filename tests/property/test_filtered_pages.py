"""Filtered pages: readers return the kept rows and bounds hold, for any stored values."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import tracemalloc
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from floeplan.parquet.footer.footer import ParquetFooter, decode_footer, read_footer
from floeplan.parquet.footer.page_index import read_page_indexes
from floeplan.parquet.footer.thrift import I32, STRUCT, encode_struct
from floeplan.parquet.pages import _flat_columns as flat_columns
from floeplan.parquet.pages import _page_values as kernel
from floeplan.parquet.pages import zstd as zstd_library
from floeplan.parquet.pages._neighbours import neighbours
from floeplan.parquet.pages.data_pages import (
    DATA_PAGE,
    PLAIN,
    RLE,
    UNSUPPORTED_PAGE,
    PageCodec,
    PageContent,
    read_pages,
)
from floeplan.parquet.pages.zstd import Decompressor, NeighbourCompressor
from floeplan.parquet.read.decoder import FlatColumns
from floeplan.parquet.read.reader import read_plain_int64
from floeplan.parquet.source import BytesSource
from floeplan.rewrite.pages.filtered_pages import FilteredColumn, SourcePages, can_filter_pages
from floeplan.rewrite.pages.new_file import JoinedFile, encoded_footer
from floeplan.vectors import Mask
from floeplan.write.parquet_file import encoded_file
from floeplan.write.target import WriteOptions

pytestmark = pytest.mark.property

ZSTD, CODECS = 6, ("zstd", "snappy", "none", "gzip", "lz4")
FIELD = {"PARQUET:field_id": "1"}
MOMENT = dt.datetime(1970, 1, 1)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(9, 2): st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    pa.decimal128(18, 4): st.integers(-(10**18) + 1, 10**18 - 1).map(lambda n: Decimal(n).scaleb(-4)),
    pa.decimal128(38, 0): st.integers(-(10**37), 10**37).map(Decimal),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.integers(0, 2**50).map(lambda n: MOMENT + dt.timedelta(microseconds=n)),
    pa.large_string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    pa.large_binary(): st.binary(max_size=20),
    pa.binary(5): st.binary(min_size=5, max_size=5),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, bool, list[list[Any]], list[Mask | None]]:
    """A type, whether it may be null, the values of some row groups, and the rows to keep."""
    type_ = draw(st.sampled_from(list(VALUES)))
    nullable = draw(st.booleans())
    few = draw(st.lists(VALUES[type_], min_size=1, max_size=6))
    value = draw(st.sampled_from((st.sampled_from(few), VALUES[type_])))
    value = value | st.none() if nullable else value
    groups, keeps = [], list[Mask | None]()
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(1, 120))
        groups.append(draw(st.lists(value, min_size=rows, max_size=rows)))
        stay = draw(st.sampled_from(("all", "some", "runs")))
        flags = np.random.default_rng(draw(st.integers(0, 99))).random(rows) < 0.8
        flags = flags if stay == "some" else np.arange(rows) % 40 < 25
        keeps.append(None if stay == "all" or not flags.any() else flags)
    return type_, nullable, groups, keeps


def stored(type_: pa.DataType, nullable: bool, values: list[Any], **settings: Any) -> bytes:
    schema = pa.schema([pa.field("c", type_, nullable, metadata=FIELD)])
    sink = io.BytesIO()
    rows = pa.table([pa.array(values, type_)], schema=schema)
    pq.write_table(rows, sink, store_decimal_as_integer=True, write_page_index=True, **settings)
    return sink.getvalue()


def joined(files: list[bytes], keeps: list[Mask | None], options: WriteOptions, folder: Path) -> bytes:
    """The column of all files in a file with one row group."""
    footers = [read_footer(BytesSource(file)) for file in files]
    schema = pq.read_schema(io.BytesIO(files[0]))
    blank = encoded_footer(encoded_file(schema.empty_table(), options))
    column = FilteredColumn(decode_footer(blank, "blank", len(blank)).leaves[0], ZSTD, options)
    for file, footer, keep in zip(files, footers, keeps, strict=True):
        place = footer.chunk_location(footer.leaves[0], 0)
        assert can_filter_pages(footer.leaves[0], place)
        data = memoryview(file)[place.start : place.start + place.size]
        column.add(SourcePages(data, place, footer.num_rows, keep, None))
    made = folder / "joined.parquet"
    with made.open("wb") as out:
        writer = JoinedFile(out, str(made), blank)  # type: ignore[arg-type]
        chunk = column.finish()
        writer.add(sum(part.rows for part in chunk.parts), [chunk])
        writer.finish()
    return made.read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("thin")


@given(
    column=columns(),
    version=st.sampled_from(("1.0", "2.0")),
    codecs=st.lists(st.sampled_from(CODECS), min_size=3, max_size=3),
    dictionary=st.booleans(),
    page_rows=st.sampled_from((7, 30, 1000)),
    new_page_rows=st.sampled_from((5, 50, 20_000)),
)
def test_filtered_pages_hold_the_kept_rows(
    folder: Path,
    column: tuple[pa.DataType, bool, list[list[Any]], list[Mask | None]],
    version: str,
    codecs: list[str],
    dictionary: bool,
    page_rows: int,
    new_page_rows: int,
) -> None:
    type_, nullable, groups, keeps = column
    plain_flags = {} if type_ != pa.bool_() else {"column_encoding": "PLAIN"}
    settings = {"max_rows_per_page": page_rows, "data_page_version": version, **plain_flags}
    files = [
        stored(type_, nullable, values, compression=codec, use_dictionary=dictionary and not plain_flags, **settings)
        for values, codec in zip(groups, codecs, strict=False)
    ]
    rows = [
        row
        for values, keep in zip(groups, keeps, strict=True)
        for row, stays in zip(values, [True] * len(values) if keep is None else keep.tolist(), strict=True)
        if stays
    ]
    made = joined(files, keeps, WriteOptions(page_rows=new_page_rows), folder)
    read = pq.read_table(io.BytesIO(made)).column(0)
    assert read.to_pylist() == pa.chunked_array([pa.array(rows, type_)]).to_pylist()
    assert_bounds_hold(made, type_, rows)


def assert_bounds_hold(file: bytes, type_: pa.DataType, rows: list[Any]) -> None:
    """The statistics of the column and of every page match its rows."""
    statistics = pq.read_metadata(io.BytesIO(file)).row_group(0).column(0).statistics
    values = [row for row in rows if row is not None]
    assert statistics.null_count == len(rows) - len(values)
    if values:
        assert (statistics.min, statistics.max) == (min(values), max(values))
    source = BytesSource(file)
    footer = read_footer(source)
    index = read_page_indexes(source, footer, footer.leaves, [0])[0]
    assert index.has_offset_index.all()
    assert index.has_column_index.all()
    assert int(index.row_count.sum()) == len(rows)
    starts = [*index.first_row.tolist(), len(rows)]
    for page, (first, last) in enumerate(itertools.pairwise(starts)):
        there = [row for row in rows[first:last] if row is not None]
        assert index.null_count[page] == last - first - len(there)
        if there:
            alone = stored(type_, True, [min(there), max(there)], use_dictionary=False)
            chunk = read_footer(BytesSource(alone)).chunks(0)
            assert (index.lower[page], index.upper[page]) == (chunk.min_value[0], chunk.max_value[0])
        else:
            assert index.lower[page] is None


def first_column(file: bytes) -> tuple[ParquetFooter, memoryview]:
    footer = read_footer(BytesSource(file))
    place = footer.chunk_location(footer.leaves[0], 0)
    return footer, memoryview(file)[place.start : place.start + place.size]


@given(
    dictionary=st.booleans(),
    at=st.floats(0, 1, exclude_max=True),
    byte=st.integers(0, 255),
    type_=st.sampled_from((pa.int64(), pa.large_string())),
)
def test_damaged_pages_are_unsupported_or_give_a_column(
    dictionary: bool, at: float, byte: int, type_: pa.DataType
) -> None:
    values = [i % 7 if type_ == pa.int64() else f"v{i % 7}" for i in range(200)]
    file = stored(type_, True, values, compression="none", use_dictionary=dictionary, max_rows_per_page=50)
    footer, chunk = first_column(file)
    damaged = bytearray(chunk)
    damaged[int(at * len(damaged))] = byte
    keep = np.arange(200) % 3 != 0
    column = FilteredColumn(footer.leaves[0], ZSTD, WriteOptions())
    try:
        column.add(SourcePages(memoryview(bytes(damaged)), footer.chunk_location(footer.leaves[0], 0), 200, keep, None))
        parts = column.finish().parts
    except UNSUPPORTED_PAGE:
        return
    assert sum(part.rows for part in parts) == int(keep.sum())


@given(st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 40)), max_size=30), st.integers(0, 11))
def test_packed_numbers_round_trip(runs: list[tuple[int, int]], spare: int) -> None:
    numbers = np.array([n for n, count in runs for _ in range(count)], dtype=np.int32)
    width = max(1, int(numbers.max(initial=0)).bit_length()) + spare
    if width > 31:
        return
    packed = kernel.pack(numbers, width)
    back = np.empty(len(numbers), dtype=np.int32)
    assert kernel.unpack(np.frombuffer(packed, dtype=np.uint8), width, back) == len(packed)
    assert back.tolist() == numbers.tolist()


@given(st.binary(max_size=60), st.integers(0, 31), st.integers(0, 200))
@example(b"\x03", 0, 5)  # what parquet-java writes for a dictionary of one entry: a packed group without bytes
def test_any_bytes_are_numbers_or_invalid(data: bytes, width: int, count: int) -> None:
    out = np.full(count, -1, dtype=np.int32)
    try:
        taken = kernel.unpack(np.frombuffer(data, dtype=np.uint8), width, out)
    except ValueError:
        return
    assert taken <= len(data)
    assert (out >= 0).all()
    assert int(out.max(initial=0)) < 2**width


@given(st.binary(max_size=60), st.lists(st.booleans(), max_size=12))
def test_any_bytes_are_byte_arrays_or_invalid(data: bytes, keep: list[bool]) -> None:
    values, out = np.frombuffer(data, dtype=np.uint8), np.zeros(len(data), dtype=np.uint8)
    expected, at = b"", 0
    for stays in keep:
        size = int.from_bytes(data[at : at + 4], "little") if at + 4 <= len(data) else 2**32
        expected += data[at : at + 4 + size] if stays and at + 4 + size <= len(data) else b""
        at += 4 + size
    try:
        written, _, _ = kernel.thin_byte_arrays(values, np.array(keep, dtype=np.uint8), out)
    except ValueError:
        assert at != len(data)
        return
    assert at == len(data)
    assert out[:written].tobytes() == expected


@given(st.binary(max_size=80), st.integers(0, 12), st.integers(0, 20))
def test_any_bytes_are_text_or_invalid(data: bytes, count: int, spare: int) -> None:
    """With room for exactly the values, or some more."""
    expected, at = [], 0
    for _ in range(count):
        size = int.from_bytes(data[at : at + 4], "little") if at + 4 <= len(data) else 2**32
        expected.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    ends, out = np.zeros(count + 1, dtype=np.int64), np.zeros(len(data) + spare, dtype=np.uint8)
    try:
        flat_columns.decode_text(np.frombuffer(data, dtype=np.uint8), ends, out)
    except ValueError:
        assert at != len(data)
        return
    assert at == len(data)
    assert ends.tolist() == [0, *np.cumsum(list(map(len, expected)), dtype=np.int64).tolist()]
    assert out[: ends[-1]].tobytes() == b"".join(expected)


@given(
    st.sampled_from([pa.int32(), pa.int64(), pa.string()]),
    st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=60),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=3),
    st.data(),
)
def test_damaged_pages_are_decoded_or_invalid(
    type_: pa.DataType,
    numbers: list[int | None],
    dictionary: bool,
    damage: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    """Nothing outside of the buffers is read or written, and intact pages have the kept values."""
    values = pa.array([None if number is None else str(number) for number in numbers]).cast(type_)
    file = stored(type_, True, values.to_pylist(), compression="none", use_dictionary=dictionary, max_rows_per_page=7)
    footer = read_footer(BytesSource(file))
    chunk = footer.chunk_location(footer.leaves[0], 0)
    pages = bytearray(file[chunk.start : chunk.start + chunk.size])
    for at, bits in damage:
        pages[at % len(pages)] ^= bits
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers))), dtype=np.bool_)
    source = BytesSource(file[: chunk.start] + bytes(pages) + file[chunk.start + chunk.size :])
    found = FlatColumns(source, footer, np.zeros(1, dtype=np.int64), {}, mask).decode(0)
    if found is not None:
        assert len(found[1]) == np.count_nonzero(mask)
    if not damage:
        assert found is not None
        found[1].validate(full=True)
        assert found[1].to_pylist() == values.filter(pa.array(mask)).to_pylist()


@given(
    st.integers(1, 300),
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 299)), st.integers(1, 40)), min_size=1, max_size=30),
    st.sampled_from(["1.0", "2.0"]),
    st.sampled_from(["none", "zstd"]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=3),
)
def test_values_are_counted_as_they_are_decoded(
    distinct: int, runs: list[tuple[int | None, int]], version: str, codec: str, damage: list[tuple[int, int]]
) -> None:
    """Of intact pages and of damaged ones: by their dictionary indexes, packed and in runs."""
    values = [None if number is None else f"v{number % distinct}" for number, many in runs for _ in range(many)]
    # All entries occur, so that the indexes have the width of the whole dictionary.
    values += [f"v{number}" for number in range(distinct)]
    options = {"compression": codec, "use_dictionary": True, "data_page_version": version, "max_rows_per_page": 150}
    file = stored(pa.string(), True, values, **options)
    footer = read_footer(BytesSource(file))
    chunk = footer.chunk_location(footer.leaves[0], 0)
    pages = bytearray(file[chunk.start : chunk.start + chunk.size])
    for at, bits in damage:
        pages[at % len(pages)] ^= bits
    source = BytesSource(file[: chunk.start] + bytes(pages) + file[chunk.start + chunk.size :])
    columns = FlatColumns(source, footer, np.zeros(1, dtype=np.int64), {}, None)
    counted, decoded = columns.value_counts(0), columns.decode(0, keep_dictionaries=True)
    assert (counted is None) == (decoded is None)
    if counted is None or decoded is None:
        assert damage
        return
    found = Counter[str | None]()
    for part in counted:
        for value, count in zip(part.values.cast(pa.binary()).to_pylist(), part.counts.tolist(), strict=True):
            found[value] += count
    expected = [chunk.dictionary.cast(pa.binary()).take(chunk.indices).to_pylist() for chunk in decoded[1].chunks]
    assert +found == Counter(itertools.chain.from_iterable(expected))


def test_buffers_that_are_too_small_are_refused() -> None:
    file = stored(pa.int64(), True, [1, 2, 3], compression="none", use_dictionary=False)
    footer = read_footer(BytesSource(file))
    chunk = footer.chunk_location(footer.leaves[0], 0)
    nothing, no_ends = np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64)

    def decode(kind: int, room: int, flags: int, kept: list[int] | None = None, ends: object = no_ends) -> None:
        chosen = None if kept is None else flat_columns.Kept(np.array(kept, dtype=np.uint8))
        flat_columns.decode_column(
            np.frombuffer(file, dtype=np.uint8)[chunk.start : chunk.start + chunk.size],
            *(0, 0, kind, 1, chunk.size, 3, chosen, nothing, ends),
            *(np.zeros(flat_columns.HEADROOM + room, np.uint8), nothing, np.zeros(flags, dtype=np.uint8)),
        )

    decode(flat_columns.NUMBERS_8, 24, 3)
    decode(flat_columns.NUMBERS_8, 16, 2, [1, 0, 1])
    for room, flags, kept in (
        (23, 3, None),
        (24, 2, None),
        (15, 2, [1, 0, 1]),
        (16, 1, [1, 0, 1]),
        (24, 3, [1, 1, 1, 0]),
        (24, 3, [1, 1]),
    ):
        with pytest.raises(ValueError, match=r"invalid|not those of the row group"):
            decode(flat_columns.NUMBERS_8, room, flags, kept)
    with pytest.raises(ValueError, match="kind 7"):
        decode(7, 24, 3)
    for room, kept, ends in ((8, None, [0, 0]), (24, [1, 0, 0], [0, 0]), (24, None, [])):
        with pytest.raises(ValueError, match=r"invalid|counts"):
            decode(flat_columns.COUNTS, room, 3, kept, np.array(ends, dtype=np.int64))
    with pytest.raises(ValueError, match="offsets of entries"):
        decode(flat_columns.INDEXES, 24, 3, None, np.array([0, 1]))


@given(st.lists(st.sampled_from([0, 1, 254, 255]), max_size=80))
def test_a_flag_is_its_lowest_bit(flags: list[int]) -> None:
    found = np.array(flags, dtype=np.uint8)
    kept = flat_columns.Kept(found)
    found[:] = 1
    assert len(kept) == sum(flag & 1 for flag in flags)


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=300), st.sampled_from(CODECS), st.booleans())
def test_a_plain_column_is_read_from_its_pages(numbers: list[int], codec: str, dictionary: bool) -> None:
    file = stored(pa.int64(), True, numbers, compression=codec, use_dictionary=dictionary, max_rows_per_page=40)
    source = BytesSource(file)
    footer = read_footer(source)
    found = read_plain_int64(source, footer, footer.leaves[0])
    assert found is None if dictionary else found is not None and found.tolist() == numbers


@given(st.binary(max_size=3000), st.integers(1, 20), st.sampled_from((None, 0, 4, 8)), st.integers(0, 9))
def test_pages_are_hardly_larger_for_being_compressed_more_cheaply(
    seed: bytes, times: int, width: int | None, start: int
) -> None:
    sample = PageContent(memoryview(seed * times), min(start, len(seed)), width)
    usual, tuned = PageCodec(ZSTD), PageCodec(ZSTD)
    tuned.tune(sample)
    made = tuned.compress(sample)
    assert len(made) <= len(usual.compress(sample))
    assert bytes(usual.decompress(memoryview(made), sample.data.nbytes)) == bytes(sample.data)


@st.composite
def like_neighbours(draw: st.DrawFn) -> tuple[bytes, int, int]:
    """Bytes of values that partly equal the previous value, their start, and their width."""
    width, start, seed = draw(st.sampled_from((0, 4, 8))), draw(st.integers(0, 9)), draw(st.integers(0, 2**32))
    random, count = np.random.default_rng(seed), draw(st.sampled_from((0, 1, 5, 1000, 40_000)))
    head = bytes(range(start))
    if width:
        numbers = random.integers(0, 2 ** draw(st.integers(0, 8 * width - 1)), count, dtype=np.int64)
        repeated = np.repeat(numbers, random.integers(1, 4, count))
        return head + repeated.astype(f"<i{width}").tobytes(), start, width
    longest = draw(st.sampled_from((3, 30, 3000, 300_000)))
    stem, parts = random.bytes(longest), list[bytes]()
    for cut in random.integers(0, longest + 1, min(count, 3_000_000 // longest)).tolist():
        value = stem[:cut] + random.bytes(int(cut) % 3)
        parts += [len(value).to_bytes(4, "little"), value]
    return head + b"".join(parts) + draw(st.binary(max_size=9)), start, width


@given(like_neighbours(), st.booleans())
def test_values_similar_to_their_neighbours_round_trip(values: tuple[bytes, int, int], coded: bool) -> None:
    content, start, width = values
    if content:
        made = NeighbourCompressor(coded=coded).compress(memoryview(content), start, width)
        assert pa.Codec("zstd").decompress(made, len(content)).to_pybytes() == content
        assert Decompressor().decompress(memoryview(made), len(content)).tobytes() == content


@pytest.mark.parametrize("available", [True, False])
def test_values_similar_to_their_neighbours_compress_better(monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    monkeypatch.setattr(zstd_library, "available", available)
    numbers = np.random.default_rng(1).integers(0, 10**6, 20_000)
    content = PageContent(memoryview(numbers.tobytes()), 0, 8)
    usual, tuned = PageCodec(ZSTD), PageCodec(ZSTD)
    tuned.tune(content)
    made = tuned.compress(content)
    assert tuned.decompress(memoryview(made), content.data.nbytes).tobytes() == numbers.tobytes()
    assert len(made) < len(usual.compress(content))


@given(st.binary(min_size=1, max_size=200), st.integers(0, 200), st.sampled_from((0, 4, 8)), st.integers(0, 70))
def test_matches_of_any_bytes_account_for_all_of_them(data: bytes, start: int, width: int, room: int) -> None:
    rows = np.zeros((room, 4), dtype=np.uint32)
    try:
        count = neighbours(data, start, width, rows)
    except ValueError:
        assert start > len(data) or room <= len(data) // 3 + 2
        return
    assert int(rows[:count, 1:3].sum()) == len(data)
    at = 0
    for back, before, length, _ in rows[:count].tolist():
        at += before
        assert all(data[i] == data[i - back] for i in range(at, at + length))
        at += length


@given(st.binary(max_size=60), st.integers(0, 100), st.booleans())
def test_invalid_compressed_data_is_detected(data: bytes, size: int, cut: bool) -> None:
    good = pa.Codec("zstd").compress(data, asbytes=True)
    wrong = good[:-1] if cut else data
    with pytest.raises(ValueError, match=r"Zstandard|bytes instead of"):
        Decompressor().decompress(memoryview(wrong), size if cut else size + 1)


def test_a_page_larger_than_its_column_is_unsupported() -> None:
    footer, chunk = first_column(stored(pa.int64(), True, list(range(100)), compression="zstd", use_dictionary=False))
    place = footer.chunk_location(footer.leaves[0], 0)
    with pytest.raises(ValueError, match="larger than its column"):
        list(read_pages(chunk, PageCodec(ZSTD), 1, place.uncompressed_size // 2, 100))


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.bool_(), [True]),
        (pa.binary(5), [b"bytes"]),
        (pa.int64(), [1]),
        (pa.int64(), [1, None]),
        (pa.large_string(), ["a", None]),
    ],
)
def test_a_page_with_more_rows_than_its_row_group_is_unsupported(type_: pa.DataType, values: list[Any]) -> None:
    settings = {"compression": "none", "use_dictionary": False, "column_encoding": "PLAIN"}
    footer, chunk = first_column(stored(type_, None in values, values * 60, **settings))
    rows = footer.num_rows - 1
    column = FilteredColumn(footer.leaves[0], ZSTD, WriteOptions())
    with pytest.raises(ValueError, match="more rows"):
        column.add(SourcePages(chunk, footer.chunk_location(footer.leaves[0], 0), rows, np.arange(rows) % 3 > 0, None))


@pytest.mark.parametrize("claimed", [20_000_000, -1])
def test_rows_that_a_page_claims_take_no_memory(claimed: int) -> None:
    levels = bytes.fromhex("05000000 80b4891300")  # one run of 20,000,000 nulls
    inner = encode_struct([(1, I32, claimed), (2, I32, PLAIN), (3, I32, RLE), (4, I32, RLE)])
    sizes = [(2, I32, len(levels)), (3, I32, len(levels))]
    header = encode_struct([(1, I32, DATA_PAGE), *sizes, (5, STRUCT, inner)])
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more rows"):
            list(read_pages(memoryview(header + levels), PageCodec(0), 1, 100, 100))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()

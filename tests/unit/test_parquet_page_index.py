"""Page indexes: fetched in one round trip, checked before use, ignored if inconsistent."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import DoubleType, IntegerType, LongType, StringType

from floeplan.parquet.footer.footer import read_footer
from floeplan.parquet.footer.page_index import PageIndex, page_column_stats, read_page_indexes
from floeplan.parquet.footer.thrift import BINARY, BOOL, I32, I64, LIST, STRUCT, encode_struct
from floeplan.parquet.source import BytesSource
from floeplan.predicate.ir import Column
from tests.support.oracles.statistics import listed
from tests.support.parquet import forge

pytestmark = pytest.mark.unit

X = Column(1, IntegerType(), ("x",))


def written(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, write_page_index=True, write_batch_size=1, **options)
    return out.getvalue()


def indexes_of(data: bytes, row_groups: list[int] | None = None, tail: int = 8) -> tuple[list[PageIndex], BytesSource]:
    source = BytesSource(data)
    footer = read_footer(source, tail=tail)
    source.counters.round_trips = 0
    wanted = range(footer.num_row_groups) if row_groups is None else row_groups
    indexes = read_page_indexes(source, footer, footer.leaves, wanted)
    return [indexes[leaf.index] for leaf in footer.leaves], source


def test_pages_of_all_columns_in_one_round_trip() -> None:
    table = pa.table({"x": pa.array(range(10), pa.int32()), "t": [str(i) * i for i in range(10)]})
    (numbers, texts), source = indexes_of(written(table, row_group_size=4, max_rows_per_page=2))
    assert source.counters.round_trips == 1
    assert numbers.has_offset_index.all()
    assert numbers.has_column_index.all()
    assert numbers.page_starts.tolist() == [0, 2, 4, 5]
    assert numbers.row_group.tolist() == [0, 0, 1, 1, 2]
    assert numbers.first_row.tolist() == [0, 2, 0, 2, 0]
    assert numbers.row_count.tolist() == [2, 2, 2, 2, 2]
    assert texts.row_count.sum() == 10
    stats = page_column_stats(numbers, X)
    assert stats is not None
    assert listed(stats.lower) == [0, 2, 4, 6, 8]
    assert listed(stats.upper) == [1, 3, 5, 7, 9]


def test_chosen_row_groups_only() -> None:
    table = pa.table({"x": pa.array(range(10), pa.int32())})
    (index,), _ = indexes_of(written(table, row_group_size=2, max_rows_per_page=1), [1, 4])
    assert index.row_group.tolist() == [1, 1, 4, 4]
    stats = page_column_stats(index, X)
    assert stats is not None
    assert listed(stats.lower) == [2, 3, 8, 9]


def test_no_row_groups_at_all() -> None:
    (index,), _ = indexes_of(written(pa.table({"x": pa.array([1], pa.int32())})), [])
    assert len(index.row_count) == 0
    assert page_column_stats(index, X) is not None


def test_an_index_in_the_tail_is_not_fetched_again() -> None:
    _, source = indexes_of(written(pa.table({"x": pa.array(range(10), pa.int32())})), tail=10_000)
    assert source.counters.round_trips == 0


def test_without_an_index_a_row_group_is_one_page_with_the_statistics_of_its_chunk() -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array([1, 2, None, None], pa.int32())}), out, row_group_size=2)
    (index,), source = indexes_of(out.getvalue())
    assert source.counters.round_trips == 0
    assert not index.has_offset_index.any()
    assert not index.has_column_index.any()
    assert index.offset.tolist() == [-1, -1]
    assert index.row_count.tolist() == [2, 2]
    stats = page_column_stats(index, X)
    assert stats is not None
    assert listed(stats.upper) == [2, None]
    assert stats.may_null.tolist() == [False, True]
    assert stats.may_value.tolist() == [True, False]


def test_a_chunk_of_nan_has_pages_and_no_statistics() -> None:
    """An all-NaN chunk has an offset index but no column index."""
    (index,), _ = indexes_of(written(pa.table({"x": [math.nan] * 6}), max_rows_per_page=2))
    assert index.has_offset_index.all()
    assert len(index.row_count) == 3
    stats = page_column_stats(index, Column(1, DoubleType(), ("x",)))
    assert stats is not None
    assert stats.may_nan.all()
    assert listed(stats.upper) == [None] * 3


def test_pages_of_nulls() -> None:
    data = written(pa.table({"x": pa.array([None, None, 3, 4, None, 6], pa.int32())}), max_rows_per_page=2)
    (index,), _ = indexes_of(data)
    assert index.null_count.tolist() == [2, 0, 1]
    stats = page_column_stats(index, X)
    assert stats is not None
    assert stats.may_value.tolist() == [False, True, True]
    assert stats.may_null.tolist() == [True, False, True]
    assert listed(stats.lower) == [None, 3, 6]


def test_texts_longer_than_the_truncation() -> None:
    data = written(pa.table({"x": ["\uffff" * 100, "a" * 300, "b"]}), max_rows_per_page=1)
    (index,), _ = indexes_of(data)
    stats = page_column_stats(index, Column(1, StringType(), ("x",)))
    assert stats is not None
    for low, high, value in zip(
        listed(stats.lower), listed(stats.upper), ["\uffff" * 100, "a" * 300, "b"], strict=True
    ):
        assert low is None or low <= value
        assert high is None or high >= value


def test_pages_of_different_columns_do_not_line_up() -> None:
    table = pa.table({"x": pa.array(range(2000), pa.int64()), "t": ["text" * 50 + str(i) for i in range(2000)]})
    (numbers, texts), _ = indexes_of(written(table, data_page_size=4000, use_dictionary=False))
    assert len(texts.row_count) > 3 * len(numbers.row_count)
    assert numbers.row_count.sum() == texts.row_count.sum() == 2000


def offset_index(pages: list[tuple[int, int, int]]) -> bytes:
    """Pages as (offset, size, first row)."""
    return encode_struct(
        [(1, LIST, (STRUCT, [encode_struct([(1, I64, a), (2, I32, b), (3, I64, c)]) for a, b, c in pages]))]
    )


def column_index(
    null_pages: list[bool], lows: list[bytes], highs: list[bytes], nulls: list[int] | None = None
) -> bytes:
    fields: list[Any] = [
        (1, LIST, (BOOL, null_pages)),
        (2, LIST, (BINARY, lows)),
        (3, LIST, (BINARY, highs)),
        (4, I32, 0),
    ]
    return encode_struct(fields if nulls is None else [*fields, (5, LIST, (I64, nulls))])


def forged(offsets: bytes, columns: bytes, *, rows: int = 10, size: int = 100) -> PageIndex:
    """One column with one chunk at [4, 4 + size), followed by its indexes."""
    body = bytes(size) + offsets + columns
    start = 4 + size
    places = [(4, I64, start), (5, I32, len(offsets)), (6, I64, start + len(offsets)), (7, I32, len(columns))]
    stats = forge.statistics(min_value=bytes(4), max_value=(99).to_bytes(4, "little"), nulls=0)
    chunk = forge.chunk(forge.INT32, rows, stats, size=size, outside=places)
    data = forge.one_column(forge.element("x", forge.INT32), [(rows, chunk)], body=body)
    (index,), _ = indexes_of(data)
    return index


def number(value: int) -> bytes:
    return value.to_bytes(4, "little", signed=True)


GOOD_OFFSETS = offset_index([(4, 50, 0), (54, 50, 6)])
GOOD_COLUMNS = column_index([False, False], [number(1), number(5)], [number(4), number(9)], [0, 1])


def test_a_valid_hand_made_index_is_read() -> None:
    index = forged(GOOD_OFFSETS, GOOD_COLUMNS)
    assert index.has_offset_index.all()
    assert index.has_column_index.all()
    assert index.row_count.tolist() == [6, 4]
    assert index.null_count.tolist() == [0, 1]


@pytest.mark.parametrize(
    "offsets",
    [
        b"",
        b"garbage",
        b"\x19\xfc\xff\xff\xff\xff\x07",
        offset_index([]),
        offset_index([(4, 50, 1), (54, 50, 6)]),
        offset_index([(4, 50, 0), (54, 50, -1)]),
        offset_index([(4, 50, 0), (54, 50, 11)]),
        offset_index([(4, 30, 0), (34, 30, 7), (64, 30, 3)]),
        offset_index([(54, 50, 0), (4, 50, 6)]),
        offset_index([(4, 51, 0), (54, 50, 6)]),
        offset_index([(4, 50, 0), (54, 51, 6)]),
        offset_index([(0, 50, 0), (54, 50, 6)]),
        offset_index([(4, 0, 0), (54, 50, 6)]),
        offset_index([(4, -50, 0), (54, 50, 6)]),
        offset_index([(4, 50, 0), (2**62, 2**30, 6)]),
        offset_index([(4, 50, 0), (-(2**63), 50, 6)]),
        offset_index([(4, 50, 0), (2**63 - 1, 50, 6)]),
        offset_index([(4, 50, 0), (54, 2**31 - 1, 6)]),
        encode_struct([(1, LIST, (STRUCT, [encode_struct([(1, I64, 4), (3, I64, 0)])]))]),
        encode_struct([(1, LIST, (STRUCT, [encode_struct([(1, BINARY, b"4"), (2, BINARY, b"5"), (3, BINARY, b"")])]))]),
        encode_struct([(1, LIST, (I64, [4, 50]))]),
        encode_struct([(1, LIST, (LIST, [(I64, [4, 50])]))]),
        encode_struct([(1, LIST, (LIST, [(I64, [0, 4, 50, 0]), (I64, [0, 54, 50, 6])]))]),
        encode_struct([(1, LIST, (BINARY, [bytes([0, 4, 50, 0]), bytes([0, 54, 50, 6])]))]),
        encode_struct([(1, I64, 4)]),
    ],
)
def test_an_inconsistent_offset_index_is_ignored(offsets: bytes) -> None:
    index = forged(offsets, GOOD_COLUMNS)
    assert not index.has_offset_index.any()
    assert not index.has_column_index.any()
    assert index.row_count.tolist() == [10]
    stats = page_column_stats(index, X)
    assert stats is not None
    assert (listed(stats.lower), listed(stats.upper)) == ([0], [99])


@pytest.mark.parametrize(
    "columns",
    [
        b"",
        b"garbage",
        column_index([False], [number(1)], [number(4)]),
        column_index([False, False], [number(1)], [number(4), number(9)]),
        column_index([False, False, False], [number(1)] * 3, [number(4)] * 3),
        encode_struct([(1, LIST, (BOOL, [False, False]))]),
        encode_struct([(1, LIST, (I32, [0, 0])), (2, LIST, (I32, [0, 0])), (3, LIST, (I32, [0, 0]))]),
    ],
)
def test_a_column_index_that_does_not_fit_its_pages_is_ignored(columns: bytes) -> None:
    index = forged(GOOD_OFFSETS, columns)
    assert index.has_offset_index.all()
    assert not index.has_column_index.any()
    stats = page_column_stats(index, X)
    assert stats is not None
    assert (listed(stats.lower), listed(stats.upper)) == ([0, 0], [99, 99])


def test_null_counts_that_do_not_fit_are_unknown() -> None:
    index = forged(GOOD_OFFSETS, column_index([False, False], [number(1)] * 2, [number(4)] * 2, [0]))
    assert index.null_count.tolist() == [-1, -1]
    index = forged(GOOD_OFFSETS, column_index([True, False], [number(1)] * 2, [number(4)] * 2, [0, 0]))
    assert index.null_count.tolist() == [-1, 0], "only nulls and no nulls is a contradiction"
    stats = page_column_stats(index, X)
    assert stats is not None
    assert stats.may_value.tolist() == [True, True]


def test_one_damaged_row_group_does_not_affect_others() -> None:
    data = bytearray(written(pa.table({"x": np.arange(30)}), row_group_size=10, max_rows_per_page=5))
    chunks = read_footer(BytesSource(bytes(data))).chunks(0)
    start = int(chunks.offset_index_offset[1])
    data[start : start + 4] = b"\xff" * 4
    (index,), _ = indexes_of(bytes(data))
    assert index.has_offset_index.tolist() == [True, False, True]
    assert index.first_row.tolist() == [0, 5, 0, 0, 5]
    stats = page_column_stats(index, Column(1, LongType(), ("x",)))
    assert stats is not None
    assert listed(stats.lower) == [0, 5, 10, 20, 25]

"""Offset indexes, written and moved: the same bytes as encoding each value separately."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floeplan.errors import CorruptFileError
from floeplan.parquet.footer.page_index import encode_page_locations, shift_offset_index
from floeplan.parquet.footer.thrift import (
    BINARY,
    DOUBLE,
    I32,
    I64,
    LIST,
    STRUCT,
    Each,
    encode_struct,
    encode_value,
    splice,
)

pytestmark = pytest.mark.property
I64S = st.integers(-(2**63), 2**63 - 1)
PAGES = st.lists(st.tuples(st.integers(0, 2**50), st.integers(-(2**31), 2**31 - 1), I64S), max_size=40)


def page(offset: int, size: int, row: int) -> bytes:
    return encode_struct([(1, I64, offset), (2, I32, size), (3, I64, row)])


@given(st.lists(st.tuples(I64S, I64S, I64S), max_size=40))
def test_columns_are_encoded_like_one_page_after_the_other(pages: list[tuple[int, int, int]]) -> None:
    columns = np.array(pages, dtype=np.int64).reshape(-1, 3).T
    assert encode_page_locations(*columns) == encode_value(LIST, (STRUCT, [page(*one) for one in pages]))


@given(PAGES, st.integers(-(2**40), 2**50), st.lists(I64S, max_size=3) | st.none())
def test_moving_changes_only_offsets(pages: list[tuple[int, int, int]], distance: int, sizes: list[int] | None) -> None:
    more = [] if sizes is None else [(2, LIST, (I64, sizes))]
    moved = [page(offset + distance if offset > 0 else offset, size, row) for offset, size, row in pages]
    before, after = (
        encode_struct([(1, LIST, (STRUCT, some)), *more]) for some in ([page(*one) for one in pages], moved)
    )
    assert shift_offset_index(before, distance, "a.parquet") == after


@given(st.lists(st.tuples(st.integers(1, 2**50), st.booleans()), max_size=20), st.integers(0, 2**50))
def test_pages_described_in_another_way_keep_their_description(pages: list[tuple[int, bool]], distance: int) -> None:
    """Without a first row, or with unknown fields."""
    described = [
        encode_struct([(1, I64, at), (2, I32, 7), *([(3, I64, 1), (9, I64, at)] if more else [])]) for at, more in pages
    ]
    encoded = encode_struct([(1, LIST, (STRUCT, described))])
    edited = splice(encoded, {1: Each(lambda _: {1: lambda at: at + distance})}, "offset index", "a.parquet")
    assert shift_offset_index(encoded, distance, "a.parquet") == edited


def test_an_index_of_something_else_first_is_moved_as_well() -> None:
    pages = (STRUCT, [page(4, 5, 6)])
    encoded = bytes([LIST]) + encode_value(I64, 1) + encode_value(LIST, pages) + b"\0"
    moved = bytes([LIST]) + encode_value(I64, 1) + encode_value(LIST, (STRUCT, [page(14, 5, 6)])) + b"\0"
    assert shift_offset_index(encoded, 10, "a.parquet") == moved


@pytest.mark.parametrize("data", [b"", b"\x19", b"\x19\x1c\x16", bytes([0x19, 0xFC, 0xFF, 0xFF, 0x03])])
def test_an_index_that_ends_too_early_is_an_error_that_names_the_file(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match=r"a\.parquet"):
        shift_offset_index(data, 10, "a.parquet")


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=4))
def test_text_instead_of_an_offset_does_not_crash(texts: list[bytes]) -> None:
    pages = [encode_struct([(1, BINARY, text), (2, I32, 1), (3, I64, 2)]) for text in texts]
    encoded = encode_struct([(1, LIST, (STRUCT, pages))])
    with suppress(CorruptFileError):
        assert isinstance(shift_offset_index(encoded, 10, "a.parquet"), bytes)


INFINITE = bytes([1 << 4 | DOUBLE]) + struct.pack("<d", float("inf")) + encode_struct([(1, I32, 1), (2, I64, 2)])


@pytest.mark.parametrize(
    "encoded",
    [
        encode_struct([(1, LIST, (STRUCT, [INFINITE]))]),
        encode_struct([(1, LIST, (STRUCT, [encode_struct([(1, BINARY, b"9" * 20), (2, I32, 1), (3, I64, 2)])]))]),
        encode_struct([(1, LIST, (STRUCT, [page(4, 5, 6)]))])[:-1] + bytes([I64]) + encode_value(I64, 1) * 2 + b"\0",
    ],
    ids=["endless", "too many digits", "duplicate"],
)
def test_offsets_that_are_not_numbers_do_not_crash(encoded: bytes) -> None:
    with suppress(CorruptFileError):
        assert isinstance(shift_offset_index(encoded, 10, "a.parquet"), bytes)

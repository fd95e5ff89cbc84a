"""Damaged files: a read returns rows or raises a Floeplan error."""

from __future__ import annotations

import random
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floeplan.errors import CorruptFileError, FloeplanError
from floeplan.parquet.read.reader import read

pytestmark = pytest.mark.property

ROWS = 300


def sample(compression: str, version: str, *, index: bool) -> bytes:
    numbers = random.Random(5)
    table = pa.table(
        {
            "x": pa.array(range(ROWS), pa.int64()),
            "text": [None if i % 11 == 0 else f"text {numbers.randrange(50)}" for i in range(ROWS)],
            "struct": [{"a": i, "b": [i] * (i % 3)} for i in range(ROWS)],
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, row_group_size=100, max_rows_per_page=20, write_batch_size=10, write_page_index=index,
        compression=compression, data_page_version=version, bloom_filter_options={"x": {"ndv": 100, "fpp": 0.01}},
    )  # fmt: skip
    return sink.getvalue().to_pybytes()


FILES = [sample(c, v, index=i) for c in ("none", "zstd") for v in ("1.0", "2.0") for i in (True, False)]


@given(
    st.sampled_from(range(len(FILES))),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_flipped_bytes_give_rows_or_a_floeplan_error(number: int, flips: list[tuple[float, int]]) -> None:
    damaged = bytearray(FILES[number])
    for place, value in flips:
        damaged[int(place * (len(damaged) - 1))] = value
    for where in ("x = 150", "text = 'text 7'", "struct.a >= 40", "TRUE"):
        with suppress(FloeplanError):
            read(bytes(damaged), where)


@given(st.sampled_from(range(len(FILES))), st.floats(0, 1))
def test_a_truncated_file_is_an_error(number: int, place: float) -> None:
    file = FILES[number]
    with pytest.raises(CorruptFileError):
        read(file[: int(place * (len(file) - 1))], "x = 150")

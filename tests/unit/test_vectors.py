"""Conversions between NumPy and Arrow that do not import pandas: the same values as pyarrow's own. Runs of numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from floeplan.vectors import arrow, arrow_binary, expand_runs, flags, integers, valid_mask, without_nulls

pytestmark = pytest.mark.unit

NUMBERS = np.arange(-3, 20)


@pytest.mark.parametrize("dtype", ["i1", "i4", "i8", "f8", "?", "u8"])
@pytest.mark.parametrize("count", [0, 1, 23])
def test_arrow_is_what_pyarrow_makes(dtype: str, count: int) -> None:
    values = NUMBERS[:count].astype(dtype)
    assert arrow(values).equals(pa.array(values))
    missing = NUMBERS[:count] % 3 == 0
    assert arrow(values, missing).equals(pa.array(values, mask=missing))
    assert arrow(values[::-2]).equals(pa.array(values[::-2]))


@pytest.mark.parametrize("values", [[], [None], [b""], [b"a", None, b"", b"\xff\x00long"], ["é".encode()]])
def test_binary_is_what_pyarrow_makes(values: list[bytes | None]) -> None:
    assert arrow_binary(values).equals(pa.array(values, pa.binary()))


@pytest.mark.parametrize("type_", [pa.int8(), pa.int32(), pa.int64(), pa.date32()])
def test_integers_of_slices(type_: pa.DataType) -> None:
    array = pa.array(NUMBERS.tolist(), pa.int32()).cast(type_)
    for part in (array, array.slice(5, 7), array.slice(23), array.slice(3)):
        assert integers(part).dtype == np.int64
        assert integers(part).tolist() == part.cast(pa.int32()).cast(pa.int64()).to_pylist()


def test_flags_and_nulls() -> None:
    array = pa.array([True, None, False, True, None, True, False, False, True])
    for part in (array, array.slice(1, 4), array.slice(9)):
        filled = without_nulls(part, False)
        assert flags(filled).tolist() == [bool(value) for value in part.to_pylist()]
        assert valid_mask(part).tolist() == [value is not None for value in part.to_pylist()]
    assert without_nulls(pa.array([1, None], pa.int32()), -1).to_pylist() == [1, -1]


@pytest.mark.parametrize("runs", [[], [(5, 2), (9, 1)], [(7, 0), (3, 3), (3, 2), (0, 0)]])
def test_runs_are_expanded_in_their_order(runs: list[tuple[int, int]]) -> None:
    starts, counts = np.array(runs, dtype=np.int64).reshape(-1, 2).T
    found = expand_runs(starts, counts)
    assert found.dtype == np.int64
    assert found.tolist() == [start + at for start, count in runs for at in range(count)]

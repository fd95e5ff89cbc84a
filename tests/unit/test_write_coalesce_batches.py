"""Batches combined before they are written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floeplan.write import data_files as gather
from floeplan.write.data_files import coalesce_batches

pytestmark = pytest.mark.unit


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"n": pa.array(range(first, first + count), pa.int64())})


def test_rows_stay_in_order_and_empty_batches_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "ROWS_AT_ONCE", 10)
    pieces = [numbers(0, 4), numbers(0, 0), numbers(4, 5), numbers(9, 30), numbers(39, 1)]
    tables = list(coalesce_batches(pieces))
    assert [table.num_rows for table in tables] == [9, 30, 1]
    assert [n for table in tables for n in table["n"].to_pylist()] == list(range(40))
    assert all(table["n"].num_chunks == 1 for table in tables)


def test_buffered_bytes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "BYTES_AT_ONCE", 8 * 5)
    assert [table.num_rows for table in coalesce_batches([numbers(0, 3)] * 4)] == [3] * 4
    assert [table.num_rows for table in coalesce_batches([numbers(0, 2)] * 4)] == [4, 4]


def test_layouts_are_not_mixed() -> None:
    other = pa.table({"n": pa.array(["x"])})
    tables = list(coalesce_batches([numbers(0, 1), other.to_batches()[0], other, numbers(1, 1)]))
    assert [table.schema.field("n").type for table in tables] == [pa.int64(), pa.string(), pa.int64()]
    assert list(coalesce_batches([])) == []

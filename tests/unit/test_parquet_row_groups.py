"""Reading whole row groups: when it is used, equal results, and fetched bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floeplan.errors import CorruptFileError, UnknownFileError
from floeplan.parquet.footer.footer import read_footer
from floeplan.parquet.prune.selection import RowSelection
from floeplan.parquet.read import reader
from floeplan.parquet.read.reader import LONGEST_GAP, read_row_groups, read_selected, selects_every_page
from floeplan.parquet.source import BytesSource, LocalSource, Range

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


def kept(selection: RowSelection) -> bool:
    return selects_every_page(read_footer(BytesSource(FILE)), selection)


def test_row_groups_are_read_whole_when_no_page_could_be_left_out() -> None:
    assert kept(RowSelection.all_rows(ROWS))
    assert kept(SOME)
    assert kept(RowSelection.from_runs([GROUP], [GROUP])), "whole row groups that are not wanted at all do not count"
    assert kept(RowSelection.from_runs([0, 100 + LONGEST_GAP], [100, ROWS - 100 - LONGEST_GAP]))


def test_pages_are_read_when_some_can_be_left_out() -> None:
    assert not kept(RowSelection.from_runs([0, 101 + LONGEST_GAP], [100, ROWS - 101 - LONGEST_GAP]))
    assert not kept(RowSelection.from_runs([0], [ROWS - LONGEST_GAP - 1]))
    assert not kept(RowSelection.from_runs([LONGEST_GAP + 1], [GROUP]))
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
def test_a_local_file_is_read_by_the_decoder_itself(rows: RowSelection, tmp_path: Path) -> None:
    path = tmp_path / "a # %20 file.parquet"
    path.write_bytes(FILE)
    source = LocalSource(path)
    footer = read_footer(source)
    fetched = source.counters.bytes
    assert read_row_groups(source, footer, ["id", "place.x"], rows) == read_row_groups(
        BytesSource(FILE), footer, ["id", "place.x"], rows
    )
    assert source.counters.bytes == fetched


def test_a_missing_local_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone.parquet"
    path.write_bytes(FILE)
    source = LocalSource(path)
    footer = read_footer(source)
    path.unlink()
    with pytest.raises(UnknownFileError, match=r"gone\.parquet: no such file"):
        read_row_groups(source, footer, ["id"], SOME)


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

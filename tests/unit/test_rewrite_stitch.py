"""Stitched files: rows, pages, statistics, indexes and Bloom filters equal those of the inputs byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema

from floeplan.errors import CorruptFileError
from floeplan.parquet.footer.thrift import (
    BINARY,
    BOOL,
    DOUBLE,
    I8,
    I32,
    I64,
    LIST,
    STRUCT,
    Each,
    encode_struct,
    read_struct,
    splice,
)
from floeplan.prune import PruneRequest
from floeplan.rewrite.pages.new_file import stitch, stitch_obstacle
from tests.support.parquet.facts import IO, expected_facts, facts_of, opened, same_place

pytestmark = pytest.mark.unit

ROWS = 6000


def numbered(name: str, type_: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, type_, metadata={"PARQUET:field_id": str(field_id)})


ELEMENT = numbered("element", pa.float64(), 4)
SCHEMA = pa.schema([numbered("id", pa.int64(), 1), numbered("s", pa.string(), 2), numbered("l", pa.list_(ELEMENT), 3)])


def rows(first: int) -> pa.Table:
    ids = range(first, first + ROWS)
    lists = [None if i % 5 == 0 else [float(i)] * (i % 3) for i in ids]
    return pa.table({"id": list(ids), "s": [f"k{i % 700}" for i in ids], "l": lists}, schema=SCHEMA)


def write(path: Path, table: pa.Table, **options: Any) -> Path:
    settings = {"row_group_size": 2500, "max_rows_per_page": 500, "write_page_index": True} | options
    pq.write_table(table, path, **settings)
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files of one schema with different codecs, row group sizes and Bloom filters."""
    return [
        write(tmp_path / "a", rows(0), compression="zstd", bloom_filter_options={"s": True}),
        write(tmp_path / "b", rows(ROWS), compression="none", row_group_size=10_000),
        write(
            tmp_path / "c", rows(2 * ROWS), compression="snappy", bloom_filter_options={"s": {"fpp": 0.001, "ndv": 900}}
        ),
    ]


def stitched(files: list[Path], folder: Path) -> Path:
    path = folder / "stitched.parquet"
    made = stitch([opened(file) for file in files], IO, str(path))
    assert made.size == path.stat().st_size
    assert made.footer.num_rows == pq.read_metadata(path).num_rows
    return path


def test_the_rows_are_those_of_the_files_in_their_order(files: list[Path], tmp_path: Path) -> None:
    path = stitched(files, tmp_path)
    assert pq.read_table(path).equals(pa.concat_tables([pq.read_table(file) for file in files]))
    assert pq.read_metadata(path).num_row_groups == 7
    assert pq.read_schema(path).equals(SCHEMA, check_metadata=True)


def test_row_group_metadata_is_preserved(files: list[Path], tmp_path: Path) -> None:
    found = facts_of(stitched(files, tmp_path))
    assert same_place(found) == expected_facts(files)
    assert all(fact["located"] and fact["described"] for fact in found)
    assert any(fact["bloom"] for fact in found)


def test_a_stitched_file_can_be_stitched_again(files: list[Path], tmp_path: Path) -> None:
    first = stitched(files[:2], tmp_path)
    again = tmp_path / "again.parquet"
    stitch([opened(first), opened(files[2])], IO, str(again))
    assert same_place(facts_of(again)) == expected_facts(files)


def test_pages_and_bloom_filters_prune_the_new_file(files: list[Path], tmp_path: Path) -> None:
    path = str(stitched(files, tmp_path))
    by_page = PruneRequest(path).with_predicate("id = 12345").enable_page_index().prune()
    assert by_page.to_dict()["row_selection"] == [[12000, 500]]
    by_bloom = PruneRequest(path).with_predicate("s = 'k5x'").enable_bloom_filter().prune()
    assert by_bloom.to_dict()["row_groups_kept"] == [3], "the one file without filters"


def test_files_without_indexes_or_rows_are_stitched_too(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "plain", rows(0), write_page_index=False, write_statistics=False),
        write(tmp_path / "empty", rows(0).slice(0, 0)),
        write(tmp_path / "full", rows(ROWS)),
    ]
    path = stitched(paths, tmp_path)
    assert same_place(facts_of(path)) == expected_facts(paths)
    assert pq.read_table(path).num_rows == 2 * ROWS


def test_key_value_metadata_is_kept_if_equal(tmp_path: Path) -> None:
    tables = [rows(0).replace_schema_metadata({"same": "1", "own": str(n)}) for n in range(2)]
    paths = [write(tmp_path / str(n), table) for n, table in enumerate(tables)]
    assert pq.read_metadata(stitched(paths, tmp_path)).metadata == {b"same": b"1"}


class TestMisfits:
    """Files that cannot be stitched are refused with a reason."""

    def schema(self, file: Path) -> Schema:
        return opened(file).footer.schema

    def test_files_that_fit(self, files: list[Path]) -> None:
        assert stitch_obstacle([opened(file) for file in files], self.schema(files[0]), min_row_group=0) == ""

    def test_small_row_groups(self, files: list[Path]) -> None:
        assert "too small to copy" in stitch_obstacle([opened(file) for file in files], self.schema(files[0]))

    @pytest.mark.parametrize("change", ["added", "promoted", "another id", "dropped"])
    def test_a_schema_that_is_not_the_table_s(self, files: list[Path], tmp_path: Path, change: str) -> None:
        id_, text, list_ = SCHEMA
        other = {
            "added": [id_, text, list_, numbered("new", pa.int32(), 9)],
            "promoted": [numbered("id", pa.int32(), 1), text, list_],
            "another id": [id_, numbered("s", pa.string(), 9), list_],
            "dropped": [id_, text],
        }[change]
        path = write(tmp_path / "other", pa.schema(other).empty_table())
        assert "not those of the table" in stitch_obstacle([opened(files[0])], self.schema(path), min_row_group=0)

    def test_a_renamed_column_is_no_other_column(self, files: list[Path], tmp_path: Path) -> None:
        renamed = write(
            tmp_path / "renamed",
            rows(0)
            .rename_columns(["key", "s", "l"])
            .cast(pa.schema([numbered("key", pa.int64(), 1), *list(SCHEMA)[1:]])),
        )
        schema = self.schema(renamed)
        assert stitch_obstacle([opened(files[0])], schema, min_row_group=0) == ""
        both = [opened(files[0]), opened(renamed)]
        assert stitch_obstacle(both, schema, min_row_group=0) == "the files have different schemas or writers"

    def test_files_without_field_ids(self, tmp_path: Path) -> None:
        path = write(tmp_path / "plain", pa.table({"id": [1]}))
        assert "not those of the table" in stitch_obstacle([opened(path)], self.schema(path), min_row_group=0)


class TestSplice:
    """Edits of single values in encoded structs keep all other bytes."""

    INNER = encode_struct([(1, I64, 5), (2, BINARY, b"kept"), (40, I32, 7)])
    OUTER = encode_struct(
        [
            (1, BOOL, True),
            (2, I8, -3),
            (3, STRUCT, INNER),
            (4, LIST, (STRUCT, [INNER] * 20)),
            (5, DOUBLE, 1.5),
            (6, LIST, (I64, [1, 2])),
            (90, I64, -1),
        ]
    )

    def edited(self, edits: Any, data: bytes = OUTER) -> dict[int, Any]:
        return read_struct(splice(data, edits, "test", "file"), 0, None, "test", "file")[0]

    def test_without_edits_nothing_changes(self) -> None:
        assert splice(self.OUTER + b"rest", {77: lambda value: value}, "test", "file") == self.OUTER

    def test_numbers_grow_and_shrink_wherever_they_are(self) -> None:
        found = self.edited(
            {3: {1: lambda v: v + 10**12}, 90: lambda v: v * 0, 4: Each(lambda at: {40: lambda v: v + at})}
        )
        before = read_struct(self.OUTER, 0, None, "test", "file")[0]
        inner = before[3]
        assert found == before | {3: inner | {1: 5 + 10**12}, 90: 0, 4: [inner | {40: 7 + at} for at in range(20)]}

    def test_a_value_can_be_replaced_as_a_whole(self) -> None:
        assert self.edited({3: encode_struct([(9, I32, 1)])})[3] == {9: 1}

    @pytest.mark.parametrize("data", [OUTER[:-40], b"\x1f\x00", b""])
    def test_broken_bytes_are_an_error(self, data: bytes) -> None:
        with pytest.raises(CorruptFileError):
            splice(data, {90: lambda value: value}, "test", "file")

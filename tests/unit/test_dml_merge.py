"""MERGE on a small table of two specs: clause order, keys, counts and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.dml.merge.builder import Merge
from floeplan.errors import BadInputError, FloeplanError, TypeMismatchError, UnknownColumnError, UnsupportedError
from floeplan.scan.model import ScanOptions
from tests.support.tables.two_specs import events, two_spec_table

pytestmark = pytest.mark.unit

MODES = ("copy-on-write", "merge-on-read")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return two_spec_table(tmp_path)


def rows(table: Table, where: str | None = None) -> dict[Any, dict[str, Any]]:
    found = fp.plan_scan(table, where, options=ScanOptions(report=False)).to_arrow().to_pylist()
    return {row["id"]: row for row in found}


def source(*ids: int | None, **columns: list[Any]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), **columns})


@pytest.mark.parametrize("mode", MODES)
class TestClauses:
    def test_the_first_that_applies_wins(self, table: Table, mode: str) -> None:
        given = source(1, 2, 3, 4, kind=["d", "u", "x", "d"], v=[0.5, 1.5, 2.5, 3.5])
        result = (
            fp.merge(table, given, "t.id = s.id", mode=mode)
            .when_matched_update({"v": "-1.0"}, "kind = 'd' AND t.id = 4")
            .when_matched_delete("kind = 'd'")
            .when_matched_update({"v": "s.v"}, condition="kind = 'u'")
            .execute()
        )
        assert (result.rows_updated, result.rows_deleted, result.rows_inserted) == (2, 1, 0)
        found = rows(table)
        assert 1 not in found
        assert [found[i]["v"] for i in (2, 3, 4)] == [1.5, 1.5, -1.0]

    def test_new_rows_are_inserted_and_missing_columns_are_null(self, table: Table, mode: str) -> None:
        given = source(5, 1000, 1001, region=["xx", "yy", "zz"])
        result = (
            fp.merge(table, given, "id", mode=mode)
            .when_not_matched_insert({"id": "id", "region": "upper(region)"}, condition="s.id <> 1001")
            .execute()
        )
        assert (result.rows_inserted, result.rows_updated, result.data_files_removed) == (1, 0, 0)
        found = rows(table)
        assert found[1000] == {"id": 1000, "region": "YY", "ts": None, "v": None}
        assert found[5]["region"] == "ap"
        assert 1001 not in found

    def test_all_columns_of_the_source(self, table: Table, mode: str) -> None:
        given = events(295, 305).set_column(3, "v", pa.array([9.0] * 10))
        result = fp.merge(table, given, ["id"], mode=mode).when_matched_update().when_not_matched_insert().execute()
        assert (result.rows_updated, result.rows_inserted) == (5, 5)
        found = rows(table, "id >= 290")
        assert {i: row["v"] for i, row in found.items() if i >= 295} == dict.fromkeys(range(295, 305), 9.0)
        assert found[294]["v"] == 147.0

    def test_rows_not_matched_by_source(self, table: Table, mode: str) -> None:
        given = source(*range(0, 300, 2))
        result = (
            fp.merge(table, given, "id", mode=mode)
            .when_not_matched_by_source_update({"v": "0.25"}, condition="id < 10")
            .when_not_matched_by_source_delete("target.id < 200")
            .execute()
        )
        assert (result.rows_updated, result.rows_deleted) == (5, 95)
        found = rows(table)
        assert {i for i in found if found[i]["v"] == 0.25} == {1, 3, 5, 7, 9}
        assert found.keys() == set(range(0, 200, 2)) | {1, 3, 5, 7, 9} | set(range(200, 300))

    def test_null_keys_match_nothing(self, table: Table, mode: str) -> None:
        fp.append(table, source(None, region=["n"]))
        given = source(None, region=["new"])
        merge = fp.merge(table, given, "t.id = s.id", mode=mode)
        result = merge.when_matched_delete().when_not_matched_insert({"id": "id", "region": "region"}).execute()
        assert (result.rows_deleted, result.rows_inserted) == (0, 1)
        safe = fp.merge(table, source(None), "t.id <=> s.id", mode=mode).when_matched_delete().execute()
        assert safe.rows_deleted == 2

    def test_conditions_beyond_the_key(self, table: Table, mode: str) -> None:
        given = source(1, 2, 3, low=[0, 5, 0], on=[True, True, False])
        on = "t.id = s.id AND t.id >= s.low AND s.on AND t.region IN ('us', 'eu')"
        assert fp.merge(table, given, on, mode=mode).when_matched_delete().execute().rows_deleted == 1
        assert 1 not in rows(table)

    def test_keys_of_several_columns_and_other_types(self, table: Table, mode: str) -> None:
        given = pa.table({"key": pa.array([1, 2, 3], pa.int16()), "area": ["us", "us", "eu"]})
        on = "target.id = source.key AND region = area"
        assert fp.merge(table, given, on, mode=mode).when_matched_delete().execute().rows_deleted == 2
        assert rows(table).keys() == set(range(300)) - {1, 3}

    def test_no_key_at_all(self, table: Table, mode: str) -> None:
        given = pa.table({"low": [10, 250], "high": [12, 251]})
        on = "target.id BETWEEN source.low AND source.high"
        assert fp.merge(table, given, on, mode=mode).when_matched_delete().execute().rows_deleted == 5


def test_files_without_a_key_are_not_opened(table: Table, tmp_path: Path) -> None:
    paths = table.inspect.data_files()["file_path"].to_pylist()
    second = next(path for path in paths if fp.plan_scan(table, "id = 150").files[0].path == path)
    others = [Path(path.removeprefix("file://")) for path in paths if path != second]
    for path in others:
        path.write_bytes(b"not a Parquet file")
    result = fp.merge(table, source(150, 151), "id").when_matched_delete().execute()
    assert result.rows_deleted == 2


def test_an_empty_source_changes_nothing(table: Table) -> None:
    empty = source().slice(0, 0)
    assert (
        fp.merge(table, empty, "id").when_matched_delete().when_not_matched_insert({"id": "id"}).execute().snapshot_id
        is None
    )
    result = fp.merge(table, empty, "id").when_not_matched_by_source_delete("id < 7").execute()
    assert result.rows_deleted == 7


def test_many_keys(table: Table) -> None:
    given = source(*range(200_000), v=[1.0] * 200_000)
    merge = fp.merge(table, given, "id").when_matched_update({"v": "s.v"})
    result = merge.when_not_matched_insert({"id": "id", "v": "v"}, "id >= 199990").execute()
    assert (result.rows_updated, result.rows_inserted) == (300, 10)
    assert {row["v"] for row in rows(table).values()} == {1.0}


class TestSources:
    def test_parquet_files(self, table: Table, tmp_path: Path) -> None:
        pq.write_table(source(1, 2), tmp_path / "a.parquet")
        pq.write_table(source(3), tmp_path / "b.parquet")
        paths = [tmp_path / "a.parquet", str(tmp_path / "b.parquet")]
        assert fp.merge(table, paths, "id").when_matched_delete().execute().rows_deleted == 3

    def test_another_table(self, table: Table) -> None:
        other = table.catalog.create_table("db.other", events(0, 1).schema)
        fp.append(other, events(10, 20))
        assert fp.merge(table, other, "id").when_matched_delete().execute().rows_deleted == 10

    def test_batches(self, table: Table) -> None:
        reader = source(1, 2, 3).to_reader(max_chunksize=2)
        assert fp.merge(table, reader, "id").when_matched_delete().execute().rows_deleted == 3

    def test_anything_else_is_refused(self, table: Table) -> None:
        with pytest.raises(BadInputError, match="unsupported input type: int"):
            fp.merge(table, 5, "id").when_matched_delete().execute()


REFUSED: dict[str, tuple[Callable[[Table], Merge], type[FloeplanError], str]] = {
    "no clause": (lambda t: fp.merge(t, source(1), "id"), BadInputError, "at least one clause"),
    "unknown column in ON": (
        lambda t: fp.merge(t, source(1), "t.id = s.missing").when_matched_delete(),
        UnknownColumnError,
        "missing",
    ),
    "ambiguous column": (
        lambda t: fp.merge(t, source(1), "t.id = s.id").when_matched_delete("id > 3"),
        UnknownColumnError,
        "both tables have a column id",
    ),
    "insert sees the source only": (
        lambda t: fp.merge(t, source(1), "id").when_not_matched_insert({"id": "t.id"}),
        UnknownColumnError,
        "id",
    ),
    "all columns, one missing": (
        lambda t: fp.merge(t, source(1), "id").when_matched_update(),
        UnknownColumnError,
        "the source has no column region",
    ),
    "type": (
        lambda t: fp.merge(t, source(1, x=["a"]), "id").when_matched_update({"v": "s.x"}),
        TypeMismatchError,
        "column v",
    ),
    "two source rows for one": (
        lambda t: (
            fp.merge(t, source(1, 150, 150), "id")
            .when_matched_update({"v": "0.5"})
            .when_not_matched_insert({"id": "id"})
        ),
        BadInputError,
        "several source rows match one target row",
    ),
    "a required column is not inserted": (
        lambda t: fp.merge(t, source(1000), "id").when_not_matched_insert({"v": "missing"}),
        UnknownColumnError,
        "missing",
    ),
    "only Spark can": (
        lambda t: fp.merge(t, source(1), "soundex(t.region) = 'X' AND t.id = s.id").when_matched_delete(),
        UnsupportedError,
        "outside Spark",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("mode", MODES)
def test_refused_with_nothing_committed_and_nothing_left_behind(
    case: str, mode: str, table: Table, tmp_path: Path
) -> None:
    with table.transaction() as change:
        change.set_properties({"write.merge.mode": mode})
    call, error, message = REFUSED[case]
    before, files = len(table.metadata.snapshots), set(tmp_path.rglob("*"))
    with pytest.raises(error, match=message):
        call(table).execute()
    assert len(table.refresh().metadata.snapshots) == before
    assert set(tmp_path.rglob("*")) == files


def test_unused_source_columns_are_left_out(table: Table) -> None:
    given = source(1, 2, unused=[[1], None])
    assert fp.merge(table, given, "id").when_matched_delete().execute().rows_deleted == 2
    one = given.slice(0, 1)
    every = fp.merge(table, one, "TRUE").when_matched_delete("t.id < 5").when_not_matched_by_source_delete().execute()
    assert every.rows_deleted == 3


def test_a_row_deleted_twice_is_deleted_once(table: Table) -> None:
    assert fp.merge(table, source(7, 7, 7), "id").when_matched_delete().execute().rows_deleted == 1

"""APPEND and OVERWRITE on small tables: every kind of source, every kind of replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

import floeplan as fp
from floeplan.errors import BadInputError, FloeplanError, TypeMismatchError, UnknownColumnError, UnknownFileError
from floeplan.scan.model import ScanOptions
from tests.support.tables.two_specs import catalog, events, two_spec_table

pytestmark = pytest.mark.unit

MODES = ("copy-on-write", "merge-on-read")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return two_spec_table(tmp_path)


def ids(table: Table, where: str | None = None) -> list[int]:
    mine = fp.plan_scan(table, where, options=ScanOptions(report=False)).to_arrow(["id"])["id"].to_pylist()
    if where is None:
        assert sorted(mine) == sorted(table.scan().to_arrow()["id"].to_pylist())
    return sorted(mine)


WRAPPINGS: dict[str, Callable[[pa.Table], Any]] = {
    "table": lambda t: t,
    "reader": lambda t: t.to_reader(max_chunksize=3),
    "batches": lambda t: t.to_batches(max_chunksize=3),
    "generator of tables": lambda t: (t.slice(i, 2) for i in range(0, t.num_rows, 2)),
    "polars": pl.from_arrow,
    "columns in another order": lambda t: t.select(["v", "ts", "id", "region"]),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_rows_in_any_wrapping(wrapping: str, table: Table) -> None:
    result = fp.append(table, WRAPPINGS[wrapping](events(300, 310)))
    assert (result.operation, result.rows_inserted, result.data_files_removed) == ("append", 10, 0)
    assert ids(table) == list(range(310))


def test_a_table_is_loaded_once_before_its_rows_are_written(table: Table, tmp_path: Path) -> None:
    class Counting(SqlCatalog):
        loads = 0

        def load_table(self, identifier: str | Identifier) -> Table:
            Counting.loads += 1
            return super().load_table(identifier)

    opened = Counting("local", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())

    def loaded_before_rows(given: Table | str) -> int:
        found = list[int]()

        def rows() -> Iterator[pa.Table]:
            found.append(Counting.loads)
            yield events(300, 301)

        Counting.loads = 0
        fp.append(given, rows(), catalog=opened)
        return found[0]

    assert loaded_before_rows("db.events") == 1
    stale = opened.load_table("db.events")
    fp.append(table, events(301, 302))
    assert loaded_before_rows(stale) == 1, "a table that was loaded earlier is refreshed"
    assert ids(stale) == sorted([*range(301), 300, 301])


def test_new_files_take_the_default_spec_and_one_manifest(table: Table) -> None:
    result = fp.append(table, events(300, 330))
    assert (result.data_files_added, result.mode) == (3, "merge-append")
    assert fp.append(table, events(330, 331), fast=True).mode == "fast-append"
    assert [(m.spec_id, m.content, m.entries) for m in result.manifests_written] == [(1, "data", 3)]
    assert len(ids(table, "region = 'eu' AND id >= 300 AND id < 330")) == 10


def test_parquet_files_are_written_again_and_field_ids_of_others_mean_nothing(table: Table, tmp_path: Path) -> None:
    given = events(300, 310)
    wrong = [given.schema.field(i).with_metadata({"PARQUET:field_id": str(4 - i)}) for i in range(4)]
    (tmp_path / "in").mkdir()
    pq.write_table(given.cast(pa.schema(wrong)), tmp_path / "in" / "a.parquet")
    pq.write_table(events(310, 320), tmp_path / "in" / "b.parquet")
    assert fp.append(table, tmp_path / "in").rows_inserted == 20
    assert ids(table) == list(range(320))
    assert {row["region"] for row in table.scan().to_arrow().to_pylist()} == {"eu", "us", "ap"}


def test_times_as_spark_writes_them_are_instants(tmp_path: Path) -> None:
    timestamp = datetime(2024, 3, 1, 12, 30, 15, 7, tzinfo=UTC)
    given = pa.table({"at": pa.array([timestamp, None], pa.timestamp("us", "UTC"))})
    pq.write_table(given, tmp_path / "int96.parquet", use_deprecated_int96_timestamps=True)
    table = catalog(tmp_path).create_table("db.times", given.schema)
    fp.append(table, tmp_path / "int96.parquet")
    assert table.scan().to_arrow()["at"].to_pylist() == [timestamp, None]


def test_files_can_be_registered_where_they_are(table: Table, tmp_path: Path) -> None:
    with table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": table.schema().name_mapping.model_dump_json()})
    given = events(300, 310)
    pq.write_table(given.filter(pc.equal(given["region"], "eu")), tmp_path / "eu.parquet")
    pq.write_table(given, tmp_path / "all.parquet")
    with pytest.raises(FloeplanError, match="region"):
        fp.append(table, [tmp_path / "all.parquet"], add_files=True)
    result = fp.append(table, tmp_path / "eu.parquet", add_files=True)
    assert (result.rows_inserted, result.data_files_added, result.mode) == (4, 1, "metadata")
    assert fp.append(table, [tmp_path / "all.parquet"], add_files=True, spec_id=0).rows_inserted == 10
    assert len(ids(table)) == 314
    assert (tmp_path / "all.parquet").exists()


def test_rows_under_an_old_spec(table: Table) -> None:
    result = fp.append(table, events(300, 310), spec_id=0)
    assert [(m.spec_id, m.entries) for m in result.manifests_written] == [(0, 1)]
    assert ids(table) == list(range(310))


def test_nothing_to_append_commits_nothing(table: Table) -> None:
    assert fp.append(table, events(0, 0)).snapshot_id is None


def test_rows_are_sorted_by_the_order_of_the_table(table: Table) -> None:
    from pyiceberg.transforms import IdentityTransform

    with table.update_sort_order() as order:
        order.desc("id", IdentityTransform())
    fp.append(table, events(300, 330))
    fp.update(table, {"v": "0.5"}, "id IN (50, 310)", mode="copy-on-write")
    plan = fp.plan_scan(table, "id < 100 OR id >= 300", options=ScanOptions(report=False))
    for file in plan.files:
        found = pq.read_table(file.path.removeprefix("file://"))["id"].to_pylist()
        assert found == sorted(found, reverse=True)


REFUSED: dict[str, tuple[Any, type[FloeplanError], str]] = {
    "unknown column": (events(0, 5).append_column("more", pa.nulls(5)), UnknownColumnError, "more"),
    "wrong type": (events(0, 5).set_column(0, "id", pa.array(["a"] * 5)), TypeMismatchError, "id"),
    "no rows at all": (5, BadInputError, "unsupported input type: int"),
    "no file": ("nowhere.parquet", UnknownFileError, "nowhere"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_nothing_committed_and_nothing_left_behind(case: str, table: Table, tmp_path: Path) -> None:
    data, error, message = REFUSED[case]
    before, files = len(table.metadata.snapshots), set(tmp_path.rglob("*"))
    with pytest.raises(error, match=message):
        fp.append(table, data)
    with pytest.raises(error, match=message):
        fp.overwrite(table, data, "id < 150", mode="merge-on-read")
    assert len(table.refresh().metadata.snapshots) == before
    assert set(tmp_path.rglob("*")) == files


@pytest.mark.parametrize("mode", MODES)
class TestOverwrite:
    def test_matching_rows_of_all_files(self, table: Table, mode: str) -> None:
        result = fp.overwrite(table, events(1000, 1003), "id < 150", mode=mode)
        assert (result.rows_deleted, result.rows_inserted, result.operation) == (150, 3, "overwrite")
        assert ids(table) == [*range(150, 300), 1000, 1001, 1002]

    def test_everything(self, table: Table, mode: str) -> None:
        result = fp.overwrite(table, events(1000, 1003), mode=mode)
        assert (result.rows_deleted, result.data_files_removed, result.delete_files_added) == (300, 5, 0)
        assert ids(table) == [1000, 1001, 1002]

    def test_logical_partitions_of_all_specs(self, table: Table, mode: str) -> None:
        result = fp.overwrite(table, self.only_eu(), dynamic=True, mode=mode)
        assert (result.rows_deleted, result.rows_inserted) == (100, 4)
        assert ids(table) == sorted([i for i in range(300) if i % 3] + [1002, 1005, 1008, 1011])
        assert len(ids(table, "region = 'eu'")) == 4

    def test_files_of_the_same_spec_only(self, table: Table, mode: str) -> None:
        result = fp.overwrite(table, self.only_eu(), dynamic=True, same_spec_only=True, mode=mode)
        assert result.rows_deleted == 33
        assert len(ids(table, "region = 'eu'")) == 67 + 4

    def test_old_files_proven_by_their_bounds_are_not_opened(self, table: Table, mode: str) -> None:
        given = events(1200, 1260)
        europe = given.filter(pc.equal(given["region"], "eu"))
        fp.append(table, europe, spec_id=0)
        (path,) = {f.path for f in fp.plan_scan(table, "id >= 1200", options=ScanOptions(report=False)).files}
        Path(path.removeprefix("file://")).write_bytes(b"not a Parquet file")
        assert fp.overwrite(table, self.only_eu(), dynamic=True, mode=mode).rows_deleted == 120

    def test_no_rows_replace_no_partition(self, table: Table, mode: str) -> None:
        assert fp.overwrite(table, events(0, 0), dynamic=True, mode=mode).snapshot_id is None
        assert fp.overwrite(table, events(0, 0), "id < 100", mode=mode).rows_deleted == 100

    def test_choices_exclude_each_other(self, table: Table, mode: str) -> None:
        with pytest.raises(BadInputError, match="not both"):
            fp.overwrite(table, events(0, 1), "id = 1", dynamic=True, mode=mode)
        with pytest.raises(BadInputError, match="dynamic"):
            fp.overwrite(table, events(0, 1), same_spec_only=True, mode=mode)

    @staticmethod
    def only_eu() -> pa.Table:
        given = events(1000, 1012)
        return given.filter(pc.equal(given["region"], "eu"))

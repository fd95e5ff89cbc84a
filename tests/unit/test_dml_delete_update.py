"""DELETE and UPDATE on small tables of two specs: rows, files, counts and errors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType

import floeplan as fp
from floeplan.cli.main import main
from floeplan.dml.assign import compile_assignments
from floeplan.errors import (
    BadInputError,
    FloeplanError,
    InvalidOptionError,
    TypeMismatchError,
    UnknownColumnError,
    UnknownSnapshotError,
    UnsupportedError,
)
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.predicate.names import Names
from floeplan.predicate.rows.arrow_columns import typed_columns_of
from floeplan.scan.model import ScanOptions
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.commit import commit_change
from floeplan.write.data_files import write_data_files
from floeplan.write.target import WriteTarget
from tests.support.tables.two_specs import catalog, events, two_spec_table

pytestmark = pytest.mark.unit

COPY, MERGE = "copy-on-write", "merge-on-read"
MODES = (COPY, MERGE)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return two_spec_table(tmp_path)


def rows(table: Table, where: str | None = None) -> dict[int, dict[str, Any]]:
    """Rows by id, as Floeplan and PyIceberg both read them."""
    mine = fp.plan_scan(table, where, options=ScanOptions(report=False)).to_arrow().to_pylist()
    if where is None:
        theirs = table.scan().to_arrow().to_pylist()
        assert sorted(map(repr, mine)) == sorted(map(repr, theirs))
    found = {row["id"]: row for row in mine}
    assert len(found) == len(mine)
    return found


def snapshots(table: Table) -> int:
    return len(table.refresh().metadata.snapshots)


def files_on_disk(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.suffix in (".parquet", ".puffin", ".avro")}


@pytest.mark.parametrize("mode", MODES)
class TestDelete:
    def test_rows_of_every_spec_are_deleted(self, table: Table, mode: str) -> None:
        result = fp.delete(table, "id % 50 = 7", mode=mode)
        assert (result.rows_deleted, result.operation, result.mode) == (6, "delete", mode)
        assert rows(table).keys() == {i for i in range(300) if i % 50 != 7}

    def test_fully_matching_files_are_dropped_by_metadata(self, table: Table, mode: str) -> None:
        result = fp.delete(table, "id < 100", mode=mode)
        assert result.mode == "metadata"
        assert (result.rows_deleted, result.data_files_removed, result.data_files_added) == (100, 1, 0)
        assert result.delete_files_added == 0
        assert rows(table).keys() == set(range(100, 300))

    def test_no_match_commits_nothing(self, table: Table, mode: str) -> None:
        before = snapshots(table)
        result = fp.delete(table, "id = 1000", mode=mode)
        assert (result.snapshot_id, result.rows_deleted, result.attempts) == (None, 0, 0)
        assert not result.committed
        assert snapshots(table) == before

    def test_bounds_admit_a_row_that_is_not_there(self, table: Table, mode: str) -> None:
        before, result = snapshots(table), fp.delete(table, "id = 50 AND region = 'nowhere'", mode=mode)
        assert result.snapshot_id is None
        assert snapshots(table) == before

    def test_everything(self, table: Table, mode: str) -> None:
        assert fp.delete(table, "TRUE", mode=mode).rows_deleted == 300
        assert rows(table) == {}

    def test_rows_are_counted_once_however_often_they_are_deleted(self, table: Table, mode: str) -> None:
        first = fp.delete(table, "id BETWEEN 10 AND 19", mode=mode)
        second = fp.delete(table, "id BETWEEN 15 AND 29", mode=mode)
        third = fp.delete(table, "id < 100", mode=mode)
        assert [r.rows_deleted for r in (first, second, third)] == [10, 10, 80]
        assert rows(table).keys() == set(range(100, 300))

    def test_a_predicate_only_rows_can_answer(self, table: Table, mode: str) -> None:
        result = fp.delete(table, "length(region) = 2 AND id * 2 > 590", mode=mode)
        assert result.rows_deleted == 4
        assert rows(table).keys() == set(range(296))

    def test_what_can_fail_is_not_evaluated_on_deleted_rows(self, table: Table, mode: str) -> None:
        fp.delete(table, "id IN (7, 8)", mode=mode)
        assert fp.delete(table, "100 / (id - 7) > 40", mode=mode).rows_deleted == 1
        assert rows(table).keys() == set(range(300)) - {7, 8, 9}

    def test_nulls_are_not_true(self, table: Table, mode: str) -> None:
        result = fp.delete(table, "NOT (v > 10)", mode=mode)
        assert result.rows_deleted == len([i for i in range(21) if i % 10])

    def test_manifests_are_of_one_spec_each(self, table: Table, mode: str) -> None:
        result = fp.delete(table, "id % 100 = 0", mode=mode)
        specs = {(m.spec_id, m.content) for m in result.manifests_written}
        assert {spec for spec, _ in specs} == {0, 1}
        assert specs >= ({(0, "deletes"), (1, "deletes")} if mode == MERGE else {(0, "data"), (1, "data")})


def test_merge_on_read_keeps_data_files_and_the_spec_of_each(table: Table) -> None:
    before = set(table.inspect.data_files()["file_path"].to_pylist())
    result = fp.delete(table, "id IN (5, 250)", mode=MERGE)
    assert (result.delete_files_added, result.data_files_removed) == (2, 0)
    assert set(table.inspect.data_files()["file_path"].to_pylist()) == before
    found = table.inspect.delete_files().to_pylist()
    assert sorted(entry["spec_id"] for entry in found) == [0, 1]


def test_a_file_keeps_one_delete_file(table: Table) -> None:
    fp.delete(table, "id = 5", mode=MERGE)
    result = fp.delete(table, "id = 6", mode=MERGE)
    assert (result.delete_files_added, result.delete_files_removed) == (1, 1)
    assert table.inspect.delete_files()["record_count"].to_pylist() == [2]


def test_partition_granularity_leaves_earlier_deletes(table: Table) -> None:
    with table.transaction() as change:
        change.set_properties({"write.delete.granularity": "partition"})
    fp.delete(table, "id IN (5, 105)", mode=MERGE)
    result = fp.delete(table, "id IN (6, 106)", mode=MERGE)
    assert (result.delete_files_added, result.delete_files_removed) == (1, 0)
    assert rows(table).keys() == set(range(300)) - {5, 6, 105, 106}


def test_a_file_without_a_row_left_is_removed_with_its_deletes(table: Table) -> None:
    fp.delete(table, "id < 60", mode=MERGE)
    result = fp.delete(table, "id < 100 AND length(region) = 2", mode=MERGE)
    assert (result.rows_deleted, result.data_files_removed, result.delete_files_removed) == (40, 1, 1)
    assert result.delete_files_added == 0


def test_copies_take_the_default_spec(table: Table) -> None:
    fp.delete(table, "id = 5", mode=COPY)
    specs = {e["spec_id"] for e in table.inspect.data_files().to_pylist() if e["lower_bounds"]}
    assert specs == {0, 1}
    assert len(rows(table, "region = 'eu'")) == 100
    plan = fp.plan_scan(table, "region = 'eu'", options=ScanOptions(report=False))
    assert {file.spec_id for file in plan.files} == {0, 1}


class TestModes:
    def test_the_mode_comes_from_table_properties(self, table: Table) -> None:
        assert fp.delete(table, "id = 1").mode == COPY
        with table.transaction() as change:
            change.set_properties({"write.delete.mode": MERGE, "write.update.mode": COPY})
        assert fp.delete(table, "id = 2").mode == MERGE
        assert fp.update(table, {"v": "0.0"}, "id = 3").mode == COPY

    def test_format_1_is_always_copied(self, tmp_path: Path) -> None:
        table = catalog(tmp_path).create_table("db.old", events(0, 1).schema, properties={"format-version": "1"})
        fp.append(table, events(0, 50))
        with table.transaction() as change:
            change.set_properties({"write.delete.mode": MERGE})
        assert fp.delete(table, "id = 2").mode == COPY
        with pytest.raises(InvalidOptionError, match="format version 1"):
            fp.delete(table, "id = 2", mode=MERGE)

    def test_unknown_choices_are_named(self, table: Table) -> None:
        with pytest.raises(InvalidOptionError, match="'merge' is not one of"):
            fp.delete(table, "id = 2", mode="merge")
        with pytest.raises(InvalidOptionError, match="'loose' is not one of"):
            fp.delete(table, "id = 2", isolation="loose")


@pytest.mark.parametrize("mode", MODES)
class TestUpdate:
    def test_new_values_are_computed_from_the_old_row(self, table: Table, mode: str) -> None:
        result = fp.update(table, {"v": "id * 1.0", "id": "id + 1000"}, "id IN (7, 207)", mode=mode)
        assert (result.rows_updated, result.rows_deleted, result.rows_inserted) == (2, 0, 0)
        found = rows(table)
        assert (found[1007]["v"], found[1207]["v"]) == (7.0, 207.0)
        assert found.keys() == set(range(300)) - {7, 207} | {1007, 1207}

    def test_rows_move_to_their_new_partition(self, table: Table, mode: str) -> None:
        fp.update(table, {"region": "'eu'"}, "region = 'us' AND id >= 200", mode=mode)
        plan = fp.plan_scan(table, "region = 'us' AND id >= 200", options=ScanOptions(report=False))
        assert plan.count() == 0
        assert sum(row["region"] == "eu" for i, row in rows(table).items() if i >= 200) == 66

    def test_python_values(self, table: Table, mode: str) -> None:
        timestamp = datetime(2030, 1, 2, 3, 4, 5, 6)
        fp.update(table, {"ts": timestamp, "v": None, "region": "'o''k'"}, "id = 100", mode=mode)
        assert rows(table)[100] == {"id": 100, "region": "o'k", "ts": timestamp, "v": None}

    def test_the_statement_timestamp(self, table: Table, mode: str) -> None:
        fp.update(table, {"ts": "localtimestamp()"}, "id < 200 AND ts < current_timestamp()", mode=mode)
        timestamps = {row["ts"] for i, row in rows(table).items() if i < 200}
        assert len(timestamps) == 1
        assert timestamps.pop().year >= 2026

    def test_every_row(self, table: Table, mode: str) -> None:
        assert fp.update(table, {"v": "1.5"}, mode=mode).rows_updated == 300
        assert {row["v"] for row in rows(table).values()} == {1.5}


@pytest.fixture
def typed(tmp_path: Path) -> Table:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "small", IntegerType(), required=False),
        NestedField(
            3,
            "nest",
            StructType(
                NestedField(4, "a", IntegerType(), required=False), NestedField(5, "b", StringType(), required=False)
            ),
            required=False,
        ),
    )
    table = catalog(tmp_path).create_table("db.typed", schema)
    fp.append(table, pa.table({"id": [1, 2], "small": [10, 20], "nest": [{"a": 1, "b": "x"}, None]}))
    return table


def test_a_field_of_a_struct(typed: Table) -> None:
    fp.update(typed, {"nest.a": "small + 1"})
    found = {row["id"]: row["nest"] for row in typed.scan().to_arrow().to_pylist()}
    assert found == {1: {"a": 11, "b": "x"}, 2: {"a": 21, "b": None}}


REFUSED: dict[str, tuple[Callable[[Table], object], type[FloeplanError], str]] = {
    "unknown column in the predicate": (lambda t: fp.delete(t, "missing = 1"), UnknownColumnError, "missing"),
    "unknown column in SET": (lambda t: fp.update(t, {"missing": "1"}), UnknownColumnError, "missing"),
    "unknown column in a value": (lambda t: fp.update(t, {"small": "missing"}), UnknownColumnError, "missing"),
    "assigned twice": (lambda t: fp.update(t, {"nest": "NULL", "nest.a": "1"}), BadInputError, "twice"),
    "nothing assigned": (lambda t: fp.update(t, {}), BadInputError, "no column is assigned"),
    "text in a number": (lambda t: fp.update(t, {"small": "'x'"}), TypeMismatchError, "small"),
    "overflow": (lambda t: fp.update(t, {"small": "3000000000"}), TypeMismatchError, "small"),
    "null in a required column": (
        lambda t: fp.update(t, {"id": "CAST(NULL AS BIGINT)"}),
        TypeMismatchError,
        "id is req",
    ),
    "chance": (lambda t: fp.delete(t, "rand() < 0.5"), BadInputError, "changes with every run"),
    "only Spark can": (lambda t: fp.delete(t, "soundex(nest.b) = 'X'"), UnsupportedError, "outside Spark"),
    "no value": (lambda t: fp.update(t, {"small": object()}), BadInputError, "cannot be assigned to a column"),
    "unknown branch": (lambda t: fp.delete(t, "TRUE", branch="nowhere"), UnknownSnapshotError, "nowhere"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("mode", MODES)
def test_refused_with_nothing_committed_and_nothing_left_behind(
    case: str, mode: str, typed: Table, tmp_path: Path
) -> None:
    with typed.transaction() as change:
        change.set_properties({"write.delete.mode": mode, "write.update.mode": mode})
    call, error, message = REFUSED[case]
    before, files = snapshots(typed), files_on_disk(tmp_path)
    with pytest.raises(error, match=message):
        call(typed)
    assert snapshots(typed) == before
    assert files_on_disk(tmp_path) == files


def test_a_metadata_file_is_read_only(table: Table) -> None:
    static = StaticTable.from_metadata(table.metadata_location)
    with pytest.raises(BadInputError, match="read-only"):
        fp.delete(static, "TRUE")


class TestBranches:
    def test_only_the_branch_changes(self, table: Table) -> None:
        snapshot = table.current_snapshot()
        assert snapshot is not None
        table.manage_snapshots().create_branch(snapshot.snapshot_id, "side").commit()
        result = fp.delete(table, "id < 250", branch="side")
        assert result.rows_deleted == 250
        fp.append(table, events(900, 901), branch="side")
        assert rows(table).keys() == set(range(300))
        assert fp.plan_scan(table, ref="side", options=ScanOptions(report=False)).count() == 51
        assert fp.delete(table, "id < 250", branch="side").snapshot_id is None

    def test_tags_do_not_change(self, table: Table) -> None:
        snapshot = table.current_snapshot()
        assert snapshot is not None
        table.manage_snapshots().create_tag(snapshot.snapshot_id, "release").commit()
        with pytest.raises(BadInputError, match="release is a tag"):
            fp.delete(table, "TRUE", branch="release")


def test_result_has_the_keys_of_the_contract(table: Table) -> None:
    document = fp.delete(table, "id = 5", summary={"reason": "asked"}).to_dict()
    assert set(document) == {
        "operation",
        "mode",
        "snapshot_id",
        "rows_deleted",
        "rows_inserted",
        "rows_updated",
        "data_files_added",
        "data_files_removed",
        "delete_files_added",
        "delete_files_removed",
        "manifests_written",
        "attempts",
    }
    assert set(document["manifests_written"][0]) == {"path", "spec_id", "content", "entries"}
    snapshot = table.snapshot_by_id(document["snapshot_id"])
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["reason"] == "asked"


@pytest.mark.parametrize(
    ("column", "value", "named"), [("file_format", "LANCE", "LANCE"), ("key_metadata", b"k", "encrypted")]
)
@pytest.mark.parametrize("mode", MODES)
def test_files_that_cannot_be_read_can_only_be_dropped(
    column: str, value: object, named: str, mode: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    target = WriteTarget.of(table)
    entries = write_data_files(target, [events(500, 600)], file_name_token="t")
    position = entries.table.schema.get_field_index(column)
    changed = pa.array([value] * len(entries), entries.table.schema.field(position).type)
    foreign = EntriesTable(entries.table.set_column(position, column, changed), entries.partition_types)
    commit_change(table, SnapshotChange(Operation.APPEND, added_data=foreign))
    before = snapshots(table)
    with pytest.raises(UnsupportedError, match=named):
        fp.delete(table, "id % 50 = 7", mode=mode)
    with pytest.raises(UnsupportedError, match=named):
        fp.merge(table, pa.table({"id": [510]}), "id", mode=mode).when_matched_delete().execute()
    assert snapshots(table) == before
    with patch("floeplan.cli.common.spark_for", side_effect=AssertionError("Spark does not read it either")):
        assert main(["scan", table.refresh().metadata_location, "--where", "id % 50 = 7"]) != 0
    assert named in capsys.readouterr().err
    assert fp.delete(table, "id >= 500", mode=mode).rows_deleted == 100
    assert fp.delete(table, "id % 50 = 7", mode=mode).rows_deleted == 6


def test_default_is_what_a_new_row_would_have(tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "name", StringType(), required=False, write_default="it's \\ new", initial_default="old"),
        NestedField(3, "n", IntegerType(), required=False),
    )
    made = compile_assignments({"name": "default", "n": "DEFAULT"}, schema, Names(schema))
    rows_before = pa.table({"id": [1], "name": ["x"], "n": pa.array([5], pa.int32())})
    changed = made.update(rows_before, typed_columns_of(rows_before, schema), rows_before.schema)
    assert changed.to_pylist() == [{"id": 1, "name": "it's \\ new", "n": None}]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"n": "1"}, "id s"),
        ({"n": "n + 1"}, "id n s"),
        ({"n": "id", "id": "1"}, "id s"),
        ({"n": "id", "id": "n"}, "id n s"),
        ({"s": "NULL"}, "id n"),
        ({"s": "named_struct('x', s.x + 1)"}, "id n s"),
        ({"s.x": "1", "n": "s.x"}, "id s"),
    ],
)
def test_columns_that_are_only_assigned_are_not_read(given: dict[str, object], read: str) -> None:
    struct = StructType(NestedField(4, "x", IntegerType()), NestedField(5, "y", IntegerType()))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "n", LongType()), NestedField(3, "s", struct))
    made = compile_assignments(given, schema, Names(schema))
    assert " ".join(field.name for field in made.kept_fields(schema)) == read


def test_an_update_does_not_need_the_columns_it_replaces(table: Table) -> None:
    (path,) = (file.path for file in fp.plan_scan(table, "id = 42").files)
    local = Path(path.removeprefix("file://"))
    stored, columns = local.read_bytes(), pq.ParquetFile(local).metadata.row_group(0)
    chunk = next(c for c in map(columns.column, range(columns.num_columns)) if c.path_in_schema == "v")
    start, size = chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size
    local.write_bytes(stored[:start] + b"\xff" * size + stored[start + size :])
    assert fp.update(table, {"v": "-1"}, "id = 42", mode=MERGE).rows_updated == 1
    assert rows(table, "id = 42 AND v = -1").keys() == {42}
    with pytest.raises(FloeplanError, match="cannot be decoded"):
        fp.update(table, {"v": "v + 1"}, "id = 41", mode=MERGE)

"""Reading a plan: missing columns, equality delete keys in every form, and unreadable files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType

from floeplan.errors import CorruptFileError, CorruptMetadataError, UnsupportedError
from floeplan.parquet.prune.selection import RowSelection
from floeplan.predicate.stats import TriState
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.scan.file_rows import OpenFile
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from floeplan.vectors import Mask
from tests.support.tables.layouts import Files, Layout

pytestmark = pytest.mark.unit

PLAIN = PartitionSpec(spec_id=0)
ID = NestedField(1, "id", LongType(), required=False)
NAME = NestedField(2, "name", StringType(), required=False)
SCHEMA = Schema(ID, NAME, schema_id=0)
ROWS = [{"id": n, "name": f"n{n}"} for n in range(6)]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def ids(table: Table, where: str | None = None, **options: Any) -> list[int]:
    """Ids of the rows; counting must agree with reading."""
    plan = plan_scan(table, where, options=ScanOptions(report=False, **options))
    found = plan.to_arrow(["id"]).column("id").to_pylist()
    assert plan.count() == len(found)
    return found


def by_id(table: Table, where: str | None = None) -> dict[int, Any]:
    return {row.pop("id"): row for row in plan_scan(table, where).to_arrow().to_pylist()}


class TestColumnsAFileLacks:
    LATER = NestedField(3, "later", StringType(), required=False, initial_default="x")
    WITH_DEFAULT = Schema(ID, NAME, LATER, schema_id=1)

    def layout(self, *specs: PartitionSpec) -> Layout:
        return Layout(self.WITH_DEFAULT, specs or (PLAIN,), version=3, older_schemas=(SCHEMA,))

    def test_initial_default_stands_in_every_old_row(self, files: Files) -> None:
        files.data(ROWS, SCHEMA, group=2)
        files.data([{"id": 9, "name": None, "later": None}], self.WITH_DEFAULT)
        table = files.table(self.layout())
        assert by_id(table)[0] == {"name": "n0", "later": "x"}
        assert ids(table, "later = 'x'") == list(range(6))
        assert ids(table, "later IS NULL") == [9]
        assert ids(table, "later <> 'x' AND id < 3") == []

    def test_identity_partition_value_stands_before_the_default(self, files: Files) -> None:
        spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "later"), spec_id=0)
        files.data(ROWS[:2], SCHEMA, **{"partition.1000": "p"})
        files.data(ROWS[2:4], SCHEMA, **{"partition.1000": None})
        table = files.table(self.layout(spec))
        assert [row["later"] for row in by_id(table).values()] == ["p", "p", None, None]
        assert ids(table, "later = 'p'") == [0, 1]
        assert ids(table, "later IS NULL") == [2, 3]
        assert ids(table, "later = 'x'") == []

    def test_other_partition_values_are_not_taken_for_column_values(self, files: Files) -> None:
        spec = PartitionSpec(PartitionField(3, 1000, BucketTransform(4), "later_bucket"), spec_id=0)
        files.data(ROWS[:2], SCHEMA, **{"partition.1000": 1})
        assert by_id(files.table(self.layout(spec)))[0]["later"] == "x"

    def test_nested_column_added_later(self, files: Files) -> None:
        old = Schema(ID, NestedField(4, "s", StructType(NestedField(5, "a", LongType())), required=False), schema_id=0)
        inner = (NestedField(5, "a", LongType()), NestedField(6, "b", LongType(), initial_default=7))
        new = Schema(ID, NestedField(4, "s", StructType(*inner), required=False), schema_id=1)
        files.data([{"id": 1, "s": {"a": 1}}, {"id": 2, "s": None}], old)
        table = files.table(Layout(new, (PLAIN,), version=3, older_schemas=(old,)))
        assert by_id(table) == {1: {"s": {"a": 1, "b": 7}}, 2: {"s": None}}
        assert ids(table, "s.b = 7") == [1]
        assert ids(table, "s.b IS NULL") == [2]


class TestEqualityDeletes:
    def test_key_that_was_dropped_and_whose_name_is_taken_again(self, files: Files) -> None:
        old = Schema(ID, NAME, schema_id=0)
        new = Schema(ID, NestedField(3, "name", StringType(), required=False), schema_id=1)
        files.data(ROWS, old)
        files.keys([{"name": "n1"}, {"name": "n4"}], Schema(NAME), [2])
        table = files.table(Layout(new, (PLAIN,), older_schemas=(old,)))
        assert ids(table) == [0, 2, 3, 5]
        assert ids(table, "name IS NULL AND id > 1") == [2, 3, 5]

    def test_key_within_a_struct(self, files: Files) -> None:
        inner = StructType(
            NestedField(5, "a", LongType(), required=False), NestedField(6, "b", LongType(), required=False)
        )
        schema = Schema(ID, NestedField(4, "s", inner, required=False), schema_id=0)
        key = Schema(NestedField(4, "s", StructType(NestedField(6, "b", LongType(), required=False)), required=False))
        files.data([{"id": n, "s": {"a": n, "b": n % 3}} for n in range(6)] + [{"id": 6, "s": None}], schema)
        files.keys([{"s": {"b": 2}}, {"s": None}], key, [6])
        table = files.table(Layout(schema, (PLAIN,)))
        assert ids(table) == [0, 1, 3, 4]
        assert plan_scan(table, "s.a > 0", columns=["s.a"]).to_arrow().num_rows == 3

    def test_null_keys_delete_null_rows_and_all_key_columns_must_match(self, files: Files) -> None:
        files.data([*ROWS, {"id": None, "name": "n1"}, {"id": 1, "name": None}], SCHEMA)
        files.keys([{"id": None, "name": "n1"}, {"id": 1, "name": "n2"}], SCHEMA, [1, 2])
        assert ids(files.table(Layout(SCHEMA, (PLAIN,)))) == [0, 1, 2, 3, 4, 5, 1]

    def test_only_older_rows_are_deleted(self, files: Files) -> None:
        for sequence in (1, 2, 3):
            files.data([{"id": sequence, "name": "same"}], SCHEMA, sequence_number=sequence)
        files.keys([{"name": "same"}], Schema(NAME), [2], sequence_number=2)
        assert ids(files.table(Layout(SCHEMA, (PLAIN,)))) == [2, 3]

    def test_key_of_a_promoted_column(self, files: Files) -> None:
        narrow = Schema(NestedField(1, "id", IntegerType(), required=False), NAME, schema_id=0)
        files.data(ROWS, narrow)
        files.keys([{"id": 3}], Schema(ID), [1])
        table = files.table(Layout(Schema(ID, NAME, schema_id=1), (PLAIN,), older_schemas=(narrow,)))
        assert ids(table, "id >= 2") == [2, 4, 5]

    def test_key_that_no_schema_has_is_named(self, files: Files) -> None:
        files.data(ROWS, SCHEMA)
        files.keys([{"other": 1}], Schema(NestedField(77, "other", LongType())), [77])
        with pytest.raises(CorruptMetadataError, match="names field id 77, which no schema of the table has"):
            plan_scan(files.table(Layout(SCHEMA, (PLAIN,)))).to_arrow()

    def test_delete_file_without_its_key_column_is_named(self, files: Files) -> None:
        files.data(ROWS, SCHEMA)
        files.keys([{"name": "n1"}], Schema(NAME), [1])
        with pytest.raises(CorruptFileError, match="has no column with field id 1"):
            plan_scan(files.table(Layout(SCHEMA, (PLAIN,)))).to_arrow()


class TestPositionDeletes:
    @pytest.mark.parametrize("page_index", [False, True])
    def test_positions_count_rows_of_the_file_including_pruned_ones(self, files: Files, page_index: bool) -> None:
        path = files.data(ROWS, SCHEMA, group=2)
        files.positions([(path, 5), (path, 3), (path, 3), (path, 0)])
        table = files.table(Layout(SCHEMA, (PLAIN,)))
        assert ids(table, "id >= 3", page_index=page_index) == [4]
        assert ids(table, "id < 3", page_index=page_index) == [1, 2]

    def test_vector_replaces_position_deletes(self, files: Files) -> None:
        path = files.data(ROWS, SCHEMA, group=2)
        files.positions([(path, 0)])
        files.vector(path, [2, 3])
        table = files.table(Layout(SCHEMA, (PLAIN,), version=3))
        assert ids(table) == [0, 1, 4, 5]
        assert ids(table, "id > 2") == [4, 5]

    def test_delete_file_without_rows(self, files: Files) -> None:
        files.data(ROWS, SCHEMA)
        files.positions([])
        assert ids(files.table(Layout(SCHEMA, (PLAIN,)))) == list(range(6))

    def test_vector_that_is_not_what_its_manifest_says(self, files: Files) -> None:
        path = files.data(ROWS, SCHEMA)
        files.vector(path, [2, 3], record_count=1)
        with pytest.raises(CorruptFileError, match="has 2 positions, its manifest says 1"):
            plan_scan(files.table(Layout(SCHEMA, (PLAIN,), version=3))).to_arrow()


class TestFilesWithoutIds:
    MAPPING = '[{"field-id": 1, "names": ["id", "key"]}, {"field-id": 2, "names": ["name"]}]'

    def table(self, files: Files, properties: dict[str, str]) -> Table:
        path = files.folder / "plain.parquet"
        pq.write_table(pa.table({"key": [1, 2, 3], "name": ["a", "b", "c"], "other": [0, 0, 0]}), path)
        files.entries.append({"file_path": str(path), "record_count": 3, "sequence_number": 1})
        table = files.table(Layout(SCHEMA, (PLAIN,)))
        table.metadata.properties.update(properties)
        return table

    def test_columns_are_resolved_by_the_name_mapping(self, files: Files) -> None:
        table = self.table(files, {"schema.name-mapping.default": self.MAPPING})
        assert by_id(table) == {1: {"name": "a"}, 2: {"name": "b"}, 3: {"name": "c"}}
        assert ids(table, "id > 1") == [2, 3]
        (warning,) = plan_scan(table, "id > 1").warnings
        assert warning.kind == "footer-not-used"
        assert "carry no field ids" in warning.message

    def test_without_a_mapping_nothing_is_guessed(self, files: Files) -> None:
        with pytest.raises(UnsupportedError, match=r"no field ids.*schema\.name-mapping\.default"):
            plan_scan(self.table(files, {})).to_arrow()


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"file_format": "LANCE"}, "is LANCE"),
        ({"key_metadata": b"k"}, "is encrypted"),
    ],
)
def test_file_that_cannot_be_read_is_kept_and_named_when_read(files: Files, entry: dict[str, Any], named: str) -> None:
    files.data(ROWS, SCHEMA, **entry)
    plan = plan_scan(files.table(Layout(SCHEMA, (PLAIN,))), "id = 1")
    assert len(plan.files) == 1
    with pytest.raises(UnsupportedError, match=named):
        plan.to_arrow()


def test_column_whose_name_begins_like_another_ones(files: Files) -> None:
    schema = Schema(ID, NestedField(2, "id.b", LongType(), required=False), schema_id=0)
    files.data([{"id": 1, "id.b": 5}, {"id": 2, "id.b": 6}], schema)
    assert ids(files.table(Layout(schema, (PLAIN,))), "`id.b` = 6") == [2]


def test_predicate_that_names_no_column_is_counted_as_it_is_read(files: Files) -> None:
    files.data(ROWS, SCHEMA)
    table = files.table(Layout(SCHEMA, (PLAIN,)))
    assert ids(table, "concat('a', 'b') LIKE 'a%'") == list(range(6))
    assert ids(table, "concat('a', 'b') LIKE 'b%'") == []


def test_rows_without_a_column_are_still_rows(files: Files) -> None:
    files.data(ROWS, SCHEMA)
    files.data(ROWS, SCHEMA)
    table = files.table(Layout(SCHEMA, (PLAIN,)))
    for where, rows in ((None, 12), ("id >= 4", 4), ("id > 99", 0)):
        plan = plan_scan(table, where)
        assert (plan.to_arrow(columns=[]).num_rows, plan.to_arrow(columns=[]).num_columns) == (rows, 0)
        assert plan.to_arrow(columns=[], limit=3).num_rows == min(rows, 3)
        assert plan_scan(table, where, columns=[]).to_arrow().num_rows == rows


def test_part_of_a_struct_while_another_part_decides(files: Files) -> None:
    inner = StructType(NestedField(5, "a", LongType()), NestedField(6, "b", LongType()))
    schema = Schema(ID, NestedField(4, "s", inner, required=False), schema_id=0)
    files.data([{"id": n, "s": {"a": n, "b": n % 2}} for n in range(4)], schema)
    shown = plan_scan(files.table(Layout(schema, (PLAIN,))), "s.b = 1", columns=["s.a"]).to_arrow()
    assert shown.to_pylist() == [{"s": {"a": 1}}, {"s": {"a": 3}}]


def test_file_without_a_row_group_to_read_is_dropped_and_counted(files: Files) -> None:
    files.data([{"id": n, "name": "x"} for n in (1, 2, 9, 10)], SCHEMA, group=2)
    plan = plan_scan(files.table(Layout(SCHEMA, (PLAIN,))), "id = 5")
    assert len(plan.files) == 0
    assert (plan.summary.row_groups_kept, plan.summary.row_groups_total) == (0, 2)
    assert "row groups" in plan.explain()


def test_row_groups_that_prove_the_predicate_need_no_evaluation(files: Files) -> None:
    files.data(ROWS, SCHEMA, group=2)
    plan = plan_scan(files.table(Layout(SCHEMA, (PLAIN,))), "id >= 4")
    (file,) = plan.files
    assert (file.row_groups, file.tri_state, str(file.residual)) == ((2,), TriState.TRUE, "true")
    assert plan.count() == 2


@pytest.mark.parametrize("columns", [["id", "name"], ["name", "id"], ["id"], ["name"]])
def test_rows_chosen_by_text_with_a_dictionary(files: Files, columns: list[str]) -> None:
    """Null rows, deleted rows and rows beyond a limit are not among them, whether the text itself is read or not."""
    rows = [{"id": n, "name": [None, "a", "b", ""][n % 4]} for n in range(40)]
    path = files.data(rows, SCHEMA, group=16)
    files.positions([(path, 1), (path, 2), (path, 17)])
    plan = plan_scan(files.table(Layout(SCHEMA, (PLAIN,))), "name IN ('a', '')")
    expected = [row for row in rows if row["name"] in ("a", "") and row["id"] not in (1, 2, 17)]
    for limit in (None, 5):
        found = plan.to_arrow(columns, limit)
        assert found.column_names == columns
        assert found.num_rows == len(expected[:limit])
        assert found.to_pylist() == [{name: row[name] for name in columns} for row in expected[:limit]]


def test_rows_deleted_by_position_are_counted_without_their_data_file(files: Files) -> None:
    """Positions that two delete files list count once, and those beyond the last row not at all."""
    path = files.data(ROWS, SCHEMA)
    files.positions([(path, 1), (path, 3), (path, 3), (path, 6), (path, 99)])
    files.positions([(path, 3), (path, 4)])
    table = files.table(Layout(SCHEMA, (PLAIN,)))
    assert ids(table) == [0, 2, 5]
    Path(path).unlink()
    assert plan_scan(table).count() == 3


def test_rows_deleted_by_key_and_by_position_are_counted_as_they_are_read(files: Files) -> None:
    path = files.data(ROWS, SCHEMA)
    files.positions([(path, 1)])
    files.keys([{"id": 1, "name": None}, {"id": 4, "name": None}], SCHEMA, [1])
    table = files.table(Layout(SCHEMA, (PLAIN,)))
    assert ids(table) == [0, 2, 3, 5]
    assert ids(table, "name <> 'n2'") == [0, 3, 5]


@pytest.mark.parametrize("where", [None, "name <> 'n2'"])
@pytest.mark.parametrize("by_key", [False, True])
def test_deleted_rows_count_if_deleted_is_among_the_columns(files: Files, where: str | None, by_key: bool) -> None:
    path = files.data(ROWS, SCHEMA)
    files.positions([(path, 1), (path, 99)])
    if by_key:
        files.keys([{"id": 3, "name": None}], SCHEMA, [1])
    table = files.table(Layout(SCHEMA, (PLAIN,)))
    plan = plan_scan(table, where, columns=["id", "_deleted"])
    assert plan.count() == plan.to_arrow().num_rows == (6 if where is None else 5)
    assert plan_scan(table, where, columns=["id"]).count() == len(ids(table, where))


def test_tables_with_some_encrypted_files_are_used_where_those_are_not_touched(files: Files) -> None:
    """Encrypted data and delete files are named when they are needed, and only then."""
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"), spec_id=0)
    open_file = files.data([{"id": 1, "name": "a"}], SCHEMA, **{"partition.1000": "a"})
    secret = files.data([{"id": 2, "name": "b"}], SCHEMA, key_metadata=b"k", **{"partition.1000": "b"})
    deleted = files.data([{"id": 3, "name": "c"}], SCHEMA, **{"partition.1000": "c"})
    delete = files.positions([(deleted, 0)], key_metadata=b"k", **{"partition.1000": "c"})
    table = files.table(Layout(SCHEMA, (spec,)))
    assert ids(table, "name = 'a'") == [1]
    with pytest.raises(UnsupportedError, match=f"data file {secret} is encrypted"):
        plan_scan(table, "name < 'c'").to_arrow()
    with pytest.raises(UnsupportedError, match=f"delete file {delete} is encrypted"):
        plan_scan(table, "name = 'c'").to_arrow()
    planned = RewriteDataFilesPlanner(table, RewriteOptions(rewrite_all=True), cache=False).plan()
    assert [file.path for file in planned.files.take(np.concatenate([g.rows for g in planned.groups]))] == [open_file]
    assert planned.skipped == {"encrypted": 1, "unreadable-deletes": 1}


class TestColumnsReadLate:
    """The columns of the residual are read first, the others for what is left."""

    SCHEMA = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "kind", StringType(), required=False),
        NestedField(3, "text", StringType(), required=False),
        schema_id=0,
    )

    @staticmethod
    def rows(count: int) -> list[dict[str, Any]]:
        return [{"id": n, "kind": f"k{n % 4}", "text": f"text {n}"} for n in range(count)]

    @pytest.fixture
    def read(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], int]]:
        """Names and number of rows of each later read."""
        found: list[tuple[list[str], int]] = []
        columns = OpenFile.columns

        def recorded(self: OpenFile, schema: Schema, selection: RowSelection, kept: Mask | None = None) -> pa.Table:
            found.append(([field.name for field in schema.fields], selection.row_count))
            return columns(self, schema, selection, kept)

        monkeypatch.setattr(OpenFile, "columns", recorded)
        return found

    def planned(self, files: Files, where: str) -> ScanPlan:
        table = files.table(Layout(self.SCHEMA, (PartitionSpec(spec_id=0),)))
        return plan_scan(table, where, options=ScanOptions(report=False, footers=False))

    def test_only_matching_rows_are_read_where_others_fill_pages(
        self, tmp_path: Path, read: list[tuple[list[str], int]]
    ) -> None:
        files = Files(tmp_path)
        files.data(self.rows(5000), self.SCHEMA)
        assert self.planned(files, "id = 17 OR id = 4000").to_arrow().column("text").to_pylist() == [
            "text 17",
            "text 4000",
        ]
        assert read == [(["kind", "text"], 2)]

    def test_a_decoder_that_skips_pages_reads_small_files(
        self, tmp_path: Path, read: list[tuple[list[str], int]]
    ) -> None:
        files = Files(tmp_path)
        path = files.data(self.rows(5000), self.SCHEMA)
        pq.write_table(pq.read_table(path), path, compression="zstd")
        found = self.planned(files, "id = 17 OR id = 4000").to_arrow()
        assert found.to_pylist() == [self.rows(5000)[17], self.rows(5000)[4000]]
        assert read == [(["kind", "text"], 5000)]

    def test_matches_all_over_a_file_are_read_in_bulk(self, tmp_path: Path, read: list[tuple[list[str], int]]) -> None:
        files = Files(tmp_path)
        files.data(self.rows(5000), self.SCHEMA)
        found = self.planned(files, "kind = 'k1'").to_arrow()
        assert found.to_pylist() == [row for row in self.rows(5000) if row["kind"] == "k1"]
        assert read == [(["id", "text"], 5000)]

    def test_a_limit_reads_other_columns_of_its_rows_alone(
        self, tmp_path: Path, read: list[tuple[list[str], int]]
    ) -> None:
        files = Files(tmp_path)
        files.data(self.rows(5000), self.SCHEMA)
        found = self.planned(files, "kind = 'k1'").to_arrow(limit=3)
        assert found.to_pylist() == [row for row in self.rows(12) if row["kind"] == "k1"]
        assert read == [(["id", "text"], 3)]

    def test_nothing_else_is_read_without_a_match(self, tmp_path: Path, read: list[tuple[list[str], int]]) -> None:
        files = Files(tmp_path)
        files.data(self.rows(50), self.SCHEMA)
        found = self.planned(files, "kind LIKE '%9'").to_arrow()
        assert (found.num_rows, found.column_names) == (0, ["id", "kind", "text"])
        assert read == []

    def test_a_count_reads_no_other_column(self, tmp_path: Path, read: list[tuple[list[str], int]]) -> None:
        files = Files(tmp_path)
        path = files.data(self.rows(400), self.SCHEMA)
        files.positions([(path, 1), (path, 2), (path, 2)])
        assert self.planned(files, "kind = 'k1'").count() == 99
        assert read == []

    def test_an_expression_is_not_evaluated_on_deleted_rows(self, tmp_path: Path) -> None:
        files = Files(tmp_path)
        path = files.data(self.rows(10), self.SCHEMA)
        files.positions([(path, 0)])
        assert self.planned(files, "100 / id > 20").to_arrow().column("id").to_pylist() == [1, 2, 3, 4]

    def test_pages_of_deleted_rows_are_left_out(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = Files(tmp_path)
        path = files.data(self.rows(5000), self.SCHEMA)
        files.positions([(path, n) for n in range(10, 4000)])
        selected: list[int] = []
        stored = OpenFile.read

        def recorded(self: OpenFile, schema: Schema, selection: RowSelection, **options: Any) -> Any:
            selected.append(selection.row_count)
            return stored(self, schema, selection, **options)

        monkeypatch.setattr(OpenFile, "read", recorded)
        assert self.planned(files, "id >= 0").to_arrow().num_rows == 1010
        assert selected == [1010]
